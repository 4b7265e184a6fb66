"""Test that programs whose results are compared to the bit compute with one thread on a CPU.

The order of sums depends on the number of threads, so nodes with equal CPUs and different numbers of cores
would otherwise compute different digests.
"""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest

from tests.workloads.programs import load_program


class ReachedError(Exception):
    """The end of the part of the program that is tested."""


@pytest.mark.parametrize("program", ["probe_training_step", "probe_gpu_agreement"])
@pytest.mark.parametrize(
    ("device", "wanted", "existing", "threads"),
    [
        # --device, --gpus, the number of GPUs of the node, and the calls of set_num_threads.
        ("cpu", None, 2, [1]),
        ("cpu", None, 0, [1]),
        ("auto", None, 0, [1]),
        ("auto", 0, 2, [1]),
        ("gpu", 0, 2, [1]),
        ("auto", None, 2, []),
        ("gpu", 1, 2, []),
    ],
)
def test_one_thread_without_gpus(
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    device: str,
    wanted: int | None,
    existing: int,
    threads: list[int],
) -> None:
    module = load_program(program)
    common, calls = module.common, []

    def begin(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr(
        common, "gpus", lambda: [common.Gpu(at, f"GPU-{at}", "H200") for at in range(existing)]
    )
    monkeypatch.setattr(common, "begin_probe", begin)
    monkeypatch.setattr(module, "torch", SimpleNamespace(set_num_threads=calls.append), raising=False)
    with pytest.raises(ReachedError):
        module.probe(Namespace(device=device, gpus=wanted), SimpleNamespace(index=0), None)
    assert calls == threads

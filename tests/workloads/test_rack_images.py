"""Test the test rack's fake images of NVIDIA's benchmarks, whose training logs what its config exports.

A config is a shell script of the image that sets the size of a training. As in the real images, the log must
follow the config, so that Rackproof's rules of a round are tested with it. The last test is about the
downloads, which are built with the images.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testrack.images import configs, downloads

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "testrack/images/common"))

from fake_ngc.benchmarks import BENCHMARKS  # noqa: E402


def exported(folder: Path, one: str, name: str, given: dict[str, str]) -> dict[str, str]:
    """Return the environment that bash has after it has sourced a config of an image."""
    for file, text in configs.files(one).items():
        (folder / file).write_text(text)
    command = ["bash", "-c", f'source "{folder / name}" && env -0']
    output = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **given}, capture_output=True, check=True)
    return dict(entry.split("=", 1) for entry in output.stdout.decode().split("\0") if "=" in entry)


@pytest.mark.parametrize("one", sorted(configs.HYPERPARAMETERS))
def test_each_config_exports_what_the_training_logs(tmp_path: Path, one: str) -> None:
    names = configs.files(one).keys() - {"config_common.sh"}
    assert names
    for name in names:
        found = BENCHMARKS[one].with_config(exported(tmp_path, one, name, {}))
        assert found.exports.keys() - {"eval_samples"} <= found.keys.keys()


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        # A variable of the environment, and the logged key and value that follow from it.
        ({"VAL_CHECK_INTERVAL": "131072"}, "evaluation_frequency", 131072),
        ({"LEARNING_RATE": "-0.1"}, "opt_base_learning_rate", -0.1),
        ({"WARMUP_STEPS": "7"}, "opt_learning_rate_warmup_steps", 7),
    ],
)
def test_flux1_logs_the_environment_of_its_run(
    tmp_path: Path, given: dict[str, str], key: str, value: float
) -> None:
    environment = exported(tmp_path, "flux1", "config_GB300_02x04x64.sh", given)
    found = BENCHMARKS["flux1"].with_config(environment)
    assert found.keys[key] == value
    assert found.evaluations(512)[0] * 512 == (131072 if key == "evaluation_frequency" else 262144)


def test_llama31_8b_logs_a_decay_without_its_warmup_and_needs_each_export(tmp_path: Path) -> None:
    environment = exported(tmp_path, "llama31_8b", "config_GB300_2x4x2xtp1pp1cp1_8b.sh", {})
    one = BENCHMARKS["llama31_8b"]
    found = one.with_config({**environment, "WARMUP_STEPS": "16", "VAL_SAMPLES": "64"})
    assert (found.keys["opt_learning_rate_decay_steps"], found.eval_samples) == (1199984, 64)
    for name in ("LR", "MAX_STEPS", "OPT_LR_DECAY_STEPS", "VAL_SAMPLES", "WARMUP_STEPS"):
        with pytest.raises(KeyError, match=name):
            one.with_config({key: value for key, value in environment.items() if key != name})


def test_downloads_that_are_not_made_in_time_are_an_error_that_the_build_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build reports an OSError, but any other exception would end it with a traceback."""
    program = tmp_path / "slow.py"
    program.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(downloads, "__file__", str(program))
    monkeypatch.setattr(downloads, "TIMEOUT_S", 0.2)
    with pytest.raises(OSError, match=r"^the downloads were not made within 0\.2 s$"):
        downloads.write(tmp_path / "downloads")
    assert not (tmp_path / "downloads/.made-from").exists()

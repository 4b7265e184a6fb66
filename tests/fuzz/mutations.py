"""Damage passing logs, and check that no parser accepts damage that matters (:func:`check`).

Some damage may leave a pass, such as an ugly line in a good log. Other damage must not: a log that ends
before its proof of success, a missing success, a missing row, or a NaN instead of a judged number. Each
:class:`Case` is a log with the places at which such damage is possible.
"""

from __future__ import annotations

import io
import lzma
import random
import re
from dataclasses import dataclass
from pathlib import Path

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.progress import Follower
from tests.logs import log_samples as samples

# Bytes that are inserted anywhere, and lines after which a training cannot be a success.
RUBBISH = (
    b"\x00", b"\xff", b"\r", b"\n", b"\x1b[2J", b"{", b"}", b'"', b"'", b",", b" ", b"9" * 400, b"-",
    b"nan", b"NaN",
    b"1e999", b"null",
    b":::MLLOG ", b":::MLL ", b"RESULT,", b"\xe2\x80\xae", b"[" * 2000, b"x" * 70_000,
)  # fmt: skip

FATAL_LINES = (
    b"7: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.16 GiB\n",
    b"slurmstepd: error: *** STEP 40.14 ON node CANCELLED AT 2025-10-08T00:32:36 ***\n",
    b"slurmstepd: error: *** JOB 4 ON n CANCELLED AT 2025-10-08T00:32:36 DUE TO TIME LIMIT ***\n",
    b"iter: 380  loss: nan (nan)  loss_mask: 4.0964\n",
    b"epoch 3 loss: NaN\n",
    b"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 2.07e-171\n",
)


@dataclass(frozen=True)
class Case:
    """A log that passes.

    If it is cut off before byte ``proof``, it does not pass (None if nothing marks its end). Each of the
    texts ``successes`` is needed for a pass. ``judged`` matches numbers that must be finite. In the log of a
    ``training``, a fatal line before byte ``proof`` rules out a pass.
    """

    name: str
    format: str
    data: bytes
    proof: int | None
    successes: tuple[bytes, ...] = ()
    judged: re.Pattern[bytes] | None = None
    training: bool = False
    needed: re.Pattern[bytes] | None = None
    """A pattern of lines of which none may be missing: rows, ranks, halves of pairs, evaluations."""
    bound: re.Pattern[bytes] | None = None
    """A pattern of numbers that a parser can check, by other numbers of the log or by what is possible."""


_SUCCESSES: dict[str, tuple[bytes, ...]] = {
    "mllog": (b'"run_start"', b'"run_stop"', b'"status": "success"'),
    "mll06": (b"run_start", b"run_stop", b'"status": "success"'),
    "minigo": (b"run_start", b"eval_result", b"timestamp"),
    "mlp05": (b"run_start", b"run_stop", b"success"),
    "tf_cnn": (b"total images/sec",),
    "mxnet": (b"Time cost", b"num_epochs"),
    "nccl_tests": (b"# Out of bounds values", b"busbw"),
    "nccl_json": (b'"results"', b'"end_time"', b'"out_of_bounds"'),
    "nvbandwidth": (b"NOTE", b"Running", b"SUM"),
    "gpu_burn": (b"Tested", b"OK"),
    "ib_write_bw": (b"#bytes", b"BW average["),
    "nvidia_smi_xml": (b"attached_gpus", b"nvidia_smi_log"),
    "nvidia_smi_text": (b"Attached GPUs", b"NVSMI LOG"),
    "nvidia_smi_csv": (),
    "nvlink_status": (b"GB/s", b"UUID"),
    "nvidia_smi_topo": (b"GPU0",),
    "dcgmi_diag": (b"Successfully", b"software", b"GPU0: Pass"),
    "dcgm_json": (b"test_categories", b"results"),
    "hpl": (b"tests completed and passed", b"End of Tests"),
    "stream": (b"Solution Validates", b"Triad"),
    "fio": (b'"jobs"', b'"error"', b'"read":', b'"total_ios"', b'"runtime": 10000'),
}
_JUDGED = {
    "mllog": rb'(?:"eval_accuracy", "value": |"train_loss": |"train_step_time": )([0-9.]+)',
    # Only the last evaluation counts.
    "mll06": rb'(?s)(?:eval_accuracy: \{"value": (?!.*eval_accuracy)|samples / sec: (?=4))([0-9.]+)',
    "minigo": rb'(?:eval_accuracy: \{"value": |"timestamp": |Iteration time: )([0-9.]+)',
    "mlp05": rb'"value": ([0-9.]+)',
    "tf_cnn": rb"(?:jitter = [0-9.]+\)\t|total images/sec: )([0-9.]+)",
    "mxnet": rb"(?:(?:Train|Validation)-accuracy=|Speed: |Time cost=)([0-9.]+)",
    "nccl_tests": rb"(?<=  )([0-9.]+)(?=  +[0-9.]+ +0(?: |\n))",
    "nccl_json": rb'"(?:bus|alg)_bw": ([0-9.]+)',
    "nvbandwidth": rb" (39\d\.00)",
    "ib_write_bw": rb"(394\.20)",
    "hpl": rb"(8\.1261e\+03)",
    "stream": rb"(?:Copy|Scale|Add|Triad): +([0-9.]+)",
    "fio": rb'"(?:io_bytes|bw_bytes|iops|runtime|total_ios)": ([0-9.]+)',
}
_NEEDED = {
    "tf_cnn": rb"^100\t",
    "mxnet": rb"Time cost",
    "nccl_tests": rb"^ +\d+ +\d+  float|# +Rank  [01]",
    "nvbandwidth": rb"^ \d  |SUM",
    "gpu_burn": rb"^100\.0%|GPU \d: OK",
    "ib_write_bw": rb"^ 65536|^-+$(?!\n #)",
    "hpl": rb"^WR0|passed residual|^End of",
    "stream": rb"^(?:Copy|Scale|Add|Triad|Solution)",
    "fio": rb'"(?:error|io_bytes|bw_bytes|iops|runtime|total_ios)": ',
}
"""Lines of the samples that cannot be missing."""
_BOUND = {
    "mllog": rb'(?:"eval_accuracy", "value": )([0-9.]+)',
    "mll06": rb'(?s)(?:eval_accuracy: \{"value": )(?!.*eval_accuracy)([0-9.]+)',
    "tf_cnn": rb"(?:Num batches: |total images/sec: )([0-9.]+)",
    "nccl_tests": rb"(?:  | : )(10\.00(?=  222)|9\.58|222\.42|232\.17|2224200|113\.65)",
    "nccl_json": rb'"(?:time|alg_bw|bus_bw|bandwidth)": ([0-9.]+)',
    "nvbandwidth": rb" (39\d\.00|790\.00)",
    "gpu_burn": rb"^([0-9.]+)%(?!.*7150)",
    "hpl": rb"(?:^WR0XR8C48 +| )(384000|4645\.37)(?= )",
    "stream": rb"^(?:Copy|Scale|Add|Triad): +([0-9.]+)",
    "fio": rb'"(?:io_bytes|bw_bytes|iops|runtime|total_ios)": ([0-9.]+)',
}
"""Numbers of the samples of which a parser refuses values that differ by a factor of ten or more."""
_COURSE = re.compile(
    rb'"key": "(?:block_st|eval_st|eval_accuracy|target_accuracy)|^:::MLL .*(?:eval_acc|eval_st)'
)
"""Events that the real logs below need for a complete course of the training."""


def _lines(pattern: bytes | None) -> re.Pattern[bytes] | None:
    return re.compile(pattern, re.MULTILINE) if pattern else None


def all_cases() -> list[Case]:
    """Return a case for every passing sample."""
    cases = []
    for name, data in samples.PASSING.items():
        pattern = _JUDGED.get(name)
        cases.append(
            Case(
                name,
                samples.FORMAT_OF.get(name, name),
                data,
                samples.proof_length(name) if name in samples.END_OF_PROOF else None,
                _SUCCESSES[name],
                re.compile(pattern) if pattern else None,
                name in ("mllog", "mll06"),
                _lines(_NEEDED.get(name)),
                _lines(_BOUND.get(name)),
            )
        )
    return cases


def real_cases() -> list[Case]:
    """Return cases of real logs. They are small, so that a million inputs take hours and not days."""
    folder = Path(__file__).resolve().parent.parent / "data" / "real"
    cases = []
    for file, format_name in (
        ("mlperf-hard/5.0-rgat-cut-off.txt", "mllog"),
        ("mlperf-hard/5.1-crlf-dlrm_dcnv2.txt", "mllog"),
        ("mlperf-0.6/translation/DGX1.log", "mll06"),
    ):
        data = (folder / file).read_bytes()
        line = data.rindex(b"run_stop")
        proof = data.index(b'"success"', line) + len(b'"success"')
        cases.append(
            Case(
                file,
                format_name,
                data,
                proof,
                (b"run_start", b"run_stop"),
                re.compile(rb'eval_accuracy(?:", "value": |: \{"value": "?)([0-9.]+)'),
                True,
            )
        )
    for file in ("llama2_70b_lora/result_1.txt.xz", "llama31_8b/result_10.txt.xz"):
        data = lzma.decompress((folder / "mlperf-5.1/lambda-gb300-n18" / file).read_bytes())
        proof = data.rindex(b'"success"') + len(b'"success"')
        successes = (b"run_start", b"run_stop")
        case = Case(file, "mllog", data, proof, successes, None, True, _COURSE, _lines(_BOUND["mllog"]))
        cases.append(case)
    for file, format_name, proof_text in (
        ("tf_cnn/resnet50-fp32-1gpu.log", "tf_cnn", b"total images/sec: 326.58\n"),
        ("nccl/b200-8gpu-all_reduce.txt", "nccl_tests", b"Avg bus bandwidth"),
        ("tools/nvbandwidth_results.log", "nvbandwidth", b"NOTE: The reported results"),
        ("mxnet/mxnet_lenet_mnist.log", "mxnet", b"fit 43.421255350112915\n"),
    ):
        data = (folder / file).read_bytes()
        proof = data.rindex(proof_text) + len(proof_text)
        cases.append(Case(file, format_name, data, proof, _SUCCESSES[format_name][:1]))
    return cases


def parse(data: bytes, format_name: str, chance: random.Random) -> ParsedLog:
    """Parse a log, half of the time without its format, and check that a result other than pass has a reason.

    Of some logs, also check that the result can be stored and that the log can be followed.
    """
    parsed = logs.parse(io.BytesIO(data), format="auto" if chance.random() < 0.5 else format_name)
    if chance.random() < 0.05:
        ParsedLog.model_validate_json(parsed.model_dump_json())
        Follower().feed(data)
    if parsed.verdict is not Verdict.PASS and not any(one.verdict for one in parsed.findings):
        raise AssertionError("no pass, and no reason for it")
    return parsed


def scramble(data: bytes, chance: random.Random) -> bytes:
    """Return the log after one to eight random changes of bytes or lines."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(damaged) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            damaged[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            damaged[at:at] = chance.choice(RUBBISH)
        elif kind == 2:
            del damaged[at : at + chance.choice((1, 3, 30, 300))]
        elif kind == 3:
            start = chance.randrange(len(damaged) + 1)
            damaged[at:at] = damaged[start : start + chance.choice((10, 100, 1000))]
        else:
            lines = bytes(damaged).split(b"\n")
            chance.shuffle(lines)
            damaged = bytearray(b"\n".join(lines))
    return bytes(damaged)


def check(case: Case, chance: random.Random) -> str:
    """Damage a log in one way, and return the kind of the damage.

    Raises:
        AssertionError: The log passes after damage that rules out a success, or has no reason not to pass.
    """
    data = case.data
    kinds = ["scramble", "scramble"]
    kinds += ["truncate"] if case.proof is not None else []
    kinds += ["success"] if case.successes else []
    kinds += ["nan"] if case.judged else []
    kinds += ["fatal"] if case.training else []
    kinds += ["line gone"] if case.needed else []
    kinds += ["other number"] if case.bound else []
    kind = chance.choice(kinds)
    if kind == "scramble":
        parse(scramble(data, chance), case.format, chance)
        return kind
    if kind == "truncate":
        damaged = data[: chance.randrange(case.proof or 1)]
    elif kind == "success":
        text = chance.choice(case.successes)
        damaged = data.replace(text, chance.choice((b"", b"x", text[:-2], b"\x00" * len(text))))
    elif kind == "fatal":
        ends = [found.end() for found in re.finditer(rb"\n", data[: case.proof])]
        at = chance.choice(ends)
        damaged = data[:at] + chance.choice(FATAL_LINES) + data[at:]
    elif kind == "line gone":
        found = chance.choice(list(case.needed.finditer(data)))  # type: ignore[union-attr]
        begin, end = data.rfind(b"\n", 0, found.start()) + 1, data.find(b"\n", found.end()) + 1
        damaged = data[:begin] + data[end or len(data) :]
    elif kind == "other number":
        found = chance.choice(list(case.bound.finditer(data)))  # type: ignore[union-attr]
        factor = chance.choice((0.0, 0.001, 0.09, 11.0, 1e6, 1e30))
        damaged = data[: found.start(1)] + b"%g" % (float(found[1]) * factor) + data[found.end(1) :]
    else:
        found = chance.choice(list(case.judged.finditer(data)))  # type: ignore[union-attr]
        damaged = data[: found.start(1)] + chance.choice((b"nan", b"NaN")) + data[found.end(1) :]
    parsed = parse(damaged, case.format, chance)
    if parsed.verdict is Verdict.PASS:
        raise AssertionError(f"false success in {case.name} after {kind}: {damaged[-300:]!r}")
    return kind

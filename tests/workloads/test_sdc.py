"""Test workloads/sdc_answers.py and probe_sdc.py, which find silent data corruption (SDC) of GPUs.

A path is a kernel whose blocks all compute the same words on each SM of a GPU. A wrong word shows that an SM
computes wrongly without an error. The tests inject faults as publications describe them, and show that GPU,
path and SM are named. They also show when nothing can be concluded, so that the result is unproven.
"""

from __future__ import annotations

import array
import csv
import json
import math
import random
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .programs import load_program
from .test_several_gpus import with_fault
from .test_training import run, values

LAUNCHES = 5000
"""The least number of launches of each path in a run of the benchmark."""
PATHS = ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64", "special", "atomics")
# The share of launches that a fault corrupts. An H100 has 132 SMs, and each runs two blocks here.
RATES = (1.0, 0.1, 0.01, 0.001)
SMS, BLOCKS, THREADS = 132, 264, 256


@pytest.fixture(scope="module")
def answers() -> Any:
    """Return workloads/sdc_answers.py as a module."""
    return load_program("sdc_answers")


def block(seed: int) -> bytes:
    """Return the random words of a right block."""
    dice = random.Random(seed)
    return array.array("I", [dice.getrandbits(32) for _ in range(THREADS)]).tobytes()


def corrupted(words: bytes, dice: random.Random) -> bytes:
    """Return the words of a block with a fault in them.

    The fault resembles those of a GPU with defect gates: 1 % of the wrong words are NaN or infinite, fewer
    than 40 % of the others differ in one bit, and they lie at the distances of a warp (arXiv:2605.04213).
    """
    found = array.array("I", words)
    warp = 32 * dice.randrange(THREADS // 32)
    lanes = dice.choice(([dice.randrange(32)], range(32), range(dice.randrange(2), 32, 2), range(0, 32, 4)))
    mask = 0
    for at in dice.sample(range(32), 1 if dice.random() < 0.39 else dice.randint(2, 16)):
        mask |= 1 << at
    for lane in lanes:
        found[warp + lane] = 0x7FC00000 if dice.random() < 0.01 else found[warp + lane] ^ mask
    return found.tobytes()


def hits(rate: float, launches: int, dice: random.Random) -> int:
    """Return the number of launches that a fault strikes."""
    if rate == 1:
        return launches
    count, at = 0, 0
    while True:
        at += 1 + int(math.log(1 - dice.random()) / math.log(1 - rate))
        if at > launches:
            return count
        count += 1


@pytest.mark.slow
def test_ten_thousand_faults_are_found_and_their_gpu_path_and_sm_named(answers: Any) -> None:
    """A fault hits the first answer or later launches. Differences are counted as the kernels count them."""
    dice = random.Random(33)
    right = {path: block(at) for at, path in enumerate(PATHS)}
    found: Counter[float] = Counter()
    for at in range(10_000):
        rate, path = RATES[at % len(RATES)], dice.choice(PATHS)
        gpu, sm = dice.randrange(8), dice.randrange(SMS)
        counts = {(one, name): answers.Counts(SMS) for one in range(8) for name in PATHS}
        blocks = [(number % SMS, right[path]) for number in range(BLOCKS)]
        if dice.random() < rate:
            blocks[sm] = (sm, corrupted(right[path], dice))
        exact = right[path] if path in ("fp32", "fp64", "atomics") else None
        answer, wrong = answers.settle(blocks, exact)
        assert answer == right[path]
        counts[gpu, path].add_wrong(wrong)
        for _ in range(min(hits(rate, LAUNCHES, dice), 3)):
            counts[gpu, path].add_wrong({sm: answers.differing(corrupted(answer, dice), answer)})
        named = {(*key, one) for key, count in counts.items() for one, words in count.wrong.items() if words}
        assert named <= {(gpu, path, sm)}
        found[rate] += bool(named)
    assert [found[rate] for rate in RATES[:3]] == [2500] * 3
    # With a probability of 0.7 %, 5,000 launches miss a fault that strikes one in 1,000.
    assert found[0.001] >= 0.99 * 2500
    assert found.total() >= 9_975


@pytest.mark.slow
def test_a_thousand_clean_runs_name_nothing(answers: Any) -> None:
    for seed in range(1000):
        words = block(seed)
        blocks = [(number % SMS, words) for number in range(BLOCKS)]
        assert answers.settle(blocks, words if seed % 2 else None) == (words, {})


@settings(max_examples=25)
@given(st.integers(1, 7), st.integers(0, 1000))
def test_less_than_half_of_the_blocks_cannot_outvote_the_rest(odd: int, seed: int) -> None:
    answers, dice = load_program("sdc_answers"), random.Random(seed)
    words = block(seed)
    wrong = [(number, corrupted(words, dice)) for number in range(odd)]
    answer, found = answers.settle([*wrong, *((number, words) for number in range(odd, 16))], None)
    assert answer == words
    assert set(found) == set(range(odd))


def test_what_is_computed_is_right_whatever_all_blocks_agree_on(answers: Any) -> None:
    blocks = [(sm, block(1)) for sm in range(4)]
    answer, wrong = answers.settle(blocks, block(2))
    assert answer == block(1)
    assert wrong == dict.fromkeys(range(4), THREADS)


@pytest.mark.parametrize(
    ("digest", "golden", "alike", "odd"),
    [
        # A GPU's digest, that of the golden table (None: no row), the digests of all GPUs of the model, and
        # whether the GPU is odd (None: unknown). Without a row, the majority is right.
        ("a", "a", ["a"], False),
        ("b", "a", ["b"], True),
        ("b", "a", ["b", "b", "b"], True),
        ("a", "a", ["a", "b"], False),
        ("a", None, ["a"], None),
        ("a", None, [], None),
        ("a", None, ["a", "a"], False),
        ("a", None, ["a", "b"], True),
        ("a", None, ["a", "a", "b"], False),
        ("b", None, ["a", "a", "b"], True),
        ("a", None, ["a", "a", "b", "b"], True),
    ],
)
def test_an_answer_is_held_against_the_table_or_else_the_other_gpus(
    answers: Any, digest: str, golden: str | None, alike: list[str], odd: bool | None
) -> None:
    assert answers.is_odd(digest, golden, alike) is odd


def test_coverage_counts_the_sms_that_were_not_met(answers: Any) -> None:
    counts = answers.Counts(3, {0: 4, 1: 4}, {0: 2, 1: 2}, {}, 8)
    assert (counts.missed, counts.fewest_launches, counts.lost_blocks) == (1, 0, 0)
    counts = answers.Counts(2, {0: 4, 1: 3}, {0: 2, 1: 1}, {}, 8)
    assert (counts.missed, counts.fewest_launches, counts.lost_blocks) == (0, 1, 1)


@pytest.mark.parametrize("launches", [1, 2, 3, 1000, 5000, 10**7])
def test_the_smallest_rate_is_found_with_95_percent(answers: Any, launches: int) -> None:
    rate = answers.smallest_rate(launches)
    assert 1 - (1 - rate) ** launches == pytest.approx(0.95)


def line(key: str, value: Any, **metadata: Any) -> str:
    """Return a line of MLPerf's log."""
    return f":::MLLOG {json.dumps({'key': key, 'value': value, 'metadata': metadata})}\n"


def wrong(value: int, name: str = "wrong_words") -> str:
    """Return the line of a measurement that counts wrong words."""
    return line("measurement", {"name": name, "value": value})


ROW = {"model": "NVIDIA H100", "software": "0-nvrtc13.0", "path": "fp8", "digest": "a" * 64}
ANSWER = {**ROW, "labels": {"gpu": "GPU-1"}}
ANSWERED = {**ROW, "gpu": "GPU-1"}
END = line("run_stop", None, status="success")


@pytest.mark.parametrize(
    ("lines", "rows"),
    [
        ([line("sdc_answer", ANSWER), END], [ANSWERED]),
        (["text\n", line("sdc_answer", ANSWER), wrong(0), END], [ANSWERED]),
        ([line("sdc_answer", ANSWER), wrong(1), END], []),
        ([line("sdc_answer", ANSWER), wrong(1, "odd_answers"), END], []),
        ([line("sdc_answer", {**ANSWER, "labels": {"device": "cpu"}}), END], []),
        ([line("sdc_answer", ANSWER)], []),
        ([line("sdc_answer", ANSWER), line("run_stop", None, status="aborted")], []),
    ],
)
def test_rows_come_from_logs_that_ended_well_without_a_wrong_word(
    answers: Any, lines: list[str], rows: list[dict[str, str]]
) -> None:
    assert answers.answers_of(lines) == rows


@pytest.mark.parametrize(
    ("digests", "golden", "right", "odd"),
    [
        # The digest of each GPU, that of the golden table ("": it has no row), the right digest (None:
        # unknown), and a part of each message.
        (["a"], "", "a", []),
        (["a", "a"], "", "a", []),
        (["a", "b"], "", None, ["no majority"]),
        (["a", "a", "b"], "", "a", ["2 gives"]),
        (["a", "a", "b", "b"], "", None, ["no majority"]),
        (["b", "b", "a"], "a", "a", ["0 gives", "1 gives"]),
        (["a", "b"], "b", "b", ["0 gives"]),
    ],
)
def test_a_fleet_names_the_gpus_that_differ(
    answers: Any, digests: list[str], golden: str, right: str | None, odd: list[str]
) -> None:
    rows = [{**ROW, "digest": digest, "gpu": f"GPU-{at}"} for at, digest in enumerate(digests)]
    key = answers.key_of(ROW)
    found, said = answers.compare_fleet(rows, {key: golden} if golden else {})
    assert found.get(key) == right
    assert len(said) == len(odd)
    assert all(words in text for words, text in zip(odd, said, strict=True))


def test_a_gpu_that_differs_from_itself_is_named(answers: Any) -> None:
    rows = [{**ROW, "digest": digest, "gpu": gpu} for digest, gpu in ("a1", "a2", "a3", "b3")]
    _, said = answers.compare_fleet(rows, {})
    assert len(said) == 1
    assert "3 gives another answer" in said[0]


def test_new_rows_are_printed_and_a_dispute_ends_with_1(
    answers: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(line("sdc_answer", ANSWER) + END)
    assert answers.main([str(log), str(log)]) == 0
    assert list(csv.reader(capsys.readouterr().out.splitlines())) == [list(ROW.values())]
    log.write_text(line("sdc_answer", ANSWER) + line("sdc_answer", {**ANSWER, "digest": "b" * 64}) + END)
    assert answers.main([str(log)]) == 1
    assert "GPU-1" in capsys.readouterr().err
    log.write_text(":::MLLOG {}")
    assert answers.main([str(log)]) == 2


def test_the_table_is_sorted_and_of_digests(answers: Any) -> None:
    keys = []
    for (model, software, path), digest in answers.read_golden().items():
        assert model
        assert path in PATHS
        assert re.fullmatch(r"[0-9a-f]{16}-nvrtc\d+\.\d+", software)
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
        keys.append((model, software, path))
    assert keys == sorted(keys)


def test_a_table_of_other_columns_is_refused(answers: Any, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("model,digest\nx,y\n")
    with pytest.raises(ValueError, match="columns"):
        answers.read_golden(path)
    path.write_text("model,software,path,digest\na,b,c,d\na,b,c,e\n")
    with pytest.raises(ValueError, match="two rows"):
        answers.read_golden(path)


def test_the_kernels_have_the_programs_numbers(root: Path) -> None:
    source = (root / "workloads/sdc_kernels.cu").read_text()
    for name, program in (
        ("sdc_paths", "THREADS GROUP RANDOM_SET SLOTS"),
        ("probe_sdc", "MOST_SMS MOST_RECORDS"),
    ):
        text = (root / f"workloads/{name}.py").read_text()
        for word in program.split():
            (value,) = re.findall(rf"#define {word} (\d+)", source)
            names, numbers = re.search(rf"^(.*\b{word}\b.*) = (.*)$", text, re.MULTILINE).groups()  # type: ignore[union-attr]
            assert dict(zip(names.split(", "), numbers.split(", "), strict=True))[word] == value


@pytest.mark.torch
def test_a_cpu_shows_the_flow_and_that_it_proves_nothing(root: Path, torch_python: str) -> None:
    done = run(torch_python, root, "probe_sdc.py", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    measured = values(done.stdout, "measurement")
    for name, value in (("wrong_words", 0), ("lost_blocks", 0), ("fewest_launches", 3)):
        found = {one["labels"]["path"]: one["value"] for one in measured if one["name"] == name}
        assert found == dict.fromkeys(PATHS, value)
    # Neither table nor another device can be compared with the answers of a CPU.
    assert "odd_answers" not in {one["name"] for one in measured}
    assert [one["what"].split()[0] for one in values(done.stdout, "unproven")] == list(PATHS)
    assert {one["path"] for one in values(done.stdout, "sdc_coverage")} == set(PATHS)


MISSED = """
real = program.Counts
program.Counts = lambda sms, *rest: real(2, *rest)
"""


@pytest.mark.torch
def test_an_sm_that_was_not_met_leaves_its_paths_unproven(
    root: Path, torch_python: str, tmp_path: Path
) -> None:
    measured = with_fault(torch_python, root, tmp_path, "probe_sdc", MISSED)
    names = {one["name"] for one in measured}
    assert "wrong_words" in names
    assert not names & {"fewest_launches", "smallest_rate"}


HELD = """
import json
from pathlib import Path
program.CpuPaths.software = "x"
known = json.loads(Path(__file__).with_name("golden.json").read_text())
program.sdc_answers.read_golden = lambda: {("cpu", "x", path): digest for path, digest in known.items()}
"""


@pytest.mark.torch
def test_answers_of_a_device_alone_are_held_against_the_table(
    root: Path, torch_python: str, tmp_path: Path
) -> None:
    table = tmp_path / "golden.json"
    table.write_text("{}")
    alone = with_fault(torch_python, root, tmp_path, "probe_sdc", HELD, key="sdc_answer")
    known = {one["path"]: one["digest"] for one in alone}
    assert set(known) == set(PATHS)
    # In the table, fp8 has another answer, and fp64 has no row, so it is not measured.
    del known["fp64"]
    table.write_text(json.dumps({**known, "fp8": "b" * 64}))
    measured = with_fault(torch_python, root, tmp_path, "probe_sdc", HELD)
    odd = {one["labels"]["path"]: one["value"] for one in measured if one["name"] == "odd_answers"}
    assert odd == {**dict.fromkeys(known, 0), "fp8": 1}


FAULTY = """
if RANK == 0:
    import sdc_paths
    real = sdc_paths.PATHS["bf16"]
    calls = []
    def flipped(sets, steps):
        words = real(sets, steps)
        calls.append(sets)
        if len(calls) == 6:
            words[0, 40:72] ^= 5
        return words
    sdc_paths.PATHS["bf16"] = flipped
"""


@pytest.mark.torch
def test_a_fault_in_one_launch_is_counted_on_its_path(root: Path, torch_python: str, tmp_path: Path) -> None:
    measured = with_fault(torch_python, root, tmp_path, "probe_sdc", FAULTY)
    wrong = {one["labels"]["path"]: one["value"] for one in measured if one["name"] == "wrong_words"}
    assert wrong == {**dict.fromkeys(PATHS, 0), "bf16": 32}


WITHIN = """
import ctypes, random, sys
sys.path.insert(0, sys.argv[1])
import torch
import sdc_paths as paths
torch.set_num_threads(1)

libm = ctypes.CDLL("libm.so.6")
for call, kind in (("fma", ctypes.c_double), ("fmaf", ctypes.c_float)):
    getattr(libm, call).restype, getattr(libm, call).argtypes = kind, [kind] * 3

def drawn(least, most):
    signs = torch.randint(0, 2, (20000,)) * 2 - 1
    exponents = torch.randint(least, most, (20000,)).double()
    return (torch.rand(20000, dtype=torch.float64) + 1) * torch.exp2(exponents) * signs

torch.manual_seed(1)
for call, ours, narrow in (("fma", paths.fma64, False), ("fmaf", paths.fma32, True)):
    numbers = [drawn(0, 1), drawn(0, 1), drawn(-40, 40)]
    numbers = [one.float().double() for one in numbers] if narrow else numbers
    right = [getattr(libm, call)(*three) for three in zip(*(one.tolist() for one in numbers))]
    print(call, int((ours(*numbers) != torch.tensor(right, dtype=torch.float64)).sum()))

# A word that is wrong anywhere in the course of a path, once or from then on, changes its thread's answer.
real, dice = paths.fold, torch.Generator().manual_seed(2)
for name, path in paths.PATHS.items():
    calls = 0
    def count(digest, word):
        global calls
        calls += 1
        return real(digest, word)
    paths.fold = count
    right = path(range(4), 32)
    made, kept = calls, 0
    when = torch.randint(0, made, right.shape, generator=dice)
    stuck = torch.rand(right.shape, generator=dice) < 0.3
    mask = torch.zeros_like(right)
    for _ in range(8):
        more = torch.rand(right.shape, generator=dice) < torch.where(mask == 0, 1.0, 0.4)
        mask |= torch.where(more, 1 << torch.randint(0, 32, right.shape, generator=dice), 0)
    calls = 0
    def struck(digest, word):
        global calls
        now = (when == calls) | (stuck & (when < calls))
        calls += 1
        return real(digest, torch.where(now, word ^ mask, word))
    paths.fold = struck
    wrong = path(range(4), 32)
    print(name, int((wrong != right).sum()), right.numel())
"""


@pytest.mark.torch
def test_a_wrong_word_within_a_path_changes_its_answer(root: Path, torch_python: str, tmp_path: Path) -> None:
    script = tmp_path / "within.py"
    script.write_text(WITHIN)
    command = [torch_python, str(script), str(root / "workloads")]
    environment = {"RACKPROOF_WORKLOAD_RANK": "0", "PATH": "/usr/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    rows = [text.split() for text in done.stdout.splitlines()]
    assert rows[:2] == [["fma", "0"], ["fmaf", "0"]]
    found = {name: int(changed) / int(injected) for name, changed, injected in rows[2:]}
    assert set(found) == set(PATHS)
    assert min(found.values()) >= 0.999


COMPILE = """
import sys
sys.path.insert(0, sys.argv[1])
import sdc_cuda, torch
try:
    compiler = sdc_cuda.Compiler(str(torch.version.cuda or "13.0"), sdc_cuda.SOURCE.read_text())
except sdc_cuda.CudaError as error:
    print("none", error)
    sys.exit()
for capability in ((9, 0), (10, 0)):
    print(*capability, b"path_fp8" in compiler.compile(capability))
try:
    sdc_cuda.Compiler(str(torch.version.cuda), "no C").compile((9, 0))
except sdc_cuda.CudaError as error:
    print(error)
"""


@pytest.mark.torch
def test_the_kernels_compile_where_nvrtc_is_and_say_so_where_not(
    root: Path, torch_python: str, tmp_path: Path
) -> None:
    script = tmp_path / "compile.py"
    script.write_text(COMPILE)
    command = [torch_python, str(script), str(root / "workloads")]
    environment = {"RACKPROOF_WORKLOAD_RANK": "0", "PATH": "/usr/bin"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    if said[0].startswith("none"):
        # A PyTorch for CPUs has no NVRTC, the compiler of CUDA.
        assert "libnvrtc.so" in said[0]
        return
    assert said[:2] == ["9 0 True", "10 0 False"]
    assert "nvrtcCompileProgram" in said[2]

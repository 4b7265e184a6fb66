"""Test the parsers of ``rackproof.logs``, and its follower, with random and damaged logs.

No log may cause an exception. A log that is cut off, has no proof of success or has impossible numbers must
not pass. tests/fuzz/million.py tries many more inputs.
"""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rackproof import logs
from rackproof.core.records import ParsedLog, Verdict
from rackproof.logs.progress import Follower
from tests.fuzz.mutations import Case, all_cases, check

QUICK = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# Parts of logs of many formats, and bytes that damage a log. RUBBISH joins them in random order.
PIECES = st.sampled_from(
    [
        b":::MLLOG ",
        b":::MLL 1.5 run_stop: ",
        b":::MLPv0.5.0 resnet 1 (a.py:1) run_stop: ",
        b'{"key": "run_stop", "time_ms": 1, "value": null, "metadata": {"status": "success"}}',
        b'{"key": "measurement", "value": {"name": "a", "value": NaN}}',
        b"Epoch[0] Batch [0-5]\tSpeed: nan samples/sec",
        b"total images/sec: ",
        b"1\timages/sec: 1 +/- 0 (jitter = 0)\tnan",
        b"#  size count type redop time algbw busbw #wrong",
        b" 8 2 float sum 1 2 3 0 1 2 3 0",
        b"# Out of bounds values : 0 OK",
        b"NVRM: Xid (PCI:0000:01:00): 79, x",
        b"<nvidia_smi_log><gpu>",
        b"RESULT,a,,1,nvidia,",
        b"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1e-300",
        b"Running a.\n(GB/s)\n 0\n 0 1.0\nSUM a 1.0\n",
        b"100.0%  proc'd: 1 (2 Gflop/s)  errors: 0  temps: 1 C",
        b"\x1b[31m",
        b"\r",
        b"\r\n",
        b"\n",
        b"\x00",
        b"\xff\xfe",
    ]
)
RUBBISH = st.lists(st.one_of(PIECES, st.binary(max_size=30)), max_size=40).map(b"".join)


@QUICK
@given(data=RUBBISH)
@pytest.mark.parametrize("name", ["auto", *logs.FORMATS])
def test_any_bytes_give_a_record_and_a_reason_if_they_do_not_pass(name: str, data: bytes) -> None:
    parsed = logs.parse(io.BytesIO(data), format=name)
    assert ParsedLog.model_validate_json(parsed.model_dump_json()).verdict is parsed.verdict
    if parsed.verdict is not Verdict.PASS:
        assert any(one.verdict for one in parsed.findings)


@QUICK
@given(data=RUBBISH, cuts=st.lists(st.integers(0, 2000), max_size=10))
def test_progress_is_the_same_however_a_log_is_cut_into_chunks(data: bytes, cuts: list[int]) -> None:
    whole = Follower().feed(data)
    follower = Follower()
    start = 0
    for end in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        follower.feed(data[start:end])
        start = end
    assert repr(follower.progress) == repr(whole)  # as texts, because NaN is not equal to itself
    assert whole.fraction is None or 0 <= whole.fraction <= 1


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_no_log_passes_after_damage_that_rules_out_a_success(case: Case) -> None:
    generator = random.Random(case.name)  # the same damage in every run
    for _ in range(60):
        check(case, generator)

"""One hostile node of a thousand, through what validate.yml calls: one is not proven, 999 are unharmed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.jobs.validate.test_validating import gathered
from tests.perf.hostile_fleet import a_night, everything, node_name

pytestmark = pytest.mark.slow
LIAR = 100


@pytest.mark.timeout(1200)
def test_of_a_thousand_nodes_one_is_not_proven_and_the_time_is_linear(tmp_path: Path) -> None:
    answer = gathered(LIAR)
    everything(answer)
    took = {}
    for count in (250, 1000):
        results = tmp_path / str(count)
        night, sound = a_night(results, count, {})
        assert Counter(one.verdict.value for one in night.values()) == {"pass": count}
        night, took[count] = a_night(results, count, {LIAR: answer})
        liar = night.pop(node_name(LIAR))
        assert liar.verdict.value in ("unproven", "fail")
        assert not liar.unreached
        assert Counter(one.verdict.value for one in night.values()) == {"pass": count - 1}
        print(f"{count} nodes: {sound:.1f} s of CPU, with the hostile one {took[count]:.1f} s")
        # What one node answers costs the night no more than a bounded amount.
        assert took[count] - sound < 60
    # Four times the nodes; a quadratic night would take sixteen times as long.
    assert took[1000] < 8 * took[250]

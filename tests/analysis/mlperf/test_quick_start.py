"""Test that MLPerf's tools give the same results if they are loaded quickly.

:mod:`rackproof.analysis.mlperf.quick_start` replaces a t-test of scipy and a loader of YAML, which would take
most of a score's time. These tests compare both replacements with the originals, bit by bit.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlperf_logging
import numpy as np
import pytest
import scipy.stats
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rackproof.analysis.mlperf.quick_start import read_rules_quickly, ttest_ind_from_stats

from .samples import fill

RULES = sorted((Path(mlperf_logging.__file__).parent / "compliance_checker").rglob("*.yaml"))
# Arguments of the t-test, with the extremes of a float.
MEANS = (0.0, -0.0, 1.0, 3.25, 3.25 + 1e-15, -7.5, 1e-320, 1e18, 1e308, math.inf, -math.inf, math.nan)
DEVIATIONS = (0.0, 1e-320, 1e-9, 0.31, 12.0, 1e200, math.inf, math.nan)
TESTS = (ttest_ind_from_stats, scipy.stats.ttest_ind_from_stats)
COUNTS = (1, 2, 3, 8, 18, 38, 10_000)


def bits(test: Any, *numbers: Any) -> tuple[Any, ...]:
    """Return the bits of the statistic and the p-value, or the type of the error that the call raised."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            statistic, value = test(*numbers, equal_var=True)
    except ArithmeticError as error:
        return (type(error),)
    # A NaN's sign has no meaning, and depends on the processor.
    return tuple("nan" if math.isnan(one) else struct.pack("<d", one) for one in (statistic, value))


def test_the_t_test_equals_scipys_over_a_grid_with_extremes():
    cases = list(itertools.product(MEANS, DEVIATIONS[::2], COUNTS[::2], MEANS[::2], DEVIATIONS, COUNTS[1::2]))
    mine, theirs = ([bits(test, *numbers) for numbers in cases] for test in TESTS)
    assert len(cases) > 20_000
    assert [case for case, *both in zip(cases, mine, theirs, strict=True) if both[0] != both[1]] == []


@pytest.mark.parametrize("counts", [(1, 1), (0, 2), (0, 0), (2, 0), (1, 0)])
def test_the_t_test_without_degrees_of_freedom_equals_scipys(counts: tuple[int, int]):
    numbers = (1.5, 0.2, counts[0], 1.25, 0.1, counts[1])
    assert bits(ttest_ind_from_stats, *numbers) == bits(scipy.stats.ttest_ind_from_stats, *numbers)


NUMBERS = st.floats() | st.floats(0, 100)


@given(NUMBERS, NUMBERS, st.integers(0, 60), NUMBERS, NUMBERS, st.integers(0, 60), st.booleans())
def test_the_t_test_equals_scipys_for_any_numbers(mean1, std1, count1, mean2, std2, count2, of_numpy):
    kind = np.float64 if of_numpy else float
    numbers = (kind(mean1), kind(std1), count1, kind(mean2), kind(std2), count2)
    assert bits(ttest_ind_from_stats, *numbers) == bits(scipy.stats.ttest_ind_from_stats, *numbers)


def test_a_t_test_for_unequal_variances_is_refused():
    with pytest.raises(ValueError, match="equal variances"):
        ttest_ind_from_stats(1, 1, 3, 2, 1, 3, equal_var=False)


PROGRAM = """
import json, sys
from mlperf_logging.compliance_checker import mlp_compliance
from rackproof.analysis.mlperf import quick_start, worker
report = worker.check_logs(json.loads(sys.argv[1]))
print(report.rcp.passed, [name for name in sys.modules if name.startswith("scipy.stats")])
print(mlp_compliance.yaml.BaseLoader.__name__)
import scipy.stats
print(scipy.stats.norm.cdf(0), scipy.stats.ttest_ind_from_stats is quick_start.ttest_ind_from_stats)
"""


def test_the_worker_compares_convergence_without_the_whole_of_scipy_stats(tmp_path: Path):
    (work := tmp_path / "work").mkdir()
    fill(logs := tmp_path / "logs")
    job = {
        "folder": str(logs),
        "files": sorted(path.name for path in logs.iterdir()),
        "work": str(work),
        "ruleset": "5.1.0",
        "usage": "training",
    }
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(job)], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == ["True []", "CBaseLoader", "0.5 False"]


def read(text: str, module: Any) -> Any:
    """Return the rules in a text as the tool loads them, or the name of the error for the damaged file."""
    try:
        return module.load(text, Loader=module.BaseLoader)
    except yaml.YAMLError as error:
        return type(error).__name__


def test_both_loaders_read_every_rule_file_alike():
    checker = SimpleNamespace(yaml=yaml)
    read_rules_quickly(checker)
    assert len(RULES) > 100
    assert checker.yaml.BaseLoader is yaml.CBaseLoader
    for path in RULES:
        assert read(path.read_text(), checker.yaml) == read(path.read_text(), yaml), path

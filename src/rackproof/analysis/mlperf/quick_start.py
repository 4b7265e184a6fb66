"""Load MLPerf's tools for :mod:`.worker` without slow parts that they do not need.

The tools import all of ``scipy.stats`` for one t-test, and read their rules with YAML's Python loader. Both
together took most of a score's processor time. Tests compare the results with the results of the slow parts.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import yaml


class TTest(NamedTuple):
    """The statistic of a t-test and its two-sided p-value."""

    statistic: Any
    pvalue: Any


def ttest_ind_from_stats(
    mean1: Any, std1: Any, nobs1: Any, mean2: Any, std2: Any, nobs2: Any, equal_var: bool = True
) -> TTest:
    """Return the result of ``scipy.stats.ttest_ind_from_stats`` with ``equal_var=True``, bit for bit.

    The arguments are the mean, the standard deviation and the number of values of each sample.

    Raises:
        ValueError: ``equal_var`` is false, which the tool never passes.
    """
    from scipy.special import stdtr

    if not equal_var:
        raise ValueError("only the t-test for equal variances is here")
    # Each step is scipy's own, in its order: any other order may round differently.
    var1 = np.where(np.asarray(nobs1 == 1), 0.0, np.asarray(std1) ** 2)
    var2 = np.where(np.asarray(nobs2 == 1), 0.0, np.asarray(std2) ** 2)
    freedom = nobs1 + nobs2 - 2.0
    pooled = ((nobs1 - 1) * var1 + (nobs2 - 1) * var2) / freedom
    spread = np.sqrt(pooled * (1.0 / nobs1 + 1.0 / nobs2))
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.divide(np.asarray(mean1) - np.asarray(mean2), spread)
    return TTest(statistic, 2 * stdtr(np.asarray(freedom, dtype=spread.dtype), -np.abs(statistic)))


def load_rcp_checker() -> Any:
    """Return the tool's module ``rcp_checker``, with a ``scipy.stats`` that contains only the t-test.

    Other modules of the process still get the real ``scipy.stats``.
    """
    stand_in = ModuleType("scipy.stats")
    stand_in.ttest_ind_from_stats = ttest_ind_from_stats  # type: ignore[attr-defined]
    scipy_stats = sys.modules.get("scipy.stats")
    sys.modules["scipy.stats"] = stand_in
    try:
        from mlperf_logging.rcp_checker import rcp_checker
    finally:
        del sys.modules["scipy.stats"]
        if scipy_stats is not None:
            sys.modules["scipy.stats"] = scipy_stats
    rcp_checker.scipy = SimpleNamespace(stats=stand_in)
    return rcp_checker


def read_rules_quickly(checker: Any) -> None:
    """Make the tool's module ``mlp_compliance`` read its rules with libyaml (in C), if it is installed."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)

    def load(file: Any, Loader: Any) -> Any:  # noqa: N803  (the tool names its own loader)
        # Both loaders make only texts, lists and dictionaries.
        return yaml.load(file, loader)  # noqa: S506  # nosec B506

    checker.yaml = SimpleNamespace(load=load, BaseLoader=loader)

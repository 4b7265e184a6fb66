"""Judge nights by simple rules that others use, for comparison. A good judge has to be better than these.

A judge is a function that is called with one night after the other and returns verdicts by node. The judges
in this module return ``fail`` for the nodes that they flag, and nothing for the others. :func:`flags` returns
a judge's results over several nights as pairs ``(node, night)``.

Sources:

* ``median_minus_mads``: the usual robust outlier rule. MAD is the median absolute deviation.
* ``superbench_variance``: SuperBench's data diagnosis, rule ``variance`` with the criterion ``lambda x: x <
  -0.05`` that its documents use
  (https://microsoft.github.io/superbenchmark/docs/user-tutorial/data-diagnosis; ``RuleOp.variance`` in
  superbench/analyzer/diagnosis_rule_op.py of github.com/microsoft/superbenchmark). Its baseline is made by
  its ``fix_threshold`` algorithm (superbench/analyzer/baseline_generation.py): values that violate the rule
  against the mean are removed, until no value violates it.
* ``superbench_similarity``: the criterion of the Validator in "SuperBench: Improving Cloud AI Infrastructure
  Reliability with Proactive Validation" (USENIX ATC 2024, arXiv 2402.06194): a node is defective if the
  cumulative distribution of its values is less than 0.95 similar to the criterion, which is a distribution,
  too. The code here follows the paper's idea, because the Validator's code is not public. Similarity is 1
  minus the area between the two distributions where the node's is worse, relative to the criterion's largest
  value. The criterion has at every quantile the median of all nodes that are not defective. (The paper
  searches for the most central node, which takes time with the square of the number of nodes.)
* ``own_history``: a value is compared with the median of the same GPU's earlier nights.

Only nodes of the same SKU are compared: not even a simple rule compares a B200 with an H100.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tests.fleet_simulator.simulation import Measurement

Floats = NDArray[np.float64]
FLAGGED = "fail"
# Constants of the rules: the most rounds in which defective nodes are removed, the factor from a MAD to the
# standard deviation of normal values, and the earlier nights that a GPU's own history needs.
MOST_ROUNDS = 20
MAD_OF_NORMAL = 1.4826
NIGHTS_OF_HISTORY = 3


class NightLike(Protocol):
    """The input of a judge: number, nodes and measurements of a night, and a second measurement."""

    number: int
    nodes: list[str]

    def __iter__(self) -> Iterator[Measurement]: ...

    def retest(self, nodes: Iterable[str]) -> list[Measurement]: ...


Judge = Callable[[NightLike], Mapping[str, str]]
Group = tuple[list[str], Floats]


def by_metric(night: Iterable[Measurement]) -> list[Group]:
    """Return a group for every SKU and metric: the values, and the node of each value."""
    groups: dict[tuple[str, str], tuple[list[str], list[float]]] = defaultdict(lambda: ([], []))
    for measurement in night:
        nodes, values = groups[measurement.sku, measurement.metric]
        nodes.append(measurement.node)
        values.append(measurement.value)
    return [(nodes, np.array(values)) for nodes, values in groups.values()]


def median_minus_mads(mads: float = 5.0) -> Judge:
    """Return a judge that flags a node with a value below the night's median by more than ``mads`` MADs.

    The MAD is scaled to be the standard deviation of normal values.
    """

    def judge(night: NightLike) -> dict[str, str]:
        verdicts = {}
        for nodes, values in by_metric(night):
            middle = np.median(values)
            least = middle - mads * MAD_OF_NORMAL * np.median(np.abs(values - middle))
            verdicts.update({nodes[index]: FLAGGED for index in np.flatnonzero(values < least)})
        return verdicts

    return judge


def superbench_variance(criterion: float = -0.05) -> Judge:
    """Return a judge that flags a node with a value that is too far below the baseline.

    SuperBench calls the relative difference from the baseline the variance.
    """

    def judge(night: NightLike) -> dict[str, str]:
        verdicts = {}
        for nodes, values in by_metric(night):
            least = (1 + criterion) * fixed_threshold_baseline(values, criterion)
            verdicts.update({nodes[index]: FLAGGED for index in np.flatnonzero(values < least)})
        return verdicts

    return judge


def fixed_threshold_baseline(values: Floats, criterion: float) -> float:
    """Return the mean of the values that do not violate the rule against that mean."""
    kept = values
    while True:
        baseline = float(kept.mean())
        passing = kept[(kept - baseline) / baseline >= criterion]
        if len(passing) == len(kept):
            return baseline
        kept = passing


def superbench_similarity(threshold: float = 0.95) -> Judge:
    """Return a judge that flags a node whose values are worse than the criterion and too unlike it."""

    def judge(night: NightLike) -> dict[str, str]:
        return {
            node: FLAGGED
            for nodes, values in by_metric(night)
            for node in dissimilar(nodes, values, threshold)
        }

    return judge


def dissimilar(nodes: list[str], values: Floats, threshold: float) -> set[str]:
    """Return the nodes whose distribution of values is worse than the criterion's and too unlike it."""
    of_node: dict[str, list[float]] = defaultdict(list)
    for node, value in zip(nodes, values.tolist(), strict=True):
        of_node[node].append(value)
    names = list(of_node)
    most = max(map(len, of_node.values()))
    # If a node has fewer values than others, its quantiles are interpolated, so all rows have equal lengths.
    places = (np.arange(most) + 0.5) / most
    rows = np.array(
        [np.interp(places, (np.arange(len(one)) + 0.5) / len(one), sorted(one)) for one in of_node.values()]
    )
    defective = np.zeros(len(names), dtype=bool)
    for _ in range(MOST_ROUNDS):
        criterion = np.median(rows[~defective], axis=0)
        similarity = 1 - np.maximum(criterion - rows, 0).mean(axis=1) / criterion.max()
        now = similarity < threshold
        if (now == defective).all() or now.all():
            break
        defective = now
    return {names[index] for index in np.flatnonzero(defective)}


def own_history(criterion: float = -0.035, nights: int = NIGHTS_OF_HISTORY) -> Judge:
    """Return a judge that flags a node with a value this far below the GPU's median of earlier nights."""
    history: dict[tuple[str, str], list[float]] = defaultdict(list)

    def judge(night: NightLike) -> dict[str, str]:
        verdicts = {}
        for one in night:
            earlier = history[one.gpu_uuid, one.metric]
            count = len(earlier)
            if count >= nights:
                usual = (earlier[count // 2] + earlier[(count - 1) // 2]) / 2
                if one.value < (1 + criterion) * usual:
                    verdicts[one.node] = FLAGGED
            insort(earlier, one.value)
        return verdicts

    return judge


BASELINES: dict[str, Callable[[], Judge]] = {
    "median - 5 MAD": median_minus_mads,
    "SuperBench variance -5 %": superbench_variance,
    "SuperBench similarity 0.95": superbench_similarity,
    "own history -3.5 %": own_history,
}
"""Functions that make the judges. A judge with a memory has to be made again for every simulation."""


def flags(judge: Judge, nights: Iterable[NightLike]) -> set[tuple[str, int]]:
    """Return each node and night for which a judge returns a verdict, of any name."""
    return {(node, night.number) for night in nights for node in judge(night)}

"""Measure nodes with suspect speeds again in the same night, and judge both measurements. No I/O.

The probe scheduler of job validate calls :func:`retest_suspects` with tonight's numbers. It also passes a
function that finds suspect numbers, and one that measures nodes again.

A number is suspect if it is below its floor or far below the fleet. The better of its two values is
judged, so that a part fails only if it was bad twice. The worse value remains as evidence, and keeps the
node from passing. If a part cannot be measured again, a suspicion from its last measured night counts as
the second measurement. Without such a suspicion, the node is unproven, and no night drains it for this
number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rackproof.core.records import Direction, Measurement, Verdict
from rackproof.core.text import quantity, sanitize
from rackproof.store.night_store import NightReason

CHECK = "again"
"""The evidence of a suspicion has this check in a night's reasons."""

SuspectFinder = Callable[[Sequence[Measurement]], Mapping[int, NightReason]]
"""A function that returns the indexes of tonight's suspect numbers, each with the reason."""

Measure = Callable[["Mapping[str, Collection[str]]"], "Mapping[str, tuple[Measurement, ...] | str]"]
"""A function that measures nodes again. Its argument has the suspect metrics of each node. It returns
each node's numbers, or the reason why there are none."""

_Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class RetestResult:
    """The result of a retest, by node.

    Attributes:
        numbers: The numbers to judge.
        reasons: The evidence of each suspicion.
        again: The nodes that were measured again.
        unconfirmed: The nodes with a suspicion that nothing confirmed. Their speed does not fail them
            tonight.
        suspected: The suspicions that no second measurement withdrew.
    """

    numbers: dict[str, tuple[Measurement, ...]]
    reasons: dict[str, list[NightReason]] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    unconfirmed: list[str] = field(default_factory=list)
    suspected: dict[str, tuple[NightReason, ...]] = field(default_factory=dict)


def retest_suspects(
    numbers: Mapping[str, tuple[Measurement, ...]],
    doubts: SuspectFinder,
    measure: Measure,
    able: Collection[str],
    earlier: Mapping[str, Sequence[NightReason]],
) -> RetestResult:
    """Measure the nodes with suspect numbers again, and return the numbers to judge.

    Args:
        numbers: The numbers of tonight, by node.
        doubts: A function that returns the suspect numbers.
        measure: A function that measures nodes again.
        able: The nodes that can be measured again. The numbers of other nodes are only compared.
        earlier: The suspicions of each node's last measurement that were not withdrawn.
    """
    result = RetestResult(dict(numbers))
    first = {name: suspects for name, suspects in _suspects(numbers, doubts).items() if name in able}
    metrics = {name: {metric for metric, _ in suspects} for name, suspects in first.items()}
    second, obstacles = _measure_again(metrics, measure)
    # Compare the second numbers with the whole fleet. The few retested nodes are too few to compare.
    later = _suspects({**numbers, **second}, doubts) if second else {}
    for name, suspects in first.items():
        measured_again = name in second
        retest = _NodeRetest(
            first=_by_key(numbers[name]),
            # A value that is not finite measured nothing, so it does not clear a suspicion.
            second=_by_key(number for number in second.get(name, ()) if number.finite),
            bad=suspects,
            bad_again=later.get(name, {}) if measured_again else {},
            earlier=earlier.get(name, ()),
            obstacle="it gave no number" if measured_again else obstacles.get(name, "no reason was given"),
        )
        retest.weigh_all()
        result.reasons[name] = retest.reasons
        if measured_again:
            result.again.append(name)
            result.numbers[name] = better_values(numbers[name], second[name])
        _note_suspicion(result, name, retest)
    return result


def _measure_again(
    suspects: Mapping[str, Collection[str]], measure: Measure
) -> tuple[dict[str, tuple[Measurement, ...]], dict[str, str]]:
    """Measure nodes again. Return the numbers, and the reasons why those of other nodes are missing."""
    numbers: dict[str, tuple[Measurement, ...]] = {}
    obstacles: dict[str, str] = {}
    for name, result in (measure(suspects) if suspects else {}).items():
        if isinstance(result, str):
            obstacles[name] = result
        else:
            numbers[name] = result
    return numbers, obstacles


def _note_suspicion(result: RetestResult, name: str, retest: _NodeRetest) -> None:
    """Note the suspicions of a node that remain after its retest."""
    if retest.kept:
        result.suspected[name] = tuple(retest.kept)
    # If another number was bad twice, the node fails anyway.
    if retest.opened and not retest.confirmed:
        result.unconfirmed.append(name)


@dataclass
class _NodeRetest:
    """The weighing of a node's suspicions.

    The second measurement decides or, without one, the node's last measured night.

    Attributes:
        first: The numbers of the first measurement.
        second: The numbers of the second measurement.
        bad: The suspicions about the first measurement.
        bad_again: The suspicions about the second measurement.
        earlier: The suspicions of the node's last measured night.
        obstacle: The reason why a number was not measured again.
        kept: The suspicions that were not withdrawn.
        confirmed: Whether a number failed twice.
        opened: Whether a number failed once and was not measured again.
    """

    first: Mapping[_Key, Sequence[Measurement]]
    second: Mapping[_Key, Sequence[Measurement]]
    bad: Mapping[_Key, NightReason]
    bad_again: Mapping[_Key, NightReason]
    earlier: Sequence[NightReason]
    obstacle: str
    reasons: list[NightReason] = field(default_factory=list)
    kept: list[NightReason] = field(default_factory=list)
    confirmed: bool = False
    opened: bool = False

    def weigh_all(self) -> None:
        """Weigh every suspicion. If both measurements are suspect, use the reason of the first."""
        for key, reason in {**self.bad_again, **self.bad}.items():
            self._weigh(key, reason)

    def _weigh(self, key: _Key, reason: NightReason) -> None:
        """Weigh one suspicion. Record its evidence, and whether it remains."""
        if key not in self.bad:
            # Only the second measurement is bad. The first one is better, so it is used for the node.
            measured_first = _values(self.first.get(key, ()))
            self.reasons.append(_evidence(reason, f"measured first: {measured_first}"))
        elif key in self.second:
            self.reasons.append(_evidence(reason, f"measured again: {_values(self.second[key])}"))
            self._weigh_second(reason, self.bad_again.get(key))
        else:
            self.kept.append(reason)
            self._weigh_earlier(reason)

    def _weigh_second(self, reason: NightReason, second: NightReason | None) -> None:
        """Keep a suspicion that the second measurement repeats."""
        if second is not None:
            self.kept.append(reason)
            self.confirmed |= reason.verdict is second.verdict is Verdict.FAIL

    def _weigh_earlier(self, reason: NightReason) -> None:
        """Weigh a suspicion without a second measurement by the node's last measured night."""
        earlier_reason = next((old for old in self.earlier if _same(old, reason)), None)
        if earlier_reason is None:
            self.opened |= reason.verdict is Verdict.FAIL
            more = f"not measured again: {self.obstacle}"
            self.reasons.append(_evidence(reason, more, reason.verdict))
            return
        more = f"not measured again ({self.obstacle}); when it was last measured: {earlier_reason.text}"
        self.confirmed |= reason.verdict is earlier_reason.verdict is Verdict.FAIL
        self.reasons.append(_evidence(reason, more))


def better_values(first: Iterable[Measurement], second: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return numbers, with the better value of those that were measured twice.

    Both values remain if they cannot be compared, because there is no direction, no finite number, or
    another unit. The worst of them then counts.
    """
    others = _by_key(second)
    measurements: list[Measurement] = []
    for measurement in first:
        measurements += _better(measurement, others.get(_key(measurement), []))
    present = {_key(one) for one in measurements}
    return (*measurements, *(one for key, again in others.items() if key not in present for one in again))


def _better(measurement: Measurement, second: Sequence[Measurement]) -> list[Measurement]:
    """Return the better of a number and the worst of its new measurements, or all if that is unknown."""
    if not second:
        return [measurement]
    if (
        measurement.direction is None
        or not measurement.finite
        or not all(_comparable(measurement, other) for other in second)
    ):
        return [measurement, *second]
    if measurement.direction is Direction.HIGHER:
        return [max(measurement, min(second, key=_value), key=_value)]
    return [min(measurement, max(second, key=_value), key=_value)]


def _comparable(measurement: Measurement, other: Measurement) -> bool:
    """Return whether two numbers can be compared."""
    return other.finite and other.unit == measurement.unit


def _suspects(
    numbers: Mapping[str, tuple[Measurement, ...]], doubts: SuspectFinder
) -> dict[str, dict[_Key, NightReason]]:
    """Return the suspicions about numbers, by node and number."""
    rows = [(name, measurement) for name, mine in numbers.items() for measurement in mine]
    suspects: dict[str, dict[_Key, NightReason]] = {}
    for index, reason in sorted(doubts([measurement for _, measurement in rows]).items()):
        name, one = rows[index]
        known = suspects.setdefault(name, {}).get(_key(one))
        # A later reason for the same number does not replace a failure.
        if known is None or known.verdict is not Verdict.FAIL:
            suspects[name][_key(one)] = reason
    return suspects


def _evidence(reason: NightReason, more: str, verdict: Verdict = Verdict.DEGRADED) -> NightReason:
    """Return a suspicion as evidence. At worst, the node is unproven, because only judging fails nodes."""
    return reason.model_copy(
        update={
            "check": CHECK,
            "verdict": Verdict.UNPROVEN if verdict is Verdict.FAIL else verdict,
            "text": sanitize(f"{reason.text}; {more}", 500),
        }
    )


def _same(reason: NightReason, other: NightReason) -> bool:
    """Return whether two suspicions are about the same metric and part."""
    return (reason.metric, reason.part) == (other.metric, other.part)


def _key(measurement: Measurement) -> _Key:
    """Return the name and the labels of a number."""
    return measurement.name, tuple(sorted(measurement.labels.items()))


def _value(measurement: Measurement) -> float:
    """Return the value of a number, to sort by."""
    return measurement.value


def _by_key(measurements: Iterable[Measurement]) -> dict[_Key, list[Measurement]]:
    """Return numbers by name and labels."""
    groups: dict[_Key, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(_key(measurement), []).append(measurement)
    return groups


def _values(measurements: Sequence[Measurement]) -> str:
    """Return the values of numbers as text."""
    return (
        ", ".join(quantity(measurement.value, measurement.unit) for measurement in measurements) or "nothing"
    )

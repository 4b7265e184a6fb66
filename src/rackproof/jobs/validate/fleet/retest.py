"""Measure nodes with suspect speeds again in the same night, and weigh both measurements.

The probe scheduler of job validate calls :func:`retest_suspects` with tonight's numbers. It also passes a
function that finds suspect numbers, and one that measures nodes again. This module itself has no I/O. A
number is a measurement, and its part is the GPU, link or node that its labels name.

A number is suspect if it is worse than its floor or much worse than the fleet. The rule is in
:mod:`rackproof.jobs.validate.probes`. Only the better of its two values is judged, so that a part fails only
if both values are bad. The worse value is kept as evidence, and makes the node ``degraded``.

If a part cannot be measured again, a suspicion of the same metric and part from its last measured night
confirms tonight's: tonight's value is judged alone. A failure is confirmed only by an earlier failure, as
within one night. Without this confirmation of a failure, the node is unproven, and no night drains it for
this number. A suspicion that is only ``degraded`` remains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rackproof.core.records import Direction, Measurement, Verdict
from rackproof.core.text import quantity, sanitize
from rackproof.store.night_store import NightReason

RETEST_CHECK = "again"
"""Name of the check in the reasons that a retest adds."""

SuspectFinder = Callable[[Sequence[Measurement]], Mapping[int, NightReason]]
"""A function that gets all numbers. It returns the reason for each suspect number, by its index."""
MOST_REASON_CHARACTERS = 500
"""Largest number of characters of a reason. A longer text is cut."""

Measure = Callable[["Mapping[str, Collection[str]]"], "Mapping[str, tuple[Measurement, ...] | str]"]
"""A function that measures nodes again. Its argument maps each node to its suspect metrics. The result maps
each node to its new numbers, or to the reason why it has none."""

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""A number's name and sorted labels: ``("gemm_best", (("dtype", "bf16"), ("gpu", "GPU-5f3c...")))``."""


@dataclass
class RetestResult:
    """The result of a retest, by node.

    Attributes:
        numbers: The numbers to judge.
        reasons: The evidence of each suspicion.
        again: The nodes that were measured again.
        unconfirmed: The nodes with a failed number that was neither measured again nor failed when the node
            was last measured, and with no number that failed twice. No speed fails them tonight.
        suspected: The suspicions that remain after the retest.
    """

    numbers: dict[str, tuple[Measurement, ...]]
    reasons: dict[str, list[NightReason]] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    unconfirmed: list[str] = field(default_factory=list)
    suspected: dict[str, tuple[NightReason, ...]] = field(default_factory=dict)


def retest_suspects(
    numbers: Mapping[str, tuple[Measurement, ...]],
    find_suspects: SuspectFinder,
    measure: Measure,
    retestable: Collection[str],
    earlier_suspicions: Mapping[str, Sequence[NightReason]],
) -> RetestResult:
    """Measure the nodes with suspect numbers again, and return the numbers to judge.

    Args:
        numbers: The numbers of tonight, by node.
        find_suspects: A function that returns the suspect numbers.
        measure: A function that measures nodes again.
        retestable: The nodes that can be measured again. The numbers of other nodes are only compared.
        earlier_suspicions: The suspicions of each node's last measurement that were not withdrawn.
    """
    result = RetestResult(dict(numbers))
    suspects_by_node = {
        name: suspects for name, suspects in _suspects(numbers, find_suspects).items() if name in retestable
    }
    metrics = {name: {metric for metric, _ in suspects} for name, suspects in suspects_by_node.items()}
    second, obstacles = _measure_again(metrics, measure)
    # Compare the second numbers with the whole fleet. The few retested nodes are too few to compare.
    suspects_after_retest = _suspects({**numbers, **second}, find_suspects) if second else {}
    for name, suspects in suspects_by_node.items():
        measured_again = name in second
        retest = _NodeRetest(
            first=_by_key(numbers[name]),
            # A value that is not finite is no measurement, so the suspicion remains.
            second=_by_key(number for number in second.get(name, ()) if number.finite),
            bad=suspects,
            bad_again=suspects_after_retest.get(name, {}) if measured_again else {},
            earlier=earlier_suspicions.get(name, ()),
            obstacle=(
                "the second job returned no finite value of this metric"
                if measured_again
                else obstacles.get(name, "the scheduler reports no reason")
            ),
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
    """Measure nodes again. Return the numbers, and the reasons why other nodes have none."""
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
    if retest.remaining:
        result.suspected[name] = tuple(retest.remaining)
    # If another number failed twice, the node fails anyway.
    if retest.failed_once and not retest.failed_twice:
        result.unconfirmed.append(name)


@dataclass
class _NodeRetest:
    """The suspicions of one node, which are weighed after its retest.

    For each suspicion, the second measurement decides, or else the node's last measured night.

    Attributes:
        first: The numbers of the first measurement.
        second: The numbers of the second measurement.
        bad: The suspicions about the first measurement.
        bad_again: The suspicions about the second measurement.
        earlier: The suspicions of the node's last measured night.
        obstacle: The reason why a number was not measured again.
        reasons: The evidence of the suspicions, as reasons against the node.
        remaining: The suspicions that were not withdrawn.
        failed_twice: Whether a number failed twice, tonight or also in the last measured night.
        failed_once: Whether a number failed, was not measured again, and had not failed earlier.
    """

    first: Mapping[_Key, Sequence[Measurement]]
    second: Mapping[_Key, Sequence[Measurement]]
    bad: Mapping[_Key, NightReason]
    bad_again: Mapping[_Key, NightReason]
    earlier: Sequence[NightReason]
    obstacle: str
    reasons: list[NightReason] = field(default_factory=list)
    remaining: list[NightReason] = field(default_factory=list)
    failed_twice: bool = False
    failed_once: bool = False

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
            self.remaining.append(reason)
            self._weigh_earlier(reason)

    def _weigh_second(self, reason: NightReason, second: NightReason | None) -> None:
        """Keep a suspicion that the second measurement repeats. Otherwise, it is withdrawn."""
        if second is not None:
            self.remaining.append(reason)
            self.failed_twice |= reason.verdict is second.verdict is Verdict.FAIL

    def _weigh_earlier(self, reason: NightReason) -> None:
        """Weigh a suspicion without a second measurement by the node's last measured night."""
        earlier_reasons = [old for old in self.earlier if _same(old, reason)]
        # A failure counts before other suspicions of the same number.
        earlier_reasons.sort(key=lambda old: old.verdict is not Verdict.FAIL)
        more = f"not measured again: {self.obstacle}"
        if earlier_reasons:
            more = (
                f"not measured again ({self.obstacle}); when it was last measured: {earlier_reasons[0].text}"
            )
        has_failed = reason.verdict is Verdict.FAIL
        had_failed = bool(earlier_reasons) and earlier_reasons[0].verdict is Verdict.FAIL
        self.failed_twice |= has_failed and had_failed
        self.failed_once |= has_failed and not had_failed
        is_confirmed = had_failed if has_failed else bool(earlier_reasons)
        self.reasons.append(_evidence(reason, more, Verdict.DEGRADED if is_confirmed else reason.verdict))


def better_values(first: Iterable[Measurement], second: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """Return the numbers of both measurements. Of a number that was measured twice, return the better value.

    Both values remain if they cannot be compared, because there is no direction, no finite number, or
    another unit. The judge then uses the worst value.
    """
    others = _by_key(second)
    measurements: list[Measurement] = []
    for measurement in first:
        measurements += _better(measurement, others.get(_key(measurement), []))
    present = {_key(measurement) for measurement in measurements}
    new = (repeats for key, repeats in others.items() if key not in present)
    return (*measurements, *(measurement for repeats in new for measurement in repeats))


def _better(measurement: Measurement, second: Sequence[Measurement]) -> list[Measurement]:
    """Return the better of a number and the worst of its new measurements, or all of them."""
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
    numbers: Mapping[str, tuple[Measurement, ...]], find_suspects: SuspectFinder
) -> dict[str, dict[_Key, NightReason]]:
    """Return the suspicions about numbers, by node and number."""
    rows = [(name, measurement) for name, measurements in numbers.items() for measurement in measurements]
    suspects: dict[str, dict[_Key, NightReason]] = {}
    for index, reason in sorted(find_suspects([measurement for _, measurement in rows]).items()):
        name, measurement = rows[index]
        known = suspects.setdefault(name, {}).get(_key(measurement))
        # A later reason for the same number does not replace a failure.
        if known is None or known.verdict is not Verdict.FAIL:
            suspects[name][_key(measurement)] = reason
    return suspects


def _evidence(reason: NightReason, more: str, verdict: Verdict = Verdict.DEGRADED) -> NightReason:
    """Return a suspicion as evidence, with a text added.

    Evidence makes a node unproven at worst, because only the judgement of the night fails nodes.
    """
    return reason.model_copy(
        update={
            "check": RETEST_CHECK,
            "verdict": Verdict.UNPROVEN if verdict is Verdict.FAIL else verdict,
            "text": sanitize(f"{reason.text}; {more}", MOST_REASON_CHARACTERS),
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
        ", ".join(quantity(measurement.value, measurement.unit) for measurement in measurements) or "no value"
    )

"""Choose which nodes to pair each night, and find the node or link at fault when pairs fail. No I/O.

A round-robin tournament (circle method): in n - 1 nights of n nodes (n nights where n is odd) every pair has
met once, and every night nearly every node has exactly one partner. The nights go round again after that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Pair = tuple[str, str]


def nights_needed(nodes: int) -> int:
    """Return after how many nights every pair of ``nodes`` nodes has been tested once."""
    return 0 if nodes < 2 else nodes - 1 + nodes % 2


def pairs_of_night(nodes: Iterable[str], night: int, *, most: int | None = None) -> tuple[Pair, ...]:
    """Return the pairs of a night. No node is in two pairs, and the order of ``nodes`` does not matter.

    Args:
        nodes: Names; duplicates are ignored.
        night: Any number that grows by one each night.
        most: The largest number of pairs, the night's budget. Each full round leaves out other pairs, so that
            every pair gets its turn.
    """
    seats: list[str | None] = [*sorted(set(nodes))]
    rounds = nights_needed(len(seats))
    if not rounds:
        return ()
    if len(seats) % 2:
        seats.append(None)
    first, rest = seats[0], seats[1:]
    turn = night % rounds
    # The first stays seated, all others move on by one each night: nodes that face each other are paired.
    circle = [first, *rest[turn:], *rest[:turn]]
    half = len(circle) // 2
    met = zip(circle[:half], reversed(circle[half:]), strict=True)
    pairs = sorted((min(one, two), max(one, two)) for one, two in met if one is not None and two is not None)
    if most is None or most >= len(pairs):
        return tuple(pairs)
    # A full round later the window begins where it ended: then others are left out.
    begin = night // rounds * max(most, 0) % len(pairs)
    return tuple(sorted((pairs + pairs)[begin : begin + max(most, 0)]))


def second_partners(
    suspects: Iterable[str],
    good: Iterable[str],
    met: Iterable[Pair] = (),
) -> dict[str, str]:
    """Return for each suspect a known-good node that it has not met yet, none twice.

    A suspect without a partner left is not in the answer: it stays a suspect and is not called bad.

    Args:
        suspects: Nodes of pairs that failed.
        good: Nodes of pairs that passed tonight.
        met: Pairs that were measured tonight.
    """
    known = _partners_by_node(met)
    wanted = sorted(set(suspects))
    free = sorted(set(good) - set(wanted))
    partner_of: dict[str, str] = {}

    def seat(suspect: str, tried: set[str]) -> bool:
        # An augmenting path: a node that sits there may move on, so that as many as possible get a partner.
        for node in free:
            if node in tried or node in known.get(suspect, ()):
                continue
            tried.add(node)
            if node not in partner_of or seat(partner_of[node], tried):
                partner_of[node] = suspect
                return True
        return False

    for suspect in wanted:
        seat(suspect, set())
    return {suspect: node for node, suspect in sorted(partner_of.items(), key=lambda item: item[1])}


def find_culprits(results: Mapping[Pair, bool]) -> tuple[frozenset[str], frozenset[Pair], frozenset[str]]:
    """Return bad nodes, bad pairs, and nodes that are still suspects.

    A node is bad if it passed with no partner and failed with at least two partners that passed with other
    nodes. If both nodes of a failed pair passed with others, the link between them is bad. The remaining
    nodes of failed pairs are suspects.

    Args:
        results: Pair to whether it passed; a hang has not passed.
    """
    good = _nodes_of(pair for pair, passed in results.items() if passed)
    failed = [pair for pair, passed in results.items() if not passed]
    bad = _bad_nodes(failed, good)
    links = {pair for pair in failed if good.issuperset(pair)}
    # A pair with a bad node is explained by it, and casts no suspicion on the partner.
    unexplained = _nodes_of(pair for pair in failed if pair not in links and bad.isdisjoint(pair))
    return frozenset(bad), frozenset(links), frozenset(unexplained - good)


def _bad_nodes(failed: Iterable[Pair], good: Collection[str]) -> set[str]:
    """Return the nodes that only failed, and did so with at least two good partners."""
    # Two good partners, not one: with a single one the fault may be the link between the two.
    return {
        node
        for node, partners in _partners_by_node(failed).items()
        if node not in good and len(partners.intersection(good)) >= 2
    }


def _partners_by_node(pairs: Iterable[Pair]) -> dict[str, set[str]]:
    partners: dict[str, set[str]] = {}
    for one, two in pairs:
        partners.setdefault(one, set()).add(two)
        partners.setdefault(two, set()).add(one)
    return partners


def _nodes_of(pairs: Iterable[Pair]) -> set[str]:
    return {node for pair in pairs for node in pair}


def bisect_group(
    nodes: Sequence[str],
    works: Callable[[Sequence[str]], bool],
    *,
    helpers: Collection[str] = (),
    most_runs: int = 64,
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Find the bad nodes of a group by running halves of it; copes with hangs and with several bad ones.

    Each part is run together with as many known-good helpers as it takes to have two nodes, so that a single
    node can be tested, too. A part that works is cleared whole; one that fails is halved.

    Args:
        nodes: The group that failed.
        works: Runs a job on some nodes, bounded in time; false for a failure and for a hang.
        helpers: Known-good nodes outside the group.
        most_runs: The most runs to make; nodes that are not tested by then are returned in the second value.

    Returns:
        The bad nodes, and the groups without an answer: groups that fail although each half works (the fault
        is in the fabric between the halves, or is intermittent), and groups that were not tested because no
        run was left.
    """
    spare = [one for one in helpers if one not in set(nodes)]
    search = _Bisection(works, spare, most_runs)
    if len(nodes) > 1:
        search.halve(nodes)
    elif nodes:
        search.note(nodes, search.ask(nodes))
    return tuple(sorted(search.bad)), tuple(search.unclear)


@dataclass
class _Bisection:
    """The results for a group so far, and the runs that are left for it."""

    works: Callable[[Sequence[str]], bool]
    spare: Sequence[str]
    runs_left: int
    bad: list[str] = field(default_factory=list)
    unclear: list[tuple[str, ...]] = field(default_factory=list)

    def ask(self, part: Sequence[str]) -> bool | None:
        """Return whether a part works, or None if it cannot be run: no run is left, or no second node."""
        group = [*part, *self.spare[: max(0, 2 - len(part))]]
        if self.runs_left < 1 or len(group) < 2:
            return None
        self.runs_left -= 1
        return self.works(group)

    def halve(self, part: Sequence[str]) -> None:
        """Search the halves of a part that is known to fail."""
        halves = part[: len(part) // 2], part[len(part) // 2 :]
        # Both before either is searched, so that the runs that are left are not all spent on one half.
        answers = [self.ask(half) for half in halves]
        if all(answers):
            self.unclear.append(tuple(part))
        for half, answer in zip(halves, answers, strict=True):
            self.note(half, answer)

    def note(self, part: Sequence[str], answer: bool | None) -> None:
        """Note the outcome of a part's run, and search on if it failed."""
        if answer is None:
            self.unclear.append(tuple(part))
        elif not answer and len(part) == 1:
            self.bad.append(part[0])
        elif not answer:
            self.halve(part)

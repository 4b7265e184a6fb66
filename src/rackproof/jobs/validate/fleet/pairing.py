"""Choose the nodes to pair each night, and find the node or link at fault if pairs fail. No I/O.

:mod:`rackproof.jobs.validate.fleet.pair_runner` calls :func:`pairs_of_night` before the measurements, and
:func:`find_culprits` after them. The input is the names of nodes, and whether each measured pair passed.

The pairs form a round-robin tournament (circle method). In each night, nearly every node gets exactly one
partner. After n - 1 nights for n nodes (n nights if n is odd), each pair had its turn once. The rounds then
start again. The pairs of the nodes a, b, c and d are::

    night 0: a-d b-c    night 1: a-b c-d    night 2: a-c b-d
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Pair = tuple[str, str]
"""The names of two nodes, in alphabetical order."""


def nights_needed(nodes: int) -> int:
    """Return the number of nights after which every pair of ``nodes`` nodes had its turn once."""
    return 0 if nodes < 2 else nodes - 1 + nodes % 2


def pairs_of_night(nodes: Iterable[str], night: int, *, most: int | None = None) -> tuple[Pair, ...]:
    """Return the pairs of a night. No node is in two pairs, and the order of ``nodes`` does not matter.

    Args:
        nodes: The names of the nodes. Duplicates are ignored.
        night: The number of the night, which increases by one each night.
        most: The largest number of pairs. Each time the tournament starts again, other pairs are
            omitted, so that every pair gets its turn.
    """
    seats: list[str | None] = [*sorted(set(nodes))]
    rounds = nights_needed(len(seats))
    if not rounds:
        return ()
    if len(seats) % 2:
        seats.append(None)
    first_seat, other_seats = seats[0], seats[1:]
    turn = night % rounds
    # The nodes sit in a circle. The first one stays, and all others move by one seat each night.
    # Nodes on opposite seats are a pair.
    circle = [first_seat, *other_seats[turn:], *other_seats[:turn]]
    half = len(circle) // 2
    met = zip(circle[:half], reversed(circle[half:]), strict=True)
    pairs = sorted(
        (min(name, two), max(name, two)) for name, two in met if name is not None and two is not None
    )
    if most is None or most >= len(pairs):
        return tuple(pairs)
    # When the tournament starts again, the window begins where it ended, so that other pairs are
    # omitted.
    begin = night // rounds * max(most, 0) % len(pairs)
    return tuple(sorted((pairs + pairs)[begin : begin + max(most, 0)]))


def second_partners(
    suspects: Iterable[str],
    known_good: Iterable[str],
    met: Iterable[Pair] = (),
) -> dict[str, str]:
    """Return a different known-good node for each suspect. The two were not a pair before.

    No partner is given twice. A suspect without such a partner is left out, and remains a suspect.

    Args:
        suspects: The nodes of pairs that failed.
        known_good: The nodes of pairs that passed tonight.
        met: The pairs that were measured tonight.
    """
    known_partners = _partners_by_node(met)
    suspect_nodes = sorted(set(suspects))
    free = sorted(set(known_good) - set(suspect_nodes))
    partner_of: dict[str, str] = {}
    for suspect in suspect_nodes:
        if len(partner_of) == len(free):
            break
        _add_partner(suspect, free, known_partners, partner_of)
    return dict(sorted(partner_of.items()))


def _add_partner(
    suspect: str,
    free: Sequence[str],
    known_partners: Mapping[str, Collection[str]],
    partner_of: dict[str, str],
) -> None:
    """Give a suspect a partner, if possible.

    A partner that is free comes first. Otherwise, the search (an augmenting path) gives other partners to
    suspects that already have one, so that as many suspects as possible get a partner.

    Args:
        suspect: The suspect.
        free: All good nodes that may become a partner.
        known_partners: The nodes with which each node was measured tonight.
        partner_of: The partner of each suspect so far, which this function changes.
    """
    suspect_of = {node: holder for holder, node in partner_of.items()}
    untried, asking, claimed_by = list(free), deque([suspect]), dict[str, str]()
    while asking:
        asker = asking.popleft()
        known = known_partners.get(asker, ())
        for node in untried:
            if node in known:
                continue
            claimed_by[node] = asker
            if node not in suspect_of:
                _hand_over(node, claimed_by, partner_of)
                return
            asking.append(suspect_of[node])
        untried = [node for node in untried if node in known]


def _hand_over(node: str, claimed_by: Mapping[str, str], partner_of: dict[str, str]) -> None:
    """Give a free node to its claimant, the claimant's former partner to the next claimant, and so on."""
    next_node: str | None = node
    while next_node is not None:
        claimant = claimed_by[next_node]
        former = partner_of.get(claimant)
        partner_of[claimant] = next_node
        next_node = former


def find_culprits(
    results: Mapping[Pair, bool], good: Collection[str] = ()
) -> tuple[frozenset[str], frozenset[Pair], frozenset[str]]:
    """Return the bad nodes, the pairs with a bad link, and the nodes that remain suspects.

    A partner is good if it passed with other nodes. A node is bad if it always failed, at least twice with
    good partners. If both nodes of a failed pair are good, the link between them is bad. A failed pair with a
    bad node proves nothing about the partner. All other nodes that always failed, at least once with a node
    that is not bad, are suspects.

    Args:
        results: Whether each pair passed. A pair that hung did not pass.
        good: The nodes of larger groups that passed.
    """
    known_good = _nodes_of(pair for pair, passed in results.items() if passed).union(good)
    failed = [pair for pair, passed in results.items() if not passed]
    bad = _bad_nodes(failed, known_good)
    links = {pair for pair in failed if known_good.issuperset(pair)}
    # A bad node explains the failure of its pair, which casts no suspicion on the partner.
    unexplained = _nodes_of(pair for pair in failed if pair not in links and bad.isdisjoint(pair))
    return frozenset(bad), frozenset(links), frozenset(unexplained - known_good)


def _bad_nodes(failed: Iterable[Pair], known_good: Collection[str]) -> set[str]:
    """Return the nodes that always failed, at least twice with good partners."""
    # One good partner is not enough, because the link between the two may be at fault.
    return {
        node
        for node, partners in _partners_by_node(failed).items()
        if node not in known_good and len(partners.intersection(known_good)) >= 2
    }


def _partners_by_node(pairs: Iterable[Pair]) -> dict[str, set[str]]:
    """Return the partners of each node in some pairs."""
    partners: dict[str, set[str]] = {}
    for name, two in pairs:
        partners.setdefault(name, set()).add(two)
        partners.setdefault(two, set()).add(name)
    return partners


def _nodes_of(pairs: Iterable[Pair]) -> set[str]:
    """Return the nodes of some pairs."""
    return {node for pair in pairs for node in pair}


def bisect_group(
    nodes: Sequence[str],
    works: Callable[[Sequence[str]], bool],
    *,
    helpers: Collection[str] = (),
    met: Iterable[Pair] = (),
    most_runs: int = 64,
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Find the bad nodes of a group by measuring halves of it.

    If a half works, all its nodes are good. If a half fails, it is halved again. A single node is measured
    together with a helper. The search also finds several bad nodes, and a hang is a failure. The whole group
    is not measured, unless it is a single node.

    Args:
        nodes: The names of the group's nodes. At least one of them is thought to be bad.
        works: A function that runs a job on some nodes with a time limit. It returns false for a failure or a
            hang.
        helpers: The known-good nodes outside the group.
        met: The pairs that were measured before. A single node gets the first helper that it did not meet, or
            else the first helper, because only a second good partner proves it bad.
        most_runs: The largest number of runs. Nodes that were not tested by then are in the second
            value.

    Returns:
        The bad nodes, and the groups without an answer. A group has no answer if no run was left to test it,
        or if it fails although both halves work. In the second case, the fault is in the fabric between the
        halves, or is intermittent. A single node also has no answer if there is no helper.
    """
    spare = [helper for helper in helpers if helper not in set(nodes)]
    search = _Bisection(works, spare, _partners_by_node(met), most_runs)
    if len(nodes) > 1:
        search.halve(nodes)
    elif nodes:
        search.note(nodes, search.ask(nodes))
    return tuple(sorted(search.bad)), tuple(search.unclear)


@dataclass
class _Bisection:
    """The state of one search for the bad nodes of a group.

    Attributes:
        works: The function that measures some nodes.
        spare: The known-good nodes that a single node is measured with.
        partners: The nodes that each node met before.
        runs_left: The number of remaining runs.
        bad: The nodes that were found bad.
        unclear: The groups without an answer.
    """

    works: Callable[[Sequence[str]], bool]
    spare: Sequence[str]
    partners: Mapping[str, Collection[str]]
    runs_left: int
    bad: list[str] = field(default_factory=list)
    unclear: list[tuple[str, ...]] = field(default_factory=list)

    def ask(self, members: Sequence[str]) -> bool | None:
        """Return whether a part works. Return None if no run is left, or if there is no second node."""
        known = self.partners.get(members[0], ())
        helpers = sorted(self.spare, key=lambda helper: helper in known)
        group = [*members, *helpers[: max(0, 2 - len(members))]]
        if self.runs_left < 1 or len(group) < 2:
            return None
        self.runs_left -= 1
        return self.works(group)

    def halve(self, members: Sequence[str]) -> None:
        """Measure the halves of a part that failed, or of the whole group."""
        halves = members[: len(members) // 2], members[len(members) // 2 :]
        # Run both before searching either, so that the remaining runs are not all used for one half.
        answers = [self.ask(half) for half in halves]
        if all(answers):
            self.unclear.append(tuple(members))
        for half, answer in zip(halves, answers, strict=True):
            self.note(half, answer)

    def note(self, members: Sequence[str], answer: bool | None) -> None:
        """Record the outcome of a part's run, and continue the search if it failed."""
        if answer is None:
            self.unclear.append(tuple(members))
        elif not answer and len(members) == 1:
            self.bad.append(members[0])
        elif not answer:
            self.halve(members)

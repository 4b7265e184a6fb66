#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (the text for ansible-doc comes first, as in every module)
"""Drain Slurm nodes, resume them, or report their states (standard library only).

Roles provision, reimage, slurm and validate call this module on the Slurm controller. The result has the
state of each node before and after. The callback ``rackproof`` adds the drains and resumes in it to the audit
log.

Begin with :func:`carry_out_request`, which reads the nodes of a :class:`Cluster`, changes them, and waits for
the requested state.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_slurm_node
short_description: Drain Slurm nodes, resume them, or report their states
description:
  - Runs on a host with C(scontrol) and C(squeue) whose user may change nodes, which is the Slurm controller.
    Works with Slurm 21.08 and newer.
  - A drain whose reason begins with O(prefix) is ours. Any other drain, and a node that was set down by hand,
    has another owner. The module neither resumes such a node nor changes the reason.
  - A node that is not in Slurm is reported as such, without an error. If the cluster does not exist yet (no
    C(scontrol) or no configuration), this applies to every node. A cluster whose C(slurmctld) does not answer
    exists, and the module fails.
options:
  nodes:
    description: Names of the nodes.
    type: list
    elements: str
    required: true
  state:
    description:
      - V(queried) only reads. With O(timeout_s) it reads again while Slurm waits for the answer of a node
        (C(IDLE*)). Such a node answers soon, or is C(DOWN*) after C(SlurmdTimeout).
      - V(registered) waits until the nodes' slurmd answer the controller. RV(waiting) names the nodes that do
        not answer in time.
      - V(drained) drains the nodes that are not drained yet, and waits until no job runs on any of them. A
        node that was set down by hand is drained with its present reason. Otherwise, Slurm would put the node
        into service when its slurmd registers.
      - V(returned) resumes the nodes whose drain is ours as soon as their slurmd answer, and waits until they
        can take work. A node that does not answer in time stays drained.
    type: str
    choices: [queried, registered, drained, returned]
    default: queried
  prefix:
    description: Beginning of the reason of our own drains.
    type: str
    default: "rackproof:"
  reason:
    description: Reason for the drain. The module puts O(prefix) before it.
    type: str
    default: being provisioned
  replace_reason:
    description: Whether O(state=drained) replaces another reason of nodes whose drain is ours.
    type: bool
    default: false
  timeout_s:
    description: Seconds to wait for O(state). 0 does not wait.
    type: int
    default: 0
  poll_s:
    description: Seconds between two readings.
    type: float
    default: 5
  strict:
    description:
      - Whether the task fails if, after O(timeout_s), O(state=drained) still finds jobs, or O(state=returned)
        still finds a node that cannot take work. Otherwise, RV(waiting) names these nodes.
    type: bool
    default: true
  command_timeout_s:
    description: Seconds that one call of C(scontrol) or C(squeue) may take.
    type: float
    default: 60
  programs:
    description:
      - Programs of Slurm that this host must have, such as those of later tasks. If any is missing, the
        module fails and names all of them. Without all of them, a configuration and a daemon of Slurm, there
        is no cluster.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Reports the changes, does not wait.
    support: full
  diff_mode:
    description: Shows the states before and after.
    support: full
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Take the nodes out of service and wait for their jobs
  rackproof_slurm_node:
    nodes: "{{ ansible_play_batch }}"
    state: drained
    reason: being provisioned
    timeout_s: 3600
  delegate_to: "{{ groups['slurm_controller'] | first }}"
  run_once: true

- name: Resume the node
  rackproof_slurm_node:
    nodes: ["{{ inventory_hostname }}"]
    state: returned
    timeout_s: 60
  delegate_to: "{{ groups['slurm_controller'] | first }}"
"""

RETURN = r"""
nodes:
  description: State of each node, by name.
  returned: always
  type: dict
  contains:
    known: {description: True if the node is in Slurm., type: bool, returned: always}
    state_before: {description: State before; V(unknown) if the node is not in Slurm., type: str, returned:
        always}
    state_after: {description: State at the end; in check mode the predicted state., type: str, returned:
        always}
    drained_by: {description: Owner of the drain (ours/other/none)., type: str, returned: always}
    reason: {description: Reason that Slurm stores with the state., type: str, returned: always}
    set_by: {description: User and time of the reason as C(USER@TIME)., type: str, returned:
        always}
    jobs: {description: Ids of the node's jobs that run or are ending., type: list, returned: always}
    responding: {description: Whether the node's slurmd has registered and answers., type: bool, returned:
        always}
    in_service: {description: Whether the node can take work., type: bool, returned: always}
cluster: {description: True if there is a Slurm cluster., type: bool, returned: always}
waiting: {description: Nodes that did not reach O(state) in time., type: list, returned: always}
"""

import os
import re
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_tools import node_environment

# Folders in which programs are searched after those of PATH.
EXTRA_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
# Places of Slurm's configuration. The last one is for nodes that get the configuration from slurmctld.
CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
# Matches the name and the state in a line of scontrol. Slurm prints free text, such as a reason that contains
# "State=IDLE", only after the state.
NODE = re.compile(r"^NodeName=(\S+)\s.*?\bState=(\S+)")
# Matches the reason in a line of scontrol. The second group is the user and the time, as in
# "[root@2026-01-31T02:00:00]". Other fields may follow, such as the comment of the node or its reservation.
REASON = re.compile(
    r" Reason=(.*?)(?: \[([^\[\]@]+@[^\[\]]+)\](?= [A-Z]\w*=|\s*$)"
    r"|(?= (?:Comment|Extra|InstanceId|InstanceType|ReservationName|TLSCertTokenSet|Topology|Parameters)=)"
    r"|\s*$)"
)
# Symbols that Slurm appends to a state, such as "*" for a node that does not answer.
SYMBOLS = "*~#!%$@^-+"
# The states of jobs whose processes or epilog may still run on a node.
JOB_STATES = "RUNNING,SUSPENDED,STOPPED,COMPLETING,CONFIGURING,SIGNALING,STAGE_OUT"
# One of the reasons that Slurm itself writes for a node that it finds down. They are complete, because an
# operator may begin a reason with the same word ("Low voltage").
OWN_REASON = (
    r"(?:Not responding|Node unexpectedly rebooted|Node silently failed and came back|reboot timed out"
    r"|ResumeTimeout reached|NO NETWORK ADDRESS FOUND|Duplicate jobid|none|CoreSpec differ"
    r"|Low (?:socket\*core(?:\*thread)? count|CPUs|TmpDisk"
    r"|RealMemory(?: \(reported:\d+ < [\d.]+% of configured:\d+\))?)"
    r"|gres/\S+ count (?:reported lower than configured|too low|changed and jobs are using them)"
    r" \(\d+ (?:<|!=) \d+\))"
)
# Slurm joins several reasons by commas.
OWN_REASONS = re.compile(f"{OWN_REASON}(?:, {OWN_REASON})*")
# The programs of Slurm that run all the time. The kernel's name of a process has at most 15 characters.
DAEMONS = ("slurmctld", "slurmd", "sackd")
PROC = "/proc"
# Slurm's error without any source of a configuration, and a part of its error for a slurmctld that does not
# answer the request for the configuration (configless).
NO_SOURCE = "Could not establish a configuration source"
NO_ANSWER = "failed to fetch remote config"


class SlurmError(Exception):
    """A request that Slurm did not fulfil. The message gives the command and Slurm's own error."""


class MissingProgramError(SlurmError):
    """An error about programs of Slurm that are missing on this host.

    The message does not ask whether slurmctld is running, as for other errors of Slurm.
    """

    def __init__(self, programs):
        super().__init__(
            "{}: not installed on {}, or not executable for its user. Install Slurm's client programs "
            "there, or set slurm_controller to a host that has them".format(
                ", ".join(programs), os.uname().nodename
            )
        )


def find_program(program):
    """Return the path of a program, or None if it is absent.

    The folders of :data:`EXTRA_PATH` are searched, too, because the PATH of a module may not contain them.
    """
    for folder in os.environ.get("PATH", "").split(os.pathsep) + list(EXTRA_PATH):
        path = os.path.join(folder, program)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def run_slurm(argv, timeout_s):
    """Return the output of a Slurm program.

    Args:
        argv: Program and arguments.
        timeout_s: The number of seconds that the program may take.

    Raises:
        SlurmError: The program is missing, failed, or took too long.
    """
    path = find_program(argv[0])
    if path is None:
        raise MissingProgramError([argv[0]])
    try:
        process = subprocess.run(
            [path, *argv[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=dict(node_environment(), LC_ALL="C"),
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError("{} did not answer within {:g} s".format(" ".join(argv[:3]), timeout_s)) from None
    out = process.stdout.decode("utf-8", "replace")
    if process.returncode != 0:
        message = (process.stderr.decode("utf-8", "replace").strip() or out.strip())[-500:]
        raise SlurmError("{} failed: {}".format(" ".join(argv[:3]), message))
    return out


def parse_nodes(text):
    """Return state, reason and the reason's user of each node, from ``scontrol --oneliner show node``."""
    nodes = {}
    for line in text.splitlines():
        node = NODE.match(line)
        if not node:
            continue
        reason = REASON.search(line, node.end())
        nodes[node.group(1)] = {
            "state": node.group(2),
            "reason": reason.group(1).strip() if reason else "",
            "set_by": (reason.group(2) or "") if reason else "",
        }
    return nodes


# States of nodes from which Slurm expects no answer, or not soon, so that a second query is useless.
GIVEN_UP = {"DOWN", "ERROR", "FUTURE", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "REBOOT_ISSUED"}


def state_flags(state):
    """Return the words of a state without Slurm's symbols: DOWN, NOT_RESPONDING and DRAIN for DOWN*+DRAIN."""
    words = set()
    for word in state.upper().split("+"):
        if word.endswith("*"):
            words.add("NOT_RESPONDING")
        words.add(word.rstrip(SYMBOLS))
    if words & {"DRAINED", "DRAINING"}:
        words.add("DRAIN")
    return words


def expand_hostlist(expression):
    """Return the names in a host list: n01-x, n02-x, n03-x and n7-x for n[01-03,7]-x."""
    names, item, depth = [], "", 0
    for character in expression + ",":
        if character == "," and depth == 0:
            names.extend(_expand_one(item))
            item = ""
            continue
        depth += (character == "[") - (character == "]")
        item += character
    return [name for name in names if name]


def _expand_one(item):
    """Return the names in an item of a host list, by expanding its first bracket and then the rest."""
    before, bracket, rest = item.partition("[")
    if not bracket:
        return [item]
    inside, _, after = rest.partition("]")
    middles = []
    for piece in inside.split(","):
        first, dash, last = piece.partition("-")
        if dash and first.isdigit() and last.isdigit():
            middles.extend(str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        else:
            middles.append(piece)
    return [before + middle + end for middle in middles for end in _expand_one(after)]


def parse_jobs(text):
    """Return the jobs of each node from the lines of ``squeue -o '%i %N'``."""
    jobs = {}
    for line in text.splitlines():
        job, _, nodes = line.strip().partition(" ")
        for node in expand_hostlist(nodes.strip()):
            jobs.setdefault(node, []).append(job)
    return jobs


def drain_owner(known, prefix):
    """Return the owner of a node's drain: ours, other or none.

    A node that was set down by hand, with a reason that is not ours, has the owner other, too.

    Args:
        known: State, reason, and the user who set the reason, as :func:`parse_nodes` returns them.
        prefix: The beginning of the reasons of our drains.
    """
    words = state_flags(known["state"])
    ours = known["reason"].startswith(prefix)
    if words & {"DRAIN", "FAIL", "FAILING"}:
        return "ours" if ours else "other"
    if "DOWN" in words and not ours and known["reason"]:
        # Slurm sets nodes down by itself, and operators set nodes down by hand. Only a state that an operator
        # set must not be changed.
        by_slurm = known["set_by"].startswith("slurm@") or OWN_REASONS.fullmatch(known["reason"])
        return "none" if by_slurm else "other"
    return "none"


def has_configuration_file():
    """Return whether a configuration of Slurm is on this host."""
    paths = (os.environ.get("SLURM_CONF", ""), *CONFIGURATIONS)
    return any(path and os.path.exists(path) for path in paths)


def runs_slurm():
    """Return whether one of :data:`DAEMONS` runs on this host. Daemons in containers do not count."""
    own = read_namespace("self")
    for pid in filter(str.isdigit, os.listdir(PROC)):
        try:
            with open(os.path.join(PROC, pid, "comm"), errors="replace") as stream:
                name = stream.read().strip()
        except OSError:
            continue  # it has ended
        if name in DAEMONS and read_namespace(pid) == own:
            return True
    return False


def read_namespace(pid):
    """Return the name of a process's namespace of processes, or "" if it cannot be read."""
    try:
        return os.readlink(os.path.join(PROC, pid, "ns/pid"))
    except OSError:
        return ""


def refuse_missing_programs(programs):
    """Refuse a host that has a part of Slurm, but not all of these programs.

    A host with neither the programs nor a configuration nor a daemon has no cluster, which is not an error. A
    site's programs may lie in a folder that is not searched.

    Raises:
        MissingProgramError: Some programs are missing. The message names all of them.
    """
    missing = [program for program in programs if find_program(program) is None]
    if missing and (len(missing) < len(programs) or has_configuration_file() or runs_slurm()):
        raise MissingProgramError(missing)


def has_configuration(timeout_s):
    """Return whether there is a cluster, whose configuration is on this host or is found by scontrol.

    A cluster whose slurmctld is down or late exists: its nodes may run jobs. The next command of Slurm then
    fails.

    Args:
        timeout_s: Seconds that scontrol may take.
    """
    if has_configuration_file() or runs_slurm():
        return True
    try:
        # Without a file, the path may be built into the program, or slurmctld serves the configuration
        # (configless).
        run_slurm(["scontrol", "ping"], timeout_s)
    except SlurmError as error:
        return NO_SOURCE not in str(error) or NO_ANSWER in str(error)
    return True


class Cluster:
    """The requested nodes in Slurm, to read and to change. ``options`` are the options of the module."""

    def __init__(self, options):
        self.names = list(dict.fromkeys(options["nodes"]))
        self.prefix = options["prefix"]
        self.timeout_s = options["command_timeout_s"]
        self.exists = find_program("scontrol") is not None and has_configuration(self.timeout_s)

    def read_nodes(self):
        """Return the present state of every requested node, by name.

        A state has the keys that the module documents for ``nodes``, with ``state`` in place of
        ``state_before`` and ``state_after``.
        """
        known, jobs = {}, {}
        if self.exists:
            known = parse_nodes(
                run_slurm(["scontrol", "--all", "--oneliner", "show", "node"], self.timeout_s)
            )
            if set(self.names) & set(known):
                jobs = parse_jobs(
                    run_slurm(
                        ["squeue", "--all", "--noheader", "--states=" + JOB_STATES, "--format=%i %N"],
                        self.timeout_s,
                    )
                )
        return {name: self._node(known.get(name), jobs.get(name, [])) for name in self.names}

    def _node(self, known, jobs):
        """Return the state of a node.

        ``known`` are the fields of scontrol, or None if the node is not in Slurm. ``jobs`` are its jobs.
        """
        if known is None:
            return {
                "known": False,
                "state": "unknown",
                "drained_by": "none",
                "reason": "",
                "set_by": "",
                "jobs": [],
                "responding": False,
                "in_service": False,
            }
        words = state_flags(known["state"])
        responding = not words & {
            "NOT_RESPONDING",
            "UNKNOWN",
            "POWERED_DOWN",
            "POWERING_DOWN",
            "REBOOT_ISSUED",
        }
        out = {"DOWN", "DRAIN", "FAIL", "FAILING", "ERROR", "FUTURE", "INVAL", "INVALID_REG"}
        return {
            "known": True,
            "state": known["state"],
            "drained_by": drain_owner(known, self.prefix),
            "reason": known["reason"],
            "set_by": known["set_by"],
            "jobs": jobs,
            "responding": responding and words.isdisjoint({"FUTURE"}),
            "in_service": responding and words.isdisjoint(out),
        }

    def update(self, names, **values):
        """Change nodes in Slurm. ``values`` are fields of scontrol, which are passed on unchanged."""
        arguments = [f"{key}={value}" for key, value in values.items()]
        run_slurm(["scontrol", "update", "NodeName=" + ",".join(names), *arguments], self.timeout_s)


def one_line(text):
    """Return a reason as one line of printable text."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def is_pending(state, node):
    """Return whether a node is not yet in the requested state."""
    if state == "drained":
        return bool(node["jobs"])
    if state == "returned":
        return node["known"] and node["drained_by"] != "other" and not node["in_service"]
    if state == "queried":
        words = state_flags(node["state"])
        return "NOT_RESPONDING" in words and words.isdisjoint(GIVEN_UP)
    return state == "registered" and not node["responding"]


def pending_nodes(state, nodes):
    """Return the nodes that are not yet in the requested state."""
    return [name for name, node in nodes.items() if is_pending(state, node)]


def can_work(node):
    """Return whether a node could take work if it were not drained."""
    return node["responding"] and "INVALID_REG" not in state_flags(node["state"])


def is_only_down(node):
    """Return whether a node was set down by hand and is not drained."""
    return node["drained_by"] == "other" and not state_flags(node["state"]) & {"DRAIN", "FAIL", "FAILING"}


def wait_for_nodes(cluster, holds, deadline, poll_s):
    """Read the nodes until a condition holds or the deadline is over. Return their states.

    Args:
        cluster: The nodes.
        holds: A function of the states that returns whether the condition holds.
        deadline: The time of the monotonic clock in seconds at which to give up.
        poll_s: Seconds between two readings.
    """
    while True:
        nodes = cluster.read_nodes()
        remaining_s = deadline - time.monotonic()
        if holds(nodes) or remaining_s <= 0:
            return nodes
        time.sleep(max(0.05, min(poll_s, remaining_s)))


def predict_node(state, node, reason):
    """Return the state of a node after the change, for check mode."""
    base = node["state"].split("+")[0]
    if state == "drained":
        after = node["state"] if "DRAIN" in state_flags(node["state"]) else node["state"] + "+DRAIN"
        return dict(node, state=after, drained_by="ours", reason=reason, set_by="", in_service=False)
    return dict(node, state=base, drained_by="none", reason="", set_by="", in_service=node["responding"])


def waiting_message(state, names, nodes):
    """Return the message of a wait that timed out, with the remedy."""
    if state == "drained":
        busy = "; ".join("{} runs {}".format(name, ", ".join(nodes[name]["jobs"][:5])) for name in names)
        return (
            f"Jobs still run after the time to wait: {busy}. The nodes stay drained, so that nothing new "
            "starts there. Run the playbook again when the jobs have ended, or wait longer."
        )
    states = "; ".join(
        "{} is {}{}".format(
            name,
            nodes[name]["state_after"],
            " ({})".format(nodes[name]["reason"]) if nodes[name]["reason"] else "",
        )
        for name in names
    )
    return (
        f"Slurm did not put the nodes into service: {states}. Look at `systemctl status slurmd munge` and "
        "`journalctl -u slurmd -n 50` there, and at the clocks: munge refuses 5 minutes of difference."
    )


class Request:
    """The requested state of the nodes, and the deadline to wait for it."""

    def __init__(self, params, prefix):
        self.state = params["state"]
        self.reason = one_line("{} {}".format(prefix, params["reason"]))
        self.replaces = params["replace_reason"] and params["state"] == "drained"
        self.poll_s = params["poll_s"]
        self.deadline = time.monotonic() + params["timeout_s"]


def nodes_to_change(request, nodes):
    """Return the nodes to change: to drain those that are not drained, or to resume those that we drained.

    If the request replaces reasons, nodes that we drained with another reason are included.
    """
    wanted = {"drained": "none", "returned": "ours"}.get(request.state)
    return [
        name
        for name, node in nodes.items()
        if node["known"] and (node["drained_by"] == wanted or has_other_reason(request, node))
    ]


def has_other_reason(request, node):
    """Return whether the reason of a drain of ours must be replaced."""
    return request.replaces and node["drained_by"] == "ours" and node["reason"] != request.reason


def down_nodes_to_drain(state, nodes):
    """Return the nodes to drain although they were set down by hand.

    Slurm would put such a node into service when its slurmd registers (ReturnToService=2).
    """
    if state != "drained":
        return []
    return [name for name, node in nodes.items() if is_only_down(node)]


def predict_nodes(request, before, touched, down):
    """Return the states of all nodes after the change, for check mode.

    ``touched`` are the nodes to drain or resume, and ``down`` those that were set down by hand.
    """
    after = dict(before)
    for name in touched:
        after[name] = predict_node(request.state, before[name], request.reason)
    for name in down:
        after[name] = dict(before[name], state=before[name]["state"] + "+DRAIN")
    return after


def wait_until_able(cluster, request, before, touched):
    """Wait until the nodes to resume answer. Return the nodes that may be resumed, and all states.

    A node that does not answer is not resumed. Otherwise, the node would be in service as soon as it answers,
    without any check.
    """

    def all_able(nodes):
        return all(can_work(nodes[name]) for name in touched)

    current = before
    if not all_able(before):
        current = wait_for_nodes(cluster, all_able, request.deadline, request.poll_s)
    return [
        name for name in touched if can_work(current[name]) and current[name]["drained_by"] == "ours"
    ], current


def update_nodes(cluster, request, touched, down, before):
    """Drain or resume the nodes in ``touched``, and drain those in ``down`` with their present reason."""
    if touched and request.state == "drained":
        cluster.update(touched, State="DRAIN", Reason=request.reason)
    elif touched:
        cluster.update(touched, State="RESUME")
    for name in down:
        cluster.update([name], State="DRAIN", Reason=before[name]["reason"])


def refuse_lost_drains(request, touched, after):
    """Raise an error if a node that was just drained is no longer drained by us."""
    lost = [name for name in touched if request.state == "drained" and after[name]["drained_by"] != "ours"]
    if lost:
        raise SlurmError(
            "{} did not stay drained: it was changed in the same moment. Look at "
            "`scontrol show node {}`, then run the playbook again".format(", ".join(lost), lost[0])
        )


def change_nodes(cluster, request, before, touched, down):
    """Drain or resume nodes, and wait for the requested state.

    Return the nodes that were drained or resumed, and the states of all nodes.
    """
    current = before
    if request.state == "returned":
        touched, current = wait_until_able(cluster, request, before, touched)
    update_nodes(cluster, request, touched, down, before)
    after = current
    if touched or down or pending_nodes(request.state, current):
        after = wait_for_nodes(
            cluster, lambda nodes: not pending_nodes(request.state, nodes), request.deadline, request.poll_s
        )
    refuse_lost_drains(request, touched, after)
    return touched, after


def report_node(before, after):
    """Return the module's result for a node, with the state before and the state at the end."""
    report = {"state_before": before["state"], "state_after": after["state"]}
    report.update((key, value) for key, value in after.items() if key != "state")
    return report


def state_lines(names, nodes):
    """Return the states of nodes, a line for each, as Ansible's diff shows them."""
    return "".join("{} {}\n".format(name, nodes[name]["state"]) for name in names)


def carry_out_request(module, cluster):
    """Carry out the request, and return the module's result."""
    # The time of the first reading counts as waiting.
    request = Request(module.params, cluster.prefix)
    before = cluster.read_nodes()
    touched, down = nodes_to_change(request, before), down_nodes_to_drain(request.state, before)
    if module.check_mode:
        after, waiting = predict_nodes(request, before, touched, down), []
    else:
        touched, after = change_nodes(cluster, request, before, touched, down)
        waiting = pending_nodes(request.state, after)
    result = {
        "changed": bool(touched or down),
        "nodes": {name: report_node(before[name], node) for name, node in after.items()},
        "cluster": cluster.exists,
        "waiting": waiting,
    }
    changed = [*touched, *down]
    if changed:
        result["diff"] = {"before": state_lines(changed, before), "after": state_lines(changed, after)}
    return result


def check_options(module):
    """Fail if the value of an option is unusable."""
    options = module.params
    if not options["prefix"].strip():
        module.fail_json(msg="prefix: must not be empty, or every drain would be ours")
    if options["timeout_s"] < 0 or options["poll_s"] <= 0 or options["command_timeout_s"] <= 0:
        module.fail_json(msg="timeout_s must not be negative, poll_s and command_timeout_s must be positive")
    for name in options["nodes"]:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
            module.fail_json(msg=f"nodes: {name!r} is not the name of a node")


def main():
    """Read the options, carry out the request, and end with its result or its error."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["queried", "registered", "drained", "returned"],
                "default": "queried",
            },
            "prefix": {"type": "str", "default": "rackproof:"},
            "reason": {"type": "str", "default": "being provisioned"},
            "replace_reason": {"type": "bool", "default": False},
            "timeout_s": {"type": "int", "default": 0},
            "poll_s": {"type": "float", "default": 5},
            "strict": {"type": "bool", "default": True},
            "command_timeout_s": {"type": "float", "default": 60},
            "programs": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    check_options(module)
    options = module.params
    try:
        refuse_missing_programs(options["programs"])
        cluster = Cluster(options)
        result = carry_out_request(module, cluster)
    except MissingProgramError as error:
        module.fail_json(msg=f"{error}.")
    except SlurmError as error:
        module.fail_json(
            msg=f"{error} (on {os.uname().nodename}, for {', '.join(cluster.names[:5])}). "
            "Is slurmctld running there? `systemctl status slurmctld`, `scontrol ping`."
        )
    if result["waiting"] and options["strict"] and options["state"] in ("drained", "returned"):
        module.fail_json(msg=waiting_message(options["state"], result["waiting"], result["nodes"]), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()

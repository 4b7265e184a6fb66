#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (the text for ansible-doc comes first, as in every module)
"""Install exact versions of packages, and refuse new kernels and removals that were not requested.

Begin with :func:`fulfil_request`. It compares the installed packages with the request, lets apt simulate the
change (:func:`refuse_unrequested_changes`), and makes it (:func:`install_and_remove`). The module needs only
the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_packages
short_description: Install packages in exact versions, hold them, and refuse changes that were not requested
description:
  - Installs exact versions of packages in one call. C(apt), C(debconf) and C(dpkg_selections) need many.
  - The module simulates the apt run first. A new kernel, or the removal of a package that was not listed, is
    refused before anything is installed, and the kernels are compared again afterwards. The same is true of
    the repair of packages that an interrupted installation left incomplete.
  - The module works on a bare node without apt's Python bindings. In check mode, the content of the
    repositories may be unknown there. The missing packages are then the prediction.
options:
  present:
    description: Packages by name with their version, a pattern such as V(580.95.05-*), or empty for any.
    type: dict
    default: {}
  absent:
    description: Packages to remove.
    type: list
    elements: str
    default: []
  hold:
    description: Whether to hold the packages of O(present), so that nothing else upgrades them.
    type: bool
    default: false
  update:
    description: When to fetch the package lists. V(needed) fetches them before a package is changed.
    type: str
    choices: [needed, always, never]
    default: needed
  debconf:
    description: Answers to the questions of packages, in the format of C(debconf-set-selections).
    type: list
    elements: str
    default: []
  allow_downgrade:
    description: Whether a package may be replaced by an older version.
    type: bool
    default: false
  simulate:
    description:
      - Only fetch the package lists, simulate apt, and refuse the same changes as a real run. No package
        is changed. In check mode the existing lists are used.
    type: bool
    default: false
  allow_kernel:
    description: Whether apt may install a kernel.
    type: bool
    default: false
  allow_remove:
    description: Patterns of packages that may be removed because they conflict with others.
    type: list
    elements: str
    default: []
  remedy:
    description: Remedy in the message about a package or version that no repository has.
    type: str
    default: ""
  remedies:
    description: Remedies for missing packages, by pattern of the names. O(remedy) applies to other packages.
    type: dict
    default: {}
  lock_timeout_s:
    description: Seconds to wait for another process that holds the locks of apt and dpkg.
    type: int
    default: 120
  timeout_s:
    description:
      - Seconds that a call of apt may take, whether it installs or fetches the package lists. A call may
        also wait O(lock_timeout_s) for locks, so it is stopped after the sum of both.
    type: int
    default: 3600
attributes:
  check_mode:
    description: Predicts the changes by simulation, if the node has package lists.
    support: full
  diff_mode:
    description: Shows versions before and after.
    support: full
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Install the driver and hold it
  rackproof_packages:
    present: {nvidia-open: 580.95.05-1, nvidia-driver-cuda: 580.95.05-1}
    hold: true
    allow_remove: [nvidia-*, libnvidia-*]
    remedy: Set lambda_stack_driver_version to one of these, or renew the mirror.
"""

RETURN = r"""
packages:
  description:
    - The version before and after of each changed package, by name. A version is null if the package is not
      installed. Empty with O(simulate).
  returned: always
  type: dict
held:
  description: Packages that were put on hold.
  returned: always
  type: list
repaired:
  description:
    - Whether work of dpkg that had been interrupted was finished first. In check mode, whether a real run
      would finish it. Always false with O(simulate).
  returned: always
  type: bool
simulated:
  description: Whether the prediction of check mode is apt's own.
  returned: in check mode, if a package has to be installed or removed
  type: bool
reboot_required:
  description: Whether a package requires a reboot.
  returned: without O(simulate)
  type: bool
"""

import fnmatch
import os
import re
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_dpkg import interrupted, kernels, lock_holder, packages
from ansible.module_utils.rackproof_tools import ask

ENVIRONMENT = {
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_MODE": "l",
}
# Options of queries and simulations, which then store no cache files.
NO_FILES = ["Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="]
# The arguments of apt-get that repair packages whose installation was interrupted.
REPAIR = ["--fix-broken", "install", "--no-install-recommends"]
KERNEL = re.compile(r"linux-image-|linux-modules-\d|kernel-image-")
"""Pattern of the beginning of names of packages with a kernel."""
LARGEST_CLOSURE = 500
"""Largest number of packages for which exact versions are collected."""
# Messages of apt, and their meaning for an operator. The first match is used.
MEANINGS = (
    (
        r"is not signed|NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|signatures? (were|was) invalid|"
        r"signatures? couldn't be verified|isn't signed|not.*signed by|Sub-process .*sqv returned an error",
        "A repository is not signed by the key that is required. Nothing is installed from it. Find out who "
        "changed it. If the key was renewed on purpose, renew apt_mirror_key_file or the repository's "
        "fingerprint.",
    ),
    (
        r"is not valid yet|Release file .* expired",
        "The clock of the node and the date of a repository disagree. Set the clock, or renew the mirror.",
    ),
    (
        r"No space left on device|don't have enough free space",
        "The disk is full. Free space on / and /var, then start the same command again.",
    ),
    (
        r"Could not get lock|Unable to acquire the dpkg frontend lock|Unable to lock|locked by another",
        "Another process holds the lock of apt or dpkg{holder}. Wait for it or stop it, switch unattended "
        "upgrades off if they hold it, then start the same command again.",
    ),
    (
        r"Could not resolve|Temporary failure resolving",
        "The name of a repository's server does not resolve on this node. Check the node's DNS, and "
        "apt_mirror_root.",
    ),
    (
        r"Could not connect|Unable to connect|Connection (refused|timed out|failed|reset)|"
        r"Cannot initiate the connection|Network is unreachable|No route to host|server closed",
        "A repository's server does not answer. Check that the mirror is up and reachable from this node, "
        "then start the same command again. It continues where it stopped.",
    ),
    (
        r"does not have a Release file|404 +Not Found|403 +Forbidden",
        "A repository is not where the node looks for it. Check apt_mirror_root, apt_mirror_repositories and "
        "that "
        "the mirror holds this release of the operating system.",
    ),
    (
        r"\b(?:401|407) +[A-Z][a-z]|does the network require authentication",
        "A repository's server, or a proxy before it, requires a login. Check apt_mirror_root and "
        "apt_mirror_proxy from this node.",
    ),
    (
        # Require a capital and a small letter, so that an amount such as "512 MB" does not count as a status.
        r"\b(?:429|5\d\d) +[A-Z][a-z]",
        "A repository's server answers with an error of its own. Look at the log of the mirror or of the "
        "proxy before it, then start the same command again. It continues where it stopped.",
    ),
    (
        r"(?:MergeList|parse package file|parsing file|parse) '?/var/lib/dpkg/status",
        "dpkg's list of installed packages is damaged. Replace /var/lib/dpkg/status with the newest "
        "undamaged copy in /var/backups/dpkg.status.*, or re-image the node.",
    ),
    (
        r"Problem with MergeList|Unable to parse package file|Encountered a section with no Package|"
        r"package lists or status file could not be parsed|Empty files can't be valid archives",
        "A package list is damaged. On the node, run rm -r /var/lib/apt/lists/*, then start the same command "
        "again, which fetches the lists. If it fails again, the mirror's list itself is damaged: renew the "
        "mirror.",
    ),
    (
        r"Hash Sum mismatch|File has unexpected size|Mirror sync in progress",
        "A repository is being changed at this moment, or a proxy serves old files. Start the same command "
        "again.",
    ),
    (
        r"unmet dependencies|held broken packages|Unable to correct problems",
        "apt cannot install these versions together. Check that all pinned versions belong to one release.",
    ),
    (
        r"Sub-process /usr/bin/dpkg returned an error|dpkg: error processing",
        "The installation script of a package failed. Its output is below.",
    ),
)


class RefusedError(Exception):
    """Work that is refused. The message gives the remedy for the operator."""


def ask_until_unlocked(call, words, limit_s):
    """Repeat a call while its output reports a lock, for at most ``limit_s``. Return its last result."""
    deadline = time.monotonic() + limit_s
    while True:
        result = call()
        if words not in printed_text(result) or time.monotonic() > deadline:
            return result
        time.sleep(2)


class Apt:
    """The programs apt-get and apt-cache, with the options of every call."""

    def __init__(self, options):
        self.options = options
        self.node = os.uname().nodename

    def __call__(self, *arguments):
        """Return the result of a call of apt-get."""
        fixed = [
            f"DPkg::Lock::Timeout={self.options['lock_timeout_s']}",
            "Dpkg::Options::=--force-confdef",
            "Dpkg::Options::=--force-confold",
            "Acquire::Retries=2",
            "Acquire::http::Timeout=20",
            "Acquire::https::Timeout=20",
            "APT::Install-Recommends=false",
        ]
        if "-s" in arguments:
            fixed += NO_FILES
        argv = ["apt-get", "-y", "-q", *(part for option in fixed for part in ("-o", option)), *arguments]
        limit_s = self.options["timeout_s"] + self.options["lock_timeout_s"]
        return ask(argv, limit_s, bounded=False, environment=ENVIRONMENT)

    def update(self):
        """Fetch the package lists. A list that could not be fetched is an error too."""
        # apt waits for the lock of dpkg, but not for the lock of the package lists.
        result = ask_until_unlocked(
            lambda: self("update"), "Could not get lock", self.options["lock_timeout_s"]
        )
        text = printed_text(result)
        # A server that is down is only a warning to apt, which then continues with its earlier lists.
        failed = re.search(r"^(E:|Err:|W: (Failed to fetch|GPG error|An error occurred))", text, re.M)
        if result["status"] != "ok" or failed:
            raise RefusedError(self.failure_message("The package lists could not be fetched", result))

    def failure_message(self, purpose, result):
        """Return a message with the purpose of a failed call, the remedy, and the output of apt or dpkg."""
        text = printed_text(result)
        if result["status"] == "absent":
            return f"{self.node}: apt-get is absent. Rackproof provisions Debian and Ubuntu."
        if result["status"] == "hung":
            seconds = result.get("seconds")
            return (
                f"{self.node}: {purpose}: the call did not end within {seconds:.0f} s and was stopped. Look "
                f"at what it waits for (ps, /var/log/apt/term.log), then start the same command again. "
                f"Its last output: {last_lines(text)}"
            )
        meant = explain_output(text)
        if "script of a package" in meant:
            return f"{self.node}: {purpose}. {meant}\n{last_lines(text, 25)}"
        messages = [
            line.strip() for line in text.splitlines() if re.match(r"\s*(E:|Err:|W:|dpkg: error)", line)
        ]
        advice = f" {meant}" if meant else ""
        return f"{self.node}: {purpose}.{advice} Output: {' | '.join(messages[:4]) or last_lines(text)}"

    def known(self, *arguments):
        """Return the output of apt-cache."""
        argv = ["apt-cache", *(part for option in NO_FILES for part in ("-o", option)), *arguments]
        return ask(argv, self.options["timeout_s"], environment=ENVIRONMENT).get("stdout", "")

    def versions(self, name):
        """Return the versions of a package in the repositories."""
        listed = self.known("madison", name)
        return list(dict.fromkeys(line.split("|")[1].strip() for line in listed.splitlines() if "|" in line))

    def newest(self, name, pattern):
        """Return the newest version that matches a pattern.

        Return the pattern if none matches, or if it is a plain version.
        """
        if not any(sign in pattern for sign in "*?["):
            return pattern
        return next((version for version in self.versions(name) if is_version(version, pattern)), pattern)

    def exact(self, wanted):
        """Return the wanted packages and their exactly required dependencies, with versions.

        apt would choose the newest version of a dependency, and then report that it does not fit.
        """
        # apt itself only supports patterns that end in a star.
        chosen = {name: self.newest(name, version) for name, version in wanted.items()}
        versions, level = dict(chosen), dict(chosen)
        while level and len(versions) < LARGEST_CLOSURE:
            named = [f"{name}={version}" for name, version in sorted(level.items()) if version]
            if not named:
                break
            needed = exact_dependencies(self.known("show", *named))
            level = {name: version for name, version in needed.items() if name not in versions}
            versions.update(level)
        return versions


def explain_output(text):
    """Return the meaning of apt's output with the remedy, or "" if it is unknown."""
    for pattern, words in MEANINGS:
        if re.search(pattern, text):
            holder = lock_holder()
            return words.format(holder=f": {holder}" if holder else "")
    return ""


def exact_dependencies(shown):
    """Return the exact versions of dependencies, by name.

    Args:
        shown: The output of ``apt-cache show`` for the packages.
    """
    needed = {}
    for line in re.findall(r"^(?:Pre-)?Depends: (.*)$", shown, re.M):
        for dependency in line.split(","):
            match = re.match(r"\s*([a-z0-9][a-z0-9+.-]+)(?::\w+)? \(= ([^)\s]+)\)\s*$", dependency)
            if match:
                needed[match.group(1)] = match.group(2)
    return needed


def last_lines(text, lines=6):
    """Return the last lines of a text."""
    return "\n".join([line for line in text.strip().splitlines() if line.strip()][-lines:])


def is_version(version, wanted):
    """Return whether a version is the wanted one, which may be a pattern, or empty for any version."""
    return not wanted or version == wanted or fnmatch.fnmatchcase(version, wanted)


def apt_arguments(options, wanted, removed):
    """Return the arguments of apt-get: its command, its flags, and the packages to install and remove."""
    flags = ["--no-install-recommends", "--allow-change-held-packages"]
    if options["allow_downgrade"]:
        flags.append("--allow-downgrades")
    named = [f"{name}={version}" if version else name for name, version in sorted(wanted.items())]
    return ["install", *flags, *named, *(f"{name}-" for name in removed)]


def printed_text(result):
    """Return the output and the errors of a call as one text."""
    return result.get("stdout", "") + "\n" + result.get("stderr", "")


def packages_not_offered(text):
    """Return the packages that apt did not find in its lists, those without the wanted version first."""
    versions = re.findall(r"Version '([^']*)' for '([^']*)' was not found", text)
    names = re.findall(
        r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate", text
    )
    return list(dict.fromkeys([name for _, name in versions] + [first or second for first, second in names]))


def lists_lack_packages(text):
    """Return whether a wanted package, or one of its dependencies, is missing from apt's lists."""
    return bool(packages_not_offered(text)) or "but it is not installable" in text


def refuse_not_offered(apt, options, text, wanted):
    """Refuse a request if no repository has a package in the wanted version.

    The message lists the existing versions.
    """
    parts = []
    for name in packages_not_offered(text):
        has = apt.versions(name)
        offered = (
            f"the repositories of this node have {', '.join(has)}"
            if has
            else "no repository of this node has it"
        )
        parts.append(f"{name} {wanted.get(name) or '(any version)'} is not available: {offered}")
    if parts:
        remedy = " ".join(remedies_of(options, packages_not_offered(text)))
        raise RefusedError(f"{apt.node}: {'; '.join(parts)}. {remedy}")


def remedies_of(options, names):
    """Return the remedies for packages that are not offered, without duplicates."""
    general = options["remedy"] or "Correct the version, or renew the mirror."
    remedies = []
    for name in names:
        own = [words for pattern, words in options["remedies"].items() if fnmatch.fnmatchcase(name, pattern)]
        remedies.append(own[0] if own else general)
    return list(dict.fromkeys(remedies))


def refuse_failed_simulation(apt, simulation, wanted):
    """Refuse a request that apt refuses."""
    if simulation["status"] == "ok":
        return
    text = printed_text(simulation)
    if "--allow-downgrades" in text or "DOWNGRADED" in text:
        raise RefusedError(
            f"{apt.node}: this would replace packages with older versions. Correct the version, or allow "
            f"the downgrade. Output: {last_lines(text, 3)}"
        )
    raise RefusedError(apt.failure_message("apt cannot install " + ", ".join(sorted(wanted)), simulation))


def simulated_changes(text):
    """Return the versions of packages that apt would install, by name, and the packages it would remove."""
    changes = dict(re.findall(r"^Inst (\S+) (?:\[[^\]]*\] )?\((\S+)", text, re.M))
    return changes, re.findall(r"^Remv (\S+)", text, re.M)


def stray_kernels(options, changes, wanted):
    """Return the kernels among packages to install that were neither requested nor allowed."""
    if options["allow_kernel"]:
        return []
    return sorted(name for name in changes if KERNEL.match(name) and name not in wanted)


def stray_removals(options, gone, removed):
    """Return the packages that apt would remove without a request or permission."""
    allowed = options["allow_remove"]
    return sorted(name for name in gone if name not in removed and not matches_any(name, allowed))


def refuse_kernels(apt, options, changes, wanted):
    """Refuse a kernel that would be installed as a dependency of the wanted packages."""
    fresh = stray_kernels(options, changes, wanted)
    if fresh:
        raise RefusedError(
            f"{apt.node}: refused before anything was installed: apt would install a kernel "
            f"({', '.join(fresh)}) "
            f"along with {', '.join(sorted(wanted))}. Pin a version that fits the running kernel "
            f"{os.uname().release}, or renew the node's image with another kernel."
        )


def refuse_removals(apt, options, gone, wanted, removed):
    """Refuse the removal of packages that was neither requested nor allowed."""
    stray = stray_removals(options, gone, removed)
    if stray:
        raise RefusedError(
            f"{apt.node}: refused before anything was installed: apt would remove "
            f"{', '.join(stray)}. "
            f"Remove them by hand if they are not needed, or correct the versions of "
            f"{', '.join(sorted(wanted))}."
        )


def matches_any(name, patterns):
    """Return whether any of the patterns fits a name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def refuse_unrequested_changes(apt, options, simulation, wanted, removed):
    """Refuse a request that fails, or that needs a kernel or removals that are neither requested nor allowed.

    Return the changes that apt would make, as versions by name (None if removed).
    """
    text = printed_text(simulation)
    # Check this first, because its message is the most precise. apt also fails if a package is not
    # offered.
    refuse_not_offered(apt, options, text, wanted)
    refuse_failed_simulation(apt, simulation, wanted)
    changes, gone = simulated_changes(text)
    refuse_kernels(apt, options, changes, wanted)
    refuse_removals(apt, options, gone, wanted, removed)
    changes.update(dict.fromkeys(gone))
    return changes


def settled_packages(options):
    """Return the installed packages, and whether dpkg's work was interrupted.

    While another process installs packages, dpkg's files are in the same state as after a power cut. The
    function therefore waits for that process.
    """
    deadline = time.monotonic() + options["lock_timeout_s"]
    while True:
        working = lock_holder()
        installed, broken = packages()
        damaged = bool(broken) or interrupted()
        if not (damaged and working) or time.monotonic() > deadline:
            return installed, damaged
        time.sleep(1)


def configure_all(options):
    """Finish dpkg's interrupted work, and return the result. Wait for the lock, because dpkg does not."""
    argv = ["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"]
    return ask_until_unlocked(
        lambda: ask(argv, options["timeout_s"], bounded=False, environment=ENVIRONMENT),
        "locked by another process",
        options["lock_timeout_s"],
    )


def refuse_repair(apt, options):
    """Refuse a repair that would make unrequested changes. Return apt's simulation of the repair."""
    simulation = apt("-s", *REPAIR)
    changes, gone = simulated_changes(printed_text(simulation))
    bad = [f"install the kernel {name}" for name in stray_kernels(options, changes, options["present"])]
    bad += [f"remove {name}" for name in stray_removals(options, gone, options["absent"])]
    if bad:
        raise RefusedError(
            f"{apt.node}: refused before anything was installed: an installation was interrupted on this "
            f"node, and its repair by apt would {', '.join(bad)}. Repair the packages by hand (apt-get "
            f"{' '.join(REPAIR[:2])}), then start the same command again."
        )
    return simulation


def repair_packages(apt, options):
    """Finish changes that an earlier run, or an operator, left half done."""
    # dpkg configures only packages that are unpacked already. apt's repair below may also install or remove
    # packages.
    configured = configure_all(options)
    if configured["status"] != "ok":
        raise RefusedError(
            apt.failure_message("dpkg had been interrupted, and cannot finish its work", configured)
        )
    fixed = refuse_repair(apt, options)
    if fixed["status"] == "ok":
        fixed = apt(*REPAIR)
    if fixed["status"] != "ok":
        raise RefusedError(apt.failure_message("apt cannot repair packages that are half installed", fixed))


def version_changes(before, after):
    """Return the versions before and after of each package whose version changed, by name."""
    changes = {}
    for name in sorted(set(before) | set(after)):
        old, new = before.get(name, {}).get("version"), after.get(name, {}).get("version")
        if old != new:
            changes[name] = [old, new]
    return changes


def shown_changes(changes):
    """Return the difference as Ansible shows it."""
    return {
        "before": "".join(f"{name} {old}\n" for name, (old, _) in sorted(changes.items()) if old),
        "after": "".join(f"{name} {new}\n" for name, (_, new) in sorted(changes.items()) if new),
    }


def predict_changes(apt, options, before, wanted, removed):
    """Return the changes that a real run would make, and whether apt itself predicts them."""
    simulation = apt("-s", *apt_arguments(options, apt.exact(wanted), removed))
    try:
        changes = refuse_unrequested_changes(apt, options, simulation, wanted, removed)
    except RefusedError:
        # A real run fetches the lists first, and may find these packages. Other refusals apply to it, too.
        may_find = options["update"] != "never" and lists_lack_packages(printed_text(simulation))
        if simulation["status"] == "ok" or not may_find:
            raise
        changes = {
            **{name: version or "newest" for name, version in wanted.items()},
            **dict.fromkeys(removed),
        }
        return {name: [before.get(name, {}).get("version"), new] for name, new in changes.items()}, False
    return {name: [before.get(name, {}).get("version"), new] for name, new in changes.items()}, True


def answer_debconf(apt, answers):
    """Store the answers to the packages' configuration questions before anything is installed."""
    if not answers:
        return
    answered = ask(
        ["debconf-set-selections"],
        apt.options["timeout_s"],
        environment=ENVIRONMENT,
        stdin_text="\n".join(answers) + "\n",
    )
    if answered["status"] != "ok":
        raise RefusedError(
            f"{apt.node}: debconf refused the answers: {last_lines(answered.get('stderr', ''))}"
        )


def refuse_unlike_wanted(apt, after, broken, wanted):
    """Raise an error if apt ended well but the packages differ from the wanted ones."""
    wrong = [
        name
        for name, version in wanted.items()
        if not is_version(after.get(name, {}).get("version", ""), version)
    ]
    # An empty version fits any installed version, and a missing package as well.
    wrong += [name for name in wanted if name not in after]
    if wrong or broken:
        raise RefusedError(
            f"{apt.node}: apt reported success, but these packages are not installed as wanted: "
            f"{', '.join(dict.fromkeys([*wrong, *broken]))}. Look at /var/log/apt/term.log."
        )


def refuse_new_kernels(apt, options, kernels_before):
    """Raise an error if a kernel was installed that was neither requested nor allowed."""
    fresh = [
        release
        for release in sorted(set(kernels()) - set(kernels_before))
        if not any("-image-" in name and name.endswith(f"-{release}") for name in options["present"])
    ]
    if fresh and not options["allow_kernel"]:
        raise RefusedError(
            f"{apt.node}: a kernel was installed that was neither requested nor allowed: {', '.join(fresh)}. "
            f"The node must not boot it: remove it (apt-get purge linux-image-{fresh[0]}), then start the "
            f"same command again."
        )


def install_and_remove(apt, options, before, wanted, removed):
    """Install and remove packages. Return the packages afterwards."""
    if options["update"] != "never":
        apt.update()
    answer_debconf(apt, options["debconf"])
    named = apt.exact(wanted)
    refuse_unrequested_changes(
        apt, options, apt("-s", *apt_arguments(options, named, removed)), wanted, removed
    )
    process = apt(*apt_arguments(options, named, removed))
    if process["status"] != "ok":
        names = ", ".join(sorted(wanted) or sorted(removed))
        raise RefusedError(apt.failure_message(f"apt could not install {names}", process))
    after, broken = packages()
    refuse_unlike_wanted(apt, after, broken, wanted)
    return after


def differing_packages(present, installed):
    """Return the wanted version (``""`` for any) of each package that is absent or has another version."""
    versions = {name: str(version or "") for name, version in present.items()}
    return {
        name: version
        for name, version in versions.items()
        if name not in installed or not is_version(installed[name]["version"], version)
    }


def packages_to_hold(options, installed):
    """Return the packages that must be held but are not."""
    if not options["hold"]:
        return []
    return [name for name in options["present"] if not installed.get(name, {}).get("held")]


def hold_packages(apt, names):
    """Hold packages, so that an upgrade of the system leaves them as they are."""
    if not names:
        return
    marked = ask(["apt-mark", "hold", *names], apt.options["timeout_s"], environment=ENVIRONMENT)
    if marked["status"] != "ok":
        raise RefusedError(
            f"{apt.node}: cannot hold {', '.join(names)}: {last_lines(marked.get('stderr', ''))}"
        )


def predict_work(apt, options, before, wanted, removed):
    """Return the changes that a real run would make, and the additions of check mode to the result."""
    if not wanted and not removed:
        return {}, {}
    changes, simulated = predict_changes(apt, options, before, wanted, removed)
    extra = {"simulated": simulated}
    if not simulated:
        extra["warning"] = (
            f"{apt.node}: the package lists that it has do not offer {', '.join(sorted(wanted))} as "
            f"wanted. A real run fetches the lists first."
        )
    return changes, extra


def change_packages(apt, options, before, wanted, removed):
    """Install and remove packages, or only fetch the lists. Return the packages afterwards."""
    if wanted or removed:
        return install_and_remove(apt, options, before, wanted, removed)
    if options["update"] == "always":
        apt.update()
    return packages()[0]


def simulate(apt, options, wanted, removed):
    """Fetch the lists, and refuse the request if a real run would. Return the changes of such a run."""
    if not wanted and not removed:
        return {}
    if options["update"] != "never":
        apt.update()
    return refuse_unrequested_changes(
        apt, options, apt("-s", *apt_arguments(options, apt.exact(wanted), removed)), wanted, removed
    )


def check_only(options, check):
    """Check whether a real run could do its work. Return the module's result. Only the lists are renewed."""
    apt = Apt(options)
    before, damaged = settled_packages(options)
    wanted = differing_packages(options["present"], before)
    removed = [name for name in options["absent"] if name in before]
    extra = {}
    if damaged:
        refuse_repair(apt, options)
    if check:
        _, extra = predict_work(apt, options, before, wanted, removed)
    else:
        simulate(apt, options, wanted, removed)
    return {"changed": False, "packages": {}, "held": [], "repaired": False, **extra}


def fulfil_request(options, check):
    """Fulfil the request, or only predict the changes in check mode. Return the module's result."""
    apt = Apt(options)
    before, damaged = settled_packages(options)
    wanted = differing_packages(options["present"], before)
    removed = [name for name in options["absent"] if name in before]
    extra = {}
    if check:
        if damaged:
            refuse_repair(apt, options)
        changes, extra = predict_work(apt, options, before, wanted, removed)
        held = packages_to_hold(options, before)
    else:
        # The repair may install a kernel, too.
        kernels_before = kernels()
        if damaged:
            repair_packages(apt, options)
            refuse_new_kernels(apt, options, kernels_before)
        after = change_packages(apt, options, before, wanted, removed)
        refuse_new_kernels(apt, options, kernels_before)
        changes = version_changes(before, after)
        held = packages_to_hold(options, after)
        hold_packages(apt, held)
    return {
        "changed": bool(changes or held or damaged),
        "packages": changes,
        "held": held,
        "repaired": damaged,
        "reboot_required": os.path.exists("/run/reboot-required"),
        "diff": shown_changes(changes),
        **extra,
    }


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "present": {"type": "dict", "default": {}},
            "absent": {"type": "list", "elements": "str", "default": []},
            "hold": {"type": "bool", "default": False},
            "update": {"type": "str", "choices": ["needed", "always", "never"], "default": "needed"},
            "debconf": {"type": "list", "elements": "str", "default": []},
            "allow_downgrade": {"type": "bool", "default": False},
            "allow_kernel": {"type": "bool", "default": False},
            "simulate": {"type": "bool", "default": False},
            "allow_remove": {"type": "list", "elements": "str", "default": []},
            "remedy": {"type": "str", "default": ""},
            "remedies": {"type": "dict", "default": {}},
            "lock_timeout_s": {"type": "int", "default": 120},
            "timeout_s": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    try:
        do = check_only if module.params["simulate"] else fulfil_request
        result = do(module.params, module.check_mode)
    except RefusedError as refusal:
        module.fail_json(msg=str(refusal))
    if result.get("warning"):
        module.warn(result.pop("warning"))
    module.exit_json(**result)


if __name__ == "__main__":
    main()

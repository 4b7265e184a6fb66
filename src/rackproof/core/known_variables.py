"""Check the names and values of variables in the inventory and on the command line.

The action ``rackproof_check_variables`` calls this module at the start of every job, and ``rackproof
lint-inventory`` calls it without a playbook. Job validate calls only :func:`check_bounds`. Each
function ``check_…`` raises an error that is for the operator. :func:`known_variables` reads the known names
from the roles of the checkout.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rackproof.core.errors import RackproofError
from rackproof.core.secret_names import HIDDEN, must_not_be_shown, refuse_secrets, secret_variables
from rackproof.core.text import sanitize

_DEFINING_KEYS = ("register", "loop_var", "index_var")
"""Keys of a task whose value is the name of a variable that the task sets."""
_MAPPING_KEYS = ("vars", "ansible.builtin.set_fact", "set_fact")
"""Keys of a task whose value is a mapping with the names of variables as its keys."""
# Matches a name with an underscore, such as bench_sku_gpus, in a template.
_WORD = re.compile(r"\b[a-z][a-z0-9]*_[a-z0-9_]+\b")
ALL_HOSTS = 200
"""Largest number of hosts that are all checked.

Of more hosts, one host of each combination of groups is checked, and each host with a file in host_vars.
"""


BOUNDS: Mapping[str, tuple[float, float]] = {
    "bench_sku_gpus": (0, 1024),
    "bench_follow_every_s": (1, 3600),
    "bench_tool_timeout_s": (1, 600),
    "provision_tool_timeout_s": (1, 600),
    "bench_repeats": (0, 1000),
    "bench_hang_s": (0, 10**7),
    "bench_queue_s": (1, 10**7),
    "bench_size_factor": (1e-6, 1e6),
    "bench_download_min_bytes_per_s": (0, 10**12),
    "bench_download_timeout_s": (1, 10**7),
    "bench_meet_port": (1, 65_535),
    "bench_imagenet_resize": (0, 8192),
    "bench_imagenet_quality": (1, 100),
    "validate_tool_timeout_s": (1, 600),
    "validate_node_timeout_s": (1, 86_400),
    "validate_settle_timeout_s": (0, 86_400),
    "validate_max_drain_fraction": (0, 1),
    # With a budget of 0, nothing would be found. With a budget of everything, every node would fail.
    "validate_false_alarms_per_1000_node_nights": (1e-6, 100),
    "validate_resume_hours": (0, 720),
    "validate_probe_gpu_minutes": (0, 10**9),
    "validate_probe_share": (1e-6, 1),
    "validate_probe_node_s": (1, 86_400),
    "validate_probe_pair_s": (1, 86_400),
    "reimage_max_concurrent": (1, 10_000),
    "reimage_per_rack": (1, 10_000),
    "reimage_per_partition": (1, 10_000),
    "reimage_canary": (0, 10_000),
    "reimage_max_failures": (0, 100_000),
    "reimage_bmc_timeout_s": (1, 3600),
    "reimage_discover_wait_s": (0, 10**7),
    "netboot_image_timeout_s": (1, 10**7),
    "provision_batch": (1, 100_000),
    "provision_canary": (0, 100_000),
    "provision_max_failures": (0, 100_000),
    "provision_max_drain_fraction": (1e-6, 1),
    "provision_drain_timeout_s": (0, 10**7),
    "provision_reboot_timeout_s": (1, 10**7),
    "provision_resume_timeout_s": (1, 10**7),
    "provision_apt_timeout_s": (1, 10**7),
    "provision_apt_lock_timeout_s": (0, 10**7),
    "provision_download_timeout_s": (1, 10**7),
    "provision_answer_timeout_s": (1, 10**7),
    "preflight_gpus": (0, 1024),
    "preflight_memory_gib": (0, 10**9),
    "preflight_cores": (0, 10**6),
    "preflight_clock_offset_s": (1e-3, 10**6),
}
"""Smallest and largest value of each numeric variable that :func:`check_bounds` checks. The end of a name is
its unit (``_s`` is seconds, ``_gib`` GiB)."""


CHOICES = ("suite", "bench_suite", "benchmark", "bench_benchmarks")
"""Variables that select the benchmarks of bench.yml. Only one of them may be given with -e."""
_EMPTY_IS_ALL = ("validate_nodes", "validate_probes", "reimage_probes")
"""Variables that select everything if they are empty. Their default is an empty list or a template."""
_JOBS = ("bench_", "validate_", "reimage_", "provision_")
"""Prefixes of the variables of the four jobs."""


class UnknownVariableError(RackproofError):
    """A variable that no role has. The message gives its name and a similar known name."""


class VariableValueError(RackproofError):
    """A value given for a variable that cannot be used. The message names the variable and the mistake."""


def check_names(names: Iterable[str], known: Collection[str], prefixes: tuple[str, ...]) -> None:
    """Check that names with a role's prefix are variables of a role.

    The function does no I/O.

    Args:
        names: The names of variables of hosts.
        known: The names that roles accept or define.
        prefixes: The prefixes of the roles, with their underscore, such as ``bench_``.

    Raises:
        UnknownVariableError: A name is not a variable of a role.
    """
    unknown = sorted({name for name in names if name.startswith(prefixes)} - set(known))
    if unknown:
        raise UnknownVariableError(
            f"unknown variables in the inventory or given with -e: {', '.join(_with_near(unknown, known))}. "
            "Correct or remove them; roles/ROLE/README.md lists the variables"
        )


def check_misspelt_prefixes(names: Iterable[str], known: Collection[str], prefixes: tuple[str, ...]) -> None:
    """Check that no variable of a host begins with a misspelt prefix of Rackproof.

    Such a name begins with no role's prefix, so it could be a variable of the site. The name is refused in
    two cases. In the first, the prefix is wrong by one letter (or by two if it is long), and the rest nearly
    matches a variable of the role. In the second, only capitals and underscores differ from a known variable.
    The function does no I/O.

    Args:
        names: The names of variables of hosts.
        known: The names that roles accept or define.
        prefixes: The prefixes of the roles, with their underscore.

    Raises:
        UnknownVariableError: The prefix of a name is misspelt.
    """
    ours = {name for name in known if name.startswith(prefixes)}
    plain = {_letters(name): name for name in ours}
    misspelt = []
    for name in sorted(set(names) - set(known)):
        if name.startswith(("ansible_", *prefixes)):
            continue
        near = plain.get(_letters(name)) or _near_with_prefix(name, ours, prefixes)
        if near:
            misspelt.append(f"{name} (did you mean {near}?)")
    if misspelt:
        raise UnknownVariableError(
            f"in the inventory, but nothing reads it: {', '.join(misspelt)}. Correct it; a variable of your "
            "own needs another name"
        )


def _letters(name: str) -> str:
    """Return a name in lower case and without underscores."""
    return name.lower().replace("_", "")


def _near_with_prefix(name: str, ours: Collection[str], prefixes: tuple[str, ...]) -> str:
    """Return the variable that a name with a misspelt prefix most likely means, or ""."""
    parts = name.lower().split("_")
    for prefix in prefixes:
        words = prefix.count("_")
        head, ending = "_".join(parts[:words]), "_".join(parts[words:])
        allowed = 2 if len(prefix) > _LONG_PREFIX else 1
        if not ending or _count_edits(head, prefix[:-1]) > allowed:
            continue
        endings = [variable.removeprefix(prefix) for variable in ours if variable.startswith(prefix)]
        if near := nearest(ending, endings, 0.85):
            return prefix + near
    return ""


_LONG_PREFIX = 8
"""Largest length of a prefix, with its underscore, that may be wrong by one letter only.

In such a short prefix, two other letters make another word, such as netbox and netboot. A longer prefix may
be wrong by two letters.
"""


def _count_edits(name: str, target: str) -> int:
    """Return the number of letters to insert, omit, change or swap, by which a name becomes the target.

    The result is at most 3.
    """
    if abs(len(name) - len(target)) > 2:
        return 3
    rows = [list(range(len(target) + 1))]
    for i, letter in enumerate(name, 1):
        row = [i]
        for j, against in enumerate(target, 1):
            cost = min(row[j - 1] + 1, rows[-1][j] + 1, rows[-1][j - 1] + (letter != against))
            if i > 1 and j > 1 and letter == target[j - 2] and name[i - 2] == against:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return min(rows[-1][-1], 3)


def check_settable(names: Iterable[str], results: Collection[str]) -> None:
    """Check that no name given with -e is set by a task.

    A value given with -e overrides a task's result, and could therefore replace a verdict. The function does
    no I/O.

    Args:
        names: The names given with -e.
        results: The names that tasks register or set.

    Raises:
        UnknownVariableError: Some names are results of tasks.
    """
    shadowing = sorted(set(names) & set(results))
    if shadowing:
        raise UnknownVariableError(
            f"given with -e, but set by the playbook itself: {', '.join(shadowing)}. Leave them out; "
            "roles/ROLE/README.md lists the variables to set"
        )


def check_given(values: Mapping[str, Any], root: Path, role: str) -> None:
    """Check names given with -e for spelling mistakes and for ambiguous selections.

    Args:
        values: The names given with -e, with their values.
        root: The path of the checkout.
        role: The role that calls this check. Only `bench` reads the variables in :data:`CHOICES`.

    Raises:
        UnknownVariableError: A name resembles a variable of Rackproof, and would be ignored.
        VariableValueError: More than one of the variables in :data:`CHOICES` is given.
    """
    short = set(CHOICES) if role == "bench" else set()
    settable = {name for name in _settable_variables(root) if name.startswith(role_prefixes(root))}
    known_names = short | known_variables(root)
    # Short names often resemble a site's own variables. Long names rarely do.
    unknown = {
        name: nearest(name, short, 0.7) or nearest(name, settable, 0.85) for name in {*values} - known_names
    }
    misspelt = [f"{name} (did you mean {near}?)" for name, near in sorted(unknown.items()) if near]
    if misspelt:
        raise UnknownVariableError(
            f"given with -e, but nothing reads it: {', '.join(misspelt)}. Correct it; "
            "a variable of your own needs another name"
        )
    chosen = sorted(name for name in short if values.get(name))
    if len(chosen) > 1:
        raise VariableValueError(
            f"given with -e: {' and '.join(chosen)}, but only one of them can choose runs: leave one out"
        )


def check_no_stray_words(values: Mapping[str, Any]) -> None:
    """Check that each word of -e is NAME=VALUE, because Ansible ignores any other word.

    Args:
        values: The names given with -e, with their values, as Ansible reads them.

    Raises:
        VariableValueError: A word is ignored.
    """
    # Ansible gives this name to arguments that it could not split.
    words = str(values.get("_raw_params") or "").strip()
    if words:
        # The words may be the rest of a secret with blanks.
        is_hidden = any(must_not_be_shown(name, value) for name, value in values.items())
        raise VariableValueError(
            f"given with -e, but not as NAME=VALUE: {HIDDEN if is_hidden else sanitize(words, 200)}; "
            "write no blank around =, and quote a value with blanks"
        )


def check_not_empty(values: Mapping[str, Any], root: Path) -> None:
    """Check that no variable given with -e is empty if it needs a value.

    An empty selection would become the default, for example a whole suite or all probes. The usual cause is
    an unset variable in the operator's command.

    Args:
        values: The names given with -e, with their values.
        root: The path of the checkout.

    Raises:
        VariableValueError: A variable is empty.
    """
    empty = sorted(name for name in _never_empty(root) & values.keys() if _is_empty(values[name]))
    if empty:
        raise VariableValueError(
            f"given with -e, but empty: {', '.join(empty)}; give a value, or leave it out to have the default"
        )


@functools.cache
def _never_empty(root: Path) -> frozenset[str]:
    """Return the variables that must not be empty: selections, and variables of jobs with a plain default.

    A plain default is neither empty nor a template.
    """
    defaults: dict[str, Any] = {}
    for path in sorted(root.glob("roles/*/defaults/*.yml")):
        defaults |= read_yaml(path) or {}
    valued = {
        name
        for name, default in defaults.items()
        if name.startswith(_JOBS) and not _is_template(default) and not _is_empty(default)
    }
    return frozenset({*CHOICES, *_EMPTY_IS_ALL, *valued})


def _is_empty(value: Any) -> bool:
    """Return whether a value is empty. A list of empty entries is empty too."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, (list, tuple)):
        return all(_is_empty(item) for item in value)
    return value is None or (isinstance(value, str) and not value.strip())


def nearest(name: str, known: Collection[str], cutoff: float) -> str:
    """Return the known name that is most similar to a name, or "" if there is none.

    ``cutoff`` is the least similarity, from 0 to 1. The function does no I/O.
    """
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), "")


def check_bounds(values: Mapping[str, Any]) -> None:
    """Check that numeric variables are within their bounds.

    For example, a negative number of repeats is refused. The function does no I/O.

    Args:
        values: The variables of a host as written. Templates are not checked.

    Raises:
        VariableValueError: A value is not a number, or not within its bounds.
    """
    if text := next(numbers_beyond_bounds(values), ""):
        raise VariableValueError(text)


def numbers_beyond_bounds(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text about each variable that is not a number within its bounds.

    ``values`` are the variables of a host as written. Templates are not checked. The function does no I/O.
    """
    for name, (least, most) in BOUNDS.items():
        value = values.get(name, least)
        if not _is_template(value) and not least <= _as_number(value) <= most:
            yield f"{name} {value_text(name, value)}: it has to be a number from {least:g} to {most:g}"


def value_text(name: str, value: Any, *, no_log: bool = False) -> str:
    """Return a wrong value for a message, such as ``is 'eight'``, or ``has a wrong value`` if it is secret.

    The function does no I/O.

    Args:
        name: The name of the variable.
        value: The value as written.
        no_log: Whether the argument spec of the variable has ``no_log``.
    """
    is_hidden = no_log or must_not_be_shown(name, value)
    return "has a wrong value" if is_hidden else f"is {str(value)[:60]!r}"


def check_environment(values: Mapping[str, Any]) -> None:
    """Check that variables contain no secret that plans, records or pages would show.

    The function does no I/O.

    Args:
        values: The variables of a host.

    Raises:
        VariableValueError: A variable contains a secret.
    """
    environment = values.get("bench_environment")
    if isinstance(environment, Mapping):
        try:
            refuse_secrets(environment)
        except ValueError as error:
            raise VariableValueError(f"bench_environment: {error}") from error
    logins = list(_with_login(values))
    if logins:
        raise VariableValueError(
            f"{', '.join(logins)}: a login or key in it would be written into arguments, plans and records: "
            "name a copy that needs none"
        )


def _with_login(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the variables of bench whose value contains a login or a key."""
    for name, value in values.items():
        if name.startswith("bench_") and isinstance(value, str) and secret_variables({"": value}):
            yield name


def _is_template(value: Any) -> bool:
    """Return whether a value is a template that Ansible did not evaluate yet."""
    return isinstance(value, str) and "{{" in value


def _as_number(value: Any) -> float:
    """Return a value as a number, or NaN, which is outside of all bounds, if it is not a number."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _with_near(names: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Yield unknown names, each with the known name that is most similar to it."""
    for name in names:
        near = nearest(name, known, 0.7)
        yield f"{name} (did you mean {near}?)" if near else name


def role_prefixes(root: Path) -> tuple[str, ...]:
    """Return the prefixes of the variables of a checkout's roles."""
    roles = sorted(path.name for path in (root / "roles").iterdir() if path.is_dir())
    return tuple(f"{role}_" for role in roles)


def host_of_file(path: Path) -> str:
    """Return the host of a file or folder in host_vars, without I/O."""
    # The name of a host may have points. Ansible ignores these endings only.
    return path.stem if path.suffix in (".yml", ".yaml", ".json") else path.name


def hosts_to_check(
    hosts: Sequence[str], groups: Mapping[str, Iterable[str]], own_files: Collection[str]
) -> list[str]:
    """Return enough hosts to find all variable names of group_vars and host_vars.

    The function does no I/O.

    Args:
        hosts: The hosts of the play. Up to :data:`ALL_HOSTS` of them are all returned.
        groups: The hosts of each group, by the name of the group.
        own_files: The hosts with a file in host_vars.
    """
    if len(hosts) <= ALL_HOSTS:
        return list(hosts)
    members: dict[str, list[str]] = {}
    for group, names in groups.items():
        for name in names:
            members.setdefault(name, []).append(group)
    chosen = {tuple(sorted(members.get(host, ()))): host for host in hosts}
    return sorted({*chosen.values(), *(host for host in hosts if host in own_files)})


def known_variables(root: Path) -> set[str]:
    """Return the variables that a checkout's roles accept, set, register, or read in templates.

    Variables that its playbooks set or register are included.
    """
    names = _settable_variables(root) | _results(root)
    for path in sorted(root.glob("roles/*/vars/*.yml")):
        names |= set(read_yaml(path) or {})
    # A template may read variables of other hosts by name. For example, slurm.conf lists the hardware of each
    # SKU.
    for path in root.glob("roles/*/templates/**/*"):
        if path.is_file():
            names |= set(_WORD.findall(path.read_text()))
    return names


def task_results(root: Path) -> set[str]:
    """Return the variables of roles that only tasks and playbooks set or register, not the operator."""
    prefixes = ("rackproof_", *role_prefixes(root))
    return {name for name in _results(root) - _settable_variables(root) if name.startswith(prefixes)}


def _settable_variables(root: Path) -> set[str]:
    """Return the variables with a default or an argument specification in a role."""
    names: set[str] = set()
    for path in sorted(root.glob("roles/*/defaults/*.yml")):
        names |= set(read_yaml(path) or {})
    for path in root.glob("roles/*/meta/argument_specs.yml"):
        for spec in read_yaml(path)["argument_specs"].values():
            names |= set(spec.get("options") or {})
    return names


@functools.cache
def _results(root: Path) -> frozenset[str]:
    """Return the variables that tasks, handlers and playbooks set or register."""
    names: set[str] = set()
    for pattern in ("roles/*/tasks/**/*.yml", "roles/*/handlers/*.yml", "playbooks/*.yml"):
        for path in root.glob(pattern):
            names |= set(_defined_in(read_yaml(path)))
    return frozenset(names)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file of the checkout.

    Raises:
        OSError: The file cannot be read.
        yaml.YAMLError: The file is not YAML.
    """
    # Several hundred files are read at the start of a playbook, and the loader in C is faster. Both are safe.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506  # nosec B506


def _defined_in(value: Any) -> Iterator[str]:
    """Yield the names that tasks define with register, facts, loop variables, vars and include_vars."""
    if isinstance(value, Mapping):
        yield from (str(value[key]) for key in _DEFINING_KEYS if key in value)
        for key in _MAPPING_KEYS:
            if isinstance(value.get(key), Mapping):
                yield from value[key]
        if isinstance(included := value.get("ansible.builtin.include_vars"), Mapping):
            yield str(included.get("name", ""))
        for entry in value.values():
            yield from _defined_in(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _defined_in(entry)

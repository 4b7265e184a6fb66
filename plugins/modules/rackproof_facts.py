#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402  (the text for ansible-doc comes first, as in every module)
"""Gather the raw state of a node in one call, for all jobs (standard library only, Python 3.8+, Linux).

Begin with :func:`main`, which calls ``gather`` of each requested subset. The subsets are in
``plugins/module_utils/rackproof_facts_*.py``.
"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rackproof_facts
short_description: Gather the raw state of a node
description:
  - Gathers a subset of a node's state in one call. The controller parses the result, and this module only
    splits it. It changes nothing and runs nothing on a GPU, so it is safe beside jobs.
  - Time and output of every tool are limited. If a tool is absent, fails or hangs, this is a fact and no
    error.
options:
  subset:
    description:
      - V(record) has a node's facts for the record of a run, which C(rackproof.nodes.facts) parses.
      - V(provision) has the facts that the provisioning roles compare with their wanted state, so that a role
        whose work is done makes no further call. Every call costs the controller 0.3 core-seconds per node.
        The result is the fact C(rackproof_node).
      - V(health) has the facts for a snapshot of C(rackproof.nodes.snapshot). After a tool that hangs in the
        driver, no other tool queries the driver.
    type: str
    choices: [record, provision, health]
    required: true
  tool_timeout_s:
    description:
      - Seconds that each tool may take. The default is 30 for V(health) and 60 otherwise.
      - A slow nvidia-smi is run again, with three times the time limit. If it cannot be killed, it is stuck
        in the driver and is not run again.
    type: float
  paths:
    description:
      - Paths whose file systems are examined. Their size and free space are returned, and with V(health)
        also their inodes and whether they are read-only. A path need not exist yet.
      - The default is no path for V(record), and C(/) and C(/var) for the others.
    type: list
    elements: str
  pythons:
    description: Only V(record). Interpreters whose packages are listed, name to path. By default none.
    type: dict
  packages:
    description: Only V(record). Names of the packages to list, by name of the interpreter. By default none.
    type: dict
  imports:
    description:
      - Only V(record). Names of modules to look for, by name of the interpreter. An interpreter that is
        not in O(pythons) is ignored. By default none.
    type: dict
  programs:
    description: Only V(record). Programs to look for on the PATH of jobs. By default none.
    type: list
    elements: str
  commands:
    description:
      - Only V(provision). More commands to run, by name, each a list of program and arguments. They must not
        change the node.
      - By default none.
    type: dict
  files:
    description:
      - Only V(provision). Paths, or patterns as in a shell, of more files whose checksums are returned. The
        configuration files of apt, systemd, sysctl, limits, Slurm, Docker, enroot and Rackproof are always
        among them.
      - A path without a pattern that is not a file gives null.
    type: list
    elements: str
  resolve:
    description: Only V(provision). Names that the node should resolve. By default none.
    type: list
    elements: str
  package_sources:
    description:
      - Only V(provision). File with package sources. The node requests an index file from each of their
        servers. If the file does not exist, or by default, it requests none.
    type: str
  controller_epoch:
    description:
      - Only V(provision). The controller's clock at the query, in seconds since 1970. It is returned with the
        node's clock.
    type: float
  since:
    description:
      - Only V(health). Time at which the kernel log was last read, in seconds since 1970. The result has the
        kernel's messages from that time on, including those of earlier boots. With 0, the default, it has
        those since boot.
    type: float
  units:
    description:
      - Only V(health). Units of systemd whose state is returned. A unit that is not installed is no finding.
      - By default slurmd, munge, docker, nvidia-persistenced and nvidia-fabricmanager.
    type: list
    elements: str
  settle:
    description:
      - Only V(health). What to wait for before the health is gathered, because ports and the NVLink fabric
        are not ready at once after a boot. With C(fabric), it is the fabric of all GPUs. C(ports) is the
        number of active ports, of the cards in C(port_devices) and with the link layer C(port_layer), and
        C(other_ports) that of the other active ports. Every port that waits for a subnet manager is waited
        for.
      - C(seconds) is the longest wait, from the node's boot if C(after) is V(boot), otherwise from now on.
      - By default, it waits for nothing.
    type: dict
  sysfs:
    description: Only V(health). Folder of sysfs. By default C(/sys).
    type: path
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: There is nothing to show as a difference.
    support: none
author: Rackproof developers
"""

EXAMPLES = r"""
- name: Gather the facts for a run's record
  rackproof_facts:
    subset: record
    pythons: {torch: /opt/venv/bin/python}
    packages: {torch: [torch, numpy]}
    paths: [/var/lib/rackproof]
  register: facts

- name: Gather the state that provisioning starts from
  rackproof_facts:
    subset: provision
    resolve: [apt-mirror]
    controller_epoch: "{{ now().timestamp() }}"

- name: Show which driver is installed
  ansible.builtin.debug:
    msg: "{{ rackproof_node.packages['nvidia-driver-cuda'].version | default('none') }}"

- name: Gather the health of the node
  rackproof_facts:
    subset: health
    since: 1795000000
  register: health
"""

RETURN = r"""
facts:
  description: The raw facts.
  returned: O(subset=record)
  type: dict
  contains:
    hostname: {description: Host name., type: str, returned: always}
    python: {description: Interpreter that modules run under., type: str, returned: always}
    addresses: {description: IP addresses without loopback and link-local., type: list, returned: always}
    kernel: {description: Kernel release., type: str, returned: always}
    machine: {description: Machine architecture., type: str, returned: always}
    boot_id: {description: Id of this boot., type: str, returned: always}
    cpu_count: {description: Logical CPUs that processes may use., type: int, returned: always}
    files: {description: Contents of small files., type: dict, returned: always}
    dmi: {description: Readable entries of /sys/class/dmi/id., type: dict, returned: always}
    tools:
      description:
        - By tool, C(status) (V(ok), V(absent), V(failed), V(no_driver), V(hung)), C(rc), C(stdout),
          C(stderr), C(seconds) and C(truncated).
      type: dict
      returned: always
    libraries: {description: File of each shared library by its name., type: dict, returned: always}
    loadable:
      description:
        - By name of a library that runtimes need, whether ldconfig lists it. Empty if ldconfig gave no list.
      type: dict
      returned: always
    interpreters: {description: Versions of the installed Pythons., type: list, returned: always}
    infiniband: {description: By device its firmware; type and port states., type: dict, returned: always}
    pythons:
      description: By interpreter a result like a tool's, with C(said) (version, packages, torch).
      type: dict
      returned: always
    programs: {description: By name whether the program is on PATH., type: dict, returned: always}
    paths: {description: By path; C(total_bytes) and C(free_bytes) or C(error)., type: dict, returned: always}
    memlock_bytes: {description: Limit of locked memory; -1 without limit., type: int, returned: always}
    shm_bytes: {description: Size of /dev/shm., type: int, returned: always}
ansible_facts:
  description: Holds the fact.
  returned: O(subset=provision)
  type: dict
  contains:
    rackproof_node:
      description: State of the node.
      returned: always
      type: dict
      contains:
        hostname: {description: Host name., type: str, returned: always}
        os:
          description: C(id), C(version_id), C(codename), C(name) of /etc/os-release.
          type: dict
          returned: always
        machine: {description: Machine architecture as in C(x86_64)., type: str, returned: always}
        architecture: {description: Architecture of packages as in C(amd64)., type: str, returned: always}
        container:
          description: Whether the node is a container, whose clock and kernel are those of its host.
          type: bool
          returned: always
        kernel: {description: Release of the running kernel., type: str, returned: always}
        kernel_command_line: {description: Arguments of the kernel., type: str, returned: always}
        kernels: {description: Releases of the installed kernels., type: list, returned: always}
        boot_id: {description: Id of this boot., type: str, returned: always}
        cores: {description: Logical CPUs that are online., type: int, returned: always}
        memory_bytes: {description: Memory., type: int, returned: always}
        pci:
          description:
            - Devices by NVIDIA and Mellanox on the PCI bus, each with C(slot), C(class), C(vendor) and
              C(device). No driver is needed.
          type: list
          returned: always
        packages:
          description: Installed packages by name; C(version) and C(held).
          type: dict
          returned: always
        dpkg_broken: {description: Packages that are not installed whole., type: list, returned: always}
        dpkg_interrupted:
          description: Whether dpkg has unfinished work, because it was interrupted or is at work now.
          type: bool
          returned: always
        dpkg_locked_by:
          description: Process that holds the lock of dpkg; empty if none does.
          type: str
          returned: always
        silent_servers:
          description: Servers of O(package_sources) that do not answer, each with the reason.
          type: dict
          returned: always
        unattended_upgrades:
          description: Whether packages are upgraded unattended.
          type: bool
          returned: always
        reboot_required: {description: True if a package requires a reboot., type: bool, returned: always}
        reboot_required_by: {description: Packages that require it., type: list, returned: always}
        modules:
          description: Versions of the loaded kernel modules by name; empty where the kernel has none.
          type: dict
          returned: always
        services:
          description:
            - Services, sockets and timers by full name; C(active), C(enabled), C(failed).
          type: dict
          returned: always
        unit_starts:
          description:
            - Services and mounts by full name, with the time at which the unit last became active, in seconds
              since 1970. Units that were never active are left out.
          type: dict
          returned: always
        imex_channel:
          description: Whether the loaded driver created an IMEX channel.
          type: bool
          returned: always
        mounts:
          description: Mounts by path; C(source), C(type), C(options).
          type: dict
          returned: always
        space:
          description: By path; C(total_bytes) and C(free_bytes) or C(error).
          type: dict
          returned: always
        groups: {description: Groups by name with the users named in them., type: dict, returned: always}
        commands:
          description:
            - By name; C(status) (V(ok), V(absent), V(failed), V(no_driver), V(hung)), C(rc), C(stdout),
              C(stderr), C(seconds), C(truncated).
            - Always present are C(nvidia_smi_list) (the GPUs), C(nvidia_smi_query) (index, UUID, driver and
              persistence of each), C(nvidia_license) (of the driver's module) and C(ofed_info).
          type: dict
          returned: always
        files: {description: By path the SHA-256 or null., type: dict, returned: always}
        modes: {description: 'By path, mode and owner as in C(0644 0:0).', type: dict, returned: always}
        changed_at:
          description:
            - By path, when the content of the file last changed, in seconds since 1970. A time in the future
              is left out.
          type: dict
          returned: always
        names: {description: By name the addresses that it has for this node., type: dict, returned: always}
        clock:
          description:
            - C(begin) and C(epoch), seconds since 1970 when the gathering began and ended; C(asked_at), the
              controller's clock at the query; C(timedatectl), the output of that tool.
          type: dict
          returned: always
        tuning:
          description:
            - C(sysctl), C(governors), C(hugepages), C(transparent_hugepages), C(limits).
            - C(sysctl) has a few names, and those of role node_tuning's file, with null for a name that the
              kernel does not know. C(sysctl_files) has the other files that set a name of that file.
          type: dict
          returned: always
gathered:
  description: Gathered data, in the three parts that C(rackproof.nodes.snapshot) describes.
  returned: O(subset=health)
  type: dict
  contains:
    facts: {description: As of O(subset=record)., type: dict, returned: always}
    node:
      description: Kernel modules, whether the node is a container, and whether this module ran as root.
      type: dict
      returned: always
    health: {description: 'Kernel log, NVLinks, units, ports, disks.', type: dict, returned: always}
"""

import os
from typing import Any

from ansible.module_utils import rackproof_facts_health, rackproof_facts_provision, rackproof_facts_record
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.rackproof_tools import sealed

SPEC = {
    "subset": {"type": "str", "required": True, "choices": ["record", "provision", "health"]},
    "tool_timeout_s": {"type": "float"},
    "paths": {"type": "list", "elements": "str"},
    "pythons": {"type": "dict"},
    "packages": {"type": "dict"},
    "imports": {"type": "dict"},
    "programs": {"type": "list", "elements": "str"},
    "commands": {"type": "dict"},
    "files": {"type": "list", "elements": "str"},
    "resolve": {"type": "list", "elements": "str"},
    "package_sources": {"type": "str"},
    "controller_epoch": {"type": "float"},
    "since": {"type": "float"},
    "units": {"type": "list", "elements": "str"},
    "settle": {"type": "dict"},
    "sysfs": {"type": "path"},
}
# The options of each subset and their defaults. The specification states none, because they depend on the
# subset.
DEFAULTS = {
    "record": {
        "tool_timeout_s": 60,
        "paths": [],
        "pythons": {},
        "packages": {},
        "imports": {},
        "programs": [],
    },
    "provision": {
        "tool_timeout_s": 60,
        "paths": ["/", "/var"],
        "commands": {},
        "files": [],
        "resolve": [],
        "package_sources": "",
        "controller_epoch": None,
    },
    "health": {
        "tool_timeout_s": 30,
        "paths": ["/", "/var"],
        "since": 0,
        "units": [
            "slurmd.service",
            "munge.service",
            "docker.service",
            "nvidia-persistenced.service",
            "nvidia-fabricmanager.service",
        ],
        "settle": {},
        "sysfs": "/sys",
    },
}


def subset_options(params):
    """Return the options of the subset with its defaults.

    Raises:
        ValueError: An option is of another subset, or its value is unusable.
    """
    subset = params["subset"]
    options: dict[str, Any] = dict(DEFAULTS[subset])
    given = {name: value for name, value in params.items() if name != "subset" and value is not None}
    for name in sorted(given.keys() - options.keys()):
        raise ValueError(f"{name}: no option of subset {subset}")
    options.update(given)
    if not 0 < options["tool_timeout_s"] <= 600:
        raise ValueError("tool_timeout_s: 0 to 600 seconds, not {}".format(options["tool_timeout_s"]))
    if subset == "record":
        check_packages(options["packages"], options["pythons"])
        return options
    for name, argv in options.get("commands", {}).items():
        if not isinstance(argv, list) or not argv:
            raise ValueError(f"commands: a list of program and arguments is needed for {name!r}")
    for name in ("files", "paths"):
        for path in options.get(name, []):
            if not os.path.isabs(path):
                raise ValueError(f"{name}: {path!r} is not an absolute path")
    return options


def check_packages(packages, pythons):
    """Check that packages are lists, by interpreter."""
    for name, wanted in packages.items():
        if not isinstance(wanted, list) or not all(isinstance(package, str) for package in wanted):
            raise ValueError(f"packages: a list of names is needed for {name!r}")
        if name not in pythons:
            raise ValueError(f"packages: {name!r} is not an interpreter named in pythons")


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    subset = module.params["subset"]
    try:
        options = subset_options(module.params)
    except ValueError as error:
        module.fail_json(msg=str(error))
    if subset == "record":
        module.exit_json(changed=False, facts=rackproof_facts_record.gather(options))
    if subset == "provision":
        state = rackproof_facts_provision.gather(options)
        module.exit_json(changed=False, ansible_facts={"rackproof_node": state})
    module.exit_json(changed=False, gathered=sealed(rackproof_facts_health.gather(options)))


if __name__ == "__main__":
    main()

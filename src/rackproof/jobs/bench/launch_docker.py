"""Specify the start of a benchmark of MLPerf Training 0.6, whose image each node builds.

For a definition ``with: docker``, planning calls :func:`docker_specification`, and :func:`docker_obstacle`,
which returns the reason why a run is not possible. The specification has sources, image, data and config.
workloads/docker_run.py reads it as JSON. It contains the names of secret variables, but not their values. A
config, such as ``DGX1``, is the file ``config_DGX1.sh`` of the benchmark's code, with the settings for one
system.

The supervisor starts that program on every host that --limit selects. With ``bench_together``, only one node
starts it, and it submits a Slurm job for all nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rackproof.core.definitions import (
    Configs,
    DefinitionError,
    LoadedDefinition,
    Scalar,
    substitute_variables,
)
from rackproof.jobs.bench.launch_slurm import Site, download_limits, rack_obstacle

PROGRAM = "docker_run.py"
SILENCE_BEYOND_S = 900
"""Additional seconds of silence before a job counts as hung. Until the training starts, the program
reports progress every few seconds."""
GRACE_S = 120.0
"""Seconds between SIGTERM and SIGKILL. In this time, the program must stop its container, which is not
its child process."""
# Matches ``config_DGX1.sh``, ``DGX1.sh`` and ``DGX1``. The group is the name, ``DGX1``.
_CONFIG = re.compile(r"(?:config_)?([A-Za-z0-9][A-Za-z0-9_.-]{0,100}?)(?:\.sh)?")
_SYSTEM = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,100}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def system_config(loaded: LoadedDefinition, site: Site, nodes: int) -> str:
    """Return the system config (``DGX1``) for these nodes, or "" if there is none.

    Raises:
        DefinitionError: The definition names an unknown variable.
    """
    if site.config:
        # Operators give the name as in run.sub, or the name of the file. Both mean the same config.
        match = _CONFIG.fullmatch(site.config)
        return match[1] if match else ""
    configs = loaded.definition.configs
    if configs is None:
        return ""
    kind = "together" if site.together else "systems"
    named = getattr(configs, kind).get(site.sku, "")
    # Names of configs for several nodes may contain the number: ``{{ nodes }}xLambdaHyperplaneBasic``.
    text = substitute_variables(named, {"nodes": nodes}, f"{loaded.path}: configs.{kind}")
    return text if _SYSTEM.fullmatch(text) else ""


def docker_obstacle(
    loaded: LoadedDefinition,
    site: Site,
    nodes: Sequence[str],
    unreached: Sequence[str],
    variables: Mapping[str, Scalar],
) -> str:
    """Return the reason why these nodes cannot run the benchmark, or "".

    Raises:
        DefinitionError: The definition names an unknown variable.
    """
    build, configs = loaded.definition.build, loaded.definition.configs
    if build is None or configs is None:
        return "its definition has no build"
    ref = substitute_variables(build.ref, variables, f"{loaded.path}: build.ref")
    # A branch moves. Tomorrow, the same run would use other sources.
    if not _COMMIT.fullmatch(ref):
        return f"the commit of the sources is {ref or 'empty'!r}: give 40 hexadecimal digits, not a branch"
    if site.together:
        obstacle = rack_obstacle(site, unreached)
        if obstacle or len(nodes) < 2:
            return obstacle or "bench_together needs two nodes or more"
    if not system_config(loaded, site, len(nodes)):
        return _no_config(configs, site)
    return ""


def _no_config(configs: Configs, site: Site) -> str:
    """Return the message that there is no config for a site's SKU, with the SKUs that have one."""
    config_names, together_text = configs.systems, ""
    if site.together:
        config_names, together_text = configs.together, " together (bench_together)"
    return (
        f"no config for SKU {site.sku or '(none: set bench_sku)'}{together_text}; there are "
        f"{', '.join(config_names) or 'none'}; or set bench_config"
    )


def docker_specification(
    loaded: LoadedDefinition,
    site: Site,
    nodes: Sequence[str],
    variables: Mapping[str, Scalar],
) -> dict[str, object]:
    """Return the specification for docker_run.py as JSON values. Sizes are in GB, times in seconds.

    Raises:
        DefinitionError: The definition names an unknown variable, or states no build.
    """
    definition, build = loaded.definition, loaded.definition.build
    if build is None:
        raise DefinitionError(f"{loaded.path}: launch with docker needs build")
    # If the nodes run together, all must start the same build, so it is on shared storage.
    home = f"{site.shared}" if site.together else f"{variables['bench_home']}"
    values = {**variables, "data": docker_data_folder(loaded, site, variables)}
    return {
        "benchmark": loaded.name,
        "home": f"{home}/docker",
        "sources": substitute_variables(build.sources, values, f"{loaded.path}: build.sources"),
        "ref": substitute_variables(build.ref, values, f"{loaded.path}: build.ref"),
        "folder": build.folder,
        "image": build.image,
        "download": download_limits(variables),
        "image_gb": build.size_gb * site.size_factor,
        "data": values["data"],
        "stage": [
            {
                "creates": stage.creates,
                "mount": stage.mount,
                "run": substitute_variables(stage.run, values, f"{loaded.path}: stage.run"),
                "size_gb": stage.size_gb * site.size_factor,
            }
            for stage in definition.stage
        ],
        "system": system_config(loaded, site, len(nodes)),
        "environment": docker_environment(loaded, site, variables),
        "together": site.together,
        "hosts": list(nodes),
        "workloads": variables["bench_workloads"],
        "shared": site.shared,
        "partition": site.partition,
        "account": site.account,
        "reservation": site.reservation,
        "gpus": site.sku_gpus,
        "hang_s": site.hang_s or definition.launch.hang_s,
        "queue_s": site.queue_s,
    }


def docker_data_folder(loaded: LoadedDefinition, site: Site, variables: Mapping[str, Scalar]) -> str:
    """Return the data folder, which is on each node, or on shared storage if the nodes run together."""
    name = (loaded.definition.build.data if loaded.definition.build else "") or loaded.name
    top = f"{site.shared}/data" if site.together else variables["bench_data"]
    return f"{top}/{name}"


def docker_environment(
    loaded: LoadedDefinition, site: Site, variables: Mapping[str, Scalar]
) -> dict[str, str]:
    """Return the environment variables of run.sub. Secret variables have a placeholder as their value.

    Raises:
        DefinitionError: The definition names an unknown variable.
    """
    values = {**variables, "data": docker_data_folder(loaded, site, variables)}
    settings = {
        key: substitute_variables(value, values, f"{loaded.path}: launch.environment.{key}")
        for key, value in loaded.definition.launch.environment.items()
    }
    return {**settings, **site.environment, **site.hidden}


def describe_docker_launch(
    loaded: LoadedDefinition, site: Site, nodes: Sequence[str], variables: Mapping[str, Scalar]
) -> list[str]:
    """Return the plan's lines about a run: its build, each staging step, and its start.

    Raises:
        DefinitionError: The definition names an unknown variable.
    """
    specification = docker_specification(loaded, site, nodes, variables)
    source = f"{specification['sources']} at {str(specification['ref'])[:12]}"
    lines = [f"build   {specification['image']} from {source} unless it is there"]
    for stage in loaded.definition.stage:
        size = f", {stage.size_gb * site.size_factor:g} GB" if stage.size_gb else ""
        lines.append(f"stage   {specification['data']}/{stage.creates} unless it is there{size}")
    chosen = specification["system"] or "?"
    if site.together:
        lines.append(
            f"submit  DGXSYSTEM={chosen} sbatch -N {len(nodes)} --nodelist={','.join(nodes)} "
            "--ntasks-per-node $DGXNGPU run.sub"
        )
    else:
        lines.append(f"start   PULL=0 DGXSYSTEM={chosen} ./run.sub")
    return lines

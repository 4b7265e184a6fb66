"""Build the command line of workloads/slurm_run.py, which runs a benchmark on a rack with Slurm. No I/O.

For a definition ``with: slurm``, planning calls :func:`slurm_obstacles`. It then calls
:func:`slurm_specification` and :func:`program_arguments`. The specification is one JSON text with image,
data, config and nodes. It contains the names of secret variables, but not their values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pydantic import Field, field_validator

from rackproof.analysis.mlperf.config_rules import config_rules
from rackproof.analysis.mlperf.rounds import reference_points
from rackproof.core.definitions import (
    Container,
    DefinitionError,
    ImageName,
    ImageTag,
    LoadedDefinition,
    Scalar,
    substitute_variables,
)
from rackproof.core.hostlist import compress_hostlist
from rackproof.core.records import Node, Record
from rackproof.core.secret_names import HIDDEN, refuse_secrets

PROGRAM = "slurm_run.py"
SILENCE_BEYOND_S = 900
"""Additional seconds of silence that the supervisor allows, because the program itself ends a hung job."""
GRACE_S = 120.0
"""Seconds between SIGTERM and SIGKILL. In this time, the program must cancel the job and await its end."""


LEAST_SECRET = 8
"""Smallest number of characters of a secret. A shorter value is a mistake, and its removal from a log would
damage the log."""
SILENT = "did not answer"
"""Words about nodes in :func:`unreached_obstacle`."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of architectures in registries, by the kernel's names (``uname -m``)."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")


class Site(Record):
    """The rack, SKU and Slurm cluster of a node, from its variables bench_*.

    A run on a whole rack uses the values of the rack's first node, and any other run the values of its lead.
    """

    rack: str = ""
    """Group of nodes that share a fabric. Nodes of different racks never share a run."""
    shared: str = ""
    """Folder on storage that all nodes share."""
    registry: str = "nvcr.io"
    registry_scheme: str = "https"
    image: str = Field(default="squashfs", pattern="^(squashfs|registry)$")
    """``squashfs`` imports the image once to shared storage. ``registry`` pulls it on each node."""
    images: dict[str, ImageName] = {}  # noqa: RUF012  (pydantic copies defaults)
    """Images by benchmark, which replace the images of the definitions."""
    image_tags: dict[str, ImageTag] = {}  # noqa: RUF012
    sku_architecture: str = Field(default="", pattern="^(amd64|arm64)?$")
    """Architecture of the SKU's nodes, for a plan of nodes that do not answer yet."""
    architecture: str = ""
    """Architecture of all nodes of the run, from their facts, or "" if unknown."""
    launch_host: str = ""
    """Node that submits the job. Empty means the rack's first node."""
    partition: str = ""
    account: str = ""
    reservation: str = ""
    together: bool = False
    """True if Slurm runs a benchmark of round 0.6 on the nodes together, although each could run it alone."""
    repeats: int = Field(default=1, ge=0)
    """Number of repeats. 0 means as many as a publishable result needs."""
    config: str = ""
    precision: str = ""
    hang_s: int = Field(default=0, ge=0)
    """Seconds of silence after which a job counts as hung. 0 means the definition's value."""
    queue_s: int = Field(default=86400, gt=0)
    size_factor: float = Field(default=1, ge=0)
    """Factor for the sizes of images and data in the definition."""
    environment: dict[str, str] = {}  # noqa: RUF012
    secrets: dict[str, int] = {}  # noqa: RUF012
    """Length of each secret variable of jobs. Only the supervisor gets the values."""
    published_references: bool = True
    sku: str = ""
    sku_gpus: int = 0
    sku_gpu_name: str = ""

    @field_validator("environment")
    @classmethod
    def _without_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        """Refuse secrets among the plain variables, because plans and records show these."""
        refuse_secrets(value)
        return value

    @field_validator("secrets")
    @classmethod
    def _usable(cls, secrets: dict[str, int]) -> dict[str, int]:
        """Refuse secrets whose name is no variable, or that are too short to be removed from a log."""
        for name, length in secrets.items():
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is not a name of an environment variable")
            if length < LEAST_SECRET:
                raise ValueError(
                    f"{name} has {length} characters, a secret {LEAST_SECRET} or more: is it in Vault, or "
                    "in the environment that the playbook is started with?"
                )
        return secrets

    @property
    def hidden(self) -> dict[str, str]:
        """Return the secret variables in the form for plans and records."""
        return dict.fromkeys(self.secrets, HIDDEN)


def unreached_obstacle(unreached: Sequence[str]) -> str:
    """Return why no job can use all nodes of a rack together if some did not answer, or ""."""
    # A smaller rack would need another config, so its result would be of another benchmark.
    if not unreached:
        return ""
    left_out = (
        f"repair it, or leave it out with -l 'RACK:!{unreached[0]}'"
        if len(unreached) == 1
        else "repair them, or limit -l to the other nodes"
    )
    silent = compress_hostlist(unreached)
    return f"it runs on all nodes of the rack together, and {silent} {SILENT}: {left_out}"


def rack_obstacle(site: Site, unreached: Sequence[str]) -> str:
    """Return why a job cannot use all nodes of a rack together, or ""."""
    if unreached:
        return unreached_obstacle(unreached)
    if not site.shared.startswith("/"):
        return "bench_shared is not set: name a folder on storage that all nodes share"
    return ""


def slurm_obstacles(
    loaded: LoadedDefinition, site: Site, unreached: Sequence[str], *, with_image: bool
) -> Iterator[str]:
    """Yield a text for each check, which is the reason why the nodes cannot run the benchmark, or "".

    The order of the checks is: nodes that did not answer, shared storage, an image for the nodes'
    architecture, a config for the SKU, and the SKU's number of GPUs.

    Args:
        loaded: The benchmark's definition.
        site: The Slurm cluster.
        unreached: The requested nodes that did not answer.
        with_image: Whether to check the image, which is not possible if no node answered, or if the nodes'
            architectures differ.
    """
    yield unreached_obstacle(unreached)
    yield rack_obstacle(site, ())
    if with_image:
        yield _image_obstacle(loaded, site)
    configs = loaded.definition.configs
    if configs is not None and not site.config and site.sku not in configs.systems:
        config_names = ", ".join(configs.systems)
        sku = site.sku or "(none: set bench_sku)"
        yield f"no config for SKU {sku}; there are {config_names}; or set bench_config"
    if not site.config and site.sku_gpus < 1:
        yield "bench_sku_gpus is not set: the config is chosen by it; or set bench_config"


def nodes_by_architecture(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Return the names of nodes by architecture. The key "" has the nodes of unknown architecture. No I/O."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        machine = node.software.get("machine", "")
        names.setdefault(ARCHITECTURES.get(machine, machine), []).append(node.name)
    return names


def architecture_obstacle(nodes: Mapping[str, Collection[str]]) -> str:
    """Return the reason why nodes of these architectures cannot run one job, or "" if they can."""
    known_nodes = {architecture: names for architecture, names in nodes.items() if architecture}
    if len(known_nodes) < 2:
        return ""
    fewest = min(known_nodes.values(), key=len)
    listed = "; ".join(f"{key}: {', '.join(sorted(names))}" for key, names in sorted(known_nodes.items()))
    return (
        f"its nodes have different architectures, and one image cannot run on all of them ({listed}): select "
        f"nodes of one architecture, as with -l 'RACK:!{':!'.join(sorted(fewest))}'"
    )


def image_of(loaded: LoadedDefinition, site: Site) -> tuple[str, str]:
    """Return the repository and the tag of the image for a site's nodes, or two empty texts.

    If the image is named with a digest and no tag (``nvidia/x@sha256:…``), the digest takes the tag's place.
    ``bench_image_tags`` replaces the tag of a definition's image, but not of one in ``bench_images``.
    """
    container = loaded.definition.container
    name = site.images.get(loaded.name, "")
    if not name and container is not None:
        name = _image_for(container, site.architecture)
    repository, _, tag = name.partition(":") if ":" in name.partition("@")[0] else name.partition("@")
    if loaded.name not in site.images:
        tag = site.image_tags.get(loaded.name, tag)
    return repository, tag


def _image_for(container: Container, architecture: str) -> str:
    """Return a definition's image for an architecture.

    If the architecture is unknown, return the image only if it is the same for all architectures.
    """
    if architecture:
        return {str(key): name for key, name in container.images.items()}.get(architecture, "")
    names = set(container.images.values())
    return names.pop() if len(names) == 1 else ""


def _image_obstacle(loaded: LoadedDefinition, site: Site) -> str:
    """Return why there is no image for a site's nodes, or ""."""
    container = loaded.definition.container
    if container is None or image_of(loaded, site)[0]:
        return ""
    built = ", ".join(sorted(container.images))
    remedy = f"name one with bench_images: {{{loaded.name}: REPOSITORY:TAG}}"
    if not site.architecture:
        return f"the architecture of its nodes is not known, and there are images for {built}: {remedy}"
    return f"its nodes are {site.architecture}, and there are images for {built}: {remedy}"


def config_pattern(loaded: LoadedDefinition, site: Site, nodes: int) -> str:
    """Return the name of the config file for a number of nodes, as a pattern for display.

    If ``bench_config`` is set in the inventory, return that. Otherwise, ``?`` replaces an unknown SKU, and
    ``*`` replaces the part that only the image shows: ``config_DGXH100_2x8x*.sh``.
    """
    if site.config:
        return site.config
    system = loaded.definition.configs.systems.get(site.sku, "?") if loaded.definition.configs else "?"
    precision = f"_{site.precision}" if site.precision else ""
    return f"config_{system}_{nodes}x{site.sku_gpus}x*{precision}.sh"


def download_limits(variables: Mapping[str, Scalar]) -> dict[str, int]:
    """Return the limits of downloads that are set, under the names in workloads/limited_download.py."""
    names = ("min_bytes_per_s", "timeout_s")
    limits = {name: variables.get(f"bench_download_{name}") for name in names}
    return {name: int(value) for name, value in limits.items() if value is not None}


def slurm_specification(
    loaded: LoadedDefinition,
    site: Site,
    nodes: Sequence[str],
    variables: Mapping[str, Scalar],
) -> dict[str, object]:
    """Return the specification for slurm_run.py as JSON values. Sizes are in GB, times in seconds.

    Raises:
        DefinitionError: The definition lacks container or configs, or names an unknown variable.
    """
    definition = loaded.definition
    container, configs = definition.container, definition.configs
    if container is None or configs is None:
        raise DefinitionError(f"{loaded.path}: launch with slurm needs container and configs")
    repository, tag = image_of(loaded, site)
    values = {**variables, "bench_shared": site.shared}
    return {
        "benchmark": loaded.name,
        "shared": site.shared,
        "hosts": list(nodes),
        "registry": site.registry,
        "registry_scheme": site.registry_scheme,
        "repository": repository,
        "download": download_limits(variables),
        "tag": tag,
        "architecture": site.architecture,
        "folder": container.folder,
        "image": site.image,
        "image_gb": container.size_gb * site.size_factor,
        "system": configs.systems.get(site.sku, ""),
        "gpus": site.sku_gpus,
        "precision": site.precision,
        "config": site.config,
        "stage": [
            {
                "creates": stage.creates,
                "mount": stage.mount,
                "run": substitute_variables(stage.run, values, f"{loaded.path}: stage.run"),
                "size_gb": stage.size_gb * site.size_factor,
                "recorded": stage.recorded,
            }
            for stage in definition.stage
        ],
        "environment": slurm_environment(loaded, site, variables),
        "reference_batches": sorted(map(int, reference_points(loaded.name, definition.result.ruleset))),
        "ruleset": definition.result.ruleset,
        "rules": config_rules(loaded.name, definition.result.ruleset, configs.logged),
        "partition": site.partition,
        "account": site.account,
        "reservation": site.reservation,
        "hang_s": site.hang_s or definition.launch.hang_s,
        "queue_s": site.queue_s,
    }


def slurm_environment(
    loaded: LoadedDefinition, site: Site, variables: Mapping[str, Scalar]
) -> dict[str, str]:
    """Return the environment variables of the job besides the variables of its config.

    The inventory's variables override the definition's. Secret variables have a placeholder as their value.

    Raises:
        DefinitionError: The definition names an unknown variable.
    """
    values = {**variables, "bench_shared": site.shared}
    settings = {
        key: substitute_variables(value, values, f"{loaded.path}: launch.environment.{key}")
        for key, value in loaded.definition.launch.environment.items()
    }
    # The site's variables come last, because the definition cannot state which links NCCL may use at a site.
    return {**settings, **site.environment, **site.hidden}


def program_arguments(specified: Mapping[str, object]) -> tuple[str, ...]:
    """Return the arguments of slurm_run.py for a specification. The caller adds the run's id."""
    # Sort the keys, because the arguments are part of the fingerprint that identifies an interrupted plan.
    return ("run", f"--spec={json.dumps(specified, sort_keys=True, separators=(',', ':'))}")


def describe_slurm_launch(loaded: LoadedDefinition, site: Site, nodes: Sequence[str]) -> list[str]:
    """Return the plan's lines about a run: its images, each staging step, its config and its submission.

    The list is empty if the definition names no container.
    """
    definition = loaded.definition
    if definition.container is None:
        return []
    lines = _pull_lines(loaded, definition.container, site)
    for stage in definition.stage:
        size = f", {stage.size_gb * site.size_factor:g} GB" if stage.size_gb else ""
        lines.append(f"stage   {site.shared}/data/{loaded.name}/{stage.creates} unless it is there{size}")
    lines.append(f"config  {config_pattern(loaded, site, len(nodes))} from {definition.container.folder}")
    submit = f"submit  sbatch -N {len(nodes)} --nodelist={compress_hostlist(nodes)} {_site_options(site)}"
    lines.append(submit.rstrip() + " run.sub")
    return lines


def _pull_lines(loaded: LoadedDefinition, container: Container, site: Site) -> list[str]:
    """Return the plan's lines about images, one for each image that the nodes may need."""
    is_fixed = site.architecture or loaded.name in site.images
    architectures: dict[tuple[str, str], list[str]] = {}
    for architecture in [site.architecture] if is_fixed else sorted(container.images):
        image = image_of(loaded, site.model_copy(update={"architecture": architecture}))
        architectures.setdefault(image, []).append(architecture)
    place = "imported once to shared storage" if site.image == "squashfs" else "on each node"
    size = f", {container.size_gb * site.size_factor:g} GB" if container.size_gb else ""
    lines = []
    for (repository, tag), names in architectures.items():
        if not repository:
            lines.append(f"pull    no image for {' or '.join(filter(None, names)) or 'its nodes'} is known")
            continue
        kind = f"for {' and '.join(names)}, " if any(names) else ""
        # A digest takes the place of a tag.
        separator = "@" if tag.startswith("sha256:") else ":"
        lines.append(f"pull    {site.registry}/{repository}{separator}{tag} ({kind}{place}{size})")
    return lines


def _site_options(site: Site) -> str:
    """Return the options of sbatch that the inventory sets."""
    options = [f"--{key}={getattr(site, key)}" for key in ("partition", "account", "reservation")]
    return " ".join(option for option in options if not option.endswith("="))

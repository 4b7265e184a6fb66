"""Read and validate benchmark definitions, the files under ``benchmarks/``.

Job bench calls :func:`load_definitions` to select and plan benchmarks, and job validate judges its probes by
the same definitions. ``rackproof benchmarks`` lists the valid files (:func:`load_valid_definitions`). Begin
with :class:`Definition`, which has the keys of a file. The readers of catalogues and of system descriptions
use only :func:`lines_of_keys` and :func:`construct_document`.

A definition is a YAML file that contains only data. It may contain variables, written as ``{{ name }}``,
which are replaced by plain values such as a point of the matrix or a path of the node
(:func:`substitute_variables`). There are no expressions, filters or conditions, and no text is evaluated.

The descriptions of the fields are the reference of all keys in docs/using/benchmarks.md
(:func:`schema_markdown`). After a change of a field, run ``make docs``.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from rackproof.core.errors import RackproofError
from rackproof.core.line_rules import FORMAT as LINES
from rackproof.core.line_rules import LineMetric, LineRules
from rackproof.core.near_names import near_text
from rackproof.core.records import Direction, Name, Record, Reference, Text, WrittenRecord
from rackproof.core.secret_names import refuse_secrets
from rackproof.core.text import amount, number

Scalar = str | int | float | bool
"""The value of a parameter, option or variable."""
Matrix = dict[str, tuple[Scalar, ...]]
"""The values to sweep, by parameter. Each combination of values is a point."""
Parameters = dict[str, Scalar]
"""The values of a point, by parameter."""
Bounds = tuple[int | float, int | float]
"""Smallest and largest value."""
Filter = dict[str, tuple[Scalar, ...]]
"""Lists of values by parameter. A point fits if the value of each of these parameters is in its list."""

# Matches "{{ batch_size }}".
_VARIABLE = re.compile(r"\{\{\s*([a-z_][a-z0-9_]*)\s*\}\}")


MOST_BYTES, MOST_KEYS, MOST_LEVELS = 64 * 1024, 5000, 30
"""Limits of a file: bytes, keys and list entries (with aliases expanded), and levels of nesting."""
MOST_POINTS, MOST_MISTAKES = 2000, 10
"""Largest number of points of one benchmark in a suite or matrix, before its filters, and largest number of
mistakes in one file that a message lists."""


class DefinitionError(RackproofError):
    """A definition that cannot be used. The message gives file, line, key and remedy."""


class UnknownBenchmarkError(DefinitionError):
    """A benchmark or suite that no file defines. The message suggests similar names."""


class Stage(WrittenRecord):
    """Data that must be present before a run. It is staged once for each storage, under a lock."""

    creates: str = Field(
        min_length=1,
        description="The result of staging, which is a folder below `bench_data`, or below "
        "`bench_shared`/data/NAME if `run` stages it.",
    )
    program: str = Field(default="", description="Program under workloads/ that stages the data.")
    arguments: dict[str, Scalar] = Field(
        default={}, description="Options of `program`, without the leading `--`."
    )
    run: str = Field(
        default="",
        description="Instead of `program`: a bash script that runs in the container, or on the node itself "
        "with `docker` and without `mount`. With `docker` it has `$DATA` and `$SOURCES`, and starts in an "
        "empty folder.",
    )
    mount: str = Field(default="", description="Folder of the data in the container, for that script.")
    size_gb: float = Field(default=0, ge=0, description="Free space in GB that the script needs.")
    recorded: bool = Field(
        default=False,
        description="With `slurm`: record the checksums of the downloaded files the first time, and compare "
        "them when they are staged again. For files whose source proves nothing. Needs `mount`.",
    )

    @model_validator(mode="after")
    def _one_way(self) -> Stage:
        """Refuse options of staging that contradict each other, and a path outside of the data's folder."""
        if bool(self.program) == bool(self.run):
            raise ValueError("give one of program and run")
        if self.mount and not self.run:
            raise ValueError("mount is the place where `run` finds the data: it needs run")
        if self.recorded and not self.mount:
            raise ValueError("recorded reads the data in the container: it needs mount")
        if not _is_inside(self.creates):
            raise ValueError(f"creates: {self.creates!r} is not a path below the data's folder")
        return self


_PIN = "sha256:[0-9a-f]{64}"
"""Pattern of an image's digest."""
ImageTag = Annotated[str, Field(pattern=f"^([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}(@{_PIN})?|{_PIN})$")]
"""A tag of an image (which may refer to another image later), a digest, or both."""
_REPOSITORY = r"[a-z0-9]+([._/-]+[a-z0-9]+)*"
ImageName = Annotated[
    str, Field(pattern=f"^{_REPOSITORY}(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}(@{_PIN})?|@{_PIN})$")
]
"""An image within a registry: REPOSITORY:TAG, REPOSITORY:TAG@DIGEST or REPOSITORY@DIGEST."""
Architecture = Literal["amd64", "arm64"]
"""Names of processor architectures in image registries."""


class Container(WrittenRecord):
    """The image in which a benchmark with the launcher `slurm` runs."""

    images: dict[Architecture, ImageName] = Field(
        min_length=1,
        description="The image in the registry `bench_registry` for nodes of each architecture (`amd64`, "
        "`arm64`), as REPOSITORY:TAG, or pinned as REPOSITORY:TAG@sha256:…. `bench_images` names another "
        "one, `bench_image_tags` another tag.",
    )
    folder: str = Field(pattern=r"^/", description="Folder in the image with run.sub and config_*.sh.")
    size_gb: float = Field(default=0, ge=0, description="Free space in GB that the import needs.")


class Build(WrittenRecord):
    """The image for `docker`, which is built on the node from published sources at one commit."""

    sources: str = Field(min_length=1, description="URL of an archive (tar.gz) of the sources.")
    ref: str = Field(
        min_length=1,
        description="Commit of the sources, 40 hexadecimal digits. An image of it is not built again.",
    )
    folder: str = Field(
        min_length=1, description="Folder in the archive with Dockerfile, run.sub, config_*.sh."
    )
    image: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._/-]*:[A-Za-z0-9._-]+$", description="Name and tag of the image."
    )
    data: str = Field(
        default="", description="Folder of the data below `bench_data`, which benchmarks may share."
    )
    size_gb: float = Field(default=0, ge=0, description="Free space in GB that the build needs.")

    @field_validator("folder", "data")
    @classmethod
    def _below(cls, path: str) -> str:
        """Refuse a path outside of the archive or of the data's folder."""
        if not _is_inside(path):
            raise ValueError(f"{path!r} is not a relative path without `..`")
        return path


# Matches the name of one variable, such as "LR", or two as in "DGXNNODES * DGXNGPU".
_LOGGED = r"^[A-Z][A-Z0-9_]*( [-+*] [A-Z][A-Z0-9_]*)?$"


class Configs(WrittenRecord):
    """The rules by which the config file of a published run script is chosen.

    With `slurm`, it is `config_SYSTEM_NODESxGPUSx….sh`. The SKU, the number of nodes and the precision
    decide which one. With `docker`, it is `config_SYSTEM.sh`, and only the SKU decides.
    """

    systems: dict[str, str] = Field(min_length=1, description="SKU to SYSTEM, as the files spell it.")
    together: dict[str, str] = Field(
        default={},
        description="With `docker`: SKU to SYSTEM of several nodes together. `{{ nodes }}` is their number.",
    )
    logged: dict[str, Annotated[str, Field(pattern=_LOGGED)]] = Field(
        default={},
        description="Key of an MLPerf log's line to the variable of the config that it shows, or two "
        "variables joined by `-`, `+` or `*`. The round's rules about these lines are checked before a job "
        "is submitted.",
    )


class Launch(WrittenRecord):
    """The way in which a benchmark's workload is started."""

    with_: Literal["local", "mpirun", "docker", "slurm"] = Field(
        alias="with",
        description="The launcher. `local`: one run per node, or on as many nodes together as the parameter "
        "`nodes` states. `mpirun`: the same, with a program that only the first node starts. `docker`: one "
        "run per node in an image built there, or one on all limited nodes through Slurm "
        "(`bench_together`). `slurm`: one run on all nodes of a rack.",
    )
    command: tuple[str, ...] = Field(
        default=(),
        description="With `local`, instead of program and arguments: a program that is on the node, by name "
        "or full path, and its arguments. Its output is the log. An exit status other than 0 is a failure.",
    )
    folder: str = Field(
        default="",
        description="With `command`: the folder on the node in which the program starts, for a program that "
        "reads files there. Empty means the run's own folder.",
    )
    runtime: str = Field(
        default="",
        description="Interpreter: a folder under workloads/ with pins. Empty means the interpreter of "
        "Ansible's modules, which has only the standard library.",
    )
    program: str = Field(default="", description="Program under workloads/.")
    arguments: dict[str, Scalar] = Field(
        default={},
        description="Options of the program, without the leading `--`. Empty values are left out.",
    )
    environment: dict[str, str] = Field(default={}, description="Environment variables of the job.")
    timeout_s: int = Field(
        default=3600,
        gt=0,
        description="Time limit of the job in seconds. With `slurm`, it includes staging and waiting.",
    )
    hang_s: int = Field(
        default=300, gt=0, description="Seconds without a new log line after which the job counts as hung."
    )

    @field_validator("environment", "arguments")
    @classmethod
    def _without_secrets(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse secrets, because the plan and the record contain these values."""
        refuse_secrets(value)
        return value

    @model_validator(mode="after")
    def _what_to_start(self) -> Launch:
        """Refuse a launcher without its program, and keys that the launcher does not use."""
        own_program = self.runtime or self.program or self.arguments
        if self.folder and not self.command:
            raise ValueError("folder is for `command`: a program under workloads/ starts in the run's folder")
        if self.command:
            if self.with_ != "local" or own_program:
                raise ValueError(
                    "command is for `with: local` and takes the place of runtime, program and arguments"
                )
        elif self.with_ in ("local", "mpirun"):
            if not self.program:
                either = " or command" if self.with_ == "local" else ""
                raise ValueError(f"with: {self.with_} needs program{either}")
        elif own_program:
            raise ValueError(
                f"with: {self.with_} starts the image's run.sub: runtime, program and arguments do not apply"
            )
        return self


class JudgeRule(WrittenRecord):
    """The rule by which the measurements of one name are judged, or those of them with some labels.

    A rule with a bound (`at_least`, `at_most`, `equals`) checks quality and always gates. A rule without
    a bound judges the measurement against references: the SKU's, published results, and the accepted
    history.
    """

    metric: Name = Field(description="Name of the measurement.")
    labels: dict[str, str] = Field(default={}, description="Only measurements with these labels.")
    unit: str = Field(
        default="", description="Unit that the measurement must have. A different unit is unproven."
    )
    direction: Direction | None = Field(default=None, description="Direction in which a value is better.")
    at_least: float | str | None = Field(
        default=None, description="The value must not be lower. A number, or a parameter: `{{ target }}`."
    )
    at_most: float | str | None = Field(default=None, description="The value must not be higher.")
    equals: float | str | None = Field(default=None, description="The value must equal this number.")
    needs_gpus: int = Field(default=0, ge=0, description="Applies to runs on at least this many GPUs.")
    needs_seconds: float = Field(
        default=0,
        ge=0,
        description="Least value of the parameter `seconds` for this measurement. A shorter run is unproven, "
        "and does not start.",
    )
    optional: bool = Field(
        default=False, description="True: a missing measurement is no finding (hardware without fp8)."
    )
    candidate: bool = Field(
        default=False,
        description="True: without a reference, the measurement is stored as a candidate and does not count, "
        "even if references are required (`bench_require_references`).",
    )
    coverage: bool = Field(
        default=False,
        description="True: the measurement states how much was tested. Outside the bound, the run is "
        "unproven instead of failed.",
    )
    per: Literal["", "gpu", "pair"] = Field(
        default="",
        description="gpu, pair: each planned GPU (label `gpu`), or pair (`from`, `to`), must have one.",
    )

    @field_validator("at_least", "at_most", "equals")
    @classmethod
    def _finite(cls, bound: float | str | None) -> float | str | None:
        """Refuse NaN and infinity, which cannot bound a value."""
        if isinstance(bound, float) and not math.isfinite(bound):
            raise ValueError("a bound is a finite number")
        return bound

    @model_validator(mode="after")
    def _one_bound(self) -> JudgeRule:
        """Refuse several bounds in one rule, and a coverage without a bound."""
        bounds = sum(bound is not None for bound in (self.at_least, self.at_most, self.equals))
        if bounds > 1:
            raise ValueError("give one of at_least, at_most and equals")
        if self.coverage and not bounds:
            raise ValueError("coverage needs at_least, at_most or equals")
        return self

    @property
    def better(self) -> Direction | None:
        """Return the better direction, or None if it is unknown or both sides are bad.

        With `at_least` higher values are better, and with `at_most` lower ones. With `equals`, both sides
        are bad.
        """
        if self.at_least is not None:
            return Direction.HIGHER
        if self.at_most is not None:
            return Direction.LOWER
        return self.direction if self.equals is None else None

    def applies_to(self, parameters: Parameters) -> bool:
        """Return whether a run at a point of the matrix has as many GPUs as the rule needs.

        A point without the parameter ``gpus`` has 0 GPUs here.
        """
        used = parameters.get("gpus", 0)
        # A parameter that is not a number, such as `all`, is not a reason to skip the rule.
        return not isinstance(used, int) or used >= self.needs_gpus

    def shortfall(self, parameters: Parameters) -> str:
        """Return why a run at a point of the matrix is too short to measure this, or ""."""
        seconds = parameters.get("seconds")
        if not isinstance(seconds, int | float) or seconds >= self.needs_seconds:
            return ""
        least = f"{self.needs_seconds:g}"
        return f"a run of {seconds:g} s is too short for {self.metric}: set `seconds` to {least} or more"

    def bound(self, source: str, parameters: Mapping[str, Scalar]) -> Reference | None:
        """Return the rule's own bound as a reference, or None for a rule without bound.

        Args:
            source: The name of the benchmark, for messages and as the source of the reference.
            parameters: The values of the point, by parameter.

        Raises:
            DefinitionError: The bound refers to an unknown parameter, or to one whose value is not a
                finite number.
        """
        for raw, low, high in (
            (self.at_least, 0.0, None),
            (self.at_most, None, 0.0),
            (self.equals, 0.0, 0.0),
        ):
            if raw is None:
                continue
            where = f"{source}: result.judge: {self.metric}"
            text = substitute_variables(str(raw), parameters, where)
            if not text:
                raise DefinitionError(
                    f"{where}: {raw} is empty, and a bound needs a number: give it a default"
                )
            try:
                # Python reads "8_00" as 800. Here it is not a number.
                value = float(text.replace("_", "?"))
            except ValueError:
                raise DefinitionError(f"{where}: {text!r} is not a number") from None
            if not math.isfinite(value):
                raise DefinitionError(f"{where}: {text!r} is not a finite number")
            return Reference(value=value, low=low, high=high, unit=self.unit, source=source)
        return None


class Result(WrittenRecord):
    """The rules for reading and judging the run's log."""

    format: str = Field(
        default="auto",
        description="Log format, a name that `rackproof parse --list-formats` prints, or `lines`.",
    )
    lines: LineRules | None = Field(
        default=None, description="With the format `lines`: how the program's plain output is read."
    )
    ruleset: str = Field(
        default="", description="Rules of MLPerf Training to check each run by, such as `5.1.0`, or empty."
    )
    repeats: int = Field(
        default=1,
        ge=1,
        description="Runs that a publishable result needs. `bench_repeats` is the number to make.",
    )
    lacks: tuple[
        Literal[
            "start_marker",
            "node_list",
            "ranks",
            "cache_clearing",
            "nccl_preflight",
            "seed",
            "submission_events",
        ],
        ...,
    ] = Field(
        default=(),
        description="With `slurm` and `docker`: evidence that run.sub of this benchmark does not print, by "
        "design. For a run with a `ruleset`, any other evidence that the log does not show is unproven.",
    )
    processes: Literal["gpu", "node"] = Field(
        default="gpu", description="With `slurm`: whether a process trains for each GPU or for each node."
    )
    states_run: bool = Field(
        default=False,
        description="True: a log without its run (`run_id`, of RACKPROOF_JOB_ID) and GPUs is unproven.",
    )
    states_gpu_use: bool = Field(
        default=False,
        description="True: a log that does not state (`gpu_state`) which other processes used each of its "
        "GPUs before and after the run is unproven.",
    )
    judge: tuple[JudgeRule, ...] = Field(min_length=1, description="Measurements to judge, at least one.")

    @field_validator("format")
    @classmethod
    def _known_format(cls, format: str, info: ValidationInfo) -> str:
        """Refuse an unknown log format."""
        # The parsers are in a higher room, so load_definition() passes their names. A stored plan is read
        # without the names, because its rules were checked when it was made.
        log_formats = (info.context or {}).get("log_formats")
        if log_formats is None:
            return format
        formats = ["auto", *log_formats, LINES]
        if format not in formats:
            raise ValueError(f"no log format `{format}`{near_text(format, formats)}")
        return format

    @model_validator(mode="after")
    def _lines_belong_to_their_format(self) -> Result:
        """Refuse rules of lines for another format, and judged metrics that no rule reads."""
        if (self.format == LINES) != (self.lines is not None):
            raise ValueError("format: lines and the key `lines` belong together")
        if self.lines is not None:
            for rule in self.judge:
                if rule.metric not in self.lines.metrics:
                    metrics = self.lines.metrics
                    raise ValueError(
                        f"judge: no pattern for `{rule.metric}`{near_text(rule.metric, metrics)}"
                    )
                unit = self.lines.metrics[rule.metric].unit
                if rule.unit not in ("", unit):
                    raise ValueError(f"judge: `{rule.metric}` is read in `{unit}`, judged in `{rule.unit}`")
        return self


class Definition(WrittenRecord):
    """A benchmark, as one file defines it: its staging, start, judgement and suites."""

    name: Name = Field(description="Name of the benchmark, and of its file.")
    summary: Text = Field(min_length=1, description="One line for lists.")
    description: Text = Field(default="", description="Longer description for the report.")
    needs_gpus: int = Field(
        default=0, ge=0, description="Suites leave the benchmark out on nodes with fewer GPUs."
    )
    parameters: Parameters = Field(default={}, description="Parameters and their defaults.")
    bounds: dict[str, Bounds] = Field(
        default={},
        description="Smallest and largest value of a numeric parameter: `[1, 4096]`. Two whole numbers allow "
        "only whole numbers.",
    )
    matrix: Matrix = Field(default={}, description="Values to sweep when you name the benchmark.")
    suites: dict[str, tuple[Matrix, ...]] = Field(
        default={},
        description="Suites that contain the benchmark, each with the matrix, or list of matrices, to sweep.",
    )
    only: tuple[Filter, ...] = Field(
        default=(), description="Keep the points of a matrix that fit one of these filters. Empty keeps all."
    )
    exclude: tuple[Filter, ...] = Field(
        default=(), description="Leave out the points of a matrix that fit one of these filters."
    )
    container: Container | None = Field(default=None, description="The image, with the launcher `slurm`.")
    build: Build | None = Field(default=None, description="The image, with the launcher `docker`.")
    configs: Configs | None = Field(default=None, description="How the config file is chosen.")
    stage: tuple[Stage, ...] = Field(default=(), description="Data to stage first.")
    launch: Launch = Field(description="How to start the benchmark.")
    result: Result = Field(description="How to read and judge the log.")

    @property
    def unpinned_images(self) -> tuple[str, ...]:
        """Return the images whose names may refer to another image later.

        These are images without a digest, and images that are built on the node.
        """
        by_tag = [
            name for name in (self.container.images if self.container else {}).values() if "@" not in name
        ]
        return (*by_tag, *([self.build.image] if self.build else []))

    @field_validator("bounds", mode="before")
    @classmethod
    def _bounds(cls, value: Any) -> Any:
        """Refuse true and false in bounds. Pydantic would read them as 1 and 0."""
        for name, bounds in value.items() if isinstance(value, Mapping) else ():
            if isinstance(bounds, list | tuple) and any(isinstance(bound, bool) for bound in bounds):
                raise ValueError(f"`{name}`: a bound has to be a number")
        return value

    @field_validator("matrix", mode="before")
    @classmethod
    def _matrix(cls, value: Any) -> Any:
        """Turn a single value of a parameter into a list with one element."""
        return _with_lists(value)

    @field_validator("only", "exclude", mode="before")
    @classmethod
    def _filters(cls, value: Any) -> Any:
        """Turn a single value of a parameter in a filter into a list with one element."""
        return (
            [_with_lists(filter_axes) for filter_axes in value] if isinstance(value, list | tuple) else value
        )

    @field_validator("suites", mode="before")
    @classmethod
    def _suites(cls, value: Any) -> Any:
        """Turn the single matrix of a suite into a list with one element.

        An empty matrix has one point, which consists of the defaults.
        """
        if not isinstance(value, Mapping):
            return value
        return {
            name: [_with_lists(matrix) for matrix in (raw if isinstance(raw, list | tuple) else [raw or {}])]
            for name, raw in value.items()
        }

    @model_validator(mode="after")
    def _axes_are_parameters(self) -> Definition:
        """Refuse matrices, filters, bounds, rules and launchers that do not fit the parameters."""
        self._check_matrices()
        self._check_filters()
        self._check_values()
        for name, matrices in self.suites.items():
            if not matrices:
                raise ValueError(
                    f"suites.{name}: no matrix, so nothing would run; leave it empty for one run"
                )
        if self.launch.with_ == "mpirun" and self.parameters.get("nodes", "") == "":
            raise ValueError("launch with mpirun needs the parameter `nodes`, with a number as its default")
        if self.launch.command and self.result.states_gpu_use and "gpus" not in self.parameters:
            raise ValueError(
                "result: `states_gpu_use` of a command needs the parameter `gpus`, how many GPUs it uses"
            )
        if "gpus" not in self.parameters and any(rule.needs_gpus for rule in self.result.judge):
            raise ValueError(
                "result.judge: `needs_gpus` needs the parameter `gpus`, because without it no run has enough "
                "GPUs for the rule: add `gpus` to the parameters, or remove `needs_gpus`"
            )
        if "seconds" not in self.parameters and any(rule.needs_seconds for rule in self.result.judge):
            raise ValueError("result.judge: `needs_seconds` needs the parameter `seconds`")
        try:
            self.check_bounds(self.parameters)
        except DefinitionError as error:
            raise ValueError(str(error)) from error
        return self

    def _check_matrices(self) -> None:
        """Refuse a matrix with too many points, and an axis that is not a parameter or lists no value."""
        places = [("matrix", self.matrix)]
        places += [
            (f"suites.{name}", matrix) for name, matrices in self.suites.items() for matrix in matrices
        ]
        for name, matrices in [("matrix", (self.matrix,)), *self.suites.items()]:
            if excess := _too_many(matrices):
                raise ValueError(f"{name if name == 'matrix' else f'suites.{name}'}: {excess}")
        for place, matrix in places:
            for axis, values in matrix.items():
                self._check_parameter(place, axis)
                if not values:
                    raise ValueError(f"{place}: `{axis}` has no value, so nothing would run")

    def _check_filters(self) -> None:
        """Refuse a filter that is empty or names an unknown parameter."""
        for place, filters in (("only", self.only), ("exclude", self.exclude)):
            for point_filter in filters:
                if not point_filter:
                    raise ValueError(f"{place}: an empty entry fits every point")
                for axis in point_filter:
                    self._check_parameter(place, axis)

    def _check_values(self) -> None:
        """Refuse bounds that allow nothing, and values of the file that are outside of its bounds."""
        for name, (least, most) in self.bounds.items():
            self._check_parameter("bounds", name)
            if not (math.isfinite(least) and math.isfinite(most) and least <= most):
                raise ValueError(f"bounds: `{name}`: {least} to {most} is not a range of finite numbers")
        for name in self.parameters:
            for value in self._known_values(name):
                if wrong := self._wrong_number(name, value):
                    raise ValueError(f"parameter `{name}` is {value!r}: {wrong}")

    def _wrong_number(self, name: str, value: Scalar) -> str:
        """Return a message about a value that is not a number within its parameter's bounds, or ""."""
        # An empty value leaves a parameter out, and `all` is replaced by a number of GPUs.
        if value == "" or (name, value) == ("gpus", "all"):
            return ""
        size = math.nan if isinstance(value, str | bool) else value
        if name in self.bounds:
            least, most = self.bounds[name]
            is_whole = self._is_whole(name)
            fits = least <= size <= most and (isinstance(value, int) or not is_whole)
            kind = "whole number" if is_whole else "number"
            return "" if fits else f"it has to be a {kind} from {number(least)} to {number(most)}"
        if isinstance(value, float) and not math.isfinite(value):
            return "it has to be a finite number"
        return ""

    def _is_whole(self, name: str) -> bool:
        """Return whether the bounds of a parameter allow only whole numbers."""
        return name in self.bounds and all(isinstance(bound, int) for bound in self.bounds[name])

    def _check_parameter(self, place: str, axis: str) -> None:
        """Refuse an axis that is not a parameter. ``place`` is the key that names it, for the message."""
        if axis not in self.parameters:
            raise ValueError(
                f"{place}: `{axis}` is not one of the parameters{near_text(axis, self.parameters)}"
            )

    @model_validator(mode="after")
    def _fits_launcher(self) -> Definition:
        """Refuse an unused image or config, and a missing one that the launcher needs.

        Refuse also data that is staged by another method than the launcher's.
        """
        launcher = self.launch.with_
        for name, part, launchers in (
            ("container", self.container, ("slurm",)),
            ("build", self.build, ("docker",)),
            ("configs", self.configs, ("docker", "slurm")),
        ):
            if launcher in launchers and part is None:
                raise ValueError(f"launch with {launcher} needs `{name}`")
            if launcher not in launchers and part is not None:
                raise ValueError(f"`{name}` is for launch with {' or '.join(launchers)}")
        self._check_stages()
        return self

    def _check_stages(self) -> None:
        """Refuse a `stage` entry whose method the launcher does not support."""
        launcher = self.launch.with_
        for stage in self.stage:
            # A definition that starts a cluster's scripts must stage data by a script, not by a program of
            # Rackproof.
            if bool(stage.run) != (launcher not in ("local", "mpirun")):
                method = {"local": "`program`", "mpirun": "`program`", "docker": "`run`"}.get(
                    launcher, "`run` and `mount`"
                )
                raise ValueError(f"stage: {stage.creates}: launch with {launcher} stages by {method}")
            if launcher == "slurm" and not stage.mount:
                raise ValueError(f"stage: {stage.creates}: run and mount belong together")

    def check_bounds(self, point: Mapping[str, Scalar]) -> None:
        """Check, before any run starts, that the bound of every rule is a number at a point.

        Raises:
            DefinitionError: A bound refers to an unknown parameter, or to one whose value is not a
                finite number.
        """
        for rule in self.result.judge:
            rule.bound(self.name, point)

    def points(
        self, suite: str = "", overrides: Mapping[str, tuple[Scalar, ...]] | None = None, *, gpus: int = 0
    ) -> Iterator[Parameters]:
        """Yield each point of the suite's or the benchmark's matrices, with the defaults filled in.

        Args:
            suite: The name of a suite, or "" for the benchmark's own matrix.
            overrides: The values that the operator gave for an axis, which replace those of the matrix.
            gpus: The number of GPUs of this node, which replaces ``all`` as the value of ``gpus``.

        Raises:
            DefinitionError: An override is not a parameter, is of the wrong type or outside of the bounds, or
                gives too many points.
            KeyError: The benchmark is not in the suite.
        """
        overrides = self._checked_overrides(overrides or {})
        matrices = [{**matrix, **overrides} for matrix in (self.suites[suite] if suite else (self.matrix,))]
        if excess := _too_many(matrices):
            raise DefinitionError(f"benchmark {self.name}: {excess}")
        # Matrices of a suite may overlap. All points have the same parameters in the same order.
        earlier_points: set[tuple[Scalar, ...]] = set()
        for axes in matrices:
            for values in itertools.product(*axes.values()):
                point = {**self.parameters, **dict(zip(axes, values, strict=True))}
                # Replace the value before the filters, which may name a number of GPUs.
                if point.get("gpus") == "all":
                    point["gpus"] = gpus
                if self._keeps(point) and (key := tuple(point.values())) not in earlier_points:
                    earlier_points.add(key)
                    yield point

    def _checked_overrides(self, overrides: Mapping[str, tuple[Scalar, ...]]) -> Matrix:
        """Return the overrides, with 2.0 as the whole number 2 if the bounds allow only whole numbers.

        Refuse an override of an unknown parameter, outside of the bounds, or of another type than the
        definition's values.
        """
        checked: Matrix = {}
        for name, values in overrides.items():
            if name not in self.parameters:
                raise DefinitionError(
                    f"benchmark {self.name} has no parameter `{name}`{near_text(name, self.parameters)}"
                )
            known_values = self._known_values(name)
            if self._is_whole(name):
                values = tuple(_as_whole_number(value) for value in values)
            for value in values:
                if wrong := self._wrong_number(name, value) or _wrong_kind(value, known_values):
                    raise DefinitionError(f"benchmark {self.name}: parameter `{name}` is {value!r}: {wrong}")
            checked[name] = values
        return checked

    def _known_values(self, name: str) -> list[Scalar]:
        """Return the values that the file itself gives for a parameter."""
        matrices = [self.matrix, *itertools.chain.from_iterable(self.suites.values())]
        return [self.parameters[name], *(value for matrix in matrices for value in matrix.get(name, ()))]

    def _keeps(self, point: Mapping[str, Scalar]) -> bool:
        """Return whether `only` and `exclude` allow a point."""
        is_selected = not self.only or any(_fits(entry, point) for entry in self.only)
        return is_selected and not any(_fits(entry, point) for entry in self.exclude)


def _as_whole_number(value: Scalar) -> Scalar:
    """Return a whole float as an int, and other values as they are."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wrong_kind(value: Scalar, known: Sequence[Scalar]) -> str:
    """Return a message if a value's type is not that of the definition's values, or "".

    ``known`` are the values of the parameter in the definition. If none of them is negative, a negative value
    has a message, too.
    """
    # A program that gets a word instead of a number fails only after its runtime was created.
    if value in known or value == "":
        return ""
    if all(isinstance(entry, bool) for entry in known) and not isinstance(value, bool):
        return "it has to be true or false"
    numbers = [entry for entry in known if isinstance(entry, int | float) and not isinstance(entry, bool)]
    if len(numbers) < len(known) or value == "all":
        return ""
    if isinstance(value, str | bool):
        return f"it has to be a number, as {known[0]}"
    return "it must not be negative" if value < 0 <= min(numbers) else ""


def _too_many(matrices: Iterable[Mapping[str, Collection[Scalar]]]) -> str:
    """Return the message about matrices with more than MOST_POINTS points together, or "" for others."""
    points = sum(math.prod(len(values) for values in axes.values()) for axes in matrices)
    return f"{amount(points, 'point')}, but only {MOST_POINTS} can be planned" if points > MOST_POINTS else ""


def _fits(point_filter: Filter, point: Mapping[str, Scalar]) -> bool:
    """Return whether a point fits a filter, with a listed value for each of the filter's parameters."""
    return all(axis in point and point[axis] in values for axis, values in point_filter.items())


def _is_inside(path: str) -> bool:
    """Return whether a path stays inside the folder that it is relative to."""
    return not path.startswith("/") and ".." not in path.split("/")


class LoadedDefinition(Record):
    """A definition, the path of its file, and the SHA-256 of the file's bytes."""

    definition: Definition
    path: str
    sha256: str

    @property
    def name(self) -> str:
        """Return the name of the benchmark."""
        return self.definition.name


def substitute_variables(text: str, variables: Mapping[str, Scalar], where: str = "") -> str:
    """Replace every ``{{ name }}`` in text by the variable's value.

    Args:
        text: The text with variables.
        variables: The values by name.
        where: The place of the text, with which messages begin.

    Raises:
        DefinitionError: A variable is unknown (the message suggests similar names), or the text contains
            more than plain variables.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in variables:
            raise DefinitionError(f"{where}: no variable `{name}`{near_text(name, variables)}")
        return str(variables[name])

    replaced = _VARIABLE.sub(value, text)
    if "{{" in replaced or "{%" in replaced:
        raise DefinitionError(
            f"{where}: only plain variables are replaced, as in {{{{ batch_size }}}}: {text!r}"
        )
    return replaced


def command_options(
    options: Mapping[str, Scalar], variables: Mapping[str, Scalar], where: str = ""
) -> list[str]:
    """Return options as words of the form ``--name=value``. An option with an empty value is left out.

    Args:
        options: The values by option, which may contain variables.
        variables: The values of the variables by name.
        where: The place of the options, with which messages begin.

    Raises:
        DefinitionError: A value has an unknown variable, or more than plain variables.
    """
    words = []
    for option, raw in options.items():
        value = substitute_variables(str(raw), variables, f"{where}.{option}")
        if value != "":
            words.append(f"--{option}={value}")
    return words


def load_definition(path: Path, *, log_formats: Collection[str]) -> LoadedDefinition:
    """Read and validate one definition.

    Args:
        path: The definition's file.
        log_formats: The names allowed for `result.format` besides `auto` and `lines`.

    Raises:
        DefinitionError: The definition is wrong. The message names the file, line, key and mistake.
    """
    data, document = _read_yaml(path)
    # Read the YAML nodes, because loading drops line numbers and duplicate keys.
    try:
        lines = lines_of_keys(document, path)
        content = construct_document(document)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DefinitionError(f"{path}: not YAML: {error}") from error
    if not isinstance(content, dict):
        raise DefinitionError(f"{path}:1: a definition is a mapping of keys; see docs/using/benchmarks.md")
    try:
        definition = Definition.model_validate(content, context={"log_formats": log_formats})
        # YAML accepts half a surrogate pair of UTF-16, but the plan could not be written with it.
        definition.model_dump_json()
    except ValidationError as error:
        mistakes = [_explain(path, problem, lines) for problem in error.errors()[:MOST_MISTAKES]]
        if (more := error.error_count() - len(mistakes)) > 0:
            mistakes.append(f"{path}: and {more} more")
        raise DefinitionError("\n".join(mistakes)) from error
    except (ValueError, OverflowError, TypeError) as error:
        raise DefinitionError(f"{path}: a value that no key takes: {str(error)!a}") from error
    if definition.name != path.stem:
        raise DefinitionError(
            f"{path}:{lines.get(('name',), 1)}: name: is `{definition.name}`, but the file is {path.name}; "
            f"call the file {definition.name}{path.suffix}"
        )
    return LoadedDefinition(definition=definition, path=str(path), sha256=hashlib.sha256(data).hexdigest())


def _read_yaml(path: Path) -> tuple[bytes, Any]:
    """Return a file's bytes, and its YAML as nodes with line numbers.

    Raises:
        DefinitionError: The path is not a file, or the file cannot be read, is too large, or is not YAML.
    """
    # Opening a named pipe would wait for a writer, and a device may never end.
    if path.exists() and not path.is_file():
        raise DefinitionError(f"{path}: is not a file: remove it, or move it elsewhere")
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise DefinitionError(f"{path}: more than {MOST_BYTES // 1024} KiB: this is not a definition")
        return data, yaml.compose(data, Loader=yaml.SafeLoader)
    except OSError as error:
        raise DefinitionError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise DefinitionError(f"{path}: nested deeper than {MOST_LEVELS} levels") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DefinitionError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error


def load_definitions(
    folder: Path, *, log_formats: Collection[str], names: Collection[str] = ()
) -> dict[str, LoadedDefinition]:
    """Return the definitions in the ``*.yml`` and ``*.yaml`` files of a folder by name, sorted by name.

    Args:
        folder: The folder with the definitions.
        log_formats: The names allowed for `result.format` besides `auto` and `lines`.
        names: The requested benchmarks. Only their files are read, or all files if this is empty. A
            suite needs all files, because any file may belong to it.

    Raises:
        UnknownBenchmarkError: No file defines a requested benchmark. The message suggests similar names.
        DefinitionError: The folder is missing or empty, or some files are wrong. The message lists them.
    """
    loaded, mistakes = load_valid_definitions(folder, log_formats=log_formats, names=names)
    if mistakes:
        raise DefinitionError("\n".join(mistakes))
    return loaded


def load_valid_definitions(
    folder: Path, *, log_formats: Collection[str], names: Collection[str] = ()
) -> tuple[dict[str, LoadedDefinition], list[str]]:
    """Return the valid definitions of a folder, and a message about each invalid one.

    Arguments and errors are as in :func:`load_definitions`, but invalid files raise no error.
    """
    paths = sorted(
        (path for path in folder.glob("*.y*ml") if path.suffix in (".yml", ".yaml")), key=_benchmark_of_file
    )
    if not paths:
        raise DefinitionError(f"{folder}: no benchmark definitions (*.yml) here; set bench_definitions")
    for path, after in itertools.pairwise(paths):
        if path.stem == after.stem:
            raise DefinitionError(f"{path}: {after.name} is of the same name; remove one")
    # A file is named after its benchmark, so a misspelt name is found without reading the other files.
    for name in names:
        _check_known(name, [path.stem for path in paths])
    loaded, mistakes = {}, []
    for path in paths:
        if names and path.stem not in names:
            continue
        try:
            loaded[path.stem] = load_definition(path, log_formats=log_formats)
        except DefinitionError as error:
            mistakes.append(str(error))
    return loaded, mistakes


def _benchmark_of_file(path: Path) -> str:
    """Return the sorting key of a definition's file, which is the name of its benchmark."""
    return path.stem


def benchmarks_by_suite(definitions: Mapping[str, LoadedDefinition]) -> dict[str, list[str]]:
    """Return the names of the benchmarks in each suite."""
    by_suite: dict[str, list[str]] = {}
    for loaded in definitions.values():
        for suite in loaded.definition.suites:
            by_suite.setdefault(suite, []).append(loaded.name)
    return dict(sorted(by_suite.items()))


def select_benchmarks(
    definitions: Mapping[str, LoadedDefinition], *, suite: str = "", benchmarks: Sequence[str] = ()
) -> list[LoadedDefinition]:
    """Return the named definitions, or all definitions of a suite.

    Args:
        definitions: The definitions by name.
        suite: The name of the suite, which has no effect if benchmarks are named.
        benchmarks: The names of the benchmarks, or empty for the suite.

    Raises:
        UnknownBenchmarkError: There is no such benchmark or suite, or none is given. The message suggests
            names.
    """
    if benchmarks:
        for name in benchmarks:
            _check_known(name, definitions)
        return [definitions[name] for name in dict.fromkeys(benchmarks)]
    by_suite = benchmarks_by_suite(definitions)
    if not suite:
        raise UnknownBenchmarkError(
            "no benchmark or suite is given: give one (-e benchmark=NAME, -e suite=NAME)"
            + near_text("", by_suite)
        )
    if suite not in by_suite:
        raise UnknownBenchmarkError(f"no suite `{suite}`{near_text(suite, by_suite)}")
    return [definitions[name] for name in by_suite[suite]]


def _check_known(name: str, known: Collection[str]) -> None:
    """Refuse a benchmark that does not exist, and suggest similar names."""
    if name not in known:
        raise UnknownBenchmarkError(f"no benchmark `{name}`{near_text(name, known)}")


def _with_lists(axes: Any) -> Any:
    """Accept a single value of an axis as a list with one element."""
    if not isinstance(axes, Mapping):
        return axes
    return {axis: values if isinstance(values, list | tuple) else [values] for axis, values in axes.items()}


def construct_document(document: Any) -> Any:
    """Return the content of a composed YAML document, as `yaml.safe_load` would, without reading it again.

    Raises:
        yaml.YAMLError: A value does not have the form of its tag, such as `!!bool x`.
        ValueError: A value has the form of its tag but is impossible, such as a date in the 13th month.
    """
    try:
        return None if document is None else yaml.SafeLoader("").construct_document(document)
    except (LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML does not check the form, and fails in its own code.
        raise yaml.YAMLError(f"a value does not have the form of its tag: {error}") from error


def lines_of_keys(document: Any, path: Path) -> dict[tuple[str, ...], int]:
    """Return the line of every key and list entry of a composed YAML document, by its path.

    A path consists of keys and of list indices as text. ``path`` is the file, for messages.

    Raises:
        DefinitionError: A key occurs twice (YAML would drop the first), or the document is too deep, too
            large, or contains itself. The message gives the file and the line.
    """
    lines: dict[tuple[str, ...], int] = {}
    _check_keys(document, (), lines, path)
    return lines


def _check_keys(
    node: Any,
    where: tuple[str, ...],
    lines: dict[tuple[str, ...], int],
    path: Path,
    within: tuple[Any, ...] = (),
) -> None:
    """Record the line of each key and list entry in ``lines``. Refuse cycles and duplicate keys.

    Args:
        node: The node of the YAML document.
        where: The path of the node in the document.
        lines: The lines by path, to which entries are added.
        path: The file, for messages.
        within: The nodes that contain this node.
    """
    if any(node is outer for outer in within):
        raise DefinitionError(f"{path}:{node.start_mark.line + 1}: {'.'.join(where)}: contains itself")
    if len(where) > MOST_LEVELS or len(lines) > MOST_KEYS:
        raise DefinitionError(
            f"{path}:{node.start_mark.line + 1}: nested deeper than {MOST_LEVELS} levels, "
            f"or more than {MOST_KEYS} keys and entries with its aliases written out"
        )
    within = (*within, node)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*where, str(key.value))
            line = key.start_mark.line + 1
            if place in lines:
                raise DefinitionError(
                    f"{path}:{line}: {'.'.join(place)}: written twice (first in line {lines[place]})"
                )
            lines[place] = line
            _check_keys(value, place, lines, path, within)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines[(*where, str(number))] = value.start_mark.line + 1
            _check_keys(value, (*where, str(number)), lines, path, within)


def _explain(path: Path, problem: Any, lines: Mapping[tuple[str, ...], int]) -> str:
    """Format one pydantic error as ``file:line: key: problem``."""
    place = tuple(str(part) for part in problem["loc"])
    known_place = place
    while known_place and known_place not in lines:
        known_place = known_place[:-1]
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        allowed = _allowed_keys(place[:-1])
        message = "unknown key" + near_text(place[-1], allowed)
    elif problem["type"] == "missing":
        message = "required key is missing"
    return f"{path}:{lines.get(known_place, 1)}: {'.'.join(place) or 'definition'}: {message}"


def _allowed_keys(parent: tuple[str, ...]) -> list[str]:
    """Return the keys allowed at a place of a definition, so that a message can suggest one."""
    models: dict[tuple[str, ...], type[Record]] = {
        (): Definition,
        ("container",): Container,
        ("build",): Build,
        ("configs",): Configs,
        ("launch",): Launch,
        ("stage",): Stage,
        ("result",): Result,
        ("result", "judge"): JudgeRule,
        ("result", "lines"): LineRules,
    }
    model_path = tuple(part for part in parent if not part.isdigit())
    model = LineMetric if model_path[:3] == ("result", "lines", "metrics") else models.get(model_path)
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def kind_words(annotation: object) -> str:
    """Return the type of a key for readers: ``Literal['a', 'b']`` becomes ``'a' or 'b'``."""
    kind = re.sub(r"rackproof\.core\.\w+\.|typing\.", "", str(annotation))
    kind = re.sub(r"<(?:class|enum) '([^']+)'>", r"\1", kind)
    kind = re.sub(r"Annotated\[(\w+), .*\)\]", r"\1", kind).replace("|", "or")
    return re.sub(r"Literal\[([^]]+)\]", lambda choice: choice[1].replace(", ", " or "), kind)


def schema_markdown() -> str:
    """Return a Markdown reference of all keys. A test compares it with docs/using/benchmarks.md."""
    parts = []
    models: list[tuple[str, type[Record]]] = [
        ("definition", Definition),
        ("container", Container),
        ("build", Build),
        ("configs", Configs),
        ("stage (each entry)", Stage),
        ("launch", Launch),
        ("result", Result),
        ("result.judge (each entry)", JudgeRule),
        ("result.lines", LineRules),
        ("result.lines.metrics (each entry)", LineMetric),
    ]
    for title, model in models:
        parts.append(f"### {title}\n\n| key | kind | default | meaning |\n| --- | --- | --- | --- |")
        for name, field in model.model_fields.items():
            kind = kind_words(field.annotation)
            default = "required" if field.is_required() else f"`{field.default!r}`"
            parts.append(f"| `{field.alias or name}` | {kind} | {default} | {field.description or ''} |")
        parts.append("")
    return "\n".join(parts)

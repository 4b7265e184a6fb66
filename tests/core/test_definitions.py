"""Test that a mistake in a benchmark definition is refused before a run, with its place.

A benchmark is a YAML file below benchmarks/, which sites also write themselves. core/definitions.py reads it.
The tests change one thing in a good definition, and expect an error that names file, line and key, and offers
a similar name. They also check limits for hostile files, and the points that a matrix gives.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from rackproof.core import definitions
from rackproof.core.definitions import DefinitionError, Scalar, UnknownBenchmarkError
from rackproof.logs import FORMATS

GOOD = """\
---
name: good
summary: A benchmark
parameters: {gpus: all, batch_size: 128, target: 0.9}
matrix: {batch_size: [64, 128]}
suites:
  quick:
  sweep:
    - {batch_size: [64, 128], gpus: [1, 2]}
    - {batch_size: 2048, target: 0.8}
exclude: [{batch_size: 64, gpus: 2}]
launch:
  with: local
  runtime: torch
  program: train.py
  arguments: {data: "{{ bench_data }}/x", batch-size: "{{ batch_size }}", lr: ""}
result:
  judge:
    - {metric: eval_accuracy, at_least: "{{ target }}"}
"""


def write(folder: Path, text: str = GOOD, name: str = "good.yml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Each row replaces a text of GOOD. `line` is the line of the message, from 1. It is 1 if the mistake is in no
# single line.
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("launch:", "lanch:", 12, ["lanch", "unknown key", "`launch`"]),
        ("  program: train.py", "  programme: train.py", 15, ["launch.programme", "`program`"]),
        ("summary: A benchmark\n", "", 1, ["summary", "missing"]),
        ("with: local", "with: warp", 13, ["launch.with", "local"]),
        ("metric: eval_accuracy", "metrik: eval_accuracy", 19, ["result.judge.0.metrik", "`metric`"]),
        ("matrix: {batch_size", "matrix: {bach_size", 1, ["bach_size", "`batch_size`"]),
        ("summary: A benchmark", "summary: A benchmark\nsummary: again", 4, ["summary", "twice", "line 3"]),
        ("name: good", "name: other", 2, ["other", "good.yml"]),
        ("  with: local", "  timeout_s: 0\n  with: local", 13, ["launch.timeout_s", "greater than 0"]),
        ("at_least:", "at_most: 1, at_least:", 19, ["one of at_least"]),
        ('    - {metric: eval_accuracy, at_least: "{{ target }}"}', "    []", 18, ["result.judge", "1 item"]),
        # Mistakes that would otherwise show only during a run, and a file that is not YAML.
        ("{{ target }}", "{{ targt }}", 1, ["result.judge", "`targt`", "`target`"]),
        ('"{{ target }}"', ".nan", 19, ["result.judge.0", "finite"]),
        ('"{{ target }}"', "high", 1, ["result.judge", "'high' is not a number"]),
        ("target: 0.9", 'target: ""', 1, ["result.judge", "{{ target }} is empty", "needs a number"]),
        ("result:\n", "result:\n  format: mlog\n", 18, ["result.format", "mllog"]),
        ("matrix: {batch_size: [64, 128]}", "matrix: {batch_size: []}", 1, ["matrix", "batch_size", "value"]),
        ("  quick:\n", "  quick: []\n", 1, ["suites.quick", "matrix"]),
        ("name: good", "name: [", 4, ["not YAML"]),
        # Without the parameter `gpus`, such a rule would be left out on every node.
        (
            GOOD,
            GOOD.replace("gpus: all, ", "")
            .replace(", gpus: [1, 2]", "")
            .replace(", gpus: 2", "")
            .replace("at_least:", "needs_gpus: 1, at_least:"),
            1,
            ["needs_gpus", "parameter `gpus`"],
        ),
        (GOOD, "just text", 1, ["mapping"]),
        # In YAML, `yes` is true, which is no number.
        ("  with: local", "  timeout_s: yes\n  with: local", 13, ["launch.timeout_s", "a number, not true"]),
        ("  with: local", "  hang_s: no\n  with: local", 13, ["launch.hang_s", "a number, not false"]),
        ('at_least: "{{ target }}"', "at_least: true", 19, ["result.judge.0.at_least", "a number, not true"]),
        ('at_least: "{{ target }}"', "equals: false", 19, ["result.judge.0.equals", "a number"]),
        ("result:\n", "result:\n  repeats: on\n", 18, ["result.repeats", "a number"]),
        ("summary: A", "needs_gpus: yes\nsummary: A", 3, ["needs_gpus", "a number"]),
        ("summary: A", "bounds: {batch_size: [yes, 4096]}\nsummary: A", 3, ["bounds", "`batch_size`"]),
        (
            "result:\n",
            "result:\n  lines: {metrics: {x: {pattern: 'x ([0-9]+)', unit: s, at_least: yes}}}\n",
            18,
            ["result.lines", "a number"],
        ),
    ],
)
def test_a_mistake_is_reported_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, words: list[str]
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(DefinitionError) as raised:
        definitions.load_definition(path, log_formats=FORMATS)
    message = str(raised.value)
    assert f"{path}:{line}" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("half", ["\\ud800", "a\\udfffb"])
def test_half_a_character_is_no_text(tmp_path: Path, half: str) -> None:
    path = write(tmp_path, GOOD.replace('lr: ""', f'lr: "{half}"', 1))
    with pytest.raises(DefinitionError, match="no key takes"):
        definitions.load_definition(path, log_formats=FORMATS)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"name: \x00", b"- &a [*a]\n", b""])
def test_a_damaged_file_is_an_error_and_no_crash(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.yml"
    path.write_bytes(data)
    with pytest.raises(DefinitionError, match=r"bad\.yml"):
        definitions.load_definition(path, log_formats=FORMATS)


def test_points_of_a_suite_are_the_union_of_its_matrices_without_the_excluded(tmp_path: Path) -> None:
    definition = definitions.load_definition(write(tmp_path), log_formats=FORMATS).definition
    points = [(p["batch_size"], p["gpus"], p["target"]) for p in definition.points("sweep", gpus=8)]
    assert points == [(64, 1, 0.9), (128, 1, 0.9), (128, 2, 0.9), (2048, 8, 0.8)]
    assert [p["batch_size"] for p in definition.points()] == [64, 128]
    assert [p["batch_size"] for p in definition.points("quick")] == [128]


def test_an_override_replaces_the_matrix(tmp_path: Path) -> None:
    definition = definitions.load_definition(write(tmp_path), log_formats=FORMATS).definition
    assert [p["batch_size"] for p in definition.points("", {"batch_size": (32, 8)})] == [32, 8]
    with pytest.raises(DefinitionError, match="`batch_size`"):
        list(definition.points("", {"batchsize": (32,)}))


@pytest.mark.parametrize("value", ["!!bool x", "!!int ''", "!!float ''", "!!timestamp x"])
def test_a_value_without_the_form_of_its_tag_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "x.yml"
    path.write_text(f"---\nname: {value}\n")
    with pytest.raises(DefinitionError, match=r"x\.yml: not YAML: a value does not have the form of its tag"):
        definitions.load_definition(path, log_formats=FORMATS)


def test_only_plain_variables_are_replaced() -> None:
    assert definitions.substitute_variables("{{ a }}/{{b}}", {"a": "x", "b": 2}) == "x/2"
    for text in ["{{ a | upper }}", "{{ a.b }}", "{% if a %}", "{{ 1 + 1 }}", "{{ lookup('pipe', 'id') }}"]:
        with pytest.raises(DefinitionError):
            definitions.substitute_variables(text, {"a": "x"}, "here")
    with pytest.raises(DefinitionError, match=r"`bench_dta`.*`bench_data`"):
        definitions.substitute_variables("{{ bench_dta }}", {"bench_data": "x"})


def test_a_value_cannot_smuggle_a_variable_or_split_an_argument() -> None:
    words = definitions.command_options({"data": "{{ a }}"}, {"a": "x y; rm -rf /", "b": "secret"})
    assert words == ["--data=x y; rm -rf /"]
    assert definitions.command_options({"lr": ""}, {}) == []


def test_unknown_names_offer_near_ones(tmp_path: Path) -> None:
    write(tmp_path)
    known = definitions.load_definitions(tmp_path, log_formats=FORMATS)
    with pytest.raises(UnknownBenchmarkError, match="did you mean `good`"):
        definitions.select_benchmarks(known, benchmarks=["goood"])
    with pytest.raises(UnknownBenchmarkError, match="did you mean `quick`"):
        definitions.select_benchmarks(known, suite="quik")
    with pytest.raises(UnknownBenchmarkError, match="there is: quick, sweep"):
        definitions.select_benchmarks(known, suite="zzz")
    with pytest.raises(UnknownBenchmarkError, match="no benchmark or suite is given: give one"):
        definitions.select_benchmarks(known, suite="", benchmarks=[])
    with pytest.raises(DefinitionError, match="no benchmark definitions"):
        definitions.load_definitions(tmp_path / "none", log_formats=FORMATS)


def test_a_bound_may_name_a_parameter(tmp_path: Path) -> None:
    rule = definitions.load_definition(write(tmp_path), log_formats=FORMATS).definition.result.judge[0]
    reference = rule.bound("good.yml", {"target": 0.8})
    assert reference is not None
    assert (reference.value, reference.low, reference.high) == (0.8, 0.0, None)
    with pytest.raises(DefinitionError, match="not a number"):
        rule.bound("good.yml", {"target": "high"})


def test_the_shipped_definitions_load_and_name_existing_programs(root: Path) -> None:
    known = definitions.load_definitions(root / "benchmarks", log_formats=FORMATS)
    for loaded in known.values():
        launch = loaded.definition.launch
        if launch.with_ != "local" or launch.command:
            continue
        assert (root / "workloads" / launch.program).is_file(), loaded.name
        if launch.runtime:
            assert (root / "workloads" / launch.runtime / "runtime.json").is_file(), loaded.name
        for stage in loaded.definition.stage:
            assert (root / "workloads" / stage.program).is_file(), loaded.name
    assert {"quick", "mnist", "mlperf-training-5.1"} <= set(definitions.benchmarks_by_suite(known))


def test_no_measuring_time_is_longer_than_the_limit_that_ends_the_job(root: Path) -> None:
    known = definitions.load_definitions(root / "benchmarks", log_formats=FORMATS)
    limits = {
        name: (loaded.definition.bounds["seconds"][1], loaded.definition.launch.timeout_s)
        for name, loaded in known.items()
        if "seconds" in loaded.definition.bounds
    }
    assert len(limits) > 10
    assert not {name for name, (longest, timeout_s) in limits.items() if longest >= timeout_s}


CLUSTER = """\
name: big
summary: Trains on a rack
container: {images: {amd64: "a/b:1", arm64: "a/b:1"}, folder: /workspace}
configs: {systems: {gb300: GB300}}
stage: [{creates: data, run: "fetch {{ bench_shared }}", mount: /data, size_gb: 3}]
launch: {with: slurm, environment: {DATADIR: "{{ bench_shared }}/data/big/data"}}
result: {judge: [{metric: eval_accuracy, at_most: 0.9}]}
"""


# Each row replaces a text of CLUSTER, a definition that Slurm starts from a container image.
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("configs: {systems: {gb300: GB300}}\n", "", "launch with slurm needs `configs`"),
        (
            'container: {images: {amd64: "a/b:1", arm64: "a/b:1"}, folder: /workspace}\n',
            "",
            "launch with slurm needs `contai",
        ),
        ("with: slurm", "with: slurm, program: x.py", "starts the image's run.sub"),
        ("with: slurm", "with: local, runtime: torch, program: x.py", "is for launch with slurm"),
        (", mount: /data", "", "run and mount belong together"),
        ('run: "fetch {{ bench_shared }}", mount: /data', "program: x.py", "stages by `run` and `mount`"),
        ("creates: data", "creates: ../data", "not a path below the data's folder"),
        ("folder: /workspace", "folder: /workspace, taggs: 2", "unknown key"),
    ],
)
def test_a_definition_for_a_cluster_is_complete_or_refused(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    path = tmp_path / "big.yml"
    path.write_text(CLUSTER)
    assert definitions.load_definition(path, log_formats=FORMATS).definition.launch.with_ == "slurm"
    path.write_text(CLUSTER.replace(old, new))
    with pytest.raises(DefinitionError, match=complaint):
        definitions.load_definition(path, log_formats=FORMATS)


def test_a_benchmark_named_twice_is_chosen_once(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = definitions.load_definitions(tmp_path, log_formats=FORMATS)
    assert [one.name for one in definitions.select_benchmarks(loaded, benchmarks=["good", "good"])] == [
        "good"
    ]


BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9)
)
"""YAML whose aliases multiply: 10 values ten times at each of 8 levels, a billion when written out."""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (GOOD + "#" * 60_000_000, "more than 64 KiB"),
        (BOMB, "aliases written out"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested deeper"),
        ("a: " + "{a: " * 40 + "1" + "}" * 40, "nested deeper"),
        (
            GOOD.replace(
                "matrix: {batch_size: [64, 128]}",
                f"matrix: {{batch_size: {[*range(1, 501)]}, gpus: {[*range(1, 401)]}}}",
            ),
            "matrix: 200000 points",
        ),
        ("\n".join(f"k{number}: 1" for number in range(2000)), "and 1994 more"),
    ],
    ids=["60 MB", "aliases", "3000 levels", "40 levels", "points", "unknown keys"],
)
def test_a_file_that_is_no_definition_is_refused_by_name_before_it_takes_long(
    tmp_path: Path, text: str, what: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DefinitionError, match=what) as raised:
        definitions.load_definition(path, log_formats=FORMATS)
    assert str(path) in str(raised.value)
    assert len(str(raised.value)) < 5000


def test_values_of_the_operator_cannot_make_too_many_points(tmp_path: Path) -> None:
    definition = definitions.load_definition(write(tmp_path), log_formats=FORMATS).definition
    with pytest.raises(DefinitionError, match="good: 3000 points"):
        list(definition.points("", {"batch_size": tuple(range(3000))}))


@pytest.mark.parametrize("half", [GOOD[: len(GOOD) // 2], "name: [", ""])
def test_a_half_written_file_stops_its_own_benchmark_and_suites_alone(tmp_path: Path, half: str) -> None:
    write(tmp_path)
    (tmp_path / "half.yaml").write_text(half)
    assert list(definitions.load_definitions(tmp_path, log_formats=FORMATS, names=["good"])) == ["good"]
    for names in (["half"], ["good", "half"], []):
        with pytest.raises(DefinitionError, match=r"half\.yaml"):
            definitions.load_definitions(tmp_path, log_formats=FORMATS, names=names)
    with pytest.raises(UnknownBenchmarkError, match="no benchmark `goood`; did you mean `good`"):
        definitions.load_definitions(tmp_path, log_formats=FORMATS, names=["goood"])


def test_each_wrong_file_is_named_and_the_others_are_loaded(tmp_path: Path) -> None:
    write(tmp_path)
    os.mkfifo(tmp_path / "pipe.yml")
    (tmp_path / "zero.yml").symlink_to("/dev/zero")
    (tmp_path / "gone.yml").symlink_to("nowhere")
    (tmp_path / "folder.yml").mkdir()
    write(tmp_path, BOMB, "bomb.yml")
    loaded, mistakes = definitions.load_valid_definitions(tmp_path, log_formats=FORMATS)
    assert list(loaded) == ["good"]
    for name, mistake in zip(("bomb", "folder", "gone", "pipe", "zero"), mistakes, strict=True):
        assert f"{name}.yml" in mistake
    with pytest.raises(DefinitionError, match=r"(?s)bomb\.yml.*zero\.yml"):
        definitions.load_definitions(tmp_path, log_formats=FORMATS)


def test_both_endings_of_yaml_count_and_one_name_has_one_file(tmp_path: Path) -> None:
    good = write(tmp_path)
    good.rename(tmp_path / "good.yaml")
    assert list(definitions.load_definitions(tmp_path, log_formats=FORMATS)) == ["good"]
    write(tmp_path)
    with pytest.raises(DefinitionError, match="of the same name"):
        definitions.load_definitions(tmp_path, log_formats=FORMATS)


SHIPPED = definitions.load_definitions(Path(__file__).parents[2] / "benchmarks", log_formats=FORMATS)
NUMBERS = [
    (loaded.name, parameter)
    for loaded in SHIPPED.values()
    for parameter, value in loaded.definition.parameters.items()
    if isinstance(value, int | float) or parameter == "gpus"
]


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_a_number_that_no_program_can_use_is_refused_before_the_run(name: str, parameter: str) -> None:
    """Each numeric parameter of a shipped definition has bounds, so -5, 1e15 or NaN cannot be planned."""
    definition = SHIPPED[name].definition
    least, most = definition.bounds[parameter]
    wrong: list[Scalar] = [-5, 1e15, math.nan, math.inf, True, "abc", least - 1, most * 2]
    if isinstance(least, int):
        wrong += [least + 0.5, "5"]
    for value in wrong:
        with pytest.raises(DefinitionError, match=rf"parameter `{parameter}` is .*: it has to be a .*number"):
            list(definition.points("", {parameter: (value,)}))
    for value in (least, most):
        list(definition.points("", {parameter: (value,)}))


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [
        ("tf-cnn-cpu", "port", 1023),
        ("soak", "seconds", 4.9),
        ("host-device-bandwidth", "gpus", 0),
        ("peer-bandwidth", "gpus", 1),
        *(
            (name, "width", width)
            for name in SHIPPED
            if name.startswith(("resnet50", "vgg16"))
            for width in (0, 1.5)
        ),
    ],
)
def test_no_bounds_include_a_number_that_the_program_refuses(name: str, parameter: str, value: float) -> None:
    with pytest.raises(DefinitionError, match=f"parameter `{parameter}` is {value}: it has to be a"):
        list(SHIPPED[name].definition.points("", {parameter: (value,)}))


@pytest.mark.parametrize("name", ["all-reduce", "collectives", "straggler", "gpu-agreement"])
def test_a_collective_runs_on_several_gpus_or_on_the_cpu(name: str) -> None:
    points = list(SHIPPED[name].definition.points("", {"gpus": (0, 1, 2)}))
    assert [point["gpus"] for point in points] == [0, 2]


@pytest.mark.parametrize(
    ("parameter", "given", "value"),
    [("gpus", 4.0, 4), ("nodes", 2.0, 2), ("batch_size", 1e3, 1000), ("learning_rate", 1.0, 1.0)],
)
def test_a_whole_float_is_the_whole_number(parameter: str, given: float, value: float) -> None:
    definition = SHIPPED["mnist-lenet"].definition
    points = list(definition.points("", {parameter: (given,)}))
    assert points
    assert json.dumps(points) == json.dumps(list(definition.points("", {parameter: (value,)})))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (-5, "must not be negative"),
        (math.nan, "finite number"),
        (math.inf, "finite number"),
        (0, ""),
        (7, ""),
    ],
)
def test_without_bounds_a_number_is_finite_and_no_size_is_negative(
    tmp_path: Path, value: float, problem: str
) -> None:
    definition = definitions.load_definition(write(tmp_path), log_formats=FORMATS).definition
    if problem:
        with pytest.raises(DefinitionError, match=problem):
            list(definition.points("", {"batch_size": (value,)}))
    else:
        assert list(definition.points("", {"batch_size": (value,)}))


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ("{batch_size: [10, 1]}", "10 to 1 is not a range"),
        ("{batch_size: [1000, 2000]}", "it has to be a whole number from 1,000 to 2,000"),
        ("{batch_siez: [1, 2]}", "did you mean `batch_size`"),
        ("{batch_size: [1, .nan]}", "1 to nan is not a range of finite numbers"),
        ("{batch_size: [1]}", "bounds.batch_size.1: required key is missing"),
    ],
)
def test_bounds_that_do_not_fit_the_file_are_refused(tmp_path: Path, bounds: str, problem: str) -> None:
    path = write(tmp_path, GOOD.replace("launch:", f"bounds: {bounds}\nlaunch:", 1))
    with pytest.raises(DefinitionError, match=problem):
        definitions.load_definition(path, log_formats=FORMATS)


def test_a_text_in_the_file_is_refused_if_its_parameter_has_bounds(tmp_path: Path) -> None:
    text = GOOD.replace("target: 0.9}", "target: 0.9, workers: few}")
    path = write(tmp_path, text.replace("launch:", "bounds: {workers: [1, 8]}\nlaunch:", 1))
    with pytest.raises(DefinitionError, match="`workers` is 'few': it has to be a whole number from 1 to 8"):
        definitions.load_definition(path, log_formats=FORMATS)


# Each of the two matrices has 1036 values. With the third one of GOOD, the suite has 1037 or 2073 points.
@pytest.mark.parametrize("axes", [1, 2])
def test_the_matrices_of_a_suite_share_the_limit_of_points(tmp_path: Path, axes: int) -> None:
    matrices = "".join(f"    - {{batch_size: {list(range(64, 1100))}, target: 0.{n}}}\n" for n in range(1, 3))
    text = GOOD.replace(
        "    - {batch_size: [64, 128], gpus: [1, 2]}\n", matrices[: len(matrices) * axes // 2]
    )
    if axes == 1:
        points = definitions.load_definition(write(tmp_path, text), log_formats=FORMATS).definition.points
        assert len(list(points("sweep", gpus=8))) == 1036 + 1
        return
    with pytest.raises(DefinitionError, match=r"suites\.sweep: 2073 points, but only 2000"):
        definitions.load_definition(write(tmp_path, text), log_formats=FORMATS)


def test_overrides_of_several_matrices_share_the_limit_of_points(tmp_path: Path) -> None:
    definition = definitions.load_definition(write(tmp_path), log_formats=FORMATS).definition
    with pytest.raises(DefinitionError, match="good: 3600 points"):
        list(definition.points("sweep", {"batch_size": tuple(range(1, 1201))}))


def test_points_that_are_equal_numbers_are_one_point(tmp_path: Path) -> None:
    text = GOOD.replace("{batch_size: 2048, target: 0.8}", "{batch_size: [64, 64.0, 128], gpus: [1]}")
    definition = definitions.load_definition(write(tmp_path, text), log_formats=FORMATS).definition
    points = [(p["batch_size"], p["gpus"]) for p in definition.points("sweep", gpus=8)]
    assert points == [(64, 1), (128, 1), (128, 2)]

"""Test the system description of a submission (:mod:`rackproof.analysis.submission.description`).

MLCommons requires a file ``systems/SYSTEM.json``. Its values are those of the operator's file, of the nodes'
facts, and of the logs, in this order. These tests check which value is used, that nothing is invented, and
that a value which contradicts the nodes or the logs is an issue. No process is started.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

from rackproof.analysis.submission.description import (
    ANSWERED,
    FIELDS,
    IDENTITY,
    STATUSES,
    SystemFile,
    describe_system,
    facts_of_nodes,
    load_system_file,
)
from rackproof.analysis.submission.models import ChosenRun, SubmissionError
from rackproof.analysis.submission.runs import examine_run
from rackproof.core.records import Verdict

from .corpus import PRINTED, SYSTEM, make_run, node


def chosen(folder: Path, number: int = 0, **how: Any) -> ChosenRun:
    """Return a run that was examined for a submission."""
    run = make_run(folder, number, **how)
    examined = examine_run(run, folder / run.run_id)
    assert isinstance(examined, ChosenRun)
    return examined


def test_the_official_checker_requires_exactly_these_keys(tmp_path: Path, caplog: Any) -> None:
    path = tmp_path / "system.json"
    whole = dict.fromkeys(FIELDS, "x") | {"status": STATUSES[0]}
    path.write_text(json.dumps(whole))
    assert check_system_desc(str(path), "training", "6.1.0")[0] is True
    for key in (*IDENTITY, *ANSWERED):
        path.write_text(json.dumps({name: value for name, value in whole.items() if name != key}))
        with caplog.at_level(logging.ERROR):
            assert check_system_desc(str(path), "training", "5.1.0")[0] is False, key
    for status in STATUSES:
        path.write_text(json.dumps(whole | {"status": status}))
        assert check_system_desc(str(path), "training", "6.0.0")[0] is True


def test_the_facts_of_nodes_give_values_of_the_description() -> None:
    facts = facts_of_nodes((node("n1"), node("n2").model_copy(update={"memory_bytes": 2_050_000_000_000})))
    assert facts == {
        "number_of_nodes": "2",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA B200",
        "accelerator_memory_capacity": "192000 MiB",
        "host_processor_model_name": "INTEL(R) XEON(R) PLATINUM 8570",
        "host_memory_capacity": "2.0 TB",
        "operating_system": "Ubuntu 24.04.3 LTS",
        "other_software_stack": {"kernel_version": "6.8.0-90-generic", "nvidia_kernel_driver": "590.10"},
    }
    assert facts_of_nodes(()) == {}


def test_nothing_is_invented(tmp_path: Path, system_file: Callable[..., Path]) -> None:
    one = chosen(tmp_path, nodes=(), printed=None)
    description, issues = describe_system(load_system_file(system_file(host_networking=None)), [one])
    assert description["framework"] == description["operating_system"] == description["number_of_nodes"] == ""
    missing = {issue.message.rpartition("system's ")[2] for issue in issues if issue.code == "key_missing"}
    assert missing == {
        "number_of_nodes",
        "accelerators_per_node",
        "accelerator_model_name",
        "framework",
        "host_processors_per_node",
        "host_processor_model_name",
        "host_processor_core_count",
        "host_memory_capacity",
        "host_networking",
        "accelerator_memory_capacity",
        "other_software_stack",
        "operating_system",
    }


def test_an_empty_text_is_an_answer_except_for_required_keys(
    tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    _, issues = describe_system(load_system_file(system_file(cooling="", framework="")), [chosen(tmp_path)])
    assert {(issue.code, issue.verdict) for issue in issues} == {
        ("key_missing", Verdict.UNPROVEN),
        ("key_not_stated", None),
    }
    assert "cooling" in next(issue.message for issue in issues if issue.code == "key_not_stated")
    assert "framework" in next(issue.message for issue in issues if issue.code == "key_missing")


def test_the_operator_comes_first_then_nodes_then_logs(
    tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    printed = PRINTED | {"operating_system": "Debian", "host_memory_capacity": "1 TB", "hw_notes": "quiet"}
    stack = {"nccl_version": "2.29.1-mine", "slurm_version": 25.05}
    description, issues = describe_system(
        load_system_file(system_file(host_memory_capacity="2 TB", other_software_stack=stack)),
        [chosen(tmp_path, printed=printed)],
    )
    assert not issues
    assert description["host_memory_capacity"] == "2 TB"
    assert description["operating_system"] == "Ubuntu 24.04.3 LTS"
    assert description["hw_notes"] == "quiet"
    assert description["other_software_stack"]["nccl_version"] == "2.29.1-mine"
    assert description["other_software_stack"]["slurm_version"] == "25.05"
    assert description["other_software_stack"]["cuda_version"] == "13.1"
    assert "trt_version" not in description["other_software_stack"]
    assert "UNKNOWN" not in json.dumps(description)


def test_all_versions_of_a_program_are_written_down(tmp_path: Path, system: SystemFile) -> None:
    runs = [chosen(tmp_path, 0), chosen(tmp_path, 1, nodes=(node("n1", driver="590.20"), node("n2")))]
    description, issues = describe_system(system, runs)
    assert description["other_software_stack"]["nvidia_kernel_driver"] == "590.10; 590.20"
    assert not issues


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA B200 PCIe"])
def test_runs_of_two_systems_are_an_issue(gpu: str, tmp_path: Path, system: SystemFile) -> None:
    """A PCIe card is another product than the module, although the names of both contain B200."""
    printed = PRINTED | {"accelerator_model_name": gpu}
    other = chosen(tmp_path, 1, nodes=(node("n3", gpu=gpu), node("n4", gpu=gpu)), printed=printed)
    description, issues = describe_system(system, [chosen(tmp_path, 0), other, chosen(tmp_path, 2)])
    assert description["accelerator_model_name"] == "NVIDIA B200"
    assert {issue.run for issue in issues} == {other.run.run_id}
    assert "nodes_unlike" in {issue.code for issue in issues}


def test_logs_of_two_systems_are_an_issue_without_nodes(tmp_path: Path, system: SystemFile) -> None:
    """Without facts of nodes, the logs are compared with each other."""
    other = chosen(tmp_path, 1, nodes=(), printed=PRINTED | {"accelerator_model_name": "NVIDIA GB200"})
    _, issues = describe_system(system, [chosen(tmp_path, 0, nodes=()), other])
    wrong = [issue for issue in issues if issue.code == "description_contradicted"]
    assert [(issue.run, issue.verdict) for issue in wrong] == [(other.run.run_id, Verdict.FAIL)]
    assert wrong[0].remedy == "choose runs of one system: the description follows the first of them"


@pytest.mark.parametrize(
    ("name", "agrees"),
    [
        ("NVIDIA Blackwell GPU (B200)", True),
        ("b200", True),
        ("NVIDIA B200 180GB HBM3e", True),
        ("NVIDIA GB200", False),
        ("NVIDIA Blackwell Ultra GPU (B300)", False),
        ("NVIDIA H200 192GB HBM3e", False),
        ("NVIDIA", False),
    ],
)
def test_names_of_one_accelerator_model_agree(
    name: str, agrees: bool, tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    _, issues = describe_system(
        load_system_file(system_file(accelerator_model_name=name)), [chosen(tmp_path)]
    )
    assert bool(issues) is not agrees
    assert all(issue.code == "description_contradicted" for issue in issues)


SEEN = PRINTED | {
    "host_processor_vcpu_count": "112",
    "host_memory_capacity": "3.9 TB",
    "accelerator_memory_capacity": "183359 MiB",
    "operating_system": "Ubuntu 24.04.3 LTS",
    "cooling": "direct liquid",
    "other_software_stack": {"cuda_version": "13.1.0.012", "nvidia_kernel_driver": "580.95.05"},
}
"""A longer description than ``PRINTED``."""


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"host_memory_capacity": "1 TB"}, Verdict.FAIL),
        ({"accelerator_memory_capacity": "141 GB"}, Verdict.FAIL),
        ({"accelerator_memory_capacity": "lots"}, Verdict.UNPROVEN),
        ({"host_processor_core_count": 128}, Verdict.FAIL),
        ({"host_processor_vcpu_count": "224"}, Verdict.FAIL),
        ({"operating_system": "Ubuntu 22.04"}, Verdict.FAIL),
        ({"operating_system": "Rocky Linux 24.04"}, Verdict.FAIL),
        ({"accelerator_model_name": "NVIDIA A100 B200"}, Verdict.FAIL),
        ({"other_software_stack": {"cuda_version": "12.0"}}, Verdict.FAIL),
        ({"other_software_stack": {"CUDA": "12.0"}}, Verdict.FAIL),
        ({"other_software_stack": {"cuda_version": "newest"}}, Verdict.UNPROVEN),
        ({"other_software_stack": {"nvidia_kernel_driver": "1.2.3"}}, Verdict.FAIL),
        ({"other_software_stack": "CUDA 12.0"}, Verdict.UNPROVEN),
        ({"cooling": "air"}, None),
        ({"operating_system": "Ubuntu 24.04.1 LTS"}, None),
    ],
)
def test_what_a_log_shows_is_compared_key_by_key(
    stated: dict[str, Any], expected: Verdict | None, tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    """An imported run has no facts of its nodes, so only its log shows the system."""
    system = load_system_file(system_file(**{"cooling": "direct liquid", **stated}))
    _, issues = describe_system(system, [chosen(tmp_path, nodes=(), printed=SEEN)])
    assert [issue.verdict for issue in issues] == [expected], issues


@pytest.mark.parametrize(
    "stated",
    [
        {"host_memory_capacity": "4 TB"},
        {"host_memory_capacity": "4,096 GB"},
        {"accelerator_memory_capacity": "192 GB"},
        {"accelerator_memory_capacity": "180GB HBM3e"},
        {"operating_system": "ubuntu 24.04"},
        {"host_processor_core_count": 56.0},
        {"accelerator_model_name": "NVIDIA Blackwell GPU (B200-SXM-180GB)"},
        {"other_software_stack": {"cuda_version": "13.1", "nvidia_kernel_driver": "580"}},
        {"other_software_stack": {"cuda_version": 13.1}},
    ],
)
def test_harmless_differences_are_no_issue(
    stated: dict[str, Any], tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    system = load_system_file(system_file(**{"cooling": "direct liquid", **stated}))
    assert describe_system(system, [chosen(tmp_path, nodes=(), printed=SEEN)])[1] == []


def test_software_that_only_the_log_shows_is_compared_beside_the_nodes(
    tmp_path: Path, system_file: Callable[..., Path]
) -> None:
    system = load_system_file(system_file(other_software_stack={"cuda_version": "12.0"}))
    _, issues = describe_system(system, [chosen(tmp_path)])
    assert [(issue.code, issue.verdict) for issue in issues] == [("description_contradicted", Verdict.FAIL)]


def test_placeholders_in_logs_are_a_remark(tmp_path: Path, system_file: Callable[..., Path]) -> None:
    description = load_system_file(system_file(submitter="Somebody Else", status="Available cloud"))
    _, issues = describe_system(description, [chosen(tmp_path)])
    assert {(issue.code, issue.verdict) for issue in issues} == {("identity_in_logs", None)}
    assert len(issues) == 2


class TestSystemFile:
    def test_names_of_folders_are_made_valid(self, system_file: Callable[..., Path]) -> None:
        description = load_system_file(system_file(submitter="Ex & Söhne", implementation="b200_ngc26.01"))
        assert (description.submitter_folder, description.system, description.implementation) == (
            "Ex_S_hne",
            "b200_n2",
            "b200_ngc26.01",
        )

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"coolin": "air"}, "unknown key coolin; did you mean cooling?"),
            ({"cooling": ["air"]}, "cooling must be text or a number"),
            ({"number_of_nodes": float("nan")}, "number_of_nodes must be text or a number"),
            ({"host_memory_capacity": "NaN GB"}, "host_memory_capacity must be text or a number"),
            ({"other_software_stack": {"cuda": float("inf")}}, "cuda must be text or a number"),
            ({"cooling": True}, "cooling must be text or a number"),
            ({"other_software_stack": {"cuda": {"a": 1}}}, "cuda must be text or a number"),
            ({"system": "../evil"}, "system '../evil' cannot name a folder"),
            ({"system": None}, "system '' cannot name a folder"),
            ({"implementation": "a b"}, "implementation 'a b' cannot name a folder"),
            ({"submitter": None}, "submitter is missing; only you can give it"),
            ({"submitter": "…"}, "has no letter that names a folder"),
            ({"division": "Closed"}, "division 'Closed' is none of: closed; open"),
            ({"status": "onprem"}, "status 'onprem' is none of: Available on-premise; "),
        ],
    )
    def test_mistakes_are_named(
        self, changes: dict[str, Any], message: str, system_file: Callable[..., Path]
    ) -> None:
        with pytest.raises(SubmissionError) as caught:
            load_system_file(system_file(**changes))
        assert message in str(caught.value)
        assert "system.yml" in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"a: [", "is not YAML"),
            (b"\xff\xfe\x00", "is not YAML"),
            (b"", "has no keys"),
            (b"- a\n", "has no keys"),
            (b"a: &a [x, x]\nb: [*a, *a]\n", "unknown key a"),
            (b"#" * 70_000, "too large"),
            (b"division: closed\ndivision: open\n", "system.yml:2: division: written twice"),
            (b"system: a\nstatus: x\n'system': b\n", "system.yml:3: system: written twice"),
            (b"a: &a {b: *a}\n", "contains itself"),
            (b"a: !!bool x\n", "is not YAML"),
            (b"a: !!int ''\n", "is not YAML"),
            (b"a: !!timestamp x\n", "is not YAML"),
            (b"hw_notes: 0x" + b"F" * 8000, "hw_notes must be text or a number"),
        ],
    )
    def test_broken_files_are_refused(self, content: bytes, message: str, tmp_path: Path) -> None:
        path = tmp_path / "system.yml"
        path.write_bytes(content)
        with pytest.raises(SubmissionError, match=message):
            load_system_file(path)

    def test_the_error_about_a_missing_file_names_the_example(self, tmp_path: Path) -> None:
        with pytest.raises(SubmissionError, match=r"docs/using/submission\.md has an example"):
            load_system_file(tmp_path / "gone.yml")

    def test_the_documented_example_is_valid(self, root: Path, tmp_path: Path) -> None:
        text = (root / "docs/using/submission.md").read_text().split("```yaml\n", 1)[1].split("```", 1)[0]
        path = tmp_path / "system.yml"
        path.write_text(text)
        system = load_system_file(path)
        assert system.submitter_folder == "Example_Org"
        assert set(SYSTEM) - set(yaml.safe_load(text)) == set()
        _, issues = describe_system(
            system, [chosen(tmp_path, nodes=(node("n1", gpu="NVIDIA B200"), node("n2")))]
        )
        assert [issue.code for issue in issues if issue.verdict] == []

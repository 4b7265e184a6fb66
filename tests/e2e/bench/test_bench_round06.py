"""Test bench.yml with the suite of MLPerf Training 0.6 on two hosts at once, without a test rack.

Each host is a separate system. Both are names of this machine with a fake Docker and a fake nvidia-smi, and
the benchmarks are fake sources. The tests show that the hosts run at the same time, that one host has one run
at a time, that a page compares the hosts, and that a run without a cleared page cache does not pass.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.store.run_folder import iter_runs
from tests.e2e.bench.playing import play_bench

pytestmark = pytest.mark.playbook
HOSTS = ("hyperplane-n1", "hyperplane-n2")
NEVER = datetime.min.replace(tzinfo=UTC)


def inventory(root: Path, folder: Path) -> Path:
    """Write an inventory of two names of this machine, each with its own fake Docker. Return its path."""
    sys.path.insert(0, str(root / "testrack/images/round06"))
    import pack

    commit, archive = pack.pack(folder / "sources", "base")
    tools = folder / "bin"
    tools.mkdir()
    fake = root / "tests/workloads/fake_docker.py"
    (tools / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} {fake} "$@"\n')
    (tools / "docker").chmod(0o755)
    answer = root / "tests/data/real/nvidia-smi/qx-a100.xml"
    (tools / "nvidia-smi").write_text(f'#!/bin/sh\n[ "$*" = "-q -x" ] && exec cat {answer}\n')
    (tools / "nvidia-smi").chmod(0o755)
    for name in ("python", "python3"):
        (tools / name).symlink_to(sys.executable)
    hosts: dict[str, Any] = {}
    for host in HOSTS:
        (folder / host / "engine").mkdir(parents=True)
        hosts[host] = {
            "bench_home": str(folder / host),
            # Speeds do not matter here, so runs need neither an idle machine nor a lock of the whole machine.
            "bench_machine_lock": str(folder / host / "machine.lock"),
            "bench_require_idle": False,
            "bench_environment": {"FAKE_DOCKER": str(folder / host / "engine"), "STANDIN_SECONDS": "0.5"},
        }
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "bench_workloads": str(root / "workloads"),
        "bench_results": str(folder / "results"),
        "bench_sku": "hyperplane",
        "bench_sku_gpus": 1,
        "bench_sku_gpu_name": "A100",
        "bench_suite": "mlperf-training-0.6",
        "bench_require_references": False,
        "bench_published_references": False,
        "bench_size_factor": 0.0001,
        "bench_mlperf06_ref": commit,
        "bench_mlperf06_sources": str(archive),
    }
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"children": {"hyperplane": {"hosts": hosts, "vars": common}}}}))
    return path


def play(root: Path, folder: Path, **variables: Any) -> tuple[int, str]:
    """Run bench.yml on both hosts. Return its status and output."""
    return play_bench(root, folder, "-l", "hyperplane", "-e", json.dumps(variables))


def test_every_limited_host_is_a_system_and_stands_beside_the_others(root: Path, tmp_path: Path) -> None:
    hosts = inventory(root, tmp_path)
    content = yaml.safe_load(hosts.read_text())
    # The second host has two runs.
    content["all"]["children"]["hyperplane"]["hosts"][HOSTS[1]]["bench_repeats"] = 2
    hosts.write_text(yaml.safe_dump(content))
    status, output = play(root, tmp_path, benchmark="gnmt-0.6")
    assert status == 0, output
    runs = list(iter_runs(tmp_path / "results"))
    assert sorted((run.benchmark, run.nodes[0].name, run.verdict.value) for run in runs) == [
        ("gnmt-0.6", host, "pass") for host in (*HOSTS, HOSTS[1])
    ], output
    for run in runs:
        assert run.launcher == "docker"
        assert run.parameters["system"] == "LambdaHyperplaneBasic"
        assert run.container_digest.startswith("sha256:")
        assert (tmp_path / "results" / run.run_id / "run.sub").is_file()
        assert (tmp_path / "results" / run.run_id / "config_LambdaHyperplaneBasic.sh").is_file()
    first, second, third = sorted(runs, key=lambda run: run.started or NEVER)
    assert (first.ended or NEVER) > (second.started or NEVER), "one host waited for the other"
    assert (third.started or NEVER) > (second.ended or NEVER), "two runs on one host at once"
    (page,) = (tmp_path / "results").glob("plan-*/comparison.md")
    text = page.read_text()
    assert all(word in text for word in (*HOSTS, "gnmt", "epochs")), text
    assert "side by side: " in output


def test_a_run_whose_cache_was_not_cleared_fails_and_a_sku_without_a_config_is_unproven(
    root: Path, tmp_path: Path
) -> None:
    hosts = inventory(root, tmp_path)
    content = yaml.safe_load(hosts.read_text())
    each = content["all"]["children"]["hyperplane"]["hosts"]
    each[HOSTS[0]]["bench_environment"]["STANDIN_FAULT"] = "cache-not-cleared"
    each[HOSTS[1]]["bench_sku"] = "h100"
    hosts.write_text(yaml.safe_dump(content))
    status, output = play(root, tmp_path, benchmark="minigo-0.6")
    assert status == 2, output
    by_host = {run.asked_nodes[0]: run for run in iter_runs(tmp_path / "results")}
    assert [by_host[host].verdict.value for host in HOSTS] == ["fail", "unproven"], output
    reasons = " ".join(by_host[HOSTS[0]].reasons)
    assert "the page cache was cleared on 0 of 1 node" in reasons
    assert "not compliant with the rules 0.6.0" in reasons
    assert "no config for SKU h100; there are hyperplane" in " ".join(by_host[HOSTS[1]].reasons)

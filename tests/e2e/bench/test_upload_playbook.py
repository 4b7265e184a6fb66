"""Test the upload of results to an object store, by bench.yml and by playbooks/upload-results.yml.

With ``bench_results_bucket``, bench.yml copies each recorded run and the plan's pages to a bucket. The store
here is a real OpenStack Swift. The tests show that all files arrive, that the key is in no output, file or
process, and that a missing store changes no verdict. A later upload then copies the missing files.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackproof.store.object_store import Bucket, ObjectStore
from testrack.swift.server import ACCESS_KEY, SECRET_KEY, Swift, running_swift
from tests.e2e.bench.playing import watched_processes
from tests.e2e.bench.test_bench_playbook import HERE, Bench
from tests.e2e.canaries import files_with

pytestmark = [pytest.mark.playbook, pytest.mark.slow]
KEY = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
SOURCE = "results:/rack 7"


@pytest.fixture(scope="module")
def swift(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    """Yield a running store with an empty bucket."""
    with running_swift(root, tmp_path_factory.mktemp("swift")) as running:
        running.make_bucket("results")
        yield running


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """Return a file of variables with the credentials, as Ansible Vault would provide it."""
    path = tmp_path / "vault.yml"
    path.write_text(yaml.safe_dump({"storage_s3fs_credentials": [KEY]}))
    return path


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> Bench:
    """Return a runner of bench.yml with a copy of the toy."""
    shutil.copytree(HERE / "workloads", tmp_path / "workloads")
    for name in ("make_runtime.py", "lock_file.py"):
        shutil.copy(root / "workloads" / name, tmp_path / "workloads")
    return Bench(root, tmp_path)


def upload(bench: Bench, vault: Path, **variables: Any) -> tuple[int, str]:
    """Run playbooks/upload-results.yml with the variables of bench.yml. Return its status and output."""
    words = bench.command("-e", f"@{vault}", **variables)
    words[1] = "playbooks/upload-results.yml"
    done = subprocess.run(words, cwd=bench.root, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def is_whole(bench: Bench, url: str) -> bool:
    """Return whether the store has every file of the results: a second upload adds none."""
    store = ObjectStore(Bucket.parse(SOURCE, url, "us-east-1", [KEY]))
    (run,) = bench.runs()
    (plan,) = bench.results.glob("plan-*")
    counts = [store.upload_folder(folder) for folder in (bench.results / run.run_id, plan)]
    return all(files > 3 and new == 0 for files, new in counts)


def test_a_recorded_run_is_in_the_store_and_the_key_is_nowhere(
    bench: Bench, swift: Swift, vault: Path
) -> None:
    given = {"bench_results_bucket": SOURCE, "storage_s3fs_url": swift.url}
    with watched_processes([SECRET_KEY.encode()]) as found:
        status, output = bench("-e", "suite=toys", "-e", f"@{vault}", "-vvv", **given)
    assert status == 0, output[-3000:]
    assert f"files in {swift.url}/results/rack 7" in output
    assert is_whole(bench, swift.url)
    assert not [line[:200] for line in output.splitlines() if SECRET_KEY in line]
    assert files_with([SECRET_KEY.encode()], bench.folder, vault) == []
    assert not found, "\n".join(sorted(found))


def test_without_the_store_the_verdict_is_the_same_and_a_later_upload_brings_all(
    bench: Bench, swift: Swift, vault: Path
) -> None:
    nowhere = {"bench_results_bucket": SOURCE, "storage_s3fs_url": "http://127.0.0.1:1"}
    status, output = bench("-e", "suite=toys", "-e", f"@{vault}", **nowhere)
    assert status == 0, output[-3000:]
    assert [run.verdict.value for run in bench.runs()] == ["pass"]
    assert "results: not all in the object store" in output
    # The store does not answer, then it refuses the key, then the key is right.
    there = nowhere | {"storage_s3fs_url": swift.url}
    wrong = {"bench_results_credentials": [KEY | {"secret_key": "wrong-0815-0815"}]}
    for given, wanted, message in (
        (nowhere, 2, "no answer"),
        (there | wrong, 2, "403"),
        (there, 0, "of them new"),
    ):
        status, output = upload(bench, vault, **given)
        assert (status, message in output) == (wanted, True), output[-3000:]
        assert "wrong-0815" not in output
    assert is_whole(bench, swift.url)


def test_an_upload_to_nowhere_is_refused(bench: Bench, vault: Path) -> None:
    status, output = upload(bench, vault)
    assert status == 2
    assert "bench_results_bucket is empty" in output

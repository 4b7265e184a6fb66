"""Set up pytest for all tests of the checkout, and provide the fixtures that several suites share.

pytest reads this file first. It adds the option ``--suite``, which runs the tests of one suite of
tools/proof/suites.toml. It also turns unexpected skips in CI into failures, and keeps the temporary files of
the fast tests in memory. Three fixtures run with each test: one restores the umask, one fails a test in which
the package made an unregistered finding, and one draws equal charts only once.
"""

from __future__ import annotations

import fcntl
import lzma
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rackproof.core.text import utf8_locale
from rackproof.report import charts
from tests.core.registered_findings import watch
from tools.proof.suites import FAST, read_table, suite_of

ROOT = Path(__file__).resolve().parent
pytest_plugins = ["testrack.tests.rack_fixtures"]

# Tests import and start Ansible, which refuses a locale without UTF-8.
os.environ.update(utf8_locale())

# A busy machine makes an example slow, which is not a fault of the code.
settings.register_profile("any_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_machine")

ALLOWED_SKIPS = (
    # Rights that even root does not have in every container.
    "a boot of its own for each node needs root",
    "another user's program needs root",
    "a separate file system cannot be mounted",
    "a network namespace",
    "a small file system can",
    "mounting a small file system",
    "needs dnsmasq, and root for a network of its own",
    "no device nodes may be made",
    # Programs that tools/install-test-packages installs where it can, and reports where it cannot.
    "cloud-init's schema is not here",
    "needs nginx",
    "no systemd here",
    "promtool",
    # The machine and the checkout.
    "files of a tmpfs live in memory only",
    "nobody else may enter this checkout",
    "this machine has nvidia-smi",
    # `make prove SUITE=proofs` needs them.
    "four provisioned nodes are needed",
    # The archive is never committed, and CI's machine need not reach its repository.
    "no archive of tf_cnn_benchmarks",
)
"""The beginnings of the reasons for which CI may skip a test. A skip for any other reason fails there."""

MEMORY = Path("/dev/shm")  # noqa: S108  (a folder that only we can read is made in it)
MEMORY_BYTES = 4 << 30
"""The least free space in memory for the temporary files of the fast tests, which use a quarter of it."""

TABLE = read_table()
RACK_TIMEOUT_S = 1800
"""Time limit of a test on the test rack that sets none itself. Others have the limit of pyproject.toml."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--suite", choices=[FAST, *TABLE], help="only the tests of this suite (tools/proof/suites.toml)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep only the tests of the requested suite, and give those on the rack more time."""
    for item in items:
        # Its fixtures may provision nodes first, and the rack shares the machine's cores.
        if item.get_closest_marker("rack") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(RACK_TIMEOUT_S))
    wanted = config.getoption("--suite")
    if not wanted:
        return
    kept, others = [], []
    for item in items:
        path = item.path.relative_to(ROOT).as_posix()
        marks = {mark.name for mark in item.iter_markers()}
        (kept if suite_of(path, marks, TABLE) == wanted else others).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=others)


# The umask can only be read by setting another one.
OWN_UMASK = os.umask(0o022)
os.umask(OWN_UMASK)


def _no_silent_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip in CI into a failure, unless its reason is one of ``ALLOWED_SKIPS``."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    # A scenario's checks skip properties that the scenario does not require of its nodes.
    if report.nodeid.startswith("molecule/"):
        return
    shown = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = shown.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, for a reason that ALLOWED_SKIPS does not have: {reason}"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the temporary files of the fast tests in memory, because a disk doubles the time of many tests.

    Nothing is changed if the user chose a folder with TMPDIR, or if too little memory is free.
    """
    worker = hasattr(config, "workerinput")
    if worker or config.getoption("suite") != FAST or "TMPDIR" in os.environ or not _memory_is_fit():
        return
    for folder in MEMORY.glob("rackproof-[0-9]*-*"):
        if _is_left_behind(folder):
            shutil.rmtree(folder, ignore_errors=True)
    # Sockets have paths of at most 107 characters, so the names are short.
    made = tempfile.mkdtemp(prefix=f"rackproof-{os.getpid()}-", dir=MEMORY)
    lock = Path(made, "lock").open("w")  # noqa: SIM115  (open, and therefore locked, until this process ends)
    fcntl.flock(lock, fcntl.LOCK_EX)
    config.add_cleanup(lock.close)
    tempfile.tempdir = os.environ["TMPDIR"] = made
    config.option.basetemp = f"{made}/t"
    config.add_cleanup(lambda: shutil.rmtree(made, ignore_errors=True))


def _is_left_behind(folder: Path) -> bool:
    """Return whether no running process uses a folder of temporary files.

    A lock shows this, and not the id of a process, because containers with one memory have different ids.
    """
    try:
        if time.time() - folder.stat().st_mtime < 60:
            # The folder may just have been made, and not yet be locked.
            return False
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _memory_is_fit() -> bool:
    """Return whether the fast tests can write their files, and start programs among them, in memory."""
    if not os.access(MEMORY, os.W_OK):
        return False
    about = os.statvfs(MEMORY)
    return about.f_bavail * about.f_frsize >= MEMORY_BYTES and not about.f_flag & os.ST_NOEXEC


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Turn an unexpected skip of a test in CI into a failure."""
    made = yield
    _no_silent_skip(made.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Turn an unexpected skip of a whole module in CI into a failure."""
    made = yield
    _no_silent_skip(made.get_result())


@pytest.fixture(autouse=True)
def own_umask() -> Iterator[None]:
    """Set the umask of the start before and after each test, because commands and fixtures change it."""
    os.umask(OWN_UMASK)
    yield
    os.umask(OWN_UMASK)


UNREGISTERED: list[str] = []
watch(UNREGISTERED)


@pytest.fixture(autouse=True)
def only_registered_findings() -> Iterator[None]:
    """Fail a test in which the package made a finding that core/finding_codes.csv does not allow."""
    UNREGISTERED.clear()
    yield
    if UNREGISTERED:
        pytest.fail(f"not in the registry of finding codes: {UNREGISTERED[:5]}")


DRAW_ONCE = lru_cache(500)(charts.draw)


@pytest.fixture(autouse=True)
def equal_charts_are_drawn_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw equal charts once. Many tests record the same log, and its charts took most of their time.

    The tests of reports draw every chart.
    """
    if "report" not in request.path.parent.parts:
        monkeypatch.setattr(charts, "draw", DRAW_ONCE)


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def real_logs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the real logs of tests/data/real; the compressed ones are unpacked."""
    data = root / "tests" / "data" / "real"
    folder = tmp_path_factory.mktemp("real")
    for source in data.glob("*/**/*"):
        if source.is_file():
            packed = source.suffix == ".xz"
            target = folder / (source.with_suffix("") if packed else source).relative_to(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            content = source.read_bytes()
            target.write_bytes(lzma.decompress(content) if packed else content)
    return folder


def _interpreter(root: Path, name: str) -> str:
    """Return the Python interpreter of a workload's runtime, from a variable or made by `make runtimes`.

    If there is none, skip the test, or in CI fail it.
    """
    variable = f"RACKPROOF_{name.upper()}_PYTHON"
    path = Path(os.environ.get(variable, root / ".rackproof" / "runtimes" / name / "bin" / "python"))
    if not path.is_file():
        message = f"no Python with {name} at {path}; type `make runtimes` or set {variable}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return str(path)


@pytest.fixture(scope="session")
def torch_python(root: Path) -> str:
    return _interpreter(root, "torch")


@pytest.fixture(scope="session")
def mxnet_python(root: Path) -> str:
    return _interpreter(root, "mxnet")


@pytest.fixture(scope="session")
def tensorflow_python(root: Path) -> str:
    return _interpreter(root, "tensorflow")


@pytest.fixture(scope="session")
def tf_cnn_archive() -> Path:
    """Return an archive of the real tf_cnn_benchmarks at the commit bench_tf_cnn_ref."""
    path = os.environ.get("RACKPROOF_TF_CNN_ARCHIVE", "")
    if not path:
        pytest.skip(
            "no archive of tf_cnn_benchmarks: set RACKPROOF_TF_CNN_ARCHIVE to tensorflow/benchmarks at "
            "the commit bench_tf_cnn_ref (roles/bench)"
        )
    return Path(path)


@pytest.fixture(scope="session")
def imagenet_python(root: Path) -> str:
    return _interpreter(root, "imagenet")

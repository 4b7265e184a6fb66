"""Test workloads/soak_resume.py, by which a soak that was killed continues from its samples.

A soak is a long load on a GPU (probe_soak.py). It writes the samples of its seconds to a file. After a kill,
it continues from them, so that hours are not lost. The tests show that stalls, slowed seconds and wrong
values before a kill still count, and that damaged samples or another GPU, driver or program end the series.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .programs import load_program
from .test_supervision import ending
from .test_training import run, values

# Seconds that the soak measures, and seconds after each start that are not judged, because the GPU warms up.
ASKED_S = 600.0
SETTLE_S = 120.0
# Readings of a healthy H100 under load, and the hardware and settings that must not change in a soak.
HEALTHY = {"throttle": 4.0, "temperature": 78.0, "power": 697.5, "clock": 1485.0}
ABOUT = {"gpu": "GPU-1", "seconds": "900", "driver": "580.1", "program": "a"}


@pytest.fixture(scope="module")
def resume(root: Path) -> Iterator[Any]:
    """Return workloads/soak_resume.py as a module."""
    sys.path.insert(0, str(root / "workloads"))
    try:
        yield load_program("soak_resume")
    finally:
        sys.path.remove(str(root / "workloads"))


@pytest.fixture(scope="module")
def series(resume: Any) -> Any:
    """Return workloads/soak_series.py, whose windows soak_resume.py keeps. A window is one second."""
    return sys.modules["soak_series"]


class Soak:
    """A soak with seconds that are made up, and with the clock of its node."""

    def __init__(self, resume: Any, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.resume, self.folder, self.now = resume, folder, 1_000_000.0
        patch.setattr(resume.time, "time", lambda: self.now)
        patch.setattr(resume.threading, "Thread", Silent)
        self.keeper: Any = None
        self.since_s = 0.0

    def session(self, boot: str = "one", **changes: Any) -> Any:
        """Return a session, which is the time from one start to its end, with changes."""
        about = {**ABOUT, **changes.pop("about", {})}
        return self.resume.Session(about, self.now, boot, [], changes.pop("counters", {}))

    def begin(self, session: Any = None, rank: int = 0) -> Any:
        """Start a soak, or continue it. Return the number of its samples from before."""
        self.kill()
        self.keeper = self.resume.Keeper(self.folder, rank)
        kept, _ = self.keeper.read()
        before = len(kept.windows)
        self.keeper.begin(kept if before else self.resume.Kept(), session or self.session())
        self.since_s = 0.0
        return before

    def hold(self, seconds: int, rate: float = 650.0, stalls: int = 0, wrong: int = 0, **read: float) -> None:
        """Add seconds with a speed (TFLOP/s), stalls, wrong values and other readings."""
        for _ in range(seconds):
            self.now += 1
            self.since_s += 1
            began_s = self.keeper.kept.began_s
            readings = {**HEALTHY, **read}
            window = self.resume.Window(began_s + self.since_s, 1.0, rate, 1.0, stalls, readings, began_s)
            self.keeper.take(window, [0.04] * 24, lambda: (wrong, {}))

    def kill(self) -> None:
        """Lose what was not written, and release the lock, as SIGKILL does."""
        if self.keeper is not None:
            self.keeper._lock.close()
            self.keeper = None

    @property
    def place(self) -> Path:
        """Return the file with the samples of the first GPU."""
        return self.folder / self.resume.FOLDER / "0.jsonl"

    @property
    def lines(self) -> list[bytes]:
        """Return the lines of that file."""
        return self.place.read_bytes().splitlines(keepends=True)


class Silent:
    """A thread that does nothing."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass


@pytest.fixture
def soak(resume: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Soak:
    return Soak(resume, tmp_path, monkeypatch)


def figures(series: Any, windows: Sequence[Any]) -> dict[str, float | None]:
    """Return the figures that benchmarks/soak.yml limits."""
    return {
        "sag": series.largest_sag(windows),
        "stalls": series.most_stalls(windows),
        "slowed": series.slowed_seconds(windows),
    }


def fails(series: Any, windows: Sequence[Any]) -> bool:
    """Return whether a limit of benchmarks/soak.yml is broken."""
    found = figures(series, windows)
    return (found["sag"] or 0) > 0.02 or (found["stalls"] or 0) > 2 or (found["slowed"] or 0) > 0


@pytest.mark.parametrize("killed_s", [[], [5], [300], [45, 299, 301], [130, 150]])
def test_a_killed_soak_measures_as_long_as_any(soak: Soak, series: Any, killed_s: list[int]) -> None:
    """Each continuation warms up again. At most the last line is lost, which has ten seconds."""
    soak.begin()
    for number, seconds in enumerate(killed_s):
        soak.hold(seconds)
        soak.now += 300
        before = soak.begin(soak.session(boot=f"{number}"))
        assert before >= seconds // 10 * 10
    while soak.keeper.kept.counted_s(SETTLE_S) < ASKED_S:
        soak.hold(30)
    kept = soak.keeper.kept
    judged = sum(one.since_s > SETTLE_S for one in kept.windows)
    assert judged >= ASKED_S - SETTLE_S
    assert len(kept.gaps()) == sum(one >= 10 for one in killed_s)
    assert all(300 <= gap_s <= 310 and restarted for gap_s, restarted in kept.gaps())
    assert not fails(series, kept.windows)
    assert series.mean_rate(kept.windows) == pytest.approx(650)
    soak.keeper.forget()
    assert not soak.place.exists()


# Bad seconds: stalls, a lowered clock, a lower speed, or a wrong value.
BAD = {
    "stalls": {"stalls": 3},
    "throttle": {"throttle": 0x24},
    "sag": {"rate": 600.0},
    "wrong": {"wrong": 1},
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("restarts", [1, 3])
def test_bad_seconds_before_a_kill_still_count(soak: Soak, series: Any, bad: str, restarts: int) -> None:
    soak.begin()
    soak.hold(300)
    soak.hold(40, **BAD[bad])  # type: ignore[arg-type]
    for _ in range(restarts):
        soak.now += 60
        soak.begin()
        soak.hold(400)
    kept = soak.keeper.kept
    assert kept.wrong == (bad == "wrong")
    assert fails(series, kept.windows) == (bad != "wrong")


def test_seconds_that_break_a_limit_are_written_at_once(soak: Soak, series: Any) -> None:
    for bad in ({"stalls": 1}, {"throttle": 0x40}):
        soak.begin()
        soak.hold(3)
        soak.hold(1, **bad)  # type: ignore[arg-type]
        assert soak.begin() == 4
        soak.keeper.forget()


def test_stalls_on_both_sides_of_a_gap_are_within_ten_minutes(soak: Soak, series: Any) -> None:
    """Otherwise, a kill after every two stalls would hide any number of them."""
    soak.begin()
    for _ in range(4):
        soak.hold(100)
        soak.hold(1, stalls=1)
        soak.now += 1200
        soak.begin()
    assert series.most_stalls(soak.keeper.kept.windows) == 4


@pytest.mark.parametrize(("slow_s", "sags"), [(0, False), (9, False), (31, True), (59, True)])
def test_the_minute_before_a_kill_sags_if_its_slow_seconds_would_lower_a_whole_one(
    soak: Soak, series: Any, slow_s: int, sags: bool
) -> None:
    soak.begin()
    soak.hold(300)
    soak.hold(slow_s, rate=600)
    soak.keeper.flush(0, {})
    soak.begin()
    soak.hold(400)
    assert fails(series, soak.keeper.kept.windows) == sags


def mutated(lines: list[bytes], choose: Any) -> bytes:
    """Return lines that were cut, repeated, reordered or edited."""
    at, other = (choose(st.integers(0, len(lines) - 1)) for _ in range(2))
    kind = choose(st.sampled_from(["drop", "cut", "repeat", "swap", "edit", "empty", "insert"]))
    new = list(lines)
    if kind == "drop":
        del new[at]
    elif kind == "cut":
        whole = b"".join(lines)
        return whole[: choose(st.integers(0, len(whole) - 1))]
    elif kind == "repeat":
        new.insert(other, new[at])
    elif kind == "swap":
        new[at], new[other] = new[other], new[at]
    elif kind == "edit":
        place = choose(st.integers(0, len(new[at]) - 1))
        byte = bytes([choose(st.integers(0, 255))])
        new[at] = new[at][:place] + byte + new[at][place + 1 :]
    elif kind == "empty":
        new[at] = b"\n"
    else:
        new.insert(at, choose(st.binary(max_size=80)) + b"\n")
    return b"".join(new)


@pytest.fixture
def failed(soak: Soak) -> Soak:
    """Return a soak of two sessions with a stall, a throttle and a sag, killed before its end."""
    soak.begin()
    soak.hold(150)
    soak.hold(2, stalls=2)
    soak.hold(60)
    soak.begin()
    soak.hold(180)
    soak.hold(1, throttle=0x24)
    soak.hold(70, rate=600)
    soak.kill()
    return soak


def test_samples_that_were_changed_never_make_a_better_verdict(failed: Soak, series: Any) -> None:
    """Changed samples are damaged, or all are still there. Half a line more at the end does not count."""
    lines, place = failed.lines, failed.place
    head = place.with_suffix(".head").read_bytes()

    @given(st.data())
    @settings(max_examples=200, deadline=None)
    def check(data: st.DataObject) -> None:
        content = mutated(lines, data.draw)
        place.write_bytes(content)
        keeper = failed.resume.Keeper(failed.folder, 0)
        whole = content.startswith(b"".join(lines))
        try:
            kept, _ = keeper.read()
        except failed.resume.DamagedError:
            assert content != b"".join(lines)
        else:
            assert whole
            assert fails(series, kept.windows)
        finally:
            keeper._lock.close()

    check()
    assert place.with_suffix(".head").read_bytes() == head


def test_a_head_that_was_changed_is_damage(failed: Soak) -> None:
    head = failed.place.with_suffix(".head")
    right = json.loads(head.read_text())
    for wrong in (
        None,
        "",
        "{",
        "[]",
        json.dumps({**right, "lines": right["lines"] + 1}),
        json.dumps({**right, "digest": "0" * 32}),
        json.dumps({**right, "size": 1}),
        json.dumps({"lines": 1}),
    ):
        head.unlink() if wrong is None else head.write_text(wrong)
        keeper = failed.resume.Keeper(failed.folder, 0)
        with pytest.raises(failed.resume.DamagedError):
            keeper.read()
        keeper._lock.close()


def test_a_kill_at_any_byte_leaves_samples_that_are_whole(soak: Soak) -> None:
    """The head states a line only when it is on the disk. The file may have more lines, but never fewer."""
    moments = []
    soak.begin()
    for _ in range(12):
        moments.append((soak.place.stat().st_size, soak.place.with_suffix(".head").read_bytes()))
        soak.hold(10)
    soak.kill()
    whole = soak.place.read_bytes()
    ends = [*(size for size, _ in moments[1:]), len(whole)]

    @given(st.data())
    @settings(max_examples=50, deadline=None)
    def check(data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(moments) - 1))
        size, head = moments[at]
        length = data.draw(st.integers(size, ends[at]))
        soak.place.write_bytes(whole[:length])
        soak.place.with_suffix(".head").write_bytes(head)
        assert soak.begin() == 10 * (at + (length == ends[at]))
        soak.hold(10)
        soak.kill()
        if at:
            assert soak.begin() == 10 * (at + (length == ends[at])) + 10

    check()


@given(st.lists(st.integers(1, 300), min_size=1, max_size=5), st.data())
@settings(max_examples=30, deadline=None)
def test_kills_hide_no_stall_or_slowed_second(resume: Any, kills: list[int], data: st.DataObject) -> None:
    """The same seconds in one session and in several have the same evidence against the GPU."""
    series = sys.modules["soak_series"]
    stalls = data.draw(st.sets(st.integers(1, sum(kills)), max_size=6))
    slowed = data.draw(st.sets(st.integers(1, sum(kills)), max_size=3))
    ends = [sum(kills[: at + 1]) for at in range(len(kills))]
    held, cut = resume.Windows(), resume.Windows()
    began_s = 0.0
    for second in range(1, sum(kills) + 1):
        read = {**HEALTHY, "throttle": 0x24 if second in slowed else 4}
        figures_of = (float(second), 1.0, 650.0, 1.0, int(second in stalls), read)
        held.append(series.Window(*figures_of))
        cut.append(series.Window(*figures_of, began_s))
        began_s = float(second) if second in ends else began_s
    once, often = figures(series, held), figures(series, cut)
    assert often["stalls"] == once["stalls"]
    assert often["slowed"] == once["slowed"]
    measured_s = [sum(series.counted_seconds(one) for one in windows) for windows in (cut, held)]
    assert measured_s[0] <= measured_s[1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        # A change after 100 s of a soak, and the reason to start again ("": it continues). The longest gap is
        # 3,600 s.
        ({}, ""),
        ({"gap_s": 3600}, ""),
        ({"gap_s": 3601}, "more than 3600 s"),
        ({"gap_s": -30}, "clock was set back"),
        ({"about": {"gpu": "GPU-2"}}, "its gpu was GPU-1, and is GPU-2"),
        ({"about": {"driver": "590.1"}}, "its driver was 580.1, and is 590.1"),
        ({"about": {"power_limit": "500"}}, "its power_limit was None, and is 500"),
        ({"about": {"seconds": "600"}}, "its seconds was 900, and is 600"),
        ({"about": {"program": "b"}}, "its program was a, and is b"),
        ({"alive_s": 300}, "stood still for 300 s"),
        ({"alive_s": 20}, ""),
        ({"fault": "exit status 134"}, "failed with exit status 134"),
    ],
)
def test_a_soak_starts_again_only_for_a_reason(
    soak: Soak, resume: Any, change: dict[str, Any], why: str
) -> None:
    soak.begin()
    soak.hold(100)
    kept, ended = soak.keeper.kept, soak.now
    soak.now += change.get("gap_s", 600)
    session = soak.session(about=change.get("about", {}), boot="two")
    alive = ended + change.get("alive_s", 0)
    found = resume.why_restart(kept, alive, session, 3600.0, change.get("fault", ""))
    assert why in found if why else found == ""


def test_all_ranks_continue_or_none(resume: Any) -> None:
    found = resume.Found
    whole = found(sessions=1, loaded_s=100, counted_s=90)
    assert resume.agree([whole, found(sessions=1, loaded_s=90, counted_s=80)]) == found("", "", 1, 90, 80)
    assert (
        resume.agree([whole, found(restart="its driver changed", sessions=1)]).restart == "its driver changed"
    )
    assert resume.agree([whole, found()]).restart == "not all of its GPUs have samples"
    assert resume.agree([whole, found(damage="line 3")]).damage == "line 3"
    assert resume.agree([found(), found()]) == found()


def test_counters_grow_over_sessions_as_their_readings_do(resume: Any) -> None:
    growth = resume.Growth()
    growth.begin({"pcie_replay": 5, "nvlink": 0, "energy": 100}, same_boot=False)
    growth.take({"pcie_replay": 6, "nvlink": 0, "energy": 150})
    # Errors during a gap count, but not the energy that other programs used.
    growth.begin({"pcie_replay": 8, "nvlink": 1, "energy": 900}, same_boot=True)
    growth.take({"pcie_replay": 8, "nvlink": 1, "energy": 950})
    assert growth.grown == {"pcie_replay": 3, "nvlink": 1, "energy": 100}
    # After a restart counters begin at 0.
    growth.begin({"pcie_replay": 2, "nvlink": 0, "energy": 10}, same_boot=False)
    growth.take({"pcie_replay": 1, "energy": 30})
    assert growth.grown == {"pcie_replay": 4, "energy": 120}, "what was not read once is not known"
    growth.take({"pcie_replay": 1, "nvlink": 0, "energy": 30})
    assert "nvlink" not in growth.grown


def test_three_days_take_little_memory_and_disk(soak: Soak, series: Any) -> None:
    soak.begin()
    soak.hold(600)
    days = 3 * 86_400 / 600
    assert soak.place.stat().st_size * days < 40e6
    windows = soak.keeper.kept.windows
    assert windows._values.itemsize * series.WIDTH * 3 * 86_400 < 25e6
    assert windows[-1] == windows[599]
    assert (windows[5].read, windows[5].at_s) == (HEALTHY, 6.0)
    times = series.StepTimes()
    dice = [1e-4 * 1.0001**number for number in range(100_000)]
    times.add(dice)
    assert len(times.counts) < 11_000
    for share in (0.0, 0.5, 0.99, 1.0):
        assert times.quantile(share) == pytest.approx(dice[int(share * 99_999)], rel=1e-3)


def test_two_soaks_at_once_are_refused(soak: Soak, resume: Any) -> None:
    soak.begin()
    with pytest.raises(BlockingIOError):
        resume.Keeper(soak.folder, 0)
    resume.Keeper(soak.folder, 1)


@pytest.mark.parametrize("at", [0, 3])
def test_a_disk_that_is_full_ends_no_load_and_leaves_nothing(
    soak: Soak, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Samples without the end of their load would be half of the evidence, so they are removed."""
    soak.begin()
    soak.hold(10 * at)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(soak.resume.os, "fsync", full)
    soak.hold(30)
    assert not soak.place.exists()
    assert len(soak.keeper.kept.windows) == 10 * at + 30


@pytest.mark.parametrize("folder", [None, "gone"])
def test_without_a_folder_nothing_is_kept(resume: Any, tmp_path: Path, folder: str | None) -> None:
    keeper = resume.Keeper(tmp_path / folder if folder else None, 0)
    kept, _ = keeper.read()
    keeper.begin(kept, resume.Session(ABOUT, time.time(), "", [], {}))
    keeper.take(resume.Window(1.0, 1.0, 650.0, 1.0, 1, {}), [0.04], lambda: (0, {}))
    keeper.forget()
    assert not list(tmp_path.iterdir())


def test_what_failed_by_itself_is_not_continued(resume: Any, tmp_path: Path) -> None:
    head = tmp_path / resume.FOLDER / "0.head"
    head.parent.mkdir()
    head.touch()
    now = head.stat().st_mtime
    for status in (0, 2, 4, 124, 137, 143):
        resume.note_fault(tmp_path, status, now)
        assert resume.read_fault(tmp_path) == ""
    resume.note_fault(tmp_path, 134, now + 1)
    assert resume.read_fault(tmp_path) == "", "it did not begin to measure"
    for status in (1, 134, 139):
        resume.note_fault(tmp_path, status, now)
        assert resume.read_fault(tmp_path) == f"exit status {status}"
        resume.forget_fault(tmp_path)
    resume.note_fault(None, 1, now)
    assert resume.read_fault(None) == ""


class Said:
    """A log that keeps its events and measurements."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def event(self, key: str, value: Any) -> None:
        self.events.append((key, value))

    def measurement(self, name: str, value: float, unit: str) -> None:
        assert unit == "s"
        self.events.append((name, value))


@pytest.mark.parametrize(
    ("found", "events", "text"),
    [
        ({}, [], ""),
        ({"damage": "line 3: it was changed"}, ["unproven"], "look at this disk"),
        (
            {"restart": "its driver was 1, and is 2", "sessions": 2},
            [("soak_unfinished_seconds", 90)],
            "at 0 s: its",
        ),
        ({"sessions": 2}, [("gpu_state", {"gpu": "GPU-1", "utilisation_percent": 99})], "80 of 900 s are"),
    ],
    ids=["first", "damaged", "restart", "continued"],
)
def test_a_soak_logs_the_states_or_the_reason_of_an_earlier_one(
    root: Path, resume: Any, capsys: pytest.CaptureFixture[str], found: Any, events: list[Any], text: str
) -> None:
    """If something else used the GPU before the interruption, the soak did not have it to itself."""
    probe, said = load_program("probe_soak"), Said()
    state = {"gpu": "GPU-1", "utilisation_percent": 99}
    kept = resume.Kept(sessions=[resume.Session(ABOUT, 0.0, "", [state], {})])
    probe.say_start(resume.Found(**{"loaded_s": 90, "counted_s": 80, **found}), kept, 900, said)
    assert [
        one[0] if isinstance(want, str) else one for one, want in zip(said.events, events, strict=True)
    ] == events
    assert text in capsys.readouterr().out


def killed_after(python: str, root: Path, notes: Path, lines: int, whom: str) -> str:
    """Start a soak. Kill it once its file has this number of whole lines. Return its output."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [python, str(root / "workloads/probe_soak.py"), *CPU_SOAK, f"--notes={notes}"]
    place = notes / "soak-unfinished/0.jsonl"
    before = place.read_bytes().count(b"\n") if place.exists() else 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        deadline = time.monotonic() + 150
        while not (place.exists() and place.read_bytes().count(b"\n") >= before + lines):
            assert time.monotonic() < deadline
            assert started.poll() is None
            time.sleep(0.05)
        (rank,) = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(rank) if whom == "rank" else started.pid, signal.SIGKILL)
        return started.communicate()[0]


CPU_SOAK = ("--device", "cpu", "--seconds", "24")


@pytest.mark.torch
@pytest.mark.parametrize(
    "kills", [[(1, "supervisor")], [(3, "supervisor"), (4, "rank")]], ids=["before-a-second", "twice"]
)
def test_a_soak_killed_on_the_cpu_continues(
    root: Path, torch_python: str, tmp_path: Path, kills: list[tuple[int, str]]
) -> None:
    place = tmp_path / "soak-unfinished/0.jsonl"
    kept = 0
    for lines, whom in kills:
        text = killed_after(torch_python, root, tmp_path, lines, whom)
        assert not values(text, "measurement")
        kept = sum(len(json.loads(line.partition(" ")[2]).get("windows", [])) for line in read(place))
    done = run(torch_python, root, "probe_soak.py", *CPU_SOAK, "--notes", tmp_path)
    assert done.returncode == 0, done.stderr
    assert ending(done.stdout)["status"] == "success"
    measured = values(done.stdout, "measurement")
    gaps = [one for one in measured if one["name"] == "soak_gap"]
    (seconds,) = (one["value"] for one in measured if one["name"] == "soak_seconds")
    assert 24 <= seconds < 34
    assert not values(done.stdout, "unproven")
    assert not place.exists()
    samples = values(done.stdout, "gpu_sample")
    if not kept:
        assert (gaps, "at_s" in samples[0]) == ([], False)
        return
    assert [one["labels"]["boot"] for one in gaps] == ["same"] * len(kills)
    assert all(one["value"] > 0 for one in gaps)
    assert "it is continued" in done.stdout
    # The curves of the report have the seconds before the kill, and the gap.
    times = [one["at_s"] for one in samples]
    assert times == sorted(times)
    # On a slow machine, several seconds are in one line.
    assert len(times) > kept // 2
    jumps = [after - before for before, after in itertools.pairwise(times)]
    assert max(jumps) >= max(one["value"] for one in gaps)


def read(place: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    return [line for line in place.read_text().splitlines() if line]


@pytest.mark.torch
def test_damaged_samples_leave_a_soak_unproven_once(root: Path, torch_python: str, tmp_path: Path) -> None:
    killed_after(torch_python, root, tmp_path, 4, "supervisor")
    place = tmp_path / "soak-unfinished/0.jsonl"
    lines = place.read_bytes().splitlines(keepends=True)
    place.write_bytes(b"".join(lines[:-2]))
    done = run(torch_python, root, "probe_soak.py", *CPU_SOAK, "--notes", tmp_path)
    assert done.returncode == 0, done.stderr
    (stated,) = values(done.stdout, "unproven")
    # A soak that was killed between a line and its statement states one line less.
    written = [f"{place} has {len(lines) - 2} whole lines of {len(lines) - n}: it was cut" for n in (0, 1)]
    assert any(text in stated["why"] for text in written)
    assert not values(done.stdout, "measurement")
    assert place.with_suffix(".damaged").exists()
    # The next soak has no samples to continue from, and measures from the beginning.
    done = run(torch_python, root, "probe_soak.py", "--device", "cpu", "--seconds", "5", "--notes", tmp_path)
    assert not values(done.stdout, "unproven")
    measured = values(done.stdout, "measurement")
    (seconds,) = (one["value"] for one in measured if one["name"] == "soak_seconds")
    assert seconds >= 5


@pytest.mark.torch
def test_a_soak_of_another_length_or_without_sampling_says_so(
    root: Path, torch_python: str, tmp_path: Path
) -> None:
    killed_after(torch_python, root, tmp_path, 4, "supervisor")
    done = run(torch_python, root, "probe_soak.py", "--device", "cpu", "--seconds", "5", "--notes", tmp_path)
    assert "its seconds was 24, and is 5" in done.stdout
    names = [one["name"] for one in values(done.stdout, "measurement")]
    assert "soak_unfinished_seconds" in names
    assert "soak_gap" not in names
    words = ("--device", "cpu", "--seconds", "5", "--sampling", "off", "--notes", tmp_path)
    done = run(torch_python, root, "probe_soak.py", *words)
    assert "what sampling costs" in values(done.stdout, "unproven")[0]["why"]
    assert not values(done.stdout, "gpu_sample")
    names = {one["name"] for one in values(done.stdout, "measurement")}
    assert {"soak", "soak_elapsed"} <= names


@pytest.mark.parametrize("steps", [1, 3, 5, 24])
def test_a_gpu_has_work_while_its_seconds_are_read_and_kept(
    resume: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe: Any = load_program("probe_soak")
    queued: list[Any] = []
    """The work of the GPU in order: numbers of steps, and comparisons by name."""
    ended: list[int] = []

    class QueuedStep:
        def __init__(self, _: Any, compute: Any) -> None:
            self.number = sum(isinstance(one, int) for one in queued)
            compute()
            queued.append(self.number)

        def seconds(self) -> float:
            ended.append(self.number)
            return 0.04

    class ReadWatch:
        def take(self, since_s: float, seconds: float, steps_s: list[float]) -> int:
            waiting = [one for one in queued if isinstance(one, int) and one not in ended]
            taken.append(steps_s)
            # A window of few steps is compared behind steps that still wait; its count is waited for.
            compared = len(queued) - queued[::-1].index("compare") - 1
            done = steps <= probe.QUEUED_STEPS or ended[-1] in queued[compared:]
            assert queued.count("compare") == len(taken)
            return len(waiting) if done else -1

    taken: list[list[float]] = []
    monkeypatch.setattr(probe, "Timer", QueuedStep)
    load: Any = types.SimpleNamespace(
        device=types.SimpleNamespace(type="cuda"),
        compute=lambda: None,
        reduce=lambda: None,
        compare=lambda: queued.append("compare"),
    )
    waiting = list(itertools.islice(probe.windows_of(load, ReadWatch(), steps), 20))
    assert set(waiting[5:]) == {probe.QUEUED_STEPS}
    # Each step is in one window.
    assert sum(len(one) for one in taken) == 20 * steps - min(20 * steps, probe.QUEUED_STEPS)
    assert ended == list(range(len(ended)))

"""Test that NetBox's token is in no file, argument, message or traceback of ``rackproof adopt``.

NetBox is a database of hardware, and the token is the site's secret. The command ends in each way:
with success, an error, a hostile answer, and a traceback. Then they search for the token.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ..e2e.bench.playing import watched_processes
from ..e2e.canaries import ENVIRONMENT, MARK, changed_files_with, files_with
from ..jobs.inventory.fake_netbox import TOKEN, FakeNetbox, device

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).with_name("rackproof")


class Site:
    """A home, a temporary folder, and a fake scontrol that writes its environment to a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("home", "tmp", "here", "bin"):
            (folder / name).mkdir()
        tool = folder / "bin/scontrol"
        tool.write_text(
            f'#!/bin/sh\nenv >> {folder}/scontrol.env\n[ "$2" = node ] || exit 1\n'
            'echo "NodeName=gpu-001 NodeAddr=10.1.0.2 Gres=gpu:h100:8 State=IDLE"\n'
        )
        tool.chmod(0o755)

    def adopt(self, url: str, token: str = TOKEN, words: Sequence[str] = ()) -> tuple[int, str]:
        """Run the command with a token. Return its exit status and output."""
        done = subprocess.run(
            [PROGRAM, "--debug", "adopt", "--checkout", ROOT, "--slurm", "--netbox", url, *words],
            cwd=self.folder / "here",
            env={
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "HOME": str(self.folder / "home"),
                "TMPDIR": str(self.folder / "tmp"),
                "NETBOX_TOKEN": token,
                **ENVIRONMENT,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _nothing_elsewhere() -> Iterator[None]:
    """Search the rest of the machine for the token once, after all tests of this file."""
    begin = time.time() - 0.1
    yield
    assert changed_files_with([MARK.encode()], begin) == []


@pytest.mark.parametrize(
    ("token", "answer", "words", "status"),
    [
        (TOKEN, None, (), 0),
        (TOKEN, None, ("--json",), 0),
        # A token that NetBox does not know.
        (TOKEN[::-1], None, (), 1),
        (TOKEN, (500, {}, {"detail": TOKEN}), (), 1),
        (TOKEN, (302, {"Location": f"https://{TOKEN}/"}, b""), (), 1),
        (TOKEN, (200, {}, {"count": 1, "next": None, "results": [device(1, TOKEN)]}), (), 1),
        (TOKEN, (200, {}, f"<html>{TOKEN}".encode()), (), 1),
        (f"{TOKEN} {TOKEN}", None, (), 1),
        # The folder cannot be written, so --debug prints a traceback.
        (TOKEN, None, ("-o", "/proc/self/cluster"), 1),
    ],
    ids=["text", "json", "refused", "error", "redirect", "name", "html", "malformed", "unwritable"],
)
def test_the_token_is_in_no_output_file_or_argument(
    site: Site, token: str, answer: object, words: Sequence[str], status: int
) -> None:
    values = [token.split()[0].encode(), token.split()[0].upper().encode(), MARK.encode()]
    with FakeNetbox([device(1)]) as netbox, watched_processes(values) as found:
        netbox.answers = [] if answer is None else [answer]
        done, output = site.adopt(netbox.url, token, words)
    assert done == status, output
    assert not any(value.decode() in output for value in values)
    assert files_with(values, site.folder) == []
    assert (site.folder / "scontrol.env").is_file()
    assert not [one for one in found if one.startswith("argv ")]
    assert not [one for one in found if "scontrol" in one or "ansible-inventory" in one]

"""Test the module rackproof_files, which writes a role's files, folders and links in one call.

The tests show that a second call changes nothing, that check mode predicts the changes, that an
impossible request writes nothing, and that the result has the difference of a file but no secret.
"""

from __future__ import annotations

import base64
import grp
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from .conftest import Modules

# Each case starts processes. All of them together are too slow for `make check`.
pytestmark = pytest.mark.slow

# The user who runs the tests, because only root could give files to another user.
ME = {"owner": pwd.getpwuid(os.getuid()).pw_name, "group": grp.getgrgid(os.getgid()).gr_name}


def test_puts_everything_in_place_once(modules: Modules, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("x")
    options: dict[str, Any] = {
        "folders": [{"path": str(tmp_path / "d" / "e"), "mode": "0750", **ME}],
        "files": [
            {"path": str(tmp_path / "d" / "text"), "content": "héllo\n", "mode": "0640", **ME},
            {
                "path": str(tmp_path / "new" / "key"),
                "secret_base64": base64.b64encode(b"\0\xff\n").decode(),
                **ME,
            },
        ],
        "links": [{"path": str(tmp_path / "link"), "target": "d/text"}],
        "absent": [str(tmp_path / "old"), str(tmp_path / "never")],
    }
    foreseen = modules("rackproof_files", check=True, **options)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["old"]
    result = modules("rackproof_files", **options)
    assert result["changed"] is foreseen["changed"] is True
    assert result["changed_paths"] == foreseen["changed_paths"]
    assert len(result["changed_paths"]) == 5
    assert (tmp_path / "d" / "text").read_text() == "héllo\n"
    assert (tmp_path / "d" / "text").stat().st_mode & 0o7777 == 0o640
    assert (tmp_path / "d" / "e").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / "new" / "key").read_bytes() == b"\0\xff\n"
    assert (tmp_path / "link").read_text() == "héllo\n"
    assert not (tmp_path / "old").exists()
    assert modules("rackproof_files", **options)["changed"] is False
    (tmp_path / "d" / "text").chmod(0o666)
    assert modules("rackproof_files", **options)["changed_paths"] == [str(tmp_path / "d" / "text")]


@pytest.mark.parametrize("chain", [["x"], ["x", "y"], ["x/", "y"]])
def test_a_link_to_a_folder_counts_as_the_folder(modules: Modules, tmp_path: Path, chain: list[str]) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    target = "real"
    for name in chain:
        (tmp_path / name).symlink_to(target)
        target = name
    folder = {"path": str(tmp_path / target), "mode": "0750", **ME}
    assert modules("rackproof_files", folders=[folder])["changed"] is True
    assert (tmp_path / "real").stat().st_mode & 0o7777 == 0o750
    assert (tmp_path / target).is_symlink()
    assert modules("rackproof_files", folders=[folder], check=True)["changed"] is False
    assert modules("rackproof_files", folders=[folder])["changed"] is False


def test_a_difference_is_shown_unless_it_is_a_secret(modules: Modules, tmp_path: Path) -> None:
    path, key, config = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    path.write_text("one\n")
    key.write_text("old secret")
    result = modules(
        "rackproof_files",
        files=[
            {"path": str(path), "content": "two\n", **ME},
            {"path": str(key), "secret": "new secret", **ME},
            {"path": str(config), "merge_json": {"auths": {"r": {"auth": "dG9wc2VjcmV0"}}}, **ME},
        ],
    )
    assert result["diff"][0]["before"] == "one\n"
    assert result["diff"][0]["after"] == "two\n"
    said = json.dumps(result)
    assert "old secret" not in said
    assert "new secret" not in said
    assert "dG9wc2VjcmV0" not in said


def test_json_is_merged(modules: Modules, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"auths": {"a": {"auth": "Zmlyc3Q="}}, "credHelpers": {"x": "y"}}')
    entry = {"path": str(path), "merge_json": {"auths": {"b": {"auth": "c2Vjb25k"}}}, **ME, "mode": "0600"}
    assert modules("rackproof_files", files=[entry])["changed"] is True
    assert json.loads(path.read_text()) == {
        "auths": {"a": {"auth": "Zmlyc3Q="}, "b": {"auth": "c2Vjb25k"}},
        "credHelpers": {"x": "y"},
    }
    assert modules("rackproof_files", files=[entry])["changed"] is False
    for old, new in ((1, True), (0, False), (True, 1), (1, 1.5)):
        path.write_text(json.dumps({"a": old, "b": [old]}))
        entry["merge_json"] = {"a": new}
        assert modules("rackproof_files", files=[entry])["changed"] is True
        assert path.read_text() == json.dumps({"a": new, "b": [old]}, indent=2) + "\n"
        assert modules("rackproof_files", files=[entry])["changed"] is False
    path.write_text("[1")
    result = modules("rackproof_files", files=[entry])
    assert result["failed"] is True
    assert str(path) in result["msg"]
    assert path.read_text() == "[1"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "give one of"),
        ({"content": "a", "secret": "b"}, "give one of"),
        ({"content": "a", "mode": "rw"}, "octal"),
        ({"content": "a", "owner": "no-such-user"}, "no owner 'no-such-user'"),
        ({"secret_base64": "***"}, "not base64"),
    ],
)
def test_what_cannot_be_done_is_reported(
    modules: Modules, tmp_path: Path, entry: dict[str, str], said: str
) -> None:
    result = modules("rackproof_files", files=[{"path": str(tmp_path / "x"), **ME, **entry}])
    assert result["failed"] is True
    assert said in result["msg"]
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_is_left_alone(modules: Modules, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for options in (
        {"files": [{"path": str(tmp_path / "x"), "content": "a", **ME}]},
        {"links": [{"path": str(tmp_path / "x"), "target": "a"}]},
        {"absent": [str(tmp_path / "x")]},
    ):
        result = modules("rackproof_files", **options)
        assert result["failed"] is True
        assert str(tmp_path / "x") in result["msg"]
    assert (tmp_path / "x").is_dir()


def test_check_mode_allows_for_a_user_that_a_package_will_bring(modules: Modules, tmp_path: Path) -> None:
    entry = {"path": str(tmp_path / "x"), "content": "a", "owner": "no-such-user"}
    assert modules("rackproof_files", check=True, files=[entry])["changed"] is True


def test_a_folder_that_takes_no_file_is_named(modules: Modules, tmp_path: Path) -> None:
    result = modules("rackproof_files", files=[{"path": "/proc/rackproof/x", "content": "a", **ME}])
    assert result["failed"] is True
    assert result["msg"].startswith("/proc/rackproof/x: ")

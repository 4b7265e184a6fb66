"""Test the files of role enroot_pyxis, and its message if a registry refuses the key.

The role configures enroot, which runs containers, and pyxis, Slurm's plugin for it. It also writes the key of
the image registry (NGC), for enroot and for Docker. The tests show that the key is in no file that other
users can read, and is sent to no address that a registry makes up.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .conftest import FACTS, Renderer, run_playbook

pytestmark = pytest.mark.playbook

KEY = "nvapi-example"
ASKED = [
    *("enroot_pyxis_credentials", "enroot_pyxis_files", "enroot_pyxis_secrets", "enroot_pyxis_login_due"),
    *("enroot_pyxis_hook_links", "enroot_pyxis_hooks_off"),
]
HOOKS = {f"/etc/enroot/hooks.d/{name}": "x" for name in ("50-slurm-pmi.sh", "50-slurm-pytorch.sh")}
BASE = {"ngc_api_key": KEY}


@pytest.fixture(scope="module")
def values(render: Renderer) -> dict[str, dict[str, Any]]:
    """Return the values of ASKED for different inventories and nodes, by case."""
    line = "machine {} login $oauthtoken password " + KEY + "\n"
    netrc = line.format("nvcr.io") + line.format("authn.nvidia.com")
    done = {
        **FACTS,
        "files": {
            "/etc/enroot/.credentials": hashlib.sha256(netrc.encode()).hexdigest(),
            "/root/.docker/config.json": "x",
            **HOOKS,
        },
    }
    return render(
        "enroot_pyxis",
        ASKED,
        {
            "ngc": BASE,
            "done": {**BASE, "rackproof_node": done},
            "own": {
                **BASE,
                "ngc_registry": "registry.example.net:5000",
                "enroot_pyxis_registry_scheme": "http",
                "enroot_pyxis_credentials_group": "gpu-users",
                "enroot_pyxis_scratch": "/scratch/enroot",
                "enroot_pyxis_docker_config": "",
                "enroot_pyxis_options": {"ENROOT_MAX_CONNECTIONS": 4},
                "enroot_pyxis_plugin_arguments": ["runtime_path=/run/pyxis"],
                "enroot_pyxis_hooks": ["50-slurm-pmi.sh", "50-sharp.sh"],
                # The first hook is a link that leads nowhere.
                "rackproof_node": {
                    **FACTS,
                    "machine": "aarch64",
                    "files": {"/etc/enroot/hooks.d/50-slurm-pmi.sh": None},
                },
            },
            "none": {"ngc_api_key": ""},
        },
    )


def content(values: dict[str, dict[str, Any]], case: str, name: str) -> str:
    """Return the text of the one rendered file whose path ends with ``name``."""
    (text,) = (one["content"] for one in values[case]["enroot_pyxis_files"] if one["path"].endswith(name))
    return str(text)


def test_ngc_has_two_names(values: dict[str, dict[str, Any]]) -> None:
    assert values["ngc"]["enroot_pyxis_credentials"].splitlines() == [
        f"machine nvcr.io login $oauthtoken password {KEY}",
        f"machine authn.nvidia.com login $oauthtoken password {KEY}",
    ]
    # enroot gives the file to curl, which compares hosts without their ports.
    assert values["own"]["enroot_pyxis_credentials"] == (
        f"machine registry.example.net login $oauthtoken password {KEY}\n"
    )


def test_docker_and_enroot_get_the_same_key(values: dict[str, dict[str, Any]]) -> None:
    docker, enroot = values["ngc"]["enroot_pyxis_secrets"]
    assert (enroot["path"], enroot["mode"]) == ("/etc/enroot/.credentials", "0600")
    auth = docker["merge_json"]["auths"]["nvcr.io"]["auth"]
    assert base64.b64decode(auth).decode() == f"$oauthtoken:{KEY}"
    assert docker["mode"] == "0600"
    (own,) = values["own"]["enroot_pyxis_secrets"]
    assert (own["mode"], own["group"]) == ("0640", "gpu-users")


def test_no_file_that_all_may_read_holds_the_key(values: dict[str, dict[str, Any]]) -> None:
    for case in values.values():
        assert KEY not in json.dumps(case["enroot_pyxis_files"])


def test_enroot_gets_its_arguments(values: dict[str, dict[str, Any]]) -> None:
    plain, own = content(values, "ngc", "/enroot.conf"), content(values, "own", "/enroot.conf")
    assert "ENROOT_ALLOW_HTTP" not in plain
    assert "ENROOT_CONFIG_PATH" not in plain
    assert "ENROOT_ALLOW_HTTP yes" in own
    assert "ENROOT_DATA_PATH /scratch/enroot/data/user-$(id -u)" in own
    assert "ENROOT_MAX_CONNECTIONS 4" in own
    assert "/etc/enroot/shared" in own


def test_the_plugin_is_that_of_the_nodes_architecture(values: dict[str, dict[str, Any]]) -> None:
    assert "required /usr/lib/x86_64-linux-gnu/slurm/spank_pyxis.so\n" in content(values, "ngc", "pyxis.conf")
    own = "required /usr/lib/aarch64-linux-gnu/slurm/spank_pyxis.so runtime_path=/run/pyxis\n"
    assert own in content(values, "own", "pyxis.conf")


def test_hooks_are_links_into_the_package(values: dict[str, dict[str, Any]]) -> None:
    package = "/usr/share/enroot/hooks.d"
    assert {one["path"]: one["target"] for one in values["own"]["enroot_pyxis_hook_links"]} == {
        "/etc/enroot/hooks.d/50-slurm-pmi.sh": f"{package}/50-slurm-pmi.sh",
        "/etc/enroot/hooks.d/50-sharp.sh": f"{package}/50-sharp.sh",
    }
    assert {name: sorted(case["enroot_pyxis_hooks_off"]) for name, case in values.items()} == {
        "ngc": sorted(HOOKS),
        "done": [],
        "own": ["/etc/enroot/hooks.d/50-sharp.sh", "/etc/enroot/hooks.d/50-slurm-pmi.sh"],
        "none": sorted(HOOKS),
    }


def test_when_the_key_is_due(values: dict[str, dict[str, Any]]) -> None:
    assert {name: case["enroot_pyxis_login_due"] for name, case in values.items()} == {
        "ngc": True,
        "done": False,
        "own": True,
        "none": False,
    }


class Registry(BaseHTTPRequestHandler):
    """A registry whose answer depends on the first part of the path.

    /basic requests the key itself. /token redirects for a token, as NGC does. /astray redirects to the
    address in the path, with ! in place of /. /broken is out of order.
    """

    def do_GET(self) -> None:
        right = "Basic " + base64.b64encode(f"$oauthtoken:{KEY}".encode()).decode()
        known = self.headers.get("Authorization") == right
        kind = self.path.split("/")[1]
        if kind == "token" and "/v2/" in self.path:
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/auth"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="registry",scope=""')
        elif kind == "auth":
            wanted = "account=%24oauthtoken" in self.path and "service=registry" in self.path
            self.send_response(200 if known and wanted else 401)
        elif kind == "astray":
            realm = self.path.split("/")[2].replace("!", "/")
            self.send_response(401)
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="registry"')
        elif kind == "broken":
            self.send_response(503)
        else:
            self.send_response(200 if known else 401)
            self.send_header("WWW-Authenticate", 'Basic realm="rack"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """Return the address of a registry that runs during the test."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


PLAYBOOK = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: Log in
      block:
        - ansible.builtin.import_role: {name: enroot_pyxis, tasks_from: login}
        - ansible.builtin.set_fact: {said: accepted}
      rescue:
        - ansible.builtin.set_fact:
            said: "{{ ansible_failed_result.msg }}"
    - ansible.builtin.copy:
        dest: "{{ playbook_dir }}/{{ inventory_hostname }}.said"
        content: "{{ said }}"
        mode: "0644"
"""


def test_what_a_registry_says_of_the_key(root: Path, tmp_path: Path, registry: str) -> None:
    # By host: the registry's address, the key, and a part of the message. Nothing listens at port 9.
    refused = "refuses the key of $oauthtoken (401 Unauthorized)"
    cases = {
        "basic-right": (f"{registry}/basic", KEY, "accepted"),
        "basic-wrong": (f"{registry}/basic", "wrong-key-1", refused),
        "token-right": (f"{registry}/token", KEY, "accepted"),
        "token-wrong": (f"{registry}/token", "wrong-key-2", refused),
        "broken": (f"{registry}/broken", KEY, "cannot be reached"),
        "nobody": ("127.0.0.1:9", KEY, "cannot be reached"),
        "astray-ftp": (f"{registry}/astray/ftp:!!127.0.0.1!auth", KEY, "no key goes there"),
        "astray-file": (f"{registry}/astray/file:!!!etc!passwd", KEY, "no key goes there"),
        "astray-relative": (f"{registry}/astray/!auth", KEY, "no key goes there"),
    }
    hosts = {
        name: {
            "enroot_pyxis_registry": address,
            "enroot_pyxis_registry_scheme": "http",
            "enroot_pyxis_api_key": key,
            "rackproof_node": FACTS,
        }
        for name, (address, key, _) in cases.items()
    }
    shared = {"ansible_python_interpreter": sys.executable}
    (tmp_path / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": shared}}))
    (tmp_path / "playbook.yml").write_text(PLAYBOOK)
    done = run_playbook(root, tmp_path / "inventory.json", tmp_path / "playbook.yml", "-vvv")
    assert done.returncode == 0, done.stdout + done.stderr
    for name, (address, key, said) in cases.items():
        message = (tmp_path / f"{name}.said").read_text()
        assert said in message, name
        assert key not in message
        assert key not in done.stdout + done.stderr
        if said != "accepted":
            assert name in message
            assert address in message

"""Check OFED on a provisioned node, and the module by which GPU and network card share memory."""

from __future__ import annotations

from typing import Any

import pytest


def test_ofed_has_the_wanted_version(host: Any, expected: Any) -> None:
    flavour, version = expected("ofed_flavour"), expected("ofed_version")
    if flavour == "none":
        pytest.skip("the scenario has no OFED")
    if flavour == "inbox":
        assert host.package("rdma-core").is_installed
        assert host.package("rdma-core").version.startswith(version)
        return
    said = host.check_output("ofed_info -s")
    assert said
    if flavour == "mlnx" and version:
        assert version in said
    assert host.service("openibd").is_running


def test_the_way_of_sharing_memory_is_open(host: Any, expected: Any) -> None:
    method = expected("peer_memory_method")
    if method == "none":
        pytest.skip("the scenario has no peer-memory module")
    modules = {line.split()[0] for line in host.check_output("lsmod").split("\n")[1:]}
    if method == "auto":
        assert modules & {"nvidia", "nvidia_peermem", "nv_peer_mem"}
    else:
        wanted = {"dmabuf": "nvidia", "nvidia_peermem": "nvidia_peermem", "nv_peer_mem": "nv_peer_mem"}
        assert wanted[method] in modules

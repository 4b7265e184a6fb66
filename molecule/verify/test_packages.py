"""Check the package sources of a provisioned node, and that no package or service is broken."""

from __future__ import annotations

from typing import Any


def test_only_the_mirror_is_a_source(host: Any, expected: Any) -> None:
    root = expected("apt_mirror_root")
    uris = host.check_output("apt-get indextargets --format '$(REPO_URI)'").split()
    assert uris
    if root:
        assert {uri for uri in uris if not uri.startswith(root)} == set()


def test_every_source_names_its_key(host: Any) -> None:
    sources = host.check_output("cat /etc/apt/sources.list.d/*.sources").split("\n\n")
    stanzas = [text.lower() for text in sources if "uris:" in text.lower()]
    assert stanzas
    for stanza in stanzas:
        assert "signed-by:" in stanza, stanza
        assert "trusted: yes" not in stanza, stanza
    assert "trusted=yes" not in host.check_output(
        "cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list || true"
    )


def test_nothing_is_half_installed(host: Any) -> None:
    assert host.check_output("dpkg --audit") == ""


def test_no_service_failed(host: Any) -> None:
    failed = host.check_output("systemctl --failed --plain --no-legend").split("\n")
    assert [line.split()[0] for line in failed if line] == []

"""An altered or removed part of a certificate leaves no pass. ``certificates.py`` goes further."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.certificates import PAGE_KINDS, try_mutations


def test_a_hundred_mutations_of_a_certificate_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # The suite fuzz tries 10,000.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    kinds, failures = try_mutations(20261126, 0, 100)
    assert failures == []
    tried = {kind.split(":")[1] for kind in kinds if not kind.endswith(("same", "refused"))}
    assert tried >= {*PAGE_KINDS, "remove", "empty", "bytes", "json", "folder"}

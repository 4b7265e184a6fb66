"""Test that an altered certificate, or altered evidence of a certificate, does not pass.

These tests try 100 of the mutations of tests/fuzz/certificates.py, which explains them.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.certificates import PAGE_KINDS, try_mutations


def test_a_hundred_mutations_of_a_certificate_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    # The suite fuzz tries 10,000 mutations.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    kinds, failures = try_mutations(20261126, 0, 100)
    assert failures == []
    tried = {kind.split(":")[1] for kind in kinds if not kind.endswith(("same", "refused"))}
    assert tried >= {*PAGE_KINDS, "remove", "empty", "bytes", "json", "folder"}

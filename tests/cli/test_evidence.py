"""Test ``rackproof evidence``, which makes, signs, verifies and compares certificates.

A certificate answers a catalogue of requirements, such as a customer's contract, with runs and nights as
evidence. It is a page that contains the same content as JSON, and can be signed. The tests show that changed
pages, forged answers, removed evidence and foreign signatures give no pass.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from rackproof import __version__
from rackproof.analysis.certificate import changes
from rackproof.analysis.certificate.catalogue import load_catalogue
from rackproof.analysis.certificate.models import (
    CertificateError,
    ChangedLimit,
    EvidencePiece,
    PieceFinding,
)
from rackproof.analysis.certificate.page_parts import (
    PageParts,
    dump_certificate,
    fill_page,
    load_certificate,
    shell_digest,
    split_page,
)
from rackproof.analysis.certificate.signature import sign_bytes, signer_of
from rackproof.analysis.certificate.verification import verify_certificate
from rackproof.core.records import Gpu, Judgement, Reference, Verdict
from rackproof.report.certificate import certificate_shell, judged_text
from rackproof.store.history.repository import open_store
from rackproof.store.night_store import (
    night_files,
    night_folders,
    read_night,
    snapshot_path,
    write_night,
)
from rackproof.store.run_folder import iter_runs, read_run, write_run
from rackproof.store.sealed_json import open_sealed, seal_json
from tests.analysis.certificate import samples
from tests.report.example_runs import HOSTILE

Call = Callable[..., Result]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with results, a contract of three requirements, a key and its file of signers."""
    folder = tmp_path_factory.mktemp("evidence")
    samples.make_results(folder)
    samples.contract_file(folder)
    samples.make_key(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of this folder, which a test can change."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def make(run: Call, folder: Path, *more: object, out: str = "c.html") -> Result:
    """Make a certificate of the node by the contract."""
    return run(
        *("evidence", samples.NODE, "--results", folder / "results", "--catalogue", folder / "contract.yml"),
        *("--out", folder / out, *more),
    )


def signed(folder: Path) -> tuple[object, ...]:
    """Return the options that sign a certificate."""
    return "--sign", folder / "key-ops@example.com"


def verify(run: Call, folder: Path, *more: object, page: str = "c.html") -> Result:
    """Verify a page."""
    return run("evidence", "verify", folder / page, *more)


def by_signers(folder: Path) -> tuple[object, ...]:
    """Return the options that name the allowed signers."""
    return "--signers", folder / "signers-ops@example.com"


@pytest.mark.parametrize("stage", ["no snapshot", "snapshots", "judgements not written"])
def test_a_killed_night_is_named_and_the_one_before_counts(run: Call, folder: Path, stage: str) -> None:
    results = folder / "results"
    last = night_folders(results)[0]
    killed = results / f"2099{last.name[4:]}"
    # This process claimed the node, and would be a playbook that still runs.
    shutil.rmtree(results / ".nights", ignore_errors=True)
    shutil.copytree(last, killed)
    for name in ("night.json", "run.json", "conditions.json"):
        (killed / name).unlink(missing_ok=True)
    if stage == "no snapshot":
        shutil.rmtree(killed / "snapshots")
    if stage == "judgements not written":
        (killed / ".night.json.7.abcd.tmp").write_text("{")
    lost = "it took no snapshot" if stage == "no snapshot" else f"its snapshots of {samples.NODE} are not"
    named = f"night {killed.name} was interrupted, or runs on another machine: {lost}"
    result = make(run, folder)
    assert result.exit_code == 0, result.output
    assert f"note: {named}" in result.stderr
    assert f"note: {named}" in run("status", "--no-slurm", "--results", results).stderr
    assert named in run("explain", samples.NODE, "--results", results).output


def test_a_contract_is_answered_signed_and_verified(run: Call, folder: Path) -> None:
    result = make(run, folder, *signed(folder))
    assert result.exit_code == 0, result.output
    assert result.output.startswith("pass: A customer's contract, 1 node")
    shutil.move(folder / "results", folder / "gone")  # verified on another machine
    result = verify(run, folder, *by_signers(folder))
    assert result.exit_code == 0, result.output
    assert "pass: signed by ops@example.com" in result.output
    # The signature needs no Rackproof.
    subprocess.run(
        [
            *("ssh-keygen", "-Y", "verify", "-I", "ops@example.com", "-n", "rackproof-evidence"),
            *("-f", folder / "signers-ops@example.com", "-s", folder / "c.json.sig"),
        ],
        stdin=(folder / "c.json").open(),
        check=True,
        capture_output=True,
    )
    # The first line distinguishes an altered page from an honest one that lacks evidence.
    page = folder / "c.html"
    page.write_text(page.read_text().replace("contract", "Contract", 1))
    result = verify(run, folder, *by_signers(folder))
    assert result.exit_code == 3
    assert result.output.startswith(
        "unproven: signed by ops@example.com; do not rely on this page, because\n"
    )


def test_the_json_has_the_answers_the_files_and_the_gpus(run: Call, folder: Path) -> None:
    make(run, folder)
    found = json.loads((folder / "c.json").read_text())
    assert [one["id"] for one in found["answers"]] == ["S1", "S2", "S3"]
    assert all(one["until"] and one["by"] for one in found["answers"])
    files = [file for piece in found["evidence"] for file in piece["files"]]
    assert {"path", "sha256", "size_bytes"} == files[0].keys()
    assert any(file["path"].endswith(".log") for file in files)
    assert any("/snapshots/" in file["path"] for file in files)
    (node,) = found["nodes"]
    assert len(node["gpus"]) == 2
    assert all(gpu["uuid"] for gpu in node["gpus"])
    assert any(one["command"] for one in found["evidence"])


def test_a_requirement_about_ports_is_unproven_without_expected_ports(run: Call, folder: Path) -> None:
    """The SKU of the night states NVLinks, but no ports."""
    rows = {"ports": ["ports_missing"], "links": ["nvlink_missing"]}
    contract = yaml.safe_load((folder / "contract.yml").read_text())
    contract["requirements"] = [
        {"id": row, "text": "Nothing is missing.", "max_age_days": 7, "night": True, "codes": codes}
        | {"reads": ["kernel_log"]}
        for row, codes in rows.items()
    ]
    (folder / "contract.yml").write_text(yaml.safe_dump(contract))
    make(run, folder)
    ports, links = load_certificate((folder / "c.json").read_bytes()).answers
    assert (ports.verdict, links.verdict) == (Verdict.UNPROVEN, Verdict.PASS)
    assert ports.reasons == (
        "localhost: the inventory does not state how many ports the node needs: ports in validate_expect",
    )
    assert verify(run, folder, "--unsigned").exit_code == 3


def change_night(results: Path, **changes: object) -> None:
    """Change values of the night's snapshot, and its digest in the record and the history."""
    (folder,) = night_folders(results)
    path = snapshot_path(folder, samples.NODE)
    stored = json.loads(open_sealed(path.read_bytes())) | changes
    kept = {key: value for key, value in stored.items() if value is not None}
    path.write_bytes(seal_json(json.dumps(kept)))
    night_run = read_run(folder)
    logs = night_files(folder, [samples.NODE])
    night_run = night_run.model_copy(update={"logs": logs})
    write_run(night_run, folder)
    with open_store(results / "history.sqlite") as store:
        store.keep(night_run)


@pytest.mark.parametrize(
    ("limits", "cells", "line"),
    [
        (
            {"memlock_bytes": 8 << 20, "clock_s": 2},
            ("memlock_bytes", "8388608 (8 MiB)", "34359738368 (32 GiB)"),
            "Limits that differ from the defaults: memlock_bytes. The page lists them.",
        ),
        ({}, (), ""),
        # A snapshot without limits is of an older version.
        (None, ("not known",), "The limits of some nights are not known."),
    ],
)
def test_limits_that_differ_from_the_defaults_are_shown(
    run: Call, folder: Path, limits: object, cells: tuple[str, ...], line: str
) -> None:
    change_night(folder / "results", limits=limits)
    output = make(run, folder).output
    assert output.startswith("pass"), output
    page = (folder / "c.html").read_text()
    section = page.partition('id="s-limits"')[2].partition("</section>")[0]
    assert "Limits that differ from the defaults" in section
    for cell in cells:
        assert cell in section, section
    assert "clock_s" not in section
    assert ("All limits of the nights are the defaults." in section) is (not cells)
    assert line in output
    assert ("imits" in output.partition("\n")[2]) is bool(line)
    assert verify(run, folder, "--unsigned").exit_code == 0
    (night,) = [piece for piece in json.loads((folder / "c.json").read_text())["evidence"] if piece["limits"]]
    changed = [{"name": "memlock_bytes", "value": 8 << 20, "default": 32 << 30}]
    assert night["limits"][samples.NODE] == (None if limits is None else changed if limits else [])


def test_the_expectations_that_a_night_judged_are_shown(run: Call, folder: Path) -> None:
    expected = {"hostname": samples.NODE, "ports": 0, "mounts": ["/data", {"path": "/x", "fstype": "nfs"}]}
    change_night(folder / "results", expected=expected | {"versions": {"driver": "<b>580"}, "services": []})
    make(run, folder)
    page = (folder / "c.html").read_text()
    section = page.partition('id="s-expected"')[2].partition("</section>")[0]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", section)
    rows = {re.sub("<[^>]*>", "", name): value for name, value in zip(cells[1::3], cells[2::3], strict=True)}
    assert rows == {
        "hostname": "its name in the inventory",
        "mounts": "/data, path=/x fstype=nfs",
        "ports": "0",
        "versions": "driver=&lt;b&gt;580",
    }


@pytest.mark.parametrize(
    ("rows", "meaning"),
    [
        (["S1"], "Proven good by health checks. No speed was measured."),
        (["S1", "S2", "S3"], "Proven good: everything that counts was measured and lies within its bounds."),
    ],
)
def test_a_certificate_of_nights_alone_states_that_no_speed_was_measured(
    run: Call, folder: Path, rows: list[str], meaning: str
) -> None:
    contract = yaml.safe_load((folder / "contract.yml").read_text())
    contract["requirements"] = [row for row in contract["requirements"] if row["id"] in rows]
    (folder / "contract.yml").write_text(yaml.safe_dump(contract))
    output = make(run, folder).output
    page = (folder / "c.html").read_text()
    assert f'<p class="lead">{meaning}</p>' in page
    assert ("Judged: health checks; no speed was measured" in output) is (rows == ["S1"])
    assert ("Judged: health checks; no speed was measured" in page) is (rows == ["S1"])


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308, 0.5])
def test_any_limit_in_a_forged_page_can_be_shown(folder: Path, value: float) -> None:
    certificate = samples.certify(folder / "results", str(folder / "contract.yml"))
    limits = {samples.NODE: (ChangedLimit(name="memlock_bytes", value=value, default=1),)}
    pieces = tuple(piece.model_copy(update={"limits": limits}) for piece in certificate.evidence)
    assert "memlock_bytes" in certificate_shell(certificate.model_copy(update={"evidence": pieces}))


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        ((), "health checks; no speed was measured"),
        ((samples.NODE,), "health checks; speeds were measured on 1 of 2 nodes"),
        ((samples.NODE, "n2"), "health checks"),
    ],
)
def test_measurements_of_nights_are_counted_by_node(
    folder: Path, measured: tuple[str, ...], text: str
) -> None:
    certificate = samples.certify(folder / "results", str(folder / "contract.yml"))
    (night,) = [piece for piece in certificate.evidence if piece.kind == "night"]
    night = night.model_copy(update={"measured": measured})
    certificate = certificate.model_copy(
        update={"asked": (samples.NODE, "n2"), "evidence": (night,), "verdict": Verdict.PASS}
    )
    assert judged_text(certificate) == text
    assert ("everything that counts was measured" in certificate_shell(certificate)) is (len(measured) == 2)


def test_reasons_that_are_not_shown_are_counted(run: Call, folder: Path) -> None:
    names = [f"n{number:02}" for number in range(60)]
    result = run(
        *("evidence", samples.NODE, *names, "--inventory", inventory_of(folder, names)),
        *(
            "--results",
            folder / "results",
            "--catalogue",
            folder / "contract.yml",
            "--out",
            folder / "c.html",
        ),
    )
    text = " ".join(result.output.split())
    assert "n00: there is no night; n01: there is no night; n02: there is no night; and 57 more" in text
    (page,) = re.findall(r"n39: there is no night; and 20 more", (folder / "c.html").read_text())
    assert page


def inventory_of(folder: Path, names: list[str]) -> Path:
    """Write an inventory with these nodes."""
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": dict.fromkeys(names)}}))
    return path


def test_the_page_is_complete_and_loads_no_other_file(run: Call, folder: Path) -> None:
    make(run, folder)
    page = (folder / "c.html").read_text()
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert "default-src 'none'" in page
    assert load_certificate(split_page(page.encode()).json).verdict is Verdict.PASS


@pytest.mark.parametrize("name", ["results", "my results", "it's"])
def test_unproven_answers_come_with_the_playbooks_that_measure_them(
    run: Call, folder: Path, name: str
) -> None:
    results = (folder / "results").rename(folder / name)
    options = ("--results", results, "--catalogue", "acceptance", "--out", folder / "c.html")
    result = run("evidence", samples.NODE, *options)
    assert result.exit_code == 3, result.output
    lines = result.output.splitlines()
    begin = lines.index("Unproven for want of a measurement, if the reasons do not say otherwise:")
    playbooks = {
        line.partition("  # ")[2]: shlex.split(line.partition("  # ")[0]) for line in lines[begin + 1 :]
    }
    soak = playbooks["endurance"]
    assert soak[:4] == ["ansible-playbook", "bench.yml", "-e", "benchmark=soak"]
    assert soak[-4:-1] == ["-l", samples.NODE, "-e"]
    assert json.loads(soak[-1]) == {"bench_results": str(results)}
    answers = json.loads((folder / "c.json").read_text())["answers"]
    proven = {row["id"] for row in answers if row["verdict"] == "pass"}
    assert proven
    assert not any(proven & set(ids.split(", ")) for ids in playbooks)


def test_a_node_with_one_gpu_is_not_sent_to_benchmarks_of_several(run: Call, tmp_path: Path) -> None:
    samples.make_results(tmp_path, ("h100-x1-night", "h100-x1-gemm-alone"))
    options = ("--results", tmp_path / "results", "--catalogue", "acceptance", "--out", tmp_path / "c.html")
    result = run("evidence", samples.NODE, *options)
    assert result.exit_code == 3, result.output
    lines = result.output.splitlines()
    end = lines.index("These need more GPUs than a node has. A catalogue for such nodes leaves out the rows:")
    assert lines[end + 1 :] == [
        "  peer-bandwidth on localhost (1 GPU)  # nvlink",
        "  all-reduce, collectives on localhost (1 GPU)  # collectives",
    ]
    advised = {name for line in lines[:end] for name in re.findall(r"-e benchmark=(\S+)", line)}
    assert advised == {"memory-bandwidth", "host-device-bandwidth", "sdc", "soak", "llm"}


def test_requirements_that_are_not_measured_are_counted_and_folded_on_the_page(
    run: Call, folder: Path
) -> None:
    options = ("--results", folder / "results", "--catalogue", "nvidia-ai-clouds", "--out", folder / "c.html")
    result = run("evidence", samples.NODE, *options)
    assert result.exit_code == 3
    lines = result.output.splitlines()
    assert (
        lines[2] == "138 requirements: 1 pass, 137 unproven; Rackproof does not measure 125 of the unproven"
    )
    assert [line.split()[:2] for line in lines if line.startswith("BMAAS11")] == [["BMAAS11", "pass"]]
    assert not [line for line in lines if line.startswith("SEC")]
    assert "The page lists the requirements that Rackproof does not measure." in lines
    text = (folder / "c.html").read_text().partition('<pre id="certificate-json">')[0]
    for row in load_catalogue("nvidia-ai-clouds").requirements:
        assert text.count(f"<code>{row.id}</code>") == 1
    assert "<summary>Identity and access: 12 that Rackproof does not measure</summary>" in text
    result = verify(run, folder, "--unsigned")
    assert (result.exit_code, lines[2] in result.output) == (3, True)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ((), 3, "it is unsigned"),
        (("--unsigned",), 0, "pass: unsigned"),
    ],
)
def test_an_unsigned_page_is_believed_only_on_request(
    run: Call, folder: Path, options: tuple[str, ...], status: int, said: str
) -> None:
    make(run, folder)
    result = verify(run, folder, *options)
    assert (result.exit_code, said in result.output) == (status, True)


def test_a_signature_counts_only_from_an_allowed_signer(run: Call, folder: Path) -> None:
    make(run, folder, *signed(folder))
    _, strangers = samples.make_key(folder, "stranger@example.com")
    for options, said in (
        ((), "its signature was not checked"),
        (("--unsigned",), "its signature was not checked"),
        (("--signers", strangers), "a key that"),
        (("--signers", folder / "none"), "no file of allowed signers"),
    ):
        result = verify(run, folder, *options)
        assert result.exit_code == 3
        assert said in result.output
        # The output has no word that a reader could take for a pass.
        assert "pass" not in result.output
        assert "unsigned" not in result.output


def test_a_page_that_a_stranger_signed_is_unproven(run: Call, folder: Path) -> None:
    stranger, _ = samples.make_key(folder, "stranger@example.com")
    make(run, folder, "--sign", stranger)
    assert verify(run, folder, *by_signers(folder)).exit_code == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"verdict": "pass"', b'"verdict": "fail", "verdict": "pass"'),
        (b'"uuid": ', b'"uuid": "GPU-other", "uuid": '),
        (b'"made": ', b'"sha256": "0", "sha256": "1", "made": '),
    ],
)
def test_a_signed_json_with_a_key_twice_is_unproven(run: Call, folder: Path, old: bytes, new: bytes) -> None:
    make(run, folder, *signed(folder))
    parts = split_page((folder / "c.html").read_bytes())
    text = open_sealed(parts.json).replace(old, new, 1).decode()
    assert text.encode() != open_sealed(parts.json)
    written = seal_json(text)
    signature = sign_bytes(written, folder / "key-ops@example.com")
    page = fill_page(PageParts(parts.shell, written, signature))
    found = verify_certificate(page, {}, datetime.now(UTC), folder / "signers-ops@example.com")
    assert found.verdict is Verdict.UNPROVEN
    assert "has a key twice" in found.objections[0]


def test_a_certificate_follows_no_link_and_is_not_readable_by_others(run: Call, folder: Path) -> None:
    victim = folder / "victim"
    victim.write_text("kept")
    (folder / "out").mkdir()
    for suffix in (".html", ".json", ".json.sig"):
        (folder / "out/c").with_suffix(suffix).symlink_to(victim)
    before = os.umask(0)
    try:
        make(run, folder, *signed(folder), out="out/c.html")
    finally:
        os.umask(before)
    assert victim.read_text() == "kept"
    modes = {path.name: path.lstat().st_mode & 0o7777 for path in (folder / "out").iterdir()}
    assert modes == dict.fromkeys(("c.html", "c.json", "c.json.sig"), 0o640)


def test_a_signature_for_another_purpose_is_refused(folder: Path) -> None:
    data = folder / "data"
    data.write_bytes(b"x")
    key = folder / "key-ops@example.com"
    subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-n", "file", "-f", key, data], check=True, capture_output=True
    )
    signature = (folder / "data.sig").read_text()
    with pytest.raises(CertificateError, match="does not hold"):
        signer_of(b"x", signature, folder / "signers-ops@example.com")
    right = sign_bytes(b"x", key)
    assert signer_of(b"x", right, folder / "signers-ops@example.com") == "ops@example.com"
    for changed in (right + "\n", right.replace("\n", "\r\n"), right.strip(), " " + right, ""):
        with pytest.raises(CertificateError):
            signer_of(b"x", changed, folder / "signers-ops@example.com")


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        ("garbage line here", r"line 1: invalid key\): write NAME KEYTYPE KEY"),
        ("ops@example.com ssh-ed25519 AAAAbroken", "line 1: invalid key"),
        ("\x01\x02", "line 1: missing key"),
        ("", "does not name$"),
        ("OTHER", "does not name$"),
    ],
)
def test_a_signers_file_that_cannot_be_read_is_named(folder: Path, content: str, wrong: str) -> None:
    key, signers = folder / "key-ops@example.com", folder / "signers"
    other = content == "OTHER" and samples.make_key(folder, "other@example.com")[1].read_text()
    signers.write_text(f"{other or content}\n" if content else "")
    with pytest.raises(CertificateError, match=wrong):
        signer_of(b"x", sign_bytes(b"x", key), signers)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (8, 1, [f"GPU {index}" for index in range(1, 8)]),
        (1, 2, ["GPU 1", "VBIOS of 1"]),
        (2, 2, []),
    ],
)
def test_gpus_without_uuid_are_compared_by_their_index(
    folder: Path, before: int, after: int, changed: list[str]
) -> None:
    certificate = samples.certify(folder / "results", str(folder / "contract.yml"))
    pages = []
    for count in (before, after):
        gpus = tuple(Gpu(index=index, uuid="", vbios="1" * (after > before)) for index in range(count))
        node = certificate.nodes[0].model_copy(update={"gpus": gpus})
        pages.append(certificate.model_copy(update={"nodes": (node,)}))
    assert [change.what for change in changes.certificate_changes(*pages)] == changed


def test_answers_expire(run: Call, folder: Path) -> None:
    make(run, folder, *signed(folder))
    page, signers = (folder / "c.html").read_bytes(), folder / "signers-ops@example.com"
    later = datetime.now(UTC) + timedelta(days=8)
    found = verify_certificate(page, {}, later, signers)
    assert found.verdict is Verdict.UNPROVEN
    assert [one.split(":")[0] for one in found.expired] == ["S1"]
    # A certificate of the future, as with a clock that is set back, proves nothing either.
    early = verify_certificate(page, {}, later - timedelta(days=9), signers)
    assert early.verdict is Verdict.UNPROVEN
    assert "in the future" in early.objections[0]


def _beyond_bounds(piece: EvidencePiece) -> dict[str, object]:
    far = [one.model_copy(update={"value": 1e-6 * (one.value or 1) + 1e-6}) for one in piece.judgements]
    return {"judgements": tuple(far)}


@pytest.mark.parametrize(
    "forged",
    [lambda _: {"files": ()}, lambda _: {"gone": True}, _beyond_bounds],
    ids=["no files", "gone", "beyond bounds"],
)
def test_signed_evidence_that_contradicts_its_verdict_is_unproven(
    folder: Path, forged: Callable[[EvidencePiece], dict[str, object]]
) -> None:
    honest = samples.certify(folder / "results", str(folder / "contract.yml"))
    pieces = tuple(piece.model_copy(update=forged(piece)) for piece in honest.evidence)
    key, signers = folder / "key-ops@example.com", folder / "signers-ops@example.com"
    for evidence, is_right in ((honest.evidence, True), (pieces, False)):
        page, _, _ = samples.page_of(honest.model_copy(update={"evidence": evidence}), key)
        found = verify_certificate(page, {}, datetime.now(UTC), signers)
        assert (found.verdict is Verdict.PASS, not found.objections) == (is_right, is_right)


def test_a_signed_page_that_certifies_one_machine_twice_is_unproven(folder: Path) -> None:
    """The signer added the machine under another name, with all its evidence."""
    honest = samples.certify(folder / "results", str(folder / "contract.yml"))
    twice = tuple(
        piece.model_copy(
            update={
                "id": f"{piece.id}x",
                "nodes": tuple(node.model_copy(update={"name": "n2"}) for node in piece.nodes),
                "verdicts": {"n2": piece.verdict} if piece.verdicts else {},
            }
        )
        for piece in honest.evidence
    )
    forged = {
        "asked": (*honest.asked, "n2"),
        "nodes": (*honest.nodes, honest.nodes[0].model_copy(update={"name": "n2"})),
        "evidence": (*honest.evidence, *twice),
    }
    page, _, _ = samples.page_of(honest.model_copy(update=forged), folder / "key-ops@example.com")
    found = verify_certificate(page, {}, datetime.now(UTC), folder / "signers-ops@example.com")
    assert found.verdict is Verdict.UNPROVEN
    assert "do not follow from its evidence: S1, S2, S3" in found.objections[0]


def test_an_answer_that_never_held_does_not_expire(folder: Path) -> None:
    """The signer wrote a pass into the page, although the run failed."""
    samples.add_run(folder / "results", "gemm", verdict=Verdict.FAIL)
    honest = samples.certify(folder / "results", str(folder / "contract.yml"))
    until = datetime.now(UTC) + timedelta(days=30)
    better = tuple(one.model_copy(update={"verdict": Verdict.PASS, "until": until}) for one in honest.answers)
    forged = honest.model_copy(update={"answers": better, "verdict": Verdict.PASS})
    page, _, _ = samples.page_of(forged, folder / "key-ops@example.com")
    signers = folder / "signers-ops@example.com"
    for days in (0, 8, 40):
        found = verify_certificate(page, {}, datetime.now(UTC) + timedelta(days=days), signers)
        assert found.objections
        assert found.expired == ()


def test_codes_and_their_sources_are_on_the_page_and_printed(run: Call, folder: Path) -> None:
    contract = yaml.safe_load((folder / "contract.yml").read_text())
    row = {"codes": ["xid_79", "gpu_lost"], "reads": ["kernel_log"]}
    contract["requirements"][0] |= row
    (folder / "contract.yml").write_text(yaml.safe_dump(contract))
    basis = "codes xid_79, gpu_lost of the last night; read from kernel_log; at most 7 days old"
    assert f"Judged by: {basis}" in " ".join(make(run, folder).output.split())
    page = (folder / "c.html").read_text()
    assert basis in page
    assert "gemm (node); metrics wrong_values, gemm_best; at most 30 days old" in page
    assert "all-reduce (rack); at most 30 days old" in page
    assert f"Judged by: {basis}" in " ".join(verify(run, folder, "--unsigned").output.split())


def test_signed_answers_are_derived_again_from_the_evidence(folder: Path) -> None:
    """A signature makes no pass of missing evidence, because the answers are derived from the evidence."""
    samples.add_run(folder / "results", "gemm", verdict=Verdict.FAIL)
    honest = samples.certify(folder / "results", str(folder / "contract.yml"))
    assert honest.verdict is Verdict.FAIL
    key, signers = folder / "key-ops@example.com", folder / "signers-ops@example.com"
    better = tuple(one.model_copy(update={"verdict": Verdict.PASS}) for one in honest.answers)
    for forged, said in (
        ({"verdict": Verdict.PASS}, "its verdict is pass"),
        ({"answers": better, "verdict": Verdict.PASS}, "do not follow"),
        ({"answers": honest.answers[:1], "verdict": Verdict.PASS}, "do not follow"),
        ({"answers": honest.answers[::-1]}, "do not follow"),
    ):
        page, _, _ = samples.page_of(honest.model_copy(update=forged), key)
        found = verify_certificate(page, {}, datetime.now(UTC), signers)
        assert found.verdict is Verdict.UNPROVEN
        assert any(said in one for one in found.objections)


@pytest.mark.parametrize(("version", "is_valid"), [("0.0.9", True), (__version__, False)])
def test_only_answers_of_another_version_may_have_other_words_as_reasons(
    folder: Path, version: str, is_valid: bool
) -> None:
    key, signers = folder / "key-ops@example.com", folder / "signers-ops@example.com"
    made_now = samples.certify(folder / "results", str(folder / "contract.yml"))
    answers = tuple(one.model_copy(update={"reasons": ("in other words",)}) for one in made_now.answers)
    reworded = made_now.model_copy(update={"answers": answers, "rackproof_version": version})
    page, _, _ = samples.page_of(reworded, key)
    found = verify_certificate(page, {}, datetime.now(UTC), signers)
    assert (found.verdict is Verdict.PASS, not found.objections) == (is_valid, is_valid)
    # In no version may the verdict of an answer differ from the evidence.
    worse = tuple(one.model_copy(update={"verdict": Verdict.FAIL}) for one in answers)
    page, _, _ = samples.page_of(reworded.model_copy(update={"answers": worse}), key)
    assert any(
        "do not follow" in one for one in verify_certificate(page, {}, datetime.now(UTC), signers).objections
    )


def test_every_letter_of_the_json_on_a_page_is_signed(folder: Path) -> None:
    """The signed JSON has a question mark where the altered page shows another letter."""
    key, signers = folder / "key-ops@example.com", folder / "signers-ops@example.com"
    asked = samples.certify(folder / "results", str(folder / "contract.yml")).model_copy(
        update={"made_by": "ops@host?"}
    )
    page, _, _ = samples.page_of(asked, key)
    assert verify_certificate(page, {}, datetime.now(UTC), signers).verdict is Verdict.PASS
    altered = page.replace(b'"made_by": "ops@host?"', '"made_by": "ops@host\u2713"'.encode())
    assert altered != page
    assert verify_certificate(altered, {}, datetime.now(UTC), signers).verdict is Verdict.UNPROVEN


@pytest.mark.parametrize(("kind", "gone"), [("gemm", "S2"), ("all-reduce", "S3"), ("health", "S1")])
def test_removed_evidence_is_noticed(run: Call, folder: Path, kind: str, gone: str) -> None:
    """Removing the folder of a run or a night does not help, because the history has a record of it."""
    if kind != "health":
        samples.add_run(folder / "results", kind, verdict=Verdict.FAIL)
    ids = [one.run_id for one in iter_runs(folder / "results") if one.benchmark == kind]
    assert ids
    for run_id in ids:
        shutil.rmtree(folder / "results" / run_id)
    result = make(run, folder, "--json")
    answers = {one["id"]: one for one in json.loads(result.output)["answers"]}
    assert answers[gone]["verdict"] == ("unproven" if kind == "health" else "fail")
    assert "its folder is gone" in answers[gone]["reasons"][0]
    assert [one["verdict"] for key, one in answers.items() if key != gone] == ["pass", "pass"]


def add_night(results: Path, minutes: int, verdict: Verdict, unreached: str = "") -> str:
    """Add a night like the first one, with another verdict, some minutes later. Return its id."""
    before = night_folders(results)[-1]
    night, ended = read_night(before), read_night(before).ended + timedelta(minutes=minutes)
    (one,) = night.nodes
    night_id = f"2099123{minutes}T000000Z-{before.name[17:]}"
    changed = one.model_copy(update={"verdict": verdict, "unreached": unreached})
    # A node that a night did not reach has no snapshot.
    if not unreached:
        shutil.copytree(before, results / night_id)
    update = {"night_id": night_id, "ended": ended, "verdict": verdict, "nodes": (changed,)}
    write_night(results / night_id, night.model_copy(update=update))
    nodes = () if unreached else read_run(before).nodes
    record = read_run(before).model_copy(
        update={"run_id": night_id, "ended": ended, "verdict": verdict, "nodes": nodes}
    )
    write_run(record, results / night_id)
    with open_store(results / "history.sqlite") as store:
        store.keep(record)
    return night_id


def test_removing_a_night_that_did_not_reach_the_node_is_noticed(run: Call, folder: Path) -> None:
    """The history does not name the nodes that a night did not reach."""
    night_id = add_night(folder / "results", 1, Verdict.UNPROVEN, "no answer")
    assert make(run, folder).exit_code == 3
    shutil.rmtree(folder / "results" / night_id)
    result = make(run, folder)
    assert result.exit_code == 3
    assert "its folder is gone" in " ".join(result.output.split())


@pytest.mark.parametrize(("last", "expected"), [(Verdict.FAIL, "fail"), (Verdict.PASS, "unproven")])
def test_a_node_that_failed_and_does_not_answer_now_still_fails(
    run: Call, folder: Path, last: Verdict, expected: str
) -> None:
    """A night that did not reach the node proves nothing, and so cannot replace a failed night."""
    add_night(folder / "results", 1, last)
    add_night(folder / "results", 2, Verdict.UNPROVEN, "no answer")
    result = make(run, folder, "--json")
    answers = {one["id"]: one["verdict"] for one in json.loads(result.output)["answers"]}
    assert answers["S1"] == expected
    text = (folder / "c.html").read_bytes()
    assert load_certificate(split_page(text).json).verdict.value == expected
    assert verify(run, folder, "--unsigned").exit_code == result.exit_code


def test_without_a_history_there_is_no_certificate(run: Call, folder: Path) -> None:
    (folder / "results/history.sqlite").unlink()
    result = make(run, folder)
    assert result.exit_code == 1
    assert "there is no history" in result.output
    assert not (folder / "c.html").exists()


def test_a_run_without_a_record_in_the_history_is_unproven(run: Call, folder: Path) -> None:
    results = folder / "results"
    kept = results / "history.sqlite"
    before = kept.read_bytes()
    samples.add_run(results, "gemm")
    kept.write_bytes(before)
    result = make(run, folder)
    assert result.exit_code == 3
    assert "history --rebuild" in result.output


def test_groups_of_the_inventory_and_lists_of_nodes_can_be_named(run: Call, folder: Path) -> None:
    inventory = folder / "hosts.yml"
    inventory.write_text(
        yaml.safe_dump(
            {
                "all": {
                    "children": {
                        "rack": {"hosts": {samples.NODE: {}, "n2": {}}},
                        "b": {"hosts": {"m01": {}, "m02": {}}},
                    }
                }
            }
        )
    )
    result = run(
        *("evidence", "rack", "m[01-02]", "--results", folder / "results", "--catalogue", "acceptance"),
        *("--out", folder / "c.html", "--inventory", inventory, "--json"),
    )
    assert result.exit_code == 3
    assert json.loads(result.output)["asked"] == [samples.NODE, "n2", "m01", "m02"]
    assert {one["verdict"] for one in json.loads(result.output)["answers"]} == {"unproven"}


def test_the_groups_are_those_of_ansible_inventory_unless_i_names_another(
    run: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {}
    for name, host in (("cluster", samples.NODE), ("other", "n1")):
        paths[name] = folder / f"{name}.yml"
        paths[name].write_text(yaml.safe_dump({"all": {"children": {"gpu_nodes": {"hosts": {host: {}}}}}}))
    monkeypatch.setenv("ANSIBLE_INVENTORY", str(paths["cluster"]))
    words = ("evidence", "gpu_nodes", "--results", folder / "results", "--out", folder / "c.html")
    words = (*words, "--catalogue", folder / "contract.yml")
    done = run(*words)
    assert done.exit_code == 0, done.output
    assert f"inventory: {paths['cluster']}" in done.output
    (folder / "c.html").unlink()

    # The nodes of another inventory have neither a night nor a run here. They get no certificate.
    other = run(*words, "-i", paths["other"])
    assert (other.exit_code, (folder / "c.html").exists()) == (1, False), other.output
    assert f"no readable night or run in {folder / 'results'} has any of n1" in other.output
    assert str(paths["other"]) in other.output


def test_a_damaged_night_is_no_evidence_that_any_node_exists(run: Call, folder: Path) -> None:
    (before,) = night_folders(folder / "results")
    (before / "night.json").write_text("{")
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"n1": {}}}}))
    words = ("evidence", "n1", "--results", folder / "results", "--catalogue", "acceptance")
    done = run(*words, "--inventory", inventory, "--out", folder / "c.html")
    assert (done.exit_code, (folder / "c.html").exists()) == (1, False), done.output


@pytest.mark.parametrize("name", ["rak", "n9", "m[01-02]"])
def test_a_name_that_exists_nowhere_gets_no_certificate(run: Call, folder: Path, name: str) -> None:
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"children": {"rack": {"hosts": {"n1": {}, "n2": {}}}}}}))
    result = run(
        *("evidence", name, "--results", folder / "results", "--catalogue", "acceptance"),
        *("--out", folder / "c.html", "--inventory", inventory),
    )
    assert "no such group or node" in result.output
    assert (result.exit_code, (folder / "c.html").exists()) == (1, False)


@pytest.mark.parametrize(
    ("page", "said"),
    [(b"", "not a certificate"), (b"\xff\xfe", "not UTF-8"), (b"<html></html>", "not a certificate")],
)
def test_a_file_that_is_no_page_is_refused_with_a_reason(
    run: Call, folder: Path, page: bytes, said: str
) -> None:
    (folder / "c.html").write_bytes(page)
    result = verify(run, folder)
    assert (result.exit_code, said in result.output) == (3, True)


def test_hostile_text_on_a_page_is_harmless(folder: Path) -> None:
    certificate = samples.certify(folder / "results", str(folder / "contract.yml"))
    (first, *rest) = certificate.evidence
    mark = '</pre><pre id="certificate-json">'
    hostile = first.model_copy(
        update={
            "command": (HOSTILE, mark),
            "objections": (HOSTILE, mark),
            "findings": (PieceFinding(code="x", verdict=Verdict.FAIL, text=HOSTILE + mark),),
        }
    )
    row = certificate.catalogue.model_copy(update={"title": HOSTILE[:150], "left_out": (mark,)})
    page, written, _ = samples.page_of(
        certificate.model_copy(update={"evidence": (hostile, *rest), "catalogue": row})
    )
    assert b"<script" not in page
    assert b"\x1b" not in page
    assert split_page(page).json == written
    assert load_certificate(written).evidence[0].command == (HOSTILE, mark)


def changed_piece(piece: EvidencePiece, factor: float) -> EvidencePiece:
    """Return a piece with its speeds multiplied."""
    return piece.model_copy(
        update={
            "judgements": tuple(
                one.model_copy(update={"value": one.value * factor}) if one.value else one
                for one in piece.judgements
            )
        }
    )


@pytest.mark.parametrize(
    "title", ["a\n\x1b[2Jpass: signed by boss", "a\r\x9b2J\npass: signed by boss", "a\n\u202eb"]
)
def test_a_title_adds_no_line_and_controls_no_terminal(run: Call, folder: Path, title: str) -> None:
    contract = yaml.safe_load((folder / "contract.yml").read_text()) | {"title": title}
    (folder / "contract.yml").write_text(json.dumps(contract))
    for result in (make(run, folder), verify(run, folder, "--unsigned")):
        assert result.exit_code == 0, result.output
        assert "pass: signed by" not in [line[:15] for line in result.output.splitlines()]
        assert not re.search("[\x1b\x9b\u202e\r]", result.output)


def test_two_certificates_are_compared(run: Call, folder: Path) -> None:
    old = samples.certify(folder / "results", str(folder / "contract.yml"))
    (node,) = old.nodes
    first, second = node.gpus
    swapped = node.model_copy(
        update={
            "cpu": "another",
            "gpus": (
                first.model_copy(update={"uuid": "GPU-new"}),
                second.model_copy(update={"vbios": "99", "power_limit_w": 400.0}),
            ),
            "software": node.software | {"driver": "999.1"},
        }
    )
    answers = (old.answers[0].model_copy(update={"verdict": Verdict.FAIL}), *old.answers[1:])
    kept = tuple(piece for piece in old.evidence if piece.benchmark != "all-reduce")
    assert len(kept) < len(old.evidence)
    new = old.model_copy(
        update={
            "nodes": (swapped,),
            "evidence": tuple(changed_piece(piece, 0.9) for piece in kept),
            "answers": answers,
        }
    )
    for name, certificate in (("old", old), ("new", new)):
        (folder / f"{name}.html").write_bytes(samples.page_of(certificate)[0])
    result = run("evidence", "compare", folder / "old.html", folder / "new.html", "--json")
    found = json.loads(result.output)
    kinds = {
        kind: [one for one in found if one["kind"] == kind] for kind in ("part", "version", "speed", "answer")
    }
    assert {one["what"] for one in kinds["part"]} == {
        "GPU GPU-new",
        *(f"GPU {gpu.uuid}" for gpu in node.gpus),
        "processor",
    }
    assert {"driver", f"VBIOS of {second.uuid}"} <= {one["what"] for one in kinds["version"]}
    assert any("gemm_best" in one["what"] for one in kinds["speed"])
    # A missing measurement counts as a changed speed.
    assert {one["new"] for one in kinds["speed"] if "all-reduce" in one["where"]} == {""}
    assert [(one["what"], one["old"], one["new"]) for one in kinds["answer"]] == [("S1", "pass", "fail")]
    same = run("evidence", "compare", folder / "old.html", folder / "old.html")
    assert same.output.startswith("nothing changed")


@pytest.mark.parametrize(
    ("then", "now", "low", "high", "within"),
    [
        # A speed on both certificates, the bounds of its reference as shares (None: no bound), and whether
        # the change is within them.
        (100.0, 96.0, -0.05, None, True),
        (100.0, 94.0, -0.05, None, False),
        (100.0, 300.0, -0.05, None, True),
        (100.0, 300.0, -0.05, 0.1, False),
        (10.0, 11.5, None, 0.1, False),
        (10.0, 5.0, None, 0.1, True),
        (0.0, 0.0, 0.0, 0.0, True),
        (0.0, 1.0, 0.0, 0.0, False),
        (100.0, float("nan"), -0.05, None, False),
        (100.0, None, -0.05, None, False),
    ],
)
def test_speeds_are_compared_by_their_references_bounds(
    then: float, now: float | None, low: float | None, high: float | None, within: bool
) -> None:
    reference = Reference(value=1, low=low, high=high, unit="GB/s", source="x")
    before, after = (
        Judgement(metric="m", value=value, unit="GB/s", reference=reference, verdict=Verdict.PASS, reason="")
        for value in (then, now)
    )
    assert changes._within(before, after) is within


@pytest.mark.parametrize(
    ("shown", "instead"),
    [("localhost", "another-node"), ("gemm_best", "gemm_best2"), ("A customer", "Another customer")],
)
def test_a_signed_page_that_shows_something_else_than_its_json_is_unproven(
    run: Call, folder: Path, shown: str, instead: str
) -> None:
    """The signer wrote the page by hand, and put its digest into the JSON."""
    certificate = samples.certify(folder / "results", str(folder / "contract.yml"))
    shell = certificate_shell(certificate)
    assert shown in shell
    for name, text in (("right.html", shell), ("wrong.html", shell.replace(shown, instead))):
        written = dump_certificate(certificate.model_copy(update={"page_sha256": shell_digest(text)}))
        signature = sign_bytes(written, folder / "key-ops@example.com")
        (folder / name).write_bytes(fill_page(PageParts(text, written, signature)))
    assert verify(run, folder, *by_signers(folder), page="right.html").exit_code == 0
    result = verify(run, folder, *by_signers(folder), page="wrong.html")
    assert result.exit_code == 3
    assert "something else than its JSON" in " ".join(result.output.split())

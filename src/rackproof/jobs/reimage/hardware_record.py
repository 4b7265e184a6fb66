"""A node's hardware before and after its new image: recorded, compared, checked against its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rackproof.core.records import Node
from rackproof.core.text import sanitize
from rackproof.jobs.reimage.bmc_types import Settings
from rackproof.jobs.reimage.hardware_diff import (
    Change,
    HardwareExpectation,
    add_settings,
    check_expectation,
    compare_hardware,
)
from rackproof.jobs.reimage.run_files import ReimageContext, ReimageError
from rackproof.nodes.facts import node_from_facts
from rackproof.store import night_store
from rackproof.store.run_folder import ResultsError, write_file

NO_BMC = "no address of its BMC is known: set reimage_bmc_address in the inventory"


def record_hardware(
    run: ReimageContext,
    node: str,
    which: str,
    facts: Mapping[str, Any] | None,
    *,
    sku: str = "",
    serial: str = "",
    expected_gpus: int = 0,
    settings: Settings | None = None,
    expected: HardwareExpectation | None = None,
) -> tuple[str, ...]:
    """Keep a node's hardware, before or after; return what is to be reported.

    Args:
        run: The run.
        node: The node.
        which: ``before`` or ``after``. A record from before is never overwritten: a retry finds the node in
            the middle of things.
        facts: What ``rackproof_facts`` gathered; None where the node did not answer.
        sku: Its model.
        serial: The serial number that the inventory gives it; empty is not known.
        expected_gpus: GPUs that its model has, to compare where nothing was known before.
        settings: BIOS settings and firmware by its BMC; None where it has none that can be asked.
        expected: What of these its model has to have; counts after.

    Raises:
        ReimageError: It is another machine than in the inventory, parts are missing, something is not as it
            has to be or not known to be, or it cannot be kept.
    """
    expected = expected or HardwareExpectation()
    if which == "before":
        return _record_before(run, node, facts, sku=sku, serial=serial, settings=settings, expected=expected)
    if facts is None:
        raise ReimageError(f"{node} does not answer after its new image: its hardware is not known")
    about = node_from_facts(node, facts, sku)
    remarks = [*_check_serial(node, about, serial), *_unread_settings(settings)]
    if settings is not None:
        about = add_settings(about, settings, expected)
    folder = Path(run.folder)
    # Written before it is compared: of a node that fails here, its record shows what it is now.
    _write(_record_path(folder, which, node), _to_json(about))
    changes = compare_hardware(read_record(folder, "before", node), about)
    _refuse_losses(node, changes)
    _refuse_unexpected(node, expected, settings or Settings(bios_error=NO_BMC, firmware_error=NO_BMC))
    if expected_gpus and len(about.gpus) != expected_gpus:
        raise ReimageError(
            f"{node} lists {len(about.gpus)} GPUs, SKU {sku} has {expected_gpus}: see nvidia-smi and dmesg "
            f"there"
        )
    return (*(change.text() for change in changes), *remarks)


def _record_before(
    run: ReimageContext,
    node: str,
    facts: Mapping[str, Any] | None,
    *,
    sku: str,
    serial: str,
    settings: Settings | None,
    expected: HardwareExpectation,
) -> tuple[str, ...]:
    about, remarks = _hardware_before(run, node, facts, sku)
    remarks += [*_check_serial(node, about, serial), *_unread_settings(settings)]
    if settings is not None:
        # No failure yet: what was set through the BMC counts from the next boot on, and that comes.
        wrong = [change for change in check_expectation(expected, settings) if change.kind == "wrong"]
        remarks += [f"before: {change.text()}" for change in wrong]
        about = add_settings(about, settings, expected) if about is not None else None
    folder = Path(run.folder)
    path = _record_path(folder, "before", node)
    if about is not None and not path.exists():
        _write(path, _to_json(about))
    # Of every attempt: the boot that has to be new is the one after this attempt.
    boot_id = sanitize(facts.get("boot_id") or "", 64) if facts is not None else ""
    _write(boot_id_path(folder, node), boot_id.encode())
    return tuple(remarks)


def _hardware_before(
    run: ReimageContext, node: str, facts: Mapping[str, Any] | None, sku: str
) -> tuple[Node | None, list[str]]:
    """Return a node's hardware as it is, or of its last night where it does not answer, with a remark."""
    if facts is not None:
        return node_from_facts(node, facts, sku), []
    # No failure: a node that is re-imaged because it is dead does not answer.
    about = _last_night_record(Path(run.results), node)
    if about is None:
        return None, ["the node did not answer and no night has a record of it: its hardware is not known"]
    return about, ["the node did not answer: recorded is its hardware of its last night"]


def _last_night_record(results: Path, node: str) -> Node | None:
    try:
        stored = night_store.last_snapshot(night_store.night_folders(results), node)
    except ResultsError as error:
        raise ReimageError(str(error)) from error
    return stored.about if stored else None


def _check_serial(node: str, about: Node | None, serial: str) -> list[str]:
    """Refuse another machine than in the inventory; return a remark where it is not known."""
    if not serial:
        return []
    if about is None or not about.serial:
        return [f"its serial number is not known, the inventory has {sanitize(serial, 60)}"]
    # Its case depends on who wrote it down: the firmware, the BMC, or a person.
    if about.serial.lower() != serial.strip().lower():
        raise ReimageError(
            f"{node} is another machine: its serial number is {about.serial}, the inventory has "
            f"{sanitize(serial, 60)}. Nothing was written. Correct reimage_serial, or the name's address"
        )
    return []


def _unread_settings(settings: Settings | None) -> list[str]:
    if settings is None:
        return []
    return [error for error in (settings.bios_error, settings.firmware_error) if error]


def _refuse_losses(node: str, changes: tuple[Change, ...]) -> None:
    bad = [change for change in changes if change.verdict is not None and change.verdict.gates]
    if bad:
        raise ReimageError(
            f"{node} is not what it was: {'; '.join(change.text() for change in bad)}. See it in the machine "
            "room, or in the BMC; if it was meant, start again with -e reimage_again=true"
        )


def _refuse_unexpected(node: str, expected: HardwareExpectation, settings: Settings) -> None:
    wrong = check_expectation(expected, settings)
    if wrong:
        raise ReimageError(
            f"{node} is not as its model has to be: {'; '.join(change.text() for change in wrong)}. Set it "
            "through the BMC, or correct reimage_expect, then start the same command again"
        )


def check_first_boot(run: ReimageContext, node: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is to be reported of a node's first boot.

    Args:
        run: The run.
        node: The node.
        facts: What ``rackproof_facts`` gathered after it.

    Raises:
        ReimageError: It still runs the system that was to be replaced.
    """
    now = sanitize(facts.get("boot_id") or "", 64)
    try:
        before = boot_id_path(Path(run.folder), node).read_text().strip()
    except OSError:
        before = ""
    if not before or not now:
        return ("whether it has booted since is not known: its boot id is missing from before, or from now",)
    if before == now:
        raise ReimageError(
            f"{node} still runs the system that was to be replaced: it has not booted since. See its console "
            "through the BMC, and whether its one-time boot was taken"
        )
    return ()


def read_record(folder: Path, which: str, node: str) -> Node | None:
    """Return the record of a node in a run, None where there is none.

    Raises:
        ReimageError: It is damaged.
    """
    path = _record_path(folder, which, node)
    try:
        return Node.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ReimageError(f"cannot read {path}: {sanitize(error, 200)}") from None


def copy_from_run(earlier: Path, folder: Path, node: str) -> None:
    """Copy a node's record and boot id from before into a new run, whatever of them is there.

    Raises:
        ResultsError: They cannot be written.
    """
    for source, target in (
        (_record_path(earlier, "before", node), _record_path(folder, "before", node)),
        (boot_id_path(earlier, node), boot_id_path(folder, node)),
    ):
        try:
            data = source.read_bytes()
        except OSError:
            continue
        if data:
            write_file(target, data)


def boot_id_path(folder: Path, node: str) -> Path:
    """Return where the id of the boot before imaging is kept, which the boot after it must not have."""
    return folder / "before" / f"{node}.boot_id"


def _record_path(folder: Path, which: str, node: str) -> Path:
    return folder / which / f"{node}.json"


def _to_json(about: Node) -> bytes:
    return about.model_dump_json(indent=1).encode() + b"\n"


def _write(path: Path, data: bytes) -> None:
    try:
        write_file(path, data)
    except ResultsError as error:
        raise ReimageError(str(error)) from error

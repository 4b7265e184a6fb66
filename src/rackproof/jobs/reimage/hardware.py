"""Record a node's hardware before and after imaging, and compare it with its model.

The action plugin ``rackproof_reimage_record`` calls :func:`record_hardware` and :func:`check_first_boot`.

A missing answer does not mean "the same". If only one record lists GPUs, memory, a serial number, or the
BMC's settings, the part is unproven. GPUs or memory that only the record from before lists stop a node, and
the others are only remarks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from rackproof.core.records import Gpu, Node, Record, Verdict
from rackproof.core.text import amount, sanitize, size
from rackproof.jobs.reimage.bmc import NO_ADDRESS, Firmware, Settings
from rackproof.jobs.reimage.run_files import ReimageContext, ReimageError
from rackproof.nodes.facts import node_from_facts
from rackproof.store import night_store
from rackproof.store.run_folder import ResultsError, write_file

MEMORY_SLACK = 0.02
"""Largest share by which the memory that two kernels report differs, because their reserves differ. A missing
DIMM is far more."""


class Change(Record):
    """One difference of a node's hardware.

    ``before`` and ``after`` are as in the records, and empty means absent. If ``verdict`` is None, the change
    is only reported.

    The kinds ``wrong`` and ``unread`` compare with an expectation instead of a record: ``before`` is the
    expected value. For ``unread``, ``after`` is the reason why the value is unknown. ``unproven`` means that
    one of the records lacks the part.
    """

    part: str
    kind: Literal["swapped", "missing", "new", "moved", "differs", "unproven", "wrong", "unread"]
    verdict: Verdict | None = None
    before: str = ""
    after: str = ""

    def text(self) -> str:
        """Return the change as readable text."""
        was, now = sanitize(self.before, 120) or "nothing", sanitize(self.after, 120) or "nothing"
        if self.kind == "unproven":
            return f"{self.part}: not known {'before' if not self.before else 'after'}, so not compared"
        words = {
            "swapped": f"swapped: was {was}, is {now}",
            "missing": f"missing: was {was}",
            "new": f"new: {now}",
            "moved": f"moved: {was} to {now}",
            "differs": f"was {was}, is {now}",
            "wrong": f"is {now}, not {was}",
            "unread": f"is not known, has to be {was}: {sanitize(self.after, 300)}",
        }
        return f"{self.part} {words[self.kind]}"


class HardwareExpectation(Record):
    """The required value of each BIOS setting and the required version of each firmware (``reimage_expect``).

    An example is ``{"bios": {"SriovGlobalEnable": "Enabled"}, "firmware": {"BIOS": "1.10"}}``. A piece of
    firmware is given by its id or by its name in the BMC's list.
    """

    bios: dict[str, str | int | float | bool] = Field(default={})
    firmware: dict[str, str] = Field(default={})


def parse_expectation(node: str, values: Mapping[str, Any]) -> HardwareExpectation:
    """Return the inventory's expectations of a node. No I/O.

    Args:
        node: The name of the node.
        values: The value of ``reimage_expect``.

    Raises:
        ValueError: A key is unknown, or a value is of another type. The text names the key.
    """
    try:
        return HardwareExpectation.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(sanitize(part, 60) for part in fault["loc"][:2])
        raise ValueError(
            f"reimage_expect of {node}: {field}: {sanitize(fault['msg'], 200)}; bios has settings with their "
            'values, firmware pieces with their versions, each a text in quotes ("1.10")'
        ) from None


def add_settings(about: Node, settings: Settings, expected: HardwareExpectation) -> Node:
    """Return a node's record with its BMC's firmware and the BIOS settings with expectations. No I/O.

    In ``firmware``, they have the keys ``bmc.ID`` and ``bios.NAME``. A BIOS has hundreds of settings. Only
    settings with an expectation are stored.
    """
    settings_read = {f"bmc.{piece.identity}": piece.version for piece in settings.firmware if piece.version}
    settings_read |= {
        f"bios.{name}": str(settings.bios[name]) for name in expected.bios if name in settings.bios
    }
    return about.model_copy(update={"firmware": about.firmware | settings_read})


def check_expectation(expected: HardwareExpectation, settings: Settings) -> tuple[Change, ...]:
    """Return the expectations that are not met or unknown. Neither is a pass. No I/O."""
    return tuple(_wrong_settings(expected, settings)) + tuple(_wrong_firmware(expected, settings))


def _wrong_settings(expected: HardwareExpectation, settings: Settings) -> Iterator[Change]:
    """Yield BIOS settings that differ from the expectation or are unknown."""
    for name, wanted_value in sorted(expected.bios.items()):
        part = f"BIOS setting {sanitize(name, 100)}"
        if name not in settings.bios:
            why = settings.bios_error or "its BMC shows no setting of that name"
            yield Change(
                part=part, kind="unread", verdict=Verdict.UNPROVEN, before=str(wanted_value), after=why
            )
        elif not _same(settings.bios[name], wanted_value):
            now = str(settings.bios[name])
            yield Change(part=part, kind="wrong", verdict=Verdict.FAIL, before=str(wanted_value), after=now)


def _same(one: object, other: object) -> bool:
    """Return whether two values of a BIOS setting are the same."""
    # True equals 1 in Python, but not in a BIOS. Some BIOSes list numbers as text.
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)):
        return one == other
    return str(one) == str(other)


def _wrong_firmware(expected: HardwareExpectation, settings: Settings) -> Iterator[Change]:
    """Yield firmware that differs from the expectation or is unknown."""
    for name, wanted_version in sorted(expected.firmware.items()):
        pieces = [piece for piece in settings.firmware if name in (piece.identity, piece.name)]
        if not all(piece.version for piece in pieces) or not pieces:
            yield Change(
                part=f"firmware {sanitize(name, 100)}",
                kind="unread",
                verdict=Verdict.UNPROVEN,
                before=wanted_version,
                after=_why_unread(pieces, settings),
            )
        # A name may match several pieces, such as one per GPU. Each must be of the version.
        for piece in pieces:
            if piece.version and piece.version != wanted_version:
                yield _wrong_version(piece, wanted_version)


def _why_unread(pieces: Sequence[Firmware], settings: Settings) -> str:
    """Return why the version of a piece of firmware is unknown."""
    if settings.firmware_error:
        return settings.firmware_error
    if pieces:
        return "its BMC lists no version of it"
    return "its BMC lists no firmware of that id or name"


def _wrong_version(piece: Firmware, wanted: str) -> Change:
    """Return the change for a piece of firmware with another version than expected."""
    same_name = piece.identity == piece.name
    label = piece.identity if same_name else f"{piece.identity} ({piece.name})"
    return Change(
        part=f"firmware {label}", kind="wrong", verdict=Verdict.FAIL, before=wanted, after=piece.version
    )


def compare_hardware(before: Node | None, after: Node) -> tuple[Change, ...]:
    """Return the changes, the worst first. No I/O.

    A missing GPU, less memory and another machine fail. If no GPU or no memory is listed any more, it is
    unproven, which stops the node too. A swapped or moved GPU and different firmware are only reported.

    Args:
        before: The record from before the imaging, or None. Without this record, nothing can be compared, and
            this is only a remark.
        after: The current record of the node.
    """
    if before is None:
        return (Change(part="hardware", kind="unproven", after="recorded"),)
    changes = [
        *_serial_number(before, after),
        *_gpus(before, after),
        *_memory(before, after),
        *_firmware(before, after),
    ]
    rank = {Verdict.FAIL: 0, Verdict.UNPROVEN: 1}
    return tuple(sorted(changes, key=lambda change: rank.get(change.verdict, 2) if change.verdict else 2))


def _serial_number(before: Node, after: Node) -> list[Change]:
    """Return the change of the machine's serial number."""
    part, was, now = "serial number", before.serial, after.serial
    if was and now and not _same_serial(was, now):
        return [Change(part=part, kind="differs", verdict=Verdict.FAIL, before=was, after=now)]
    if bool(was) != bool(now):
        # Only root can read it. If it is missing, this shows how the record was made, not that the
        # machine differs.
        return [Change(part=part, kind="unproven", before=was, after=now)]
    return []


def _same_serial(one: str, other: str) -> bool:
    """Return whether two serial numbers are the same."""
    # Upper and lower case depend on where the number was entered, in firmware, by the BMC, or by hand.
    return one.strip().lower() == other.strip().lower()


def _gpus(before: Node, after: Node) -> list[Change]:
    """Return the changes of GPUs, by their UUIDs and slots."""
    if not before.gpus or not after.gpus:
        return _unlisted_gpus(before, after)
    new, missing, changes = list(after.gpus), list[Gpu](), list[Change]()
    # Compare by UUID first, because two GPUs may state one slot, and a GPU that moved is neither missing nor
    # new.
    for gpu in before.gpus:
        same = [now for now in new if now.uuid == gpu.uuid]
        if same:
            now = min(same, key=lambda now: _slot(now) != _slot(gpu))
            new.remove(now)
            changes += _change_of_kept(gpu, now)
        else:
            missing.append(gpu)
    for gpu in missing:
        in_slot = next((now for now in new if _slot(now) == _slot(gpu)), None)
        changes.append(_change_of_missing(gpu, in_slot))
        if in_slot is not None:
            new.remove(in_slot)
    return changes + [
        Change(part=f"GPU {gpu.index} ({_slot(gpu)})", kind="new", after=gpu.uuid) for gpu in new
    ]


def _unlisted_gpus(before: Node, after: Node) -> list[Change]:
    """Return the change if at least one of the two records lists no GPU."""
    # Without its driver, a node lists no GPU. Then nothing was queried, so nothing is missing.
    if before.gpus:
        was = amount(len(before.gpus), "GPU")
        return [Change(part="GPUs", kind="unproven", verdict=Verdict.UNPROVEN, before=was)]
    if after.gpus:
        return [Change(part="GPUs", kind="unproven", after=amount(len(after.gpus), "GPU"))]
    return []


def _slot(gpu: Gpu) -> str:
    """Return the place of a GPU on the bus or, if that is unknown, its number."""
    return gpu.bus_id or str(gpu.index)


def _change_of_kept(before: Gpu, now: Gpu) -> list[Change]:
    """Return the change of a GPU that is still in the node."""
    if _slot(now) != _slot(before):
        return [Change(part=f"GPU {now.uuid}", kind="moved", before=_slot(before), after=_slot(now))]
    if before.vbios and now.vbios and before.vbios != now.vbios:
        part = f"GPU {before.index} ({_slot(before)}) firmware"
        return [Change(part=part, kind="differs", before=before.vbios, after=now.vbios)]
    return []


def _change_of_missing(before: Gpu, in_slot: Gpu | None) -> Change:
    """Return the change of a GPU that is gone, with another one in its slot or none."""
    label = f"GPU {before.index} ({_slot(before)})"
    if in_slot is None:
        return Change(part=label, kind="missing", verdict=Verdict.FAIL, before=before.uuid)
    return Change(part=label, kind="swapped", before=before.uuid, after=in_slot.uuid)


def _memory(before: Node, after: Node) -> list[Change]:
    """Return the change of the node's memory. A small difference is the reserve of another kernel.

    If only the amount before imaging is known, the memory is unproven, which stops the node.
    """
    was, now = before.memory_bytes, after.memory_bytes
    if was and not now:
        return [Change(part="memory", kind="unproven", verdict=Verdict.UNPROVEN, before=size(was))]
    if not was:
        return [Change(part="memory", kind="unproven", after=size(now))] if now else []
    if abs(now - was) <= MEMORY_SLACK * was:
        return []
    less = now < was
    return [
        Change(
            part="memory",
            kind="differs",
            verdict=Verdict.FAIL if less else None,
            before=size(was),
            after=size(now),
        )
    ]


def _firmware(before: Node, after: Node) -> list[Change]:
    """Return the changes of firmware and BIOS settings."""
    changes: list[Change] = []
    # The vBIOS belongs to a GPU and is compared slot by slot.
    names = {*before.firmware, *after.firmware} - {"vbios"}
    for prefix, part in (("bmc.", "firmware that the BMC lists"), ("bios.", "BIOS settings")):
        own_names = {name for name in names if name.startswith(prefix)}
        was_listed, is_listed = own_names & before.firmware.keys(), own_names & after.firmware.keys()
        if bool(was_listed) != bool(is_listed):
            # One of the two was not queried, or did not answer. Report one unproven change, not one for
            # each part.
            names -= own_names
            sides = {"before": "listed" if was_listed else "", "after": "listed" if is_listed else ""}
            changes.append(Change(part=part, kind="unproven", **sides))
    for name in sorted(names):
        was, now = before.firmware.get(name, ""), after.firmware.get(name, "")
        if was != now:
            changes.append(_changed_version(name, was, now))
    return changes


def _changed_version(name: str, was: str, now: str) -> Change:
    """Return the change of one version."""
    label = f"firmware {sanitize(name, 60)}"
    if was and now:
        return Change(part=label, kind="differs", before=was, after=now)
    return Change(part=label, kind="missing" if was else "new", before=was, after=now)


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
    """Store a node's hardware before or after imaging. Return the changes and remarks as texts.

    Args:
        run: The context of the run.
        node: The name of the node.
        which: ``before`` or ``after``. A record from before is never overwritten, because a retry finds
            the node half done.
        facts: The result of ``rackproof_facts``, or None if the node did not answer.
        sku: The model of the node.
        serial: The serial number in the inventory, or "" if unknown.
        expected_gpus: The number of GPUs of its model, which is required after imaging. 0 means unknown.
        settings: The BIOS settings and firmware from its BMC, or None if no BMC can be queried.
        expected: The requirements of its model, which apply after imaging.

    Raises:
        ReimageError: The machine is not the one in the inventory, or the record cannot be stored. Before
            imaging, the nights of a node that does not answer cannot be read. After imaging, the node does
            not answer, the earlier record is damaged, parts are missing, or a requirement is not met or
            unknown.
    """
    expected = expected or HardwareExpectation()
    if which == "before":
        return _record_before(run, node, facts, sku=sku, serial=serial, settings=settings, expected=expected)
    if facts is None:
        raise ReimageError(f"{node} does not answer after its new image: its hardware is not known")
    node_record = node_from_facts(node, facts, sku)
    remarks = [
        *_check_serial(node, node_record, serial, "Its image was written"),
        *_unread_settings(settings),
    ]
    if settings is not None:
        node_record = add_settings(node_record, settings, expected)
    folder = Path(run.folder)
    # Write it before the comparison, so that the record of a node that fails here shows its current hardware.
    _write(_record_path(folder, which, node), _to_json(node_record))
    changes = compare_hardware(read_record(folder, "before", node), node_record)
    _refuse_losses(node, changes)
    _refuse_unexpected(node, expected, settings or Settings.unknown(NO_ADDRESS))
    if expected_gpus and len(node_record.gpus) != expected_gpus:
        raise ReimageError(
            f"{node} lists {amount(len(node_record.gpus), 'GPU')}, SKU {sku} has {expected_gpus}: "
            "see nvidia-smi and dmesg there"
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
    """Store the hardware before imaging and the boot id, which the next boot must change. Return remarks."""
    node_record, remarks = _hardware_before(run, node, facts, sku)
    remarks += [*_check_serial(node, node_record, serial, "Nothing was written"), *_unread_settings(settings)]
    if settings is not None:
        # A wrong setting is not a failure yet. Settings through the BMC take effect at the next boot.
        wrong = [change for change in check_expectation(expected, settings) if change.kind == "wrong"]
        remarks += [f"before: {change.text()}" for change in wrong]
        node_record = add_settings(node_record, settings, expected) if node_record is not None else None
    folder = Path(run.folder)
    path = _record_path(folder, "before", node)
    if node_record is not None and not path.exists():
        _write(path, _to_json(node_record))
    # Store the boot id for each attempt. The boot id of the next boot must differ from it.
    boot_id = sanitize(facts.get("boot_id") or "", 64) if facts is not None else ""
    _write(boot_id_path(folder, node), boot_id.encode())
    return tuple(remarks)


def _hardware_before(
    run: ReimageContext, node: str, facts: Mapping[str, Any] | None, sku: str
) -> tuple[Node | None, list[str]]:
    """Return a node's current hardware.

    If the node does not answer, return the snapshot of its last night or None, with a remark.

    Raises:
        ReimageError: The nights cannot be read.
    """
    if facts is not None:
        return node_from_facts(node, facts, sku), []
    # A missing answer is no failure, because dead nodes are re-imaged, too.
    node_record = _last_night_record(Path(run.results), node)
    if node_record is None:
        return None, ["the node did not answer and no night has a record of it: its hardware is not known"]
    return node_record, ["the node did not answer: recorded is its hardware of its last night"]


def _last_night_record(results: Path, node: str) -> Node | None:
    """Return the record of a node in the newest night with a record, or None.

    Raises:
        ReimageError: The nights cannot be read.
    """
    try:
        stored = night_store.last_snapshot(night_store.night_folders(results), node)
    except ResultsError as error:
        raise ReimageError(str(error)) from error
    return stored.about if stored else None


def _check_serial(node: str, node_record: Node | None, serial: str, step: str) -> list[str]:
    """Refuse a machine that is not the one in the inventory.

    Return a remark if that is unknown. ``step`` is the sentence in the error about what already happened to
    the machine.
    """
    if not serial:
        return []
    if node_record is None or not node_record.serial:
        return [f"its serial number is not known, the inventory has {sanitize(serial, 60)}"]
    if not _same_serial(node_record.serial, serial):
        raise ReimageError(
            f"{node} is another machine: its serial number is {node_record.serial}, the inventory has "
            f"{sanitize(serial, 60)}. {step}. Correct reimage_serial, or the name's address"
        )
    return []


def _unread_settings(settings: Settings | None) -> list[str]:
    """Return the reasons why a BMC's settings or firmware are unknown."""
    if settings is None:
        return []
    return [error for error in (settings.bios_error, settings.firmware_error) if error]


def _refuse_losses(node: str, changes: tuple[Change, ...]) -> None:
    """Refuse a node that lost parts, or is another machine."""
    bad = [change for change in changes if change.verdict is not None and change.verdict.gates]
    if bad:
        raise ReimageError(
            f"{node} has changed: {'; '.join(change.text() for change in bad)}. Check it in the machine "
            "room, or in the BMC; if it was intended, start again with -e reimage_again=true"
        )


def _refuse_unexpected(node: str, expected: HardwareExpectation, settings: Settings) -> None:
    """Refuse a node whose settings or firmware are not as expected, or are unknown."""
    wrong = check_expectation(expected, settings)
    if wrong:
        raise ReimageError(
            f"{node} is not as its model has to be: {'; '.join(change.text() for change in wrong)}. Set it "
            "through the BMC, or correct reimage_expect, then start the same command again"
        )


def check_first_boot(run: ReimageContext, node: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the remarks about a node's first boot from its disk.

    The kernel draws a new boot id at each boot, so the same id means that the old system still runs.

    The boot id from before is unknown for a node that did not answer then. This is only a remark, because
    the image's boot report and the new host keys prove the new system, too.

    Args:
        run: The context of the run.
        node: The name of the node.
        facts: The result of ``rackproof_facts`` after the boot.

    Raises:
        ReimageError: The node still runs the system that the image should replace, its present boot id is
            unknown, or the file with the former one cannot be read.
    """
    now = sanitize(facts.get("boot_id") or "", 64)
    before = _read_boot_id(Path(run.folder), node)
    if not now:
        raise ReimageError(
            f"{node} does not state which boot this is, so it is not known to run its new system. See "
            "/proc/sys/kernel/random/boot_id there"
        )
    if not before:
        return ("it is not known if it has booted since: its earlier boot id is missing",)
    if before == now:
        raise ReimageError(
            f"{node} still runs the system that was to be replaced: it has not booted since. See its console "
            "through the BMC, and whether its one-time boot was taken"
        )
    return ()


def _read_boot_id(folder: Path, node: str) -> str:
    """Return the boot id from before imaging, or "" if it is unknown.

    Raises:
        ReimageError: The file cannot be read.
    """
    path = boot_id_path(folder, node)
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise ReimageError(f"cannot read {path}: {sanitize(error, 200)}") from None


def read_record(folder: Path, which: str, node: str) -> Node | None:
    """Return the record of a node in a run, or None if there is none.

    Raises:
        ReimageError: The record cannot be read, or is damaged.
    """
    path = _record_path(folder, which, node)
    try:
        return Node.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ReimageError(
            f"cannot read {path}: {sanitize(error, 200)}. Check the hardware of {node}, then start "
            "reimage.yml for it with -e reimage_again=true"
        ) from None


def check_copied_files(earlier: Path, node: str) -> None:
    """Check the files that :func:`copy_from_run` copies. A damaged record would hide every loss of hardware.

    Raises:
        ReimageError: A file cannot be read, or is damaged.
    """
    read_record(earlier, "before", node)
    _read_boot_id(earlier, node)


def copy_from_run(earlier: Path, folder: Path, node: str) -> None:
    """Copy a node's earlier record and boot id into a new run.

    A missing file is skipped.

    Raises:
        ReimageError: A file cannot be read.
        ResultsError: The files cannot be written.
    """
    for source, target in (
        (_record_path(earlier, "before", node), _record_path(folder, "before", node)),
        (boot_id_path(earlier, node), boot_id_path(folder, node)),
    ):
        try:
            data = source.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ReimageError(f"cannot read {source}: {error.strerror}") from None
        write_file(target, data)


def boot_id_path(folder: Path, node: str) -> Path:
    """Return the path of the boot id from before imaging. The boot id after imaging must be another one."""
    return folder / "before" / f"{node}.boot_id"


def _record_path(folder: Path, which: str, node: str) -> Path:
    """Return the path of a node's record."""
    return folder / which / f"{node}.json"


def _to_json(node_record: Node) -> bytes:
    """Return a record as the content of its file."""
    return node_record.model_dump_json(indent=1).encode() + b"\n"


def _write(path: Path, data: bytes) -> None:
    """Write a file.

    Raises:
        ReimageError: The file cannot be written.
    """
    try:
        write_file(path, data)
    except ResultsError as error:
        raise ReimageError(str(error)) from error

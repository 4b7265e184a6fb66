"""Make the answer of ``rackproof_facts`` on the healthy node that all tests share, without its checksum.

If a check reads something new of a node, add it to :func:`healthy_gathered` (of a GPU: to ``SECTIONS`` in
healthy_parts.py). Then the healthy nodes of the tests have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from tests.jobs.validate.nights import uuid

from .healthy_parts import CARD_LINKS, ROOT_MOUNT, SECTIONS, SYSTEMD

# The moment of a night in seconds since 1970, and the version of the driver.
EPOCH = 1_795_000_000.0
DRIVER = "580.95.05"


def answer_ok(text: str, **more: Any) -> dict[str, Any]:
    """Return the answer of a tool that printed a text and ended well."""
    return {
        "status": "ok", "rc": 0, "stdout": text, "stderr": "", "seconds": 0.1, "truncated": False, **more
    }  # fmt: skip


def oldest_message(stored: float, source_s: float | None = 0.0) -> str:
    """Return the first line of ``journalctl -k -o json --output-fields=_SOURCE_MONOTONIC_TIMESTAMP``.

    Args:
        stored: When journald stored the message, in seconds since 1970.
        source_s: The kernel's own time stamp, or None if the message has none.
    """
    fields = {"_BOOT_ID": "17f29a4760bd472493e1343e6b713249", "__MONOTONIC_TIMESTAMP": "9001000"}
    if source_s is not None:
        fields["_SOURCE_MONOTONIC_TIMESTAMP"] = str(round(source_s * 1e6))
    return json.dumps({**fields, "__REALTIME_TIMESTAMP": str(round(stored * 1e6))}, separators=(",", ":"))


def gpu_xml(number: int, slot: int, **values: Any) -> str:
    """Return a healthy GPU of nvidia-smi's XML. Values replace the text of the elements of these names."""
    xml = (
        f'<gpu id="0000000{slot}:06:00.0"><product_name>H200</product_name><uuid>{uuid(number, slot)}</uuid>'
        f"<minor_number>{slot}</minor_number><serial>S{number}{slot}</serial>"
        "<temperature><gpu_temp>50 C</gpu_temp><gpu_temp_tlimit>30 C</gpu_temp_tlimit>"
        "<memory_temp>45 C</memory_temp></temperature>"
        f"{SECTIONS}</gpu>"
    )
    for name, value in values.items():
        xml, count = re.subn(rf"<{name}>[^<]*</{name}>", f"<{name}>{value}</{name}>", xml)
        assert count == 1, name
    return xml


def smi_xml(gpus: Sequence[str]) -> str:
    """Return nvidia-smi's XML with these GPUs."""
    about = f"<driver_version>{DRIVER}</driver_version><attached_gpus>{len(gpus)}</attached_gpus>"
    return f"<nvidia_smi_log>{about}{''.join(gpus)}</nvidia_smi_log>"


def _links(chips: Sequence[str], value: str) -> str:
    """Return what ``nvidia-smi nvlink`` prints about GPUs with two links each."""
    gpus = re.findall(r"<uuid>([^<]*)</uuid>\s*<minor_number>(\d+)<", "".join(chips))
    return "".join(
        f"GPU {slot}: H200 (UUID: {name})\n\t Link 0: {value}\n\t Link 1: {value}\n" for name, slot in gpus
    )


def healthy_gathered(
    number: int = 1, *, gpus: Sequence[str] | int = 4, epoch: float = EPOCH, log: str = ""
) -> dict[str, Any]:
    """Return what is gathered on a healthy node.

    Args:
        number: The node's number, of which serial numbers and UUIDs are made.
        gpus: How many GPUs it has, or their XML.
        epoch: When the gathering began, in seconds since 1970.
        log: The kernel's log.
    """
    chips = [gpu_xml(number, slot) for slot in range(gpus)] if isinstance(gpus, int) else list(gpus)
    return {
        "facts": {
            "boot_id": "boot",
            "kernel": "6.8.0",
            "tools": {
                "nvidia_smi_xml": answer_ok(smi_xml(chips)),
                "fabricmanager": answer_ok(f"Fabric Manager version is : {DRIVER}"),
            },
            "dmi": {"product_serial": f"SN{number:04d}"},
            "memlock_bytes": -1,
            "shm_bytes": 64 << 30,
            "files": {
                "meminfo": f"MemTotal: {1 << 30} kB\n", "mountinfo": ROOT_MOUNT, "uptime": "1000.0 1"
            },
        },
        "node": {
            "container": False,
            "modules": {"nvidia": DRIVER},
            "clock": {"asked_at": epoch, "epoch": epoch},
            "space": {"/": {"total_bytes": 100 << 30, "free_bytes": 50 << 30}},
        },
        "health": {
            "begin": epoch,
            "epoch": epoch + 1,
            "booted": epoch - 1000,
            "loaded": False,
            "tools": deepcopy(SYSTEMD) | {
                "kernel_log": answer_ok(log, lines=log.count("\n"), oldest=oldest_message(epoch - 1000)),
                "nvlink_status": answer_ok(_links(chips, "50 GB/s")),
                "nvlink_errors": answer_ok(_links(chips, "Replay Errors: 0")),
            },
            "hca": {
                "mlx5_0": {
                    "1": {
                        "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
                        "link_layer": "InfiniBand", "counters": {"symbol_error": 0, "link_downed": 0},
                    }
                }
            },
            "pci": deepcopy(CARD_LINKS),
            "disk": {
                "/": {
                    "total_bytes": 100 << 30, "free_bytes": 50 << 30, "total_inodes": 100, "free_inodes": 60,
                    "read_only": False,
                }
            },
        },
    }  # fmt: skip


def replace_gpu(gathered: dict[str, Any], old: str, new: str) -> None:
    """Replace a text, such as a GPU's UUID, in the output of all tools that list GPUs."""
    smi, more = gathered["facts"]["tools"], gathered["health"]["tools"]
    for answer in (smi["nvidia_smi_xml"], more["nvlink_status"], more["nvlink_errors"]):
        answer["stdout"] = answer["stdout"].replace(old, new)

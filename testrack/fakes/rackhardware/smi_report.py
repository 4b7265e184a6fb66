"""Write the output of ``nvidia-smi -q`` for a node's GPUs.

nvidia_smi.py calls :func:`as_text` and :func:`as_xml`, which write the same list of rows (:func:`rows`).
Other fakes get the readings of GPUs from :func:`views`.
"""

from __future__ import annotations

import hashlib
import time

from .faults import DOWN_LINK
from .services import fabric_is_up
from .state import State, settle_s, since_boot

CUDA = {
    535: "12.2",
    550: "12.4",
    560: "12.6",
    565: "12.7",
    570: "12.8",
    575: "12.9",
    580: "13.0",
    590: "13.1",
}
"""The CUDA version of the driver, by the driver's branch."""
REASONS = (
    ("gpu_idle", 0x1, "Idle"),
    ("applications_clocks_setting", 0x2, "Applications Clocks Setting"),
    ("sw_power_cap", 0x4, "SW Power Cap"),
    ("hw_slowdown", 0x8, "HW Slowdown"),
    ("hw_thermal_slowdown", 0x40, "    HW Thermal Slowdown"),
    ("hw_power_brake_slowdown", 0x80, "    HW Power Brake Slowdown"),
    ("sync_boost", 0x10, "Sync Boost"),
    ("sw_thermal_slowdown", 0x20, "SW Thermal Slowdown"),
    ("display_clocks_setting", 0x100, "Display Clock Setting"),
)
"""Reasons for the clocks, with name, bit, and label in the report."""
HEALTH = (
    ("Summary", "summary"),
    ("Bandwidth", "bandwidth"),
    ("Route Recovery in progress", "route_recovery_in_progress"),
    ("Route Unhealthy", "route_unhealthy"),
    ("Access Timeout Recovery", "access_timeout_recovery"),
    ("Incorrect Configuration", "incorrect_configuration"),
)
THROTTLED = 0x8 | 0x20 | 0x40


def branch(version: str) -> int:
    """Return a driver's branch, which is the first part of its version, or 0 if that is not a number."""
    first = version.split(".")[0]
    return int(first) if first.isdigit() else 0


def newer(version: str, least: str) -> bool:
    """Return whether a driver is at least as new as another."""
    return [int(one) for one in version.split(".") if one.isdigit()] >= [int(one) for one in least.split(".")]


def cuda(version: str) -> str:
    """Return the CUDA version of a driver, or ``N/A`` if the driver is older than all in :data:`CUDA`."""
    known = [at for at in sorted(CUDA) if at <= branch(version)]
    return CUDA[known[-1]] if known else "N/A"


def now() -> str:
    """Return the time as nvidia-smi writes it."""
    return time.strftime("%a %b %d %H:%M:%S %Y")


def view(state: State, gpu: dict, index: int, version: str) -> dict:
    """Return the visible state of a GPU at the moment, with the faults that hit it."""
    model = state.gpu_model
    # Idle GPUs of one machine differ a little from each other, but each hardly changes.
    own = hashlib.sha256(gpu["uuid"].encode()).digest()
    hot = state.hit(gpu, "throttling")
    slow_link = state.hit(gpu, "link-trained-down")
    uncorrectable = int(state.hit(gpu, "ecc-uncorrectable"))
    pending = int(state.hit(gpu, "row-remap-pending"))
    temperature = model["hottest"] + 2 if hot else model["temperature"] + own[0] % 4
    clock = 510 if hot else model["idle_clock"]
    power = model["power_limit"] * 0.72 if hot else model["power"] + own[1] % 80 / 10
    domain, bus, device = gpu["bus_id"].split(".")[0].split(":")
    total, reserved = model["memory"]
    on_rack = model["fabric"] == "rack"
    # The GPUs of a rack are members of its fabric some time after a boot.
    up = since_boot() >= settle_s() if on_rack else fabric_is_up(version)
    # The state remains Completed. Only status, clique and cluster show the fault.
    in_domain = on_rack and up and state.fault("no-nvlink-domain") is None
    status = "Success" if in_domain or not on_rack else "Insufficient Resources"
    health = {True: ("Healthy", "Full", "False", "False", "False", "None"), False: ("N/A",) * 6}[
        on_rack and up
    ]
    if model["fabric"] == "local" and model["architecture"] == "Blackwell" and up:
        health = ("Healthy", "N/A", "N/A", "N/A", "False", "N/A")
    if state.hit(gpu, "nvlink-down"):
        health = ("Unhealthy", "Degraded", *health[2:])
    return {
        "gpu": gpu,
        "index": index,
        "version": version,
        "domain": domain[-4:],
        "bus": bus,
        "device": device,
        "temperature": temperature,
        "tlimit": model["hottest"] - temperature,
        "memory_temperature": temperature + own[2] % 3,
        "power": power,
        "instant_power": power + own[3] % 10 / 20,
        "memory_power": model["memory_power"] + own[4] % 20 / 10,
        "module_power": 486.0 + own[5] % 40 / 10 if model["module_power_limit"] else None,
        "power_limit": state.get("settings", {}).get("power_limits", {}).get(str(gpu["minor"]))
        or float(model["power_limit"]),
        "most_power": float(model["power_limit"]),
        "memory_clock": model["memory_clocks"][0],
        "clock": clock,
        "reasons": THROTTLED if hot else 0x1,
        "hot_us": 184273911 if hot else 0,
        "link_gen": 4 if slow_link else model["pcie_gen"],
        "link_width": 8 if slow_link else 16,
        "sram_uncorrectable": uncorrectable,
        "dram_uncorrectable": pending,
        "remapped": pending,
        "remap_pending": "Yes" if pending else "No",
        "recovery": "Reset" if pending or uncorrectable else "None",
        "total": total,
        "reserved": reserved,
        "free": total - reserved + 1,  # Each of the three values is rounded separately.
        "persistence": "Enabled" if state.persists(gpu) else "Disabled",
        "nvlinks_down": [DOWN_LINK] if state.hit(gpu, "nvlink-down") else [],
        "fabric_state": ("Completed", status) if up else ("In Progress", "N/A"),
        "clique": "32766" if in_domain else ("0" if up else "N/A"),
        "cluster": state["machine"].get("cluster_uuid", "")
        if in_domain
        else ("00000000-0000-0000-0000-000000000000" if up else "N/A"),
        "health": health,
    }


def views(state: State, version: str) -> list[dict]:
    """Return every GPU that is there, in the order of the bus."""
    return [view(state, gpu, index, version) for index, gpu in enumerate(state.gpus)]


DEPRECATED = "Requested functionality has been deprecated"
PLATFORM = (
    ("Chassis Serial Number", "chassis_serial_number"),
    ("Slot Number", "slot_number"),
    ("Tray Index", "tray_index"),
    ("Host ID", "host_id"),
    ("Peer Type", "peer_type"),
    ("Module Id", "module_id"),
    ("GPU Fabric GUID", "gpu_fabric_guid"),
)


def platform(state: State, gpu: dict) -> tuple:
    """Return the values of :data:`PLATFORM` for a GPU in a rack, on a board, or in an unknown place."""
    machine, kind = state["machine"], state.gpu_model["platform"]
    if kind == "none":
        return ("N/A", "N/A", "N/A", "N/A", "N/A", gpu["module"], "N/A")
    switched = (1, "Switch Connected", gpu["module"], gpu["fabric_guid"])
    if kind == "board":
        return ("", "N/A", "N/A", *switched)
    return (machine.get("rack_serial", ""), machine.get("tray", 0) + 10, machine.get("tray", 0), *switched)


def _watts(value: float | None) -> str:
    return "N/A" if value is None else f"{value:.2f} W"


# Tags that only some drivers print: first version with them, first version without them, and the tags. They
# are from captures of real drivers.
AGES = (
    (
        "580.126",
        "",
        "unrepairable_memory remapped_row_corr_inactive remapped_row_unc_inactive partition_assigned",
    ),
    (
        "575",
        "",
        "display_attached pdi clocks_event_reasons_counters channel_repair_pending tpc_repair_pending",
    ),
    ("575", "", "summary incorrect_configuration"),
    ("570", "", "gpu_recovery_action"),
    ("", "575", "gpu_reset_status voltage"),
)


def rows(state: State, see: dict) -> list:
    """Return rows of label in text, tag in XML, and value or more rows. None omits the row in that format."""
    version = see["version"]
    hidden = {
        tag
        for first, end, tags in AGES
        for tag in tags.split()
        if (first and not newer(version, first)) or (end and newer(version, end))
    }

    def of_its_time(table: list) -> list:
        return [
            (label, tag, of_its_time(value) if isinstance(value, list) else value)
            for label, tag, value in table
            if tag not in hidden
        ]

    return of_its_time(_rows(state, see))


def _rows(state: State, see: dict) -> list:
    """Return the rows of all drivers. The caller leaves out those that this driver does not print."""
    model, gpu, version = state.gpu_model, see["gpu"], see["version"]
    limits = (
        ("Current Power Limit", "current_power_limit"),
        ("Requested Power Limit", "requested_power_limit"),
        ("Default Power Limit", "default_power_limit"),
    )
    limit = see["power_limit"]
    module_limit = model["module_power_limit"]

    def errors(aggregate: bool) -> list:
        found = [
            ("SRAM Correctable", "sram_correctable", 0),
            ("SRAM Uncorrectable Parity", "sram_uncorrectable_parity", 0),
            ("SRAM Uncorrectable SEC-DED", "sram_uncorrectable_secded", see["sram_uncorrectable"]),
            ("DRAM Correctable", "dram_correctable", 0),
            ("DRAM Uncorrectable", "dram_uncorrectable", see["dram_uncorrectable"]),
        ]
        return [*found, ("SRAM Threshold Exceeded", "sram_threshold_exceeded", "No")] if aggregate else found

    def session() -> list:
        return [
            ("Active Sessions", "session_count", 0),
            ("Average FPS", "average_fps", 0),
            ("Average Latency", "average_latency", 0),
        ]

    def both(first: tuple, second: tuple) -> list:
        return [("Current", *first), ("Pending", *second)]

    bus_id = gpu["bus_id"]
    board = int(see["domain"], 16) << 16 | int(see["bus"], 16) << 8 | int(see["device"], 16)
    device_id, sub_id = f"{model['device'].upper()}10DE", f"{model['subsystem'].upper()}10DE"
    flushed = model["platform"] == "rack" or model["addressing"] == "HMM"
    return [
        ("Product Name", "product_name", model["name"]),
        ("Product Brand", "product_brand", "NVIDIA"),
        ("Product Architecture", "product_architecture", model["architecture"]),
        ("Display Mode", "display_mode", DEPRECATED),
        ("Display Attached", "display_attached", "Yes"),
        ("Display Active", "display_active", "Disabled"),
        ("Persistence Mode", "persistence_mode", see["persistence"]),
        ("Addressing Mode", "addressing_mode", model["addressing"]),
        ("MIG Mode", "mig_mode", both(("current_mig", "Disabled"), ("pending_mig", "Disabled"))),
        (None, "mig_devices", "\n\t\t\tNone\n\t\t"),
        ("Accounting Mode", "accounting_mode", "Disabled"),
        ("Accounting Mode Buffer Size", "accounting_mode_buffer_size", 4000),
        ("Driver Model", "driver_model", both(("current_dm", "N/A"), ("pending_dm", "N/A"))),
        ("Serial Number", "serial", gpu["serial"]),
        ("GPU UUID", "uuid", gpu["uuid"]),
        ("GPU PDI", "pdi", gpu["pdi"]),
        ("Minor Number", "minor_number", gpu["minor"]),
        ("VBIOS Version", "vbios_version", gpu["vbios"]),
        ("MultiGPU Board", "multigpu_board", "No"),
        ("Board ID", "board_id", f"0x{board:x}"),
        ("Board Part Number", "board_part_number", model["board_part"]),
        ("GPU Part Number", "gpu_part_number", model["gpu_part"]),
        ("FRU Part Number", "gpu_fru_part_number", "N/A"),
        (
            "Platform Info",
            "platformInfo",
            [
                (label, tag, value)
                for (label, tag), value in zip(PLATFORM, platform(state, gpu))  # noqa: B905 (not in 3.8)
            ],
        ),
        (
            "Inforom Version",
            "inforom_version",
            [
                ("Image Version", "img_version", model["inforom"]),
                ("OEM Object", "oem_object", "2.1"),
                ("ECC Object", "ecc_object", "7.16"),
                ("Power Management Object", "pwr_object", "N/A"),
            ],
        ),
        (
            "Inforom BBX Object Flush",
            "inforom_bbx_flush",
            [
                (
                    "Latest Timestamp",
                    "latest_timestamp",
                    time.strftime("%Y/%m/%d 00:00:00.000") if flushed else "N/A",
                ),
                ("Latest Duration", "latest_duration", "69751 us" if flushed else "N/A"),
            ],
        ),
        ("GPU Operation Mode", "gpu_operation_mode", both(("current_gom", "N/A"), ("pending_gom", "N/A"))),
        ("GPU C2C Mode", "c2c_mode", model["c2c"]),
        (
            "GPU Virtualization Mode",
            "gpu_virtualization_mode",
            [
                ("Virtualization Mode", "virtualization_mode", "None"),
                ("Host VGPU Mode", "host_vgpu_mode", "N/A"),
                ("vGPU Heterogeneous Mode", "vgpu_heterogeneous_mode", "N/A"),
            ],
        ),
        (
            "GPU Reset Status",
            "gpu_reset_status",
            [
                ("Reset Required", "reset_required", DEPRECATED),
                ("Drain and Reset Recommended", "drain_and_reset_recommended", DEPRECATED),
            ],
        ),
        ("GPU Recovery Action", "gpu_recovery_action", see["recovery"]),
        ("GSP Firmware Version", "gsp_firmware_version", version),
        ("IBMNPU", "ibmnpu", [("Relaxed Ordering Mode", "relaxed_ordering_mode", "N/A")]),
        (
            "PCI",
            "pci",
            [
                ("Bus", None, f"0x{see['bus']}"),
                ("Device", None, f"0x{see['device']}"),
                ("Domain", None, f"0x{see['domain']}"),
                ("Base Classcode", None, "0x3"),
                ("Sub Classcode", None, "0x2"),
                ("Device Id", None, f"0x{device_id}"),
                (None, "pci_bus", see["bus"]),
                (None, "pci_device", see["device"]),
                (None, "pci_domain", see["domain"]),
                (None, "pci_base_class", 3),
                (None, "pci_sub_class", 2),
                (None, "pci_device_id", device_id),
                ("Bus Id", "pci_bus_id", bus_id),
                ("Sub System Id", None, f"0x{sub_id}"),
                (None, "pci_sub_system_id", sub_id),
                (
                    "GPU Link Info",
                    "pci_gpu_link_info",
                    [
                        (
                            "PCIe Generation",
                            "pcie_gen",
                            [
                                ("Max", "max_link_gen", model["pcie_gen"]),
                                ("Current", "current_link_gen", see["link_gen"]),
                                ("Device Current", "device_current_link_gen", see["link_gen"]),
                                ("Device Max", "max_device_link_gen", model["pcie_gen"]),
                                ("Host Max", "max_host_link_gen", model["host_pcie_gen"]),
                            ],
                        ),
                        (
                            "Link Width",
                            "link_widths",
                            [
                                ("Max", "max_link_width", "16x"),
                                ("Current", "current_link_width", f"{see['link_width']}x"),
                            ],
                        ),
                    ],
                ),
                (
                    "Bridge Chip",
                    "pci_bridge_chip",
                    [("Type", "bridge_chip_type", "N/A"), ("Firmware", "bridge_chip_fw", "N/A")],
                ),
                ("Replays Since Reset", "replay_counter", 0),
                ("Replay Number Rollovers", "replay_rollover_counter", 0),
                ("Tx Throughput", "tx_util", "0 KB/s"),
                ("Rx Throughput", "rx_util", "0 KB/s"),
                ("Atomic Caps Outbound", "atomic_caps_outbound", model["atomics"][0]),
                ("Atomic Caps Inbound", "atomic_caps_inbound", model["atomics"][1]),
            ],
        ),
        ("Fan Speed", "fan_speed", "N/A"),
        ("Performance State", "performance_state", "P0"),
        (
            "Clocks Event Reasons",
            "clocks_event_reasons",
            [
                (label, f"clocks_event_reason_{name}", "Active" if see["reasons"] & bit else "Not Active")
                for name, bit, label in REASONS
            ],
        ),
        (
            "Clocks Event Reasons Counters",
            "clocks_event_reasons_counters",
            [
                ("SW Power Capping", "clocks_event_reasons_counters_sw_power_cap", "0 us"),
                ("Sync Boost", "clocks_event_reasons_counters_sync_boost", "0 us"),
                (
                    "SW Thermal Slowdown",
                    "clocks_event_reasons_counters_sw_therm_slowdown",
                    f"{see['hot_us']} us",
                ),
                (
                    "HW Thermal Slowdown",
                    "clocks_event_reasons_counters_hw_therm_slowdown",
                    f"{see['hot_us']} us",
                ),
                ("HW Power Braking", "clocks_event_reasons_counters_hw_power_brake", "0 us"),
            ],
        ),
        ("Sparse Operation Mode", "sparse_operation_mode", model["sparse_mode"]),
        (
            "FB Memory Usage",
            "fb_memory_usage",
            [
                ("Total", "total", f"{see['total']} MiB"),
                ("Reserved", "reserved", f"{see['reserved']} MiB"),
                ("Used", "used", "0 MiB"),
                ("Free", "free", f"{see['free']} MiB"),
            ],
        ),
        (
            "BAR1 Memory Usage",
            "bar1_memory_usage",
            [
                ("Total", "total", f"{model['bar1'][0]} MiB"),
                ("Used", "used", f"{model['bar1'][1]} MiB"),
                ("Free", "free", f"{model['bar1'][0] - model['bar1'][1]} MiB"),
            ],
        ),
        (
            "Conf Compute Protected Memory Usage",
            "cc_protected_memory_usage",
            [("Total", "total", "0 MiB"), ("Used", "used", "0 MiB"), ("Free", "free", "0 MiB")],
        ),
        ("Compute Mode", "compute_mode", "Default"),
        (
            "Utilization",
            "utilization",
            [
                (label, f"{tag}_util", "0 %")
                for label, tag in (
                    ("GPU", "gpu"),
                    ("Memory", "memory"),
                    ("Encoder", "encoder"),
                    ("Decoder", "decoder"),
                    ("JPEG", "jpeg"),
                    ("OFA", "ofa"),
                )
            ],
        ),
        ("Encoder Stats", "encoder_stats", session()),
        ("FBC Stats", "fbc_stats", session()),
        (
            "DRAM Encryption Mode",
            "dram_encryption_mode",
            both(("current_dram_encryption", "N/A"), ("pending_dram_encryption", "N/A")),
        ),
        ("ECC Mode", "ecc_mode", both(("current_ecc", "Enabled"), ("pending_ecc", "Enabled"))),
        (
            "ECC Errors",
            "ecc_errors",
            [
                ("Volatile", "volatile", errors(False)),
                ("Aggregate", "aggregate", errors(True)),
                (
                    "Aggregate Uncorrectable SRAM Sources",
                    "aggregate_uncorrectable_sram_sources",
                    [
                        ("SRAM L2", "sram_l2", see["sram_uncorrectable"]),
                        ("SRAM SM", "sram_sm", 0),
                        ("SRAM Microcontroller", "sram_microcontroller", 0),
                        ("SRAM PCIE", "sram_pcie", 0),
                        ("SRAM Other", "sram_other", 0),
                    ],
                ),
                ("Channel Repair Pending", "channel_repair_pending", "No"),
                ("TPC Repair Pending", "tpc_repair_pending", "No"),
                ("Unrepairable Memory", "unrepairable_memory", "No"),
            ],
        ),
        (
            "Retired Pages",
            "retired_pages",
            [
                ("Single Bit ECC", None, "N/A"),
                ("Double Bit ECC", None, "N/A"),
                *(
                    (None, tag, [(None, "retired_count", "N/A"), (None, "retired_pagelist", "N/A")])
                    for tag in ("multiple_single_bit_retirement", "double_bit_retirement")
                ),
                ("Pending Page Blacklist", "pending_blacklist", "N/A"),
                (None, "pending_retirement", "N/A"),
            ],
        ),
        (
            "Remapped Rows",
            "remapped_rows",
            [
                ("Correctable Error", "remapped_row_corr", 0),
                ("Inactive Correctable Error", "remapped_row_corr_inactive", 0),
                ("Uncorrectable Error", "remapped_row_unc", see["remapped"]),
                ("Inactive Uncorrectable Error", "remapped_row_unc_inactive", 0),
                ("Pending", "remapped_row_pending", see["remap_pending"]),
                ("Remapping Failure Occurred", "remapped_row_failure", "No"),
                (
                    "Bank Remap Availability Histogram",
                    "row_remapper_histogram",
                    [
                        (
                            label,
                            f"row_remapper_histogram_{label.lower()}",
                            f"{count} bank(s)",
                        )
                        for label, count in (
                            ("Max", model["remap_banks"] - see["remapped"]),
                            ("High", see["remapped"]),
                            ("Partial", 0),
                            ("Low", 0),
                            ("None", 0),
                        )
                    ],
                ),
            ],
        ),
        (
            "Temperature",
            "temperature",
            [
                ("GPU Current Temp", "gpu_temp", f"{see['temperature']} C"),
                ("GPU T.Limit Temp", "gpu_temp_tlimit", f"{see['tlimit']} C"),
                (
                    "GPU Shutdown T.Limit Temp",
                    "gpu_temp_max_tlimit_threshold",
                    f"{model['shutdown_tlimit']} C",
                ),
                (
                    "GPU Slowdown T.Limit Temp",
                    "gpu_temp_slow_tlimit_threshold",
                    f"{model['slowdown_tlimit']} C",
                ),
                ("GPU Max Operating T.Limit Temp", "gpu_temp_max_gpu_tlimit_threshold", "0 C"),
                ("GPU Target Temperature", "gpu_target_temperature", "N/A"),
                ("Memory Current Temp", "memory_temp", f"{see['memory_temperature']} C"),
                ("Memory Max Operating T.Limit Temp", "gpu_temp_max_mem_tlimit_threshold", "0 C"),
            ],
        ),
        (
            None,
            "supported_gpu_target_temp",
            [(None, "gpu_target_temp_min", "N/A"), (None, "gpu_target_temp_max", "N/A")],
        ),
        (
            "GPU Power Readings",
            "gpu_power_readings",
            [
                (None, "power_state", "P0"),
                ("Average Power Draw", "average_power_draw", _watts(see["power"])),
                ("Instantaneous Power Draw", "instant_power_draw", _watts(see["instant_power"])),
                *((label, tag, _watts(limit)) for label, tag in limits[:2]),
                ("Default Power Limit", "default_power_limit", _watts(see["most_power"])),
                ("Min Power Limit", "min_power_limit", _watts(200.0)),
                ("Max Power Limit", "max_power_limit", _watts(see["most_power"])),
            ],
        ),
        (
            "GPU Memory Power Readings ",
            "gpu_memory_power_readings",
            [
                ("Average Power Draw", "average_power_draw", _watts(see["memory_power"])),
                ("Instantaneous Power Draw", "instant_power_draw", "N/A"),
            ],
        ),
        (
            "Module Power Readings",
            "module_power_readings",
            [
                (None, "power_state", "P0"),
                ("Average Power Draw", "average_power_draw", _watts(see["module_power"])),
                ("Instantaneous Power Draw", "instant_power_draw", _watts(see["module_power"])),
                *((label, tag, _watts(module_limit)) for label, tag in limits),
                ("Min Power Limit", "min_power_limit", _watts(500.0 if module_limit else None)),
                ("Max Power Limit", "max_power_limit", _watts(module_limit)),
            ],
        ),
        ("Power Smoothing", "power_smoothing", model["power_smoothing"]),
        (
            "Workload Power Profiles",
            "power_profiles",
            [
                ("Requested Profiles", "power_profile_requested_profiles", "N/A"),
                ("Enforced Profiles", "power_profile_enforced_profiles", "N/A"),
            ],
        ),
        (
            "Clocks",
            "clocks",
            [
                ("Graphics", "graphics_clock", f"{see['clock']} MHz"),
                ("SM", "sm_clock", f"{see['clock']} MHz"),
                ("Memory", "mem_clock", f"{model['memory_clocks'][0]} MHz"),
                ("Video", "video_clock", f"{model['idle_video_clock']} MHz"),
            ],
        ),
        *(
            (
                label,
                tag,
                [
                    ("Graphics", "graphics_clock", f"{model['max_clock']} MHz"),
                    ("Memory", "mem_clock", f"{model['memory_clocks'][0]} MHz"),
                ],
            )
            for label, tag in (
                ("Applications Clocks", "applications_clocks"),
                ("Default Applications Clocks", "default_applications_clocks"),
            )
        ),
        ("Deferred Clocks", "deferred_clocks", [("Memory", "mem_clock", "N/A")]),
        (
            "Max Clocks",
            "max_clocks",
            [
                ("Graphics", "graphics_clock", f"{model['max_clock']} MHz"),
                ("SM", "sm_clock", f"{model['max_clock']} MHz"),
                ("Memory", "mem_clock", f"{model['memory_clocks'][0]} MHz"),
                ("Video", "video_clock", f"{model['max_video_clock']} MHz"),
            ],
        ),
        (
            "Max Customer Boost Clocks",
            "max_customer_boost_clocks",
            [("Graphics", "graphics_clock", f"{model['max_clock']} MHz")],
        ),
        (
            "Clock Policy",
            "clock_policy",
            [("Auto Boost", "auto_boost", "N/A"), ("Auto Boost Default", "auto_boost_default", "N/A")],
        ),
        ("Voltage", "voltage", [("Graphics", "graphics_volt", "N/A")]),
        (
            "Fabric",
            "fabric",
            [
                ("State", "state", see["fabric_state"][0]),
                ("Status", "status", see["fabric_state"][1]),
                ("CliqueId", "cliqueId", see["clique"]),
                ("ClusterUUID", "clusterUuid", see["cluster"]),
                (
                    "Health",
                    "health",
                    [
                        *((label, tag, see["health"][index]) for index, (label, tag) in enumerate(HEALTH)),
                        ("Partition Assigned", "partition_assigned", "N/A"),
                    ],
                ),
            ],
        ),
        ("Supported Clocks", "supported_clocks", clock_rows(model)),
        ("Processes", None, "None"),
        (None, "processes", "\n\t\t"),
        (None, "accounted_processes", "\n\t\t"),
        ("Capabilities", "capabilities", [("EGM", "egm", "disabled")]),
    ]


def clock_rows(model: dict) -> list:
    """Return the clocks that a GPU can be set to."""
    step = 15.0 if model["architecture"] == "Hopper" else 7.5
    count = int((model["max_clock"] - model["lowest_clock"]) / step) + 1
    graphics = [int(model["max_clock"] - step * index) for index in range(count)]
    return [
        (
            "Memory",
            "supported_mem_clock",
            [
                ("", "value", f"{memory} MHz"),
                *(("Graphics", "supported_graphics_clock", f"{clock} MHz") for clock in graphics),
            ],
        )
        for memory in model["memory_clocks"]
    ]


# The parts that -d selects, by the name of the section.
SECTIONS = {
    "MEMORY": ("FB Memory Usage", "BAR1 Memory Usage", "Conf Compute Protected Memory Usage"),
    "UTILIZATION": ("Utilization", "Encoder Stats", "FBC Stats"),
    "ECC": ("ECC Mode", "ECC Errors"),
    "TEMPERATURE": ("Temperature",),
    "POWER": ("GPU Power Readings", "GPU Memory Power Readings ", "Module Power Readings"),
    "CLOCK": (
        "Clocks",
        "Applications Clocks",
        "Default Applications Clocks",
        "Deferred Clocks",
        "Max Clocks",
        "Max Customer Boost Clocks",
        "Clock Policy",
    ),
    "COMPUTE": ("Compute Mode",),
    "PIDS": ("Processes",),
    "PERFORMANCE": (
        "Performance State",
        "Clocks Event Reasons",
        "Clocks Event Reasons Counters",
        "Sparse Operation Mode",
    ),
    "SUPPORTED_CLOCKS": ("Supported Clocks",),
    "PAGE_RETIREMENT": ("Retired Pages",),
    "ACCOUNTING": ("Accounting Mode", "Accounting Mode Buffer Size"),
    "ENCODER_STATS": ("Encoder Stats",),
    "SUPPORTED_GPU_TARGET_TEMP": (),
    "VOLTAGE": (),
    "FBC_STATS": ("FBC Stats",),
    "ROW_REMAPPER": ("Remapped Rows",),
    "GSP_FIRMWARE_VERSION": ("GSP Firmware Version",),
    "POWER_SMOOTHING": ("Power Smoothing",),
    "POWER_PROFILES": ("Workload Power Profiles",),
}


def as_text(state: State, chosen: list[dict], count: int, version: str, sections: list[str]) -> str:
    """Return the output of ``nvidia-smi -q``, whole or the sections of ``-d``."""
    wanted = {label for section in sections for label in SECTIONS[section]}
    lines = ["", "==============NVSMI LOG==============", ""]
    for label, value in (
        ("Timestamp", now()),
        ("Driver Version", version),
        ("CUDA Version", cuda(version)),
        (None, None),
        ("Attached GPUs", count),
    ):
        lines.append(f"{label:<55}: {value}" if label else "")
    for see in chosen:
        lines.append(f"GPU {see['gpu']['bus_id']}")
        for row in rows(state, see):
            if row[0] is None or (sections and row[0] not in wanted):
                continue
            if row[0] == "Supported Clocks" and not sections:
                continue
            _text(row, 1, lines)
        lines.append("")
    return "\n".join(lines) + "\n"


def _text(row: tuple, depth: int, lines: list[str]) -> None:
    label, _tag, value = row
    if not label:
        return
    indent = "    " * depth
    if isinstance(value, list):
        if label == "Memory":  # The value of a list of clocks is in its heading.
            lines.append(f"{indent + label:<55}: {value[0][2]}")
        else:
            lines.append(indent + label)
        for inner in value:
            _text(inner, depth + 1, lines)
    else:
        lines.append(f"{indent + label:<55}: {value}")


def as_xml(state: State, chosen: list[dict], count: int, version: str) -> str:
    """Return the output of ``nvidia-smi -q -x``."""
    dtd = "nvsmi_device_v13.dtd" if newer(version, "575") else "nvsmi_device_v12.dtd"
    parts = [
        f'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "{dtd}">\n<nvidia_smi_log>\n',
        f"\t<timestamp>{now()}</timestamp>\n\t<driver_version>{version}</driver_version>\n",
        f"\t<cuda_version>{cuda(version)}</cuda_version>\n\t<attached_gpus>{count}</attached_gpus>\n",
    ]
    for see in chosen:
        parts.append(f'\t<gpu id="{see["gpu"]["bus_id"]}">\n')
        for row in rows(state, see):
            _xml(row, 2, parts)
        parts.append("\t</gpu>\n\n")
    parts.append("</nvidia_smi_log>\n")
    return "".join(parts)


def _xml(row: tuple, depth: int, parts: list[str]) -> None:
    _label, tag, value = row
    if tag is None:
        return
    indent = "\t" * depth
    if isinstance(value, list):
        parts.append(f"{indent}<{tag}>\n")
        for inner in value:
            _xml(inner, depth + 1, parts)
        parts.append(f"{indent}</{tag}>\n")
    else:
        text = str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        parts.append(f"{indent}<{tag}>{text}</{tag}>\n")

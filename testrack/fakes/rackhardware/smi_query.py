"""Fake ``nvidia-smi --query-gpu=…`` and similar options for nvidia_smi.py, as comma-separated values."""

from __future__ import annotations

import time

from .smi_report import HEALTH, PLATFORM, REASONS, platform
from .state import State

NA = "[N/A]"
# Fields of power smoothing, with their unit.
SMOOTHING = {
    "primary_power_floor": "W",
    "secondary_power_floor": "W",
    "min_primary_floor_activation_offset": "W",
    "min_primary_floor_activation_point": "W",
    "window_multiplier": "ms",
    **{
        f"{profile}.{name}": unit
        for profile in ("curr_profile", "admin_override")
        for name, unit in (
            ("secondary_power_floor", "W"),
            ("primary_floor_act_window_multiplier", ""),
            ("primary_floor_tar_window_multiplier", ""),
            ("primary_floor_act_offset", "W"),
        )
    },
}


def _number(key, form: str = "{}"):
    """Return a function that gives a reading of a GPU, as formatted text."""
    return lambda see, _state: form.format(see[key])


def _gpu(key):
    """Return a function that gives an identity of a GPU, such as its UUID."""
    return lambda see, _state: str(see["gpu"][key])


def _model(key):
    """Return a function that gives a value of the GPU's model."""
    return lambda _see, state: str(state.gpu_model[key])


def _same(text):
    """Return a function that gives the same text for every GPU."""
    return lambda _see, _state: str(text)


def _reason(bit: int):
    """Return a function that gives whether a reason lowers the clocks now."""
    return lambda see, _state: "Active" if see["reasons"] & bit else "Not Active"


def _module(key: str):
    """Return a function that gives a power of the GPU's module in W, which not every model has."""

    def value(see, state: State) -> str:
        if not state.gpu_model["module_power_limit"]:
            return NA
        found = see["module_power"] if key == "draw" else state.gpu_model["module_power_limit"]
        return f"{500 if key == 'min' else found:.2f}"

    return value


def _platform(at: int, untold: str):
    """Return a function that gives a part of a GPU's place, or a text if the place is unknown."""

    def value(see, state: State) -> str:
        found = platform(state, see["gpu"])[at]
        return untold if found == "N/A" else str(found)

    return value


def _timestamp(_see, _state) -> str:
    """Return the time in the form of nvidia-smi's tables."""
    now = time.time()
    return time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d}"


def _fields() -> dict[str, tuple]:
    """Return the fields by their proper name, with unit, value and other name."""
    fields: dict[str, tuple] = {
        "timestamp": ("", _timestamp),
        "driver_version": ("", _number("version")),
        "count": ("", lambda _see, state: str(len(state.gpus))),
        "name": ("", _model("name"), "gpu_name"),
        "serial": ("", _gpu("serial"), "gpu_serial"),
        "uuid": ("", _gpu("uuid"), "gpu_uuid"),
        "pci.bus_id": ("", _gpu("bus_id"), "gpu_bus_id"),
        "pci.domain": ("", _number("domain", "0x{}")),
        "pci.bus": ("", _number("bus", "0x{}")),
        "pci.device": ("", _number("device", "0x{}")),
        "pci.device_id": ("", lambda _see, state: f"0x{state.gpu_model['device'].upper()}10DE"),
        "pci.sub_device_id": ("", lambda _see, state: f"0x{state.gpu_model['subsystem'].upper()}10DE"),
        "vgpu_device_capability.homogeneous_placements": ("", _same(NA)),
        "pcie.link.gen.current": ("", _number("link_gen")),
        "pcie.link.gen.gpucurrent": ("", _number("link_gen")),
        "pcie.link.gen.max": ("", _model("pcie_gen")),
        "pcie.link.gen.gpumax": ("", _model("pcie_gen")),
        "pcie.link.gen.hostmax": (
            "",
            lambda _see, state: state.gpu_model["host_pcie_gen"].replace("N/A", NA),
        ),
        "pcie.link.width.current": ("", _number("link_width")),
        "pcie.link.width.max": ("", _same(16)),
        "index": ("", _number("index")),
        "display_mode": ("", _same("[Requested functionality has been deprecated]")),
        "display_attached": ("", _same("Yes")),
        "display_active": ("", _same("Disabled")),
        "persistence_mode": ("", _number("persistence")),
        "addressing_mode": ("", _model("addressing")),
        "accounting.mode": ("", _same("Disabled")),
        "accounting.buffer_size": ("", _same(4000)),
        "driver_model.current": ("", _same(NA)),
        "driver_model.pending": ("", _same(NA)),
        "vbios_version": ("", _gpu("vbios")),
        "inforom.img": ("", _model("inforom"), "inforom.image"),
        "inforom.oem": ("", _same("2.1")),
        "inforom.ecc": ("", _same("7.16")),
        "inforom.pwr": ("", _same(NA), "inforom.power"),
        "inforom.checksum_validation": ("", _same("valid")),
        "gpu_recovery_action": ("", _number("recovery")),
        "gom.current": ("", _same(NA), "gpu_operation_mode.current"),
        "gom.pending": ("", _same(NA), "gpu_operation_mode.pending"),
        "fan.speed": ("%", _same(NA)),
        "pstate": ("", _same("P0")),
    }
    old, new = "clocks_throttle_reasons", "clocks_event_reasons"
    fields[f"{new}.supported"] = ("", _same("0x00000000000001FF"), f"{old}.supported")
    fields[f"{new}.active"] = ("", _number("reasons", "0x{:016X}"), f"{old}.active")
    for name, bit, _label in REASONS:
        if name != "display_clocks_setting":
            fields[f"{new}.{name}"] = ("", _reason(bit), f"{old}.{name}")
    for name in (
        "sw_power_cap",
        "sync_boost",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
    ):
        fields[f"{new}_counters.{name}"] = ("us", _number("hot_us") if "thermal" in name else _same(0))
    for name in ("total", "reserved", "free"):
        fields[f"memory.{name}"] = ("MiB", _number(name))
    fields["memory.used"] = ("MiB", _same(0))
    fields["compute_mode"] = ("", _same("Default"))
    fields["compute_cap"] = ("", _model("compute_capability"))
    for name in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa"):
        fields[f"utilization.{name}"] = ("%", _same(0))
    fields["ecc.mode.current"] = ("", _same("Enabled"))
    fields["ecc.mode.pending"] = ("", _same("Enabled"))
    for kind in ("corrected", "uncorrected"):
        for span in ("volatile", "aggregate"):
            begin = f"ecc.errors.{kind}.{span}"
            wrong = kind == "uncorrected"
            fields[f"{begin}.device_memory"] = fields[f"{begin}.dram"] = (
                "",
                _number("dram_uncorrectable") if wrong else _same(0),
            )
            for place in ("register_file", "l1_cache", "l2_cache", "texture_memory", "cbu"):
                fields[f"{begin}.{place}"] = ("", _same(NA))
            fields[f"{begin}.sram"] = ("", _number("sram_uncorrectable") if wrong else _same(0))
            fields[f"{begin}.total"] = (
                "",
                (lambda see, _state: str(see["sram_uncorrectable"] + see["dram_uncorrectable"]))
                if wrong
                else _same(0),
            )
    for span in ("volatile", "aggregate"):
        fields[f"ecc.errors.uncorrected.{span}.sram.parity"] = ("", _same(0))
        fields[f"ecc.errors.uncorrected.{span}.sram.secded"] = ("", _number("sram_uncorrectable"))
    for place in ("l2", "sm", "mcu", "pcie", "other"):
        fields[f"ecc.errors.uncorrected.aggregate.sram.{place}"] = (
            "",
            _number("sram_uncorrectable") if place == "l2" else _same(0),
        )
    fields["retired_pages.single_bit_ecc.count"] = ("", _same(NA), "retired_pages.sbe")
    fields["retired_pages.double_bit.count"] = ("", _same(NA), "retired_pages.dbe")
    fields["retired_pages.pending"] = ("", _same(NA))
    fields["remapped_rows.correctable"] = ("", _same(0), "remapped_rows.sbe")
    fields["remapped_rows.correctable_inactive"] = ("", _same(0))
    fields["remapped_rows.uncorrectable"] = ("", _number("remapped"), "remapped_rows.dbe")
    fields["remapped_rows.uncorrectable_inactive"] = ("", _same(0))
    fields["remapped_rows.pending"] = ("", _number("remap_pending"))
    fields["remapped_rows.failure"] = ("", _same("No"))
    fields["remapped_rows.histogram.max"] = (
        "",
        lambda see, state: str(state.gpu_model["remap_banks"] - see["remapped"]),
    )
    fields["remapped_rows.histogram.high"] = ("", _number("remapped"))
    for name in ("partial", "low", "none"):
        fields[f"remapped_rows.histogram.{name}"] = ("", _same(0))
    fields["temperature.gpu"] = ("", _number("temperature"))
    fields["temperature.gpu.tlimit"] = ("", _number("tlimit"))
    fields["temperature.memory"] = ("", _number("memory_temperature"))
    fields["power.management"] = ("", _same("Enabled"))
    fields["power.draw"] = ("W", _number("power", "{:.2f}"))
    fields["power.draw.average"] = ("W", _number("power", "{:.2f}"), "gpu.power.draw.average")
    fields["power.draw.instant"] = ("W", _number("instant_power", "{:.2f}"), "gpu.power.draw.instant")
    limit, most = _number("power_limit", "{:.2f}"), _number("most_power", "{:.2f}")
    for name, other in (
        ("power.limit", "gpu.power.requested_limit"),
        ("enforced.power.limit", "gpu.power.current_limit"),
    ):
        fields[name] = ("W", limit, other)
    fields["power.default_limit"] = ("W", most, "gpu.power.default_limit")
    fields["power.min_limit"] = ("W", _same("200.00"), "gpu.power.min_limit")
    fields["power.max_limit"] = ("W", most, "gpu.power.max_limit")
    for name, key, other in (
        ("power.draw.average", "draw", ""),
        ("power.draw.instant", "draw", ""),
        ("power.limit", "limit", "module.power.requested_limit"),
        ("enforced.power.limit", "limit", "module.power.current_limit"),
        ("power.default_limit", "limit", ""),
        ("power.min_limit", "min", ""),
        ("power.max_limit", "limit", ""),
    ):
        fields[f"module.{name}"] = ("W", _module(key), other)
    fields["power_smoothing.delayed_power_smoothing_supported"] = ("", _same(NA))
    for name, unit in SMOOTHING.items():
        fields[f"power_smoothing.{name}"] = (unit, _same(NA))
    for name in ("graphics", "sm"):
        short = name.replace("graphics", "gr")
        fields[f"clocks.current.{name}"] = ("MHz", _number("clock"), f"clocks.{short}")
    memory = _number("memory_clock")
    fields["clocks.current.memory"] = ("MHz", memory, "clocks.mem")
    fields["clocks.current.video"] = ("MHz", _model("idle_video_clock"), "clocks.video")
    for kind in ("applications", "default_applications"):
        fields[f"clocks.{kind}.graphics"] = ("MHz", _model("max_clock"), f"clocks.{kind}.gr")
        fields[f"clocks.{kind}.memory"] = ("MHz", memory, f"clocks.{kind}.mem")
    fields["clocks.max.graphics"] = ("MHz", _model("max_clock"), "clocks.max.gr")
    fields["clocks.max.sm"] = ("MHz", _model("max_clock"))
    fields["clocks.max.memory"] = ("MHz", memory, "clocks.max.mem")
    fields["mig.mode.current"] = ("", _same("Disabled"))
    fields["mig.mode.pending"] = ("", _same("Disabled"))
    fields["gsp.mode.current"] = ("", _same("Enabled"))
    fields["gsp.mode.default"] = ("", _same("Enabled"))
    fields["c2c.mode"] = ("", _model("c2c"))
    for name in ("total", "used", "free"):
        fields[f"protected_memory.{name}"] = ("MiB", _same(0))
    fields["fabric.state"] = ("", lambda see, _state: see["fabric_state"][0])
    fields["fabric.status"] = ("", lambda see, _state: see["fabric_state"][1])
    for index, (_label, name) in enumerate(HEALTH):
        fields[f"fabric.health.{name}"] = ("", lambda see, _state, at=index: see["health"][at])
    fields["fabric.health.partition_assigned"] = ("", _same("N/A"))
    # For unknown values the real tool prints these, not N/A.
    untold = ("", "0", "0", "1", "Direct Connected", "", "0x0000000000000000")
    for index, (_label, name) in enumerate(PLATFORM):
        fields[f"platform.{name}"] = ("", _platform(index, untold[index]))
    fields["hostname"] = ("", _same(NA))
    return fields


_APPS = {
    "timestamp": "",
    "gpu_name": "",
    "gpu_bus_id": "",
    "gpu_serial": "",
    "gpu_uuid": "",
    "pid": "",
    "process_name": "",
    "used_gpu_memory": "MiB",
}
_APP_NAMES = {"name": "process_name", "used_memory": "used_gpu_memory"}
_PAGES = ("timestamp", "gpu_name", "gpu_bus_id", "gpu_serial", "gpu_uuid", "retired_pages.address")


def names() -> list[tuple[str, str]]:
    """Return the fields of --query-gpu, each with its other name."""
    return [(name, about[2] if len(about) > 2 else "") for name, about in _fields().items()]


def _bad(field: str) -> int:
    print(f'Field "{field}" is not a valid field to query.\n')
    return 2


def query(kind: str, wanted: str, form: str | None, state: State, chosen: list[dict]) -> int:
    """Print the answer to a query, and return the exit status.

    Args:
        kind: The option, such as ``query_gpu``.
        wanted: The fields, separated with commas.
        form: The value of ``--format``.
        state: The node's hardware.
        chosen: The GPUs to list.
    """
    modifiers = [one.strip() for one in (form or "csv").split(",") if one.strip()]
    if set(modifiers) - {"csv", "noheader", "nounits"}:
        print("Format modifier is not recognized.")
        return 2
    asked = [one.strip() for one in wanted.split(",")]
    units = "nounits" not in modifiers
    header = "noheader" not in modifiers
    if kind == "query_gpu":
        return _query_gpu(asked, state, chosen, header, units)
    if kind == "query_compute_apps" or kind == "query_accounted_apps":
        return _query_apps(asked, header)
    if kind == "query_remapped_rows":
        return _query_rows(asked, state, chosen, header)
    if kind == "query_retired_pages":
        return _query_pages(asked, state, chosen, header)
    if header:
        print(", ".join(asked))
    for clock in state.gpu_model["memory_clocks"]:
        print(", ".join(f"{clock} MHz" for _one in asked))
    return 0


def _query_gpu(asked: list[str], state: State, chosen: list[dict], header: bool, units: bool) -> int:
    fields = _fields()
    proper = {about[2]: name for name, about in fields.items() if len(about) > 2 and about[2]}
    for one in asked:
        if proper.get(one, one) not in fields:
            return _bad(one)
    columns = [proper.get(one, one) for one in asked]
    if header:
        print(", ".join(f"{one} [{fields[one][0]}]" if fields[one][0] else one for one in columns))
    for see in chosen:
        cells = []
        for one in columns:
            unit, value = fields[one][0], fields[one][1](see, state)
            cells.append(f"{value} {unit}" if unit and units and value != NA else value)
        print(", ".join(cells))
    return 0


def _query_apps(asked: list[str], header: bool) -> int:
    columns = [_APP_NAMES.get(one, one) for one in asked]
    for one in asked:
        if _APP_NAMES.get(one, one) not in _APPS:
            return _bad(one)
    if header:
        print(", ".join(f"{one} [{_APPS[one]}]" if _APPS[one] else one for one in columns))
    return 0


_GPU_NAMES = {
    "gpu_name": "name",
    "gpu_bus_id": "pci.bus_id",
    "gpu_serial": "serial",
    "gpu_uuid": "uuid",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
}


def _query_rows(asked: list[str], state: State, chosen: list[dict], header: bool) -> int:
    fields = _fields()
    for one in asked:
        known = (
            one in _GPU_NAMES or one == "timestamp" or (one.startswith("remapped_rows.") and one in fields)
        )
        if not known:
            return _bad(one)
    if header:
        shown = [
            _GPU_NAMES[one] if one.startswith("remapped_rows.") and one in _GPU_NAMES else one
            for one in asked
        ]
        print(", ".join(shown))
    for see in chosen:
        print(", ".join(fields[_GPU_NAMES.get(one, one)][1](see, state) for one in asked))
    return 0


def _query_pages(asked: list[str], state: State, chosen: list[dict], header: bool) -> int:
    fields = _fields()
    for one in asked:
        if one not in _PAGES and one not in ("retired_pages.cause", "retired_pages.timestamp"):
            return _bad(one)
    if header:
        print(", ".join(asked))
    for see in chosen:
        for cause in ("Single Bit ECC", "Double Bit ECC"):
            cells = []
            for one in asked:
                if one == "retired_pages.cause":
                    cells.append(cause)
                elif one.startswith("retired_pages."):
                    cells.append(NA)
                else:
                    cells.append(fields[_GPU_NAMES.get(one, one)][1](see, state))
            print(", ".join(cells))
    return 0

"""Turn a node's raw facts into the record of a node.

The facts come from module ``rackproof_facts``, subset ``record`` or ``health``. They are mostly texts of the
node: ``files`` and ``dmi`` by name, and ``tools`` with an answer of each tool (``status``, ``rc``,
``stdout``, ``stderr``). :func:`node_from_facts` returns the :class:`Node`. Job bench stores this record in
the record of a run, job reimage in the hardware record, and job validate beside a snapshot. Job bench also
calls :func:`findings_from_facts` and :func:`sku_findings`, which return findings about the node. A finding
with a verdict counts against the run. The module does no I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

from rackproof.core.gpu_models import expected_model, other_models
from rackproof.core.records import Finding, Gpu, Node, Source, Verdict
from rackproof.core.text import amount, sanitize
from rackproof.core.untrusted import list_at, mapping_at, stdout_of, text_at
from rackproof.logs import parse, read_gpus
from rackproof.logs._nvidia_smi import INFOROM_REMEDY, inforom_address, lost_address
from rackproof.logs.nvidia_smi import lines_beside

# Placeholders of board makers in fields of the DMI table, such as "To Be Filled By O.E.M.". If one counted
# as a serial number, all machines with it would look like one machine.
_FILLER = re.compile(
    r"(?:|0+|x+|n/?a|none|null|unknown|default string|not (?:specified|available|applicable|present|provided)"
    r"|to be filled by o\.?e\.?m\.?|(?:(?:system|chassis|base ?board|board) )?serial(?: number)?"
    r"|system product name|empty|invalid|oem|o\.e\.m\.|1234567890?|0?123456789|\.+|-+)",
    re.IGNORECASE,
)
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
"""Pattern of the id in /etc/machine-id."""
_VERSION = re.compile(r"\d+(?:\.\d+)+[\w.+~-]*")
"""Pattern of a version such as ``570.86.15`` or ``1.17.4-1``."""
_LIBRARY_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
"""Pattern of the version at the end of a library's file name, such as 2.21.5 in ``libnccl.so.2.21.5``."""
_LIBRARIES = {"libnccl.so": "nccl", "libcudnn.so": "cudnn"}
_INFOROM_STATUS = 14
"""Exit status of nvidia-smi if its answer is complete but it warns of a corrupted infoROM."""
_END_OF_XML = "</nvidia_smi_log>"


def node_from_facts(name: str, raw: Mapping[str, Any], sku: str = "") -> Node:
    """Return the record of a node.

    Missing and damaged facts are empty in the record. :func:`findings_from_facts` reports them.

    Args:
        name: The name of the node in the inventory.
        raw: The ``facts`` that the module returned.
        sku: The node model that the inventory expects.
    """
    raw = {**raw, "tools": with_whole_answer(mapping_at(raw, "tools"))}
    files, dmi = mapping_at(raw, "files"), mapping_at(raw, "dmi")
    return Node(
        name=name,
        sku=sku,
        addresses=tuple(sanitize(address, 64) for address in list_at(raw, "addresses")[:64]),
        serial=_serial(dmi, "product_serial") or _serial(dmi, "board_serial"),
        chassis_serial=_serial(dmi, "chassis_serial"),
        hostname=sanitize(raw.get("hostname") or "", 100),
        machine_id=_machine_id(files),
        product=" ".join(filter(None, (_serial(dmi, "sys_vendor"), _serial(dmi, "product_name")))),
        cpu=_cpu_model(raw, files),
        cpu_count=_count(raw.get("cpu_count")),
        memory_bytes=_memory_bytes(text_at(files, "meminfo")),
        gpus=gpus_from_facts(raw),
        software={key: value for key, value in _software(raw, files) if value},
        firmware={key: value for key, value in _firmware(raw, dmi) if value},
    )


def _machine_id(files: Mapping[str, Any]) -> str:
    """Return the id of the installed system, or "" if it is invalid.

    An image has the text ``uninitialized`` in place of an id. A single repeated digit is no id either.
    """
    text = text_at(files, "machine_id").strip()
    is_valid = _MACHINE_ID.fullmatch(text) is not None and len(set(text)) > 1
    return text if is_valid else ""


def _cpu_model(raw: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Return the product name of the CPU, or "" if it is unknown."""
    # lscpu prints the names of Arm's cores. On Arm, /proc/cpuinfo contains only numbers.
    by_lscpu = _colons(stdout_of(mapping_at(raw, "tools"), "lscpu")).get("model name")
    return sanitize(by_lscpu or _colons(text_at(files, "cpuinfo")).get("model name") or "", 200)


def with_whole_answer(tools: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answers of tools, with nvidia-smi's answer as ``ok`` if it only warned of an infoROM."""
    answer = mapping_at(tools, "nvidia_smi_xml")
    warned = answer.get("status") == "failed" and answer.get("rc") == _INFOROM_STATUS
    if not warned or _END_OF_XML not in text_at(answer, "stdout"):
        return tools
    return {**tools, "nvidia_smi_xml": {**answer, "status": "ok"}}


def inforom_warnings(tool: str, answer: Mapping[str, Any]) -> list[str]:
    """Return the lines of a call of nvidia-smi that warn of an infoROM.

    If only the exit status warns, a line about this status is returned.
    """
    printed = f"{text_at(answer, 'stdout')}\n{text_at(answer, 'stderr')}"
    # Most answers are long, and none of their lines needs to be examined.
    lines = printed.splitlines() if " corrupt" in printed else []
    lines = [line for line in lines if inforom_address(line) is not None]
    if not lines and answer.get("rc") == _INFOROM_STATUS:
        lines = [f"{tool} ended with {_INFOROM_STATUS}: infoROM is corrupted"]
    return lines


def lost_gpu_lines(answer: Mapping[str, Any]) -> list[str]:
    """Return the lines of a call of nvidia-smi that report a GPU which it cannot reach.

    nvidia-smi prints these lines in place of its answer, above it or below it. Lines of the XML do not count,
    because they have values of a GPU.
    """
    printed = f"{text_at(answer, 'stdout')}\n{text_at(answer, 'stderr')}"
    # Most answers are long, and none of their lines needs to be examined.
    lines = printed.splitlines() if "device handle for" in printed or " is lost" in printed else []
    return [line for line in lines if "<" not in line and lost_address(line) is not None]


def gpus_from_facts(raw: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """Return the node's GPUs. Return none if ``nvidia-smi`` did not end well, or its answer is incomplete."""
    answer = mapping_at(with_whole_answer(mapping_at(raw, "tools")), "nvidia_smi_xml")
    if answer.get("status") != "ok" or answer.get("truncated"):
        return ()
    try:
        return read_gpus(text_at(answer, "stdout").encode("utf-8", "replace"))
    except ValueError:
        return ()


def findings_from_facts(name: str, raw: Mapping[str, Any], *, expected_gpus: int = 0) -> tuple[Finding, ...]:
    """Return findings about GPUs that are missing or faulty, about warnings of nvidia-smi, and about tools.

    A tool is reported if it hangs or does not reach the driver, and nvidia-smi also if it fails or lists no
    GPU. A missing ``nvidia-smi`` is not a finding if no GPUs are expected. Facts without any tool are a
    finding.

    Args:
        name: The name of the node.
        raw: The ``facts`` that the module returned.
        expected_gpus: The number of GPUs in the node's SKU, or 0 if unknown.
    """
    tools = with_whole_answer(mapping_at(raw, "tools"))
    raw = {**raw, "tools": tools}
    findings = [
        finding
        for tool in sorted(tools)
        if (finding := _tool_finding(name, tool, mapping_at(tools, tool), raw)) is not None
    ]
    source = Source(file=name)
    findings += _smi_remarks(name, mapping_at(tools, "nvidia_smi_xml"), source)
    findings += _driver_findings(name, raw, source)
    count, answer = len(gpus_from_facts(raw)), mapping_at(tools, "nvidia_smi_xml")
    # Without an answer because of one lost GPU, the others are unknown, and not missing.
    is_unknown = _is_answer_lost(answer) or (not count and bool(lost_gpu_lines(answer)))
    if count < expected_gpus and not is_unknown:
        expected = amount(expected_gpus, "GPU")
        text = f"{name}: has {count} of {expected}; look for XIDs in its kernel log, then RMA"
        findings.append(_finding("gpus_missing", text, Verdict.FAIL, "", source))
    if not tools:
        text = f"{name}: the facts hold no tool's answer"
        findings.append(_finding("no_facts", text, Verdict.UNPROVEN, "", source))
    return tuple(findings)


def _is_answer_lost(answer: Mapping[str, Any]) -> bool:
    """Return whether the GPUs in an answer are unknown, because it is truncated or the tool hung.

    A tool that fails is different, because it fails if a GPU is lost or the driver does not respond.
    """
    return answer.get("status") == "hung" or (answer.get("status") == "ok" and bool(answer.get("truncated")))


def sku_findings(
    name: str, gpus: Sequence[Gpu], *, sku: str, gpu_name: str = "", expected_gpus: int = 0
) -> tuple[Finding, ...]:
    """Return findings about a node that does not match its SKU, or about an incomplete SKU.

    Args:
        name: The name of the node.
        gpus: The GPUs of the node. If there are none, their model cannot be checked, and
            :func:`findings_from_facts` reports them as missing.
        sku: The SKU of the node in the inventory. Without a SKU and a ``gpu_name``, nothing is expected.
        gpu_name: The text that the product name of the GPUs must contain. Empty means the SKU's own name.
        expected_gpus: The number of GPUs in the SKU, or 0 if unknown.
    """
    if not sku and not gpu_name:
        return ()
    count = len({gpu.uuid for gpu in gpus})
    problems = _sku_count_problem(sku, count, expected_gpus) if sku else {}
    problems |= _sku_model_problem(sku, gpus, expected_model(sku, gpu_name))
    return tuple(
        _finding(code, f"{name}: {text}", Verdict.UNPROVEN, "", Source(file=name))
        for code, text in problems.items()
    )


def _sku_count_problem(sku: str, count: int, expected_gpus: int) -> dict[str, str]:
    """Return the problem with the number of GPUs of a SKU or its node, by the finding's code."""
    if expected_gpus < 1:
        text = f"the number of GPUs of SKU {sku} is not known: set bench_sku_gpus in its group_vars"
        return {"sku_gpus_unknown": text}
    if count > expected_gpus:
        text = f"has {amount(count, 'GPU')}, SKU {sku} has {expected_gpus}; correct its SKU in the inventory"
        return {"sku_gpus_exceeded": text}
    return {}


def _sku_model_problem(sku: str, gpus: Sequence[Gpu], model: str) -> dict[str, str]:
    """Return the problem with the model of the GPUs of a SKU or its node, by the finding's code."""
    if not model:
        text = f"the GPU model of SKU {sku} is not known: set bench_sku_gpu_name in its group_vars"
        return {"sku_model_unknown": text}
    other_names = other_models((gpu.name for gpu in gpus), model)
    if not other_names:
        return {}
    names_text = ", ".join(name or "no product name" for name in other_names)
    text = (
        f"its GPUs are {names_text}, not {model} as SKU {sku or '(none)'} has; correct its SKU in the "
        "inventory, or bench_sku_gpu_name in the SKU's group_vars"
    )
    return {"sku_differs": text}


_FAULTS_BY_DRIVER = frozenset(
    (
        *("recovery_action", "remap_failure", "remap_pending", "repair_pending", "memory_unrepairable"),
        "ecc_uncorrected",
    )
)
"""Codes of the findings of nvidia-smi's parser that count against a run, because the driver itself reports
that a GPU is faulty or needs a reset. The parser's other findings are on settings, links and temperatures.
Only nights judge these, because they need a SKU."""


def _driver_findings(name: str, raw: Mapping[str, Any], source: Source) -> Iterator[Finding]:
    """Yield the faults of GPUs that the driver itself reports."""
    if not gpus_from_facts(raw):
        return
    xml = stdout_of(mapping_at(raw, "tools"), "nvidia_smi_xml").encode("utf-8", "replace")
    faults = {
        (finding.code, finding.message): finding
        for finding in parse(BytesIO(xml), format="nvidia_smi_xml").findings
        if finding.code in _FAULTS_BY_DRIVER and finding.verdict in (Verdict.FAIL, Verdict.UNPROVEN)
    }
    for (code, message), fault in faults.items():
        text = f"{name}: {message}; reset the GPU or reboot the node, and see whether it stays"
        yield _finding(code, text, fault.verdict, fault.excerpt, source)


def _smi_remarks(name: str, answer: Mapping[str, Any], source: Source) -> Iterator[Finding]:
    """Yield a finding for each warning of nvidia-smi, which is a line above or below its XML.

    A warning of an infoROM can also be in its error output, or only in its exit status.
    """
    xml = text_at(answer, "stdout")
    beside = lines_beside(xml.encode("utf-8", "replace")) if "<" in xml else ()
    lost = lost_gpu_lines(answer)
    lines = (*lost, *(line for _at, line in beside), *inforom_warnings("nvidia-smi", answer))
    for remark in dict.fromkeys(line.strip() for line in lines):
        if (address := lost_address(remark)) is not None:
            gpu = f"the GPU at {address}" if address else "a GPU"
            text = f"{name}: nvidia-smi does not reach {gpu}: reboot the node, then inspect the GPU"
            yield _finding("gpu_lost", text, Verdict.FAIL, sanitize(remark, 300), source)
        elif inforom_address(remark) is None:
            text = f"{name}: nvidia-smi prints an unknown warning; look it up"
            yield _finding("tool_warning", text, Verdict.UNPROVEN, sanitize(remark, 300), source)
        else:
            text = f"{name}: the infoROM of a GPU is corrupted: {INFOROM_REMEDY}"
            yield _finding("inforom_corrupted", text, Verdict.FAIL, sanitize(remark, 300), source)


def _tool_finding(name: str, tool: str, answer: Mapping[str, Any], raw: Mapping[str, Any]) -> Finding | None:
    """Return the finding about a tool's answer, or None. Only one about nvidia-smi has a verdict."""
    status = answer.get("status")
    label = sanitize(tool, 60).replace("_", "-")
    is_gpu = tool == "nvidia_smi_xml"
    code, text, verdict = "", "", Verdict.UNPROVEN
    if status == "hung":
        # A hung driver is a fault of the node. Other problems prove neither health nor a fault.
        code, text, verdict = "tool_hung", f"{label} gave no answer in time", Verdict.FAIL
    elif status == "no_driver":
        code, text = "no_driver", f"{label} does not reach the driver or finds no GPU"
    elif is_gpu and status == "failed":
        code, text = "tool_failed", f"{label} failed with exit status {answer.get('rc')}"
    elif is_gpu and status == "ok" and not gpus_from_facts(raw):
        code, text = "no_gpus", f"the answer of {label} lists no GPU or cannot be read"
    if not code:
        return None
    weight = verdict if is_gpu else None
    return _finding(code, f"{name}: {text}", weight, _excerpt(answer), Source(file=name))


def _finding(code: str, message: str, verdict: Verdict | None, excerpt: str, source: Source) -> Finding:
    """Return a finding, whose message is made safe to show."""
    return Finding(code=code, message=sanitize(message), verdict=verdict, excerpt=excerpt, source=source)


def _software(raw: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and version of each software. The version is empty if it is not installed."""
    tools = mapping_at(raw, "tools")
    yield from _system_software(raw, files)
    smi = stdout_of(tools, "nvidia_smi_xml")
    yield "driver", _tag(smi, "driver_version") or _first_version(text_at(files, "nvidia_driver"))
    # The first is the newest CUDA that the driver supports. The second is the installed toolkit.
    yield "cuda_driver", _tag(smi, "cuda_version")
    toolkit = re.search(r"release (\d+\.\d+)(?:, V([\d.]+))?", stdout_of(tools, "nvcc"))
    yield "cuda", (toolkit[2] or toolkit[1]) if toolkit else ""
    yield from _library_versions(mapping_at(raw, "libraries"))
    yield "ofed", sanitize(stdout_of(tools, "ofed_info").strip().rstrip(":"), 100)
    yield "mpi", _first_line(stdout_of(tools, "mpirun"))
    yield "slurm", _first_version(stdout_of(tools, "slurm"))
    for tool in ("docker", "podman", "enroot", "nvidia_ctk", "fabricmanager"):
        yield tool, _first_version(stdout_of(tools, tool))
    yield "dgx", _first_version(text_at(files, "dgx"))
    yield from _tuning(files)
    for interpreter, answer in sorted(mapping_at(raw, "pythons").items()):
        yield from _python_software(sanitize(interpreter, 40), mapping_at(answer, "said"))


def _system_software(raw: Mapping[str, Any], files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and version of the system. /etc/os-release has lines such as ``NAME="Ubuntu"``."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text_at(files, "os_release"), re.MULTILINE))
    yield "os", sanitize(release.get("PRETTY_NAME") or release.get("NAME", ""), 100)
    yield "kernel", sanitize(raw.get("kernel") or "", 100)
    yield "machine", sanitize(raw.get("machine") or "", 40)


def _library_versions(libraries: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the versions of libraries, which are in the names of the files that their links point to."""
    for library, path in sorted(libraries.items()):
        version = _LIBRARY_VERSION.search(str(path))
        if version is None:
            continue
        for prefix, key in _LIBRARIES.items():
            if library.startswith(prefix):
                yield key, version[1]


def _python_software(name: str, report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the version, the packages and the torch build from an interpreter's report."""
    yield f"python.{name}", sanitize(report.get("version") or "", 40)
    for package, version in sorted(mapping_at(report, "packages").items()):
        yield f"{name}.{sanitize(package, 60)}", sanitize(version or "", 60)
    for part, version in sorted(mapping_at(report, "torch").items()):
        if part in ("cuda", "cudnn", "nccl", "hip") and version:
            yield f"{name}.{part}", sanitize(version, 60)


def _tuning(files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the tuning of the host, as the requested profile and as the kernel's actual settings."""
    yield "tuning.profile", _tuning_profile(text_at(files, "tuning"))
    yield "tuning.governor", sanitize(text_at(files, "governor").strip(), 40)
    # The kernel lists every choice, with the active one in brackets: "always [madvise] never".
    pages = re.search(r"\[(\w+)\]", text_at(files, "transparent_hugepages"))
    yield "tuning.transparent_hugepages", pages[1] if pages else ""
    huge = re.search(r"^HugePages_Total:\s+(\d{1,12})$", text_at(files, "meminfo"), re.MULTILINE)
    yield "tuning.hugepages", huge[1] if huge and huge[1] != "0" else ""
    for name in ("mitigations", "spectre_v2"):
        match = re.search(rf"(?:^|\s){name}=(\S{{1,60}})", text_at(files, "command_line"))
        yield f"tuning.{name}", sanitize(match[1], 60) if match else ""


def _tuning_profile(text: str) -> str:
    """Return the profile in the JSON file that role node_tuning writes, or ""."""
    try:
        applied = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return ""
    return sanitize(applied.get("profile") or "", 60) if isinstance(applied, dict) else ""


def _firmware(raw: Mapping[str, Any], dmi: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and version of each firmware.

    If the VBIOS of GPUs differ, blanks join their versions.
    """
    yield "bios", _serial(dmi, "bios_version")
    for device, device_facts in sorted(mapping_at(raw, "infiniband").items()):
        if isinstance(device_facts, Mapping):
            yield f"infiniband.{sanitize(device, 40)}", sanitize(device_facts.get("fw_ver") or "", 60)
    yield "vbios", " ".join(sorted({gpu.vbios for gpu in gpus_from_facts(raw) if gpu.vbios}))


def _excerpt(answer: Mapping[str, Any]) -> str:
    """Return the error output of a tool for a finding, or else its output."""
    return sanitize(text_at(answer, "stderr") or text_at(answer, "stdout"), 300)


def _serial(dmi: Mapping[str, Any], key: str) -> str:
    """Return a DMI entry, or "" if it is only a placeholder."""
    text = sanitize(text_at(dmi, key), 100)
    return "" if _FILLER.fullmatch(text) else text


def _colons(text: str) -> dict[str, str]:
    """Return ``Key: value`` lines as a mapping with lower-case keys.

    If a key is repeated, its first value is used.
    """
    pairs: dict[str, str] = {}
    for line in text.splitlines()[:500]:
        key, colon, value = line.partition(":")
        if colon:
            pairs.setdefault(key.strip().lower(), value.strip())
    return pairs


def _memory_bytes(meminfo: str) -> int:
    """Return the size of the memory from /proc/meminfo (``MemTotal:  263856496 kB``), or 0 if unknown."""
    match = re.search(r"^MemTotal:\s+(\d{1,15}) kB", meminfo, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _count(value: object) -> int:
    """Return a count from a node, or 0 if it is no count."""
    return value if isinstance(value, int) and value >= 0 else 0


def _tag(xml: str, name: str) -> str:
    """Return the text of the first XML element with the name, or "" if there is none or a placeholder."""
    match = re.search(rf"<{name}>([^<]{{1,100}})</{name}>", xml)
    text = sanitize(match[1], 60) if match else ""
    return "" if _FILLER.fullmatch(text) else text


def _first_version(text: str) -> str:
    """Return the first version number in a text, or ""."""
    match = _VERSION.search(text[:2000])
    return match[0][:60].rstrip(".,-") if match else ""


def _first_line(text: str) -> str:
    """Return the first line of a text that is not empty."""
    return sanitize(text.strip().partition("\n")[0], 100)

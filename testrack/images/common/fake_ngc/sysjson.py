"""Print this node in the fields of MLCommons' system description.

bin/mlperf-sysjson.sh of an image starts this program, and run.sub.in logs the line that it prints.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

ACCELERATOR = "stand-in, no GPU took part"
"""The name of the accelerator. With a real GPU's name, most logs would be impossible, because the fake
training needs seconds for what real GPUs train in minutes. STANDIN_ACCELERATOR is another name, for a
training that is slow enough."""


def first(path: str, key: str) -> str:
    """Return the value of the first line `key: value` of a file, or "" if there is none."""
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def main() -> int:
    """Print the description as one line of JSON."""
    memory = first("/proc/meminfo", "MemTotal").split()[0]
    fields = {
        "submitter": os.environ.get("MLPERF_SUBMITTER", "UNKNOWN_MLPERF_SUBMITTER"),
        "division": "closed",
        "status": os.environ.get("MLPERF_STATUS", "Available on-premise"),
        "system_name": os.environ.get("MLPERF_SYSTEM_NAME", "UNKNOWN_MLPERF_SYSTEM_NAME"),
        "number_of_nodes": os.environ.get("DGXNNODES", "1"),
        "host_processors_per_node": "1",
        "host_processor_model_name": first("/proc/cpuinfo", "model name"),
        "host_processor_core_count": str(os.cpu_count()),
        "host_processor_vcpu_count": "",
        "host_memory_capacity": f"{int(memory) / 1024**2:.1f} GB",
        "host_storage_type": "",
        "host_storage_capacity": "",
        "host_networking": "",
        "host_networking_topology": "",
        "host_memory_configuration": "",
        "accelerators_per_node": os.environ.get("DGXNGPU", ""),
        "accelerator_model_name": os.environ.get("STANDIN_ACCELERATOR") or ACCELERATOR,
        "accelerator_memory_capacity": "",
        "accelerator_interconnect": "",
        "cooling": "",
        "hw_notes": "fake image",
        "framework": "fake",
        "other_software_stack": {
            "python_version": platform.python_version(),
            "kernel_version": f"Linux {platform.release()}",
        },
        "operating_system": os.environ.get("MLPERF_HOST_OS", ""),
        "sw_notes": "",
    }
    print(json.dumps(fields, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

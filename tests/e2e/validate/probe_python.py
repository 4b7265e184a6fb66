"""Imitate an interpreter with PyTorch on a node: print the log of a probe, with the faults from a file.

In the tests of validate.yml and reimage.yml, this program runs the probes (validate_probe_python). The
environment names the node, its GPUs, and the file of faults, which has an object for each node with these
keys:

* a GPU's slot, with the value ``bits``: the GPU gives other bits in the training step;
* ``hang``: the program that takes 20 s longer;
* ``fabric``: whether an all-reduce with another node gives wrong values;
* ``speed``: a factor of the GPUs' speed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

program = Path(sys.argv[1]).name
if program == "-c":
    sys.exit(0)

from tests.jobs.validate.probes import line, log, measurement  # noqa: E402  (a check with -c does not need it)

node = os.environ["PROBED_NODE"]
faults = json.loads(Path(os.environ["PROBE_FAULTS"]).read_text()).get(node, {})
if faults.get("hang") == program:
    time.sleep(20)
uuids = os.environ["PROBED_GPUS"].split(",")
nodes = int(sys.argv[sys.argv.index("--nodes") + 1]) if "--nodes" in sys.argv else 1
if program == "probe_all_reduce.py" and nodes > 1:
    labels = {"size_bytes": "1073741824", "nodes": str(nodes)}
    wrong = measurement("wrong_values", float(bool(faults.get("fabric"))), "1", "lower", **labels)
    if sys.argv[sys.argv.index("--node-rank") + 1] == "0":
        print(log(measurement("fabric_busbw", 380.0, "GB/s", "higher", **labels), wrong))
    elif faults.get("fabric"):
        # The first node would report for all, but here, each node has only its own faults.
        print(wrong)
elif program == "probe_gemm.py":
    speeds = [
        measurement("gemm_best", 1900 * faults.get("speed", 1.0), "TFLOP/s", "higher", dtype="bf16", gpu=one)
        for one in uuids
    ]
    print(log(*speeds, *(measurement("wrong_values", 0, "1", "lower", gpu=one) for one in uuids)))
elif program == "probe_training_step.py":
    found = []
    for slot, one in enumerate(uuids):
        bits = "b" * 64 if faults.get(str(slot)) == "bits" else "a" * 64
        about = {"digest": bits, "loss": 1.0, "alike": "GB300, torch 2", "labels": {"gpu": one}}
        found.append(line("training_digest", about))
    print(log(*found))
else:
    sys.exit(f"nothing is known of {program}")

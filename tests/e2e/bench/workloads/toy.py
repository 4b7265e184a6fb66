"""Imitate a training for tests of bench.yml: write an MLPerf log, or misbehave as ``--mode`` requests.

The modes are ``good``, ``hang`` (no output any more), ``killed`` (by a signal), ``cut`` (a log without an
end), ``nan`` (the loss) and ``escape`` (control sequences in the log). Standard library only.
"""

import argparse
import json
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--mode", default="good")
parser.add_argument("--seconds", type=float, default=1)
parser.add_argument("--accuracy", type=float, default=0.99)
parser.add_argument("--speed", type=float, default=1000.0)
parser.add_argument("--gpus", default="0")
parser.add_argument("--started", default="", help="file that gets one line for each start")
options = parser.parse_args()
if options.started:
    with open(options.started, "a", encoding="ascii") as starts:
        starts.write("started\n")

if "TOY_TOKEN" in os.environ:
    print("the token has", len(os.environ["TOY_TOKEN"]), "characters", flush=True)

BEGUN_MS = int(time.time() * 1000)
elapsed_s = 0.0
"""The time in the log, which is the same in every run, because a test compares a table with a golden one."""


def log(key, value, event="POINT_IN_TIME", **metadata):
    """Write one MLLOG line."""
    line = {
        "namespace": "",
        "time_ms": BEGUN_MS + round(elapsed_s * 1000),
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": "toy.py", "lineno": 1, **metadata},
    }
    print(":::MLLOG", json.dumps(line), flush=True)


log("submission_benchmark", "toy")
log("seed", 1)
log("global_batch_size", 64)
log("init_start", None, "INTERVAL_START")
log("init_stop", None, "INTERVAL_END")
log("run_start", None, "INTERVAL_START")
if options.mode == "hang":
    time.sleep(600)
if options.mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if options.mode == "escape":
    print("\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>{{ lookup('pipe', 'id') }}", flush=True)
steps = max(1, int(options.seconds / 0.2))
for step in range(steps):
    time.sleep(options.seconds / steps)
    elapsed_s += options.seconds / steps
    loss = "NaN" if options.mode == "nan" and step == steps // 2 else 1 / (step + 1)
    log("tracked_stats", {"train_loss": loss, "throughput": options.speed}, step=step)
    log("progress", {"phase": "train", "step": step + 1, "steps": steps, "epoch": 1, "epochs": 1})
    if loss == "NaN":
        print("loss is nan", flush=True)
        log("run_stop", None, "INTERVAL_END", status="aborted")
        sys.exit(3)
if options.mode == "cut":
    sys.exit(0)
log("eval_accuracy", options.accuracy, epoch_num=1)
log(
    "measurement",
    {"name": "samples_per_second", "value": options.speed, "unit": "samples/s", "direction": "higher"},
)
log("run_stop", None, "INTERVAL_END", status="success")

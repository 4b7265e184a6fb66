"""Measure how long provision.yml takes on the test rack, in a first and a second run, and count its modules.

    make rack                                     # 18 nodes; or make rack NODES=4
    python tests/perf/provision.py [--limit gb300-rack] [--bare]

The program prints, for each run, its seconds, the number of changed hosts, and the module calls of each node
(fewest and most). It lists those of the first node in the second run, and prints the seconds of ``ansible
-m ping`` (median of five) with the ratio of the second run to it. With ``--bare``, the nodes and the Slurm
controller are made bare before the first run. The output of the runs goes to files beside ``--log``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def timed(command: list[str], **environment: str) -> tuple[float, str, int]:
    """Run a command, and return its seconds, output and exit status."""
    begin = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return time.monotonic() - begin, done.stdout, done.returncode


def main() -> int:
    """Run the measurements and print them. Return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--limit", default="gb300-rack", help="hosts to provision, as for ansible-playbook -l"
    )
    parser.add_argument(
        "--bare", action="store_true", help="first make the nodes and the Slurm controller bare"
    )
    parser.add_argument(
        "--log",
        type=Path,
        default=Path(tempfile.gettempdir()) / "provision.log",
        help="the output goes to this path, with the suffixes .first and .second",
    )
    given = parser.parse_args()
    listed = timed(["ansible", given.limit, "--list-hosts"])[1]
    nodes = re.findall(r"^\s{4}(\S+)$", listed, re.MULTILINE)
    if not nodes:
        raise SystemExit(f"--limit {given.limit} matches no host: {listed}")
    if given.bare:
        controllers = re.findall(
            r"^\s{4}(\S+)$", timed(["ansible", "slurm_controller", "--list-hosts"])[1], re.M
        )
        seconds, output, status = timed([sys.executable, "testrack/rack.py", "renew", *nodes, *controllers])
        if status:
            raise SystemExit(output)
        print(f"made bare: {len(nodes)} nodes and {', '.join(controllers)} in {seconds:.0f} s", flush=True)
    command = ["ansible-playbook", "provision.yml", "-l", given.limit]
    for ordinal in ("first", "second"):
        with tempfile.NamedTemporaryFile() as counted:
            seconds, output, status = timed(
                command,
                ANSIBLE_CALLBACK_PLUGINS=f"{ROOT}/plugins/callback:{ROOT}/tests/perf/callback_plugins",
                ANSIBLE_CALLBACKS_ENABLED="rackproof,module_calls,ansible.builtin.timer",
                MODULE_CALLS=counted.name,
            )
            calls = json.loads(Path(counted.name).read_text() or "{}")
        given.log.with_suffix(f".{ordinal}").write_text(output)
        recap = re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", output, re.M)
        changed = {host: int(count) for host, count in recap}
        counts = [len(calls.get(node, [])) for node in nodes]
        print(
            f"{ordinal} run: {seconds:.0f} s, exit {status}, changes on {sum(map(bool, changed.values()))} of"
            f" {len(changed)} hosts, module calls per node {min(counts)} to {max(counts)}"
            f" (controller {sum(len(c) for h, c in calls.items() if h not in nodes)})",
            flush=True,
        )
        if status:
            raise SystemExit(f"see {given.log.with_suffix(f'.{ordinal}')}")
    for call in calls.get(nodes[0], []):
        print(f"    {call}")
    pings = [timed(["ansible", given.limit, "-m", "ping"])[0] for _ in range(5)]
    ping = statistics.median(pings)
    print(f"ping: {ping:.2f} s (median of {', '.join(f'{one:.2f}' for one in pings)})")
    print(f"second run / ping: {seconds / ping:.1f} (goal: at most 40)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

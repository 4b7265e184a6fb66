"""Does bench.yml slow what it measures? The same training by hand and through the playbook, in turns.

    python tests/perf/throughput.py [--pairs 5] [--network mlp] [--epochs 30]

Needs `make runtimes` and staged data (run `make bench` once). Prints samples/s of each run and the ratio
playbook / hand pair by pair; alternating keeps a machine that grows slower from looking like a difference.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rackproof.logs import parse_path
from rackproof.results import iter_runs

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".rackproof"


def by_hand(network: str, epochs: int, folder: Path) -> float:
    """Return samples/s of a run started from the shell."""
    log = folder / "hand.log"
    with log.open("wb") as stream:
        subprocess.run(
            [
                HOME / "runtimes/torch/bin/python",
                ROOT / "workloads/mnist_torch.py",
                f"--data={HOME / 'data/mnist'}",
                f"--network={network}",
                f"--num-epochs={epochs}",
                "--gpus=0",
                "--until=epochs",
            ],
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=True,
        )
    measured = parse_path(log).measurement("samples_per_second")
    assert measured is not None
    return measured.value


def by_playbook(network: str, epochs: int, folder: Path) -> float:
    """Return samples/s of the same run made by bench.yml."""
    results = Path(tempfile.mkdtemp(dir=folder))
    parameters = {"gpus": 0, "num_epochs": epochs, "target": 0.5}
    subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            "bench.yml",
            *("-l", "localhost", "-e", f"benchmark=mnist-{network}"),
            *("-e", json.dumps({"bench_parameters": parameters, "bench_results": str(results)})),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (run,) = iter_runs(results)
    return next(one.value for one in run.measurements if one.name == "samples_per_second")


def main() -> None:
    """Run the pairs and print the figures."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--network", default="mlp", choices=["mlp", "lenet"])
    options.add_argument("--epochs", type=int, default=30)
    given = options.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(given.pairs):
            # Which goes first changes with every pair, so that neither has the warmer machine.
            order = [by_hand, by_playbook] if pair % 2 else [by_playbook, by_hand]
            speed = {way: way(given.network, given.epochs, Path(folder)) for way in order}
            ratios.append(speed[by_playbook] / speed[by_hand])
            print(
                f"pair {pair + 1}: by hand {speed[by_hand]:10.0f}  by playbook {speed[by_playbook]:10.0f}"
                f"  ratio {ratios[-1]:.4f}",
                flush=True,
            )
    print(f"median ratio {statistics.median(ratios):.4f} of {len(ratios)} pairs (at least 0.98 is wanted)")


if __name__ == "__main__":
    main()

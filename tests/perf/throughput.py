"""Compare the speed of a training started by hand with that of the same training through bench.yml.

    python tests/perf/throughput.py [--pairs 5] [--network mlp] [--epochs 30] [--gpus 1 --batch-size 2048]

The program shows whether bench.yml slows what it measures. It needs `make runtimes` and staged data (run
`make bench` once). On a node without network, name --python and --home. It prints the samples/s of each run,
and the ratio playbook / hand of each pair. The two run in turns, so that a machine which becomes slower does
not look like a difference.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rackproof.logs import parse_path
from rackproof.store.run_folder import iter_runs

ROOT = Path(__file__).resolve().parents[2]


def by_hand(given: argparse.Namespace, folder: Path) -> float:
    """Return samples/s of a run started from the shell."""
    log = folder / "hand.log"
    with log.open("wb") as stream:
        subprocess.run(
            [
                given.python or given.home / "runtimes/torch/bin/python",
                ROOT / "workloads/mnist_torch.py",
                f"--data={given.home / 'data/mnist'}",
                f"--network={given.network}",
                f"--num-epochs={given.epochs}",
                f"--batch-size={given.batch_size}",
                f"--gpus={given.gpus}",
                "--until=epochs",
            ],
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=True,
        )
    measured = parse_path(log).measurement("samples_per_second")
    assert measured is not None
    return measured.value


def by_playbook(given: argparse.Namespace, folder: Path) -> float:
    """Return samples/s of the same run made by bench.yml."""
    results = Path(tempfile.mkdtemp(dir=folder))
    variables = {
        "bench_home": str(given.home),
        "bench_results": str(results),
        "bench_pythons": {"torch": given.python} if given.python else {},
        "bench_parameters": {
            "gpus": given.gpus,
            "num_epochs": given.epochs,
            "batch_size": given.batch_size,
            "target": 0.5,
        },
    }
    subprocess.run(
        [
            shutil.which("ansible-playbook") or Path(sys.executable).with_name("ansible-playbook"),
            "bench.yml",
            *("-l", "localhost", "-e", f"benchmark=mnist-{given.network}", "-e", json.dumps(variables)),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (run,) = iter_runs(results)
    return next(one.value for one in run.measurements if one.name == "samples_per_second")


def main() -> None:
    """Run the pairs and print the figures."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--pairs", type=int, default=5)
    options.add_argument("--network", default="mlp", choices=["mlp", "lenet"])
    options.add_argument("--epochs", type=int, default=30)
    options.add_argument("--gpus", type=int, default=0)
    options.add_argument("--batch-size", type=int, default=128)
    options.add_argument("--python", default="", help="an interpreter with PyTorch")
    options.add_argument("--home", type=Path, default=ROOT / ".rackproof", help="bench_home of the node")
    given = options.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(given.pairs):
            # The order changes with every pair, so that neither always runs on the warmer machine.
            order = [by_hand, by_playbook] if pair % 2 else [by_playbook, by_hand]
            speed = {way: way(given, Path(folder)) for way in order}
            ratios.append(speed[by_playbook] / speed[by_hand])
            print(
                f"pair {pair + 1}: by hand {speed[by_hand]:10.0f}  by playbook {speed[by_playbook]:10.0f}"
                f"  ratio {ratios[-1]:.4f}",
                flush=True,
            )
    print(f"median ratio {statistics.median(ratios):.4f} of {len(ratios)} pairs (goal: at least 0.98)")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Fake of tf_cnn_benchmarks: a small real training that exchanges gradients, in the original's words.

Softmax regression on random images, standard library only. Ranks are Open MPI's; the first one adds up the
gradients of all over TCP, so that the network carries what a training's would. The rate is what was measured,
of all ranks together, as Horovod's is; the loss is the model's.
"""

from __future__ import annotations

import argparse
import array
import math
import os
import random
import socket
import sys
import time

PORT = 29431
FEATURES, CLASSES = 512, 10
WARM_UP = 2


def receive(connection: socket.socket, count: int) -> array.array:
    """Return so many doubles from a connection."""
    data = bytearray()
    while len(data) < count * 8:
        part = connection.recv(count * 8 - len(data))
        if not part:
            sys.exit("a rank is gone")
        data += part
    return array.array("d", bytes(data))


class Ring:
    """Adds up arrays over all ranks."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.others = rank, []
        first = os.environ.get("RACKPROOF_FIRST", "127.0.0.1")
        if count == 1:
            return
        if rank == 0:
            server = socket.create_server((first, PORT))
            self.others = [server.accept()[0] for _ in range(count - 1)]
            return
        deadline = time.monotonic() + 60
        while True:
            try:
                self.others = [socket.create_connection((first, PORT), timeout=60)]
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def sum(self, values: array.array) -> array.array:
        """Return the sum over all ranks."""
        if not self.others:
            return values
        if self.rank:
            self.others[0].sendall(values.tobytes())
            return receive(self.others[0], len(values))
        for one in self.others:
            for index, value in enumerate(receive(one, len(values))):
                values[index] += value
        for one in self.others:
            one.sendall(values.tobytes())
        return values


def step(weights: array.array, images: list[tuple[list[float], int]], ring: Ring, size: int) -> float:
    """Train on images; return the loss."""
    gradient = array.array("d", bytes(8 * len(weights)))
    loss = 0.0
    for pixels, label in images:
        scores = [
            sum(weights[one * FEATURES + index] * pixel for index, pixel in enumerate(pixels))
            for one in range(CLASSES)
        ]
        top = max(scores)
        shares = [math.exp(score - top) for score in scores]
        whole = sum(shares)
        loss -= math.log(shares[label] / whole)
        for one in range(CLASSES):
            error = shares[one] / whole - (one == label)
            for index, pixel in enumerate(pixels):
                gradient[one * FEATURES + index] += error * pixel
    for index, value in enumerate(ring.sum(gradient)):
        weights[index] -= 0.01 * value / len(images) / size
    return loss / len(images)


def main() -> None:
    """Train and say so."""
    arguments = argparse.ArgumentParser(description=__doc__)
    for name, kind, default in (
        ("model", str, "resnet50"),
        ("batch_size", int, 2),
        ("num_batches", int, 20),
        ("display_every", int, 10),
        ("variable_update", str, "horovod"),
        ("num_gpus", int, 1),
        ("device", str, "gpu"),
        ("data_format", str, "NCHW"),
    ):
        arguments.add_argument(f"--{name}", type=kind, default=default)
    options = arguments.parse_args()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    ring = Ring(rank, size)
    batch = options.batch_size
    print("TensorFlow:  1.15 (fake)")
    print(f"Model:       {options.model}\nDataset:     imagenet (synthetic)\nMode:        training")
    print(f"Batch size:  {batch * size} global\n             {batch} per device")
    print(f"Num batches: {options.num_batches}")
    print(
        f"Devices:     ['horovod/{options.device}:{rank}']"
        if size > 1
        else f"Devices:     ['/{options.device}:0']"
    )
    print(f"Data format: {options.data_format}\nOptimizer:   sgd\nVariables:   {options.variable_update}")
    print("==========\nRunning warm up", flush=True)
    chance = random.Random(rank)
    images = [([chance.random() for _ in range(FEATURES)], chance.randrange(CLASSES)) for _ in range(batch)]
    weights = array.array("d", bytes(8 * FEATURES * CLASSES))
    for _ in range(WARM_UP):
        step(weights, images, ring, size)
    print("Done warm up\nStep\tImg/sec\ttotal_loss", flush=True)
    started = at = time.perf_counter()
    done = 0
    for number in range(1, options.num_batches + 1):
        loss = step(weights, images, ring, size)
        if number == 1 or number % options.display_every == 0:
            now = time.perf_counter()
            rate = batch * size * (number - done) / (now - at)
            print(f"{number}\timages/sec: {rate:.1f} +/- 0.0 (jitter = 0.0)\t{loss:.3f}", flush=True)
            at, done = now, number
    # Ranks here share two cores: one that waits for one after its last step would time itself apart.
    took = ring.sum(array.array("d", [time.perf_counter() - started]))[0] / size
    total = batch * size * options.num_batches / took
    dashes = "-" * 64
    print(f"{dashes}\ntotal images/sec: {total:.2f}\n{dashes}", flush=True)


if __name__ == "__main__":
    main()

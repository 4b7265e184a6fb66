"""Time workloads/llm_torch.py and Hugging Face's Llama of the same shape on one GPU, one after the other.

    python tests/perf/prove_llm.py [--size 1b|8b] [--layers N] [--steps N] [--compile]

The program needs PyTorch, transformers and mlperf-logging in its Python. Nothing is downloaded, because
the weights of both are random. Both train in bf16 with fused AdamW. transformers trains with PyTorch's own
attention at the fastest batch size of 1, 2, 4 and 8 that fits, and llm_torch.py at its default. --compile
also times transformers' network under torch.compile, which takes a minute more. --cpu tries the program on a
processor. The exit status is 0 if llm_torch.py is at least 1.25 times as fast, or with --cpu, and 2 without
transformers.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKLOADS = Path(__file__).parents[2] / "workloads"
sys.path.insert(0, str(WORKLOADS))
WARM_UP_STEPS = 3


def time_ours(options: argparse.Namespace) -> float:
    """Return tokens/s of llm_torch.py.

    Raises:
        SystemExit: The program failed, or logged no tokens_per_second.
    """
    command = [sys.executable, str(WORKLOADS / "llm_torch.py"), "--gpus", str(int(not options.cpu))]
    command += ["--size", options.size, "--steps", str(options.steps)]
    command += ["--layers", str(options.layers)] if options.layers else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"llm_torch.py ended with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    rate: float | None = None
    for line in done.stdout.splitlines():
        if '"measurement"' in line:
            stated = json.loads(line.partition(":::MLLOG ")[2])["value"]
            print(f"ours: {stated['name']} {stated['value']:.6g} {stated['unit']} {stated['labels']}")
            if stated["name"] == "tokens_per_second":
                rate = float(stated["value"])
    if rate is None:
        raise SystemExit(f"llm_torch.py logged no tokens_per_second\n{done.stdout}\n{done.stderr}")
    return rate


def time_transformers(options: argparse.Namespace, batch: int, compiled: bool) -> float:
    """Return tokens/s of transformers at a batch size.

    Raises:
        torch.OutOfMemoryError: The batch does not fit into the GPU's memory.
        SystemExit: The number of parameters differs from that of llm_torch.py.
    """
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    shapes = importlib.import_module("llm_shapes")
    shape = shapes.shape_of(options.size, options.layers)
    sequence, device = (64, "cpu") if options.cpu else (4096, "cuda")
    config = transformers.LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        max_position_embeddings=sequence,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        network = transformers.LlamaForCausalLM(config).train()
    torch.set_default_dtype(torch.float32)
    parameters = sum(one.numel() for one in network.parameters())
    if parameters != shape.parameters:
        raise SystemExit(f"transformers' network has {parameters} parameters, ours {shape.parameters}")
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    model = torch.compile(network) if compiled else network
    tokens = torch.randint(shape.vocabulary, (batch, sequence), device=device)
    times = []
    for _ in range(WARM_UP_STEPS + options.steps):
        began = time.perf_counter()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not options.cpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return batch * sequence / statistics.median(times[WARM_UP_STEPS:])


def fastest_of_transformers(options: argparse.Namespace, compiled: bool) -> float:
    """Return the most tokens/s that transformers reaches at any batch size that fits."""
    torch: Any = importlib.import_module("torch")
    best = 0.0
    for batch in (1, 2, 4, 8):
        try:
            rate = time_transformers(options, batch, compiled)
        except torch.OutOfMemoryError:
            print(f"transformers: batch {batch} does not fit")
            break
        finally:
            if not options.cpu:
                gc.collect()
                torch.cuda.empty_cache()
        print(f"transformers: batch {batch}{' compiled' * compiled} {rate:.6g} tokens/s", flush=True)
        best = max(best, rate)
    return best


def main() -> int:
    """Time both programs, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="")
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    options.size = options.size or ("tiny" if options.cpu else "1b")
    try:
        version = importlib.import_module("transformers").__version__
    except ImportError as error:
        print(f"{sys.executable} has no transformers, so there is nothing to compare with: {error}")
        return 2
    ours = time_ours(options)
    theirs = max(
        fastest_of_transformers(options, compiled) for compiled in (False, True)[: 1 + options.compile]
    )
    print(f"{options.size}: ours {ours:.6g} tokens/s, transformers {version} {theirs:.6g} tokens/s")
    print(f"ratio {ours / theirs:.3f}")
    return int(ours < 1.25 * theirs and not options.cpu)


if __name__ == "__main__":
    sys.exit(main())

"""Compute the right words of ``sdc_kernels.cu``'s data paths on the CPU.

probe_sdc.py calls :func:`exact_words`, and compares the GPU's words with the result. Both need only integers
and IEEE arithmetic. A set is one seed of data. A path has the words of one block: 32 bits of each thread for
each set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import common

if common.IS_RANK:
    import torch

THREADS, STEPS, GROUP, SETS, RANDOM_SET, SLOTS = 256, 256, 8, 8, 4, 64
"""Constants as in ``sdc_kernels.cu``. Sets from ``RANDOM_SET`` on contain values of all bits."""
MASK = 0xFFFFFFFF
Words = Any
"""A tensor of int64 with shape (sets, 256). Its words have 32 bits and are never negative."""


def multiply(left: Words, right: int) -> Words:
    """Return the lower 32 bits of a product."""
    return (left * right) & MASK


def fold(digest: Words, word: Words) -> Words:
    """Return a digest with one more word in it."""
    digest = multiply(digest ^ word, 0x9E3779B1)
    return digest ^ (digest >> 15)


class Stream:
    """A generator of random words, with a stream for each of ``answers`` in each of ``sets``."""

    def __init__(self, sets: Words, answers: Words) -> None:
        state = multiply(sets, 0x9E3779B1) ^ ((multiply(answers, 0x85EBCA77) + 0xC2B2AE3D) & MASK)
        state = multiply(state ^ (state >> 15), 0x2C1B3C6D)
        self.state = state ^ (state >> 12)

    def draw(self) -> Words:
        """Return the next words."""
        self.state = (self.state * 1664525 + 1013904223) & MASK
        return self.state ^ (self.state >> 16)


def streams(sets: range) -> Stream:
    """Return a stream for each thread of a block, of each set."""
    return Stream(torch.tensor(list(sets)).unsqueeze(1), torch.arange(THREADS).unsqueeze(0))


def float_of(bits: Words) -> torch.Tensor:
    """Return the float32 with these bits as float64, which represents it exactly."""
    return bits.to(torch.int32).view(torch.float32).double()


def bits_of(value: torch.Tensor) -> Words:
    """Return the bits of values as float32."""
    return value.float().view(torch.int32).long() & MASK


def split(value: torch.Tensor) -> tuple[Words, Words]:
    """Return the lower and the upper word of float64."""
    bits = value.view(torch.int64)
    return bits & MASK, (bits >> 32) & MASK


def join(high: Words, low: Words) -> torch.Tensor:
    """Return the float64 of two words."""
    return ((high << 32) | low).view(torch.float64)


def two_sum(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rounded sum and its error, exactly (Knuth)."""
    total = left + right
    part = total - left
    return total, (left - (total - part)) + (right - part)


def two_product(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rounded product and its error, exactly (Dekker)."""

    def halves(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = value * 134217729.0
        upper = scaled - (scaled - value)
        return upper, value - upper

    product = left * right
    (a, b), (c, d) = halves(left), halves(right)
    return product, ((a * c - product) + a * d + b * c) + b * d


def to_odd(total: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return a sum rounded to odd. A later rounding to fewer bits is then right (Boldo and Melquiond)."""
    bits = total.view(torch.int64)
    even = (error != 0) & (bits % 2 == 0)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    return torch.where(even, bits + step, bits).view(torch.float64)


def fma32(left: torch.Tensor, right: torch.Tensor, plus: torch.Tensor) -> torch.Tensor:
    """Return ``left * right + plus`` of float32 values, rounded once to float32, as float64."""
    return to_odd(*two_sum(left * right, plus)).float().double()


def fma64(left: torch.Tensor, right: torch.Tensor, plus: torch.Tensor) -> torch.Tensor:
    """Return ``left * right + plus`` of float64 values, rounded once."""
    high, low = two_product(left, right)
    upper, lower = two_sum(plus, low)
    most, rest = two_sum(high, upper)
    return most + to_odd(*two_sum(lower, rest))


def unit(value: torch.Tensor) -> torch.Tensor:
    """Return values of float32 with their sign and fraction, and an exponent of 0."""
    return float_of((bits_of(value) & 0x807FFFFF) | 0x3F800000)


def unit64(high: Words, low: Words) -> torch.Tensor:
    """Return float64 with sign and fraction of the bits, and an exponent of 0."""
    return join((high & 0x800FFFFF) | 0x3FF00000, low)


def fp32(sets: range, steps: int = STEPS) -> Words:
    """Return the words of chains of FMAs in float32."""
    stream = streams(sets)
    digest = torch.zeros_like(stream.state)
    x, y = torch.full(digest.shape, 1.5).double(), torch.full(digest.shape, 1.25).double()
    for _ in range(steps):
        a = float_of((stream.draw() & 0x807FFFFF) | 0x3F800000)
        b = float_of((stream.draw() & 0x87FFFFFF) + (120 << 23))
        x = fma32(a, unit(x), b)
        y = fma32(unit(x), unit(y), a)
        digest = fold(fold(digest, bits_of(x)), bits_of(y))
    return digest


def fp64(sets: range, steps: int = STEPS) -> Words:
    """Return the words of chains of FMAs in float64."""
    stream = streams(sets)
    digest = torch.zeros_like(stream.state)
    x, y = torch.full(digest.shape, 1.5).double(), torch.full(digest.shape, 1.25).double()
    for _ in range(steps):
        r, q, t = stream.draw(), stream.draw(), stream.draw()
        a, b = unit64(r, q), join((t & 0x80FFFFFF) + (1016 << 20), r ^ q)
        x = fma64(a, unit64(*reversed(split(x))), b)
        y = fma64(unit64(*reversed(split(x))), unit64(*reversed(split(y))), a)
        for word in (*split(x), *split(y)):
            digest = fold(digest, word)
    return digest


def special(sets: range, steps: int = STEPS) -> Words:
    """Return the words of special functions on this processor, which differ from a GPU's."""
    stream = streams(sets)
    digest = torch.zeros_like(stream.state)
    functions = (torch.sin, torch.cos, torch.exp2), (torch.log2, torch.rsqrt, torch.reciprocal, torch.sqrt)
    for _ in range(steps):
        x = float_of((stream.draw() & 0x07FFFFFF) + (120 << 23)).float()
        y = float_of((stream.draw() & 0x807FFFFF) | 0x3F800000).float()
        for of, function in zip((y, x), functions, strict=True):
            for value in function:
                digest = fold(digest, bits_of(value(of)))
    return digest


def atomics(sets: range, steps: int = STEPS) -> Words:
    """Return the words of atomic sums and maxima of whole numbers, for which order does not matter."""
    stream = streams(sets)
    digest = torch.zeros_like(stream.state)
    thread = torch.arange(THREADS)
    for group in range(steps // 32):
        draws = [stream.draw() for _ in range(4)]
        slots = [((thread * 7 + at * 13 + group) % SLOTS).expand(digest.shape) for at in range(4)]
        slot, values = torch.cat(slots, 1), torch.cat(draws, 1)
        empty = torch.zeros(len(sets), SLOTS, dtype=torch.int64)
        total = empty.scatter_add(1, slot, values) & MASK
        most = empty.scatter_reduce(1, slot, values, "amax")
        real = bits_of(empty.scatter_add(1, slot, (values & 0xFFF) - 2048).double())
        wide = empty.scatter_add(1, slot, (values << 32) | multiply(values, 0x9E3779B1))
        words = (total, most, real, wide & MASK, (wide >> 32) & MASK)
        # The kernel computes the sums twice, in the memory of the SM and in the GPU's memory.
        for word in (*words, *words):
            digest = fold(digest, word[:, thread % SLOTS])
    return digest


@dataclass(frozen=True)
class Format:
    """A number format, as tensor cores take it.

    Args:
        in_register: The number of numbers in a register of 32 bits.
        whole: A function from random words to the integers in a register, for sets below ``RANDOM_SET``.
    """

    in_register: int
    whole: Callable[[Words], Words]


def bytes_of(words: Words, count: int) -> Words:
    """Return the numbers from -128 to 127 in the lower bytes of words, as a last dimension."""
    return torch.stack([((words >> 8 * at) & 0xFF) - 128 for at in range(count)], -1)


def signed(words: Words) -> Words:
    """Return the numbers from -7 to 7 in the four bytes of words, as a last dimension."""
    parts = [(words >> 8 * at) & 0xFF for at in range(4)]
    return torch.stack([torch.where(part >= 128, -(part & 7), part & 7) for part in parts], -1)


FORMATS = {
    "fp8": Format(4, signed),
    "bf16": Format(2, lambda words: bytes_of(words, 2)),
    "fp16": Format(2, lambda words: bytes_of(words, 2)),
    "tf32": Format(1, lambda words: bytes_of(words, 1)),
}


def left_matrix(of: Format, registers: list[Words]) -> torch.Tensor:
    """Return each warp's left matrix, (sets, warps, 16, K), of its lanes' four registers (PTX ISA, mma)."""
    each = of.in_register
    numbers = torch.stack([of.whole(register) for register in registers], -2)
    # The dimensions are sets, warps, row of eight, place in it, half of K, half of the rows, and number.
    numbers = numbers.view(-1, 8, 8, 4, 2, 2, each)
    return numbers.permute(0, 1, 5, 2, 4, 3, 6).reshape(-1, 8, 16, 8 * each).double()


def right_matrix(of: Format, registers: list[Words]) -> torch.Tensor:
    """Return the right matrix of all warps, (sets, 1, K, 8), of two registers of 32 lanes."""
    each = of.in_register
    numbers = torch.stack([of.whole(register) for register in registers], -2).view(-1, 8, 4, 2, each)
    return numbers.permute(0, 3, 2, 4, 1).reshape(-1, 1, 8 * each, 8).double()


def tensor(name: str, sets: range, steps: int = STEPS) -> Words:
    """Return the words of integer products on tensor cores, which are exact in any order."""
    of = FORMATS[name]
    stream = streams(sets)
    digest = torch.zeros_like(stream.state)
    numbers = torch.tensor(list(sets)).unsqueeze(1)
    for step in range(0, steps, GROUP):
        total = torch.zeros(len(sets), 8, 16, 8).double()
        for at in range(step, step + GROUP):
            left = left_matrix(of, [stream.draw() for _ in range(4)])
            other = Stream(numbers * STEPS + at + 0x10000, torch.arange(32).unsqueeze(0))
            total += left @ right_matrix(of, [other.draw() for _ in range(2)])
        # Rows are in halves of eight, and columns in pairs. A lane holds a pair of each half.
        lanes = total.view(len(sets), 8, 2, 8, 4, 2).permute(0, 1, 3, 4, 2, 5).reshape(len(sets), THREADS, 4)
        for at in range(4):
            digest = fold(digest, bits_of(lanes[..., at] + 0.0))
    return digest


PATHS: dict[str, Callable[[range, int], Words]] = {
    **{name: functools.partial(tensor, name) for name in FORMATS},
    "fp32": fp32,
    "fp64": fp64,
    "special": special,
    "atomics": atomics,
}


def exact_sets(path: str) -> int:
    """Return the number of sets, from the first on, whose right words a CPU can compute."""
    if path in FORMATS:
        return RANDOM_SET
    return 0 if path == "special" else SETS


def exact_words(path: str) -> list[bytes]:
    """Return the right words of each set for which a CPU can compute them."""
    sets = range(exact_sets(path))
    return bytes_of_blocks(PATHS[path](sets, STEPS)) if sets else []


def bytes_of_blocks(words: Words) -> list[bytes]:
    """Return the words of blocks, shape (blocks, 256), as bytes of each."""
    return [block.tobytes() for block in words.to(torch.int32).numpy()]

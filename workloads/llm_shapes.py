"""Set the sizes of Llama-shaped networks, and compute the cost of a token. No I/O.

Standard library only: the supervisor checks sizes before a framework is imported.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

LORA_RANK = 16
LORA_SCALE = 2.0


@dataclass(frozen=True)
class Shape:
    """A Llama-shaped network: RMSNorm, rotary positions, grouped queries, SwiGLU, a head of its own.

    Args:
        width: Of the residual stream.
        layers: Their number.
        heads: Of queries.
        groups: Heads of keys and values, each shared by some of queries.
        hidden: Width within the SwiGLU.
        vocabulary: Tokens that exist.
    """

    width: int
    layers: int
    heads: int
    groups: int
    hidden: int
    vocabulary: int

    @property
    def head_width(self) -> int:
        """Return the width of a head."""
        return self.width // self.heads

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Return inputs and outputs of the four products of a layer: qkv, out, gate and up, down."""
        qkv = (self.heads + 2 * self.groups) * self.head_width
        return (
            (self.width, qkv),
            (self.width, self.width),
            (self.width, 2 * self.hidden),
            (self.hidden, self.width),
        )

    @property
    def weights(self) -> int:
        """Return the weights that each token is multiplied with: of all layers and the head."""
        layer = sum(inputs * outputs for inputs, outputs in self.products)
        return self.layers * layer + self.width * self.vocabulary

    @property
    def adapters(self) -> int:
        """Return the weights of LoRA's adapters, two for each product of a layer."""
        return self.layers * LORA_RANK * sum(inputs + outputs for inputs, outputs in self.products)

    @property
    def parameters(self) -> int:
        """Return all weights: besides, the table of the embedding and the norms."""
        return self.weights + self.width * self.vocabulary + (2 * self.layers + 1) * self.width

    def flop_per_token(self, sequence: int, mode: str) -> float:
        """Return the operations that a token of a training step needs, whatever the program does.

        6 N (2 forward, 4 backward) for N weights, and 12 L d s / 2 for the attention of L layers of width d
        over sequences of s tokens; halved, for a token looks back only. The embedding is a table and costs
        nothing. With LoRA the N frozen weights have no gradients: 4 N, and 6 for each adapter's weight.
        Operations that are repeated to save memory count once.

        Args:
            sequence: Tokens of a sequence.
            mode: ``pretrain`` or ``lora``.
        """
        attention = 12.0 * self.layers * self.width * sequence / 2
        if mode == "lora":
            return 4.0 * self.weights + 6.0 * self.adapters + attention
        return 6.0 * self.weights + attention


SHAPES = {
    # For a CPU, in seconds.
    "tiny": Shape(64, 2, 4, 2, 128, 512),
    # TinyLlama's, 1.1 B (arXiv 2401.02385).
    "1b": Shape(2048, 22, 32, 4, 5632, 32000),
    # Llama 3's, 8.0 B (arXiv 2407.21783).
    "8b": Shape(4096, 32, 32, 8, 14336, 128256),
}


def shape_of(size: str, layers: int | None) -> Shape:
    """Return the shape of a size, with another number of layers where one is given.

    Raises:
        KeyError: There is no such size.
    """
    shape = SHAPES[size]
    return dataclasses.replace(shape, layers=layers) if layers else shape

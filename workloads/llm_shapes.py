"""Define the sizes of llm_torch.py's networks, and compute the cost of a token. No I/O.

Begin with :func:`shape_of`, which returns a :class:`Shape`. The module needs only the standard library,
because the supervisor checks sizes before a framework is imported.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

LORA_RANK = 16
"""Width between the two matrices of an adapter."""
LORA_SCALE = 2.0
"""Factor by which an adapter's product is multiplied."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-shaped network with RMSNorm, rotary positions, grouped queries, SwiGLU and a head.

    Args:
        width: The width of the residual stream.
        layers: The number of layers.
        heads: The number of query heads.
        groups: The number of heads of keys and values. Several query heads share each.
        hidden: The width within the SwiGLU.
        vocabulary: The number of different tokens.
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
        """Return inputs and outputs of a layer's four products, which are qkv, out, gate and up, and down."""
        qkv = (self.heads + 2 * self.groups) * self.head_width
        return (
            (self.width, qkv),
            (self.width, self.width),
            (self.width, 2 * self.hidden),
            (self.hidden, self.width),
        )

    @property
    def weights(self) -> int:
        """Return the number of weights that each token is multiplied with, in all layers and the head."""
        layer = sum(inputs * outputs for inputs, outputs in self.products)
        return self.layers * layer + self.width * self.vocabulary

    @property
    def adapters(self) -> int:
        """Return the number of weights in LoRA's adapters, which are two matrices for each product."""
        return self.layers * LORA_RANK * sum(inputs + outputs for inputs, outputs in self.products)

    @property
    def parameters(self) -> int:
        """Return the number of all weights, including the embedding and the norms."""
        return self.weights + self.width * self.vocabulary + (2 * self.layers + 1) * self.width

    def flop_per_token(self, sequence: int, mode: str) -> float:
        """Return the number of operations that a token of a training step needs.

        N weights need 6 N (2 forward, 4 backward). The attention of L layers of width d over sequences of s
        tokens needs 12 L d s / 2, halved because a token depends only on earlier ones. The embedding is a
        table and needs none. With LoRA, the N frozen weights get no gradients and need 4 N. Each weight of an
        adapter needs 6. Operations that are repeated to save memory count once.

        Args:
            sequence: The number of tokens in a sequence.
            mode: ``pretrain`` or ``lora``.
        """
        attention = 12.0 * self.layers * self.width * sequence / 2
        if mode == "lora":
            return 4.0 * self.weights + 6.0 * self.adapters + attention
        return 6.0 * self.weights + attention


SHAPES = {
    # A CPU trains this one in seconds.
    "tiny": Shape(64, 2, 4, 2, 128, 512),
    # The sizes of TinyLlama with 1.1 billion parameters (arXiv 2401.02385).
    "1b": Shape(2048, 22, 32, 4, 5632, 32000),
    # The sizes of Llama 3 with 8.0 billion parameters (arXiv 2407.21783).
    "8b": Shape(4096, 32, 32, 8, 14336, 128256),
}


def shape_of(size: str, layers: int | None) -> Shape:
    """Return the shape of a size, with another number of layers if one is given.

    Raises:
        KeyError: There is no such size.
    """
    shape = SHAPES[size]
    return dataclasses.replace(shape, layers=layers) if layers else shape

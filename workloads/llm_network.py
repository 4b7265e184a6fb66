"""Define the Llama-shaped network of llm_torch.py, with bf16 or fp8 products, LoRA, and a chunked loss.

Begin with :class:`Llama`. Its parameters are bf16. For a product in fp8, each matrix is scaled by its current
largest value (e4m3 forward, e5m2 for gradients). On a CPU, fp8 is emulated with products of the rounded
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from llm_shapes import LORA_RANK, LORA_SCALE, Shape
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVIATION = 0.02
"""Standard deviation of the first weights."""
ROPE_BASE = 500_000.0
"""Base of the frequencies of rotary positions."""
EPSILON = 1e-5
"""Number that the norms add to the mean square."""
LOSS_ROWS = 4096
"""Number of tokens whose logits are in memory at once."""
_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def to_fp8(values: Any, kind: torch.dtype) -> tuple[Any, Any]:
    """Return values as fp8, and the factor (float32, no dimension) by which they have to be multiplied."""
    highest = torch.finfo(kind).max
    factor = values.abs().amax().float().clamp(min=1e-12) / highest
    return (values.float() / factor).clamp(-highest, highest).to(kind), factor


def _multiply(left: Any, right: Any, left_factor: Any, right_factor: Any, fast: bool) -> Any:
    """Return the product of an M x K and a K x N matrix of fp8 in bf16.

    The right one is stored by columns.
    """
    if left.device.type == "cpu":
        return ((left.float() @ right.float()) * (left_factor * right_factor)).bfloat16()
    return torch._scaled_mm(
        left,
        right,
        scale_a=left_factor,
        scale_b=right_factor,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


def _by_columns(matrix: Any) -> Any:
    """Return the same matrix in column order, as the right side of a product needs it."""
    return matrix.t().contiguous().t()


class _Fp8Product(torch.autograd.Function):
    """``inputs @ weight.T`` in fp8. Only the forward product accumulates fast, as is usual in training."""

    @staticmethod
    def forward(ctx: Any, inputs: Any, weight: Any) -> Any:
        rows = inputs.reshape(-1, inputs.shape[-1])
        rows8, rows_factor = to_fp8(rows, _E4M3)
        weight8, weight_factor = to_fp8(weight, _E4M3)
        ctx.save_for_backward(rows8, weight8, rows_factor, weight_factor)
        out = _multiply(rows8, weight8.t(), rows_factor, weight_factor, fast=True)
        return out.reshape(*inputs.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Return the gradients of the inputs and, if needed, of the weight, computed in FP8."""
        rows8, weight8, rows_factor, weight_factor = ctx.saved_tensors
        flat = gradient.reshape(-1, gradient.shape[-1])
        flat8, flat_factor = to_fp8(flat, _E5M2)
        of_inputs = _multiply(flat8, _by_columns(weight8), flat_factor, weight_factor, fast=False)
        of_weight = None
        if ctx.needs_input_grad[1]:
            turned = flat8.t().contiguous()
            of_weight = _multiply(turned, _by_columns(rows8), flat_factor, rows_factor, fast=False)
        return of_inputs.reshape(*gradient.shape[:-1], weight8.shape[1]), of_weight


class Linear(nn.Module):
    """A product with a weight. With LoRA, the weight is frozen, and two thin matrices are trained instead."""

    def __init__(self, inputs: int, outputs: int, deviation: float, fp8: bool, lora: bool) -> None:
        super().__init__()
        self.fp8, self.lora = fp8, lora
        self.weight = nn.Parameter(torch.empty(outputs, inputs).normal_(0, deviation), requires_grad=not lora)
        if lora:
            self.down = nn.Parameter(torch.empty(LORA_RANK, inputs).normal_(0, inputs**-0.5))
            self.up = nn.Parameter(torch.zeros(outputs, LORA_RANK))

    def forward(self, inputs: Any) -> Any:
        """Return the product of ... x ``inputs`` values as ... x ``outputs``."""
        if self.fp8:
            product = _Fp8Product.apply(inputs, self.weight)
        else:
            product = functional.linear(inputs, self.weight)
        if self.lora:
            product = product + LORA_SCALE * functional.linear(functional.linear(inputs, self.down), self.up)
        return product


def _turned(values: Any, cosine: Any, sine: Any) -> Any:
    """Return queries or keys (batch x tokens x heads x width) with rotary positions."""
    first, second = values.float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return turned.to(values.dtype)


def attend(query: Any, key: Any, value: Any) -> Any:
    """Return each token's attention to itself and earlier tokens, as batch x tokens x heads x width."""
    attended = functional.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        is_causal=True,
        enable_gqa=key.shape[2] < query.shape[2],
    )
    return attended.transpose(1, 2)


class Block(nn.Module):
    """Attention and SwiGLU, each after a norm and with a residual connection."""

    def __init__(self, shape: Shape, fp8: bool, lora: bool) -> None:
        super().__init__()
        self.shape = shape
        ends = DEVIATION / math.sqrt(2 * shape.layers)
        deviations = (DEVIATION, ends, DEVIATION, ends)
        self.qkv, self.out, self.gate_up, self.down = (
            Linear(inputs, outputs, deviation, fp8, lora)
            for (inputs, outputs), deviation in zip(shape.products, deviations, strict=True)
        )
        self.norms = nn.ParameterList(
            nn.Parameter(torch.ones(shape.width), requires_grad=not lora) for _ in range(2)
        )

    def forward(self, stream: Any, cosine: Any, sine: Any) -> Any:
        """Return the residual stream (batch x tokens x width) behind this layer."""
        shape = self.shape
        batch, tokens, width = stream.shape
        normed = functional.rms_norm(stream, (width,), self.norms[0], EPSILON)
        parts = self.qkv(normed).view(batch, tokens, shape.heads + 2 * shape.groups, shape.head_width)
        query, key, value = parts.split((shape.heads, shape.groups, shape.groups), 2)
        attended = attend(_turned(query, cosine, sine), _turned(key, cosine, sine), value)
        attended = attended.reshape(batch, tokens, width)
        stream = stream + self.out(attended)
        normed = functional.rms_norm(stream, (width,), self.norms[1], EPSILON)
        gate, up = self.gate_up(normed).chunk(2, -1)
        return stream + self.down(functional.silu(gate) * up)


class Layer(nn.Module):
    """A block in the network. With ``recompute``, the backward pass computes it again, to save memory."""

    def __init__(self, block: nn.Module, recompute: bool) -> None:
        super().__init__()
        self.block, self.recompute = block, recompute

    def forward(self, stream: Any, cosine: Any, sine: Any) -> Any:
        """Return the block's output."""
        if self.recompute:
            return checkpoint(self.block, stream, cosine, sine, use_reentrant=False)
        return self.block(stream, cosine, sine)


def loss_and_gradient(logits: Any, targets: Any, tokens: int) -> tuple[Any, Any]:
    """Return the sum of the rows' losses over ``tokens`` (float32), and its gradient by the logits."""
    scores = logits.float()
    total = scores.logsumexp(-1, keepdim=True)
    right = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    loss = (total[:, 0] - (scores * right).sum(-1)).sum() / tokens
    return loss, (((scores - total).exp() - right.float()) / tokens).to(logits.dtype)


class _ChunkedLoss(torch.autograd.Function):
    """The mean cross-entropy of ``rows @ head.T``.

    The gradients are computed in the forward pass, in chunks, because all logits and their gradients at once
    would need more memory than the weights of a layer.
    """

    @staticmethod
    def forward(ctx: Any, rows: Any, head: Any, targets: Any, step: Any) -> Any:
        """Return the loss, computed by chunks of rows, and store the gradients for the backward pass."""
        of_rows = torch.empty_like(rows)
        of_head = torch.zeros_like(head) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), device=rows.device)
        for begin in range(0, rows.shape[0], LOSS_ROWS):
            chunk = slice(begin, begin + LOSS_ROWS)
            part, of_logits = step(rows[chunk] @ head.t(), targets[chunk], rows.shape[0])
            loss += part
            torch.mm(of_logits, head, out=of_rows[chunk])
            if of_head is not None:
                of_head.addmm_(of_logits.t(), rows[chunk])
        ctx.save_for_backward(of_rows, of_head)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        of_rows, of_head = ctx.saved_tensors
        return of_rows * gradient, None if of_head is None else of_head * gradient, None, None


class Llama(nn.Module):
    """The network, which returns the mean loss when called with tokens and the next tokens."""

    def __init__(
        self,
        shape: Shape,
        sequence: int,
        *,
        fp8: bool,
        lora: bool,
        finish: Callable[[nn.Module], nn.Module],
        loss_step: Callable[..., Any] = loss_and_gradient,
    ) -> None:
        """Make the network on the default device.

        Args:
            shape: The sizes of the network.
            sequence: The number of tokens in a sequence.
            fp8: Whether the products of the layers are in fp8. Products of adapters and the head are not.
            lora: Whether only adapters are trained.
            finish: A function that is called with each layer as soon as it exists, and returns the module
                that takes its place, such as a shard.
            loss_step: :func:`loss_and_gradient`, or its compiled form.
        """
        super().__init__()
        self.loss_step = loss_step
        size = (shape.vocabulary, shape.width)
        self.embedding = nn.Parameter(torch.empty(size).normal_(0, DEVIATION), requires_grad=not lora)
        self.layers = nn.ModuleList(finish(Block(shape, fp8, lora)) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width), requires_grad=not lora)
        self.head = nn.Parameter(torch.empty(size).normal_(0, DEVIATION), requires_grad=not lora)
        steps = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
        angles = torch.outer(torch.arange(sequence, dtype=torch.float32), ROPE_BASE**-steps)[:, None]
        # Do not register buffers. The values are the same on each rank, and DDP would send buffers with every
        # step.
        self.cosine, self.sine = angles.cos(), angles.sin()

    def forward(self, tokens: Any, targets: Any) -> Any:
        """Return the loss (float32) of batch x tokens."""
        stream = functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            stream = layer(stream, self.cosine, self.sine)
        rows = functional.rms_norm(stream, self.norm.shape, self.norm, EPSILON).flatten(0, 1)
        return _ChunkedLoss.apply(rows, self.head, targets.reshape(-1), self.loss_step)

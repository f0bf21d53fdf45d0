"""Linear layers in bf16 on a CPU, for any number of rows.

oneDNN, which computes bf16 products on CPUs, compiles a kernel for every new shape of a product. Without padding nearly
every batch has another number of tokens, and so has a masked language model of masked tokens: compilation then takes
several times as long as the products. Here the number of rows is rounded up, and the kernels are used again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stemma.network.module import TensorFunction

ROW_MULTIPLE = 64  # at most 63 rows of zeros; a batch of 2,000 to 4,000 tokens has one of 32 shapes


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """functional.linear; with autocast to bf16 on a CPU, rows of zeros are added for the product."""
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu") \
            or torch.get_autocast_dtype("cpu") != torch.bfloat16 or (x.numel() // x.shape[-1]) % ROW_MULTIPLE == 0:
        return functional.linear(x, weight, bias)
    return _RoundedLinear.apply(x, weight, bias)


def round_up(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def with_rounded_rows(x: Tensor) -> Tensor:
    """(N, width) -> (N rounded up, width) in bf16, with zeros at the end."""
    rounded = x.new_empty(round_up(len(x)), x.shape[1], dtype=torch.bfloat16)
    rounded[: len(x)] = x
    rounded[len(x):] = 0.0
    return rounded


class _RoundedLinear(TensorFunction):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, weight16 = x.numel() // x.shape[-1], weight.to(torch.bfloat16)
        rounded = with_rounded_rows(x.reshape(rows, -1))
        y = functional.linear(rounded, weight16, None if bias is None else bias.to(torch.bfloat16))
        ctx.save_for_backward(rounded, weight16)
        ctx.dtype, ctx.parameter_dtype, ctx.has_bias = x.dtype, weight.dtype, bias is not None
        return y[:rows].view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        rounded, weight = ctx.saved_tensors
        (gradient,) = grads
        rows = gradient.numel() // gradient.shape[-1]
        rounded_gradient = with_rounded_rows(gradient.reshape(rows, -1))
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = (rounded_gradient @ weight)[:rows].view(*gradient.shape[:-1], -1).to(ctx.dtype) if needs_x else None
        grad_weight = (rounded_gradient.T @ rounded).to(ctx.parameter_dtype) if needs_weight else None
        grad_bias = rounded_gradient.sum(0).to(ctx.parameter_dtype) if needs_bias else None
        return grad_x, grad_weight, grad_bias

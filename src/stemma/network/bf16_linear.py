"""Linear layers in bf16 on a CPU, for any number of rows.

oneDNN, which computes bf16 products on CPUs, compiles a kernel for every new shape of a product. Without padding nearly
every batch has another number of tokens, and so has a masked language model of masked tokens: compilation then takes
several times as long as the products. Here the number of rows is rounded up, and the kernels are used again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROW_MULTIPLE = 64  # at most 63 rows of zeros; a batch of 2,000 to 4,000 tokens has one of 32 shapes


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """functional.linear; with autocast to bf16 on a CPU, rows of zeros are added for the product."""
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu") \
            or torch.get_autocast_dtype("cpu") != torch.bfloat16 or (x.numel() // x.shape[-1]) % ROW_MULTIPLE == 0:
        return functional.linear(x, weight, bias)
    rows = x.numel() // x.shape[-1]
    padded = functional.pad(x.reshape(rows, -1).to(torch.bfloat16), (0, 0, 0, round_up(rows) - rows))
    return functional.linear(padded, weight, bias)[:rows].view(*x.shape[:-1], -1)


def round_up(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def with_rounded_rows(x: Tensor) -> Tensor:
    """(N, width) -> (N rounded up, width) in bf16, with zeros at the end."""
    rounded = x.new_empty(round_up(len(x)), x.shape[1], dtype=torch.bfloat16)
    rounded[: len(x)] = x
    rounded[len(x):] = 0.0
    return rounded

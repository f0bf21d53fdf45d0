"""Recurrence, convolution and attention: time of single layers of equal width over the length n and the width d.

Table 1 of arXiv:1706.03762 gives the operations of a layer, its sequential steps and the longest path between two
positions. It drops constants, and the projections of attention, which are n d^2 as in a recurrent layer. So three
things stand beside each other: the table, the exponents of the counted FLOPs on the same grid, and those of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stemma.device import choose_device
from stemma.errors import UserError, did_you_mean
from stemma.lab.timing import TimedPass, choose_clock, measure, num_threads, power_law
from stemma.network.attention.self_attention import SelfAttention
from stemma.network.convolution import SeparableConvolution
from stemma.network.initialization import Initializer
from stemma.network.inputs_outputs import LayerContext
from stemma.recipe_loading import recipe
from stemma.visibility import CompiledMask, SlidingWindow

HEAD_WIDTH = 64


@dataclass(frozen=True)
class LayerSizes:
    """Sizes that layers have besides length and width."""

    kernel: int = 3  # positions that a convolution reads
    window: int = 128  # positions that windowed attention reads, half of them on either side

    @property
    def side(self) -> int:
        return self.window // 2


@dataclass(frozen=True)
class LayerKind:
    """A layer with its row of the table, and its FLOPs as coefficients of n^2 d, n d^2 and n d. A multiplication and an
    addition are two FLOPs."""

    operations: str
    steps: str
    path: str
    coefficients: Callable[[LayerSizes, int], tuple[float, float, float]]  # of sizes and length
    build: Callable[[int, LayerSizes], nn.Module]

    def flops(self, length: int, width: int, sizes: LayerSizes) -> float:
        quadratic, matrices, local = self.coefficients(sizes, length)
        return quadratic * length**2 * width + matrices * length * width**2 + local * length * width


class _Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.lstm(x)[0]
        return output


class _Convolution(nn.Module):
    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return output


class _Separable(nn.Module):
    def __init__(self, width: int, kernel: int):
        super().__init__()
        initializer = Initializer(width**-0.5)
        self.convolution = SeparableConvolution(width, width, kernel, initializer, initializer)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x, LayerContext(CompiledMask()), "layer")


class _Attention(nn.Module):
    """Attention as in a block, with its four projections. `side`: positions on either side that it reads; None: all."""

    def __init__(self, width: int, side: int | None = None):
        super().__init__()
        changes = [f"network.width={width}", f"network.heads={num_heads(width)}",
                   "network.initialization.zero_output=false"]
        self.attention, self.side = SelfAttention(recipe("bert@tiny", changes).settings.network), side

    def forward(self, x: Tensor) -> Tensor:
        mask = CompiledMask()
        if self.side is not None and self.side < x.shape[1] - 1:
            mask = SlidingWindow(self.side, self.side).compile(x.shape[1], x.shape[1], x.device)
        return self.attention(x, LayerContext(mask))


class _CoreAttention(nn.Module):
    """Attention without projections: the n^2 d of the table alone."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (num_heads(x.shape[-1]), -1)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


def num_heads(width: int) -> int:
    return width // HEAD_WIDTH if width % HEAD_WIDTH == 0 else 1


LAYERS: dict[str, LayerKind] = {
    "lstm": LayerKind("n d^2", "n", "n", lambda sizes, length: (0, 16, 0),  # four gates with two matrices each
                      lambda width, sizes: _Recurrent(width)),
    "convolution": LayerKind("k n d^2", "1", "log_k n", lambda sizes, length: (0, 2 * sizes.kernel, 0),
                             lambda width, sizes: _Convolution(width, sizes.kernel)),
    "separable-convolution": LayerKind("k n d + n d^2", "1", "log_k n", lambda sizes, length: (0, 2, 2 * sizes.kernel),
                                       lambda width, sizes: _Separable(width, sizes.kernel)),
    # four projections; scores and the weighted sum
    "attention": LayerKind("n^2 d", "1", "1", lambda sizes, length: (4, 8, 0),
                           lambda width, sizes: _Attention(width)),
    "windowed-attention": LayerKind("r n d", "1", "n/r",
                                    lambda sizes, length: (0, 8, 4 * min(2 * sizes.side + 1, length)),
                                    lambda width, sizes: _Attention(width, sizes.side)),
    "core-attention": LayerKind("n^2 d", "1", "1", lambda sizes, length: (4, 0, 0),
                                lambda width, sizes: _CoreAttention()),
}
QUADRATIC, LINEAR = ("attention", "core-attention"), ("lstm", "convolution", "separable-convolution")


def layer_cost(layers: Sequence[str], widths: Sequence[int], lengths: Sequence[int], *, kernel: int = 3,
               window: int = 128, batch: int = 1, backward: bool = False, rounds: int = 5, minutes: float = 5.0,
               threads: int | None = None) -> dict[str, Any]:
    """Seconds, peak bytes and FLOPs of single layers, the exponents of length and width, and where attention becomes
    slower than each layer that is linear in the length.

        stemma.layer_cost(["lstm", "attention"], [64, 256], [64, 256, 1024])["crossings"]
    """
    lengths, widths, sizes = sorted(set(lengths)), sorted(set(widths)), LayerSizes(kernel, window)
    _check(layers, widths, lengths, sizes, batch)
    device = choose_device()
    with num_threads(threads) as used_threads, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        passes = [TimedPass((name, width), length, _pass(module, torch.randn(batch, length, width, device=device),
                                                         backward))
                  for name in dict.fromkeys(layers) for width in widths
                  for module in [LAYERS[name].build(width, sizes).to(device)] for length in lengths]
        clock = choose_clock(device)
        measured_rounds = measure(passes, rounds, minutes, clock)
    factor = batch * (3 if backward else 1)  # the backward pass has two products for each of the forward pass
    rows = [{"layer": timed.group[0], "width": timed.group[1], "length": timed.length, "seconds": timed.median_seconds,
             "bytes": timed.bytes, "range": [min(timed.seconds), max(timed.seconds)],
             "flops": factor * LAYERS[str(timed.group[0])].flops(timed.length, int(str(timed.group[1])), sizes)}
            for timed in passes if timed.left_out is None]
    return {"rows": rows, "exponents": {name: _exponents(rows, name) for name in dict.fromkeys(layers)},
            "theory": {name: {"operations": LAYERS[name].operations, "sequential_steps": LAYERS[name].steps,
                              "longest_path": LAYERS[name].path} for name in dict.fromkeys(layers)},
            "crossings": [crossing(rows, attention, other, width, sizes) for attention in QUADRATIC for other in LINEAR
                          for width in widths if attention in layers and other in layers],
            "left_out": [{"layer": timed.group[0], "width": timed.group[1], "length": timed.length,
                          "why": timed.left_out} for timed in passes if timed.left_out is not None],
            "kernel": kernel, "window": window, "batch": batch, "backward": backward, "rounds": measured_rounds,
            "threads": used_threads, "device": str(device), "clock": clock.name}


def _check(layers: Sequence[str], widths: Sequence[int], lengths: Sequence[int], sizes: LayerSizes, batch: int) -> None:
    unknown = [name for name in layers if name not in LAYERS]
    if unknown:
        raise UserError(f'no layer "{unknown[0]}".{did_you_mean(unknown[0], LAYERS)} Layers are {", ".join(LAYERS)}.')
    for name, values in (("--widths", widths), ("--lengths", lengths)):
        if not values or values[0] < 1:
            raise UserError(f"{name} must be numbers of 1 or more, such as 64,256,1024.")
    if sizes.kernel < 1 or sizes.kernel % 2 == 0 or sizes.window < 2 or batch < 1:
        raise UserError("--kernel must be odd, --window 2 or more, and --batch 1 or more.")


def _pass(module: nn.Module, x: Tensor, backward: bool) -> Callable[[], None]:
    """A function that runs the layer; with `backward` also the gradients of its weights and its input."""
    def forward() -> None:
        module.eval()
        with torch.inference_mode():
            module(x)

    def training() -> None:  # gradients add up in place, so they are no part of a pass's memory
        module.train()
        module(x).square().mean().backward()

    if backward:
        x.requires_grad_()
    return training if backward else forward


def _exponents(rows: Sequence[dict[str, Any]], name: str) -> dict[str, dict[str, float] | None]:
    """Exponents of length (n) and width (d): of the time, of the memory and of the counted FLOPs on the same grid."""
    chosen = [row for row in rows if row["layer"] == name]
    result: dict[str, dict[str, float] | None] = {}
    for measure_name in ("seconds", "bytes", "flops"):
        values = [row[measure_name] for row in chosen]
        fitted = None if None in values else power_law([(row["length"], row["width"]) for row in chosen], values)
        result[measure_name] = None if fitted is None else {"n": fitted[0], "d": fitted[1]}
    return result


def crossing(rows: Sequence[dict[str, Any]], attention: str, other: str, width: int,
             sizes: LayerSizes) -> dict[str, Any]:
    """The length from which attention is slower than the other layer: by time (between two measured lengths, on
    logarithmic axes), by counted FLOPs, and by the table (n = d, without constants). `faster`: the layer that is faster
    at every measured length, if there is no crossing."""
    times = {name: {row["length"]: row["seconds"] for row in rows if row["layer"] == name and row["width"] == width}
             for name in (attention, other)}
    lengths = sorted(times[attention].keys() & times[other].keys())
    gaps = [math.log(times[attention][length] / times[other][length]) for length in lengths]
    found = None  # the last crossing: noise may add some at short lengths
    for (first, second), (before, after) in zip(pairwise(lengths), pairwise(gaps), strict=True):
        if before < 0 <= after:
            found = first * (second / first) ** (-before / (after - before))
    faster = None if found is not None or not gaps else attention if gaps[-1] < 0 else other
    quadratic, matrices, _ = LAYERS[attention].coefficients(sizes, 1)
    _, other_matrices, other_local = LAYERS[other].coefficients(sizes, 1)
    by_flops = ((other_matrices - matrices) * width + other_local) / quadratic
    return {"attention": attention, "other": other, "width": width, "length": found, "faster": faster,
            "flops_length": by_flops if by_flops > 0 else None, "theory_length": width,
            "measured": [lengths[0], lengths[-1]] if lengths else None}

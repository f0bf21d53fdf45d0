"""Muon: momentum with orthogonalized updates (Jordan et al. 2024, kellerjordan.github.io).

All singular values of an update become about equal, so that rare directions are learned as fast as common ones. It is
for hidden matrices; embeddings, heads, norms and biases get AdamW steps in the same optimizer. torch.optim.Muon is not
used: it takes one matrix at a time and computes in bf16, which a processor without bf16 emulates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from stemma.training.optimizer_base import OptimizerBase

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the authors: singular values grow fast and end near 1, not at 1
MIN_NORM = 1e-7  # lower bound of the norm that a matrix is divided by
MAX_BATCH_ELEMENTS = 1 << 22  # of all matrices in one batch: larger batches cost memory and save no time
GRAM_ITERATIONS = 5  # iterations on Gram matrices alone: rounding errors grow 12-fold in each


class Muon(OptimizerBase):
    """A group with `parts` gets Muon steps: each of its parameters is a row-wise concatenation of that many matrices,
    orthogonalized separately. The other groups get AdamW steps.

    `scale` sets how the update size depends on the shape: "original" multiplies by sqrt(rows / columns) if that is
    above 1, "match_rms_adamw" gives it the usual root mean square of AdamW updates, 0.2 (arXiv:2502.16982, section
    2.2).
    """

    def __init__(self, groups: Iterable[dict[str, object]], lr: float, momentum: float = 0.95, nesterov: bool = True,
                 iterations: int = 5, scale: str = "original", betas: tuple[float, float] = (0.9, 0.95),
                 eps: float = 1e-8, weight_decay: float = 0.0, dtype: torch.dtype = torch.float32):
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "iterations": iterations, "scale": scale,
                    "betas": betas, "eps": eps, "weight_decay": weight_decay, "parts": None, "fused": True}
        super().__init__(groups, defaults)
        self.dtype = dtype  # of the matrix products; depends on the hardware

    def update_parameters(self) -> None:
        updates: list[MatrixUpdate] = []
        for group in self.param_groups:
            if group["parts"] is None:
                self._step_adamw(group)
            else:
                updates += self._updates(group)
        for batch in _batches(updates):
            _apply(batch, self.dtype)

    def _updates(self, group: dict[str, Any]) -> list[MatrixUpdate]:
        trained = [(p, parts) for p, parts in zip(group["params"], group["parts"], strict=True) if p.grad is not None]
        if not trained:
            return []
        parameters: list[Tensor] = [p for p, _ in trained]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        gradients: list[Tensor] = [p.grad for p, _ in trained]
        momenta = [self.state[p]["momentum"] for p in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        updates = []
        for (parameter, parts), direction in zip(trained, directions, strict=True):
            rows, columns = parameter.shape[0] // parts, parameter.shape[1]
            updates.append(MatrixUpdate(parameter.view(parts, rows, columns), direction.view(parts, rows, columns),
                                        group["lr"] * _scale_factor(group["scale"], rows, columns),
                                        group["iterations"]))
        return updates

    def _step_adamw(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        for parameter in parameters:
            if not (state := self.state[parameter]):
                state["step"] = torch.zeros((), device=parameter.device)  # where the fused kernel reads it
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["betas"]
        adamw(parameters, [p.grad for p in parameters], [s["exp_avg"] for s in states],
              [s["exp_avg_sq"] for s in states], [], [s["step"] for s in states], fused=True, amsgrad=False,
              beta1=beta1, beta2=beta2, lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"],
              maximize=False)


class MatrixUpdate(NamedTuple):
    """The update of one parameter before orthogonalization."""

    weight: Tensor  # (parts, rows, columns)
    direction: Tensor  # the same shape
    learning_rate: float
    iterations: int

    @property
    def is_tall(self) -> bool:
        return self.weight.shape[1] > self.weight.shape[2]


def _scale_factor(scale: str, rows: int, columns: int) -> float:
    return float(max(1.0, rows / columns) ** 0.5 if scale == "original" else 0.2 * max(rows, columns) ** 0.5)


def _batches(updates: Sequence[MatrixUpdate]) -> list[list[MatrixUpdate]]:
    """Updates of equal shape, up to transposition, in batches."""
    batches: dict[tuple[int, ...], list[list[MatrixUpdate]]] = {}
    for update in updates:
        rows, columns = sorted(update.weight.shape[1:])
        same_shape = batches.setdefault((rows, columns, update.iterations), [[]])
        size = sum(previous.weight.numel() for previous in same_shape[-1]) + update.weight.numel()
        if same_shape[-1] and size > MAX_BATCH_ELEMENTS:
            same_shape.append([])
        same_shape[-1].append(update)
    return [batch for same_shape in batches.values() for batch in same_shape]


def _apply(batch: Sequence[MatrixUpdate], dtype: torch.dtype) -> None:
    wide = torch.cat([u.direction.mT if u.is_tall else u.direction for u in batch])
    orthogonal = orthogonalize(wide.to(dtype), batch[0].iterations).to(wide.dtype)
    for update, change in zip(batch, torch.split(orthogonal, [len(u.weight) for u in batch]), strict=True):
        update.weight.add_(change.mT if update.is_tall else change, alpha=-update.learning_rate)


def orthogonalize(matrices: Tensor, iterations: int = 5) -> Tensor:
    """Newton-Schulz: about U V^T for each U S V^T, with singular values between 0.7 and 1.2.

    (N, rows, columns), rows <= columns: the Gram matrix of the rows is then the small one.
    """
    a, b, c = COEFFICIENTS
    rows, columns = matrices.shape[1:]
    x: Tensor = matrices / torch.linalg.matrix_norm(matrices, keepdim=True).clamp_(min=MIN_NORM)
    if columns >= 2 * rows and x.dtype == torch.float32:
        for first_iteration in range(0, iterations, GRAM_ITERATIONS):
            x = _by_gram_matrices(x, min(GRAM_ITERATIONS, iterations - first_iteration))
        return x
    for _ in range(iterations):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _by_gram_matrices(x: Tensor, iterations: int) -> Tensor:
    """The same iterations as products of small square matrices: x_k = P_k x, whose Gram matrix is P_k G P_k."""
    a, b, c = COEFFICIENTS
    gram = torch.bmm(x, x.mT)
    product: Tensor | None = None
    for remaining in reversed(range(iterations)):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        product = factor if product is None else torch.bmm(factor, product)
        if remaining:
            gram = torch.bmm(torch.bmm(factor, gram), factor)
    assert product is not None
    return torch.bmm(product, x)

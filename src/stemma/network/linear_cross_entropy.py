"""Cross-entropy over a large vocabulary without ever holding all the logits.

A row of logits is as long as the vocabulary, and torch's usual path keeps three such matrices (logits, log-softmax,
gradient). Here a block of rows is scored, turned into its gradient in place, multiplied back into the two small
results, and its buffer used again for the next block: the same numbers, memory for one block only, and no page faults.
The idea is that of Cut Your Losses (arXiv:2411.09009), in plain torch. On the way through, a token can be drawn for
each row from the very probabilities that are scored: the logits are never there a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

BLOCK_LOGITS = 24 * 1024 * 1024  # logits held at a time, 96 MiB in fp32: fewer make the products slower than they save
BUNDLE_COLUMNS = 256  # tokens whose probabilities are summed before one of them is looked for


class LMLossOutput(NamedTuple):
    loss: Tensor  # ()
    sampled: Tensor  # (N,) a token drawn for each place by its probability; empty where none was asked for
    correct: Tensor  # (N,) whether the likeliest token is the label; empty likewise


class _LinearCrossEntropy(torch.autograd.Function):
    if TYPE_CHECKING:
        @classmethod
        def apply(cls, *given: object) -> tuple[Tensor, Tensor, Tensor]: ...

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                denominator: float, smoothing: float, needs_gradient: bool, sample: bool) -> LMLossOutput:
        rows = max(1, BLOCK_LOGITS // weight.shape[0])
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        sampled = labels.new_empty(len(hidden) if sample else 0)
        right = torch.empty_like(sampled, dtype=torch.bool)
        grad_hidden = torch.empty_like(hidden) if needs_gradient else None
        filled = torch.empty_like if hidden.dtype == torch.float32 and len(hidden) else torch.zeros_like
        grad_table = filled(weight, dtype=torch.float32) if needs_gradient else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_gradient and bias is not None else None
        buffer = torch.empty(min(rows, len(hidden)), weight.shape[0], dtype=hidden.dtype, device=hidden.device)
        # The mean score of all tokens is that of the mean token: belief in all alike needs no pass over the logits.
        middle = weight.float().mean(0) if smoothing else weight.new_zeros(())
        for start in range(0, len(hidden), rows):
            part, wanted = hidden[start:start + rows], labels[start:start + rows, None]
            logits = torch.mm(part, weight.T, out=buffer[: len(part)])
            scores = logits.float()  # the buffer itself in fp32, a copy in bf16
            if bias is not None:
                scores.add_(bias.float())
            highest = scores.amax(1, keepdim=True)
            reached = scores.gather(1, wanted) - highest
            if smoothing:  # arXiv:1512.00567: a little belief in every token alike
                level = (part.float() @ middle[:, None]) + (0.0 if bias is None else bias.float().mean())
                reached = (1 - smoothing) * reached + smoothing * (level - highest)
            powers = scores.sub_(highest).exp_()  # from here on the buffer holds unnormalised probabilities
            if sample:
                right[start:start + rows] = (reached == 0)[:, 0]
                sampled[start:start + rows] = sample_columns(powers)
            norm = powers.sum(1, keepdim=True)
            loss += (norm.log() - reached).sum()
            if grad_hidden is None or grad_table is None:
                continue
            probabilities = powers.mul_(1.0 / (norm * denominator))
            probabilities.scatter_add_(1, wanted, torch.full_like(norm, (smoothing - 1.0) / denominator))
            if grad_bias is not None:
                grad_bias += probabilities.sum(0)
            error = probabilities.to(hidden.dtype)
            torch.mm(error, weight, out=grad_hidden[start:start + rows])
            if hidden.dtype != torch.float32:
                grad_table += error.T @ part
            else:  # the first block writes, the others add: the matrix is large, and clearing it is a pass of its own
                torch.addmm(grad_table, error.T, part, beta=float(start > 0), out=grad_table)
        if smoothing and grad_hidden is not None and grad_table is not None:
            grad_hidden -= (middle * (smoothing / denominator)).to(grad_hidden.dtype)
            grad_table -= hidden.float().sum(0) * (smoothing / (weight.shape[0] * denominator))
            if grad_bias is not None:
                grad_bias -= smoothing * len(hidden) / (weight.shape[0] * denominator)
        ctx.gradients = (grad_hidden, grad_table, grad_bias)
        ctx.mark_non_differentiable(sampled, right)
        return LMLossOutput(loss / denominator, sampled, right)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()  # scaled in place, so they serve one backward pass and no second
        scaled = (None if gradient is None else gradient.mul_(grads[0]) for gradient in gradients)
        return (*scaled, None, None, None, None, None)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, denominator: float,
                    smoothing: float = 0.0) -> Tensor:
    """Sum of -log softmax(hidden @ table.T + bias)[labels], divided by `total`; (N, D), (V, D), (V,), (N,) -> ().
    With `smoothing`, so much of the sum is the mean over the whole vocabulary instead."""
    return _loss_and_sample(hidden, weight, bias, labels, denominator, smoothing, sample=False).loss


def linear_cross_entropy_and_sample(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                                    denominator: float) -> LMLossOutput:
    """The same loss, and for every row a token drawn by its probability, through which no gradient flows."""
    return _loss_and_sample(hidden, weight, bias, labels, denominator, smoothing=0.0, sample=True)


def sample_columns(weights: Tensor) -> Tensor:
    """(N, V) weights, not negative -> (N,): the number of a column, drawn in proportion to its weight. First a bundle
    of columns is drawn by its sum, then one of its columns: one pass over the weights, one random number a row."""
    rows, columns = weights.shape
    whole = columns // BUNDLE_COLUMNS * BUNDLE_COLUMNS
    bundles = weights[:, :whole].unflatten(1, (columns // BUNDLE_COLUMNS, BUNDLE_COLUMNS)).sum(2)
    sums = torch.cat([bundles, weights[:, whole:].sum(1, keepdim=True)], 1)  # the last bundle is what is left over
    reached = sums.cumsum(1, dtype=torch.float64)  # in double: the last bundles are not lost to rounding
    wanted = torch.rand(rows, 1, dtype=torch.float64, device=weights.device) * reached[:, -1:]
    bundle = torch.searchsorted(reached, wanted, right=True).clamp_(max=reached.shape[1] - 1)
    wanted -= reached.gather(1, bundle) - sums.gather(1, bundle)
    column = bundle * BUNDLE_COLUMNS + torch.arange(BUNDLE_COLUMNS, device=weights.device)
    inside = weights.gather(1, column.clamp(max=columns - 1)).masked_fill_(column >= columns, 0.0)
    column_in_bundle = torch.searchsorted(inside.cumsum(1, dtype=torch.float64), wanted, right=True)
    return column.gather(1, column_in_bundle.clamp_(max=BUNDLE_COLUMNS - 1)).clamp_(max=columns - 1)[:, 0]


def _loss_and_sample(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, denominator: float,
                     smoothing: float,
            sample: bool) -> LMLossOutput:
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    sources = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in sources)
    return LMLossOutput(*_LinearCrossEntropy.apply(hidden, weight, bias, labels, denominator, smoothing,
                                                   needs_gradient, sample))

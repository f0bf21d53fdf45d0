"""Cross-entropy of a linear layer over a large vocabulary, without storing all logits.

torch stores three (N, vocabulary) matrices: logits, log-softmax and gradient. Here the logits of a block of rows are
computed, turned into their gradient in place, and multiplied into the gradients of hidden states and weight. The next
block reuses the buffer. The result is the same, with memory for one block only. The idea is that of Cut Your Losses
(arXiv:2411.09009), in plain torch. A token can be sampled for each row from the same probabilities, without computing
the logits again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

BLOCK_LOGITS = 24 * 1024 * 1024  # logits per block, 96 MiB in fp32; smaller blocks slow the matrix products down
BUNDLE_COLUMNS = 256  # columns per bundle in two-stage sampling


class LMLossOutput(NamedTuple):
    """Loss and samples of a language-modeling head."""

    loss: Tensor  # ()
    sampled: Tensor  # (N,) a token sampled from each row's distribution; empty without sampling
    correct: Tensor  # (N,) whether the most likely token is the label; empty without sampling


class _LinearCrossEntropy(torch.autograd.Function):
    if TYPE_CHECKING:
        @classmethod
        def apply(cls, *arguments: object) -> tuple[Tensor, Tensor, Tensor]: ...

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                denominator: float, smoothing: float, needs_gradient: bool, sample: bool) -> LMLossOutput:
        rows = max(1, BLOCK_LOGITS // weight.shape[0])
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        sampled = labels.new_empty(len(hidden) if sample else 0)
        correct = torch.empty_like(sampled, dtype=torch.bool)
        grad_hidden = torch.empty_like(hidden) if needs_gradient else None
        allocate = torch.empty_like if hidden.dtype == torch.float32 and len(hidden) else torch.zeros_like
        grad_weight = allocate(weight, dtype=torch.float32) if needs_gradient else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_gradient and bias is not None else None
        buffer = torch.empty(min(rows, len(hidden)), weight.shape[0], dtype=hidden.dtype, device=hidden.device)
        # the mean logit is the logit of the mean embedding: label smoothing needs no extra pass over the logits
        mean_weight = weight.float().mean(0) if smoothing else weight.new_zeros(())
        for start in range(0, len(hidden), rows):
            block, block_labels = hidden[start:start + rows], labels[start:start + rows, None]
            logits = torch.mm(block, weight.T, out=buffer[: len(block)])
            scores = logits.float()  # the buffer itself in fp32, a copy in bf16
            if bias is not None:
                scores.add_(bias.float())
            highest = scores.amax(1, keepdim=True)
            label_logit = scores.gather(1, block_labels) - highest
            if smoothing:  # arXiv:1512.00567
                mean_logit = (block.float() @ mean_weight[:, None]) + (0.0 if bias is None else bias.float().mean())
                label_logit = (1 - smoothing) * label_logit + smoothing * (mean_logit - highest)
            exponentials = scores.sub_(highest).exp_()  # from here on the buffer holds unnormalized probabilities
            if sample:
                correct[start:start + rows] = (label_logit == 0)[:, 0]
                sampled[start:start + rows] = sample_columns(exponentials)
            norm = exponentials.sum(1, keepdim=True)
            loss += (norm.log() - label_logit).sum()
            if grad_hidden is None or grad_weight is None:
                continue
            probabilities = exponentials.mul_(1.0 / (norm * denominator))
            probabilities.scatter_add_(1, block_labels, torch.full_like(norm, (smoothing - 1.0) / denominator))
            if grad_bias is not None:
                grad_bias += probabilities.sum(0)
            grad_logits = probabilities.to(hidden.dtype)
            torch.mm(grad_logits, weight, out=grad_hidden[start:start + rows])
            if hidden.dtype != torch.float32:
                grad_weight += grad_logits.T @ block
            else:  # the first block writes, the others add: zeroing a large matrix would be an extra pass
                torch.addmm(grad_weight, grad_logits.T, block, beta=float(start > 0), out=grad_weight)
        if smoothing and grad_hidden is not None and grad_weight is not None:
            grad_hidden -= (mean_weight * (smoothing / denominator)).to(grad_hidden.dtype)
            grad_weight -= hidden.float().sum(0) * (smoothing / (weight.shape[0] * denominator))
            if grad_bias is not None:
                grad_bias -= smoothing * len(hidden) / (weight.shape[0] * denominator)
        ctx.gradients = (grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(sampled, correct)
        return LMLossOutput(loss / denominator, sampled, correct)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()  # scaled in place: there can be one backward pass only
        scaled = (None if gradient is None else gradient.mul_(grads[0]) for gradient in gradients)
        return (*scaled, None, None, None, None, None)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, denominator: float,
                         smoothing: float = 0.0) -> Tensor:
    """Sum of -log softmax(hidden @ weight.T + bias)[labels], divided by `denominator`: (N, D), (V, D), (V,), (N,) -> ()

    `smoothing`: probability mass spread uniformly over the vocabulary (label smoothing)."""
    return _loss_and_sample(hidden, weight, bias, labels, denominator, smoothing, sample=False).loss


def linear_cross_entropy_and_sample(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                                    denominator: float) -> LMLossOutput:
    """The same loss, and for every row a token sampled from its distribution, without gradient."""
    return _loss_and_sample(hidden, weight, bias, labels, denominator, smoothing=0.0, sample=True)


def sample_columns(weights: Tensor) -> Tensor:
    """(N, V) non-negative weights -> (N,) column indices, sampled in proportion to the weights. First a bundle of
    columns is sampled by its sum, then a column in it: one pass over the weights and one random number per row."""
    rows, columns = weights.shape
    full_bundles_end = columns // BUNDLE_COLUMNS * BUNDLE_COLUMNS
    bundles = weights[:, :full_bundles_end].unflatten(1, (columns // BUNDLE_COLUMNS, BUNDLE_COLUMNS)).sum(2)
    sums = torch.cat([bundles, weights[:, full_bundles_end:].sum(1, keepdim=True)], 1)  # the last bundle is smaller
    cumulative = sums.cumsum(1, dtype=torch.float64)  # in double: the last bundles must not be lost to rounding
    point = torch.rand(rows, 1, dtype=torch.float64, device=weights.device) * cumulative[:, -1:]
    bundle = torch.searchsorted(cumulative, point, right=True).clamp_(max=cumulative.shape[1] - 1)
    point -= cumulative.gather(1, bundle) - sums.gather(1, bundle)
    column = bundle * BUNDLE_COLUMNS + torch.arange(BUNDLE_COLUMNS, device=weights.device)
    bundle_weights = weights.gather(1, column.clamp(max=columns - 1)).masked_fill_(column >= columns, 0.0)
    column_in_bundle = torch.searchsorted(bundle_weights.cumsum(1, dtype=torch.float64), point, right=True)
    return column.gather(1, column_in_bundle.clamp_(max=BUNDLE_COLUMNS - 1)).clamp_(max=columns - 1)[:, 0]


def _loss_and_sample(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, denominator: float,
                     smoothing: float, sample: bool) -> LMLossOutput:
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    sources = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in sources)
    return LMLossOutput(*_LinearCrossEntropy.apply(hidden, weight, bias, labels, denominator, smoothing,
                                                   needs_gradient, sample))

"""Cross-entropy of a linear layer over a large vocabulary, without storing all logits.

torch stores three (N, vocabulary) matrices: logits, log-softmax and gradient. Here the logits of a block of rows are
computed, turned into their gradient in place (on a CPU in chunks that stay in the cache), and multiplied into the
gradients of hidden states and weight. The next block reuses the buffer. The result is the same, with memory for one
block only. The idea is that of Cut Your Losses (arXiv:2411.09009), in plain torch. A token can be sampled for each row
from the same probabilities, without computing the logits again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from stemma.network.bf16_linear import round_up, with_rounded_rows

BLOCK_LOGITS = 24 * 1024 * 1024  # logits per block, 96 MiB in fp32; smaller blocks slow the matrix products down
CHUNK_LOGITS = 256 * 1024  # logits that are processed together on a CPU: 1 MiB in fp32, which stays in the cache
BUNDLE_COLUMNS = 256  # columns per bundle in two-stage sampling


class LMLossOutput(NamedTuple):
    """Loss and samples of a language-modeling head."""

    loss: Tensor  # ()
    sampled: Tensor  # (N,) a token sampled from each row's distribution; empty without sampling
    correct: Tensor  # (N,) whether the most likely token is the label; empty if only the loss is computed


class _LinearCrossEntropy(torch.autograd.Function):
    if TYPE_CHECKING:
        @classmethod
        def apply(cls, *arguments: object) -> tuple[Tensor, Tensor, Tensor]: ...

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                denominator: float | Tensor, smoothing: float, softcap: float | None, z_loss: float,
                needs_gradient: bool, sample: bool, find_correct: bool) -> LMLossOutput:
        rows = max(1, BLOCK_LOGITS // weight.shape[0])
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        sampled = labels.new_empty(len(hidden) if sample else 0)
        correct = torch.empty(len(hidden) if find_correct else 0, dtype=torch.bool, device=hidden.device)
        grad_hidden = torch.empty_like(hidden) if needs_gradient else None
        allocate = torch.empty_like if len(hidden) else torch.zeros_like
        grad_weight = allocate(weight, dtype=torch.float32) if needs_gradient else None
        weight = weight.to(hidden.dtype)
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_gradient and bias is not None else None
        rounds = hidden.dtype == torch.bfloat16 and hidden.device.type == "cpu"
        buffer_rows = round_up(min(rows, len(hidden))) if rounds else min(rows, len(hidden))
        buffer = torch.empty(buffer_rows, weight.shape[0], dtype=hidden.dtype, device=hidden.device)
        # the mean logit is the logit of the mean embedding: label smoothing needs no extra pass over the logits
        linear_smoothing = smoothing if softcap is None else 0.0
        mean_weight = weight.float().mean(0) if linear_smoothing else weight.new_zeros(())
        slope = None  # derivative of the capped logits
        bias32 = hidden.new_zeros(0) if bias is None else bias.float()
        chunk_rows = rows if hidden.device.type != "cpu" else max(1, CHUNK_LOGITS // weight.shape[0])
        for start in range(0, len(hidden), rows):
            block = hidden[start:start + rows]
            # in bf16 on a CPU rows of zeros are added (bf16_linear.py)
            product_input = with_rounded_rows(block) if rounds else block
            product = torch.mm(product_input, weight.T, out=buffer[: len(product_input)])
            for first in range(0, len(block), chunk_rows):
                chunk = slice(start + first, min(start + first + chunk_rows, start + len(block)))
                logits = product[first:first + chunk.stop - chunk.start]
                chunk_labels = labels[chunk, None]
                divisor = denominator[chunk, None] if isinstance(denominator, Tensor) else denominator
                scores = logits.float()  # the buffer itself in fp32, a copy in bf16
                if bias is not None:
                    scores.add_(bias32)
                if softcap is not None:
                    scores.div_(softcap).tanh_()
                    slope = 1.0 - scores.square() if needs_gradient else None
                    scores.mul_(softcap)
                highest = scores.amax(1, keepdim=True)
                label_logit = scores.gather(1, chunk_labels) - highest
                if smoothing:  # arXiv:1512.00567
                    mean_logit = scores.mean(1, keepdim=True) if softcap is not None else \
                        (hidden[chunk].float() @ mean_weight[:, None]) + (0.0 if bias is None else bias32.mean())
                    label_logit = (1 - smoothing) * label_logit + smoothing * (mean_logit - highest)
                exponentials = scores.sub_(highest).exp_()  # from here on `scores` holds unnormalized probabilities
                if find_correct:
                    correct[chunk] = (label_logit == 0)[:, 0]
                if sample:
                    sampled[chunk] = sample_columns(exponentials)
                norm = exponentials.sum(1, keepdim=True)
                log_norm = norm.log()
                losses, scale = log_norm - label_logit, 1.0 / (norm * divisor)
                if z_loss:  # z_loss x (log Z)^2, whose gradient is 2 x z_loss x log Z x probabilities
                    log_z = log_norm + highest
                    losses += z_loss * log_z.square()
                    scale *= 1 + 2 * z_loss * log_z
                loss += (losses / divisor if isinstance(divisor, Tensor) else losses).sum()
                if not needs_gradient:
                    continue
                probabilities = exponentials.mul_(scale)
                label_gradient = -1.0 / divisor if isinstance(divisor, Tensor) else \
                    torch.full_like(norm, (smoothing - 1.0) / divisor)
                probabilities.scatter_add_(1, chunk_labels, label_gradient)
                if slope is not None:
                    probabilities.sub_(smoothing / (weight.shape[0] * divisor)).mul_(slope)
                if grad_bias is not None:
                    grad_bias += probabilities.sum(0)
                if logits.dtype != torch.float32:
                    logits.copy_(probabilities)
            if grad_hidden is None or grad_weight is None:
                continue
            product[len(block):] = 0.0
            if rounds:
                grad_hidden[start:start + rows] = torch.mm(product, weight)[: len(block)]
            else:
                torch.mm(product, weight, out=grad_hidden[start:start + rows])
            # the first block writes, the others add: zeroing a large matrix would be an extra pass
            if hidden.dtype == torch.float32:
                torch.addmm(grad_weight, product.T, block, beta=float(start > 0), out=grad_weight)
            elif start:
                grad_weight += product.T @ product_input
            else:
                grad_weight.copy_(product.T @ product_input)
        if linear_smoothing and grad_hidden is not None and grad_weight is not None:
            grad_hidden -= (mean_weight * (smoothing / denominator)).to(grad_hidden.dtype)
            grad_weight -= hidden.float().sum(0) * (smoothing / (weight.shape[0] * denominator))
            if grad_bias is not None:
                grad_bias -= smoothing * len(hidden) / (weight.shape[0] * denominator)
        ctx.gradients = (grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(sampled, correct)
        total = loss if isinstance(denominator, Tensor) else loss / denominator
        return LMLossOutput(total, sampled, correct)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, ()  # scaled in place: there can be one backward pass only
        scaled = (None if gradient is None else gradient.mul_(grads[0]) for gradient in gradients)
        return (*scaled, *[None] * 8)


def linear_cross_entropy(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                         denominator: float | Tensor, smoothing: float = 0.0, softcap: float | None = None,
                         z_loss: float = 0.0) -> Tensor:
    """Sum of -log softmax(hidden @ weight.T + bias)[labels], divided by `denominator`: (N, D), (V, D), (V,), (N,) -> ()

    `smoothing`: probability mass spread uniformly over the vocabulary (label smoothing). `softcap` c: the logits are
    c tanh(logits / c). `z_loss`: coefficient of the squared log of the normalizer, which keeps the logits from
    drifting (arXiv:2204.02311, section 5). `denominator` may be (N,), one for each row, without smoothing."""
    assert not (smoothing and isinstance(denominator, Tensor)), "label smoothing has one denominator"
    return _loss_and_sample(hidden, weight, bias, labels, denominator, smoothing, softcap, z_loss).loss


def linear_cross_entropy_and_sample(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                                    denominator: float, softcap: float | None = None,
                                    z_loss: float = 0.0) -> LMLossOutput:
    """The same loss, and for every row a token sampled from its distribution, without gradient."""
    return _loss_and_sample(hidden, weight, bias, labels, denominator, 0.0, softcap, z_loss, sample=True,
                            find_correct=True)


def linear_cross_entropy_and_correct(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor,
                                     denominator: float, softcap: float | None = None,
                                     z_loss: float = 0.0) -> LMLossOutput:
    """The same loss, and for every row whether its most likely token is the label."""
    return _loss_and_sample(hidden, weight, bias, labels, denominator, 0.0, softcap, z_loss, find_correct=True)


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


def _loss_and_sample(hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, denominator: float | Tensor,
                     smoothing: float, softcap: float | None, z_loss: float, sample: bool = False,
                     find_correct: bool = False) -> LMLossOutput:
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden = hidden.to(dtype)
    sources = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in sources)
    return LMLossOutput(*_LinearCrossEntropy.apply(hidden, weight, bias, labels, denominator, smoothing, softcap,
                                                   z_loss, needs_gradient, sample, find_correct))

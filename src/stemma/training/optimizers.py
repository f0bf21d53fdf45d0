"""The optimizers: their settings, and how each is built from parameter groups.

`build_optimizer` makes the groups. Weight decay applies to matrices only, not to biases and norms (BERT,
arXiv:1810.04805). Each optimizer gets the groups, the learning rate, its settings and the precision of the run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from stemma import registry
from stemma.registry import register
from stemma.schema.base import BelowOne, NonNegative, Positive, constraint
from stemma.schema.training import OptimizerSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

logger = logging.getLogger(__name__)

ParameterGroups = list[dict[str, Any]]


class AdamWSettings(OptimizerSettings):
    """Adam with decoupled weight decay (arXiv:1711.05101)."""

    kind: Literal["adamw"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01


@register("optimizer", "adamw", AdamWSettings)
def adamw(groups: ParameterGroups, learning_rate: float, settings: AdamWSettings, precision: torch.dtype) -> Optimizer:
    from torch.optim import AdamW

    return AdamW(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay,
                 fused=True)


class AdamSettings(OptimizerSettings):
    kind: Literal["adam"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8


@register("optimizer", "adam", AdamSettings)
def adam(groups: ParameterGroups, learning_rate: float, settings: AdamSettings, precision: torch.dtype) -> Optimizer:
    from torch.optim import Adam

    return Adam(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, fused=True)


class AdagradSettings(OptimizerSettings):
    """Steps divided by the root of the sum of all squared gradients (Duchi et al. 2011)."""

    kind: Literal["adagrad"]
    accumulator: NonNegative = 0.0  # the sum of squared gradients starts here
    epsilon: Positive = 1e-10


@register("optimizer", "adagrad", AdagradSettings)
def adagrad(groups: ParameterGroups, learning_rate: float, settings: AdagradSettings,
            precision: torch.dtype) -> Optimizer:
    from torch.optim import Adagrad

    return Adagrad(groups, learning_rate, initial_accumulator_value=settings.accumulator, eps=settings.epsilon)


class SGDSettings(OptimizerSettings):
    """Stochastic gradient descent, the rule of recurrent language models."""

    kind: Literal["sgd"]
    momentum: BelowOne = 0.0
    weight_decay: NonNegative = 0.0  # added to the gradient, of matrices only


@register("optimizer", "sgd", SGDSettings)
def sgd(groups: ParameterGroups, learning_rate: float, settings: SGDSettings, precision: torch.dtype) -> Optimizer:
    from torch.optim import SGD

    return SGD(groups, learning_rate, settings.momentum, weight_decay=settings.weight_decay)


class LambSettings(OptimizerSettings):
    """Layer-wise adaptive learning rates for very large batches (arXiv:1904.00962)."""

    kind: Literal["lamb"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.01

    # As in the authors' code, vectors get plain AdamW steps: a bias starts at zero, and steps proportional to its norm
    # would keep it there.
    vector_options: ClassVar[Mapping[str, Any]] = {"adapt": False}


@register("optimizer", "lamb", LambSettings)
def lamb(groups: ParameterGroups, learning_rate: float, settings: LambSettings, precision: torch.dtype) -> Optimizer:
    from stemma.training.lamb import Lamb

    return Lamb(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay)


class AdamaxSettings(OptimizerSettings):
    """Adam with the largest recent gradient in place of the second moment (arXiv:1412.6980, section 7)."""

    kind: Literal["adamax"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0


@register("optimizer", "adamax", AdamaxSettings)
def adamax(groups: ParameterGroups, learning_rate: float, settings: AdamaxSettings,
           precision: torch.dtype) -> Optimizer:
    from torch.optim import Adamax

    return Adamax(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay)


class AdafactorSettings(OptimizerSettings):
    """Factored second moments: a row and a column per matrix (arXiv:1804.04235)."""

    kind: Literal["adafactor"]
    beta2_decay: Positive = 0.8
    epsilon: Positive = 1e-30  # added to squared gradients
    least_scale: Positive = 1e-3  # lower bound of the root mean square of a tensor
    clip: Positive = 1.0
    weight_decay: NonNegative = 0.0
    relative: bool = True  # learning rate relative to the root mean square of each tensor

    @property
    def has_relative_steps(self) -> bool:
        return self.relative


@register("optimizer", "adafactor", AdafactorSettings)
def adafactor(groups: ParameterGroups, learning_rate: float, settings: AdafactorSettings,
              precision: torch.dtype) -> Optimizer:
    from stemma.training.adafactor import Adafactor

    return Adafactor(groups, learning_rate, settings.beta2_decay, settings.clip,
                     (settings.epsilon, settings.least_scale), settings.weight_decay, settings.relative)


class StableAdamWSettings(OptimizerSettings):
    """AdamW with update clipping per tensor instead of gradient clipping (arXiv:2304.13013; ModernBERT)."""

    kind: Literal["stable_adamw"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.98
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.01


@register("optimizer", "stable_adamw", StableAdamWSettings)
def stable_adamw(groups: ParameterGroups, learning_rate: float, settings: StableAdamWSettings,
                 precision: torch.dtype) -> Optimizer:
    from stemma.training.stable_adamw import StableAdamW

    return StableAdamW(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                       settings.weight_decay)


class MuonSettings(OptimizerSettings):
    """Orthogonalized updates for hidden matrices, at training.learning_rate; AdamW for all other parameters."""

    kind: Literal["muon"]
    momentum: BelowOne = 0.95
    nesterov: bool = True
    iterations: Annotated[int, constraint(lambda n: 1 <= n <= 99, "must lie between 1 and 99")] = 5  # of Newton-Schulz
    scale: Literal["original", "match_rms_adamw"] = "original"  # sqrt(max(1, rows / columns)), learning rates about
    #                                                          0.02; or 0.2 sqrt(max(rows, columns)), those of AdamW
    adamw_learning_rate: Positive = 3e-4  # peak; same schedule as training.learning_rate
    embedding_learning_rate: Positive | None = None  # of token embeddings that are not tied to the LM head, which see a
    #                                                  few rows in a step; None = adamw_learning_rate
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01  # of all matrices

    groups_hidden_matrices: ClassVar[bool] = True
    size_keys: ClassVar[tuple[str, ...]] = ("weight_decay", "adamw_learning_rate", "embedding_learning_rate")

    @property
    def other_learning_rate(self) -> float:
        return self.adamw_learning_rate

    @property
    def lookup_learning_rate(self) -> float | None:
        return self.embedding_learning_rate


@register("optimizer", "muon", MuonSettings)
def muon(groups: ParameterGroups, learning_rate: float, settings: MuonSettings, precision: torch.dtype) -> Optimizer:
    from stemma.training.muon import Muon

    if not any("parts" in group for group in groups):
        logger.warning("Muon is for the matrices of hidden layers, and none of them is trained here: all parameters "
                       "get AdamW steps.")
    return Muon(groups, learning_rate, settings.momentum, settings.nesterov, settings.iterations, settings.scale,
                (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay,
                _product_dtype(precision, groups[0]["params"][0].device))


def _product_dtype(precision: torch.dtype, device: torch.device) -> torch.dtype:
    """bf16 if the run uses it and the hardware supports it natively, otherwise fp32."""
    import torch

    from stemma.training.hardware import resolve_precision

    return precision if resolve_precision("auto", device) == precision else torch.float32


# --- groups of parameters ---------------------------------------------------------------------------------------------


def build_optimizer(network: nn.Module, settings: OptimizerSettings, learning_rate: float,
                    lr_scales: Mapping[str, float] | None = None, precision: torch.dtype | None = None) -> Optimizer:
    """The optimizer over all trainable parameters (tied ones once): one group of matrices and one of vectors; with
    `lr_scales`, learning-rate factors by parameter name, two groups per factor."""
    import torch

    trainable = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    scales = [1.0] if lr_scales is None else sorted({lr_scales[name] for name, _ in trainable}, reverse=True)
    hidden = count_hidden_matrices(network) if settings.groups_hidden_matrices else {}
    groups: ParameterGroups = []
    for lr_scale in scales:
        same_scale = [parameter for name, parameter in trainable if lr_scales is None or lr_scales[name] == lr_scale]
        if settings.groups_hidden_matrices:
            groups += _hidden_matrix_group(same_scale, hidden, _group_values(learning_rate, lr_scale))
            same_scale = [p for p in same_scale if p not in hidden]
        if settings.lookup_learning_rate is not None:
            lookups = lookup_embeddings(network)
            values = _group_values(learning_rate, lr_scale * settings.lookup_learning_rate / learning_rate)
            groups += _groups([p for p in same_scale if p in lookups], values, settings)
            same_scale = [p for p in same_scale if p not in lookups]
        if settings.other_learning_rate is not None:
            lr_scale = lr_scale * settings.other_learning_rate / learning_rate
        groups += _groups(same_scale, _group_values(learning_rate, lr_scale), settings)
    optimizer: Optimizer = registry.get("optimizer", settings.kind).build(groups, learning_rate, settings,
                                                                          precision or torch.float32)
    return optimizer


def count_hidden_matrices(network: nn.Module) -> dict[Tensor, int]:
    """The weight matrices of the linear layers in all blocks, each with the number of matrices fused in it: query, key
    and value are one product and three matrices (`fused_matrices`, by name of the layer). Modules that are no blocks
    name their own (`hidden_matrices`)."""
    from torch import nn

    from stemma.network.block import Block

    counts: dict[Tensor, int] = {}
    for module in (part for block in network.modules() if isinstance(block, Block) for part in block.modules()):
        fused: dict[str, int] = getattr(module, "fused_matrices", {})
        counts |= {child.weight: fused.get(name, 1) for name, child in module.named_children()
                   if isinstance(child, nn.Linear)}
    for module in network.modules():
        named = module.named_parameters(recurse=False)
        own: dict[str, int] = getattr(module, "hidden_matrices", {})
        counts |= {parameter: own[name] for name, parameter in named if name in own}
    return counts


def lookup_embeddings(network: nn.Module) -> set[Tensor]:
    """The token embeddings that no LM head shares: only the rows of a step's tokens have a gradient."""
    from stemma.network.embedding import InputEmbedding
    from stemma.network.heads import LMHead

    modules = [*network.modules()]
    tied = {module.weight for module in modules if isinstance(module, LMHead)}
    lookups: set[Tensor] = {parameter for module in modules if isinstance(module, InputEmbedding)
                            for parameter in module.tokens.parameters()}
    return lookups - tied


def _group_values(learning_rate: float, lr_scale: float) -> dict[str, float]:
    return {} if lr_scale == 1.0 else {"share": lr_scale, "lr": learning_rate * lr_scale}


def _hidden_matrix_group(parameters: Sequence[Tensor], matrices: Mapping[Tensor, int],
                         values: Mapping[str, object]) -> ParameterGroups:
    """The group of hidden matrices, if there are any."""
    hidden = [p for p in parameters if p in matrices]
    return [{"params": hidden, "parts": [matrices[p] for p in hidden], **values}] if hidden else []


def _groups(parameters: Sequence[Tensor], values: Mapping[str, object], settings: OptimizerSettings) -> ParameterGroups:
    """A group of matrices and a group of vectors, without empty ones."""
    matrices = {"params": [p for p in parameters if p.ndim >= 2], **values}
    vectors = {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, **settings.vector_options,
               **values}
    return [group for group in (matrices, vectors) if group["params"]]


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """Set the learning rate of every group; called before every update."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("share", 1.0)

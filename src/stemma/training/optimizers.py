"""The kinds of optimizers: their settings, and how each is built from groups of parameters.

`build` makes the groups: weight decay pulls on matrices only, as a bias or a norm's gain has no reason to be near zero
(BERT, arXiv:1810.04805). A kind is called with the groups, the learning rate, its settings and the run's precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from stemma import registry
from stemma.errors import UserError
from stemma.registry import register
from stemma.schema.base import BelowOne, NonNegative, Positive, limit
from stemma.schema.training import OptimizerSettings

if TYPE_CHECKING:  # settings are read before torch is imported
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

Groups = list[dict[str, Any]]


class AdamW(OptimizerSettings):
    """Adam with decay outside the moments (arXiv:1711.05101)."""

    kind: Literal["adamw"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01


@register("optimizer", "adamw", AdamW)
def adamw(groups: Groups, learning_rate: float, settings: AdamW, precision: torch.dtype) -> Optimizer:
    from torch.optim import AdamW

    return AdamW(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay,
                 fused=True)


class Adam(OptimizerSettings):
    kind: Literal["adam"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8


@register("optimizer", "adam", Adam)
def adam(groups: Groups, learning_rate: float, settings: Adam, precision: torch.dtype) -> Optimizer:
    from torch.optim import Adam

    return Adam(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, fused=True)


class Lamb(OptimizerSettings):
    """Each layer moves in proportion to the size of its weights, for very large batches (arXiv:1904.00962)."""

    kind: Literal["lamb"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.01

    # As in the authors' code, vectors take plain steps: a bias starts at zero, and steps in proportion to its own size
    # would keep it there.
    vector_options: ClassVar[Mapping[str, Any]] = {"adapt": False}


@register("optimizer", "lamb", Lamb)
def lamb(groups: Groups, learning_rate: float, settings: Lamb, precision: torch.dtype) -> Optimizer:
    from stemma.training.lamb import Lamb

    return Lamb(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay)


class Adamax(OptimizerSettings):
    """Adam with the largest recent gradient in place of the second moment (arXiv:1412.6980, section 7)."""

    kind: Literal["adamax"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.0


@register("optimizer", "adamax", Adamax)
def adamax(groups: Groups, learning_rate: float, settings: Adamax, precision: torch.dtype) -> Optimizer:
    from torch.optim import Adamax

    return Adamax(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay)


class Adafactor(OptimizerSettings):
    """Second moments as a row and a column (arXiv:1804.04235)."""

    kind: Literal["adafactor"]
    beta2_decay: Positive = 0.8
    epsilon: Positive = 1e-30  # added to squared gradients
    least_scale: Positive = 1e-3  # the smallest size a tensor is taken to have
    clip: Positive = 1.0
    weight_decay: NonNegative = 0.0
    relative: bool = True  # the learning rate is a share of each tensor's own size


@register("optimizer", "adafactor", Adafactor)
def adafactor(groups: Groups, learning_rate: float, settings: Adafactor, precision: torch.dtype) -> Optimizer:
    from stemma.training.adafactor import Adafactor

    return Adafactor(groups, learning_rate, settings.beta2_decay, settings.clip,
                     (settings.epsilon, settings.least_scale), settings.weight_decay, settings.relative)


class StableAdamW(OptimizerSettings):
    """AdamW whose update is clipped tensor by tensor, in place of the gradient (arXiv:2304.13013; ModernBERT)."""

    kind: Literal["stable_adamw"]
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.98
    epsilon: Positive = 1e-6
    weight_decay: NonNegative = 0.01


@register("optimizer", "stable_adamw", StableAdamW)
def stable_adamw(groups: Groups, learning_rate: float, settings: StableAdamW, precision: torch.dtype) -> Optimizer:
    from stemma.training.stable_adamw import StableAdamW

    return StableAdamW(groups, learning_rate, (settings.beta1, settings.beta2), settings.epsilon,
                       settings.weight_decay)


class Muon(OptimizerSettings):
    """Orthogonalised updates for the hidden matrices, by training.learning_rate; AdamW for everything else."""

    kind: Literal["muon"]
    momentum: BelowOne = 0.95
    nesterov: bool = True
    iterations: Annotated[int, limit(lambda n: 1 <= n <= 99, "must lie between 1 and 99")] = 5  # of Newton-Schulz
    scale: Literal["original", "match_rms_adamw"] = "original"  # sqrt(max(1, rows / columns)), with rates about 0.02;
    #                                                  or 0.2 sqrt(max(rows, columns)), with those of AdamW
    adamw_learning_rate: Positive = 3e-4  # the highest; the schedule is that of training.learning_rate
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.95
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = 0.01  # of all matrices

    hidden_matrices: ClassVar[bool] = True
    size_keys: ClassVar[tuple[str, ...]] = ("weight_decay", "adamw_learning_rate")

    @property
    def other_learning_rate(self) -> float:
        return self.adamw_learning_rate


@register("optimizer", "muon", Muon)
def muon(groups: Groups, learning_rate: float, settings: Muon, precision: torch.dtype) -> Optimizer:
    from stemma.training.muon import Muon

    if not any("parts" in group for group in groups):
        raise UserError("training.optimizer.kind = muon is for the matrices of hidden layers, and none of them learns "
                        "here; take training.optimizer.kind=adamw or freeze fewer layers.")
    return Muon(groups, learning_rate, settings.momentum, settings.nesterov, settings.iterations, settings.scale,
                (settings.beta1, settings.beta2), settings.epsilon, settings.weight_decay,
                _fast(precision, groups[0]["params"][0].device))


def _fast(precision: torch.dtype, device: torch.device) -> torch.dtype:
    """For products that bear bf16: only where a run computes in it and the hardware does not imitate it."""
    import torch

    from stemma.training.precision import resolve_precision

    return precision if resolve_precision("auto", device) == precision else torch.float32


# --- groups of parameters ---------------------------------------------------------------------------------------------


def build_optimizer(network: nn.Module, settings: OptimizerSettings, learning_rate: float,
                    rates: Mapping[str, float] | None = None, precision: torch.dtype | None = None) -> Optimizer:
    """The optimizer over all trainable parameters (a tied one once): a group of matrices and one of vectors; with
    `rates`, a share of the learning rate for each parameter's name, two groups for each share."""
    import torch

    trainable = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    shares = [1.0] if rates is None else sorted({rates[name] for name, _ in trainable}, reverse=True)
    hidden = hidden_matrices(network) if settings.hidden_matrices else {}
    groups: Groups = []
    for share in shares:
        alike = [parameter for name, parameter in trainable if rates is None or rates[name] == share]
        if settings.hidden_matrices:
            groups += _hidden_group(alike, hidden, _at(learning_rate, share))
            alike = [p for p in alike if p not in hidden]
        if settings.other_learning_rate is not None:
            share = share * settings.other_learning_rate / learning_rate
        groups += _groups(alike, _at(learning_rate, share), settings)
    built: Optimizer = registry.get("optimizer", settings.kind).build(groups, learning_rate, settings,
                                                                      precision or torch.float32)
    return built


def hidden_matrices(network: nn.Module) -> dict[Tensor, int]:
    """The matrices of the linear maps in all blocks, each with how many stand in it, row upon row: query, key and value
    are one product and three matrices (`joined`, by name of the map)."""
    from torch import nn

    from stemma.network.block import Block

    found: dict[Tensor, int] = {}
    for module in (part for block in network.modules() if isinstance(block, Block) for part in block.modules()):
        joined: dict[str, int] = getattr(module, "joined", {})
        found |= {child.weight: joined.get(name, 1) for name, child in module.named_children()
                  if isinstance(child, nn.Linear)}
    return found


def _at(learning_rate: float, share: float) -> dict[str, float]:
    return {} if share == 1.0 else {"share": share, "lr": learning_rate * share}


def _hidden_group(parameters: Sequence[Tensor], hidden: Mapping[Tensor, int], values: Mapping[str, object]) -> Groups:
    """The matrices of the layers, if there are any."""
    chosen = [p for p in parameters if p in hidden]
    return [{"params": chosen, "parts": [hidden[p] for p in chosen], **values}] if chosen else []


def _groups(parameters: Sequence[Tensor], values: Mapping[str, object], settings: OptimizerSettings) -> Groups:
    """Matrices, and vectors; of either, if there are any."""
    matrices = {"params": [p for p in parameters if p.ndim >= 2], **values}
    vectors = {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, **settings.vector_options,
               **values}
    return [group for group in (matrices, vectors) if group["params"]]


def set_learning_rate(optimizer: Optimizer, value: float) -> None:
    """What the loop does before every update."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("share", 1.0)

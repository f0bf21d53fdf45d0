"""From a recipe to its objectives, and to a network with the heads that these need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma import registry
from stemma.errors import UserError
from stemma.recipe_loading import Recipe

if TYPE_CHECKING:
    from stemma.network.heads import HeadSpec
    from stemma.network.network import Network
    from stemma.objectives.base import Objective
    from stemma.text.tokenizer import Tokenizer


def build_objectives(recipe: Recipe) -> list[Objective]:
    return [registry.get("objective", settings.kind).build(name, settings)
            for name, settings in recipe.settings.objective.items()]


def head_specs(objectives: list[Objective]) -> dict[str, HeadSpec]:
    """Every head that the objectives ask for; two may share one if they mean the same."""
    heads: dict[str, HeadSpec] = {}
    for objective in objectives:
        for name, spec in objective.requirements().heads.items():
            if heads.setdefault(name, spec) != spec:
                raise UserError(f'objective "{objective.name}" needs another kind of head "{name}" than the objectives '
                                f"before it ({spec} against {heads[name]}); remove one of them from the recipe.")
    return heads


def build_network(recipe: Recipe, vocab_size: int | None = None, tokenizer: Tokenizer | None = None) -> Network:
    """The recipe's network with random weights and the heads that its objectives need; where there is a generator, what
    does not judge it belongs to it. `tokenizer`: of the text that it is to be trained on, where it is."""
    from stemma.network.memory_check import check_memory
    from stemma.network.network import Network

    settings, objectives = recipe.settings.network, build_objectives(recipe)
    size = vocab_size or recipe.settings.tokenizer.vocab_size
    check_memory(settings, size)
    if settings.generator is None:
        network = Network(settings, size, head_specs(objectives))
    else:
        judging, writing = ([one for one in objectives if one.settings.needs_generator is judges]
                            for judges in (True, False))
        network = Network(settings, size, head_specs(judging), generator_head_specs=head_specs(writing))
    if tokenizer is not None:
        network.start_inputs(tokenizer)
    return network

"""Build the objectives of a recipe, and a network with the heads that they need."""

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
    """All heads that the objectives require; objectives may share a head if they specify it alike."""
    heads: dict[str, HeadSpec] = {}
    for objective in objectives:
        for name, spec in objective.requirements().heads.items():
            if heads.setdefault(name, spec) != spec:
                raise UserError(f'objective "{objective.name}" needs another kind of head "{name}" than the objectives '
                                f"before it ({spec} against {heads[name]}); remove one of them from the recipe.")
    return heads


def build_network(recipe: Recipe, vocab_size: int | None = None, tokenizer: Tokenizer | None = None) -> Network:
    """The randomly initialized network of a recipe, with the heads of its objectives. With a generator, the objectives
    that do not need one (masked LM) have their heads there. `tokenizer`, if given, initializes the inputs."""
    from stemma.network.memory_check import check_memory
    from stemma.network.network import Network

    settings, objectives = recipe.settings.network, build_objectives(recipe)
    size = vocab_size or recipe.settings.tokenizer.vocab_size
    check_memory(settings, size)
    if settings.generator is None:
        network = Network(settings, size, head_specs(objectives))
    else:
        discriminator, generator = ([objective for objective in objectives
                                     if objective.settings.needs_generator is needed] for needed in (True, False))
        network = Network(settings, size, head_specs(discriminator), generator_head_specs=head_specs(generator))
    if tokenizer is not None:
        network.start_inputs(tokenizer)
    return network

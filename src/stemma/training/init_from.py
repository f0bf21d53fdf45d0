"""Starting from a finished model: its weights and its network under another recipe's objectives."""

from __future__ import annotations

import logging
from pathlib import Path

from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.exchange.load import find_generator, load, open_model, resolve_model_folder
from stemma.exchange.save import matching_family
from stemma.model import Model
from stemma.network.network import POOLER, Network
from stemma.objectives import build_network
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten
from stemma.training.weight_transfer import transfer_weights

logger = logging.getLogger(__name__)


def init_from_model(model_path: str, recipe: Recipe, corpus: Corpus) -> tuple[Recipe, Network]:
    """The weights of a finished model under this recipe's objectives; its sizes replace the recipe's."""
    model = open_model(model_path)
    theirs = model.tokenizer
    if theirs is not None and theirs.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(f"{model_path} and the corpus have different vocabularies ({theirs.vocab_size:,} and "
                        f"{corpus.tokenizer.vocab_size:,} tokens); build the corpus with `--tokenizer "
                        f"{resolve_model_folder(model_path)}`.")
    rows = model.network.vocab_size
    if theirs is not None and rows > theirs.vocab_size:  # a table with more rows than tokens, as many releases have
        recipe = recipe.with_changes({"tokenizer.vocab_size": rows}, Path(model_path).name)
    if rows != recipe.settings.tokenizer.vocab_size:
        raise UserError(f"{model_path} has {model.network.vocab_size:,} tokens and the corpus "
                        f"{corpus.tokenizer.vocab_size:,}; build the corpus with that model's tokenizer.")
    beside = None if recipe.settings.network.generator is None else find_generator(model_path)
    recipe = adopt_network_settings(recipe, model.recipe, Path(model_path).name, generator=beside is not None)
    network = build_network(recipe)
    weights = model.network.state_dict()
    network.start_inputs(corpus.tokenizer, weights)
    if beside is not None:
        weights |= {f"generator.{name}": tensor for name, tensor in load(beside).network.state_dict().items()}
    found = transfer_weights(weights, network, reinit_layers=recipe.settings.training.fresh)
    if new := sorted({".".join(name.split(".")[:2]) for name in found.missing_keys}):
        logger.warning(f"not in {model_path}, so started at random: {', '.join(new)}")
    if unused := sorted({".".join(name.split(".")[:2]) for name in found.unexpected_keys}):
        logger.warning(f"in {model_path} but not needed by {recipe.label}: {', '.join(unused)}")
    return recipe, network


def adopt_network_settings(recipe: Recipe, source_recipe: Recipe, origin: str, generator: bool = False) -> Recipe:
    """`wanted` with the network of the model it starts from, and with its generator where that is there; what the
    command line asks for must agree with it."""
    before, after = flatten(recipe.values["network"]), flatten(source_recipe.values["network"])
    after = {key: value for key, value in after.items() if generator or not key.startswith("generator.")}
    if generator:
        after.setdefault("generator.layers", None)  # as many as the network: said by leaving it out
    built = [(f"network.{key} = {before.get(key, 'none')}", f"{origin} has {after.get(key, 'none')}")
             for key in dict.fromkeys([*recipe.settings.network.collect_keys("structural_keys"),
                                       *source_recipe.settings.network.collect_keys("structural_keys")])
             if before.get(key) != after.get(key)]  # another size or epsilon is adopted from the model to start from
    if built and source_recipe.name != recipe.name:
        raise UserError(f"{origin} is a {source_recipe.title} and {recipe.label} is built differently, so its weights have no "
                        f"place in it; train it further as {source_recipe.name}, or start from another model", built)
    # may differ without touching a weight
    adjustable = [*recipe.settings.network.collect_keys("adjustable_keys")]
    adjustable += [] if after.get("embedding.tasks") else ["embedding.tasks"]  # new vectors beside those that are there
    changed = {key: value for key, value in after.items() if before.get(key) != value and key not in adjustable}
    fought = [(f"network.{key} = {before.get(key)}", f"{origin} has {value}") for key, value in changed.items()
              if recipe.origin.get(f"network.{key}") == "command line"]
    if fought:
        raise UserError(f"the network to start from ({origin}) is not the one you ask for", fought)
    if not changed:
        return recipe
    return recipe.with_changes({f"network.{key}": value for key, value in changed.items()}, origin)


def with_pooler(model: Model, start_path: str) -> Model:
    """The model with the pooler of the one it started from, where no task of this stage trained one: a fine-tune after
    this stage would otherwise begin with a random pooler, and one without this stage not. Left out where the family
    has no class with both."""
    family = matching_family(model)
    if family is None or frozenset({*model.network.head_specs, POOLER}) not in family.architectures \
            or POOLER in model.network.head_specs or model.recipe.settings.training.fresh:
        return model
    before = load(start_path).network
    if POOLER in before.head_specs:
        model.network.head_specs[POOLER] = before.head_specs[POOLER]
        model.network.heads[POOLER] = before.heads[POOLER]
    return model

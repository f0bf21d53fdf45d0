"""Initialize from a finished model: its weights and network with the objectives of another recipe."""

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
    """A network with the weights of a finished model and the heads of this recipe's objectives. The sizes of the model
    replace those of the recipe."""
    model = open_model(model_path)
    model_tokenizer = model.tokenizer
    if model_tokenizer is not None and model_tokenizer.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(f"{model_path} and the corpus have different vocabularies ({model_tokenizer.vocab_size:,} and "
                        f"{corpus.tokenizer.vocab_size:,} tokens); build the corpus with `--tokenizer "
                        f"{resolve_model_folder(model_path)}`.")
    model.require_hidden_states("start another run; count its text together with the new text instead")
    vocab_size = model.network.vocab_size
    if model_tokenizer is not None and vocab_size > model_tokenizer.vocab_size:  # many releases have unused rows
        recipe = recipe.with_changes({"tokenizer.vocab_size": vocab_size}, Path(model_path).name)
    if vocab_size != recipe.settings.tokenizer.vocab_size:
        raise UserError(f"{model_path} has {model.network.vocab_size:,} tokens and the corpus "
                        f"{corpus.tokenizer.vocab_size:,}; build the corpus with that model's tokenizer.")
    generator = None if recipe.settings.network.generator is None else find_generator(model_path)
    recipe = adopt_network_settings(recipe, model.recipe, Path(model_path).name, generator=generator is not None)
    network = build_network(recipe)
    weights = model.network.state_dict()
    network.start_inputs(corpus.tokenizer, weights)
    if generator is not None:
        weights |= {f"generator.{name}": tensor for name, tensor in load(generator).network.state_dict().items()}
    report = transfer_weights(weights, network, reinit_layers=recipe.settings.training.fresh)
    if missing := sorted({".".join(name.split(".")[:2]) for name in report.missing_keys}):
        logger.warning(f"not in {model_path}, so started at random: {', '.join(missing)}")
    if unused := sorted({".".join(name.split(".")[:2]) for name in report.unexpected_keys}):
        logger.warning(f"in {model_path} but not needed by {recipe.label}: {', '.join(unused)}")
    return recipe, network


def adopt_network_settings(recipe: Recipe, source_recipe: Recipe, origin: str, generator: bool = False) -> Recipe:
    """The recipe with the network settings of the model it starts from, and with its generator if there is one. Network
    settings from the command line must agree with them."""
    current, source = flatten(recipe.values["network"]), flatten(source_recipe.values["network"])
    source = {key: value for key, value in source.items() if generator or not key.startswith("generator.")}
    if generator:
        source.setdefault("generator.layers", None)  # absent: as many layers as the network
    different = [(f"network.{key} = {current.get(key, 'none')}", f"{origin} has {source.get(key, 'none')}")
                 for key in dict.fromkeys([*recipe.settings.network.collect_keys("structural_keys"),
                                           *source_recipe.settings.network.collect_keys("structural_keys")])
                 if current.get(key) != source.get(key)]  # sizes and epsilons are adopted from the model
    if different and source_recipe.name != recipe.name:
        raise UserError(f"{origin} is a {source_recipe.title} and {recipe.label} is built differently, so its weights "
                        f"do not fit; train it further as {source_recipe.name}, or start from another model", different)
    # may differ without affecting any weight
    adjustable = [*recipe.settings.network.collect_keys("adjustable_keys")]
    adjustable += [] if source.get("embedding.tasks") else ["embedding.tasks"]  # task embeddings may be added
    changed = {key: value for key, value in source.items() if current.get(key) != value and key not in adjustable}
    overridden = [(f"network.{key} = {current.get(key)}", f"{origin} has {value}") for key, value in changed.items()
                  if recipe.origin.get(f"network.{key}") == "command line"]
    if overridden:
        raise UserError(f"the network to start from ({origin}) is not the one you ask for", overridden)
    if not changed:
        return recipe
    return recipe.with_changes({f"network.{key}": value for key, value in changed.items()}, origin)


def with_pooler(model: Model, start_path: str) -> Model:
    """The model with the pooler of the model it started from, if no objective trained one: otherwise further
    pre-training would lose the pooler, and fine-tuning would start from a random one. Unchanged if the family has no
    architecture with both heads."""
    family = matching_family(model)
    if family is None or frozenset({*model.network.head_specs, POOLER}) not in family.architectures \
            or POOLER in model.network.head_specs or model.recipe.settings.training.fresh:
        return model
    source = load(start_path).network
    if POOLER in source.head_specs:
        model.network.head_specs[POOLER] = source.head_specs[POOLER]
        model.network.heads[POOLER] = source.heads[POOLER]
    return model

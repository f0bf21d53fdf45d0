"""Starting from a finished model: its weights and its network under another recipe's objectives."""

from __future__ import annotations

import logging
from pathlib import Path

from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.exchange.load import find_folder, generator_beside, load, open_model
from stemma.exchange.model import Model
from stemma.exchange.save import family_of
from stemma.lineage import Recipe
from stemma.network.network import POOLER, Network
from stemma.objectives import build_network
from stemma.schema.layers import flatten
from stemma.training.transplant import transplant

logger = logging.getLogger(__name__)


def start_from(where: str, wanted: Recipe, corpus: Corpus) -> tuple[Recipe, Network]:
    """The weights of a finished model under this recipe's objectives; its sizes replace the recipe's."""
    model = open_model(where)
    theirs = model.tokenizer
    if theirs is not None and theirs.fingerprint != corpus.tokenizer.fingerprint:
        raise UserError(f"{where} and the corpus have different vocabularies ({theirs.vocab_size:,} and "
                        f"{corpus.tokenizer.vocab_size:,} tokens); build the corpus with `--tokenizer "
                        f"{find_folder(where)}`.")
    rows = model.network.vocabulary
    if theirs is not None and rows > theirs.vocab_size:  # a table with more rows than tokens, as many releases have
        wanted = wanted.with_changes({"tokenizer.vocab_size": rows}, Path(where).name)
    if rows != wanted.settings.tokenizer.vocab_size:
        raise UserError(f"{where} has {model.network.vocabulary:,} tokens and the corpus "
                        f"{corpus.tokenizer.vocab_size:,}; build the corpus with that model's tokenizer.")
    beside = None if wanted.settings.network.generator is None else generator_beside(where)
    wanted = adopt_network(wanted, model.recipe, Path(where).name, generator=beside is not None)
    network = build_network(wanted)
    weights = model.network.state_dict()
    network.start_inputs(corpus.tokenizer, weights)
    if beside is not None:
        weights |= {f"generator.{name}": tensor for name, tensor in load(beside).network.state_dict().items()}
    found = transplant(weights, network, fresh=wanted.settings.training.fresh)
    if new := sorted({".".join(name.split(".")[:2]) for name in found.missing}):
        logger.warning(f"not in {where}, so started at random: {', '.join(new)}")
    if unused := sorted({".".join(name.split(".")[:2]) for name in found.unused}):
        logger.warning(f"in {where} but not needed by {wanted.label}: {', '.join(unused)}")
    return wanted, network


def adopt_network(wanted: Recipe, theirs: Recipe, origin: str, generator: bool = False) -> Recipe:
    """`wanted` with the network of the model it starts from, and with its generator where that is there; what the
    command line asks for must agree with it."""
    before, after = flatten(wanted.values["network"]), flatten(theirs.values["network"])
    after = {key: value for key, value in after.items() if generator or not key.startswith("generator.")}
    if generator:
        after.setdefault("generator.layers", None)  # as many as the network: said by leaving it out
    built = [(f"network.{key} = {before.get(key, 'none')}", f"{origin} has {after.get(key, 'none')}")
             for key in dict.fromkeys([*wanted.settings.network.stated("structural_keys"),
                                       *theirs.settings.network.stated("structural_keys")])
             if before.get(key) != after.get(key)]  # another size or epsilon is adopted from the model to start from
    if built and theirs.name != wanted.name:
        raise UserError(f"{origin} is a {theirs.title} and {wanted.label} is built differently, so its weights have no "
                        f"place in it; train it further as {theirs.name}, or start from another model", built)
    # may differ without touching a weight
    adjustable = [*wanted.settings.network.stated("adjustable_keys")]
    adjustable += [] if after.get("embedding.tasks") else ["embedding.tasks"]  # new vectors beside those that are there
    changed = {key: value for key, value in after.items() if before.get(key) != value and key not in adjustable}
    fought = [(f"network.{key} = {before.get(key)}", f"{origin} has {value}") for key, value in changed.items()
              if wanted.origin.get(f"network.{key}") == "command line"]
    if fought:
        raise UserError(f"the network to start from ({origin}) is not the one you ask for", fought)
    if not changed:
        return wanted
    return wanted.with_changes({f"network.{key}": value for key, value in changed.items()}, origin)


def with_pooler(model: Model, start: str) -> Model:
    """The model with the pooler of the one it started from, where no task of this stage trained one: a fine-tune after
    this stage would otherwise begin with a random pooler, and one without this stage not. Left out where the family
    has no class with both."""
    family = family_of(model)
    if family is None or frozenset({*model.network.specs, POOLER}) not in family.classes \
            or POOLER in model.network.specs or model.recipe.settings.training.fresh:
        return model
    before = load(start).network
    if POOLER in before.specs:
        model.network.specs[POOLER] = before.specs[POOLER]
        model.network.heads[POOLER] = before.heads[POOLER]
    return model

"""Writing a model: the layout and names that every tool reads, under a family's name only if it truly is one."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stemma import registry
from stemma.exchange import families
from stemma.exchange.cards import parts_of, stack_of, write_cards
from stemma.exchange.keys import to_theirs
from stemma.exchange.model import Model
from stemma.exchange.table import Family
from stemma.exchange.task_class import served_as
from stemma.exchange.weights import SAFE, write_weights
from stemma.files import folder_atomically, refuse_non_empty, write_checksums
from stemma.lineage import Recipe
from stemma.schema.layers import flatten

OWN_TYPE = "stemma"
RECIPE = "recipe.toml"
GENERATOR = "generator"  # the folder of it, below that of the network which learned from it


def family_of(model: Model) -> Family | None:
    """The family that this network is one of, in values, heads and tensors, with the class that answers its task; None:
    it is saved under our own name. Nobody over there answers several tasks with one body: more heads fit no class.
    Nor does anybody read two texts in both orders."""
    card = next(iter(model.answerable.values()), None)
    if card is not None and card.values.orders > 1:
        return None
    facts = (_values(model), _reading(model.recipe), model.network.specs, model.network.kept().keys())
    for family in _likely(model):
        told = family if card is None else family.answering(card.kind, card.name, card.heads, stack_of(card))
        if told is not None and told.fits(*facts):
            return told
    return None


def body_of(model: Model) -> Family | None:
    """The family that this network is one of, whatever heads it has."""
    names = {name for name in model.network.kept() if not name.startswith("heads.")}
    values, sees = _values(model), _reading(model.recipe)
    bodies = (replace(family, classes={**family.classes, frozenset(): ""}) for family in _likely(model))
    return next((family for family in bodies if family.fits(values, sees, {}, names)), None)


def _likely(model: Model) -> Iterator[Family]:
    """The families that a model may be one of, the likeliest first."""
    filler = None if model.tokenizer is None else model.tokenizer.roles.get("padding")
    # a body without a head, or with a common one, may be one of several: its recipe's own name goes first, then its
    # parent's
    line = [model.recipe.name, model.recipe.parent]
    ordered = sorted(families().values(),
                     key=lambda family: [*line, name := family.recipe.partition("@")[0]].index(name))
    yield from (family for family in ordered if filler is None or family.padding in (None, filler))


def _values(model: Model) -> dict[str, Any]:
    return {**flatten(model.recipe.values), "tokenizer.vocab_size": model.network.vocabulary}


def _reading(recipe: Recipe) -> set[str]:
    """The ways in which the objectives read; nobody over there reads a text from its end."""
    tasks = recipe.settings.objective.values()
    return {"backward" if getattr(task, "direction", None) == "backward" else task.visibility for task in tasks}


def save(model: Model, folder: str | Path, overwrite: bool = False) -> None:
    """Write a Hugging Face folder: config.json, model.safetensors, the tokenizer, and the recipe beside them. A
    network's generator lies in a folder of its own below, as a model that guesses tokens."""
    refuse_non_empty(Path(folder), overwrite)
    with folder_atomically(Path(folder), overwrite) as place:
        write_model(model, place)


def write_model(model: Model, place: Path) -> None:
    if model.network.generator is not None:
        (place / GENERATOR).mkdir()
        write_model(Model(_generator_recipe(model.recipe), model.tokenizer, model.network.generator), place / GENERATOR)
        write_checksums(place / GENERATOR)
    family = family_of(model)
    weights = model.network.kept()
    heads = list(model.network.heads)
    cards = model.answerable
    if family is None:
        config: dict[str, Any] = {"model_type": OWN_TYPE, "architectures": ["StemmaNetwork"], "heads": heads,
                                  "vocab_size": model.network.vocabulary, "network": model.recipe.values["network"]}
    else:
        bare = family.inside.issuperset(heads)
        weights = to_theirs(family.keys(heads, weights, bare), weights, model.recipe.settings.network.heads)
        weights |= {name: torch.zeros(1, model.network.vocabulary) for name in family.zeros}
        config = {"model_type": family.model_type, "architectures": [family.classes[frozenset(heads)]],
                  **family.config(_values(model))}
        for card in cards.values():
            config |= family.tasks[served_as(card.kind)].config(card)
    config["dtype"] = "float32"
    # said even where there is none: what a family takes for granted is a token of its published vocabulary
    roles = {} if model.tokenizer is None else model.tokenizer.roles
    config |= {"bos_token_id": roles.get("begin", roles.get("end")), "eos_token_id": roles.get("end")}
    corpus, network = model.recipe.settings.corpus, model.recipe.settings.network
    templates = {(card.single, card.pair) for card in cards.values()}  # of one task: its own
    single, pair = templates.pop() if len(templates) == 1 else (corpus.single, corpus.pair)
    if model.decodes:
        config |= {"decoder_start_token_id": roles.get(corpus.decoder_start), "forced_eos_token_id": None}
    if model.tokenizer is not None:
        config["pad_token_id"] = roles.get("padding")
        parted = network.embedding.segments > 0 or network.attention.segments
        single, pair = (_possible(template, roles, parted) for template in (single, pair))
        model.tokenizer.save(place, single, pair, network.longest)
    if family is not None:
        config |= {key: next((roles[role] for role in serving if role in roles), family.missing)
                   for key, serving in family.special.items()}
    if cards:
        write_cards(place, cards)
    write_weights(place / SAFE, weights)
    (place / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    layout = [] if family is None else [registry.get("family", family.model_type)]
    (place / RECIPE).write_text(model.recipe.to_toml([*layout, *parts_of(cards.values())]))


def _generator_recipe(recipe: Recipe) -> Recipe:
    """Of a generator by itself: its own sizes, and its own task."""
    own = recipe.settings.network.of_generator()
    sizes = {f"network.{key}": getattr(own, key) for key in ("layers", "width", "heads", "feedforward")}
    judging = [f"objective.{name}" for name, task in recipe.settings.objective.items() if task.needs_generator]
    return recipe.with_changes({**sizes, "network.embedding.width": own.embedding.width,
                                "remove": ["network.generator", *judging]}, origin=GENERATOR)


def _possible(template: str, roles: Container[str], parted: bool) -> str:
    """A layout without the special tokens that the tokenizer lacks (the first GPT's has hardly any), and without
    segments where the network knows none."""
    names = {slot: slot.partition(":")[0] for slot in template.split()}
    kept = [slot for slot in template.split() if names[slot] in roles or names[slot] in ("A", "B")]
    return " ".join(slot if parted else names[slot] for slot in kept)

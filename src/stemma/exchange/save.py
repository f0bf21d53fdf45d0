"""Writing a model: the layout and names that every tool reads, under a family's name only if it truly is one."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stemma import registry
from stemma.atomic_files import atomic_folder, check_output_path, write_checksums
from stemma.exchange import families
from stemma.exchange.family import Family
from stemma.exchange.hf_task_class import hf_kind
from stemma.exchange.tensor_map import to_hf
from stemma.exchange.weights import SAFETENSORS, write_weights
from stemma.model import Model
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten
from stemma.task_config import registered_parts, task_stack, write_task_configs

NATIVE_TYPE = "stemma"
RECIPE = "recipe.toml"
GENERATOR = "generator"  # the folder of it, below that of the network which learned from it


def matching_family(model: Model) -> Family | None:
    """The family that this network is one of, in values, heads and tensors, with the class that answers its task; None:
    it is saved under our own name. Nobody over there answers several tasks with one body: more heads fit no class.
    Nor does anybody read two texts in both orders."""
    card = next(iter(model.usable_tasks.values()), None)
    if card is not None and card.values.orders > 1:
        return None
    facts = (_flat_values(model), _visibility_kinds(model.recipe), model.network.head_specs,
             model.network.own_state_dict().keys())
    for family in _candidate_families(model):
        candidate = family if card is None else family.with_task_head(card.kind, card.name, card.heads,
                                                                      task_stack(card))
        if candidate is not None and candidate.matches(*facts):
            return candidate
    return None


def matching_body(model: Model) -> Family | None:
    """The family that this network is one of, whatever heads it has."""
    names = {name for name in model.network.own_state_dict() if not name.startswith("heads.")}
    values, visibility = _flat_values(model), _visibility_kinds(model.recipe)
    bodies = (replace(family, architectures={**family.architectures, frozenset(): ""})
              for family in _candidate_families(model))
    return next((family for family in bodies if family.matches(values, visibility, {}, names)), None)


def _candidate_families(model: Model) -> Iterator[Family]:
    """The families that a model may be one of, the likeliest first."""
    filler = None if model.tokenizer is None else model.tokenizer.special_token_ids.get("padding")
    # a body without a head, or with a common one, may be one of several: its recipe's own name goes first, then its
    # parent's
    line = [model.recipe.name, model.recipe.parent]
    ordered = sorted(families().values(),
                     key=lambda family: [*line, name := family.recipe.partition("@")[0]].index(name))
    yield from (family for family in ordered if filler is None or family.pad_token_id in (None, filler))


def _flat_values(model: Model) -> dict[str, Any]:
    return {**flatten(model.recipe.values), "tokenizer.vocab_size": model.network.vocab_size}


def _visibility_kinds(recipe: Recipe) -> set[str]:
    """The ways in which the objectives read; nobody over there reads a text from its end."""
    tasks = recipe.settings.objective.values()
    return {"backward" if getattr(task, "direction", None) == "backward" else task.attention_mask_kind
            for task in tasks}


def save(model: Model, folder: str | Path, overwrite: bool = False) -> None:
    """Write a Hugging Face folder: config.json, model.safetensors, the tokenizer, and the recipe beside them. A
    network's generator lies in a folder of its own below, as a model that guesses tokens."""
    check_output_path(Path(folder), overwrite)
    with atomic_folder(Path(folder), overwrite) as place:
        write_model(model, place)


def write_model(model: Model, folder: Path) -> None:
    if model.network.generator is not None:
        (folder / GENERATOR).mkdir()
        write_model(Model(_generator_recipe(model.recipe), model.tokenizer, model.network.generator),
                    folder / GENERATOR)
        write_checksums(folder / GENERATOR)
    family = matching_family(model)
    weights = model.network.own_state_dict()
    heads = list(model.network.heads)
    cards = model.usable_tasks
    if family is None:
        config: dict[str, Any] = {"model_type": NATIVE_TYPE, "architectures": ["StemmaNetwork"], "heads": heads,
                                  "vocab_size": model.network.vocab_size, "network": model.recipe.values["network"]}
    else:
        bare = family.body_heads.issuperset(heads)
        weights = to_hf(family.tensor_keys(heads, weights, bare), weights, model.recipe.settings.network.heads)
        weights |= {name: torch.zeros(1, model.network.vocab_size) for name in family.zero_tensors}
        config = {"model_type": family.model_type, "architectures": [family.architectures[frozenset(heads)]],
                  **family.to_hf_config(_flat_values(model))}
        for card in cards.values():
            config |= family.task_classes[hf_kind(card.kind)].hf_config(card)
    config["dtype"] = "float32"
    # said even where there is none: what a family takes for granted is a token of its published vocabulary
    roles = {} if model.tokenizer is None else model.tokenizer.special_token_ids
    config |= {"bos_token_id": roles.get("begin", roles.get("end")), "eos_token_id": roles.get("end")}
    corpus, network = model.recipe.settings.corpus, model.recipe.settings.network
    templates = {(card.single, card.pair) for card in cards.values()}  # of one task: its own
    single, pair = templates.pop() if len(templates) == 1 else (corpus.single, corpus.pair)
    if model.is_encoder_decoder:
        config |= {"decoder_start_token_id": roles.get(corpus.decoder_start), "forced_eos_token_id": None}
    if model.tokenizer is not None:
        config["pad_token_id"] = roles.get("padding")
        has_segments = network.embedding.segments > 0 or network.attention.segments
        single, pair = (_supported_template(template, roles, has_segments) for template in (single, pair))
        model.tokenizer.save(folder, single, pair, network.max_length)
    if family is not None:
        config |= {key: next((roles[role] for role in serving if role in roles), family.missing_token_id)
                   for key, serving in family.special_token_ids.items()}
    if cards:
        write_task_configs(folder, cards)
    write_weights(folder / SAFETENSORS, weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    layout = [] if family is None else [registry.get("family", family.model_type)]
    (folder / RECIPE).write_text(model.recipe.to_toml([*layout, *registered_parts(cards.values())]))


def _generator_recipe(recipe: Recipe) -> Recipe:
    """Of a generator by itself: its own sizes, and its own task."""
    own = recipe.settings.network.generator_network()
    sizes = {f"network.{key}": getattr(own, key) for key in ("layers", "width", "heads", "feedforward")}
    judging = [f"objective.{name}" for name, task in recipe.settings.objective.items() if task.needs_generator]
    return recipe.with_changes({**sizes, "network.embedding.width": own.embedding.width,
                                "remove": ["network.generator", *judging]}, origin=GENERATOR)


def _supported_template(template: str, roles: Container[str], has_segments: bool) -> str:
    """A layout without the special tokens that the tokenizer lacks (the first GPT's has hardly any), and without
    segments where the network knows none."""
    names = {slot: slot.partition(":")[0] for slot in template.split()}
    kept = [slot for slot in template.split() if names[slot] in roles or names[slot] in ("A", "B")]
    return " ".join(slot if has_segments else names[slot] for slot in kept)

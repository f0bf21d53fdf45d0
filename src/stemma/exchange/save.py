"""Save a model as a Hugging Face folder, with a family's model_type only if the network is exactly of that family."""

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
from stemma.pretraining_record import write_record
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten
from stemma.task_config import registered_parts, task_stack, write_task_configs

NATIVE_TYPE = "stemma"
RECIPE = "recipe.toml"
GENERATOR = "generator"  # the generator's folder, inside the discriminator's


def matching_family(model: Model) -> Family | None:
    """The family whose values, heads and tensors this network has, with the class of its task; None: it is saved with
    `model_type: stemma`. No Hugging Face class has several task heads, or reads pairs in both orders."""
    task_config = next(iter(model.usable_tasks.values()), None)
    if task_config is not None and task_config.values.orders > 1:
        return None
    properties = (_flat_values(model), _visibility_kinds(model.recipe), model.network.head_specs,
                  model.network.own_state_dict().keys())
    for family in _candidate_families(model):
        candidate = family if task_config is None else family.with_task_head(
            task_config.kind, task_config.name, task_config.heads, task_stack(task_config))
        if candidate is not None and candidate.matches(*properties):
            return candidate
    return None


def matching_body(model: Model) -> Family | None:
    """The family of this network's body, whatever its heads."""
    names = {name for name in model.network.own_state_dict() if not name.startswith("heads.")}
    values, visibility = _flat_values(model), _visibility_kinds(model.recipe)
    bodies = (replace(family, architectures={**family.architectures, frozenset(): ""})
              for family in _candidate_families(model))
    return next((family for family in bodies if family.matches(values, visibility, {}, names)), None)


def _candidate_families(model: Model) -> Iterator[Family]:
    """The families that a model may belong to, most likely first."""
    pad_id = None if model.tokenizer is None else model.tokenizer.special_token_ids.get("padding")
    # A body without heads may match several families: try that of its recipe first, then that of the parent.
    preferred = [model.recipe.name, model.recipe.parent]
    ordered = sorted(families().values(),
                     key=lambda family: [*preferred, name := family.recipe.partition("@")[0]].index(name))
    yield from (family for family in ordered if pad_id is None or family.pad_token_id in (None, pad_id))


def _flat_values(model: Model) -> dict[str, Any]:
    return {**flatten(model.recipe.values), "tokenizer.vocab_size": model.network.vocab_size}


def _visibility_kinds(recipe: Recipe) -> set[str]:
    """The attention-mask kinds of the objectives; "backward" matches no family."""
    tasks = recipe.settings.objective.values()
    return {"backward" if getattr(task, "direction", None) == "backward" else task.attention_mask_kind
            for task in tasks}


def save(model: Model, folder: str | Path, overwrite: bool = False) -> None:
    """Write a Hugging Face folder: config.json, model.safetensors, the tokenizer and the recipe. ELECTRA's generator is
    a model of its own in the folder generator/ below."""
    check_output_path(Path(folder), overwrite)
    with atomic_folder(Path(folder), overwrite) as new_folder:
        write_model(model, new_folder)


def write_model(model: Model, folder: Path) -> None:
    if model.network.generator is not None:
        (folder / GENERATOR).mkdir()
        write_model(Model(_generator_recipe(model.recipe), model.tokenizer, model.network.generator,
                          pretraining=model.pretraining), folder / GENERATOR)
        write_checksums(folder / GENERATOR)
    family = matching_family(model)
    weights = model.network.own_state_dict()
    heads = list(model.network.heads)
    task_configs = model.usable_tasks
    if family is None:
        config: dict[str, Any] = {"model_type": NATIVE_TYPE, "architectures": ["StemmaNetwork"], "heads": heads,
                                  "vocab_size": model.network.vocab_size, "network": model.recipe.values["network"]}
    else:
        bare = family.body_heads.issuperset(heads)
        weights = to_hf(family.tensor_keys(heads, weights, bare), weights, model.recipe.settings.network.heads)
        weights |= {name: torch.zeros(1, model.network.vocab_size) for name in family.zero_tensors}
        config = {"model_type": family.model_type, "architectures": [family.architectures[frozenset(heads)]],
                  **family.to_hf_config(_flat_values(model))}
        for task_config in task_configs.values():
            config |= family.task_classes[hf_kind(task_config.kind)].hf_config(task_config)
    config["dtype"] = "float32"
    # Written even if there is no such token: the family's default is an id of its published vocabulary.
    special = {} if model.tokenizer is None else model.tokenizer.special_token_ids
    config |= {"bos_token_id": special.get("begin", special.get("end")), "eos_token_id": special.get("end")}
    corpus, network = model.recipe.settings.corpus, model.recipe.settings.network
    templates = {(task_config.single, task_config.pair) for task_config in task_configs.values()}
    single, pair = templates.pop() if len(templates) == 1 else (corpus.single, corpus.pair)
    if model.is_encoder_decoder:
        config |= {"decoder_start_token_id": special.get(corpus.decoder_start), "forced_eos_token_id": None}
    if model.tokenizer is not None:
        config["pad_token_id"] = special.get("padding")
        has_segments = network.embedding.segments > 0 or network.attention.segments
        single, pair = (_supported_template(template, special, has_segments) for template in (single, pair))
        model.tokenizer.save(folder, single, pair, network.max_length)
    if family is not None:
        config |= {key: next((special[name] for name in names if name in special), family.missing_token_id)
                   for key, names in family.special_token_ids.items()}
    if task_configs:
        write_task_configs(folder, task_configs)
    write_record(folder, model.pretraining)
    write_weights(folder / SAFETENSORS, weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    layout = [] if family is None else [registry.get("family", family.model_type)]
    (folder / RECIPE).write_text(model.recipe.to_toml([*layout, *registered_parts(task_configs.values())]))


def _generator_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the generator alone: its sizes, and masked language modelling only."""
    generator = recipe.settings.network.generator_network()
    sizes = {f"network.{key}": getattr(generator, key) for key in ("layers", "width", "heads", "feedforward")}
    discriminating = [f"objective.{name}" for name, task in recipe.settings.objective.items() if task.needs_generator]
    return recipe.with_changes({**sizes, "network.embedding.width": generator.embedding.width,
                                "remove": ["network.generator", *discriminating]}, origin=GENERATOR)


def _supported_template(template: str, special_tokens: Container[str], has_segments: bool) -> str:
    """The template without special tokens that the tokenizer lacks (as GPT's), and without segments if the network has
    none."""
    names = {slot: slot.partition(":")[0] for slot in template.split()}
    slots = [slot for slot in template.split() if names[slot] in special_tokens or names[slot] in ("A", "B")]
    return " ".join(slot if has_segments else names[slot] for slot in slots)

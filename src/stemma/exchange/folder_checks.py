"""Checks of a model folder before the network is built: sizes, recipe and weights must belong to one model.

Folders come from anywhere, so no number in them is trusted. Sizes are compared with the stored tensors: a wrong size
is an error message, not an allocation of all memory.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from itertools import count, takewhile
from pathlib import Path

import torch
from torch import Tensor

from stemma.errors import CorruptFileError
from stemma.exchange.family import Family
from stemma.recipe_loading import Recipe
from stemma.schema.overrides import flatten

WEIGHTS_MISMATCH = "the weights in {} do not fit its config.json; one of the two is another model's"
TOKENS, LAYERS, DECODER = "embedding.tokens.weight", "network.layers", "network.decoder.layers"
BLOCKS = {LAYERS: "encoder.blocks.{i}.", DECODER: "decoder.blocks.{i}."}
TRAINING_ONLY = re.compile(r"dropout$|^initialization\.")  # keys that do not affect inference
Problems = list[tuple[str, str]]


def check_sizes(folder: Path, family: Family, config: Mapping[str, object], weights: Mapping[str, Tensor],
                prefix: str) -> None:
    """Compare layers, vocabulary and width in config.json with the tensors."""
    completed = family.with_defaults(config)
    hf_keys = {setting.recipe_key: setting.hf_key for setting in family.settings}
    shared = family.to_recipe_values(config).get("network.sharing", "none") != "none"  # all layers are stored once
    problems: Problems = []
    for recipe_key, block in BLOCKS.items():
        first = next((key.hf_names[0] for key in family.body_keys if key.names[0].startswith(block)), "")
        if recipe_key in hf_keys and "{i}" in first and not shared:
            hf_key = hf_keys[recipe_key]
            problems += _missing_layers(f"{hf_key} = {completed[hf_key]}", completed[hf_key], prefix + first, weights)
    embedding = next((prefix + key.hf_names[0] for key in family.body_keys if key.names[0] == TOKENS), "")
    width = "network.embedding.width" if "network.embedding.width" in hf_keys else "network.width"
    for recipe_key, dimension in (("tokenizer.vocab_size", 0), (width, 1)):
        if embedding in weights and weights[embedding].dim() == 2 and recipe_key in hf_keys:
            hf_key = hf_keys[recipe_key]
            problems += _size_mismatch(f"{hf_key} = {completed[hf_key]}", completed[hf_key], embedding, weights,
                                       dimension)
    if problems:
        raise CorruptFileError(WEIGHTS_MISMATCH.format(folder), problems)


def check_own_sizes(folder: Path, recipe: Recipe, config: Mapping[str, object], weights: Mapping[str, Tensor]) -> None:
    """The same for a model of type "stemma", whose sizes are in its recipe."""
    heads, vocabulary = config.get("heads", []), config.get("vocab_size") or recipe.settings.tokenizer.vocab_size
    if not isinstance(heads, list) or not all(isinstance(name, str) for name in heads) or type(vocabulary) is not int:
        raise CorruptFileError(f"{folder}/config.json is damaged: heads must be a list of names and vocab_size a whole "
                               "number; save the model again from its run.")
    network = recipe.settings.network
    problems: Problems = []
    for part in network.parts().values():
        if part.body.has_blocks and network.sharing == "none":
            key = LAYERS if part.attends_to is None else DECODER
            problems += _missing_layers(f"{key} = {part.layers}", part.layers, BLOCKS[key],
                                        {block_prefix(name): None for name in weights})
    if TOKENS in weights and weights[TOKENS].dim() == 2 and not network.embedding.cutoffs:
        problems += _size_mismatch(f"vocab_size = {vocabulary}", vocabulary, TOKENS, weights, 0)
        width = network.embedding.width or network.width
        problems += _size_mismatch(f"network.width = {width}", width, TOKENS, weights, 1)
    if problems:
        raise CorruptFileError(WEIGHTS_MISMATCH.format(folder), problems)


def block_prefix(name: str) -> str:
    """encoder.blocks.3.attention.input.weight -> encoder.blocks.3."""
    match = re.match(r"(?:en|de)coder\.blocks\.\d+\.", name)
    return match[0] if match else name


def _missing_layers(key: str, layers: object, pattern: str, names: Container[str]) -> Problems:
    """A problem if the network has more layers than the weights. Fewer are reported later, by tensor."""
    stored = len([*takewhile(lambda i: pattern.format(i=i) in names, count())])
    wrong = type(layers) is int and stored and layers > stored
    return [(key, f"the weights have {stored} layer{'s' if stored > 1 else ''}")] if wrong else []


def _size_mismatch(key: str, size: object, name: str, weights: Mapping[str, Tensor], dimension: int) -> Problems:
    shape = weights[name].shape
    wrong = type(size) is int and size > 0 and size != shape[dimension]  # the schema reports other values
    return [(key, f"{name} is {'x'.join(map(str, shape))}")] if wrong else []


def reconcile_recipe(folder: Path, recipe: Recipe, config_values: Mapping[str, object],
                     recipe_values: Mapping[str, object],
                     hf_names: Mapping[str, str]) -> tuple[Recipe, list[str]]:
    """The recipe with config.json's values for training-only keys, and warnings. Other values must agree.

    `config_values` come from config.json and `recipe_values` from the recipe, both under recipe keys; `hf_names` maps
    these to the keys of config.json.
    """
    differing = [key for key, value in config_values.items() if value != recipe_values.get(key)]
    problems = [(f"{hf_names.get(key, key)} = {config_values[key]}",
                 f"recipe.toml has network.{key} = {recipe_values.get(key)}")
                for key in differing if not TRAINING_ONLY.search(key)]
    if problems:
        raise CorruptFileError(f"config.json and recipe.toml in {folder} contradict each other; copy the whole folder "
                               "again, or delete recipe.toml if config.json is right", problems)
    changes = {f"network.{key}": config_values[key] for key in differing}
    warnings = [f"{folder}: {hf_names.get(key, key)} = {config_values[key]} of config.json is used; recipe.toml has "
                f"{recipe_values.get(key)}." for key in differing]
    return recipe.with_changes(changes, "config.json") if changes else recipe, warnings


def reconcile_family_recipe(folder: Path, family: Family, config: Mapping[str, object],
                            recipe: Recipe) -> tuple[Recipe, list[str]]:
    """`reconcile_recipe` for the keys that config.json states; for others the recipe's values hold."""
    values = {**flatten(recipe.values), "tokenizer.vocab_size": config.get("vocab_size")}
    stated = {family.aliases.get(key, key) for key, value in config.items() if value is not None}
    hf_names = {setting.recipe_key: setting.hf_key for setting in family.settings
                if setting.hf_key in stated and setting.recipe_key.startswith("network.")}
    recipe_config = {**family.with_defaults(config), **family.to_hf_config(values)}
    sides = [family.to_recipe_values(side) for side in (config, recipe_config)]
    config_values, recipe_values = ({key.removeprefix("network."): side[key] for key in hf_names} for side in sides)
    return reconcile_recipe(folder, recipe, config_values, recipe_values,
                            {key.removeprefix("network."): name for key, name in hf_names.items()})


def check_finite(folder: Path, names: Iterable[str], weights: Mapping[str, Tensor]) -> None:
    """Refuse weights with NaN or infinity: a single NaN makes every output NaN."""
    # The sum is a fast first check. It may overflow for finite numbers, so the elements are checked if it fails.
    bad = [name for name in names if not torch.isfinite(weights[name].sum()) and
           not torch.isfinite(weights[name]).all()]
    if bad:
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        raise CorruptFileError(f"the weights in {folder} hold NaN or infinite numbers: {', '.join(bad[:4])}{more}; "
                               "the file is damaged or its training diverged: copy it again, or take a checkpoint from "
                               "before.")

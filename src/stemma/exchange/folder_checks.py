"""What is checked of a model folder before a network is built: that its sizes, recipe and weights are of one model.

A folder may be anybody's. Nothing here trusts a number in it: sizes are compared with the tensors that are there, so
that a wrong one costs a sentence and not hours or all memory.
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
TRAINING_ONLY = re.compile(r"dropout$|^initialization\.")  # values that no output of a finished model depends on
Problems = list[tuple[str, str]]


def check_sizes(folder: Path, family: Family, config: Mapping[str, object], weights: Mapping[str, Tensor],
                prefix: str) -> None:
    """Layers, vocabulary and width of a config.json against the tensors beside it."""
    told = family.with_defaults(config)
    named = {setting.recipe_key: setting.hf_key for setting in family.settings}
    shared = family.to_recipe_values(config).get("network.sharing", "none") != "none"  # all layers are one in the file
    problems: Problems = []
    for ours, block in BLOCKS.items():
        first = next((key.hf_names[0] for key in family.body_keys if key.names[0].startswith(block)), "")
        if ours in named and "{i}" in first and not shared:
            problems += _missing_layers(f"{named[ours]} = {told[named[ours]]}", told[named[ours]], prefix + first,
                                        weights)
    table = next((prefix + key.hf_names[0] for key in family.body_keys if key.names[0] == TOKENS), "")
    width = "network.embedding.width" if "network.embedding.width" in named else "network.width"
    for ours, dimension in (("tokenizer.vocab_size", 0), (width, 1)):
        if table in weights and weights[table].dim() == 2 and ours in named:
            problems += _size_mismatch(f"{named[ours]} = {told[named[ours]]}", told[named[ours]], table, weights,
                                       dimension)
    if problems:
        raise CorruptFileError(WEIGHTS_MISMATCH.format(folder), problems)


def check_own_sizes(folder: Path, recipe: Recipe, config: Mapping[str, object], weights: Mapping[str, Tensor]) -> None:
    """The same for a model under our own name, whose sizes stand in its recipe."""
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
    found = re.match(r"(?:en|de)coder\.blocks\.\d+\.", name)
    return found[0] if found else name


def _missing_layers(key: str, layers: object, pattern: str, names: Container[str]) -> Problems:
    """A network with more layers than the weights is not even built; fewer are told later, tensor by tensor."""
    found = len([*takewhile(lambda i: pattern.format(i=i) in names, count())])
    wrong = type(layers) is int and found and layers > found
    return [(key, f"the weights have {found} layer{'s' if found > 1 else ''}")] if wrong else []


def _size_mismatch(key: str, size: object, name: str, weights: Mapping[str, Tensor], dimension: int) -> Problems:
    shape = weights[name].shape
    wrong = type(size) is int and size > 0 and size != shape[dimension]  # others are told by the schema
    return [(key, f"{name} is {'x'.join(map(str, shape))}")] if wrong else []


def reconcile_recipe(folder: Path, recipe: Recipe, config_values: Mapping[str, object],
                     recipe_values: Mapping[str, object],
           hf_names: Mapping[str, str]) -> tuple[Recipe, list[str]]:
    """The recipe, with what config.json says of training alone; anything else must be the same in both.

    `told` is config.json and `written` what the recipe would have put there, both by our names; `spelling` has theirs.
    """
    apart = [key for key, value in config_values.items() if value != recipe_values.get(key)]
    wrong = [(f"{hf_names.get(key, key)} = {config_values[key]}",
              f"recipe.toml has network.{key} = {recipe_values.get(key)}")
             for key in apart if not TRAINING_ONLY.search(key)]
    if wrong:
        raise CorruptFileError(f"config.json and recipe.toml in {folder} contradict each other; copy the whole folder "
                               "again, or delete recipe.toml if config.json is right", wrong)
    changes = {f"network.{key}": config_values[key] for key in apart}
    notices = [f"{folder}: {hf_names.get(key, key)} = {config_values[key]} of config.json is used; recipe.toml has "
               f"{recipe_values.get(key)}." for key in apart]
    return recipe.with_changes(changes, "config.json") if changes else recipe, notices


def reconcile_family_recipe(folder: Path, family: Family, config: Mapping[str, object],
                     recipe: Recipe) -> tuple[Recipe, list[str]]:
    """Of what config.json states; what it leaves out is the recipe's."""
    written = {**flatten(recipe.values), "tokenizer.vocab_size": config.get("vocab_size")}
    stated = {family.aliases.get(key, key) for key, value in config.items() if value is not None}
    names = {setting.recipe_key: setting.hf_key for setting in family.settings
             if setting.hf_key in stated and setting.recipe_key.startswith("network.")}
    sides = [family.to_recipe_values(side) for side in (config, {**family.with_defaults(config),
                                                                 **family.to_hf_config(written)})]
    theirs, ours = ({key.removeprefix("network."): side[key] for key in names} for side in sides)
    return reconcile_recipe(folder, recipe, theirs, ours, {key.removeprefix("network."): name for key,
                                                           name in names.items()})


def check_finite(folder: Path, names: Iterable[str], weights: Mapping[str, Tensor]) -> None:
    """A single NaN in the weights makes every output NaN."""
    # a sum is one pass without memory; it may overflow where no number does, so that a suspicion is looked into
    wrong = [name for name in names if not torch.isfinite(weights[name].sum()) and
             not torch.isfinite(weights[name]).all()]
    if wrong:
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        raise CorruptFileError(f"the weights in {folder} hold NaN or infinite numbers: {', '.join(wrong[:4])}{more}; "
                               "the file is damaged or its training diverged: copy it again, or take a checkpoint from "
                               "before.")

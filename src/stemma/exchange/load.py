"""Reading a model: a run folder, its model/, or any supported Hugging Face folder. Nothing is skipped in silence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stemma.errors import CorruptFileError, UserError, did_you_mean
from stemma.exchange import FAMILIES
from stemma.exchange.model import Model
from stemma.exchange.save import OWN_TYPE
from stemma.exchange.table import Family, to_ours
from stemma.exchange.weights import read_weights
from stemma.files import CHECKSUMS, verify_checksums
from stemma.lineage import Recipe, recipe
from stemma.network.heads import HeadSpec
from stemma.network.network import Network
from stemma.objectives import build_objectives, heads_of
from stemma.text.tokenizer import Tokenizer

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model")


def load(where: str | Path) -> Model:
    """A model ready to be asked: in evaluation mode, in fp32, on the CPU."""
    folder = find_folder(where)
    config = _read_config(folder)
    if (folder / CHECKSUMS).is_file():
        verify_checksums(folder, "the model", "copy it again, or save it again from its run.")
    kind = config.get("model_type")
    weights = read_weights(folder)
    if kind == OWN_TYPE:
        own = _own_recipe(folder)
        declared = heads_of(build_objectives(own))
        return _finish(folder, own, weights, config["vocab_size"], {n: declared[n] for n in config["heads"]}, [])
    if kind not in FAMILIES:
        raise UserError(f'{folder}/config.json says model_type "{kind}", which is not supported (supported: '
                        f'{", ".join([*FAMILIES, OWN_TYPE])}).{did_you_mean(str(kind), FAMILIES)}')
    family = FAMILIES[kind]
    own = _own_recipe(folder) if (folder / "recipe.toml").is_file() else _recipe_of(family, config, folder)
    ours, heads, notices = _translate(folder, family, weights, own.settings.network.layers)
    specs = {name: family.specs[name] for name in heads}
    return _finish(folder, own, ours, config["vocab_size"], specs, notices)


def find_folder(where: str | Path) -> Path:
    """The folder with config.json: as given, or a run's model/, or (with the extra `hub`) a hub id."""
    path = Path(where)
    for folder in (path, path / "model"):
        if (folder / "config.json").is_file():
            return folder
    if (path / "recipe.toml").is_file():
        raise UserError(f"the run {path} has no model yet; `stemma resume {path}` finishes it.")
    if path.exists():
        raise UserError(f"{path} is no model: it has no config.json; give a run folder, its model/, or a Hugging Face "
                        "model folder.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(where)) and not path.parent.exists():
        return _fetch(str(where))
    raise UserError(f"there is no model at {path}.")


def _fetch(identifier: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(f'there is no folder {identifier}; to fetch it from the Hugging Face hub: pip install '
                        '"stemma-lm[hub]".') from error
    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*.bin"]
    try:
        return Path(snapshot_download(identifier, allow_patterns=wanted))
    except Exception as error:
        raise UserError(f"there is no folder {identifier}, and the hub did not give it ({error}).") from error


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise CorruptFileError(f"{folder}/config.json is not valid JSON ({error}); copy it again.") from error


def _own_recipe(folder: Path) -> Recipe:
    return recipe(folder / "recipe.toml")


def _recipe_of(family: Family, config: Mapping[str, Any], folder: Path) -> Recipe:
    """The family's recipe with the values of config.json; text no longer than the network can read."""
    base = recipe(family.recipe)
    values = family.values(config)
    longest = values.get("network.position.maximum", base.settings.corpus.sequence_length)
    if longest < base.settings.corpus.sequence_length:
        values["corpus.sequence_length"] = longest
        if base.settings.corpus.first_phase is not None:
            values["remove"] = ["corpus.first_phase"]
    if values.get("network.embedding.segments", 2) < 2:
        values["corpus.pair"] = base.settings.corpus.pair.replace(":1", "")
    return base.with_changes(values, origin="config.json")


def _translate(folder: Path, family: Family, weights: dict[str, Tensor],
               layers: int) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """Their tensors under our names, the heads that are there, and notices on what was left aside."""
    for old, new in family.old_names.items():
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    bare = not any(name.startswith(family.prefix) for name in weights)
    heads = [name for name in family.heads
             if any(key.theirs[0] in weights or family.prefix + key.theirs[0] in weights
                    for key in family.heads[name])]
    keys = list(family.keys(heads, layers, bare))
    wanted = {name for key in keys for name in key.theirs}
    missing = sorted(wanted - weights.keys())
    if missing:
        raise CorruptFileError(f"{len(missing)} tensors are missing in {folder}: {', '.join(missing[:4])}"
                               f"{', ...' if len(missing) > 4 else ''}; the checkpoint is incomplete or not a "
                               f"{family.model_type} of {layers} layers.")
    _check_copies(folder, family, weights, "" if bare else family.prefix)
    left = [name for name in weights if name not in wanted and name not in family.copies
            and not name.endswith(family.ignored)]
    notices = [f"{len(left)} tensors of {folder} have no place in this network and were left aside: "
               f"{', '.join(sorted(left)[:4])}{', ...' if len(left) > 4 else ''}"] if left else []
    return to_ours(keys, weights), heads, notices


def _check_copies(folder: Path, family: Family, weights: Mapping[str, Tensor], prefix: str) -> None:
    """Tied matrices that are stored twice must be equal: ours are one."""
    for copy, original in family.copies.items():
        first = weights.get(original, weights.get(prefix + original))
        if copy in weights and first is not None and not torch.equal(weights[copy], first):
            raise UserError(f"{folder} was trained with {copy} untied from {original}; only tied models are supported.")


def _finish(folder: Path, own: Recipe, weights: dict[str, Tensor], vocabulary: int,
            heads: Mapping[str, HeadSpec], notices: list[str]) -> Model:
    with torch.device("meta"):  # no time is spent on random numbers that are replaced at once
        network = Network(own.settings.network, vocabulary, heads)
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=True, assign=True)
    except RuntimeError as error:
        raise CorruptFileError(f"the weights in {folder} do not fit its configuration: "
                               f"{str(error).splitlines()[-1].strip()}") from error
    tokenizer = Tokenizer.load(folder) if any((folder / name).is_file() for name in TOKENIZER_FILES) else None
    return Model(own, tokenizer, network.eval().requires_grad_(True), notices)

"""Writing a model: the layout and names that every tool reads, under a family's name only if it truly is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stemma.exchange import FAMILIES
from stemma.exchange.model import Model
from stemma.exchange.table import Family, to_theirs
from stemma.exchange.weights import SAFE, write_weights
from stemma.files import folder_atomically
from stemma.schema.layers import flatten

OWN_TYPE = "stemma"
RECIPE = "recipe.toml"


def family_of(model: Model) -> Family | None:
    """The family that this network is one of, in values, heads and tensors; None: it is saved under our own name."""
    values, network = flatten(model.recipe.values), model.network
    return next((family for family in FAMILIES.values() if family.fits(values, network.specs, network.state_dict())),
                None)


def save(model: Model, folder: str | Path, overwrite: bool = False) -> None:
    """Write a Hugging Face folder: config.json, model.safetensors, the tokenizer, and the recipe beside them."""
    with folder_atomically(Path(folder), overwrite) as place:
        write_model(model, place)


def write_model(model: Model, place: Path) -> None:
    family = family_of(model)
    weights = model.network.state_dict()
    heads = list(model.network.heads)
    values = {**flatten(model.recipe.values), "tokenizer.vocab_size": model.network.vocabulary}
    if family is None:
        config: dict[str, Any] = {"model_type": OWN_TYPE, "architectures": ["StemmaNetwork"], "heads": heads,
                                  "vocab_size": model.network.vocabulary, "network": model.recipe.values["network"]}
    else:
        bare = family.inside.issuperset(heads)
        weights = to_theirs(family.keys(heads, weights, bare), weights)
        config = {"model_type": family.model_type, "architectures": [family.classes[frozenset(heads)]],
                  **family.config(values)}
    config["dtype"] = "float32"
    if model.tokenizer is not None:
        corpus, position = model.recipe.settings.corpus, model.recipe.settings.network.position
        config["pad_token_id"] = model.tokenizer.roles.get("padding", 0)
        model.tokenizer.save(place, corpus.single, corpus.pair, getattr(position, "maximum", None))
    write_weights(place / SAFE, weights)
    (place / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (place / RECIPE).write_text(model.recipe.to_toml())

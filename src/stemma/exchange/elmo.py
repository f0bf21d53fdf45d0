"""ELMo's released weights: a folder with OPTIONS.json and WEIGHTS.hdf5, as the authors' bilm-tf writes them.

The files have no vocabulary and no output layer. Words are read as characters, so the tokenizer of the model only
splits text into words; every word is outside of its vocabulary. A text stands between the tokens for its beginning and
its end, as in the authors' code.

Layout of the HDF5 file, with matrices from inputs to outputs as TensorFlow has them:
    char_embed, CNN/W_cnn_N, CNN/b_cnn_N, CNN_high_N/{W,b}_{carry,transform}, CNN_proj/{W,b}_proj
    RNN_D/RNN/MultiRNNCell/CellN/LSTMCell/{W_0,B,W_P_0} of direction D (0: from left to right) and layer N. W_0 has the
    rows of input and state one after the other, and its gates are input, candidate, forget, output; 1 is added to the
    bias of the forget gate
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from stemma.errors import CorruptFileError, UserError
from stemma.json_files import read_object
from stemma.model import Model
from stemma.network.network import Network
from stemma.recipe_loading import Recipe, recipe
from stemma.text.special_tokens import BRACKETS
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

RECIPE, INPUT = "elmo", "characters"
OPTIONS, WEIGHTS = "*options.json", "*weights.hdf5"
PREFIX = f"embedding.inputs.{INPUT}."
MAX_PROBLEMS = 8  # tensors that an error lists


def elmo_files(folder: Path) -> tuple[Path, Path] | None:
    """The options and the weights in a folder; None: it is no such folder."""
    found = [sorted(folder.glob(pattern)) for pattern in (OPTIONS, WEIGHTS)]
    if not any(found):
        return None
    if not all(found) or any(len(files) > 1 for files in found):
        raise UserError(f"{folder} must hold one file {OPTIONS} and one file {WEIGHTS} to be an ELMo model, and has "
                        f"{len(found[0])} and {len(found[1])}.")
    return found[0][0], found[1][0]


def load_elmo(options_file: Path, weights_file: Path) -> Model:
    """The model of ELMo's files, in eval mode."""
    resolved = _recipe(options_file, read_object(options_file, "fetch it again."))
    tokenizer = _word_splitter()
    with torch.random.fork_rng(devices=[]):
        network = Network(resolved.settings.network, tokenizer.vocab_size, {})
    arrays = _read(weights_file, shapes := layout(resolved))
    if problems := [(name, f"is {_shape(arrays[name].shape)} and should be {_shape(shape)}")
                    for name, shape in shapes.items() if arrays[name].shape != shape]:
        raise CorruptFileError(f"the weights in {weights_file} do not fit {options_file.name}; one of the two is "
                               "another model's", problems[:MAX_PROBLEMS])
    if broken := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise CorruptFileError(f"{weights_file} has numbers that are not finite in {broken[0]}; fetch it again.")
    network.load_state_dict({**network.state_dict(), **from_published(arrays, resolved)})
    network.start_inputs(tokenizer)
    return Model(resolved, tokenizer, network.eval())


def _recipe(file: Path, options: Mapping[str, Any]) -> Recipe:
    """The recipe `elmo` with the sizes of the options file."""
    lstm, cnn = options.get("lstm"), options.get("char_cnn")
    if not isinstance(lstm, dict) or not isinstance(cnn, dict):
        raise CorruptFileError(f'{file} has no "{"char_cnn" if isinstance(lstm, dict) else "lstm"}"; it is no options '
                               "file of an ELMo that reads characters.")
    try:
        width, cells = int(lstm["projection_dim"]), int(lstm["dim"])
        values: dict[str, Any] = {
            "network.width": 2 * width, "network.embedding.width": width, "network.layers": int(lstm["n_layers"]),
            "network.depth.residual": bool(lstm.get("use_skip_connections", False)),
            "network.depth.hidden": cells, "network.depth.projection": cells != width,
            f"network.inputs.{INPUT}.longest": int(cnn["max_characters_per_token"]),
            f"network.inputs.{INPUT}.size": int(cnn["embedding"]["dim"]),
            f"network.inputs.{INPUT}.widths": [int(span) for span, _ in cnn["filters"]],
            f"network.inputs.{INPUT}.filters": [int(count) for _, count in cnn["filters"]],
            f"network.inputs.{INPUT}.highway": int(cnn.get("n_highway") or 0),
        }
        limits = {"network.depth.cell_clip": lstm.get("cell_clip"),
                  "network.depth.projection_clip": lstm.get("proj_clip") if cells != width else None}
        values |= {key: float(limit) if limit else None for key, limit in limits.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{file} is not the options file of an ELMo: {type(error).__name__} at {error}; fetch "
                               "it again.") from error
    if cnn.get("activation") != "relu":
        raise UserError(f'{file} has the activation "{cnn.get("activation")}"; the recipe {RECIPE} has relu, as all '
                        "published weights.")
    if sum(values[f"network.inputs.{INPUT}.filters"]) == width:
        raise UserError(f"{file} has as many filters as the projection is wide, and then no projection of them, which "
                        f"the recipe {RECIPE} always has.")
    tokenizer = {"tokenizer.vocab_size": len(_roles()), "objective.bidirectional_lm.sampled": 0}
    values |= {**tokenizer, "corpus.single": "begin A end", "corpus.pair": "begin A end B end"}
    return replace(recipe(RECIPE), size=None).with_changes(values, origin=file.name)


def _roles() -> tuple[str, ...]:
    return ("padding", "unknown", "begin", "end")


def _word_splitter() -> Tokenizer:
    """A tokenizer of words without any words."""
    splitter = train_tokenizer(["a"], "word", len(_roles()) + 1, lowercase=False, roles=set(_roles()))
    model = tokenizers.models.WordLevel({BRACKETS[role]: index for index, role in enumerate(_roles())},
                                        unk_token=BRACKETS["unknown"])
    splitter.backend.model = model
    return Tokenizer(splitter.backend)


def layout(resolved: Recipe) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every array in the file."""
    network = resolved.settings.network
    settings: Any = network.inputs[INPUT]
    body: Any = network.depth
    filters, width = sum(settings.filters), network.width // 2
    hidden = body.hidden or width
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (settings.num_symbols, settings.size)}
    for index, (span, count) in enumerate(zip(settings.widths, settings.filters, strict=True)):
        shapes |= {f"CNN/W_cnn_{index}": (1, span, settings.size, count), f"CNN/b_cnn_{index}": (count,)}
    for index in range(settings.highway):
        for name in ("carry", "transform"):
            shapes |= {f"CNN_high_{index}/W_{name}": (filters, filters), f"CNN_high_{index}/b_{name}": (filters,)}
    shapes |= {"CNN_proj/W_proj": (filters, width), "CNN_proj/b_proj": (width,)}
    for direction in range(2):
        for layer in range(network.layers):
            cell = _cell(direction, layer)
            shapes |= {f"{cell}/W_0": (2 * width, 4 * hidden), f"{cell}/B": (4 * hidden,)}
            shapes |= {f"{cell}/W_P_0": (hidden, width)} if body.projection else {}
    return shapes


def _cell(direction: int, layer: int) -> str:
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def from_published(arrays: Mapping[str, np.ndarray], resolved: Recipe) -> dict[str, Tensor]:
    """The arrays of the file as the network's parameters."""
    network = resolved.settings.network
    settings: Any = network.inputs[INPUT]
    weights = {f"{PREFIX}table.weight": arrays["char_embed"]}
    for index, (span, count) in enumerate(zip(settings.widths, settings.filters, strict=True)):
        weights[f"{PREFIX}filters.{index}.weight"] = arrays[f"CNN/W_cnn_{index}"].reshape(span * settings.size, count).T
        weights[f"{PREFIX}filters.{index}.bias"] = arrays[f"CNN/b_cnn_{index}"]
    for index in range(settings.highway):  # their gate is one minus ours
        for name, sign in (("carry", -1.0), ("transform", 1.0)):
            weights[f"{PREFIX}highway.{index}.{name}.weight"] = sign * arrays[f"CNN_high_{index}/W_{name}"].T
            weights[f"{PREFIX}highway.{index}.{name}.bias"] = sign * arrays[f"CNN_high_{index}/b_{name}"]
    weights |= {f"{PREFIX}output.weight": arrays["CNN_proj/W_proj"].T,
                f"{PREFIX}output.bias": arrays["CNN_proj/b_proj"]}
    for direction in range(2):
        for layer in range(network.layers):
            cell, name = _cell(direction, layer), f"encoder.directions.{direction}.layers.{layer}"
            matrix, bias = arrays[f"{cell}/W_0"].T, arrays[f"{cell}/B"]
            enter, candidate, forget, leave = np.split(np.arange(len(bias)), 4)
            order = np.concatenate([enter, forget, candidate, leave])
            hidden = len(bias) // 4
            weights |= {f"{name}.input": matrix[order, :network.width // 2],
                        f"{name}.recurrent": matrix[order, network.width // 2:],
                        f"{name}.bias": bias[order] + np.repeat([0.0, 1.0, 0.0, 0.0], hidden)}
            if f"{cell}/W_P_0" in arrays:
                weights[f"{name}.projection"] = arrays[f"{cell}/W_P_0"].T
    return {name: torch.from_numpy(np.array(array, np.float32)) for name, array in weights.items()}


def _read(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The arrays of these names."""
    try:
        h5py = importlib.import_module("h5py")
    except ImportError as error:
        raise UserError(f'{file} is an HDF5 file, which needs h5py: pip install "stemma-lm[elmo]".') from error
    try:
        with h5py.File(file, "r") as opened:
            if missing := [name for name in shapes if name not in opened]:
                raise CorruptFileError(f"{file} has no {missing[0]}"
                                       f"{f' and {len(missing) - 1} more arrays' if len(missing) > 1 else ''} that its "
                                       "options file describes; one of the two is another model's.")
            return {name: np.asarray(opened[name][...]) for name in shapes}
    except OSError as error:
        raise CorruptFileError(f"{file} is no readable HDF5 file ({error}); fetch it again.") from error


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))

"""Weight files: safetensors, whole or in parts, and the old pickled ones only through torch's weights-only loader."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stemma.errors import CorruptFileError, UserError

SAFE, SAFE_INDEX = "model.safetensors", "model.safetensors.index.json"
OLD, OLD_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Sorted names and `format: pt` alone in the header, so that equal weights are equal bytes."""
    ordered = {name: tensors[name].detach().to("cpu").contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})


def read_weights(folder: Path) -> dict[str, Tensor]:
    for single, index in ((SAFE, SAFE_INDEX), (OLD, OLD_INDEX)):
        if (folder / single).is_file():
            return _read(folder / single)
        if (folder / index).is_file():
            parts = sorted(set(json.loads((folder / index).read_text())["weight_map"].values()))
            missing = [part for part in parts if not (folder / part).is_file()]
            if missing:
                raise CorruptFileError(f"{folder} lacks {', '.join(missing)}, which {index} names; copy the whole "
                                       "folder again.")
            return {name: tensor for part in parts for name, tensor in _read(folder / part).items()}
    raise UserError(f"{folder} holds no weights ({SAFE} or {OLD}); give a run folder, its model/, or a Hugging Face "
                    "model folder.")


def _read(path: Path) -> dict[str, Tensor]:
    advice = "it is truncated or damaged: copy or save it again."
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, ValueError, OSError) as error:
            raise CorruptFileError(f"cannot read the weights in {path} ({error}); {advice}") from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, OSError) as error:
        raise CorruptFileError(f"cannot read the weights in {path}: it holds more than tensors, or {advice}") from error
    return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}

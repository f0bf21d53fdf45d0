"""Weight files: safetensors, single or sharded, and old pickles through torch's weights-only loader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stemma.errors import CorruptFileError, UserError
from stemma.json_files import parse

SAFETENSORS, SAFETENSORS_INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
ALIGNMENT = 64  # bytes; torch's own allocations have it


def write_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Names are sorted and the header has only `format: pt`, so that equal weights give equal bytes."""
    ordered = {name: tensors[name].detach().to("cpu").contiguous() for name in sorted(tensors)}
    save_file(ordered, path, metadata={"format": "pt"})


def read_weights(folder: Path) -> dict[str, Tensor]:
    for single, index in ((SAFETENSORS, SAFETENSORS_INDEX), (PICKLE, PICKLE_INDEX)):
        if (folder / single).is_file():
            return _read(folder / single)
        if (folder / index).is_file():
            return {name: tensor for part in _shard_files(folder / index) for name, tensor in _read(part).items()}
    raise UserError(f"{folder} holds no weights ({SAFETENSORS} or {PICKLE}); give a run folder, its model/, or a "
                    "Hugging Face model folder.")


def align_memory(tensor: Tensor) -> Tensor:
    """The same values at an address that is a multiple of 64 bytes.

    Tensors in a safetensors file may have any address, and some kernels (attention among them) round differently if
    they are not aligned. A loaded model must compute the same as the saved one, above all in further training.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _shard_files(index: Path) -> list[Path]:
    """The weight files that an index lists."""
    try:
        names = sorted(set(parse(index.read_bytes())["weight_map"].values()))
        outside = [name for name in names if Path(name).name != name]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFileError(f"{index} is no readable index of weight files; copy it again.") from error
    if outside:
        raise CorruptFileError(f"{index} names {outside[0]}, which is not a file beside it; weights are read from the "
                               "model's own folder alone: copy them there, and name them so.")
    parts = [index.parent / name for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise CorruptFileError(f"{index.parent} lacks {', '.join(missing)}, which {index.name} names; copy the whole "
                               "folder again.")
    return parts


def _read(path: Path) -> dict[str, Tensor]:
    advice = "it is truncated or damaged: copy or save it again."
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, ValueError, OSError) as error:
            raise CorruptFileError(f"cannot read the weights in {path} ({error}); {advice}") from error
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can fail in any way; none of its code is ever run
        raise CorruptFileError(f"cannot read the weights in {path}: it holds more than tensors, or {advice}") from error
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} holds a {type(loaded).__name__} and not a dict of tensors; save the model's "
                        "state_dict() there.")
    return {name: value for name, value in loaded.items() if isinstance(value, Tensor)}

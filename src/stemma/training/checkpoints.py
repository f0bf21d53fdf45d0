"""Checkpoints for an exact resume: `checkpoints/step-N/` holds weights, optimizer state and counters.

Optimizer tensors are stored by parameter name, not by index, so any safetensors tool can read them. A complete
checkpoint appears by a rename; only then are older ones deleted.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stemma.atomic_files import CHECKSUMS, atomic_folder, remove_leftovers, verify_checksums
from stemma.errors import CorruptFileError, UserError
from stemma.exchange.weights import align_memory
from stemma.json_files import read_object
from stemma.network.ngram_tables import resize_buffers
from stemma.training.method import MethodState

logger = logging.getLogger(__name__)

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
OBJECTIVES = "objectives.safetensors"  # only for objectives that adapt their targets
MEMORY = "memory.safetensors"  # only for networks with a memory across steps


@dataclass
class Checkpoint:
    """State of training; `state` is any JSON: data cursors, schedule, counters."""

    step: int
    tokens: int
    state: dict[str, Any] = field(default_factory=dict)
    memories: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # by sampler and layer
    objectives: dict[str, dict[str, Tensor]] = field(default_factory=dict)  # state by objective and name


class StatefulMethod(Protocol):
    """An object whose state is saved with the weights: a training method or an optimizer."""

    def state(self) -> MethodState: ...

    def incompatibility(self, values: dict[str, object]) -> str | None: ...

    def restore(self, state: MethodState) -> None: ...


def save_checkpoint(run: Path, network: nn.Module, method: StatefulMethod, checkpoint: Checkpoint,
                    num_kept: int) -> Path:
    """Write `run/checkpoints/step-N`, then delete all but the newest `num_kept`."""
    folder = run / "checkpoints" / f"step-{checkpoint.step}"
    remove_leftovers(folder.parent)
    tensors, values = method.state()
    document = {"step": checkpoint.step, "tokens": checkpoint.tokens, "values": checkpoint.state, "optimizer": values}
    with atomic_folder(folder, overwrite=True) as temporary:
        _write_tensors(temporary / WEIGHTS, dict(_named_tensors(network)))
        _write_tensors(temporary / OPTIMIZER, tensors)
        for file, groups in ((MEMORY, checkpoint.memories), (OBJECTIVES, checkpoint.objectives)):
            if groups:
                _write_tensors(temporary / file, {f"{key}/{name}": tensor for key, tensors in groups.items()
                                                  for name, tensor in tensors.items()})
        (temporary / STATE).write_text(json.dumps(document))
    _remove_old(folder, num_kept)
    return folder


def save_weights(folder: Path, network: nn.Module) -> None:
    """Save the weights only, without the state to resume from."""
    with atomic_folder(folder, overwrite=True) as temporary:
        _write_tensors(temporary / WEIGHTS, dict(_named_tensors(network)))


def load_weights(folder: Path, network: nn.Module) -> None:
    with safe_open(folder / WEIGHTS, framework="pt") as saved, torch.no_grad():
        resize_buffers(network, {name: saved.get_slice(name).get_shape() for name in saved.keys()})  # noqa: SIM118
        for name, tensor in _named_tensors(network):
            tensor.copy_(saved.get_tensor(name))


def latest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint whose files are all there (their bytes are verified when it is loaded)."""
    files = (WEIGHTS, OPTIMIZER, STATE, CHECKSUMS)
    return next((folder for folder in checkpoints_newest_first(run)
                 if all((folder / name).is_file() for name in files)), None)


def load_latest(run: Path, network: nn.Module, method: StatefulMethod) -> Checkpoint | None:
    """Restore the newest intact checkpoint and warn about damaged ones; None if there is no checkpoint."""
    folders = checkpoints_newest_first(run)
    for folder, older in zip(folders, folders[1:], strict=False):
        try:
            return _load(folder, network, method, f"going on from {older.name} instead.")
        except CorruptFileError as error:
            logger.warning(error.message)
    if not folders:
        return None
    return _load(folders[-1], network, method, f"no other checkpoint is good: delete {run / 'checkpoints'}, and "
                                               f"`stemma resume {run}` starts again from step 0.")


def _load(folder: Path, network: nn.Module, method: StatefulMethod, advice: str) -> Checkpoint:
    """Restore weights, optimizer and counters exactly; nothing changes unless all files are intact."""
    verify_checksums(folder, "the checkpoint", advice, (WEIGHTS, OPTIMIZER, STATE))
    document = read_object(folder / STATE, advice)
    with safe_open(folder / WEIGHTS, framework="pt") as saved, torch.no_grad():
        shapes = {name: saved.get_slice(name).get_shape() for name in saved.keys()}  # noqa: SIM118 (not a dictionary)
        resize_buffers(network, shapes)
        weights = dict(_named_tensors(network))
        _check_same_network(folder, weights, shapes)
        if difference := method.incompatibility(document["optimizer"]):
            raise UserError(f"the checkpoint {folder} was made with {difference}; resume it with the recipe "
                            "it was made by.")
        for name, tensor in weights.items():
            tensor.copy_(saved.get_tensor(name))
    method.restore(MethodState(_read_tensors(folder / OPTIMIZER), document["optimizer"]))
    return Checkpoint(document["step"], document["tokens"], document["values"],
                      _read_groups(folder / MEMORY), _read_groups(folder / OBJECTIVES))


def _read_groups(path: Path) -> dict[str, dict[str, Tensor]]:
    """Tensors by the two parts of their names; empty if there is no file."""
    groups: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in (_read_tensors(path) if path.is_file() else {}).items():
        key, name = full_name.rsplit("/", 1)
        groups.setdefault(key, {})[name] = tensor
    return groups


# ---- tensors ----

def _named_tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name; a tied tensor only under its first name."""
    seen: set[int] = set()
    for name, tensor in network.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


# ---- files ----

def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    # Nothing but the format in the metadata, so that equal tensors are equal bytes.
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


def _read_tensors(path: Path) -> dict[str, Tensor]:
    return {name: align_memory(tensor) for name, tensor in load_file(path).items()}


def checkpoints_newest_first(run: Path) -> list[Path]:
    steps = [(int(match[1]), folder) for folder in (run / "checkpoints").glob("step-*")
             if (match := re.fullmatch(r"step-(\d+)", folder.name))]
    return [folder for _, folder in sorted(steps, reverse=True)]


def _remove_old(newest: Path, num_kept: int) -> None:
    """Keep `newest` and those before it. Later ones are damaged: the run was resumed from an earlier one."""
    folders = checkpoints_newest_first(newest.parent.parent)
    index = folders.index(newest)
    for folder in folders[:index] + folders[index + max(num_kept, 1):]:
        # Rename first: a kill during the deletion must not leave a partial checkpoint under its name.
        renamed = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
        with suppress(OSError):
            folder.rename(renamed)
            shutil.rmtree(renamed, ignore_errors=True)


# ---- checks ----

def _check_same_network(folder: Path, expected: dict[str, Tensor], saved: dict[str, list[int]]) -> None:
    problems = [(name, "is not in the checkpoint") for name in expected if name not in saved]
    problems += [(name, "is in the checkpoint, but not in this network") for name in saved if name not in expected]
    problems += [(name, f"is {saved[name]} in the checkpoint, {list(tensor.shape)} in this network")
                 for name, tensor in expected.items() if name in saved and saved[name] != list(tensor.shape)]
    if problems:
        raise UserError(f"the checkpoint {folder} is of another network; resume it with the recipe it was made by.",
                        problems)

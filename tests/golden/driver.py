"""Runs cases in one version of the code. `compare.py` starts it with the `src` of that version first on PYTHONPATH, and
sends one case per line as JSON.

Both versions train from the same initial weights: the base stores the weights of every network before training, and the
new version copies them. Initialization itself is compared separately, because a refactoring may change the order of
random numbers. Weights are copied when an optimizer is created, because the network is complete by then. The driver
must work with every version, so it uses only torch, the command line and `stemma.build`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch
from tensors import EQUAL, LOADED, SAME_DISTRIBUTION, init_verdict, match, read_weights, same_bytes, write_weights
from torch import Tensor, nn

BASE, NEW = "base", "new"
INITIAL_WEIGHTS = "initial.safetensors"
VOCABULARY = 400  # of networks whose initialization is compared


class InitialWeights:
    """The initial weights of the networks of a case, in the order in which they are trained."""

    def __init__(self, role: str):
        self.role = role
        self.folder = Path()
        self.networks: list[nn.Module] = []
        self.loaded: dict[str, int] = {}  # parameter name -> elements loaded from a model, the fewest of all loads
        self.notes: list[str] = []
        self.problems: list[str] = []

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.networks, self.loaded, self.notes, self.problems = folder, [], {}, [], []

    def mark_loaded(self, network: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Mark parameters that are loaded from a model with their number of loaded elements. New tokens add random rows
        to a loaded embedding matrix."""
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if name in state:
                self.loaded[name] = min(parameter.numel(), self.loaded.get(name, parameter.numel()))
                setattr(parameter, LOADED, self.loaded[name])

    def share(self, network: nn.Module) -> None:
        """Store the weights (base) or replace them by the stored ones (new version)."""
        if any(network is other for other in self.networks):  # a network may have several optimizers
            return
        self.networks.append(network)
        file = self.folder / f"{len(self.networks)}.safetensors"
        if self.role == BASE:
            write_weights(file, network)
        elif file.is_file():
            self._copy_weights(file, dict(network.named_parameters()))
        else:
            self.problems.append(f"network {len(self.networks)} is trained by the new version only")
        torch.manual_seed(len(self.networks))  # later random numbers must not depend on the number of initial ones

    def _copy_weights(self, file: Path, parameters: dict[str, Tensor]) -> None:
        """Copy the weights of the base, after comparing them with the current ones."""
        base, loaded = read_weights(file)
        matched = match(base, parameters)
        unequal, other_distribution = [], []
        for name, other in matched.pairs.items():
            before, now, count = base[name], parameters[other].detach().clone(), loaded.get(name, 0)
            if count:
                unequal += [] if same_bytes(before.flatten()[:count], now.flatten()[:count]) else [name]
                before, now = before.flatten()[count:], now.flatten()[count:]
            if (verdict := init_verdict(before, now)) not in (EQUAL, SAME_DISTRIBUTION):
                other_distribution.append(f"{name} ({verdict})")
            with torch.no_grad():
                parameters[other].copy_(base[name])
        unmatched = [*matched.only_base, *matched.only_new]
        paired = [f"{old} with {new}" for old, new in matched.by_order]
        for names, message, target in ((unequal, "loaded from a model, and not equal", self.problems),
                                       (other_distribution, "initialized from another distribution", self.problems),
                                       (unmatched, "without a counterpart", self.problems),
                                       (paired, "paired by shape and order", self.notes)):
            if names:
                target.append(f"network {len(self.networks)}: {message}: {names[0]}"
                              + (f", and {len(names) - 1} more" if names[1:] else ""))


def patch_torch(initial: InitialWeights) -> None:
    """Call `initial.share` with every network that gets an optimizer, and mark parameters that are loaded."""
    create_optimizer, load_state_dict = torch.optim.Optimizer.__init__, nn.Module.load_state_dict

    def create_and_share(self: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        create_optimizer(self, *arguments, **options)
        initial.share(owner_of([parameter for group in self.param_groups for parameter in group["params"]]))

    def load_and_mark(self: nn.Module, state: Any, *arguments: Any, **options: Any) -> Any:
        result = load_state_dict(self, state, *arguments, **options)
        initial.mark_loaded(self, state)
        return result

    torch.optim.Optimizer.__init__ = create_and_share
    nn.Module.load_state_dict = load_and_mark


def owner_of(parameters: Sequence[Tensor]) -> nn.Module:
    """The network of these parameters: a local variable of a caller, or an attribute of one."""
    ids = set(map(id, parameters))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            for module in modules_of(value):
                if ids <= set(map(id, module.parameters())):
                    return module
        frame = frame.f_back
    raise RuntimeError(f"no module has the {len(ids)} parameters of an optimizer")


def modules_of(value: Any) -> list[nn.Module]:
    """The value, if it is a module, and the modules among its attributes."""
    candidates = [value, *(vars(value).values() if hasattr(value, "__dict__") else ())]
    return [candidate for candidate in candidates if isinstance(candidate, nn.Module)]


def write_initial_weights(recipe: str, file: Path) -> None:
    """Write the initial parameters of a recipe's network."""
    import stemma

    torch.manual_seed(0)
    write_weights(file, modules_of(stemma.build(f"{recipe}@tiny", vocab_size=VOCABULARY))[0])


def run(commands: Sequence[Sequence[str]]) -> str | None:
    """Run commands in the current folder; returns the message of the first that fails."""
    from stemma.cli import main

    for index, arguments in enumerate(commands, 1):
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        output, log = Path(f"{index}-stdout.jsonl"), Path(f"{index}-stderr.txt")
        with _redirected(1, output), _redirected(2, log):
            code = main([*arguments, "--json", "--debug"])
        if code:
            return f"{arguments[0]}: {_message(log.read_text(errors='replace')) or f'exit code {code}'}"
    return None


def recipe_names() -> list[str]:
    """The recipes that `stemma tree` lists; module names differ between versions."""
    from stemma.cli import main

    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder) / "tree.json"
        with _redirected(1, listing):
            main(["tree", "--json"])
        return [recipe["name"] for recipe in json.loads(listing.read_text(encoding="utf-8"))["recipes"]]


def _message(stderr: str) -> str:
    """The error message, without the traceback before it."""
    before, word, after = stderr.rpartition("error: ")
    return " ".join(f"{before.rpartition(chr(10))[2]}{word}{after}".split())


@contextmanager
def _redirected(handle: int, file: Path) -> Iterator[None]:
    """Redirect a file descriptor to a file, including the output of libraries."""
    streams = {1: sys.stdout, 2: sys.stderr}
    streams[handle].flush()
    before = os.dup(handle)
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, handle)
    try:
        yield
    finally:
        streams[handle].flush()
        os.dup2(before, handle)
        os.close(target)
        os.close(before)


def run_request(request: dict[str, Any], initial: InitialWeights) -> dict[str, Any]:
    began = time.perf_counter()
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    initial.begin(Path(request["initial_weights"]))
    try:
        if request["init"] is not None:
            write_initial_weights(request["init"], folder / INITIAL_WEIGHTS)
            error = None
        else:
            error = run(request["commands"])
    except Exception as failed:
        error = f"{type(failed).__name__}: {failed}"
        (folder / "traceback.txt").write_text(traceback.format_exc())
    return {"error": error, "seconds": time.perf_counter() - began, "networks": len(initial.networks),
            "notes": initial.notes, "problems": initial.problems}


def serve(role: str, source: Path, read: Callable[[], str], write: Callable[[str], object]) -> None:
    """Read one request per line and write one response per line; the first response lists the recipes."""
    import stemma

    if source not in Path(stemma.__file__).resolve().parents:
        raise RuntimeError(f"stemma comes from {stemma.__file__}, not from {source}")
    torch.set_num_threads(1)
    initial = InitialWeights(role)
    patch_torch(initial)
    write(json.dumps({"recipes": recipe_names()}) + "\n")
    while line := read():
        write(json.dumps(run_request(json.loads(line), initial)) + "\n")


if __name__ == "__main__":
    os.fsync = lambda handle: None  # not needed for a comparison, and slow
    with os.fdopen(os.dup(1), "w", buffering=1) as responses:
        os.dup2(2, 1)  # other output must not mix with the responses
        serve(sys.argv[1], Path(sys.argv[2]).resolve(), sys.stdin.readline, responses.write)

"""Runs cases in one version of the code: `compare.py` starts it with that version's `src` first on PYTHONPATH, and
sends a case a line.

Both versions start from the same weights. How a network is drawn may change with its code, so that is compared by
itself; here the base notes the weights of every network that is about to be trained, and the new version takes them
over. The moment for it is the making of an optimizer: by then a network is drawn, or read from a model. Nothing is
known here of the names inside the package: what is used is torch, the command line, and `stemma.build`.
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
from tensors import ALIKE, EQUAL, LOADED, draw_verdict, match, read_weights, same_bytes, write_weights
from torch import Tensor, nn

BASE, NEW = "base", "new"
VOCABULARY = 400  # of draws


class Starts:
    """The weights that the networks of a case start with, in the order in which they are trained."""

    def __init__(self, role: str):
        self.role = role
        self.folder = Path()
        self.networks: list[nn.Module] = []
        self.read: dict[str, int] = {}  # the fewest numbers that a model had under a name
        self.notes: list[str] = []
        self.problems: list[str] = []

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.networks, self.read, self.notes, self.problems = folder, [], {}, [], []

    def mark(self, network: nn.Module, state: Mapping[str, Tensor]) -> None:
        """Parameters that are read from a model, with how many of their numbers are: new tokens add rows to a table
        that is otherwise read."""
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if name in state:
                self.read[name] = min(parameter.numel(), self.read.get(name, parameter.numel()))
                setattr(parameter, LOADED, self.read[name])

    def take(self, network: nn.Module) -> None:
        if any(network is known for known in self.networks):  # an optimizer may be made of several
            return
        self.networks.append(network)
        file = self.folder / f"{len(self.networks)}.safetensors"
        if self.role == BASE:
            write_weights(file, network)
        elif file.is_file():
            self._take_over(file, dict(network.named_parameters()))
        else:
            self.problems.append(f"network {len(self.networks)} is trained by the new version alone")
        torch.manual_seed(len(self.networks))  # a draw of another length must not change what is drawn after it

    def _take_over(self, file: Path, own: dict[str, Tensor]) -> None:
        """Put the base's weights into these, after a look at what they would have been."""
        number = len(self.networks)
        theirs, loaded = read_weights(file)
        matched = match(theirs, own)
        read, drawn = [], []
        for name, other in matched.pairs.items():
            before, now, count = theirs[name], own[other].detach().clone(), loaded.get(name, 0)
            if count:
                read += [] if same_bytes(before.flatten()[:count], now.flatten()[:count]) else [name]
                before, now = before.flatten()[count:], now.flatten()[count:]
            if (found := draw_verdict(before, now)) not in (EQUAL, ALIKE):
                drawn.append(f"{name} ({found})")
            with torch.no_grad():
                own[other].copy_(theirs[name])
        alone = [*matched.only_base, *matched.only_new]
        paired = [f"{old} with {new}" for old, new in matched.by_order]
        for names, said, told in ((read, "read from a model, and not the same", self.problems),
                                  (drawn, "drawn from another distribution", self.problems),
                                  (alone, "without a counterpart", self.problems),
                                  (paired, "paired by shape and order", self.notes)):
            if names:
                told.append(f"network {number}: {said}: {names[0]}"
                            + (f", and {len(names) - 1} more" if names[1:] else ""))


def watch(starts: Starts) -> None:
    """Call `starts.take` with every network that gets an optimizer, and mark what is read from a model."""
    make, read = torch.optim.Optimizer.__init__, nn.Module.load_state_dict

    def made(self: torch.optim.Optimizer, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        starts.take(owner_of([parameter for group in self.param_groups for parameter in group["params"]]))

    def reading(self: nn.Module, state: Any, *arguments: Any, **options: Any) -> Any:
        found = read(self, state, *arguments, **options)
        starts.mark(self, state)
        return found

    torch.optim.Optimizer.__init__ = made
    nn.Module.load_state_dict = reading


def owner_of(parameters: Sequence[Tensor]) -> nn.Module:
    """The network that has these parameters: whoever makes an optimizer has it at hand, as a variable or in one."""
    wanted = set(map(id, parameters))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            for module in modules_of(value):
                if wanted <= set(map(id, module.parameters())):
                    return module
        frame = frame.f_back
    raise RuntimeError(f"no module has the {len(wanted)} parameters that an optimizer was made for")


def modules_of(value: Any) -> list[nn.Module]:
    """The value itself, or the modules that it has as attributes."""
    found = [value, *(vars(value).values() if hasattr(value, "__dict__") else ())]
    return [one for one in found if isinstance(one, nn.Module)]


def draw(recipe: str, file: Path) -> None:
    """The parameters of a recipe's network, as they are drawn with one seed."""
    import stemma

    torch.manual_seed(0)
    write_weights(file, modules_of(stemma.build(f"{recipe}@tiny", vocab_size=VOCABULARY))[0])


def run(commands: Sequence[Sequence[str]]) -> str | None:
    """Carry out verbs of the command line in the current folder; the message of the first that fails."""
    from stemma.cli import main

    for number, arguments in enumerate(commands, 1):
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(0)
        told, log = Path(f"{number}-stdout.jsonl"), Path(f"{number}-stderr.txt")
        with _into(1, told), _into(2, log):
            code = main([*arguments, "--json", "--debug"])
        if code:
            return f"{arguments[0]}: {_message(log.read_text(errors='replace')) or f'exit code {code}'}"
    return None


def recipe_names() -> list[str]:
    """As the command line lists them: the module that knows them has other names in other versions."""
    from stemma.cli import main

    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder) / "tree.json"
        with _into(1, listing):
            main(["tree", "--json"])
        return [recipe["name"] for recipe in json.loads(listing.read_text(encoding="utf-8"))["recipes"]]


def _message(said: str) -> str:
    """What is said of an error, without the traceback before it."""
    before, word, after = said.rpartition("error: ")
    return " ".join(f"{before.rpartition(chr(10))[2]}{word}{after}".split())


@contextmanager
def _into(handle: int, file: Path) -> Iterator[None]:
    """What is written to this file descriptor goes to the file, also what libraries write."""
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


def answer(request: dict[str, Any], starts: Starts) -> dict[str, Any]:
    began = time.perf_counter()
    folder = Path(request["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    starts.begin(Path(request["starts"]))
    try:
        if request["draw"] is not None:
            draw(request["draw"], folder / "draw.safetensors")
            error = None
        else:
            error = run(request["commands"])
    except Exception as failed:
        error = f"{type(failed).__name__}: {failed}"
        (folder / "traceback.txt").write_text(traceback.format_exc())
    return {"error": error, "seconds": time.perf_counter() - began, "networks": len(starts.networks),
            "notes": starts.notes, "problems": starts.problems}


def serve(role: str, source: Path, read: Callable[[], str], write: Callable[[str], object]) -> None:
    """A line in, a line out; the first answer names the recipes."""
    import stemma

    if source not in Path(stemma.__file__).resolve().parents:
        raise RuntimeError(f"stemma comes from {stemma.__file__}, not from {source}")
    torch.set_num_threads(1)
    starts = Starts(role)
    watch(starts)
    write(json.dumps({"recipes": recipe_names()}) + "\n")
    while line := read():
        write(json.dumps(answer(json.loads(line), starts)) + "\n")


if __name__ == "__main__":
    os.fsync = lambda handle: None  # only a power cut needs it
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)  # whatever else is printed is not an answer
        serve(sys.argv[1], Path(sys.argv[2]).resolve(), sys.stdin.readline, answers.write)

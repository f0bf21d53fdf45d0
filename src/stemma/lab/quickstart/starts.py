"""What pre-trained weights are worth where labels are few: fine-tunes from them, beside two baselines.

The same network with random weights is fine-tuned by the same command with the same settings; a linear classifier of
n-grams knows nothing but the labelled sentences. Every fine-tune is an ordinary run in a node of its own (as a cell of
a lab is), so that an interrupted quickstart goes on with those that are left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stemma.exchange.load import load
from stemma.exchange.save import save
from stemma.exchange.weights import SAFE
from stemma.files import sha256
from stemma.lab.quickstart.ngrams import NGrams
from stemma.lab.quickstart.probe import TEST, TRAIN, Probe
from stemma.objectives import build_network
from stemma.tasks.finetune import resume
from stemma.tasks.prepare import Task, finetune
from stemma.training.graph import Node, carried_out, digest
from stemma.training.run import MODEL

# Who learns from few labels, and how that is called in tables.
LEARNERS = {"random": "from random weights", "n-grams": "word and character n-grams",
            "pre-trained": "from pre-trained weights"}
AGAIN = "add --overwrite to begin anew."
Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to fine-tune. The defaults suit a few hundred examples and a small network."""

    epochs: int = 10
    learning_rate: float = 5e-4
    batch_size: int = 16
    pooling: str = "mean"
    weight_decay: float = 0.01
    frozen_embedding: bool = True  # with few labels: words in none of the examples keep their relation to the rest

    def changes(self) -> list[str]:
        """As they are typed. Neither is the best epoch chosen nor is one gone back to, so one look and one checkpoint,
        at the end, are enough."""
        return [f"finetuning.pooling={self.pooling}", "finetuning.optimizer.kind=adamw",
                f"finetuning.optimizer.weight_decay={self.weight_decay}", "finetuning.schedule.kind=linear",
                "finetuning.warmup=0.1", "finetuning.clip_norm=1.0", f"training.learning_rate={self.learning_rate}",
                f"training.batch_size={self.batch_size}", f"training.frozen={int(self.frozen_embedding)}",
                "training.validate_every=1000000", "training.checkpoint_every=1000000"]


def compare_starts(run: Path, probes: Sequence[Probe], settings: Settings, seed: int, folder: Path,
                   watch: Say = lambda text: None) -> dict[str, dict[str, list[float]]]:
    """Test accuracy after fine-tuning from the run's weights and from random ones, and that of n-grams, by probe.

    Every round draws its own examples, its own random weights and its own order of batches; the two starts of a round
    share all of that, and the settings too. The n-gram classifier learns from the same examples.
    """
    found: dict[str, dict[str, list[float]]] = {name: {"test": [], "train": []} for name in LEARNERS}

    def note(name: str, scores: dict[str, Any]) -> None:
        for part, values in found[name].items():
            values.append(float(scores[part]))

    for number, probe in enumerate(probes):
        place = folder / f"round-{number + 1}"
        probe.write(place / "task")
        for name, start in (("random", _random_start(run, place / "random", seed + number)), ("pre-trained", run)):
            watch(f"fine-tuning from {name} weights, seed {number + 1} of {len(probes)}")
            note(name, _fine_tuned(start, place, settings, seed + number))
        watch(f"fitting an n-gram classifier, seed {number + 1} of {len(probes)}")
        fitted = NGrams(probe.train)
        note("n-grams", {"test": fitted.accuracy(probe.test), "train": fitted.accuracy(probe.train)})
    return found


def _random_start(run: Path, place: Path, seed: int) -> Path:
    """The run's model with weights that are drawn anew, as a folder."""
    model = load(run)
    torch.manual_seed(seed)
    network = build_network(model.recipe, model.network.vocabulary, model.tokenizer)
    save(replace(model, network=network.eval()), place, overwrite=True)
    return place


def _fine_tuned(start: Path, place: Path, settings: Settings, seed: int) -> dict[str, Any]:
    """Accuracy on both sets; the fine-tuned weights are not kept."""
    weights = start / MODEL / SAFE if (start / MODEL).is_dir() else start / SAFE
    files = {"train": place / "task" / TRAIN, "dev": place / "task" / TEST, "test": place / "task" / TRAIN}
    number = digest(sha256(weights), {part: sha256(file) for part, file in files.items()}, asdict(settings), seed)
    node = Node(place / number[:16], AGAIN)
    with node.held():
        if (known := node.found()) is not None:
            return known
        begin = partial(finetune, Task("classify", files), start, epochs=settings.epochs, seed=seed,
                        changes=settings.changes())
        metrics = carried_out(node.folder / "run", lambda run: begin(out=run), resume)["metrics"]
        found = {"test": metrics["dev"]["accuracy"], "train": metrics["test"]["accuracy"]}
        shutil.rmtree(node.folder / "run")
        node.finish(found)
        return found

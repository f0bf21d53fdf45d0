"""The quickstart as an experiment of the lab: what pre-trained weights are worth where labels are few.

There are two variants, the network that is pre-trained and the same network with random weights, and a task that is
drawn several times. Both are fine-tuned by the lab with the same settings. Beside them, a linear classifier of n-grams
knows nothing but the labelled sentences.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stemma.json_files import explain_damage
from stemma.lab.experiment import RANDOM, ComputeBudget, DownstreamTask, Experiment, Variant
from stemma.lab.quickstart.ngram_classifier import NgramClassifier
from stemma.lab.quickstart.probe_task import TEST, TRAIN, Probe
from stemma.lab.run_experiment import Lab
from stemma.recipe_loading import Recipe

# Who learns from few labels, and how that is called in tables.
CLASSIFIERS = {"random": "from random weights", "n-grams": "word and character n-grams",
            "pre-trained": "from pre-trained weights"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class ProbeTraining:
    """How to fine-tune. The defaults suit a few hundred examples and a small network."""

    epochs: int = 10
    learning_rate: float = 5e-4
    batch_size: int = 16
    pooling: str = "mean"
    weight_decay: float = 0.01
    frozen_embedding: bool = True  # with few labels: words in none of the examples keep their relation to the rest

    def changes(self) -> tuple[str, ...]:
        """As they are typed. Neither is the best epoch chosen nor is one gone back to, so one look and one checkpoint,
        at the end, are enough."""
        return (f"finetuning.pooling={self.pooling}", "finetuning.optimizer.kind=adamw",
                f"finetuning.optimizer.weight_decay={self.weight_decay}", "finetuning.schedule.kind=linear",
                "finetuning.warmup=0.1", "finetuning.clip_norm=1.0", f"training.learning_rate={self.learning_rate}",
                f"training.batch_size={self.batch_size}", f"training.frozen={int(self.frozen_embedding)}",
                "training.validate_every=1000000", "training.checkpoint_every=1000000")


def experiment(chosen: Recipe, run: Path, corpus: Path, tasks: Sequence[Path], minutes: float, seed: int) -> Experiment:
    """Two starts of one network as variants, and a task for each round: examples of its own, and a seed of its own for
    the random weights and the order of batches. What a round draws is the same for both variants."""
    settings = ProbeTraining()
    return Experiment(
        "compare", "What are pre-trained weights worth?",
        (Variant("pre-trained", chosen, run=str(run.absolute())), Variant("random", chosen, RANDOM)),
        ComputeBudget("minutes", minutes), (seed,), str(corpus.absolute()), (),
        tasks=tuple(DownstreamTask("classify", str((task / TRAIN).absolute()), str((task / TEST).absolute()),
                                   settings.epochs,
                            seed=seed + number, also=str((task / TRAIN).absolute()), changes=settings.changes())
                    for number, task in enumerate(tasks)),
        command=f"stemma quickstart --out {shlex.quote(str(run.parent))}")


def learnt(lab: Lab, probes: Sequence[Probe], watch: Say = lambda text: None) -> dict[str, dict[str, list[float]]]:
    """Accuracy on the test sentences and on those that were learnt from, by learner and round. The n-gram classifier
    learns from the same examples."""
    found: dict[str, dict[str, list[float]]] = {name: {"test": [], "train": []} for name in CLASSIFIERS}
    for cell in lab.cells:
        for told in filter(None, map(cell.task_scores, lab.experiment.tasks)):
            with explain_damage(cell.folder, cell.retry_advice):
                found[cell.variant.name]["test"].append(float(told["scores"]["accuracy"]["value"]))
                found[cell.variant.name]["train"].append(float(told["also"]["accuracy"]))
    for number, probe in enumerate(probes):
        watch(f"fitting an n-gram classifier, seed {number + 1} of {len(probes)}")
        fitted = NgramClassifier(probe.train)
        found["n-grams"]["test"].append(fitted.accuracy(probe.test))
        found["n-grams"]["train"].append(fitted.accuracy(probe.train))
    return found

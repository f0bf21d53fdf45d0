"""The quickstart as an experiment of the lab: fine-tuning with few labels from pre-trained and from random weights.

The two variants are the pre-trained network and the same network with random weights. The task is sampled several
times, and both are fine-tuned with the same settings. The linear baseline is fitted here,
because its training accuracy is shown too.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stemma.json_files import explain_damage
from stemma.lab.experiment import RANDOM, ComputeBudget, DownstreamTask, Experiment, Variant
from stemma.lab.quickstart.probe_task import TEST, TRAIN, Probe
from stemma.lab.run_experiment import Lab
from stemma.recipe_loading import Recipe
from stemma.tasks.linear_baseline import LinearBaseline

# The classifiers and their names in tables.
CLASSIFIERS = {"random": "random weights", "n-grams": "word and character n-grams",
               "pre-trained": "pre-trained weights"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class ProbeTraining:
    """Fine-tuning settings for a few hundred examples and a small network."""

    epochs: int = 10
    learning_rate: float = 5e-4
    batch_size: int = 16
    pooling: str = "mean"
    weight_decay: float = 0.01
    frozen_embedding: bool = True  # tokens that occur in no example keep their relation to the others

    def changes(self) -> tuple[str, ...]:
        """The settings as `key=value` changes. There is one validation and one checkpoint, at the end: no best epoch
        is selected."""
        return (f"finetuning.pooling={self.pooling}", "finetuning.optimizer.kind=adamw",
                f"finetuning.optimizer.weight_decay={self.weight_decay}", "finetuning.schedule.kind=linear",
                "finetuning.warmup=0.1", "finetuning.clip_norm=1.0", f"training.learning_rate={self.learning_rate}",
                f"training.batch_size={self.batch_size}", f"training.frozen={int(self.frozen_embedding)}",
                "training.validate_every=1000000", "training.checkpoint_every=1000000")


def experiment(recipe: Recipe, run: Path, corpus: Path, tasks: Sequence[Path], minutes: float, seed: int) -> Experiment:
    """One network from two initializations as variants, and one task per round. Each round has its own examples and its
    own seed for random weights and batch order; both variants share them."""
    settings = ProbeTraining()
    return Experiment(
        "compare", "Pre-trained against random weights",
        (Variant("pre-trained", recipe, run=str(run.absolute())), Variant("random", recipe, RANDOM)),
        ComputeBudget("minutes", minutes), (seed,), str(corpus.absolute()), (),
        tasks=tuple(DownstreamTask("classify", str((task / TRAIN).absolute()), str((task / TEST).absolute()),
                                   settings.epochs, seed=seed + index, also=str((task / TRAIN).absolute()),
                                   changes=settings.changes())
                    for index, task in enumerate(tasks)),
        command=f"stemma quickstart --out {shlex.quote(str(run.parent))}", baseline=False)


def classifier_accuracies(lab: Lab, probes: Sequence[Probe],
                          say: Say = lambda text: None) -> dict[str, dict[str, list[float]]]:
    """Test and training accuracy by classifier and round. The n-gram classifier is fitted to the same examples."""
    accuracies: dict[str, dict[str, list[float]]] = {name: {"test": [], "train": []} for name in CLASSIFIERS}
    for cell in lab.cells:
        for scores in filter(None, map(cell.task_scores, lab.experiment.tasks)):
            with explain_damage(cell.folder, cell.retry_advice):
                accuracies[cell.variant.name]["test"].append(float(scores["scores"]["accuracy"]["value"]))
                accuracies[cell.variant.name]["train"].append(float(scores["also"]["accuracy"]))
    for index, probe in enumerate(probes):
        say(f"fitting an n-gram classifier, seed {index + 1} of {len(probes)}")
        classifier = LinearBaseline([(text,) for text, _ in probe.train], [label for _, label in probe.train])
        for split, examples in (("test", probe.test), ("train", probe.train)):
            predicted = classifier.predict([(text,) for text, _ in examples])
            correct = [guess == label for guess, (_, label) in zip(predicted, examples, strict=True)]
            accuracies["n-grams"][split].append(sum(correct) / len(correct))
    return accuracies

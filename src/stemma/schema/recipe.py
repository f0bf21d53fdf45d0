"""A whole recipe, resolved; and what a recipe file says besides its sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stemma.schema.base import Blame, Conflict, Settings
from stemma.schema.corpus import CorpusSettings
from stemma.schema.network import NetworkSettings
from stemma.schema.objective import ObjectiveSettings
from stemma.schema.tokenizer import TokenizerSettings
from stemma.schema.training import TrainingSettings

SECTIONS = ("tokenizer", "corpus", "network", "objective", "training")

# What a size may set. The list is closed so that a size stays a size: ideas belong into recipes.
SIZE_KEYS = (
    "network.layers", "network.width", "network.heads", "network.feedforward", "network.dropout",
    "network.embedding.width", "network.embedding.shrink", "network.decoder.layers",
    "network.position.maximum", "network.attention.head_width", "network.attention.dropout",
    "network.attention.windows", "network.memory.length", "network.memory.evaluation",
    "network.initialization.spread", "corpus.sequence_length",
    "training.batch_size", "training.warmup_steps", "training.learning_rate", "training.steps",
    "training.checkpoint_every", "training.validate_every",
)


class RecipeSettings(Settings):
    tokenizer: TokenizerSettings
    corpus: CorpusSettings
    network: NetworkSettings
    objective: dict[str, ObjectiveSettings] = {}
    training: TrainingSettings

    def packings(self) -> dict[str, str]:
        """The packing of each objective, by its name."""
        return {name: task.packing or self.corpus.packing for name, task in self.objective.items()}

    def conflicts(self) -> Iterator[Conflict]:
        longest = getattr(self.network.position, "maximum", None)
        if longest is not None and self.corpus.sequence_length > longest:
            yield (Blame("corpus.sequence_length", f"is longer than network.position.maximum = {longest}"),
                   Blame("network.position.maximum", f"is shorter than corpus.sequence_length = "
                                                     f"{self.corpus.sequence_length}"))
        packings = self.packings()
        for name, task in self.objective.items():
            if task.needs_packing and packings[name] not in task.needs_packing:
                needed = " or ".join(task.needs_packing)
                blames = (Blame("corpus.packing", f"objective.{name} needs {needed} (or remove=objective.{name})"),
                          Blame(f"objective.{name}", f"needs {needed} in corpus.packing or in its own packing"))
                own = Blame(f"objective.{name}.packing", f"objective.{name} needs {needed}")
                yield (own, *blames) if task.packing else blames
        for name, task in self.objective.items():
            if task.needs_query and not self.network.embedding.query:
                yield (Blame(f"objective.{name}", "guesses through a second stream: set network.embedding.query=true"),
                       Blame("network.embedding.query", f"objective.{name} needs it"))
        used = {slot.segment for packing in (packings.values() or [self.corpus.packing])
                for slot in self.corpus.slots(packing)}
        segments = self.network.embedding.segments
        if max(used) >= max(segments, 1) and not self.network.attention.segments:
            yield (Blame("network.embedding.segments", f"the template of corpus.pair or corpus.single uses segment "
                                                       f"{max(used)}: at least {max(used) + 1} are needed"),)


class RecipeFile(Settings):
    """The top of a recipe file. The sections are a part of a recipe only, so they are checked after inheritance."""

    parent: str | None = None
    title: str | None = None
    year: int | None = None
    paper: str | None = None
    summary: str | None = None
    remove: list[str] = []
    sizes: dict[str, dict[str, Any]] = {}
    # only in the file of a run, where everything is resolved:
    name: str | None = None
    size: str | None = None
    origin: dict[str, str] | None = None

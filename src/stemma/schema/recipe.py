"""A whole recipe, resolved; and what a recipe file says besides its sections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stemma.schema.base import Blame, Conflict, Settings
from stemma.schema.corpus import PAIR_PACKINGS, TWO_TEXTS, CorpusSettings, parse_template
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

    def templates(self) -> dict[str, str]:
        """Every template that some row is laid out by, with the key that sets it. A row without a B is laid out by
        `single` whatever its packing; with a decoder both texts are, each by itself."""
        used: dict[str, str] = {}
        for name, packing in self.packings().items():
            task = self.objective[name]
            paired = packing in (*PAIR_PACKINGS, *TWO_TEXTS) and not task.needs_decoder
            for kind in ("single", "pair") if paired else ("single",):
                own = getattr(task, kind)
                key = f"corpus.{kind}" if own is None else f"objective.{name}.{kind}"
                used[key] = own or getattr(self.corpus, kind)
        return used or {"corpus.single": self.corpus.single}

    def roles(self) -> set[str]:
        """The special tokens that the templates, the tasks and a decoder's start call for."""
        written = {slot.name for template in self.templates().values() for slot in parse_template(template)}
        written |= {self.corpus.decoder_start} if self.network.decoder is not None else set()
        return (written - {"A", "B"}).union(*(task.roles for task in self.objective.values()))

    def conflicts(self) -> Iterator[Conflict]:
        longest = getattr(self.network.position, "maximum", None)
        if longest is not None and self.corpus.sequence_length > longest:
            yield (Blame("corpus.sequence_length", f"is longer than network.position.maximum = {longest}"),
                   Blame("network.position.maximum", f"is shorter than corpus.sequence_length = "
                                                     f"{self.corpus.sequence_length}"))
        packings = self.packings()
        for name, task in self.objective.items():
            if task.needs_packing and packings[name] not in task.needs_packing:
                *others, last = task.needs_packing
                needed = f"{', '.join(others)} or {last}" if others else last
                blames = (Blame("corpus.packing", f"objective.{name} needs {needed} (or remove=objective.{name})"),
                          Blame(f"objective.{name}", f"needs {needed} in corpus.packing or in its own packing"))
                own = Blame(f"objective.{name}.packing", f"objective.{name} needs {needed}")
                yield (own, *blames) if task.packing else blames
        for name, task in self.objective.items():
            if task.needs_query and not self.network.embedding.query:
                yield (Blame(f"objective.{name}", "guesses through a second stream: set network.embedding.query=true"),
                       Blame("network.embedding.query", f"objective.{name} needs it"))
            if task.needs_decoder and self.network.decoder is None:
                yield (Blame(f"objective.{name}", "writes with a decoder: set network.decoder.layers"),
                       Blame("network.decoder", f"objective.{name} needs it"))
            if self.network.decoder is not None and not task.needs_decoder:
                yield (Blame(f"objective.{name}", "does not use the decoder: remove=network.decoder"),
                       Blame("network.decoder", f"objective.{name} does not use it: remove=network.decoder"))
        segments = max(self.network.embedding.segments, 1)
        for key, template in self.templates().items():
            highest = max(slot.segment for slot in parse_template(template))
            if highest >= segments and not self.network.attention.segments:
                yield (Blame("network.embedding.segments", f"{key} uses segment {highest}: at least {highest + 1} are "
                                                           "needed"),
                       Blame(key, f"uses segment {highest}, which needs network.embedding.segments={highest + 1}"))


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

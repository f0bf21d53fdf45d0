"""Settings of a whole recipe, and the top-level keys of a recipe file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from stemma.schema.base import Conflict, ConflictKey, Settings
from stemma.schema.corpus import CorpusSettings, packing_settings, parse_template
from stemma.schema.finetuning import FinetuningSettings, default_finetuning
from stemma.schema.network import NetworkSettings
from stemma.schema.objective import AnyObjective, ObjectiveSettings
from stemma.schema.tokenizer import TokenizerSettings
from stemma.schema.training import TrainingSettings

SECTIONS = ("tokenizer", "corpus", "network", "objective", "training", "finetuning")


class RecipeSettings(Settings):
    """All sections of a resolved recipe."""

    # a body of counts and the method that counts
    one_decision = (("network.depth", "network.depth.kind", "training.method", "training.method.kind"),)

    tokenizer: TokenizerSettings
    corpus: CorpusSettings
    network: NetworkSettings
    objective: dict[str, AnyObjective] = {}
    training: TrainingSettings
    finetuning: FinetuningSettings = Field(default_factory=default_finetuning)

    def packings(self) -> dict[str, str]:
        """Objective name -> packing."""
        return {name: task.packing or self.corpus.packing for name, task in self.objective.items()}

    def templates(self) -> dict[str, str]:
        """Key -> template, of all templates in use. A row without B uses `single` with any packing; with a decoder,
        source and target each use `single`."""
        used: dict[str, str] = {}
        for name, packing in self.packings().items():
            task = self.objective[name]
            paired = packing_settings(packing).paired and not task.needs_decoder
            for kind in ("single", "pair") if paired else ("single",):
                template = getattr(task, kind)
                key = f"corpus.{kind}" if template is None else f"objective.{name}.{kind}"
                used[key] = template or getattr(self.corpus, kind)
        return used or {"corpus.single": self.corpus.single}

    def special_tokens(self) -> set[str]:
        """Roles of the special tokens that the templates, the objectives and the decoder start need."""
        roles = {slot.name for template in self.templates().values() for slot in parse_template(template)}
        roles |= {self.corpus.decoder_start} if self.network.decoder is not None else set()
        return (roles - {"A", "B"}).union(*(task.special_tokens for task in self.objective.values()))

    def conflicts(self) -> Iterator[Conflict]:
        longest = self.network.max_length
        if longest is not None and self.corpus.sequence_length > longest:
            yield (ConflictKey("corpus.sequence_length", f"is longer than network.position.maximum = {longest}"),
                   ConflictKey("network.position.maximum",
                               f"is shorter than corpus.sequence_length = {self.corpus.sequence_length}"))
        if self.network.embedding.tied and self.training.optimizer.lookup_learning_rate is not None:
            yield (ConflictKey("training.optimizer.embedding_learning_rate",
                               "the embedding is the LM head's matrix too, which has adamw_learning_rate: set "
                               "network.embedding.tied=false or remove=training.optimizer.embedding_learning_rate"),
                   ConflictKey("network.embedding.tied",
                               "a tied embedding has no learning rate of its own: "
                               "remove=training.optimizer.embedding_learning_rate"))
        packings = self.packings()
        for name, task in self.objective.items():
            if task.allowed_packings and packings[name] not in task.allowed_packings:
                *others, last = task.allowed_packings
                needed = f"{', '.join(others)} or {last}" if others else last
                keys = (ConflictKey("corpus.packing",
                                    f"objective.{name} needs {needed} (or remove=objective.{name})"),
                        ConflictKey(f"objective.{name}", f"needs {needed} in corpus.packing or in its own packing"))
                own_key = ConflictKey(f"objective.{name}.packing", f"objective.{name} needs {needed}")
                yield (own_key, *keys) if task.packing else keys
        for name, task in self.objective.items():
            num_tasks = self.network.embedding.tasks
            if task.task_id is not None and task.task_id >= num_tasks:
                yield (ConflictKey(f"objective.{name}.task_id",
                                   f"counts from 0, and network.embedding.tasks = {num_tasks}"),
                       ConflictKey("network.embedding.tasks",
                                   f"objective.{name} has task_id {task.task_id}, which needs at least "
                                   f"{task.task_id + 1}"))
            if task.needs_query_stream and not self.network.embedding.query:
                yield (ConflictKey(f"objective.{name}",
                                   "predicts from the query stream: set network.embedding.query=true"),
                       ConflictKey("network.embedding.query", f"objective.{name} needs it"))
            if task.needs_decoder and self.network.decoder is None:
                yield (ConflictKey(f"objective.{name}", "writes with a decoder: set network.decoder.layers"),
                       ConflictKey("network.decoder", f"objective.{name} needs it"))
            if self.network.decoder is not None and not task.needs_decoder:
                yield (ConflictKey(f"objective.{name}", "does not use the decoder: remove=network.decoder"),
                       ConflictKey("network.decoder", f"objective.{name} does not use it: remove=network.decoder"))
            needs = {"full": set(), "causal": {"causal"}}.get(task.attention_mask_kind, {"masks"})
            yield from (tuple(ConflictKey(f"network.{part.key}", part.message) for part in conflict)
                        for conflict in self.network.missing_features(needs, f"objective.{name}"))
            body = self.network.depth
            if body.causal_only and task.attention_mask_kind != "causal":
                what = f"a body of kind {body.kind} reads from left to right only"
                yield (ConflictKey("network.depth.kind", f"{what}, and objective.{name} looks at both sides"),
                       ConflictKey(f"objective.{name}",
                                   f"looks at both sides, and {what}: set another network.depth.kind"))
        yield from self._generator_conflicts()
        yield from self._mask_conflicts()
        for name, task in self.objective.items():
            yield from task.recipe_conflicts(name, self)
        yield from self._layer_conflicts()
        yield from self._schedule_conflicts()
        yield from self.training.method_settings.recipe_conflicts(self)
        if self.network.depth.counts and self.training.method is None:
            what = f"a network of kind {self.network.depth.kind} has no weights that gradient descent could change"
            yield (ConflictKey("training.method.kind", f"{what}: leave it out"),
                   ConflictKey("network.depth.kind", f"{what}: set training.method.kind too, or start from the recipe "
                                                     "ngram or two-sided-ngram"))
        segments = max(self.network.embedding.segments, 1)
        for key, template in self.templates().items():
            highest = max(slot.segment for slot in parse_template(template))
            if highest >= segments and not self.network.attention.segments:
                yield (ConflictKey("network.embedding.segments",
                                   f"{key} uses segment {highest}: at least {highest + 1} are needed"),
                       ConflictKey(key, f"uses segment {highest}, which needs "
                                        f"network.embedding.segments={highest + 1}"))

    def _generator_conflicts(self) -> Iterator[Conflict]:
        """A generator fills in the masks of a masked LM for a discriminator; other objectives cannot use it."""
        discriminators = [name for name, task in self.objective.items() if task.needs_generator]
        if self.network.generator is not None and self.objective and not discriminators:
            yield (ConflictKey("network.generator",
                               "no objective judges what it writes: add objective.replaced_token (or "
                               "remove=network.generator)"),)
        for name, task in self.objective.items():
            if self.network.generator is not None and not task.masks_tokens and not task.needs_generator:
                yield (ConflictKey(f"objective.{name}",
                                   "is not supported beside a generator, which reads the text in its place (or "
                                   "remove=network.generator)"),
                       ConflictKey("network.generator", f"is not supported beside objective.{name}"))
            if not task.needs_generator:
                continue
            if self.network.generator is None:
                yield (ConflictKey(f"objective.{name}",
                                   "judges what a generator wrote: set network.generator.multiplier"),
                       ConflictKey("network.generator", f"objective.{name} needs it (or remove=objective.{name})"))

    def _mask_conflicts(self) -> Iterator[Conflict]:
        """An objective on masked tokens needs another objective that masks them."""
        for index, (name, task) in enumerate(self.objective.items()):
            masking = [other for other in list(self.objective.values())[:index] if other.masks_tokens]
            if task.needs_masked_tokens and not any(_masks_for(other, task) for other in masking):
                what = "needs a masked_lm before it that sees both sides, reads the same rows and is active as long"
                yield (ConflictKey(f"objective.{name}", what),
                       ConflictKey("objective.masked_lm", f"objective.{name} {what}"))

    def _schedule_conflicts(self) -> Iterator[Conflict]:
        """Keys of [training] that need plain rows, a softmax over the vocabulary or gradient descent."""
        training = self.training
        if training.batch_schedule is not None:
            for name, packing in self.packings().items():
                settings = packing_settings(packing)
                if settings.contiguous or settings.bucketed:
                    what = "continue in the next batch" if settings.contiguous else "are sorted into batches by length"
                    yield (ConflictKey("training.batch_schedule",
                                       f"rows of packing {packing} (objective.{name}) {what}, so the batch size cannot "
                                       "change: leave it out"),)
        if training.z_loss is not None and self.network.embedding.cutoffs:
            yield (ConflictKey("training.z_loss", "an adaptive softmax has no single normalizer: leave it out"),
                   ConflictKey("network.embedding.cutoffs", "do not combine with training.z_loss"))
        if training.ema is not None and training.average_after is not None:
            yield (ConflictKey("training.average_after", "is another average than that of training.ema: leave one out"),
                   ConflictKey("training.ema", "is another average than that of training.average_after: leave one out"))
        for key in ("ema", "average_after", "z_loss"):
            if getattr(training, key) is not None and training.method is not None:
                yield (ConflictKey(f"training.{key}",
                                   f"is about gradient descent, not training.method.kind = {training.method.kind}"),)

    def _layer_conflicts(self) -> Iterator[Conflict]:
        """Layer-wise settings that do not fit the layers of this network."""
        network, training = self.network, self.training
        layers = network.total_layers
        frozen = layers + 1 if training.frozen == "all" else training.frozen
        shared = f"network.{network.one_block.key}.kind = {network.one_block.body.kind}" if network.one_block else \
            f"network.sharing = {network.sharing}" if network.sharing != "none" else None
        is_set = {"layer_decay": training.layer_decay is not None, "frozen": frozen > 1 and training.frozen != "all",
                  "unfreeze": training.unfreeze is not None, "fresh": training.fresh > 0}
        for key in [key for key, value in is_set.items() if value and shared]:
            yield (ConflictKey(f"training.{key}", f"treats layers differently, and {shared} makes them one"),)
        if self.finetuning.layer_decay is not None and shared:
            yield (ConflictKey("finetuning.layer_decay", f"treats layers differently, and {shared} makes them one"),)
        if frozen > layers + 1:
            yield (ConflictKey("training.frozen",
                               f"there are {layers} layers and the embedding: at most {layers + 1}, or all"),)
        if training.fresh > layers:
            yield (ConflictKey("training.fresh", f"there are {layers} layers"),)
        elif training.fresh and training.fresh + frozen > layers + 1:
            yield (ConflictKey("training.fresh",
                               f"training.frozen = {training.frozen} would keep some of them as drawn"),
                   ConflictKey("training.frozen",
                               f"keeps some of the training.fresh = {training.fresh} layers as drawn"))
        for key in ("unfreeze", "layer_decay"):
            if frozen == layers + 1 and is_set[key]:
                yield (ConflictKey(f"training.{key}",
                                   f"has no effect: with training.frozen = {training.frozen} no layer learns"),)


def _masks_for(masked: ObjectiveSettings, discriminating: ObjectiveSettings) -> bool:
    """Whether both objectives share their batches, and the first is active whenever the second is."""
    keys = ("packing", "single", "pair", "task_id")
    same_batches = all(getattr(masked, key) == getattr(discriminating, key) for key in keys)
    covers = masked.start_step <= discriminating.start_step and masked.start_fraction <= discriminating.start_fraction \
        and masked.end_fraction >= discriminating.end_fraction
    return same_batches and covers and masked.attention_mask_kind == "full"


def _plugins(value: object) -> Any:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [None]
    if all(isinstance(item, str) for item in items):
        return value
    raise ValueError('must be a list of files, such as ["my_objective.py"]')


class RecipeFile(Settings):
    """Top-level keys of a recipe file. Its sections are incomplete, so they are validated after inheritance."""

    parent: str | None = None
    title: str | None = None
    year: int | None = None
    paper: str | None = None
    summary: str | None = None
    remove: list[str] = []
    sizes: dict[str, dict[str, Any]] = {}
    # Plug-in files next to the recipe; in the recipe of a run: name and SHA-256.
    plugins: Annotated[list[str] | dict[str, str], PlainValidator(_plugins)] = []
    # Only in the resolved recipe of a run:
    name: str | None = None
    size: str | None = None
    origin: dict[str, str] | None = None

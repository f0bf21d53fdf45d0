"""Carrying a plan out: every stage is an ordinary run below the pipeline's folder, begun, taken up again or reused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.exchange.load import find_folder
from stemma.files import remove_leftovers
from stemma.lineage import Recipe
from stemma.notes import about, silenced
from stemma.tasks.data.examples import Example
from stemma.tasks.finetune import resume
from stemma.tasks.pipeline.blend import BLENDED, blend_task, blend_text, read_blend
from stemma.tasks.pipeline.held_out import bits_per_byte, held_out_loss, network_with, weights_of
from stemma.tasks.pipeline.plan import PipelinePlan, Stage
from stemma.tasks.pipeline.provenance import Provenance, digest
from stemma.tasks.pipeline.recipes import continued
from stemma.tasks.pipeline.texts import example_documents, numbered_texts, replayed, write_documents
from stemma.tasks.prepare import finetune
from stemma.text.tokenizer import Tokenizer
from stemma.training.graph import carried_out, remembered
from stemma.training.pretrain import pretrain
from stemma.training.run import PLAN, is_corpus, locate, read_result, read_run
from stemma.training.source import corpus_from_text

logger = logging.getLogger(__name__)

MEASURES = "measures.json"


@dataclass
class Stages:
    """The stages of one plan in one folder."""

    run: Path
    plan: PipelinePlan
    provenance: Provenance
    recipes: Mapping[str, Recipe]
    examples: Mapping[str, Mapping[str, Sequence[Example]]]  # by stage that learns a task, and set
    show: bool
    _general: list[Corpus | None] = field(default_factory=list)  # opened once

    # --- places ---

    def places(self) -> dict[str, str]:
        """Every run below this folder, by its place, with the number of what goes into it."""
        found = {}
        for name, stage in self.plan.stages.items():
            if stage.kind != "model":
                found[f"stages/{name}"] = self.provenance.trained[name]
            if stage.entry.interpolate:
                found[f"stages/{name}/{BLENDED}"] = self.provenance.left[name]
        for stage, start, seed in self._trials():
            found[_trial(stage, start, seed)] = self.provenance.of_run(stage, self.provenance.left[start.name], seed)
        return found

    def folder(self, name: str) -> Path:
        return self.run / "stages" / name

    def output(self, name: str) -> str:
        """The model that leaves a stage."""
        stage = self.plan.stages[name]
        if stage.entry.model is not None:
            return stage.entry.model
        return str((self.folder(name) / BLENDED if stage.entry.interpolate else self.folder(name)).absolute())

    # --- work ---

    def carry_out(self, name: str) -> dict[str, Any] | None:
        """A stage from its text or examples to the model that leaves it; what its run reported."""
        stage = self.plan.stages[name]
        if stage.kind == "model":
            return None
        begin = self._begin_text if stage.kind == "text" else self._begin_task
        result = self._run(f"stages/{name}", partial(begin, stage), about(name))
        if stage.entry.interpolate and read_blend(self.folder(name)) is None:
            assert stage.after is not None
            remove_leftovers(self.folder(name))
            start = self.output(stage.after)
            if stage.kind == "task":
                blend_task(self.folder(name), start, stage.entry.interpolate)
            else:
                blend_text(self.folder(name), start, stage.entry.interpolate, partial(self._judge, name))
        return result

    def trials(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Every task learnt from the model of every stage before it: by task, by the stage to start from, by seed."""
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for stage in self.plan.of_kind("task") if self.plan.header.ablate else []:
            for start in self.plan.line(stage.name)[:-1]:
                runs = found.setdefault(stage.name, {}).setdefault(start.name, [])
                for seed in self._seeds(stage):
                    if (start.name, seed) == (stage.after, stage.seed):  # this one is the stage itself
                        runs.append(self.carry_out(stage.name) or {})
                        continue
                    with silenced():
                        learn = partial(self._learn, stage, self.output(start.name), seed)
                        runs.append(self._run(_trial(stage, start, seed), learn, nullcontext()))
        return found

    def _trials(self) -> list[tuple[Stage, Stage, int]]:
        return [(stage, start, seed) for stage in (self.plan.of_kind("task") if self.plan.header.ablate else [])
                for start in self.plan.line(stage.name)[:-1] for seed in self._seeds(stage)
                if (start.name, seed) != (stage.after, stage.seed)]

    def _seeds(self, stage: Stage) -> range:
        return range(stage.seed, stage.seed + self.plan.header.seeds)

    def _run(self, place: str, begin: Callable[[Path], dict[str, Any]],
             named: AbstractContextManager[None]) -> dict[str, Any]:
        def go_on(run: Path) -> dict[str, Any]:
            with named:
                return read_result(run) or resume(run, show=self.show)

        return carried_out(self.run / place, begin, go_on)

    def _begin_text(self, stage: Stage, place: Path) -> dict[str, Any]:
        paths = [*stage.entry.corpus, *self._more_text(stage)]
        start = self.output(stage.after) if stage.after else None
        budget = stage.budget()
        with about(stage.name):
            if (epochs := budget.pop("epochs", None)) is not None:
                folder, text = locate(paths)
                tokenizer = Tokenizer.load(find_folder(start)) if start else None
                corpus = Corpus.open(folder) if folder else corpus_from_text(
                    text, self.recipes[stage.name], stage.reading, tokenizer, split_first=True)
                budget["tokens"] = max(1, round(epochs * corpus.tokens))
            return pretrain(self.recipes[stage.name], paths, place, **budget, start=start, seed=stage.seed,
                            reading=stage.reading, show=self.show)

    def _begin_task(self, stage: Stage, place: Path) -> dict[str, Any]:
        assert stage.after is not None
        with about(stage.name):
            return self._learn(stage, self.output(stage.after), stage.seed, place)

    def _learn(self, stage: Stage, start: str, seed: int, place: Path) -> dict[str, Any]:
        return finetune(stage.as_task(), start, place, **stage.budget(), seed=seed, changes=stage.entry.changes,
                        reading=stage.reading, show=self.show)

    def _more_text(self, stage: Stage) -> list[str]:
        """Files of text that is mixed into a stage's own: of a task's examples, and general text."""
        entry, files = stage.entry, []
        if entry.texts_of is not None:
            files.append(self.run / "texts" / f"{stage.name}-examples.jsonl")
            write_documents(files[-1], example_documents(self.examples[entry.texts_of]["train"]), entry.field)
        if entry.replay is not None:
            own = numbered_texts([*entry.corpus, *map(str, files)], stage.reading)
            wanted = sum(len(text) for _, text in own) * entry.replay / (1 - entry.replay)
            general = self.general()
            assert general is not None
            share = self.yardstick().settings.corpus.validation
            documents, characters = replayed(general, share, round(wanted), stage.seed)
            if characters < 0.9 * wanted:
                logger.warning(
                    f"{stage.name}: replay = {entry.replay:g} asks for {round(wanted):,} characters of general "
                    f"text, and there are {characters:,}; all of them are read.")
            files.append(self.run / "texts" / f"{stage.name}-general.jsonl")
            write_documents(files[-1], documents, entry.field)
        return [str(file.absolute()) for file in files]

    # --- measures ---

    def yardstick(self) -> Recipe:
        """The recipe by which all models are measured: that of the first stage that reads text, as it ran, with the
        tasks that every later stage goes on with."""
        name = next((stage.name for stage in self.plan.of_kind("text")), next(iter(self.recipes)))
        ran = (self.folder(name) / PLAN).is_file()
        return continued(read_run(self.folder(name))[0] if ran else self.recipes[name])

    def general(self) -> Corpus | None:
        """The general text in the vocabulary of the first stage's model; None: the plan names none."""
        if not self._general:
            self._general.append(self._open_general())
        return self._general[0]

    def _open_general(self) -> Corpus | None:
        paths, reading = self.plan.general()
        first = next(iter(self.plan.stages.values()))
        if not paths:
            return None
        if not self.plan.header.general and is_corpus(str(read_run(self.folder(first.name))[1].corpus)):
            return Corpus.open(str(read_run(self.folder(first.name))[1].corpus))
        tokenizer = Tokenizer.load(find_folder(self.output(first.name)))
        folder, text = locate(paths)
        if folder is None:
            return corpus_from_text(text, self.yardstick(), reading, tokenizer)
        corpus = Corpus.open(folder)
        if corpus.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(f"the general corpus {folder} has another vocabulary than the stage {first.name}; give the "
                            "text that it was made from.")
        return corpus

    def measure(self, name: str) -> dict[str, Any]:
        """What a stage's model loses on general text, and a language model on the stage's own text before and after
        it. What was measured once is remembered by what went into it."""
        stage = self.plan.stages[name]
        first = self.plan.of_kind("text")[:1]
        number = digest(self.provenance.left[name], sorted(self.provenance.general.values()),
                        [self.provenance.trained[one.name] for one in first])
        return remembered(self.run / MEASURES, name, number, "delete it: it is measured again.",
                          lambda: self._measured(stage))

    def _measured(self, stage: Stage) -> dict[str, Any]:
        weights, general = weights_of(self.output(stage.name)), self.general()
        before = weights_of(self.output(stage.after)) if stage.after else None
        found: dict[str, Any] = {"general_loss": None, "bits_per_byte": None, "own_before": None, "own_after": None}
        yardstick = self.yardstick()
        network = network_with(yardstick, weights, before if stage.kind == "task" else None)
        if general is not None and network is not None:
            found["general_loss"] = held_out_loss(yardstick, network, general)
            found["bits_per_byte"] = bits_per_byte(yardstick, general, found["general_loss"])
        if stage.kind == "text" and (own := self._own_corpus(stage.name)) is not None:
            recipe = read_run(self.folder(stage.name))[0]
            for key, some in (("own_before", before), ("own_after", weights)):
                network = network_with(recipe, some) if some is not None else None
                found[key] = held_out_loss(recipe, network, own) if network is not None else None
        return found

    def _own_corpus(self, name: str) -> Corpus | None:
        place = read_run(self.folder(name))[1].corpus
        return Corpus.open(place) if place and is_corpus(place) else None

    def _judge(self, name: str, weights: Mapping[str, Any]) -> float:
        """How good a mixture is: the mean of what it loses on the stage's own text and on general text."""
        recipe, own, general = read_run(self.folder(name))[0], self._own_corpus(name), self.general()
        asked = [(recipe, own), (self.yardstick(), general)]
        networks = [(network_with(chosen, weights), chosen, corpus) for chosen, corpus in asked if corpus is not None]
        losses = [held_out_loss(chosen, network, corpus) for network, chosen, corpus in networks if network is not None]
        return sum(loss for loss in losses if loss is not None) / max(1, len(losses))


def _trial(stage: Stage, start: Stage, seed: int) -> str:
    return f"ablation/{stage.name}/from-{start.name}/seed-{seed}"


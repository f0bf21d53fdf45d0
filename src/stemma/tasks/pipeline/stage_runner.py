"""Carrying a plan out: every stage is an ordinary run below the pipeline's folder, begun, taken up again or reused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stemma.atomic_files import remove_leftovers
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.exchange.load import resolve_model_folder
from stemma.notes import about, silenced
from stemma.recipe_loading import Recipe
from stemma.tasks.data.examples import Example
from stemma.tasks.pipeline.forgetting import bits_per_byte, build_with_weights, held_out_loss, load_state
from stemma.tasks.pipeline.interpolation import INTERPOLATED, interpolate_lm, interpolate_task, read_interpolation
from stemma.tasks.pipeline.plan import PipelinePlan, PipelineStage
from stemma.tasks.pipeline.provenance import StageDigests, digest
from stemma.tasks.pipeline.stage_recipes import continued_pretraining_recipe
from stemma.tasks.pipeline.stage_texts import example_documents, numbered_texts, sample_replay, write_documents
from stemma.tasks.runs.common import resume
from stemma.tasks.runs.finetune import finetune
from stemma.text.tokenizer import Tokenizer
from stemma.training.corpus_cache import build_or_load_corpus
from stemma.training.pretrain import pretrain
from stemma.training.run_folder import CONFIG, is_corpus, read_result, read_run, resolve_corpus_argument
from stemma.training.run_graph import cached_result, run_or_resume

logger = logging.getLogger(__name__)

STAGE_LOSSES = "measures.json"


@dataclass
class StageRunner:
    """The stages of one plan in one folder."""

    run: Path
    plan: PipelinePlan
    provenance: StageDigests
    recipes: Mapping[str, Recipe]
    examples: Mapping[str, Mapping[str, Sequence[Example]]]  # by stage that learns a task, and set
    show: bool
    _general: list[Corpus | None] = field(default_factory=list)  # opened once

    # --- places ---

    def run_digests(self) -> dict[str, str]:
        """Every run below this folder, by its place, with the number of what goes into it."""
        found = {}
        for name, stage in self.plan.stages.items():
            if stage.kind != "model":
                found[f"stages/{name}"] = self.provenance.run_digest[name]
            if stage.entry.interpolate:
                found[f"stages/{name}/{INTERPOLATED}"] = self.provenance.output_digest[name]
        for stage, start, seed in self._ablation_plan():
            found[_ablation_folder(stage, start, seed)] = self.provenance.digest_run(stage,
                self.provenance.output_digest[start.name], seed)
        return found

    def folder(self, name: str) -> Path:
        return self.run / "stages" / name

    def output(self, name: str) -> str:
        """The model that leaves a stage."""
        stage = self.plan.stages[name]
        if stage.entry.model is not None:
            return stage.entry.model
        return str((self.folder(name) / INTERPOLATED if stage.entry.interpolate else self.folder(name)).absolute())

    # --- work ---

    def run_stage(self, name: str) -> dict[str, Any] | None:
        """A stage from its text or examples to the model that leaves it; what its run reported."""
        stage = self.plan.stages[name]
        if stage.kind == "model":
            return None
        begin = self._start_pretraining if stage.kind == "text" else self._start_finetuning
        result = self._run_or_resume(f"stages/{name}", partial(begin, stage), about(name))
        if stage.entry.interpolate and read_interpolation(self.folder(name)) is None:
            assert stage.after is not None
            remove_leftovers(self.folder(name))
            start = self.output(stage.after)
            if stage.kind == "task":
                interpolate_task(self.folder(name), start, stage.entry.interpolate)
            else:
                interpolate_lm(self.folder(name), start, stage.entry.interpolate,
                               partial(self._interpolation_loss, name))
        return result

    def ablation_runs(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        """Every task learnt from the model of every stage before it: by task, by the stage to start from, by seed."""
        found: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for stage in self.plan.of_kind("task") if self.plan.header.ablate else []:
            for start in self.plan.ancestors(stage.name)[:-1]:
                runs = found.setdefault(stage.name, {}).setdefault(start.name, [])
                for seed in self._seeds(stage):
                    if (start.name, seed) == (stage.after, stage.seed):  # this one is the stage itself
                        runs.append(self.run_stage(stage.name) or {})
                        continue
                    with silenced():
                        learn = partial(self._finetune, stage, self.output(start.name), seed)
                        runs.append(self._run_or_resume(_ablation_folder(stage, start, seed), learn, nullcontext()))
        return found

    def _ablation_plan(self) -> list[tuple[PipelineStage, PipelineStage, int]]:
        return [(stage, start, seed) for stage in (self.plan.of_kind("task") if self.plan.header.ablate else [])
                for start in self.plan.ancestors(stage.name)[:-1] for seed in self._seeds(stage)
                if (start.name, seed) != (stage.after, stage.seed)]

    def _seeds(self, stage: PipelineStage) -> range:
        return range(stage.seed, stage.seed + self.plan.header.seeds)

    def _run_or_resume(self, run_folder: str, start: Callable[[Path], dict[str, Any]],
             named: AbstractContextManager[None]) -> dict[str, Any]:
        def go_on(run: Path) -> dict[str, Any]:
            with named:
                return read_result(run) or resume(run, show=self.show)

        return run_or_resume(self.run / run_folder, start, go_on)

    def _start_pretraining(self, stage: PipelineStage, run_folder: Path) -> dict[str, Any]:
        paths = [*stage.entry.corpus, *self._extra_text_files(stage)]
        start = self.output(stage.after) if stage.after else None
        budget = stage.budget()
        with about(stage.name):
            if (epochs := budget.pop("epochs", None)) is not None:
                folder, text = resolve_corpus_argument(paths)
                tokenizer = Tokenizer.load(resolve_model_folder(start)) if start else None
                corpus = Corpus.open(folder) if folder else build_or_load_corpus(
                    text, self.recipes[stage.name], stage.reading_options, tokenizer, split_first=True)
                budget["tokens"] = max(1, round(epochs * corpus.num_tokens))
            return pretrain(self.recipes[stage.name], paths, run_folder, **budget, init_from=start, seed=stage.seed,
                            reading=stage.reading_options, show_progress=self.show)

    def _start_finetuning(self, stage: PipelineStage, run_folder: Path) -> dict[str, Any]:
        assert stage.after is not None
        with about(stage.name):
            return self._finetune(stage, self.output(stage.after), stage.seed, run_folder)

    def _finetune(self, stage: PipelineStage, start: str, seed: int, run_folder: Path) -> dict[str, Any]:
        return finetune(stage.task_arguments(), start, run_folder, **stage.budget(), seed=seed,
                        changes=stage.entry.changes,
                        reading=stage.reading_options, show=self.show)

    def _extra_text_files(self, stage: PipelineStage) -> list[str]:
        """Files of text that is mixed into a stage's own: of a task's examples, and general text."""
        entry, files = stage.entry, []
        if entry.texts_of is not None:
            files.append(self.run / "texts" / f"{stage.name}-examples.jsonl")
            write_documents(files[-1], example_documents(self.examples[entry.texts_of]["train"]), entry.field)
        if entry.replay is not None:
            own = numbered_texts([*entry.corpus, *map(str, files)], stage.reading_options)
            wanted = sum(len(text) for _, text in own) * entry.replay / (1 - entry.replay)
            general = self.general()
            assert general is not None
            share = self.reference_recipe().settings.corpus.validation
            documents, characters = sample_replay(general, share, round(wanted), stage.seed)
            if characters < 0.9 * wanted:
                logger.warning(
                    f"{stage.name}: replay = {entry.replay:g} asks for {round(wanted):,} characters of general "
                    f"text, and there are {characters:,}; all of them are read.")
            files.append(self.run / "texts" / f"{stage.name}-general.jsonl")
            write_documents(files[-1], documents, entry.field)
        return [str(file.absolute()) for file in files]

    # --- measures ---

    def reference_recipe(self) -> Recipe:
        """The recipe by which all models are measured: that of the first stage that reads text, as it ran, with the
        tasks that every later stage goes on with."""
        name = next((stage.name for stage in self.plan.of_kind("text")), next(iter(self.recipes)))
        ran = (self.folder(name) / CONFIG).is_file()
        return continued_pretraining_recipe(read_run(self.folder(name))[0] if ran else self.recipes[name])

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
        tokenizer = Tokenizer.load(resolve_model_folder(self.output(first.name)))
        folder, text = resolve_corpus_argument(paths)
        if folder is None:
            return build_or_load_corpus(text, self.reference_recipe(), reading, tokenizer)
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
        number = digest(self.provenance.output_digest[name], sorted(self.provenance.general.values()),
                        [self.provenance.run_digest[one.name] for one in first])
        return cached_result(self.run / STAGE_LOSSES, name, number, "delete it: it is measured again.",
                          lambda: self._measured(stage))

    def _measured(self, stage: PipelineStage) -> dict[str, Any]:
        weights, general = load_state(self.output(stage.name)), self.general()
        before = load_state(self.output(stage.after)) if stage.after else None
        found: dict[str, Any] = {"general_loss": None, "bits_per_byte": None, "own_before": None, "own_after": None}
        yardstick = self.reference_recipe()
        network = build_with_weights(yardstick, weights, before if stage.kind == "task" else None)
        if general is not None and network is not None:
            found["general_loss"] = held_out_loss(yardstick, network, general)
            found["bits_per_byte"] = bits_per_byte(yardstick, general, found["general_loss"])
        if stage.kind == "text" and (own := self._own_corpus(stage.name)) is not None:
            recipe = read_run(self.folder(stage.name))[0]
            for key, some in (("own_before", before), ("own_after", weights)):
                network = build_with_weights(recipe, some) if some is not None else None
                found[key] = held_out_loss(recipe, network, own) if network is not None else None
        return found

    def _own_corpus(self, name: str) -> Corpus | None:
        place = read_run(self.folder(name))[1].corpus
        return Corpus.open(place) if place and is_corpus(place) else None

    def _interpolation_loss(self, name: str, weights: Mapping[str, Any]) -> float:
        """How good a mixture is: the mean of what it loses on the stage's own text and on general text."""
        recipe, own, general = read_run(self.folder(name))[0], self._own_corpus(name), self.general()
        asked = [(recipe, own), (self.reference_recipe(), general)]
        networks = [(build_with_weights(chosen, weights), chosen, corpus) for chosen,
                    corpus in asked if corpus is not None]
        losses = [held_out_loss(chosen, network, corpus) for network, chosen, corpus in networks if network is not None]
        return sum(loss for loss in losses if loss is not None) / max(1, len(losses))


def _ablation_folder(stage: PipelineStage, start: PipelineStage, seed: int) -> str:
    return f"ablation/{stage.name}/from-{start.name}/seed-{seed}"


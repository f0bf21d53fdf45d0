"""Run the stages of a plan: each is an ordinary run below the pipeline folder, which is started, resumed or reused."""

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
    """Runs the stages of a plan in one folder."""

    run: Path
    plan: PipelinePlan
    provenance: StageDigests
    recipes: Mapping[str, Recipe]
    examples: Mapping[str, Mapping[str, Sequence[Example]]]  # by task stage, then by split
    show: bool
    _general: list[Corpus | None] = field(default_factory=list)  # opened once

    # --- folders ---

    def run_digests(self) -> dict[str, str]:
        """The digest of every run below the pipeline folder, by relative path."""
        digests = {}
        for name, stage in self.plan.stages.items():
            if stage.kind != "model":
                digests[f"stages/{name}"] = self.provenance.run_digest[name]
            if stage.entry.interpolate:
                digests[f"stages/{name}/{INTERPOLATED}"] = self.provenance.output_digest[name]
        for stage, start, seed in self._ablation_plan():
            start_digest = self.provenance.output_digest[start.name]
            digests[_ablation_folder(stage, start, seed)] = self.provenance.digest_run(stage, start_digest, seed)
        return digests

    def folder(self, name: str) -> Path:
        return self.run / "stages" / name

    def output(self, name: str) -> str:
        """The output model of a stage."""
        stage = self.plan.stages[name]
        if stage.entry.model is not None:
            return stage.entry.model
        return str((self.folder(name) / INTERPOLATED if stage.entry.interpolate else self.folder(name)).absolute())

    # --- runs ---

    def run_stage(self, name: str) -> dict[str, Any] | None:
        """Train a stage, and interpolate its weights if asked; returns the result of its run."""
        stage = self.plan.stages[name]
        if stage.kind == "model":
            return None
        start_run = self._start_pretraining if stage.kind == "text" else self._start_finetuning
        result = self._run_or_resume(f"stages/{name}", partial(start_run, stage), about(name))
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
        """Fine-tune every task from the model of every earlier stage: results by task, start stage and seed."""
        results: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for stage in self.plan.of_kind("task") if self.plan.header.ablate else []:
            for start in self.plan.ancestors(stage.name)[:-1]:
                runs = results.setdefault(stage.name, {}).setdefault(start.name, [])
                for seed in self._seeds(stage):
                    if (start.name, seed) == (stage.after, stage.seed):  # the stage itself
                        runs.append(self.run_stage(stage.name) or {})
                        continue
                    with silenced():
                        start_run = partial(self._finetune, stage, self.output(start.name), seed, baseline=False)
                        runs.append(self._run_or_resume(_ablation_folder(stage, start, seed), start_run, nullcontext()))
        return results

    def _ablation_plan(self) -> list[tuple[PipelineStage, PipelineStage, int]]:
        return [(stage, start, seed) for stage in (self.plan.of_kind("task") if self.plan.header.ablate else [])
                for start in self.plan.ancestors(stage.name)[:-1] for seed in self._seeds(stage)
                if (start.name, seed) != (stage.after, stage.seed)]

    def _seeds(self, stage: PipelineStage) -> range:
        return range(stage.seed, stage.seed + self.plan.header.seeds)

    def _run_or_resume(self, run_folder: str, start: Callable[[Path], dict[str, Any]],
                       named: AbstractContextManager[None]) -> dict[str, Any]:
        def continue_run(run: Path) -> dict[str, Any]:
            with named:
                return read_result(run) or resume(run, show=self.show)

        return run_or_resume(self.run / run_folder, start, continue_run)

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

    def _finetune(self, stage: PipelineStage, start: str, seed: int, run_folder: Path,
                  baseline: bool = True) -> dict[str, Any]:
        return finetune(stage.task_arguments(), start, run_folder, **stage.budget(), seed=seed,
                        changes=stage.entry.changes, reading=stage.reading_options, baseline=baseline, show=self.show)

    def _extra_text_files(self, stage: PipelineStage) -> list[str]:
        """Write additional text of a stage to files: the texts of a task's examples, and replayed general text."""
        entry, files = stage.entry, []
        if entry.texts_of is not None:
            files.append(self.run / "texts" / f"{stage.name}-examples.jsonl")
            write_documents(files[-1], example_documents(self.examples[entry.texts_of]["train"]), entry.field)
        if entry.replay is not None:
            own = numbered_texts([*entry.corpus, *map(str, files)], stage.reading_options)
            requested = sum(len(text) for _, text in own) * entry.replay / (1 - entry.replay)
            general = self.general()
            assert general is not None
            validation = self.reference_recipe().settings.corpus.validation
            documents, characters = sample_replay(general, validation, round(requested), stage.seed)
            if characters < 0.9 * requested:
                logger.warning(
                    f"{stage.name}: replay = {entry.replay:g} asks for {round(requested):,} characters of general "
                    f"text, and there are {characters:,}; all of them are used.")
            files.append(self.run / "texts" / f"{stage.name}-general.jsonl")
            write_documents(files[-1], documents, entry.field)
        return [str(file.absolute()) for file in files]

    # --- held-out losses ---

    def reference_recipe(self) -> Recipe:
        """The recipe that all held-out losses use: that of the first text stage as it ran, with the objectives of
        continued pre-training."""
        name = next((stage.name for stage in self.plan.of_kind("text")), next(iter(self.recipes)))
        ran = (self.folder(name) / CONFIG).is_file()
        return continued_pretraining_recipe(read_run(self.folder(name))[0] if ran else self.recipes[name])

    def general(self) -> Corpus | None:
        """The general text as a corpus with the tokenizer of the first stage; None: no general text."""
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

    def stage_losses(self, name: str) -> dict[str, Any]:
        """Held-out losses of a stage: on general text, and for a language model on its own text before and after the
        stage. Cached by the digest of the inputs."""
        stage = self.plan.stages[name]
        first = self.plan.of_kind("text")[:1]
        key = digest(self.provenance.output_digest[name], sorted(self.provenance.general.values()),
                     [self.provenance.run_digest[text_stage.name] for text_stage in first])
        return cached_result(self.run / STAGE_LOSSES, name, key, "delete it: it is measured again.",
                             lambda: self._compute_losses(stage))

    def _compute_losses(self, stage: PipelineStage) -> dict[str, Any]:
        weights, general = load_state(self.output(stage.name)), self.general()
        before = load_state(self.output(stage.after)) if stage.after else None
        losses: dict[str, Any] = {"general_loss": None, "bits_per_byte": None, "own_before": None, "own_after": None}
        reference = self.reference_recipe()
        network = build_with_weights(reference, weights, before if stage.kind == "task" else None)
        if general is not None and network is not None:
            losses["general_loss"] = held_out_loss(reference, network, general)
            losses["bits_per_byte"] = bits_per_byte(reference, general, losses["general_loss"])
        if stage.kind == "text" and (own := self._own_corpus(stage.name)) is not None:
            recipe = read_run(self.folder(stage.name))[0]
            for key, state in (("own_before", before), ("own_after", weights)):
                network = build_with_weights(recipe, state) if state is not None else None
                losses[key] = held_out_loss(recipe, network, own) if network is not None else None
        return losses

    def _own_corpus(self, name: str) -> Corpus | None:
        folder = read_run(self.folder(name))[1].corpus
        return Corpus.open(folder) if folder and is_corpus(folder) else None

    def _interpolation_loss(self, name: str, weights: Mapping[str, Any]) -> float:
        """The score of interpolated weights: the mean held-out loss on the stage's own text and on general text."""
        recipe, own, general = read_run(self.folder(name))[0], self._own_corpus(name), self.general()
        evaluations = [(recipe, own), (self.reference_recipe(), general)]
        networks = [(build_with_weights(eval_recipe, weights), eval_recipe, corpus)
                    for eval_recipe, corpus in evaluations if corpus is not None]
        losses = [held_out_loss(eval_recipe, network, corpus)
                  for network, eval_recipe, corpus in networks if network is not None]
        return sum(loss for loss in losses if loss is not None) / max(1, len(losses))


def _ablation_folder(stage: PipelineStage, start: PipelineStage, seed: int) -> str:
    return f"ablation/{stage.name}/from-{start.name}/seed-{seed}"


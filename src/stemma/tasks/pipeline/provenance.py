"""Digests of the inputs of every stage: recipe, data, budget and parent stage.

A result with the same digest is reused. A change of a file, a key or an earlier stage changes the digests of all later
stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma import plugins
from stemma.atomic_files import sha256
from stemma.corpus.corpus import Corpus
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.base import parts_in_settings
from stemma.schema.overrides import flatten
from stemma.tasks.datasets import plugin_code
from stemma.tasks.pipeline.plan import PipelinePlan, PipelineStage
from stemma.text.readers import list_files
from stemma.training import run_graph
from stemma.training.run_folder import is_corpus

FORMAT = 1  # part of every digest: a new number invalidates all results
Checksums = dict[str, str]  # path -> sha256


def digest(*facts: object) -> str:
    return run_graph.digest(FORMAT, *facts)


def text_checksums(paths: Sequence[str]) -> Checksums:
    """Checksums of text files, or the fingerprint of a corpus."""
    if len(paths) == 1 and is_corpus(paths[0]):
        return {paths[0]: Corpus.open(paths[0]).fingerprint}
    return {str(path): sha256(path) for path in list_files(paths)} if paths else {}


def path_checksums(path: str | Path) -> Checksums:
    """Checksums of a file, or of all files below a folder: some data sets are folders."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    return {str(file): sha256(file) for file in files}


def model_checksums(model: str) -> Checksums:
    from stemma.exchange.load import resolve_model_folder

    return {str(file): sha256(file) for file in sorted(resolve_model_folder(model).iterdir()) if file.is_file()}


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """What training reads of a recipe: its values, not its title and summary, and the code of its plug-ins."""
    omitted = set(recipe.settings.later_defaults())
    return {**{key: value for key, value in flatten(recipe.values).items() if key not in omitted},
            "plugins": plugins.plugins_of(parts_in_settings(recipe.settings))}


class StageDigests:
    """Digests of the stages of a plan: of each training run, and of its output model (which may be interpolated). Files
    are read once."""

    def __init__(self, plan: PipelinePlan):
        self.plan = plan
        self.general = text_checksums(plan.general()[0])
        self.data = {name: self._data(stage) for name, stage in plan.stages.items()}
        self.run_digest: dict[str, str] = {}
        self.output_digest: dict[str, str] = {}
        for name, stage in plan.stages.items():
            parent_digest = self.output_digest[stage.after] if stage.after else None
            self.run_digest[name] = self.digest_run(stage, parent_digest)
            fractions = stage.entry.interpolate
            self.output_digest[name] = digest(self.run_digest[name], fractions, self._selection_inputs(stage)) \
                if fractions else self.run_digest[name]

    def digest_run(self, stage: PipelineStage, parent_digest: str | None, seed: int | None = None) -> str:
        """The digest of a run of this stage that starts from the model with `parent_digest`."""
        entry = stage.entry
        settings = entry.model_dump(exclude={"after", "interpolate", "seed", "corpus", "model", "train", "dev", "test",
                                             "texts_of", "recipe"})
        replayed = sorted(self.general.values()) if entry.replay is not None else None
        values = recipe_values(recipe(entry.recipe, stored=True)) if entry.recipe else None
        return digest(parent_digest, settings, values, replayed, self._data_checksums(stage),
                      stage.seed if seed is None else seed)

    def lineage(self) -> list[dict[str, Any]]:
        """Data, parent and digest of every stage, for the report."""
        return [{"stage": name, "kind": stage.kind, "after": stage.after, "hash": self.output_digest[name],
                 "trained": self.run_digest[name], "start": self.output_digest[stage.after] if stage.after else None,
                 "seed": stage.seed, "budget": stage.budget(), "changes": stage.entry.changes,
                 "recipe": stage.entry.recipe, "interpolate": stage.entry.interpolate, "replay": stage.entry.replay,
                 "data": {part: sums for part, sums in self.data[name].items() if sums},
                 **({"general": self.general} if stage.entry.replay is not None else {})}
                for name, stage in self.plan.stages.items()]

    def _data(self, stage: PipelineStage) -> dict[str, Checksums]:
        entry = stage.entry
        if stage.kind == "model":
            return {"model": model_checksums(entry.model or "")}
        checksums = {"corpus": text_checksums(entry.corpus)}
        if entry.texts_of is not None:
            checksums["texts"] = path_checksums(self.plan.stages[entry.texts_of].entry.train or "")
        for split in ("train", "dev", "test"):
            if (path := getattr(entry, split)) is not None:
                checksums[split] = path_checksums(path)
        return checksums

    def _data_checksums(self, stage: PipelineStage) -> Mapping[str, Any]:
        """Checksums of the data in reading order, independent of paths."""
        checksums: dict[str, Any] = {part: list(sums.values()) for part, sums in self.data[stage.name].items()}
        if stage.entry.texts_of is not None:
            other = self.plan.stages[stage.entry.texts_of].entry
            checksums["read as"] = [other.task, other.columns, other.encoding, other.errors]
        if stage.entry.task is not None and (code := plugin_code(stage.entry.task)):
            checksums["plugins"] = code
        return checksums

    def _selection_inputs(self, stage: PipelineStage) -> Any:
        """Further inputs of the choice of the fraction: for a language model, the general text."""
        return sorted(self.general.values()) if stage.kind == "text" and len(stage.entry.interpolate) > 1 else None

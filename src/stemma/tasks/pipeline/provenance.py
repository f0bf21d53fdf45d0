"""What goes into every stage, as one number: recipe, data, budget, and the stage that it stands on.

Two stages with the same number are the same stage, so a result with that number need not be made again; and whoever
changes a file, a key or an earlier stage gets another number for everything that follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.atomic_files import sha256
from stemma.corpus.corpus import Corpus
from stemma.recipe_loading import recipe
from stemma.tasks.datasets import plugin_code
from stemma.tasks.pipeline.plan import PipelinePlan, PipelineStage
from stemma.text.readers import list_files
from stemma.training import run_graph
from stemma.training.run_folder import is_corpus

FORMAT = 1  # another number makes everything anew
Checksums = dict[str, str]  # path -> sha256


def digest(*facts: object) -> str:
    return run_graph.digest(FORMAT, *facts)


def text_checksums(paths: Sequence[str]) -> Checksums:
    """The content of text files, or of a corpus by its fingerprint."""
    if len(paths) == 1 and is_corpus(paths[0]):
        return {paths[0]: Corpus.open(paths[0]).fingerprint}
    return {str(path): sha256(path) for path in list_files(paths)} if paths else {}


def path_checksums(path: str | Path) -> Checksums:
    """Of a file, or of every file below a folder: some data sets are folders."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    return {str(file): sha256(file) for file in files}


def model_checksums(where: str) -> Checksums:
    from stemma.exchange.load import resolve_model_folder

    return {str(file): sha256(file) for file in sorted(resolve_model_folder(where).iterdir()) if file.is_file()}


class StageDigests:
    """The numbers of a plan's stages: of what is trained, and of the model that leaves it (perhaps mixed with the one
    before). Files are read once."""

    def __init__(self, plan: PipelinePlan):
        self.plan = plan
        self.general = text_checksums(plan.general()[0])
        self.data = {name: self._data(stage) for name, stage in plan.stages.items()}
        self.run_digest: dict[str, str] = {}
        self.output_digest: dict[str, str] = {}
        for name, stage in plan.stages.items():
            before = self.output_digest[stage.after] if stage.after else None
            self.run_digest[name] = self.digest_run(stage, before)
            shares = stage.entry.interpolate
            self.output_digest[name] = digest(self.run_digest[name], shares,
                                              self._selection_inputs(stage)) if shares else self.run_digest[name]

    def digest_run(self, stage: PipelineStage, before: str | None, seed: int | None = None) -> str:
        """The number of a run of this stage on top of `before`."""
        entry = stage.entry
        stated = entry.model_dump(exclude={"after", "interpolate", "seed", "corpus", "model", "train", "dev", "test",
                                           "texts_of", "recipe"})
        built = recipe(entry.recipe, stored=True).to_toml() if entry.recipe else None
        mixed = sorted(self.general.values()) if entry.replay is not None else None
        return digest(before, stated, built, mixed, self._data_checksums(stage), stage.seed if seed is None else seed)

    def lineage(self) -> list[dict[str, Any]]:
        """For people: which data, which stage, which number."""
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
        found = {"corpus": text_checksums(entry.corpus)}
        if entry.texts_of is not None:
            found["texts"] = path_checksums(self.plan.stages[entry.texts_of].entry.train or "")
        for part in ("train", "dev", "test"):
            if (path := getattr(entry, part)) is not None:
                found[part] = path_checksums(path)
        return found

    def _data_checksums(self, stage: PipelineStage) -> Mapping[str, Any]:
        """What is in the files, wherever they lie and in the order in which they are read."""
        found: dict[str, Any] = {part: list(sums.values()) for part, sums in self.data[stage.name].items()}
        if stage.entry.texts_of is not None:
            other = self.plan.stages[stage.entry.texts_of].entry
            found["read as"] = [other.task, other.columns, other.encoding, other.errors]
        if stage.entry.task is not None and (code := plugin_code(stage.entry.task)):
            found["plugins"] = code
        return found

    def _selection_inputs(self, stage: PipelineStage) -> Any:
        """Whatever else decides how much of a stage is kept: of a language model, its loss on general text."""
        return sorted(self.general.values()) if stage.kind == "text" and len(stage.entry.interpolate) > 1 else None

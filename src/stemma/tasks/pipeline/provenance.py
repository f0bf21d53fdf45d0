"""What goes into every stage, as one number: recipe, data, budget, and the stage that it stands on.

Two stages with the same number are the same stage, so a result with that number need not be made again; and whoever
changes a file, a key or an earlier stage gets another number for everything that follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stemma.corpus.shards import Corpus
from stemma.files import sha256
from stemma.lineage import recipe
from stemma.tasks.data.datasets import code_of
from stemma.tasks.pipeline.plan import PipelinePlan, Stage
from stemma.text.readers import list_files
from stemma.training import graph
from stemma.training.run import is_corpus

FORMAT = 1  # another number makes everything anew
Sums = dict[str, str]  # path -> sha256


def digest(*facts: object) -> str:
    return graph.digest(FORMAT, *facts)


def text_sums(paths: Sequence[str]) -> Sums:
    """The content of text files, or of a corpus by its fingerprint."""
    if len(paths) == 1 and is_corpus(paths[0]):
        return {paths[0]: Corpus.open(paths[0]).fingerprint}
    return {str(path): sha256(path) for path in list_files(paths)} if paths else {}


def path_sums(path: str | Path) -> Sums:
    """Of a file, or of every file below a folder: some data sets are folders."""
    root = Path(path)
    files = sorted(file for file in root.rglob("*") if file.is_file()) if root.is_dir() else [root]
    return {str(file): sha256(file) for file in files}


def model_sums(where: str) -> Sums:
    from stemma.exchange.load import find_folder

    return {str(file): sha256(file) for file in sorted(find_folder(where).iterdir()) if file.is_file()}


class Provenance:
    """The numbers of a plan's stages: of what is trained, and of the model that leaves it (perhaps mixed with the one
    before). Files are read once."""

    def __init__(self, plan: PipelinePlan):
        self.plan = plan
        self.general = text_sums(plan.general()[0])
        self.data = {name: self._data(stage) for name, stage in plan.stages.items()}
        self.trained: dict[str, str] = {}
        self.left: dict[str, str] = {}
        for name, stage in plan.stages.items():
            before = self.left[stage.after] if stage.after else None
            self.trained[name] = self.of_run(stage, before)
            shares = stage.entry.interpolate
            self.left[name] = digest(self.trained[name], shares, self._judges(stage)) if shares else self.trained[name]

    def of_run(self, stage: Stage, before: str | None, seed: int | None = None) -> str:
        """The number of a run of this stage on top of `before`."""
        entry = stage.entry
        stated = entry.model_dump(exclude={"after", "interpolate", "seed", "corpus", "model", "train", "dev", "test",
                                           "texts_of", "recipe"})
        built = recipe(entry.recipe, stored=True).to_toml() if entry.recipe else None
        mixed = sorted(self.general.values()) if entry.replay is not None else None
        return digest(before, stated, built, mixed, self._contents(stage), stage.seed if seed is None else seed)

    def lineage(self) -> list[dict[str, Any]]:
        """For people: which data, which stage, which number."""
        return [{"stage": name, "kind": stage.kind, "after": stage.after, "hash": self.left[name],
                 "trained": self.trained[name], "start": self.left[stage.after] if stage.after else None,
                 "seed": stage.seed, "budget": stage.budget(), "changes": stage.entry.changes,
                 "recipe": stage.entry.recipe, "interpolate": stage.entry.interpolate, "replay": stage.entry.replay,
                 "data": {part: sums for part, sums in self.data[name].items() if sums},
                 **({"general": self.general} if stage.entry.replay is not None else {})}
                for name, stage in self.plan.stages.items()]

    def _data(self, stage: Stage) -> dict[str, Sums]:
        entry = stage.entry
        if stage.kind == "model":
            return {"model": model_sums(entry.model or "")}
        found = {"corpus": text_sums(entry.corpus)}
        if entry.texts_of is not None:
            found["texts"] = path_sums(self.plan.stages[entry.texts_of].entry.train or "")
        for part in ("train", "dev", "test"):
            if (path := getattr(entry, part)) is not None:
                found[part] = path_sums(path)
        return found

    def _contents(self, stage: Stage) -> Mapping[str, Any]:
        """What is in the files, wherever they lie and in the order in which they are read."""
        found: dict[str, Any] = {part: list(sums.values()) for part, sums in self.data[stage.name].items()}
        if stage.entry.texts_of is not None:
            other = self.plan.stages[stage.entry.texts_of].entry
            found["read as"] = [other.task, other.columns, other.encoding, other.errors]
        if stage.entry.task is not None and (code := code_of(stage.entry.task)):
            found["plugins"] = code
        return found

    def _judges(self, stage: Stage) -> Any:
        """Whatever else decides how much of a stage is kept: of a language model, its loss on general text."""
        return sorted(self.general.values()) if stage.kind == "text" and len(stage.entry.interpolate) > 1 else None

"""A run is a folder that is complete before the first step, so that a kill at any moment leaves something to resume.

`run.json` says what to do, `recipe.toml` says how. No torch is imported here: the folder stands before that slow import
has even begun.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stemma.atomic_files import atomic_folder
from stemma.checksummed_files import read_verified_object, verify_file, write_file, write_object
from stemma.corpus.corpus import FORMAT, MANIFEST
from stemma.device import AUTO, requested_device
from stemma.errors import UserError
from stemma.json_files import explain_damage
from stemma.recipe_loading import Recipe, recipe
from stemma.text.readers import list_files, plugin_readers
from stemma.text.text_io import read_bytes
from stemma.training.budget import Budget

CONFIG, RECIPE, RESULT, MODEL = "run.json", "recipe.toml", "result.json", "model"
VERSION = 1


@dataclass(frozen=True)
class TextReadingOptions:
    """How raw text is read; the names are those of the command line."""

    documents: str = "blank"
    field: str = "text"
    encoding: str = "utf-8"
    errors: str = "strict"
    columns: str = "source,target"  # of a table of pairs
    empty: str = "refuse"  # pairs without a side

    def plain_text_arguments(self) -> dict[str, Any]:
        """What a reader of running text must know."""
        return {key: getattr(self, key) for key in ("documents", "field", "encoding", "errors")}

    def parallel_text_arguments(self) -> dict[str, Any]:
        """What a reader of pairs must know."""
        return {key: getattr(self, key) for key in ("encoding", "errors", "empty")}


@dataclass(frozen=True)
class RunConfig:
    corpus: str | None  # the corpus folder, as seen from the run's; for raw text, the one that was made of it
    text: list[str]  # raw text to make one from
    budget: Budget
    seed: int
    start: str | None = None  # --from
    reading: TextReadingOptions = field(default_factory=TextReadingOptions)
    fingerprint: str | None = None  # of the corpus, once it is known
    marks: dict[str, str | None] = field(default_factory=dict)  # of the annotations that it is trained with
    tensorboard: bool = False
    target: list[str] = field(default_factory=list)  # of parallel text: the files of the other side, in order
    task: dict[str, Any] | None = None  # of a fine-tune: which, and what its scoring must know
    split_first: bool = False  # of raw text, what is held out before a tokenizer is trained; earlier runs did not
    device: str = field(default_factory=lambda: requested_device() or AUTO)  # what was asked for; once it runs, which
    #                                                                          it is
    version: int = VERSION

    def write(self, folder: Path) -> None:
        write_object(folder / CONFIG, asdict(self))


def create_run(out: Path, recipe: Recipe, config: RunConfig, overwrite: bool) -> None:
    """Make the run folder in one stroke."""
    with atomic_folder(out, overwrite, checksums=False) as place:
        text, target = (spool_streams(paths, place, out.resolve(), name)
                        for name, paths in (("text", config.text), ("target", config.target)))
        replace(config, text=text, target=target).write(place)
        write_file(place / RECIPE, recipe.to_toml(plugin_readers(config.text)))


def spool_streams(paths: Sequence[str], folder: Path, display_folder: Path | None = None,
                  prefix: str = "text") -> list[str]:
    """The paths to read, after copying into `folder` what can be read only once: standard input or a pipe."""
    kept = []
    for number, path in enumerate(paths, 1):
        if is_pipe(path):
            name = f"{prefix}-{number}.txt"
            with (folder / name).open("wb") as file:
                file.writelines(read_bytes(Path(path)))
            path = str((display_folder or folder) / name)
        kept.append(path)
    return kept


def is_pipe(path: str) -> bool:
    return path == "-" or (Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir())


def read_run(out: Path) -> tuple[Recipe, RunConfig]:
    plan = read_run_config(out)
    verify_file(out / RECIPE, _edited_recipe_advice(out, plan))
    return recipe(out / RECIPE, stored=True), plan


def read_run_config(out: Path) -> RunConfig:
    if not (out / CONFIG).is_file():
        hint = "it has no run.json" if out.is_dir() else "there is no such folder"
        raise UserError(f"{out} is not a run: {hint}; give the folder that `stemma pretrain ... --out` made.")
    advice = "bring it back as it was, or start the run again in another folder."
    stored = read_verified_object(out / CONFIG, advice)
    if (version := stored.get("version", VERSION)) != VERSION:
        raise UserError(f"{out} was made by another version of Stemma ({CONFIG} says version {version}, this one reads "
                        f"{VERSION}); update Stemma, or start the run again.")
    with explain_damage(out / CONFIG, advice):
        return RunConfig(**{"device": AUTO, **stored, "budget": Budget(**stored["budget"]),
                       "reading": TextReadingOptions(**stored["reading"])})


def _edited_recipe_advice(out: Path, config: RunConfig) -> str:
    """What to do with a recipe that was edited: a run goes on by the one that it began with."""
    back = "a run goes on by the recipe that it began with: bring that back, or start a new run by this one: "
    if config.task is not None:
        return f"{back}give what you changed as KEY=VALUE to the command that made {out}, with another --out."
    text = [part for path in config.text or [str(config.corpus)] for part in ("--corpus", path)]
    text += [part for path in config.target for part in ("--target", path)]
    begin = ["--from", str(out)] if (out / MODEL / "config.json").is_file() else []
    begin = begin or (["--from", config.start] if config.start else [])
    return f"{back}`{shlex.join(['stemma', 'pretrain', str(out / RECIPE), *text, *begin, '--out', 'NEW'])}`."


def read_result(out: Path, advice: str | None = None) -> dict[str, Any] | None:
    """What the run reported when it ended; None while it has not."""
    file = out / RESULT
    if not file.is_file() or not (out / MODEL / "config.json").is_file():
        return None
    return read_verified_object(file, advice or f"delete it, and `stemma resume {out}` writes it again.")


def is_corpus(path: str | Path) -> bool:
    """Also a damaged one: what is wrong with it is said when it is opened."""
    manifest = Path(path) / MANIFEST  # others, too, put a file of this name beside text
    return any(Path(path).glob("shard-*")) or (manifest.is_file() and FORMAT.encode() in manifest.read_bytes()[:200])


def resolve_corpus_argument(paths: Sequence[str]) -> tuple[str | None, list[str]]:
    """(corpus folder, []) or (None, absolute text paths)."""
    if len(paths) == 1 and is_corpus(paths[0]):
        return str(Path(paths[0]).resolve()), []
    if "-" in paths and len(paths) > 1:
        raise UserError("`-` (standard input) cannot be mixed with files; give one or the other.")
    list_files(paths)  # a misspelt name fails now, before anything is made or overwritten
    return None, ["-" if path == "-" else str(Path(path).absolute()) for path in paths]

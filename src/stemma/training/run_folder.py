"""The folder of a run. It is complete before the first step, so that a killed run can always be resumed.

`run.json` holds the configuration, `recipe.toml` the recipe. This module does not import torch: the folder exists
before that slow import begins.
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
    """Options for reading raw text, named as on the command line."""

    documents: str = "blank"
    field: str = "text"
    encoding: str = "utf-8"
    errors: str = "strict"
    columns: str = "source,target"  # of a table of pairs
    empty: str = "refuse"  # what to do with pairs that have an empty side

    def plain_text_arguments(self) -> dict[str, Any]:
        """Arguments for the reader of running text."""
        return {key: getattr(self, key) for key in ("documents", "field", "encoding", "errors")}

    def parallel_text_arguments(self) -> dict[str, Any]:
        """Arguments for the reader of pairs."""
        return {key: getattr(self, key) for key in ("encoding", "errors", "empty")}


@dataclass(frozen=True)
class RunConfig:
    corpus: str | None  # corpus folder, relative to the run; for raw text, the one built from it
    text: list[str]  # raw text files to build a corpus from
    budget: Budget
    seed: int
    start: str | None = None  # --from
    reading: TextReadingOptions = field(default_factory=TextReadingOptions)
    fingerprint: str | None = None  # of the corpus, once it is built
    marks: dict[str, str | None] = field(default_factory=dict)  # digests of the annotations in use
    tensorboard: bool = False
    target: list[str] = field(default_factory=list)  # target files of parallel text, in order
    task: dict[str, Any] | None = None  # of a fine-tune: the task and the settings of its metrics
    split_first: bool = False  # train the tokenizer without the validation text (older runs: with it)
    device: str = field(default_factory=lambda: requested_device() or AUTO)  # requested; once started, the actual one
    checkpoint_words: list[int] = field(default_factory=list)  # numbers of words read at which a revision is saved
    vectors: str | None = None  # --vectors
    halves: dict[str, str] = field(default_factory=dict)  # --encoder-from and --decoder-from, by part
    version: int = VERSION

    def write(self, folder: Path) -> None:
        write_object(folder / CONFIG, asdict(self))


def create_run(out: Path, recipe: Recipe, config: RunConfig, overwrite: bool) -> None:
    """Create the run folder atomically."""
    with atomic_folder(out, overwrite, checksums=False) as folder:
        text, target = (spool_streams(paths, folder, out.resolve(), name)
                        for name, paths in (("text", config.text), ("target", config.target)))
        replace(config, text=text, target=target).write(folder)
        write_file(folder / RECIPE, recipe.to_toml(plugin_readers(config.text)))


def spool_streams(paths: Sequence[str], folder: Path, display_folder: Path | None = None,
                  prefix: str = "text") -> list[str]:
    """The paths to read, after copying streams (standard input, pipes) into `folder`."""
    readable = []
    for index, path in enumerate(paths, 1):
        if is_pipe(path):
            name = f"{prefix}-{index}.txt"
            with (folder / name).open("wb") as file:
                file.writelines(read_bytes(Path(path)))
            path = str((display_folder or folder) / name)
        readable.append(path)
    return readable


def is_pipe(path: str) -> bool:
    return path == "-" or (Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir())


def read_run(out: Path) -> tuple[Recipe, RunConfig]:
    config = read_run_config(out)
    verify_file(out / RECIPE, _edited_recipe_advice(out, config))
    return recipe(out / RECIPE, stored=True), config


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
    """Advice for an edited recipe: a run continues with the recipe it started with."""
    advice = "a run continues with the recipe that it started with: restore that, or start a new run with this one: "
    if config.task is not None:
        return f"{advice}give what you changed as KEY=VALUE to the command that made {out}, with another --out."
    text = [part for path in config.text or [str(config.corpus)] for part in ("--corpus", path)]
    text += [part for path in config.target for part in ("--target", path)]
    start_options = ["--from", str(out)] if (out / MODEL / "config.json").is_file() else []
    start_options += [word for part, path in config.halves.items() for word in (f"--{part}-from", path)
                      if not start_options]
    start_options += ["--vectors", config.vectors] if config.vectors and not start_options else []
    start_options = start_options or (["--from", config.start] if config.start else [])
    return f"{advice}`{shlex.join(['stemma', 'pretrain', str(out / RECIPE), *text, *start_options, '--out', 'NEW'])}`."


def read_result(out: Path, advice: str | None = None) -> dict[str, Any] | None:
    """The result of a finished run; None if it is not finished."""
    file = out / RESULT
    if not file.is_file() or not (out / MODEL / "config.json").is_file():
        return None
    return read_verified_object(file, advice or f"delete it, and `stemma resume {out}` writes it again.")


def is_corpus(path: str | Path) -> bool:
    """Whether a path is a corpus, including a damaged one, which fails when it is opened."""
    manifest = Path(path) / MANIFEST  # other programs use this file name, too
    return any(Path(path).glob("shard-*")) or (manifest.is_file() and FORMAT.encode() in manifest.read_bytes()[:200])


def resolve_corpus_argument(paths: Sequence[str]) -> tuple[str | None, list[str]]:
    """(corpus folder, []) or (None, absolute text paths)."""
    if len(paths) == 1 and is_corpus(paths[0]):
        return str(Path(paths[0]).resolve()), []
    if "-" in paths and len(paths) > 1:
        raise UserError("`-` (standard input) cannot be mixed with files; give one or the other.")
    list_files(paths)  # a misspelt name fails here, before anything is written
    return None, ["-" if path == "-" else str(Path(path).absolute()) for path in paths]

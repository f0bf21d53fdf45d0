"""Built-in text and tasks: the documentation inside the user's own Python, split into training and held-out pages.

The training pages are the pre-training text. The held-out pages give three labelled tasks without annotation:

- `damage`: were some words of this sentence replaced by others?
- `module`: which of eight packages does this sentence describe? Half of each of those packages is held out.
- `order`: are these two neighbouring sentences in their original order? (ALBERT's objective, arXiv:1909.11942)

Classes are balanced, no sentence is used twice in a task, and none occurs in the training text.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stemma.atomic_files import atomic_folder, verify_checksums
from stemma.errors import UserError
from stemma.json_files import parse, read_object
from stemma.lab.quickstart import probe_task, python_docs
from stemma.lab.quickstart.python_docs import DocPage

VERSION = 1
MANIFEST, TEXT = "own_text.json", "train.txt"
TASKS = {"damage": "classify", "module": "classify", "order": "pair"}  # the kind of each in `stemma finetune`
NUM_TRAIN, NUM_DEV = 1200, 600  # examples of a task; fewer, in the same proportion, if the text is too small
PACKAGES = 8
HELD_OUT_FRACTION = 0.1  # fraction of the pages outside of those packages
NUM_REPLACED = 4  # words of a corrupted sentence; fewer are too hard for a model that trained for a few minutes

Row = tuple[str, ...]  # the texts, and last the label


def builtin_data(folder: str | Path, seed: int = 0, root: Path | None = None) -> dict[str, Any]:
    """Write the training text and the tasks to `folder`, unless they are there already.

    `root` is the standard library to read, by default the running Python's. Returns {"text": path, "documents": n,
    "tasks": {name: {"task": kind, "train": path, "dev": path, "labels": [...]}}}.
    """
    folder = Path(folder)
    built_from = {"version": VERSION, "python": platform.python_version(), "seed": seed, "root": str(root or "")}
    if not _is_current(folder, built_from):
        pages = python_docs.collect_pages(root)
        train, held_out, packages = split_pages(pages, seed)
        tasks = make_tasks(train, held_out, packages, seed)
        with atomic_folder(folder, overwrite=True) as temporary:
            python_docs.write_pages(train, temporary / TEXT)
            for name, splits in tasks.items():
                for split, rows in splits.items():
                    (temporary / f"{name}-{split}.tsv").write_text(_to_tsv(rows), encoding="utf-8")
            labels = {name: sorted({row[-1] for row in splits["train"][1:]}) for name, splits in tasks.items()}
            manifest = {"made_of": built_from, "documents": len(train), "labels": labels}
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1))
    stored = read_object(folder / MANIFEST, f"delete {folder}: it is made again.")
    return {"text": str(folder / TEXT), "documents": stored["documents"],
            "tasks": {name: {"task": kind, "train": str(folder / f"{name}-train.tsv"),
                             "dev": str(folder / f"{name}-dev.tsv"), "labels": stored["labels"][name]}
                      for name, kind in TASKS.items()}}


def split_pages(pages: Sequence[DocPage], seed: int) -> tuple[list[DocPage], list[DocPage], list[str]]:
    """Training pages, held-out pages, and the packages of the task `module`.

    Half of the pages of those packages are training text, the other half is held out. They are the packages with the
    most held-out sentences. Of all other packages a tenth is held out, by whole packages.
    """
    rng = np.random.default_rng(seed)
    packages: dict[str, list[DocPage]] = {}
    for page in pages:
        if page.kind == "module":
            packages.setdefault(page.group, []).append(page)
    halves = {name: _half_package(package_pages, rng) for name, package_pages in sorted(packages.items())}
    counts = {name: sum(len(_usable_sentences(page.sentences)) for page in half) for name, half in halves.items()}
    largest = sorted(sorted(counts), key=lambda name: -counts[name])[:PACKAGES]
    if len(largest) < PACKAGES or not counts[largest[-1]]:
        raise UserError(f"the standard library of this Python has fewer than {PACKAGES} documented packages; use "
                        "another Python, or give text and tasks of your own.")
    half_names = {page.name for name in largest for page in halves[name]}
    inside = [page for page in pages if page.group in largest]
    train, held_out = python_docs.split_pages([page for page in pages if page.group not in largest], seed,
                                              HELD_OUT_FRACTION)
    return ([*(page for page in inside if page.name not in half_names), *train],
            [*(page for page in inside if page.name in half_names), *held_out], sorted(largest))


def make_tasks(train: Sequence[DocPage], held_out: Sequence[DocPage], packages: Sequence[str],
               seed: int) -> dict[str, dict[str, list[Row]]]:
    """Every task as {"train": rows, "dev": rows}; the first row is the header."""
    train_sentences = {sentence.casefold() for page in train for sentence in page.sentences}
    counts = probe_task.count_words(sentence for page in train for sentence in page.sentences)
    rng = np.random.default_rng(seed)
    return {"damage": _word_replacement_task(held_out, train_sentences, counts, seed),
            "module": _package_task(held_out, train_sentences, packages, rng),
            "order": _sentence_order_task(held_out, train_sentences, rng)}


def _word_replacement_task(pages: Sequence[DocPage], exclude: set[str], counts: dict[str, int],
                           seed: int) -> dict[str, list[Row]]:
    rng, vocabulary = np.random.default_rng(seed), probe_task.Vocabulary(counts)
    sentences = [sentence for sentence in _usable_sentences((s for page in pages for s in page.sentences), exclude)
                 if probe_task.replace_words(sentence, NUM_REPLACED, vocabulary, rng) is not None]
    train, dev = _sizes(len(sentences), 2)
    probe = probe_task.make_probe("replaced_words", sentences, counts, seed, train, dev, NUM_REPLACED)
    return {split: [("text", "label"), *((text, probe_task.LABELS[label]) for text, label in examples)]
            for split, examples in (("train", probe.train), ("dev", probe.test))}


def _package_task(pages: Sequence[DocPage], exclude: set[str], packages: Sequence[str],
                  rng: np.random.Generator) -> dict[str, list[Row]]:
    """Equally many sentences of each package, split into train and dev."""
    seen: set[str] = set(exclude)
    sentences = {}
    for name in packages:
        sentences[name] = _usable_sentences((s for page in pages if page.group == name for s in page.sentences), seen)
        seen |= {sentence.casefold() for sentence in sentences[name]}  # a sentence of two packages has no label
    train, dev = _sizes(min(map(len, sentences.values())) * len(packages), len(packages))
    rows: dict[str, list[Row]] = {"train": [], "dev": []}
    for name, package_sentences in sentences.items():
        shuffled = [(package_sentences[index], name) for index in rng.permutation(len(package_sentences))]
        rows["train"] += shuffled[:train // len(packages)]
        rows["dev"] += shuffled[train // len(packages):(train + dev) // len(packages)]
    return {split: [("text", "label"), *_shuffle(split_rows, rng)] for split, split_rows in rows.items()}


def _sentence_order_task(pages: Sequence[DocPage], exclude: set[str], rng: np.random.Generator) -> dict[str, list[Row]]:
    pairs = []
    for page in pages:
        usable = set(_usable_sentences(page.sentences, exclude))
        exclude = exclude | {sentence.casefold() for sentence in usable}
        lines = [" ".join(line.split()) for line in page.sentences]
        index = 0
        while index + 1 < len(lines):
            first, second = lines[index:index + 2]
            fits = first in usable and second in usable and first != second
            if fits:
                usable -= {first, second}
                pairs.append((first, second))
            index += 2 if fits else 1
    train, dev = _sizes(len(pairs), 2)
    shuffled = [pairs[index] for index in rng.permutation(len(pairs))]
    rows = [(b, a, "swapped") if row_index % 2 else (a, b, "in order") for row_index, (a, b) in enumerate(shuffled)]
    return {split: [("text_a", "text_b", "label"), *_shuffle(split_rows, rng)]
            for split, split_rows in (("train", rows[:train]), ("dev", rows[train:train + dev]))}


def _half_package(pages: Sequence[DocPage], rng: np.random.Generator) -> list[DocPage]:
    """Up to half of a package, by words; nothing of a package with only one page."""
    half, limit = [], sum(page.words for page in pages) / 2
    for index in rng.permutation(len(pages)):
        if pages[index].words <= limit and len(pages) > 1:
            half.append(pages[index])
            limit -= pages[index].words
    return half


def _usable_sentences(sentences: Iterable[str], exclude: Iterable[str] = ()) -> list[str]:
    """Sentences of suitable length, without those in `exclude` and without duplicates; case is ignored."""
    seen, usable = set(exclude), []
    for sentence in sentences:
        words = sentence.split()
        key = " ".join(words).casefold()
        if probe_task.MIN_WORDS <= len(words) <= probe_task.MAX_WORDS and key not in seen:
            seen.add(key)
            usable.append(" ".join(words))
    return usable


def _sizes(available: int, classes: int) -> tuple[int, int]:
    """The number of train and dev examples, balanced over the classes."""
    fraction = min(1.0, available / (NUM_TRAIN + NUM_DEV))
    train, dev = (int(fraction * count / classes) * classes for count in (NUM_TRAIN, NUM_DEV))
    if not dev:
        raise UserError(f"the documentation of this Python has {available} usable examples, which are too few for a "
                        "task; use another Python, or give text and tasks of your own.")
    return train, dev


def _shuffle(rows: Sequence[Row], rng: np.random.Generator) -> list[Row]:
    return [rows[index] for index in rng.permutation(len(rows))]


def _to_tsv(rows: Iterable[Row]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def _is_current(folder: Path, built_from: dict[str, object]) -> bool:
    """Whether the folder is complete and built from the same inputs; refuses a folder with other files."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return False
    try:
        stored = parse((folder / MANIFEST).read_bytes())["made_of"]
        verify_checksums(folder, "the text in", "it is made again.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder} holds something else than text made here; choose another folder.") from error
    except UserError:
        return False
    return bool(stored == built_from)

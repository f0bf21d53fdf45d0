"""Text and labelled tasks that every user already has: the documentation inside their own Python, parted in two.

Most pages are the text to pre-train on. The pages that are held out never meet a model before it is fine-tuned, and
are asked about in three ways, none of which costs a label:

- `damage`: were some words of this sentence replaced by others?
- `module`: which of eight packages does this sentence describe? Half of each of those packages is held out.
- `order`: do these two neighbouring sentences stand in their order? (the question of ALBERT, arXiv:1909.11942)

The classes are equally large, no sentence serves twice in a task, and none of them stands in the training text.
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
TASKS = {"damage": "classify", "module": "classify", "order": "pair"}  # and what `stemma finetune` calls each
NUM_TRAIN, NUM_DEV = 1200, 600  # examples of a task, where the text has as many; fewer in the same proportion
PACKAGES = 8
HELD_OUT_SHARE = 0.1  # of what is not in those packages
NUM_REPLACED = 4  # words of a damaged sentence: enough that a model of a few minutes can tell

Row = tuple[str, ...]  # the texts, and last the label


def builtin_data(folder: str | Path, seed: int = 0, root: Path | None = None) -> dict[str, Any]:
    """The training text and the tasks, made in `folder` unless they are there already.

    `root` is the standard library to read, by default the running Python's. Returns {"text": path, "documents": n,
    "tasks": {name: {"task": kind, "train": path, "dev": path, "labels": [...]}}}.
    """
    folder = Path(folder)
    made_of = {"version": VERSION, "python": platform.python_version(), "seed": seed, "root": str(root or "")}
    if not _is_current(folder, made_of):
        pages = python_docs.collect_pages(root)
        train, held_out, packages = split_pages(pages, seed)
        tasks = make_tasks(train, held_out, packages, seed)
        with atomic_folder(folder, overwrite=True) as place:
            python_docs.write_pages(train, place / TEXT)
            for name, parts in tasks.items():
                for which, rows in parts.items():
                    (place / f"{name}-{which}.tsv").write_text(_to_tsv(rows), encoding="utf-8")
            labels = {name: sorted({row[-1] for row in parts["train"][1:]}) for name, parts in tasks.items()}
            about = {"made_of": made_of, "documents": len(train), "labels": labels}
            (place / MANIFEST).write_text(json.dumps(about, indent=1))
    stored = read_object(folder / MANIFEST, f"delete {folder}: it is made again.")
    return {"text": str(folder / TEXT), "documents": stored["documents"],
            "tasks": {name: {"task": kind, "train": str(folder / f"{name}-train.tsv"),
                             "dev": str(folder / f"{name}-dev.tsv"), "labels": stored["labels"][name]}
                      for name, kind in TASKS.items()}}


def split_pages(pages: Sequence[DocPage], seed: int) -> tuple[list[DocPage], list[DocPage], list[str]]:
    """Pages to pre-train on, pages held out, and the packages of the task `module`.

    A package is known to the training text by half of its pages and asked about by the others. Those packages are
    taken that have most to ask about; of everything else a tenth is held out, by whole packages.
    """
    rng = np.random.default_rng(seed)
    packages: dict[str, list[DocPage]] = {}
    for page in pages:
        if page.kind == "module":
            packages.setdefault(page.group, []).append(page)
    halves = {name: _half_package(of, rng) for name, of in sorted(packages.items())}
    asked = {name: sum(len(_usable_sentences(page.sentences)) for page in half) for name, half in halves.items()}
    chosen = sorted(sorted(asked), key=lambda name: -asked[name])[:PACKAGES]
    if len(chosen) < PACKAGES or not asked[chosen[-1]]:
        raise UserError(f"the standard library of this Python has fewer than {PACKAGES} documented packages; use "
                        "another Python, or give text and tasks of your own.")
    held_out = {page.name for name in chosen for page in halves[name]}
    inside = [page for page in pages if page.group in chosen]
    train, rest = python_docs.split_pages([page for page in pages if page.group not in chosen], seed, HELD_OUT_SHARE)
    return ([*(page for page in inside if page.name not in held_out), *train],
            [*(page for page in inside if page.name in held_out), *rest], sorted(chosen))


def make_tasks(train: Sequence[DocPage], held_out: Sequence[DocPage], packages: Sequence[str],
               seed: int) -> dict[str, dict[str, list[Row]]]:
    """Every task as {"train": rows, "dev": rows}, the first of which names the columns."""
    known = {sentence.casefold() for page in train for sentence in page.sentences}
    counts = probe_task.count_words(sentence for page in train for sentence in page.sentences)
    rng = np.random.default_rng(seed)
    return {"damage": _word_replacement_task(held_out, known, counts, seed),
            "module": _package_task(held_out, known, packages, rng),
            "order": _sentence_order_task(held_out, known, rng)}


def _word_replacement_task(pages: Sequence[DocPage], known: set[str], counts: dict[str, int], seed: int) -> dict[str,
    list[Row]]:
    rng, vocabulary = np.random.default_rng(seed), probe_task.Vocabulary(counts)
    sentences = [sentence for sentence in _usable_sentences((s for page in pages for s in page.sentences), known)
                 if probe_task.replace_words(sentence, NUM_REPLACED, vocabulary, rng) is not None]
    train, dev = _sizes(len(sentences), 2)
    made = probe_task.make_probe("replaced_words", sentences, counts, seed, train, dev, NUM_REPLACED)
    return {which: [("text", "label"), *((text, probe_task.LABELS[label]) for text, label in examples)]
            for which, examples in (("train", made.train), ("dev", made.test))}


def _package_task(pages: Sequence[DocPage], known: set[str], packages: Sequence[str],
            rng: np.random.Generator) -> dict[str, list[Row]]:
    """The same number of sentences of each package, of which some are for the end."""
    told: set[str] = set(known)
    sentences = {}
    for name in packages:
        sentences[name] = _usable_sentences((s for page in pages if page.group == name for s in page.sentences), told)
        told |= {sentence.casefold() for sentence in sentences[name]}  # what two packages say tells nothing of either
    train, dev = _sizes(min(map(len, sentences.values())) * len(packages), len(packages))
    rows: dict[str, list[Row]] = {"train": [], "dev": []}
    for name, those in sentences.items():
        drawn = [(those[index], name) for index in rng.permutation(len(those))]
        rows["train"] += drawn[:train // len(packages)]
        rows["dev"] += drawn[train // len(packages):(train + dev) // len(packages)]
    return {which: [("text", "label"), *_shuffle(some, rng)] for which, some in rows.items()}


def _sentence_order_task(pages: Sequence[DocPage], known: set[str], rng: np.random.Generator) -> dict[str, list[Row]]:
    pairs = []
    for page in pages:
        usable = set(_usable_sentences(page.sentences, known))
        known = known | {sentence.casefold() for sentence in usable}
        lines = [" ".join(line.split()) for line in page.sentences]
        place = 0
        while place + 1 < len(lines):
            first, second = lines[place:place + 2]
            fits = first in usable and second in usable and first != second
            if fits:
                usable -= {first, second}
                pairs.append((first, second))
            place += 2 if fits else 1
    train, dev = _sizes(len(pairs), 2)
    drawn = [pairs[index] for index in rng.permutation(len(pairs))]
    rows = [(b, a, "swapped") if number % 2 else (a, b, "in order") for number, (a, b) in enumerate(drawn)]
    return {which: [("text_a", "text_b", "label"), *_shuffle(some, rng)]
            for which, some in (("train", rows[:train]), ("dev", rows[train:train + dev]))}


def _half_package(pages: Sequence[DocPage], rng: np.random.Generator) -> list[DocPage]:
    """Up to half of a package, by words; nothing of a package that is one page."""
    taken, limit = [], sum(page.words for page in pages) / 2
    for index in rng.permutation(len(pages)):
        if pages[index].words <= limit and len(pages) > 1:
            taken.append(pages[index])
            limit -= pages[index].words
    return taken


def _usable_sentences(sentences: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Distinct sentences of a probe's length that are not known; letters' case does not make two of one."""
    told, found = set(known), []
    for sentence in sentences:
        words = sentence.split()
        key = " ".join(words).casefold()
        if probe_task.MIN_WORDS <= len(words) <= probe_task.MAX_WORDS and key not in told:
            told.add(key)
            found.append(" ".join(words))
    return found


def _sizes(available: int, classes: int) -> tuple[int, int]:
    """How many examples to learn from and to be judged by, in equal numbers of each class."""
    share = min(1.0, available / (NUM_TRAIN + NUM_DEV))
    train, dev = (int(share * wanted / classes) * classes for wanted in (NUM_TRAIN, NUM_DEV))
    if not dev:
        raise UserError(f"the documentation of this Python has {available} usable examples, which are too few for a "
                        "task; use another Python, or give text and tasks of your own.")
    return train, dev


def _shuffle(rows: Sequence[Row], rng: np.random.Generator) -> list[Row]:
    return [rows[index] for index in rng.permutation(len(rows))]


def _to_tsv(rows: Iterable[Row]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def _is_current(folder: Path, built_from: dict[str, object]) -> bool:
    """Whether the folder holds what would be made, whole; anything else of ours is made again."""
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

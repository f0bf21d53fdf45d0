"""The same text for all: what is trained on and what is held out is decided once, before any tokenizer sees it.

Raw text is parted by whole documents, or where there are only long ones by the end of the longest, and written as JSON
lines below the lab's folder. A finished corpus holds out by its own rule, which is the same for all that read it. What
is held out is asked in stretches of a few sentences: many small questions tell more about noise than few large ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from stemma.atomic_files import CHECKSUMS, atomic_folder, sha256, verify_checksums
from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.errors import UserError
from stemma.json_files import explain_damage, read_lines
from stemma.lab.experiment import Experiment
from stemma.tasks.pipeline.stage_texts import numbered_texts, write_documents
from stemma.text.holdout import hold_out
from stemma.text.readers import list_files
from stemma.training.run_folder import TextReadingOptions

FOLDER, TRAIN, HELD_OUT, SOURCE = "text", "train.jsonl", "held_out.jsonl", "source.json"
HELD_OUT_FRACTION = 0.05  # of the characters are held out
MAX_HELD_OUT_CHARS = 400_000  # characters are enough, however long the text
EVAL_CHARS = 48_000  # characters of them that every model is asked about
CHUNK_CHARS = 1200  # characters of a question: a few windows of a small model
SEED = 20_260_713


@dataclass(frozen=True)
class TextSplit:
    """What every variant learns from and is asked about."""

    corpus: str | None
    text: tuple[str, ...]
    reading_options: TextReadingOptions
    eval_chunks: tuple[str, ...]
    digest: str  # of all of it
    summary: dict[str, object]


def split_text(experiment: Experiment, folder: Path) -> TextSplit:
    """The text of an experiment, parted at the first call and the same ever after."""
    if experiment.corpus is not None:
        return _from_corpus(experiment)
    place = folder / FOLDER
    source = json.dumps([[sha256(file) for file in list_files(experiment.text)], asdict(experiment.reading)])
    if not (place / SOURCE).is_file():
        _split(experiment, place, source)
    elif (place / SOURCE).read_text(encoding="utf-8") != source:
        raise UserError(f"{folder} was begun with another text, or it was read in another way; its cells cannot be "
                        "compared with new ones: choose another --out.")
    again = f"delete {place}, and `stemma resume {folder}` makes it again from {', '.join(experiment.text)}."
    if (place / CHECKSUMS).is_file():  # labs made before there were any have none
        verify_checksums(place, "the text of the lab", again, (TRAIN, HELD_OUT, SOURCE))
    with explain_damage(place / HELD_OUT, again):
        documents = [str(line["text"]) for line in read_lines(place / HELD_OUT, again)]
    facts = {"text": list(experiment.text), "documents": sum(1 for _ in _lines(place / TRAIN)),
             "held_out_documents": len(documents), "held_out_bytes": sum(len(text.encode()) for text in documents)}
    digest = f"{sha256(place / TRAIN)} {sha256(place / HELD_OUT)}"
    return TextSplit(None, (str((place / TRAIN).resolve()),), TextReadingOptions(), eval_chunks(documents), digest,
                     facts)


def _from_corpus(experiment: Experiment) -> TextSplit:
    assert experiment.corpus is not None
    corpus = Corpus.open(experiment.corpus)
    shares = {one.recipe.settings.corpus.validation for one in experiment.variants}
    if len(shares) > 1:
        told = ", ".join(map(str, sorted(shares)))
        raise UserError(f"the recipes hold out different shares of the text ({told}), so there is nothing that none of "
                        "them has read; add corpus.validation=0.02.")
    view = train_validation_split(corpus, shares.pop())[1].documents_for("full_sentences")
    documents = [view.document_text(number) for number in range(len(view.document_ranges))]
    if not documents:
        raise UserError(f"the corpus {experiment.corpus} holds nothing out, so the models cannot be asked about text "
                        "they have not read; set corpus.validation above 0.")
    marks = {name: corpus.annotation_digest(name) for name in corpus.annotations()}
    facts = {"text": [experiment.corpus], "documents": len(corpus.document_starts) - 1 - len(documents),
             "held_out_documents": len(documents), "held_out_bytes": sum(len(text.encode()) for text in documents)}
    return TextSplit(experiment.corpus, (), experiment.reading, eval_chunks(documents),
                      json.dumps([corpus.fingerprint, marks], sort_keys=True), facts)


def _split(experiment: Experiment, text_folder: Path, source: str) -> None:
    sizes: list[int] = []
    for number, text in numbered_texts(experiment.text, experiment.reading):
        sizes.extend([0] * (number + 1 - len(sizes)))
        sizes[number] += len(text)
    total = sum(sizes)
    if not total:
        raise UserError(f"{', '.join(experiment.text)} holds no text; give a file with sentences in it.")
    wanted = min(round(HELD_OUT_FRACTION * total), MAX_HELD_OUT_CHARS)
    held, cut = hold_out(sizes, wanted, SEED), None
    if not held:  # a few long documents: the end of the longest
        cut = sizes.index(max(sizes))
    with atomic_folder(text_folder, overwrite=True) as folder:
        kept: list[str] = []
        write_documents(folder / TRAIN, _training_documents(experiment, held, cut, wanted, kept), "text")
        if not kept:
            raise UserError(f"{', '.join(experiment.text)} is too little text to hold some of it out; give more.")
        write_documents(folder / HELD_OUT, kept, "text")
        (folder / SOURCE).write_text(source, encoding="utf-8")


def _training_documents(experiment: Experiment, held_out: set[int], cut: int | None, target_chars: int,
                        held_out_documents: list[str]) -> Iterator[str]:
    """The documents to train on; those held out go into `kept`."""
    for number, text in _documents(experiment):
        if number in held_out:
            held_out_documents.append(text)
            continue
        if number == cut:
            lines = text.splitlines(keepends=True)
            ends = np.cumsum([len(line) for line in reversed(lines)])
            last = min(len(lines) - 1, int(np.searchsorted(ends, target_chars)) + 1) if len(lines) > 1 else 0
            middle = sum(map(len, lines[:-last])) if last else len(text) - target_chars
            held_out_documents.append(text[middle:])
            text = text[:middle]
        if text.strip():
            yield text


def _documents(experiment: Experiment) -> Iterator[tuple[int, str]]:
    """Whole ones: a long document comes in passages."""
    current = -1
    parts: list[str] = []
    for number, text in numbered_texts(experiment.text, experiment.reading):
        if number != current and parts:
            yield current, "".join(parts)
            parts = []
        current = number
        parts.append(text)
    if parts:
        yield current, "".join(parts)


def eval_chunks(documents: Sequence[str]) -> tuple[str, ...]:
    """Neighbouring lines of at least STRETCH characters each, drawn over all that is held out; long lines are cut."""
    found: list[str] = []
    for text in documents:
        current = ""
        for line in text.splitlines(keepends=True):
            for start in range(0, len(line), CHUNK_CHARS):
                current += line[start:start + CHUNK_CHARS]
                if len(current) >= CHUNK_CHARS:
                    found.append(current)
                    current = ""
        if current.strip():
            found.append(current)
    found = [text for text in found if text.strip()]
    order = np.random.default_rng(SEED).permutation(len(found))
    total, chosen = 0, []
    for number in order:
        if total >= EVAL_CHARS:
            break
        chosen.append(int(number))
        total += len(found[number])
    return tuple(found[number] for number in sorted(chosen))


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="ascii") as lines:
        yield from lines

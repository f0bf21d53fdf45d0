"""The split of an experiment's text into training and held-out documents, before any tokenizer is trained.

Raw text is split by whole documents; if there are only long ones, the end of the longest is held out. Both parts are
JSON lines in the lab's folder. A corpus folder has its own validation split, the same for all variants. The held-out
text is scored in chunks of a few sentences: many small chunks give a better estimate of the variance.
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
HELD_OUT_FRACTION = 0.05  # of the characters
MAX_HELD_OUT_CHARS = 400_000
EVAL_CHARS = 48_000  # held-out characters that every model is scored on
CHUNK_CHARS = 1200  # minimum size of a chunk: a few context lengths of a small model
SEED = 20_260_713


@dataclass(frozen=True)
class TextSplit:
    """Training text and evaluation chunks, the same for all variants."""

    corpus: str | None
    text: tuple[str, ...]
    reading_options: TextReadingOptions
    eval_chunks: tuple[str, ...]
    digest: str  # of all of it
    summary: dict[str, object]


def split_text(experiment: Experiment, folder: Path) -> TextSplit:
    """Split the text of an experiment, or read the split that was made before."""
    if experiment.corpus is not None:
        return _from_corpus(experiment)
    text_folder = folder / FOLDER
    has_split = (text_folder / SOURCE).is_file()
    source = _source(experiment, has_split)
    if not has_split:
        assert source is not None
        _split(experiment, text_folder, source)
    elif source not in (None, (text_folder / SOURCE).read_text(encoding="utf-8")):
        raise UserError(f"{folder} was begun with another text, or it was read in another way; its cells cannot be "
                        "compared with new ones: choose another --out.")
    advice = f"delete {text_folder}, and `stemma resume {folder}` makes it again from {', '.join(experiment.text)}."
    if (text_folder / CHECKSUMS).is_file():  # labs made before there were any have none
        verify_checksums(text_folder, "the text of the lab", advice, (TRAIN, HELD_OUT, SOURCE))
    with explain_damage(text_folder / HELD_OUT, advice):
        documents = [str(line["text"]) for line in read_lines(text_folder / HELD_OUT, advice)]
    summary = {"text": list(experiment.text), "documents": sum(1 for _ in _lines(text_folder / TRAIN)),
               "held_out_documents": len(documents), "held_out_bytes": sum(len(text.encode()) for text in documents)}
    digest = f"{sha256(text_folder / TRAIN)} {sha256(text_folder / HELD_OUT)}"
    train_file = str((text_folder / TRAIN).resolve())
    return TextSplit(None, (train_file,), TextReadingOptions(), eval_chunks(documents), digest, summary)


def _source(experiment: Experiment, has_split: bool) -> str | None:
    """The digests of the text's files and how they are read. None: a file is gone, and the lab has its own copy."""
    try:
        files = list_files(experiment.text)
    except UserError:
        if has_split:
            return None
        raise
    return json.dumps([[sha256(file) for file in files], asdict(experiment.reading)])


def _from_corpus(experiment: Experiment) -> TextSplit:
    assert experiment.corpus is not None
    corpus = Corpus.open(experiment.corpus)
    fractions = {variant.recipe.settings.corpus.validation for variant in experiment.variants}
    if len(fractions) > 1:
        listing = ", ".join(map(str, sorted(fractions)))
        raise UserError(f"the recipes hold out different fractions of the text ({listing}), so there is no text that "
                        "all of them hold out; add corpus.validation=0.02.")
    view = train_validation_split(corpus, fractions.pop())[1].documents_for("full_sentences")
    documents = [view.document_text(index) for index in range(len(view.document_ranges))]
    if not documents:
        raise UserError(f"the corpus {experiment.corpus} holds nothing out, so the models cannot be scored on unseen "
                        "text; set corpus.validation above 0.")
    annotations = {name: corpus.annotation_digest(name) for name in corpus.annotations()}
    summary = {"text": [experiment.corpus], "documents": len(corpus.document_starts) - 1 - len(documents),
               "held_out_documents": len(documents), "held_out_bytes": sum(len(text.encode()) for text in documents)}
    return TextSplit(experiment.corpus, (), experiment.reading, eval_chunks(documents),
                     json.dumps([corpus.fingerprint, annotations], sort_keys=True), summary)


def _split(experiment: Experiment, text_folder: Path, source: str) -> None:
    sizes: list[int] = []
    for document_index, text in numbered_texts(experiment.text, experiment.reading):
        sizes.extend([0] * (document_index + 1 - len(sizes)))
        sizes[document_index] += len(text)
    total = sum(sizes)
    if not total:
        raise UserError(f"{', '.join(experiment.text)} holds no text; give a file with sentences in it.")
    target_chars = min(round(HELD_OUT_FRACTION * total), MAX_HELD_OUT_CHARS)
    held_out, truncated = hold_out(sizes, target_chars, SEED), None
    if not held_out:  # only long documents: hold out the end of the longest
        truncated = sizes.index(max(sizes))
    with atomic_folder(text_folder, overwrite=True) as folder:
        held_out_documents: list[str] = []
        write_documents(folder / TRAIN, _training_documents(experiment, held_out, truncated, target_chars,
                                                            held_out_documents), "text")
        if not held_out_documents:
            raise UserError(f"{', '.join(experiment.text)} is too little text to hold some of it out; give more.")
        write_documents(folder / HELD_OUT, held_out_documents, "text")
        (folder / SOURCE).write_text(source, encoding="utf-8")


def _training_documents(experiment: Experiment, held_out: set[int], truncated: int | None, target_chars: int,
                        held_out_documents: list[str]) -> Iterator[str]:
    """The training documents; held-out text is appended to `held_out_documents`."""
    for index, text in _documents(experiment):
        if index in held_out:
            held_out_documents.append(text)
            continue
        if index == truncated:
            lines = text.splitlines(keepends=True)
            ends = np.cumsum([len(line) for line in reversed(lines)])
            num_lines = min(len(lines) - 1, int(np.searchsorted(ends, target_chars)) + 1) if len(lines) > 1 else 0
            cut = sum(map(len, lines[:-num_lines])) if num_lines else len(text) - target_chars
            held_out_documents.append(text[cut:])
            text = text[:cut]
        if text.strip():
            yield text


def _documents(experiment: Experiment) -> Iterator[tuple[int, str]]:
    """Whole documents: a long one is read in several passages."""
    current = -1
    parts: list[str] = []
    for document_index, text in numbered_texts(experiment.text, experiment.reading):
        if document_index != current and parts:
            yield current, "".join(parts)
            parts = []
        current = document_index
        parts.append(text)
    if parts:
        yield current, "".join(parts)


def eval_chunks(documents: Sequence[str]) -> tuple[str, ...]:
    """Chunks of neighbouring lines, each of at least CHUNK_CHARS, sampled from all held-out text; long lines are
    split."""
    chunks: list[str] = []
    for text in documents:
        current = ""
        for line in text.splitlines(keepends=True):
            for start in range(0, len(line), CHUNK_CHARS):
                current += line[start:start + CHUNK_CHARS]
                if len(current) >= CHUNK_CHARS:
                    chunks.append(current)
                    current = ""
        if current.strip():
            chunks.append(current)
    chunks = [text for text in chunks if text.strip()]
    order = np.random.default_rng(SEED).permutation(len(chunks))
    total, sample = 0, []
    for index in order:
        if total >= EVAL_CHARS:
            break
        sample.append(int(index))
        total += len(chunks[index])
    return tuple(chunks[index] for index in sorted(sample))


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="ascii") as lines:
        yield from lines

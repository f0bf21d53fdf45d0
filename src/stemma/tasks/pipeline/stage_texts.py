"""Additional text of a stage: the texts of a task's examples, and replayed general text against forgetting.

Both are written as ASCII JSON lines, which are valid in every encoding.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from stemma.atomic_files import atomic_file, make_folder
from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import train_validation_split
from stemma.notes import quietly
from stemma.tasks.data.examples import Example, TaggedExample
from stemma.text.chinese_words import CJK_RUN
from stemma.text.readers import read_passages
from stemma.training.run_folder import TextReadingOptions, is_corpus

NumberedTexts = Iterator[tuple[int, str]]


def example_texts(example: Example) -> tuple[str, ...]:
    """The input texts of an example, with tagged words joined to a sentence."""
    if not isinstance(example, TaggedExample):
        return tuple(text for text in example.input_texts() if text.strip())
    joined = "".join(example.words)
    return (joined if CJK_RUN.match(joined) else " ".join(example.words),)


def example_documents(examples: Iterable[Example]) -> list[str]:
    """Each example as a document without its label; repeated texts (a paragraph with many questions) occur once."""
    parts = dict.fromkeys(example_texts(example) for example in examples)
    seen: set[str] = set()
    documents = []
    for texts in parts:
        new = [text for text in texts if text not in seen]
        seen.update(new)
        if new:
            documents.append("\n".join(new))
    return documents


def write_documents(file: Path, documents: Iterable[str], field: str) -> None:
    make_folder(file.parent)
    with atomic_file(file) as out:
        for text in documents:
            out.write(json.dumps({field: text}).encode("ascii") + b"\n")


def numbered_texts(paths: Sequence[str], reading: TextReadingOptions) -> NumberedTexts:
    """(document index, text) of raw text or of a corpus; a long document may be split."""
    if len(paths) == 1 and is_corpus(paths[0]):
        corpus = Corpus.open(paths[0])
        yield from ((index, corpus.document_text(index)) for index in range(len(corpus.document_starts) - 1))
        return
    index = -1
    for passage in quietly(read_passages(paths, **reading.plain_text_arguments())) if paths else ():
        index += passage.starts_document
        yield index, passage.text


def sample_replay(general: Corpus, validation: float, characters: int, seed: int) -> tuple[list[str], int]:
    """Sample documents of general text until they have `characters` characters; returns them and their total length.
    Never samples the text that is held out to measure forgetting."""
    view = train_validation_split(general, validation)[0].documents_for("full_sentences")
    documents: list[str] = []
    total = 0
    for index in np.random.default_rng([seed, 11]).permutation(len(view.document_ranges)):
        if total >= characters:
            break
        documents.append(view.document_text(int(index)))
        total += len(documents[-1])
    return documents, total

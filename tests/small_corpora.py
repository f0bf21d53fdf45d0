"""Small corpora, row templates and drafts for tests that must know every token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from conftest import small_text

from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import CorpusSubset
from stemma.schema.corpus import parse_template
from stemma.text.train_tokenizer import train_tokenizer

SINGLE = "start A separator"
PAIR = "start A separator B:1 separator:1"
PACKINGS = ("segment_pair", "sentence_pair", "full_sentences", "doc_sentences", "stream")


def corpus_of(folder: Path, documents: Sequence[Sequence[str]], tokenizer: Path, **options) -> Corpus:
    """A corpus of documents given as lists of sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    text.write_text("\n\n".join("\n".join(sentences) for sentences in documents) + "\n", encoding="utf-8")
    build_corpus([text], tokenizer, folder / "corpus", workers=1, sentences="line", **options)
    return Corpus.open(folder / "corpus")


def pieced_corpus(folder: Path, seed: int = 0) -> Corpus:
    """A corpus with a small vocabulary, so that most words have several subtokens."""
    text = small_text(documents=30, seed=seed)
    roles = {"mask", "start", "separator", "begin", "end"}
    train_tokenizer(iter([text]), "wordpiece", 64, lowercase=True, roles=roles).save(folder / "tokenizer")
    return corpus_of(folder, [document.split("\n") for document in text.strip().split("\n\n")], folder / "tokenizer")


def whole(corpus: Corpus) -> CorpusSubset:
    """A subset of all documents, with nothing held out."""
    return CorpusSubset(corpus, np.stack([corpus.document_starts[:-1], corpus.document_starts[1:]], axis=1))


def plain_layout(length: int, single: str = SINGLE, pair: str = PAIR) -> RowTemplate:
    """A row template without a tokenizer, for packers that never read a token."""
    roles = {"padding": 0, "start": 1, "separator": 2, "boundary": 2}
    return RowTemplate(parse_template(single), parse_template(pair), length, roles)


def packing_of(corpus: Corpus, kind: str, length: int, short: float = 0.0, single: str = SINGLE,
               pair: str = PAIR) -> Packer:
    return Packer(kind, RowTemplate.from_tokenizer(corpus.tokenizer, single, pair, length), short)


def draft_of(view: CorpusSubset, kind: str, length: int, rows: int, seed: int = 0, short: float = 0.0,
             **templates) -> Draft:
    packing = packing_of(view.corpus, kind, length, short, **templates)
    pieces, _ = RowSampler(view, packing, seed).next_rows(rows)
    return Draft(view, pieces, packing.template)

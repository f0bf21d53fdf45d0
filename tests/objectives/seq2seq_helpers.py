"""Drafts for encoder-decoder objectives, and their encoder and decoder rows as lists."""

from __future__ import annotations

from conftest import small_text
from small_corpora import PAIR, corpus_of

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import RowSampler
from stemma.corpus.seq2seq_rows import PaddedRows
from stemma.corpus.subset import CorpusSubset
from stemma.text.train_tokenizer import train_tokenizer

CHINESE = ["自然语言处理是人工智能的一个重要方向。", "我们在图书馆研究古代手稿的家谱。", "他喜欢阅读历史书籍和旅行。"]


def corpus_with_sentinels(folder, documents: int = 30) -> Corpus:
    """A corpus of short documents, with a small vocabulary that has all special tokens and sentinels."""
    text = small_text(documents=documents)
    train_tokenizer(iter([text]), "wordpiece", 190, lowercase=True).save(folder / "tokenizer")
    return corpus_of(folder, [document.split("\n") for document in text.strip().split("\n\n")], folder / "tokenizer")


def chinese_corpus(folder) -> Corpus:
    train_tokenizer(iter(CHINESE), "wordpiece", 400, lowercase=True, cjk_spacing=True).save(folder / "tokenizer")
    return corpus_of(folder, [CHINESE] * 5, folder / "tokenizer")


def seq2seq_draft(view: CorpusSubset, kind: str, length: int, rows: int, seed: int = 0, single: str = "A end",
                  start: str = "begin") -> Draft:
    layout = RowTemplate.from_tokenizer(view.corpus.tokenizer, single, PAIR, length, decoder_start=start)
    spans, _ = RowSampler(view, Packer(kind, layout), seed).next_rows(rows)
    return Draft(view, spans, layout)


def rows_of(rows: PaddedRows) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(rows.input_ids, rows.lengths, strict=True)]


def labels_of(rows: PaddedRows) -> list[list[int]]:
    return [labels[:length].tolist() for labels, length in zip(rows.labels, rows.lengths, strict=True)]


def originals(draft: Draft) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(draft.original_ids, draft.lengths, strict=True)]

"""Drafts for encoder-decoder tasks, and their sides as plain lists."""

from __future__ import annotations

from conftest import small_text
from making import PAIR, corpus_of

from stemma.corpus.draft import Draft
from stemma.corpus.feed import Feed
from stemma.corpus.layout import Layout
from stemma.corpus.packers import Packing
from stemma.corpus.shards import Corpus
from stemma.corpus.sides import Side
from stemma.corpus.view import View
from stemma.text.train import train_tokenizer

CHINESE = ["自然语言处理是人工智能的一个重要方向。", "我们在图书馆研究古代手稿的家谱。", "他喜欢阅读历史书籍和旅行。"]


def with_sentinels(folder, documents: int = 30) -> Corpus:
    """A small vocabulary that has every role, and short documents of several sentences."""
    text = small_text(documents=documents)
    train_tokenizer(iter([text]), "wordpiece", 190, lowercase=True).save(folder / "tokenizer")
    return corpus_of(folder, [document.split("\n") for document in text.strip().split("\n\n")], folder / "tokenizer")


def chinese(folder) -> Corpus:
    train_tokenizer(iter(CHINESE), "wordpiece", 400, lowercase=True, cjk_spacing=True).save(folder / "tokenizer")
    return corpus_of(folder, [CHINESE] * 5, folder / "tokenizer")


def sided_draft(view: View, kind: str, length: int, rows: int, seed: int = 0, single: str = "A end",
                start: str = "begin") -> Draft:
    layout = Layout.of(view.corpus.tokenizer, single, PAIR, length, decoder_start=start)
    pieces, _ = Feed(view, Packing(kind, layout), seed).take(rows)
    return Draft(view, pieces, layout)


def rows_of(side: Side) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(side.ids, side.lengths, strict=True)]


def labels_of(side: Side) -> list[list[int]]:
    return [labels[:length].tolist() for labels, length in zip(side.labels, side.lengths, strict=True)]


def originals(draft: Draft) -> list[list[int]]:
    return [ids[:length].tolist() for ids, length in zip(draft.original, draft.lengths, strict=True)]

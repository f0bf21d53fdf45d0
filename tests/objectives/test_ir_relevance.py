"""Queries with titles: the label of each row is the one in the file."""

from __future__ import annotations

import numpy as np
import pytest
from making import PAIR, SINGLE
from talking import judged, mixed_corpus

from stemma.corpus.buckets import BucketFeed
from stemma.corpus.draft import Draft
from stemma.corpus.layout import Layout
from stemma.corpus.packers import Packing
from stemma.corpus.shards import Corpus
from stemma.corpus.view import View
from stemma.errors import UserError
from stemma.network.heads import ClassHead
from stemma.objectives import finish
from stemma.objectives.ir_relevance import IRRelevance, IRRelevanceSettings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    return mixed_corpus(tmp_path_factory.mktemp("judged"), tokenizer_folder)


def objective(classes: int = 3) -> IRRelevance:
    return IRRelevance("ir", IRRelevanceSettings(kind="ir_relevance", classes=classes))


def test_every_row_is_a_pair_with_its_label(corpus):
    view = View.whole(corpus).read_by("parallel")
    packing = Packing("parallel", Layout.of(corpus.tokenizer, SINGLE, PAIR, 40), together=True)
    pieces, _ = BucketFeed(view, packing, 0, 4000).take()
    draft = Draft(view, pieces, packing.layout)
    chosen = objective()
    chosen.corrupt(draft, np.random.default_rng(0))
    wanted = sorted(judged())
    found = []
    for row in range(draft.rows):
        first = int(draft.source[row][draft.source[row] >= 0][0])
        number = int(np.searchsorted(corpus.documents, first, side="right")) - 1
        query, title = corpus.text(number).split("\n")
        found.append((query, title, int(draft.labels["ir"][row])))
        text = draft.source[row] >= 0
        assert set(draft.segments[row][text].tolist()) == {0, 1}
    assert sorted(found) == wanted
    assert chosen.baseline(finish(draft), np.zeros(1))["ir"] == pytest.approx(np.log(3))


def test_the_head_has_a_class_for_each_label(corpus, corpus_folder):
    assert objective(5).needs().heads["ir_relevance"] == ClassHead(5)
    assert objective(3).lacks(corpus) is None
    assert "--relevance" in str(objective().lacks(Corpus.open(corpus_folder)))
    with pytest.raises(UserError, match=r"go up to 2, and objective.ir has 2 classes; set objective.ir.classes=3"):
        objective(2).lacks(corpus)

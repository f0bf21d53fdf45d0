"""IR relevance: every row is a query and a title with the label of the file."""

from __future__ import annotations

import numpy as np
import pytest
from mixed_corpora import judged, mixed_corpus
from small_corpora import PAIR, SINGLE

from stemma.corpus.bucket_sampler import BucketSampler
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError
from stemma.network.heads import ClassHead
from stemma.objectives import collate
from stemma.objectives.ir_relevance import IRRelevance, IRRelevanceSettings


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer_folder) -> Corpus:
    return mixed_corpus(tmp_path_factory.mktemp("judged"), tokenizer_folder)


def objective(classes: int = 3) -> IRRelevance:
    return IRRelevance("ir", IRRelevanceSettings(kind="ir_relevance", classes=classes))


def test_every_row_is_a_pair_with_its_label(corpus):
    view = CorpusSubset.all_documents(corpus).documents_for("parallel")
    packing = Packer("parallel", RowTemplate.from_tokenizer(corpus.tokenizer, SINGLE, PAIR, 40), joint_window=True)
    spans, _ = BucketSampler(view, packing, 0, 4000).next_rows()
    draft = Draft(view, spans, packing.template)
    task = objective()
    task.make_targets(draft, np.random.default_rng(0))
    expected = sorted(judged())
    results = []
    for row in range(draft.rows):
        first = int(draft.corpus_offsets[row][draft.corpus_offsets[row] >= 0][0])
        document_index = int(np.searchsorted(corpus.document_starts, first, side="right")) - 1
        query, title = corpus.document_text(document_index).split("\n")
        results.append((query, title, int(draft.row_labels["ir"][row])))
        text = draft.corpus_offsets[row] >= 0
        assert set(draft.segment_ids[row][text].tolist()) == {0, 1}
    assert sorted(results) == expected
    assert task.baseline(collate(draft), np.zeros(1))["ir"] == pytest.approx(np.log(3))


def test_the_head_has_a_class_for_each_label(corpus, corpus_folder):
    assert objective(5).requirements().heads["ir_relevance"] == ClassHead(5)
    assert objective(3).missing_data(corpus) is None
    assert "--relevance" in str(objective().missing_data(Corpus.open(corpus_folder)))
    with pytest.raises(UserError, match=r"go up to 2, and objective.ir has 2 classes; set objective.ir.classes=3"):
        objective(2).missing_data(corpus)

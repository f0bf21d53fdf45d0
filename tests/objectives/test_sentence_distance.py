import numpy as np
import pytest
from small_corpora import corpus_of, draft_of, packing_of, whole

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import CorpusSubset, train_validation_split
from stemma.objectives.sentence_distance import SentenceDistance, SentenceDistanceSettings

NAME = "sentence_distance"
LINES = ["the clerk reads", "our neighbour forgets", "every scribe copies", "the printer collects a letter"]


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def objective() -> SentenceDistance:
    return SentenceDistance(NAME, SentenceDistanceSettings(kind=NAME))


def expected_label(view: CorpusSubset, draft: Draft, row: int) -> int:
    """The label that follows from the row, by counting the sentences between A and B."""
    offsets, sentences = draft.corpus_offsets[row], view.corpus.sentence_starts
    a = offsets[(offsets >= 0) & (draft.segment_ids[row] == 0)]
    b = offsets[(offsets >= 0) & (draft.segment_ids[row] == 1)]
    of_a, of_b = (set((np.searchsorted(view.document_ranges[:, 0], text, side="right") - 1).tolist()) for text in (a,
                                                                                                                   b))
    assert len(of_a) == len(of_b) == 1
    if of_a != of_b:
        return 2
    sentence_indices = [np.searchsorted(sentences, text[[0, -1]], side="right") - 1 for text in (a, b)]
    assert not set(a.tolist()) & set(b.tolist())
    between = max(sentence_indices[1][0] - sentence_indices[0][1], sentence_indices[0][0] - sentence_indices[1][1])
    return 0 if between <= 1 else 1


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("kind", ["segment_pair", "sentence_pair"])
def test_labels_match_the_distance_of_the_sentences(corpus, kind, part):
    view = train_validation_split(corpus, 0.3)[part]
    draft = draft_of(view, kind, 200, rows=400, short=0.6)  # long enough that nothing is truncated
    objective().make_targets(draft, np.random.default_rng(0))
    labels = draft.row_labels[NAME]
    assert [expected_label(view, draft, row) for row in range(400)] == labels.tolist()
    assert set(labels) == {0, 1, 2}


def test_the_three_labels_are_equally_likely(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [LINES * 6] * 3, tokenizer_folder)
    draft = draft_of(whole(corpus), "sentence_pair", 30, rows=3000)
    objective().make_targets(draft, np.random.default_rng(1))
    assert (np.abs(np.bincount(draft.row_labels[NAME], minlength=3) / 3000 - 1 / 3) < 0.04).all()


def test_every_sentence_not_adjacent_to_a_is_used(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [LINES * 3] * 2, tokenizer_folder)
    view = whole(corpus)
    draft = draft_of(view, "sentence_pair", 30, rows=4000)
    objective().make_targets(draft, np.random.default_rng(2))
    apart = np.flatnonzero(draft.row_labels[NAME] == 1)
    sentence_indices = np.searchsorted(corpus.sentence_starts, draft.spans.start, side="right") - 1
    first, second = (sentence_indices[draft.spans.part == part][apart] for part in (0, 1))
    result = {(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True) if a < 12}
    assert result == {(a, b) for a in range(0, 12, 2) for b in range(12) if abs(a - b) > 1}


@pytest.mark.parametrize(("documents", "possible"), [
    ([LINES[:2], LINES[2:]], {0, 2}),  # too short for a third sentence
    ([LINES * 2], {0, 1}),  # no other document
    ([LINES[:1], LINES[1:2]], {2}),
    ([LINES[:1]], {-1})])
def test_documents_too_short_for_a_label_get_another_correct_one(tmp_path, tokenizer_folder, documents, possible):
    corpus = corpus_of(tmp_path, documents, tokenizer_folder)
    view = whole(corpus)
    draft = draft_of(view, "sentence_pair", 30, rows=200)
    objective().make_targets(draft, np.random.default_rng(3))
    labels = draft.row_labels[NAME]
    assert set(labels) == possible
    if possible != {-1}:
        assert [expected_label(view, draft, row) for row in range(200)] == labels.tolist()


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "segment_pair", 40, short=0.2)
    spans, _ = RowSampler(view, packing, 0).next_rows(30)
    batched = Draft(view, spans.select(np.arange(30)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(30)])
    objective().make_targets(batched, rng)
    after = rng.random((30, 2))
    for row in range(30):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        row_rng = PerRowRNG([[1, row]])
        objective().make_targets(alone, row_rng)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert (row_rng.random((1, 2))[0] == after[row]).all()

import math

import numpy as np
import pytest
from small_corpora import corpus_of, draft_of, packing_of, whole

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.corpus.subset import CorpusSubset, train_validation_split
from stemma.objectives import collate
from stemma.objectives.next_sentence import NextSentence, NextSentenceSettings

HEAD = "next_sentence"


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def objective(random: float = 0.5) -> NextSentence:
    return NextSentence("next_sentence", NextSentenceSettings(kind="next_sentence", random=random))


def document_of(view: CorpusSubset, offsets: np.ndarray) -> set[int]:
    begins, ends = view.document_ranges.T
    result = np.searchsorted(begins, offsets, side="right") - 1
    assert (result >= 0).all() and (offsets < ends[result]).all(), "text from outside the view"
    return set(result.tolist())


def parts(draft: Draft, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Corpus offsets of A and of B."""
    offsets = draft.corpus_offsets[row]
    is_text, segments = offsets >= 0, draft.segment_ids[row]
    return offsets[is_text & (segments == 0)], offsets[is_text & (segments == 1)]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("kind", ["segment_pair", "sentence_pair"])
def test_label_1_means_another_document_of_the_subset_and_0_the_following_text(corpus, kind, part):
    view = train_validation_split(corpus, 0.3)[part]
    draft = draft_of(view, kind, 40, rows=300, short=0.2)
    unpaired = draft.spans.part_lengths(1) == 0
    whole_row = np.bincount(draft.spans.row, weights=draft.spans.length) < 37  # not truncated
    objective().make_targets(draft, np.random.default_rng(0))
    labels = draft.row_labels[HEAD]
    assert labels[unpaired].all() and unpaired.any()
    for row in range(300):
        a, b = parts(draft, row)
        assert len(a) and len(b)
        assert (np.diff(a) == 1).all() and (np.diff(b) == 1).all()
        same = document_of(view, a) == document_of(view, b)
        assert same == (labels[row] == 0)
        if labels[row] == 0:
            assert b[0] > a[-1]
            assert not whole_row[row] or b[0] == a[-1] + 1
    assert (draft.lengths <= 40).all()
    assert 100 < labels.sum() < 250


@pytest.mark.parametrize("random", [0.0, 0.25, 0.5, 1.0])
def test_the_fraction_of_label_1_matches_the_setting(corpus, random):
    draft = draft_of(whole(corpus), "segment_pair", 24, rows=2000)
    paired = draft.spans.part_lengths(1) > 0
    objective(random).make_targets(draft, np.random.default_rng(2))
    result = draft.row_labels[HEAD][paired]
    assert len(result) > 1000
    assert abs(result.mean() - random) <= 4 * (random * (1 - random) / len(result)) ** 0.5


def test_random_segments_start_at_a_sentence_and_cover_all_documents(corpus):
    view = whole(corpus)
    draft = draft_of(view, "sentence_pair", 200, rows=2000)  # nothing is truncated
    objective(1.0).make_targets(draft, np.random.default_rng(3))
    used: set[int] = set()
    starts = set(corpus.sentence_starts.tolist())
    for row in range(2000):
        _, b = parts(draft, row)
        assert int(b[0]) in starts and int(b[-1]) + 1 in starts
        used |= document_of(view, b)
    assert used == set(range(len(view.document_ranges)))


def test_the_length_of_a_row_does_not_reveal_the_label(corpus):
    """Rows with a short target length stay short for both labels."""
    draft = draft_of(whole(corpus), "segment_pair", 128, rows=3000, short=0.5)
    paired = draft.spans.part_lengths(1) > 0
    before = draft.spans.part_lengths(0) + draft.spans.part_lengths(1)
    objective().make_targets(draft, np.random.default_rng(4))
    labels = draft.row_labels[HEAD]
    longest_sentence = int(np.diff(corpus.sentence_starts).max())
    lengths = draft.lengths - 3
    assert (lengths[paired & (labels == 0)] == before[paired & (labels == 0)]).all()
    ones = paired & (labels == 1)
    assert (lengths[ones] < before[ones] + longest_sentence).all()
    means = [float(lengths[paired & (labels == label)].mean()) for label in (0, 1)]
    assert abs(means[0] - means[1]) < longest_sentence / 2 + 3


def test_a_corpus_of_one_document_works(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads", "our neighbour forgets", "every scribe copies"] * 4],
                       tokenizer_folder)
    view = whole(corpus)
    draft = draft_of(view, "segment_pair", 20, rows=50)
    objective().make_targets(draft, np.random.default_rng(0))
    assert set(draft.row_labels[HEAD].tolist()) == {0, 1}
    for row in range(50):
        a, b = parts(draft, row)
        assert document_of(view, a) == document_of(view, b) == {0}


def test_rows_of_single_sentence_documents_have_label_1(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads"], ["our neighbour forgets a letter"]], tokenizer_folder)
    draft = draft_of(whole(corpus), "segment_pair", 20, rows=20)
    objective(0.0).make_targets(draft, np.random.default_rng(0))
    assert draft.row_labels[HEAD].all()
    assert all(len(parts(draft, row)[1]) for row in range(20))


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "segment_pair", 24, short=0.2)
    spans, _ = RowSampler(view, packing, 0).next_rows(40)
    batched = Draft(view, spans.select(np.arange(40)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(40)])
    objective().make_targets(batched, rng)
    after = rng.random((40, 2))
    for row in range(40):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        row_rng = PerRowRNG([[1, row]])
        objective().make_targets(alone, row_rng)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert alone.row_labels[HEAD][0] == batched.row_labels[HEAD][row]
        assert (row_rng.random((1, 2))[0] == after[row]).all()  # so later random numbers are the same too


@pytest.mark.parametrize("random", [0.0, 0.25, 1.0])
def test_the_baseline_is_the_class_prior_of_the_sampled_labels(corpus, random):
    """Not of the setting: a row at the end of its document always gets a random B. Over several batches the prior is
    that of all labels, because the prior of a small batch would be too good a fit."""
    task, batches, labels = objective(random), [], []
    for seed in range(3):
        draft = draft_of(whole(corpus), "segment_pair", 24, rows=20, seed=seed)
        task.make_targets(draft, np.random.default_rng(seed))
        batches.append(collate(draft))
        labels.append(draft.row_labels[HEAD])
        assert task.baseline(batches[-1], np.zeros(1))[HEAD] == pytest.approx(entropy(labels[-1]))
    result = task.mean_baseline(batches, np.zeros(1))
    assert result == pytest.approx(entropy(np.concatenate(labels)))
    assert result == 0 if random == 1.0 else 0 < result < math.log(2)


def entropy(labels: np.ndarray) -> float:
    probabilities = [p for p in (labels.mean(), 1 - labels.mean()) if p]
    return -sum(p * math.log(p) for p in probabilities)

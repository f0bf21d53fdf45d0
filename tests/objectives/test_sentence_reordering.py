from collections import Counter
from itertools import combinations
from math import comb, factorial

import numpy as np
import pytest
from small_corpora import corpus_of, draft_of, packing_of, whole

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.rng import PerRowRNG
from stemma.corpus.sampler import RowSampler
from stemma.objectives import collate
from stemma.objectives.sentence_reordering import (
    SentenceReordering,
    SentenceReorderingSettings,
    all_permutations,
    sample_cuts,
)

NAME = "sentence_reordering"


@pytest.fixture(scope="module")
def corpus(corpus_folder) -> Corpus:
    return Corpus.open(corpus_folder)


def objective(parts: int = 3) -> SentenceReordering:
    return SentenceReordering(NAME, SentenceReorderingSettings(kind=NAME, parts=parts))


@pytest.mark.parametrize(("parts", "classes"), [(2, 3), (3, 9), (4, 33), (6, 873)])
def test_there_is_one_class_per_permutation_of_each_number_of_segments(parts, classes):
    assert objective(parts).classes == classes == sum(factorial(n) for n in range(1, parts + 1))
    orders = all_permutations(parts)
    assert len({tuple(row) for row in orders.tolist()}) == classes
    counts = (orders >= 0).sum(1)
    assert (np.diff(counts) >= 0).all()
    assert all(sorted(row[:n]) == list(range(n)) for row, n in zip(orders.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize("max_segments", [2, 3, 5])
def test_the_label_is_the_permutation_of_the_segments(corpus, max_segments):
    """Inverting it restores the original text."""
    view = whole(corpus)
    draft = draft_of(view, "doc_sentences", 80, rows=300)
    before = [(int(start), int(start + length))
              for start, length in zip(draft.spans.start, draft.spans.length, strict=True)]
    task = objective(max_segments)
    task.make_targets(draft, np.random.default_rng(0))
    labels, sentences = draft.row_labels[NAME], set(corpus.sentence_starts.tolist())
    segment_counts = set()
    for row, (start, stop) in enumerate(before):
        text = draft.corpus_offsets[row][draft.corpus_offsets[row] >= 0]
        assert sorted(text.tolist()) == list(range(start, stop))
        order = [part for part in task.orders[labels[row]].tolist() if part >= 0]
        segment_counts.add(len(order))
        in_row = draft.spans.row == row
        starts, lengths = draft.spans.start[in_row], draft.spans.length[in_row]
        assert len(starts) == len(order) and (lengths > 0).all()
        assert np.argsort(starts).argsort().tolist() == order  # which segment is at which position
        assert {int(b) for b in starts} - {start} <= sentences
        inside = sum(start < bound < stop for bound in sentences)
        assert len(order) <= min(max_segments, inside + 1)
    assert segment_counts == set(range(1, max_segments + 1))


@pytest.mark.parametrize(("sentences", "expected"), [
    (4, np.array([1, 1 / 2, 1 / 2, *[1 / 6] * 6]) / 3), (2, np.array([1 / 2, 1 / 4, 1 / 4, *[0] * 6]))])
def test_segment_counts_and_permutations_are_uniform(tmp_path, tokenizer_folder, sentences, expected):
    text = ["the clerk reads", "our neighbour forgets", "every scribe copies", "the printer collects"][:sentences]
    corpus = corpus_of(tmp_path, [text], tokenizer_folder)
    draft = draft_of(whole(corpus), "doc_sentences", 60, rows=9000)
    objective(3).make_targets(draft, np.random.default_rng(1))
    result = np.bincount(draft.row_labels[NAME], minlength=9) / 9000
    assert (np.abs(result - expected) <= 5 * (expected * (1 - expected) / 9000) ** 0.5).all()


def test_a_single_sentence_has_label_0(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads a letter"], ["our neighbour forgets"]], tokenizer_folder)
    draft = draft_of(whole(corpus), "doc_sentences", 20, rows=20)
    objective().make_targets(draft, np.random.default_rng(0))
    assert (draft.row_labels[NAME] == 0).all()


@pytest.mark.parametrize(("count", "expected"), [(5, 2), (5, 0), (3, 3), (7, 4)])
def test_all_sets_of_cuts_are_equally_likely(count, expected):
    rows, max_segments = 20_000, 4
    uniform = np.random.default_rng(2).random((rows, max_segments))
    cuts = sample_cuts(np.full(rows, count), np.full(rows, expected), uniform)
    assert (cuts[:, expected:] == count).all()
    results = Counter(tuple(row[:expected]) for row in cuts.tolist())
    assert set(results) == set(combinations(range(count), expected))
    probability = 1 / comb(count, expected)
    assert all(abs(n / rows - probability) < 5 * (probability / rows) ** 0.5 for n in results.values())


def test_a_row_with_its_own_rng_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "doc_sentences", 50)
    spans, _ = RowSampler(view, packing, 0).next_rows(20)
    batched = Draft(view, spans.select(np.arange(20)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(20)])
    objective().make_targets(batched, rng)
    after = rng.random((20, 2))
    for row in range(20):
        alone = Draft(view, spans.select(np.array([row])), packing.template)
        row_rng = PerRowRNG([[1, row]])
        objective().make_targets(alone, row_rng)
        assert (alone.input_ids[0] == batched.input_ids[row]).all()
        assert (row_rng.random((1, 2))[0] == after[row]).all()


def test_the_baseline_is_the_entropy_of_the_labels(corpus):
    draft = draft_of(whole(corpus), "doc_sentences", 60, rows=400)
    task = objective(2)
    task.make_targets(draft, np.random.default_rng(0))
    probabilities = np.bincount(draft.row_labels[NAME]) / 400
    entropy = -(probabilities * np.log(probabilities)).sum()
    assert task.baseline(collate(draft), np.zeros(1))[NAME] == pytest.approx(entropy)

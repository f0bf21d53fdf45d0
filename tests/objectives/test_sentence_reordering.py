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
def test_there_is_a_class_for_every_order_of_every_number_of_parts(parts, classes):
    assert objective(parts).classes == classes == sum(factorial(n) for n in range(1, parts + 1))
    orders = all_permutations(parts)
    assert len({tuple(row) for row in orders.tolist()}) == classes
    counts = (orders >= 0).sum(1)
    assert (np.diff(counts) >= 0).all()
    assert all(sorted(row[:n]) == list(range(n)) for row, n in zip(orders.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize("most", [2, 3, 5])
def test_the_label_says_how_to_put_the_text_back(corpus, most):
    """Reading the parts in the order that the label names gives the original back."""
    view = whole(corpus)
    draft = draft_of(view, "doc_sentences", 80, rows=300)
    before = [(int(start), int(start + length))
              for start, length in zip(draft.spans.start, draft.spans.length, strict=True)]
    task = objective(most)
    task.make_targets(draft, np.random.default_rng(0))
    labels, sentences = draft.row_labels[NAME], set(corpus.sentence_starts.tolist())
    seen = set()
    for row, (start, stop) in enumerate(before):
        text = draft.corpus_offsets[row][draft.corpus_offsets[row] >= 0]
        assert sorted(text.tolist()) == list(range(start, stop))
        order = [part for part in task.orders[labels[row]].tolist() if part >= 0]
        seen.add(len(order))
        pieces = draft.spans.row == row
        begins, lengths = draft.spans.start[pieces], draft.spans.length[pieces]
        assert len(begins) == len(order) and (lengths > 0).all()
        assert np.argsort(begins).argsort().tolist() == order  # what stands where
        assert {int(b) for b in begins} - {start} <= sentences
        inside = sum(start < bound < stop for bound in sentences)
        assert len(order) <= min(most, inside + 1)
    assert seen == set(range(1, most + 1))


@pytest.mark.parametrize(("sentences", "expected"), [
    (4, np.array([1, 1 / 2, 1 / 2, *[1 / 6] * 6]) / 3), (2, np.array([1 / 2, 1 / 4, 1 / 4, *[0] * 6]))])
def test_numbers_of_parts_and_orders_are_uniform(tmp_path, tokenizer_folder, sentences, expected):
    text = ["the clerk reads", "our neighbour forgets", "every scribe copies", "the printer collects"][:sentences]
    corpus = corpus_of(tmp_path, [text], tokenizer_folder)
    draft = draft_of(whole(corpus), "doc_sentences", 60, rows=9000)
    objective(3).make_targets(draft, np.random.default_rng(1))
    result = np.bincount(draft.row_labels[NAME], minlength=9) / 9000
    assert (np.abs(result - expected) <= 5 * (expected * (1 - expected) / 9000) ** 0.5).all()


def test_one_sentence_can_only_stay(tmp_path, tokenizer_folder):
    corpus = corpus_of(tmp_path, [["the clerk reads a letter"], ["our neighbour forgets"]], tokenizer_folder)
    draft = draft_of(whole(corpus), "doc_sentences", 20, rows=20)
    objective().make_targets(draft, np.random.default_rng(0))
    assert (draft.row_labels[NAME] == 0).all()


@pytest.mark.parametrize(("count", "expected"), [(5, 2), (5, 0), (3, 3), (7, 4)])
def test_every_set_of_cuts_is_as_likely_as_any_other(count, expected):
    rows, most = 20_000, 4
    drawn = np.random.default_rng(2).random((rows, most))
    chosen = sample_cuts(np.full(rows, count), np.full(rows, expected), drawn)
    assert (chosen[:, expected:] == count).all()
    results = Counter(tuple(row[:expected]) for row in chosen.tolist())
    assert set(results) == set(combinations(range(count), expected))
    share = 1 / comb(count, expected)
    assert all(abs(n / rows - share) < 5 * (share / rows) ** 0.5 for n in results.values())


def test_a_row_with_its_own_randomness_is_the_same_in_any_batch(corpus):
    view, packing = whole(corpus), packing_of(corpus, "doc_sentences", 50)
    pieces, _ = RowSampler(view, packing, 0).next_rows(20)
    together = Draft(view, pieces.select(np.arange(20)), packing.template)
    rng = PerRowRNG([[1, row] for row in range(20)])
    objective().make_targets(together, rng)
    after = rng.random((20, 2))
    for row in range(20):
        alone = Draft(view, pieces.select(np.array([row])), packing.template)
        own = PerRowRNG([[1, row]])
        objective().make_targets(alone, own)
        assert (alone.input_ids[0] == together.input_ids[row]).all()
        assert (own.random((1, 2))[0] == after[row]).all()


def test_the_baseline_is_the_entropy_of_the_answers(corpus):
    draft = draft_of(whole(corpus), "doc_sentences", 60, rows=400)
    task = objective(2)
    task.make_targets(draft, np.random.default_rng(0))
    shares = np.bincount(draft.row_labels[NAME]) / 400
    assert task.baseline(collate(draft), np.zeros(1))[NAME] == pytest.approx(-(shares * np.log(shares)).sum())

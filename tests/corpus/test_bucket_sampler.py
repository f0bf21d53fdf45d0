"""Bucketed batches: the token limit, every row once per epoch, little padding, and exact resume."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from small_corpora import corpus_of, packing_of, plain_layout, whole

from stemma.corpus import sampler as sampler_module
from stemma.corpus.bucket_sampler import BucketSampler, mixture_weights
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.sampler import Cursor, RowSampler
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError
from stemma.text.parallel import PairSource
from stemma.text.train_tokenizer import train_tokenizer

WORDS = [f"w{number:02d}" for number in range(40)]
LENGTH, SPECIAL = 64, 2  # sequence length, and the number of special tokens in the template


@pytest.fixture(scope="module")
def word_tokenizer(tmp_path_factory) -> Path:
    """A tokenizer with exactly one token per word."""
    folder = tmp_path_factory.mktemp("words") / "tokenizer"
    train_tokenizer(iter([" ".join(WORDS)]), "word", 200, lowercase=False).save(folder)
    return folder


def pair_corpus(folder: Path, tokenizer: Path, sides: dict[str, list[tuple[int, int]]]) -> Corpus:
    """A corpus with groups of pairs; `sides` has the number of words of source and target."""
    rng = random.Random(0)
    folder.mkdir()
    sources = []
    for name, lengths in sides.items():
        (folder / f"{name}.tsv").write_text("".join(
            "\t".join(" ".join(rng.choices(WORDS, k=count)) for count in pair) + "\n" for pair in lengths))
        sources.append(PairSource(folder / f"{name}.tsv", name=name))
    build_corpus([], tokenizer, folder / "corpus", pairs=sources)
    return Corpus.open(folder / "corpus")


def skewed(count: int, seed: int = 0, longest: int = LENGTH - SPECIAL) -> list[tuple[int, int]]:
    """Lengths of pairs as in real text: many short, few long, and both sides of similar length."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.lognormal(2.5, 0.6, count), 1, longest).astype(int)
    target = np.clip(np.rint(source * rng.normal(1, 0.1, count)), 1, longest).astype(int)
    return list(zip(source.tolist(), target.tolist(), strict=True))


@pytest.fixture(scope="module")
def view(tmp_path_factory, word_tokenizer) -> CorpusSubset:
    return whole(pair_corpus(tmp_path_factory.mktemp("pairs") / "p", word_tokenizer, {"all": skewed(4000)}))


def sampler_of(view: CorpusSubset, max_tokens: int = 32 * LENGTH, seed: int = 0, **options) -> BucketSampler:
    return BucketSampler(view, packing_of(view.corpus, "parallel", LENGTH), seed, max_tokens, **options)


def epoch_of(sampler: BucketSampler) -> list[RowSpans]:
    epoch, batches = sampler.cursor.epoch, []
    while sampler.cursor.epoch == epoch:
        batches.append(sampler.next_rows(7)[0])
    return batches


def row_keys(spans: RowSpans) -> list[tuple[int, ...]]:
    """Each row as (source start, source length, target start, target length)."""
    assert spans.row.tolist() == np.repeat(np.arange(spans.num_rows),
                                           2).tolist() and not spans.separator_before.any()
    assert spans.part.tolist() == [0, 1] * spans.num_rows
    table = np.stack([spans.start, spans.length], axis=1).reshape(-1, 4)
    return [tuple(row) for row in table.tolist()]


def padded_size(spans: RowSpans) -> int:
    return spans.num_rows * (int(spans.length.max()) + SPECIAL)


@pytest.mark.parametrize("block", [6000, 2_000_000])
def test_every_epoch_has_all_pairs_once_in_other_batches(view, block, monkeypatch):
    monkeypatch.setattr(sampler_module, "BLOCK_TOKENS", block)
    sampler = sampler_of(view)
    sentences = view.corpus.sentence_starts
    expected = sorted((int(a), int(b - a), int(b), int(c - b))
                      for a, b, c in zip(sentences[:-1:2], sentences[1::2], sentences[2::2], strict=True))
    first, second = ([frozenset(row_keys(batch)) for batch in epoch_of(sampler)] for _ in range(2))
    for batches in (first, second):
        assert sorted(row for batch in batches for row in batch) == expected
    assert not set(first) & set(second)  # no batch is repeated


def test_batches_stay_within_the_token_limit_and_nearly_reach_it(view):
    batches = epoch_of(sampler_of(view, max_tokens=1000))
    sizes = [padded_size(batch) for batch in batches]
    assert max(sizes) <= 1000
    assert np.mean(sizes) > 930
    assert len({batch.num_rows for batch in batches}) > 10  # batches of short rows have more rows
    single = epoch_of(sampler_of(view, max_tokens=5))  # a row longer than the limit is a batch of its own
    assert len(single) == 4000 and all(batch.num_rows == 1 for batch in single)


def padding(batches: list[RowSpans]) -> float:
    """The fraction of padding in sources and targets."""
    used = sum(int((batch.length + SPECIAL).sum()) for batch in batches)
    padded = sum(batch.num_rows * (int(batch.part_lengths(side).max()) + SPECIAL)
                 for batch in batches for side in (0, 1))
    return 1 - used / padded


def test_batches_have_little_padding(view):
    """Measured over an epoch: 7% of both sides, and 64% with random batches."""
    mixed = RowSampler(view, packing_of(view.corpus, "parallel", LENGTH), 0)
    assert padding(epoch_of(sampler_of(view))) < 0.1 < 0.6 < padding([mixed.next_rows(32)[0] for _ in range(100)])


def test_equally_long_pairs_are_sorted_by_their_shorter_side(tmp_path, word_tokenizer):
    """If one side's length does not predict the other's, as in summaries."""
    rng = np.random.default_rng(0)
    corpus = pair_corpus(tmp_path / "p", word_tokenizer, {"all": [(50, int(n)) for n in rng.integers(1, 50, 1000)]})
    assert padding(epoch_of(sampler_of(whole(corpus)))) < 0.08


def test_batch_order_does_not_depend_on_length(view):
    longest = np.array([batch.length.max() for batch in epoch_of(sampler_of(view, max_tokens=1000))])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


@pytest.mark.parametrize("options", [{}, {"num_static_copies": 2}, {"mixture_weights": [1.0]}])
def test_a_resumed_sampler_continues_identically(view, options, monkeypatch):
    monkeypatch.setattr(sampler_module, "BLOCK_TOKENS", 40_000)
    uninterrupted = sampler_of(view, max_tokens=8000, **options)
    positions, batches = [], []
    for _ in range(80):
        positions.append(uninterrupted.cursor)
        spans, epochs = uninterrupted.next_rows(1)
        batches.append((row_keys(spans), epochs.tolist()))
    assert uninterrupted.cursor.epoch >= 2 and {position.block for position in positions} >= {0, 1, 2}
    for start in range(0, 80, 9):
        resumed = sampler_of(view, max_tokens=8000, **options)
        resumed.cursor = Cursor(positions[start].epoch, positions[start].block, positions[start].row)
        for rows, epochs in batches[start:start + 3]:
            spans, result = resumed.next_rows(100)
            assert (row_keys(spans), result.tolist()) == (rows, epochs)
    assert row_keys(sampler_of(view, max_tokens=8000, seed=1, **options).next_rows(1)[0]) != batches[0][0]


def test_static_copies_alternate(view):
    sampler = sampler_of(view, num_static_copies=2)
    first, second, third = ([row_keys(batch) for batch in epoch_of(sampler)] for _ in range(3))
    assert first == third != second
    assert sampler.cursor.epoch == 3 and set(sampler.next_rows(1)[1].tolist()) == {1}


def test_pairs_longer_than_the_window_are_dropped_and_counted(tmp_path, word_tokenizer):
    fits = [(10, 12), (LENGTH - SPECIAL, 3), (3, LENGTH - SPECIAL)]
    too_long = [(LENGTH - SPECIAL + 1, 3), (3, LENGTH - SPECIAL + 1)]
    corpus = pair_corpus(tmp_path / "p", word_tokenizer, {"all": [*fits, *too_long]})
    sampler = sampler_of(whole(corpus))
    assert sampler.num_dropped == 2
    rows = [row for batch in epoch_of(sampler) for row in row_keys(batch)]
    assert sorted((a, b) for _, a, _, b in rows) == sorted(fits)
    assert RowSampler(whole(corpus), sampler.packer, 0).first_rows(9).num_rows == 3  # the packer drops them too
    empty = BucketSampler(CorpusSubset(corpus, whole(corpus).document_ranges[3:]), sampler.packer, 0, 1000)
    assert empty.first_batches(1000) == []
    with pytest.raises(UserError, match="none of the 2 pairs fits a sequence_length of 64; set"):
        empty.next_rows(1)


def test_an_incomplete_pair_is_dropped(tmp_path, word_tokenizer):
    corpus = pair_corpus(tmp_path / "p", word_tokenizer, {"all": [(5, 5), (6, 6)]})
    half = CorpusSubset(corpus, np.array([[0, 5], corpus.document_starts[1:3]]))
    assert sampler_of(half).num_dropped == 1 and row_keys(sampler_of(half).next_rows(1)[0]) == [(10, 6, 16, 6)]


def test_pairs_with_a_joint_window_must_fit_it_together(tmp_path, word_tokenizer):
    corpus = pair_corpus(tmp_path / "p", word_tokenizer, {"all": [(30, 31), (30, 32), (1, 60), (61, 1)]})
    packing = dataclasses.replace(packing_of(corpus, "parallel", LENGTH), joint_window=True)
    assert packing.capacity == 61  # start A separator B separator
    sampler = BucketSampler(whole(corpus), packing, 0, 2 * LENGTH)
    assert sampler.num_dropped == 2
    batches = epoch_of(sampler)
    assert sorted(row[1::2] for batch in batches for row in row_keys(batch)) == [(1, 60), (30, 31)]
    draft = Draft(whole(corpus), batches[0], packing.template)
    assert draft.rows == 2 and (draft.lengths == LENGTH).all()


def test_sentences_are_rows_and_long_ones_are_split(tmp_path, word_tokenizer):
    rng = random.Random(1)
    lengths = [[3, 150, 7], [62], [63, 1]]
    documents = [[" ".join(rng.choices(WORDS, k=n)) for n in document] for document in lengths]
    corpus = corpus_of(tmp_path / "c", documents, word_tokenizer)
    sampler = BucketSampler(whole(corpus), packing_of(corpus, "sentence", LENGTH), 0, 10 * LENGTH)
    rows = [row for batch in epoch_of(sampler)
            for row in zip(batch.start.tolist(), batch.length.tolist(), strict=True)]
    assert sorted(rows) == [(0, 3), (3, 62), (65, 62), (127, 26), (153, 7), (160, 62), (222, 62), (284, 1), (285, 1)]
    assert sampler.num_dropped == 0
    alone = Packer("sentence", plain_layout(LENGTH)).pack([np.array([0, 3, 5])], np.random.default_rng(0))
    assert alone.num_rows == 2 and alone.start.tolist() == [0, 3] and alone.length.tolist() == [3, 2]


def test_validation_batches_are_the_first_and_always_the_same(view):
    validation = sampler_of(view, max_tokens=1000).first_batches(5000)
    resumed = sampler_of(view, max_tokens=1000)
    assert [row_keys(batch) for batch in validation] == [row_keys(resumed.next_rows(1)[0]) for _ in validation]
    assert 4000 < sum(map(padded_size, validation)) <= 5000
    assert len(sampler_of(view, max_tokens=1000).first_batches(1)) == 1
    assert sum(batch.num_rows for batch in sampler_of(view, max_tokens=1000).first_batches(10**9)) == 4000
    empty = CorpusSubset(view.corpus, view.document_ranges[:0])
    assert sampler_of(empty).first_batches(1000) == []
    with pytest.raises(UserError, match="too small"):
        sampler_of(empty).next_rows(1)


def test_mixture_weights_follow_sizes_limit_and_temperature():
    assert mixture_weights([100, 300]) == [0.25, 0.75]
    assert mixture_weights([100, 300, 1000], max_examples=300) == pytest.approx([1 / 7, 3 / 7, 3 / 7])
    assert mixture_weights([100, 400], temperature=2) == pytest.approx([1 / 3, 2 / 3])
    assert mixture_weights([0, 7, 7], temperature=1e9) == pytest.approx([0, 0.5, 0.5])


def test_pair_sets_are_sampled_by_their_weights_without_replacement(tmp_path, word_tokenizer):
    sizes = {"large": 600, "small": 40, "none": 30}
    corpus = pair_corpus(tmp_path / "p", word_tokenizer, {name: skewed(n, seed=n) for name, n in sizes.items()})
    edges = corpus.document_starts[[0, 600, 640, 670]]
    sampler = sampler_of(whole(corpus), mixture_weights=[0.75, 0.25, 0.0])
    samples: list[list[Counter]] = []
    for _ in range(3):
        starts = [row[0] for batch in epoch_of(sampler) for row in row_keys(batch)]
        owner = np.searchsorted(edges, starts, side="right") - 1
        samples.append([Counter(np.array(starts)[owner == group].tolist()) for group in range(3)])
        assert [sum(counts.values()) for counts in samples[-1]] == [502, 168, 0]  # 3/4 from the large set
    # 168 samples of 40 pairs: each four times, and eight of them once more
    assert Counter(samples[0][1].values()) == {4: 32, 5: 8}
    small = sum((counts[1] for counts in samples), Counter())
    assert Counter(small.values()) == {12: 16, 13: 24}  # the second epoch continues where the first ended
    assert set(samples[0][0].values()) == {1}
    both = samples[0][0] + samples[1][0]
    assert len(both) == 600 and Counter(both.values()) == {1: 196, 2: 404}


def test_mixture_weights_must_match_the_pair_sets(view):
    for rates in ([1.0, 2.0], [-1.0], [0.0], []):
        with pytest.raises(UserError, match=f"{len(rates)} rates for 1 groups of pairs"):
            sampler_of(view, mixture_weights=rates)

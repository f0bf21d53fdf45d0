"""Batches by length: what a batch may fill, that nothing is lost or comes twice, and that all of it can be repeated."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from making import corpus_of, packing_of, plain_layout, whole

from stemma.corpus import sampler as feed_module
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
LENGTH, SPECIAL = 64, 2  # the window, and how many of its places the template takes


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """A tokenizer that makes exactly one token of each word."""
    folder = tmp_path_factory.mktemp("words") / "tokenizer"
    train_tokenizer(iter([" ".join(WORDS)]), "word", 200, lowercase=False).save(folder)
    return folder


def pair_corpus(folder: Path, tokenizer: Path, sides: dict[str, list[tuple[int, int]]]) -> Corpus:
    """Groups of pairs of so many words a side."""
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
    """Many short pairs, few long ones, as in real text; the sides differ by up to a fifth or so."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.lognormal(2.5, 0.6, count), 1, longest).astype(int)
    target = np.clip(np.rint(source * rng.normal(1, 0.1, count)), 1, longest).astype(int)
    return list(zip(source.tolist(), target.tolist(), strict=True))


@pytest.fixture(scope="module")
def view(tmp_path_factory, words) -> CorpusSubset:
    return whole(pair_corpus(tmp_path_factory.mktemp("pairs") / "p", words, {"all": skewed(4000)}))


def feed_of(view: CorpusSubset, places: int = 32 * LENGTH, seed: int = 0, **options) -> BucketSampler:
    return BucketSampler(view, packing_of(view.corpus, "parallel", LENGTH), seed, places, **options)


def epoch_of(feed: BucketSampler) -> list[RowSpans]:
    epoch, made = feed.cursor.epoch, []
    while feed.cursor.epoch == epoch:
        made.append(feed.next_rows(7)[0])
    return made


def keys(pieces: RowSpans) -> list[tuple[int, ...]]:
    """Each row as (source start, source length, target start, target length)."""
    assert pieces.row.tolist() == np.repeat(np.arange(pieces.num_rows),
                                            2).tolist() and not pieces.separator_before.any()
    assert pieces.part.tolist() == [0, 1] * pieces.num_rows
    table = np.stack([pieces.start, pieces.length], axis=1).reshape(-1, 4)
    return [tuple(row) for row in table.tolist()]


def places_of(pieces: RowSpans) -> int:
    return pieces.num_rows * (int(pieces.length.max()) + SPECIAL)


@pytest.mark.parametrize("block", [6000, 2_000_000])
def test_every_epoch_has_all_pairs_once_in_other_batches(view, block, monkeypatch):
    monkeypatch.setattr(feed_module, "BLOCK_TOKENS", block)
    feed = feed_of(view)
    sentences = view.corpus.sentence_starts
    expected = sorted((int(a), int(b - a), int(b), int(c - b))
                      for a, b, c in zip(sentences[:-1:2], sentences[1::2], sentences[2::2], strict=True))
    first, second = ([frozenset(keys(batch)) for batch in epoch_of(feed)] for _ in range(2))
    for batches in (first, second):
        assert sorted(row for batch in batches for row in batch) == expected
    assert not set(first) & set(second)  # not one batch of many rows comes again


def test_batches_stay_within_the_token_limit_and_nearly_reach_it(view):
    batches = epoch_of(feed_of(view, places=1000))
    filled = [places_of(batch) for batch in batches]
    assert max(filled) <= 1000
    assert np.mean(filled) > 930
    assert len({batch.num_rows for batch in batches}) > 10  # long rows are few, short ones many
    single = epoch_of(feed_of(view, places=5))  # one row is a batch even if it is longer
    assert len(single) == 4000 and all(batch.num_rows == 1 for batch in single)


def padding(batches: list[RowSpans]) -> float:
    """The share of both sides' places that is filling."""
    used = sum(int((batch.length + SPECIAL).sum()) for batch in batches)
    wide = sum(batch.num_rows * (int(batch.part_lengths(side).max()) + SPECIAL) for batch in batches for side in (0, 1))
    return 1 - used / wide


def test_batches_have_little_padding(view):
    """Measured over an epoch: 7% of the places of both sides; where rows are taken as they come, 64%."""
    mixed = RowSampler(view, packing_of(view.corpus, "parallel", LENGTH), 0)
    assert padding(epoch_of(feed_of(view))) < 0.1 < 0.6 < padding([mixed.next_rows(32)[0] for _ in range(100)])


def test_equally_long_pairs_are_sorted_by_their_shorter_side(tmp_path, words):
    """Where one side says nothing of the other, as in summaries."""
    rng = np.random.default_rng(0)
    corpus = pair_corpus(tmp_path / "p", words, {"all": [(50, int(n)) for n in rng.integers(1, 50, 1000)]})
    assert padding(epoch_of(feed_of(whole(corpus)))) < 0.08


def test_batch_order_does_not_depend_on_length(view):
    longest = np.array([batch.length.max() for batch in epoch_of(feed_of(view, places=1000))])
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


@pytest.mark.parametrize("options", [{}, {"num_static_copies": 2}, {"mixture_weights": [1.0]}])
def test_a_resumed_sampler_continues_identically(view, options, monkeypatch):
    monkeypatch.setattr(feed_module, "BLOCK_TOKENS", 40_000)
    straight = feed_of(view, places=8000, **options)
    positions, taken = [], []
    for _ in range(80):
        positions.append(straight.cursor)
        pieces, epochs = straight.next_rows(1)
        taken.append((keys(pieces), epochs.tolist()))
    assert straight.cursor.epoch >= 2 and {position.block for position in positions} >= {0, 1, 2}
    for start in range(0, 80, 9):
        again = feed_of(view, places=8000, **options)
        again.cursor = Cursor(positions[start].epoch, positions[start].block, positions[start].row)
        for rows, epochs in taken[start:start + 3]:
            pieces, found = again.next_rows(100)
            assert (keys(pieces), found.tolist()) == (rows, epochs)
    assert keys(feed_of(view, places=8000, seed=1, **options).next_rows(1)[0]) != taken[0][0]


def test_static_copies_alternate(view):
    feed = feed_of(view, num_static_copies=2)
    first, second, third = ([keys(batch) for batch in epoch_of(feed)] for _ in range(3))
    assert first == third != second
    assert feed.cursor.epoch == 3 and set(feed.next_rows(1)[1].tolist()) == {1}


def test_pairs_longer_than_the_window_are_left_out_and_counted(tmp_path, words):
    fits = [(10, 12), (LENGTH - SPECIAL, 3), (3, LENGTH - SPECIAL)]
    corpus = pair_corpus(tmp_path / "p", words, {"all": [*fits, (LENGTH - SPECIAL + 1, 3), (3, LENGTH - SPECIAL + 1)]})
    feed = feed_of(whole(corpus))
    assert feed.num_dropped == 2
    rows = [row for batch in epoch_of(feed) for row in keys(batch)]
    assert sorted((a, b) for _, a, _, b in rows) == sorted(fits)
    assert RowSampler(whole(corpus), feed.packer, 0).first_rows(9).num_rows == 3  # the packer itself says so too
    nothing = BucketSampler(CorpusSubset(corpus, whole(corpus).document_ranges[3:]), feed.packer, 0, 1000)
    assert nothing.first_batches(1000) == []
    with pytest.raises(UserError, match="none of the 2 pairs fits a sequence_length of 64; set"):
        nothing.next_rows(1)


def test_an_incomplete_pair_is_dropped(tmp_path, words):
    corpus = pair_corpus(tmp_path / "p", words, {"all": [(5, 5), (6, 6)]})
    half = CorpusSubset(corpus, np.array([[0, 5], corpus.document_starts[1:3]]))
    assert feed_of(half).num_dropped == 1 and keys(feed_of(half).next_rows(1)[0]) == [(10, 6, 16, 6)]


def test_where_both_share_a_window_they_must_fit_it_together(tmp_path, words):
    corpus = pair_corpus(tmp_path / "p", words, {"all": [(30, 31), (30, 32), (1, 60), (61, 1)]})
    packing = dataclasses.replace(packing_of(corpus, "parallel", LENGTH), joint_window=True)
    assert packing.capacity == 61  # start A separator B separator
    feed = BucketSampler(whole(corpus), packing, 0, 2 * LENGTH)
    assert feed.num_dropped == 2
    batches = epoch_of(feed)
    assert sorted(row[1::2] for batch in batches for row in keys(batch)) == [(1, 60), (30, 31)]
    draft = Draft(whole(corpus), batches[0], packing.template)
    assert draft.rows == 2 and (draft.lengths == LENGTH).all()


def test_sentences_are_rows_and_long_ones_are_cut(tmp_path, words):
    rng = random.Random(1)
    lengths = [[3, 150, 7], [62], [63, 1]]
    corpus = corpus_of(tmp_path / "c", [[" ".join(rng.choices(WORDS, k=n)) for n in d] for d in lengths], words)
    feed = BucketSampler(whole(corpus), packing_of(corpus, "sentence", LENGTH), 0, 10 * LENGTH)
    rows = [pair for batch in epoch_of(feed) for pair in zip(batch.start.tolist(), batch.length.tolist(), strict=True)]
    assert sorted(rows) == [(0, 3), (3, 62), (65, 62), (127, 26), (153, 7), (160, 62), (222, 62), (284, 1), (285, 1)]
    assert feed.num_dropped == 0
    alone = Packer("sentence", plain_layout(LENGTH)).pack([np.array([0, 3, 5])], np.random.default_rng(0))
    assert alone.num_rows == 2 and alone.start.tolist() == [0, 3] and alone.length.tolist() == [3, 2]


def test_validation_batches_are_the_first_and_always_the_same(view):
    made = feed_of(view, places=1000).first_batches(5000)
    again = feed_of(view, places=1000)
    assert [keys(batch) for batch in made] == [keys(again.next_rows(1)[0]) for _ in made]
    assert 4000 < sum(map(places_of, made)) <= 5000
    assert len(feed_of(view, places=1000).first_batches(1)) == 1
    assert sum(batch.num_rows for batch in feed_of(view, places=1000).first_batches(10**9)) == 4000
    empty = CorpusSubset(view.corpus, view.document_ranges[:0])
    assert feed_of(empty).first_batches(1000) == []
    with pytest.raises(UserError, match="too small"):
        feed_of(empty).next_rows(1)


def test_mixture_weights():
    assert mixture_weights([100, 300]) == [0.25, 0.75]
    assert mixture_weights([100, 300, 1000], max_examples=300) == pytest.approx([1 / 7, 3 / 7, 3 / 7])
    assert mixture_weights([100, 400], temperature=2) == pytest.approx([1 / 3, 2 / 3])
    assert mixture_weights([0, 7, 7], temperature=1e9) == pytest.approx([0, 0.5, 0.5])


def test_pair_sets_are_sampled_by_their_weights_without_replacement(tmp_path, words):
    sizes = {"large": 600, "small": 40, "none": 30}
    corpus = pair_corpus(tmp_path / "p", words, {name: skewed(n, seed=n) for name, n in sizes.items()})
    edges = corpus.document_starts[[0, 600, 640, 670]]
    feed = feed_of(whole(corpus), mixture_weights=[0.75, 0.25, 0.0])
    drawn: list[list[Counter]] = []
    for _ in range(3):
        starts = [row[0] for batch in epoch_of(feed) for row in keys(batch)]
        owner = np.searchsorted(edges, starts, side="right") - 1
        drawn.append([Counter(np.array(starts)[owner == group].tolist()) for group in range(3)])
        assert [sum(counts.values()) for counts in drawn[-1]] == [502, 168, 0]  # of 670, three quarters large
    # 168 of 40: each four times, and eight once more
    assert Counter(drawn[0][1].values()) == {4: 32, 5: 8}
    small = sum((counts[1] for counts in drawn), Counter())
    assert Counter(small.values()) == {12: 16, 13: 24}  # the second epoch went on where the first had ended
    assert set(drawn[0][0].values()) == {1}
    both = drawn[0][0] + drawn[1][0]
    assert len(both) == 600 and Counter(both.values()) == {1: 196, 2: 404}


def test_mixture_weights_must_match_the_pair_sets(view):
    for rates in ([1.0, 2.0], [-1.0], [0.0], []):
        with pytest.raises(UserError, match=f"{len(rates)} rates for 1 groups of pairs"):
            feed_of(view, mixture_weights=rates)

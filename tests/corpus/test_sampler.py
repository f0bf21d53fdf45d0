import numpy as np
import pytest
from making import PACKINGS, corpus_of, packing_of, whole

from stemma.corpus import sampler as feed_module
from stemma.corpus.corpus import Corpus
from stemma.corpus.packing_samplers import sampler_class
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.sampler import Cursor, RowSampler, SamplerRequest
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError


@pytest.fixture(scope="module")
def view(corpus_folder) -> CorpusSubset:
    return whole(Corpus.open(corpus_folder))


def rows_of(pieces: RowSpans) -> list[tuple]:
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(pieces.num_rows)]
    for row, *rest in zip(pieces.row, pieces.start, pieces.length, pieces.part, pieces.separator_before, strict=True):
        rows[row].append(tuple(int(number) for number in rest))
    return [tuple(row) for row in rows]


def epoch_of(feed: RowSampler) -> list[tuple]:
    """Rows one by one until the epoch is over."""
    epoch, made = feed.cursor.epoch, []
    while feed.cursor.epoch == epoch:
        made += rows_of(feed.next_rows(1)[0])
    return made


@pytest.mark.parametrize("small_blocks", [False, True])
@pytest.mark.parametrize("kind", PACKINGS)
def test_resuming_at_any_cursor_continues_identically(view, kind, small_blocks, monkeypatch):
    if small_blocks:
        monkeypatch.setattr(feed_module, "BLOCK_TOKENS", 700)
    packing = packing_of(view.corpus, kind, 24, short=0.1)
    straight = RowSampler(view, packing, seed=3)
    batches, positions = [], []
    for _ in range(60):
        positions.append(straight.cursor)
        pieces, epochs = straight.next_rows(7)
        batches.append((rows_of(pieces), epochs.tolist()))
    assert straight.cursor.epoch >= 2
    assert not small_blocks or max(position.block for position in positions) >= 2
    for start in range(0, 60, 7):
        again = RowSampler(view, packing, seed=3)
        again.cursor = Cursor(positions[start].epoch, positions[start].block, positions[start].row)
        for expected in batches[start:start + 3]:
            pieces, epochs = again.next_rows(7)
            assert (rows_of(pieces), epochs.tolist()) == expected


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences", "stream"])
@pytest.mark.parametrize("block", [500, 2_000_000])
def test_each_epoch_has_every_token_once_in_another_order(view, kind, block, monkeypatch):
    monkeypatch.setattr(feed_module, "BLOCK_TOKENS", block)
    feed = RowSampler(view, packing_of(view.corpus, kind, 24), seed=0)
    epochs = [epoch_of(feed), epoch_of(feed)]
    for rows in epochs:
        tokens = sorted(token for row in rows for start, length, *_ in row for token in range(start, start + length))
        assert tokens == list(range(view.corpus.num_tokens))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", ["full_sentences", "stream"])
def test_other_documents_share_a_row_in_each_epoch(view, kind):
    """Not only the rows are shuffled: their content is not the same either."""
    feed = RowSampler(view, packing_of(view.corpus, kind, 24), seed=0)
    assert set(epoch_of(feed)) != set(epoch_of(feed))


def test_the_size_of_a_batch_does_not_change_the_order(view):
    packing = packing_of(view.corpus, "segment_pair", 24)
    one, other = RowSampler(view, packing, seed=1), RowSampler(view, packing, seed=1)
    ones = [row for _ in range(30) for row in rows_of(one.next_rows(5)[0])]
    assert ones == [row for _ in range(2) for row in rows_of(other.next_rows(75)[0])]


def test_static_copies_alternate_and_repeat(view):
    feed = RowSampler(view, packing_of(view.corpus, "segment_pair", 24, short=0.3), seed=0, num_static_copies=2)
    first, second, third = epoch_of(feed), epoch_of(feed), epoch_of(feed)
    assert first == third and first != second
    _, epochs = RowSampler(view, feed.packer, 0, num_static_copies=2).next_rows(len(first) + len(second) + 1)
    assert epochs.tolist() == [0] * len(first) + [1] * len(second) + [0]


@pytest.mark.parametrize("kind", PACKINGS)
def test_a_corpus_of_one_row_serves_any_batch(tmp_path, tokenizer_folder, kind):
    tiny = whole(corpus_of(tmp_path, [["the clerk reads"]], tokenizer_folder))
    feed = RowSampler(tiny, packing_of(tiny.corpus, kind, 24), seed=0)
    pieces, epochs = feed.next_rows(9)
    assert pieces.num_rows == 9 and len(set(rows_of(pieces))) == 1
    assert epochs.tolist() == list(range(9))
    assert feed.cursor == Cursor(9, 0, 0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", PACKINGS)
def test_an_empty_subset_is_refused_and_never_loops(view, kind):
    feed = RowSampler(CorpusSubset(view.corpus, view.document_ranges[:0]), packing_of(view.corpus, kind, 24), seed=0)
    with pytest.raises(UserError, match="too small"):
        feed.next_rows(1)
    assert feed.first_rows(5).num_rows == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", [Cursor(), Cursor(2, 1, 0)])
def test_blocks_without_a_row_are_refused_and_never_loop(view, start, monkeypatch):
    monkeypatch.setattr(feed_module, "BLOCK_TOKENS", 500)
    feed = RowSampler(view, packing_of(view.corpus, "stream", 24), seed=0)
    monkeypatch.setattr(type(feed.packer), "pack", lambda self, documents, rng: RowSpans.from_tuples(0, []))
    feed.cursor = start
    with pytest.raises(UserError, match="too small"):
        feed.next_rows(1)


def test_empty_blocks_are_skipped(view, monkeypatch):
    monkeypatch.setattr(feed_module, "BLOCK_TOKENS", 500)
    feed = RowSampler(view, packing_of(view.corpus, "stream", 24), seed=0)
    pack, calls = type(feed.packer).pack, []

    def sometimes(self, documents, rng):
        calls.append(len(documents))
        return pack(self, documents, rng) if len(calls) % 3 == 0 else RowSpans.from_tuples(0, [])

    monkeypatch.setattr(type(feed.packer), "pack", sometimes)
    pieces, _ = feed.next_rows(200)
    assert pieces.num_rows == 200 and len(calls) > 3


def test_first_rows_gives_the_beginning_up_to_the_limit(view):
    packing = packing_of(view.corpus, "doc_sentences", 24)
    feed = RowSampler(view, packing, seed=5)
    assert rows_of(feed.first_rows(4)) == rows_of(RowSampler(view, packing, seed=5).next_rows(4)[0])
    assert feed.first_rows(10**9).num_rows == len(epoch_of(RowSampler(view, packing, seed=5)))
    assert feed.cursor == Cursor()
    assert np.unique(feed.first_rows(4).row).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["stream", "full_sentences", "sentence", "contiguous"])
def test_every_packing_has_a_sampler_with_the_same_interface(view, kind):
    demand = SamplerRequest(view, packing_of(view.corpus, kind, 24), seed=3, rows=4, length=24)
    feed = sampler_class(kind).from_request(demand)
    taken, batches = 0, feed.batches_in_epoch()
    while feed.cursor.epoch == 0:
        pieces, epochs = feed.next_rows(4)
        assert pieces.num_rows == len(epochs)
        taken += 1
    assert taken == batches
    looks = [list(sampler_class(kind).validation_rows(demand, 480, 96)) for _ in range(2)]
    assert [rows_of(one.spans) for one in looks[0]] == [rows_of(one.spans) for one in looks[1]]
    assert [one.seed for one in looks[0]] == sorted({one.seed for one in looks[0]}) and len(looks[0]) > 1
    assert [one.continues_previous for one in looks[0]] == [kind == "contiguous" and n > 0
                                                            for n in range(len(looks[0]))]

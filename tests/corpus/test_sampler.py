import numpy as np
import pytest
from small_corpora import PACKINGS, corpus_of, packing_of, whole

from stemma.corpus import sampler as sampler_module
from stemma.corpus.corpus import Corpus
from stemma.corpus.packing_samplers import sampler_class
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.sampler import Cursor, RowSampler, SamplerRequest
from stemma.corpus.subset import CorpusSubset
from stemma.errors import UserError


@pytest.fixture(scope="module")
def view(corpus_folder) -> CorpusSubset:
    return whole(Corpus.open(corpus_folder))


def rows_of(spans: RowSpans) -> list[tuple]:
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(spans.num_rows)]
    for row, *values in zip(spans.row, spans.start, spans.length, spans.part, spans.separator_before, strict=True):
        rows[row].append(tuple(int(value) for value in values))
    return [tuple(row) for row in rows]


def epoch_of(sampler: RowSampler) -> list[tuple]:
    """All rows of an epoch, sampled one by one."""
    epoch, rows = sampler.cursor.epoch, []
    while sampler.cursor.epoch == epoch:
        rows += rows_of(sampler.next_rows(1)[0])
    return rows


@pytest.mark.parametrize("small_blocks", [False, True])
@pytest.mark.parametrize("kind", PACKINGS)
def test_resuming_at_any_cursor_continues_identically(view, kind, small_blocks, monkeypatch):
    if small_blocks:
        monkeypatch.setattr(sampler_module, "BLOCK_TOKENS", 700)
    packing = packing_of(view.corpus, kind, 24, short=0.1)
    uninterrupted = RowSampler(view, packing, seed=3)
    batches, positions = [], []
    for _ in range(60):
        positions.append(uninterrupted.cursor)
        spans, epochs = uninterrupted.next_rows(7)
        batches.append((rows_of(spans), epochs.tolist()))
    assert uninterrupted.cursor.epoch >= 2
    assert not small_blocks or max(position.block for position in positions) >= 2
    for start in range(0, 60, 7):
        resumed = RowSampler(view, packing, seed=3)
        resumed.cursor = Cursor(positions[start].epoch, positions[start].block, positions[start].row)
        for expected in batches[start:start + 3]:
            spans, epochs = resumed.next_rows(7)
            assert (rows_of(spans), epochs.tolist()) == expected


@pytest.mark.parametrize("kind", ["full_sentences", "doc_sentences", "stream"])
@pytest.mark.parametrize("block", [500, 2_000_000])
def test_each_epoch_has_every_token_once_in_another_order(view, kind, block, monkeypatch):
    monkeypatch.setattr(sampler_module, "BLOCK_TOKENS", block)
    sampler = RowSampler(view, packing_of(view.corpus, kind, 24), seed=0)
    epochs = [epoch_of(sampler), epoch_of(sampler)]
    for rows in epochs:
        tokens = sorted(token for row in rows for start, length, *_ in row for token in range(start, start + length))
        assert tokens == list(range(view.corpus.num_tokens))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", ["full_sentences", "stream"])
def test_the_content_of_rows_changes_between_epochs(view, kind):
    """Documents are shuffled before packing, not only rows after it."""
    sampler = RowSampler(view, packing_of(view.corpus, kind, 24), seed=0)
    assert set(epoch_of(sampler)) != set(epoch_of(sampler))


def test_the_size_of_a_batch_does_not_change_the_order(view):
    packing = packing_of(view.corpus, "segment_pair", 24)
    first, second = RowSampler(view, packing, seed=1), RowSampler(view, packing, seed=1)
    rows = [row for _ in range(30) for row in rows_of(first.next_rows(5)[0])]
    assert rows == [row for _ in range(2) for row in rows_of(second.next_rows(75)[0])]


def test_static_copies_alternate_and_repeat(view):
    sampler = RowSampler(view, packing_of(view.corpus, "segment_pair", 24, short=0.3), seed=0, num_static_copies=2)
    first, second, third = epoch_of(sampler), epoch_of(sampler), epoch_of(sampler)
    assert first == third and first != second
    _, epochs = RowSampler(view, sampler.packer, 0, num_static_copies=2).next_rows(len(first) + len(second) + 1)
    assert epochs.tolist() == [0] * len(first) + [1] * len(second) + [0]


@pytest.mark.parametrize("kind", PACKINGS)
def test_a_corpus_of_one_row_fills_any_batch(tmp_path, tokenizer_folder, kind):
    tiny = whole(corpus_of(tmp_path, [["the clerk reads"]], tokenizer_folder))
    sampler = RowSampler(tiny, packing_of(tiny.corpus, kind, 24), seed=0)
    spans, epochs = sampler.next_rows(9)
    assert spans.num_rows == 9 and len(set(rows_of(spans))) == 1
    assert epochs.tolist() == list(range(9))
    assert sampler.cursor == Cursor(9, 0, 0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", PACKINGS)
def test_an_empty_subset_is_refused_and_never_loops(view, kind):
    sampler = RowSampler(CorpusSubset(view.corpus, view.document_ranges[:0]), packing_of(view.corpus, kind, 24), seed=0)
    with pytest.raises(UserError, match="too small"):
        sampler.next_rows(1)
    assert sampler.first_rows(5).num_rows == 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", [Cursor(), Cursor(2, 1, 0)])
def test_blocks_without_a_row_are_refused_and_never_loop(view, start, monkeypatch):
    monkeypatch.setattr(sampler_module, "BLOCK_TOKENS", 500)
    sampler = RowSampler(view, packing_of(view.corpus, "stream", 24), seed=0)
    monkeypatch.setattr(type(sampler.packer), "pack", lambda self, documents, rng: RowSpans.from_tuples(0, []))
    sampler.cursor = start
    with pytest.raises(UserError, match="too small"):
        sampler.next_rows(1)


def test_empty_blocks_are_skipped(view, monkeypatch):
    monkeypatch.setattr(sampler_module, "BLOCK_TOKENS", 500)
    sampler = RowSampler(view, packing_of(view.corpus, "stream", 24), seed=0)
    pack, calls = type(sampler.packer).pack, []

    def mostly_empty(self, documents, rng):
        calls.append(len(documents))
        return pack(self, documents, rng) if len(calls) % 3 == 0 else RowSpans.from_tuples(0, [])

    monkeypatch.setattr(type(sampler.packer), "pack", mostly_empty)
    spans, _ = sampler.next_rows(200)
    assert spans.num_rows == 200 and len(calls) > 3


def test_first_rows_gives_the_beginning_up_to_the_limit(view):
    packing = packing_of(view.corpus, "doc_sentences", 24)
    sampler = RowSampler(view, packing, seed=5)
    assert rows_of(sampler.first_rows(4)) == rows_of(RowSampler(view, packing, seed=5).next_rows(4)[0])
    assert sampler.first_rows(10**9).num_rows == len(epoch_of(RowSampler(view, packing, seed=5)))
    assert sampler.cursor == Cursor()
    assert np.unique(sampler.first_rows(4).row).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["stream", "full_sentences", "sentence", "contiguous"])
def test_every_packing_has_a_sampler_with_the_same_interface(view, kind):
    request = SamplerRequest(view, packing_of(view.corpus, kind, 24), seed=3, rows=4, length=24)
    sampler = sampler_class(kind).from_request(request)
    num_batches, batches = 0, sampler.batches_in_epoch()
    while sampler.cursor.epoch == 0:
        spans, epochs = sampler.next_rows(4)
        assert spans.num_rows == len(epochs)
        num_batches += 1
    assert num_batches == batches
    validations = [list(sampler_class(kind).validation_rows(request, 480, 96)) for _ in range(2)]
    assert [rows_of(rows.spans) for rows in validations[0]] == [rows_of(rows.spans) for rows in validations[1]]
    seeds = [rows.seed for rows in validations[0]]
    assert seeds == sorted(set(seeds)) and len(seeds) > 1
    assert [rows.continues_previous for rows in validations[0]] == [kind == "contiguous" and n > 0
                                                                  for n in range(len(validations[0]))]

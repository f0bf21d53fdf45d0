"""Contiguous rows: every token of the running text once per epoch, in order, forward and backward."""

import numpy as np
import pytest
from small_corpora import PAIR, SINGLE, corpus_of, draft_of, packing_of, pieced_corpus, whole

from stemma.corpus.contiguous_sampler import ConcatenatedText, ContiguousSampler
from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.packers import Packer
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import Cursor
from stemma.corpus.subset import CorpusSubset, train_validation_split
from stemma.errors import UserError
from stemma.text.train_tokenizer import train_tokenizer

XLNET_SINGLE, XLNET_PAIR = "A separator start:2", "A separator B:1 separator:1 start:2"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tokenizer_folder) -> Corpus:
    """Documents of one or two words, so that rows often start or end with a separator."""
    documents = [["the clerk"], ["a letter"], ["the"], ["every scribe reads", "the margin notes"], ["a"], ["the river"]]
    return corpus_of(tmp_path_factory.mktemp("tiny"), documents, tokenizer_folder)


def concatenated_tokens(view: CorpusSubset, layout: RowTemplate) -> list[int]:
    """The tokens of all documents with separators between them."""
    tokens: list[int] = []
    for index, (start, stop) in enumerate(view.document_ranges):
        tokens += [layout.special_ids["separator"]] * (index > 0 and "separator" in layout.special_ids)
        tokens += view.corpus.values_between("tokens", int(start), int(stop)).tolist()
    return tokens


def sampler_of(view: CorpusSubset, length: int, rows: int, backward=None, single: str = "A") -> ContiguousSampler:
    return ContiguousSampler(view, packing_of(view.corpus, "contiguous", length, single=single), 0, rows, backward)


def pair_sampler(view: CorpusSubset, length: int, rows: int, backward=None, seed: int = 0) -> ContiguousSampler:
    layout = RowTemplate.from_tokenizer(view.corpus.tokenizer, XLNET_SINGLE, XLNET_PAIR, length, length // 2)
    return ContiguousSampler(view, Packer("contiguous_pair", layout), seed, rows, backward)


def draft_next(sampler: ContiguousSampler, view: CorpusSubset) -> Draft:
    continues = sampler.continues_previous
    spans, _ = sampler.next_rows(sampler.rows)
    return Draft(view, spans, sampler.packer.template, sampler.reversed_rows if sampler.reversed_rows.any() else None,
                 continues)


def epoch_of(sampler: ContiguousSampler, view: CorpusSubset) -> list[Draft]:
    batches = [draft_next(sampler, view)]
    while sampler.cursor.row:
        batches.append(draft_next(sampler, view))
    return batches


def directions(rows: int, which: str) -> np.ndarray:
    return {"forward": np.zeros(rows, bool), "backward": np.ones(rows, bool), "both": np.arange(rows) % 2 == 1}[which]


def used(draft: Draft, row: int) -> list[int]:
    """The tokens of the row, without the padding token of a finished lane."""
    tokens = draft.original_ids[row, :draft.lengths[row]].tolist()
    return tokens if (draft.spans.row == row).any() else []


@pytest.mark.parametrize("which", ["forward", "backward", "both"])
@pytest.mark.parametrize(("name", "length", "rows"), [  # short rows of a long text are many batches
    *(("tiny", *size) for size in [(1, 3), (2, 5), (5, 1), (7, 4), (16, 16), (33, 6), (64, 2)]),
    *(("corpus", *size) for size in [(7, 4), (16, 16), (33, 6), (64, 2)])])
def test_every_token_is_read_once_per_epoch_in_order(request, name, length, rows, which):
    view = whole(request.getfixturevalue(name))
    sampler = sampler_of(view, length, rows, directions(rows, which))
    text = concatenated_tokens(view, sampler.packer.template)
    for _ in range(2):  # epochs
        batches = epoch_of(sampler, view)
        assert [batch.continues_previous for batch in batches] == [False] + [True] * (len(batches) - 1)
        assert len(batches) == sampler.num_batches
        columns = [[token for batch in batches for token in used(batch, row)] for row in range(rows)]
        forward = [column[::-1] if is_reversed else column
                   for column, is_reversed in zip(columns, sampler.reversed_rows, strict=True)]
        distinct = max(1, min(rows, len(text) // length))
        assert [token for column in forward[:distinct] for token in column] == text
        assert forward == [forward[row % distinct] for row in range(rows)]
        # only the last batch may have short rows, so that a memory holds no padding
        assert all((batch.lengths == length).all() for batch in batches[:-1])


def test_a_finished_lane_has_one_padding_token(tiny):
    view = whole(tiny)
    size = ConcatenatedText(view, True).size
    rows = next(rows for rows in range(2, 9) if size % rows)
    sampler = sampler_of(view, size // rows, rows)
    batches = epoch_of(sampler, view)
    last = batches[-1]
    assert len(batches) == 2 and last.lengths.tolist() == [1] * rows
    num_used = [len(used(last, row)) for row in range(rows)]
    assert sorted(set(num_used)) == [0, 1] and sum(num_used) == size % rows
    empty = np.array(num_used) == 0
    assert (last.input_ids[empty, 0] == tiny.tokenizer.special_id("padding")).all() and not last.is_text[empty].any()
    assert (last.next_tokens()[empty] == -1).all()


def test_special_tokens_are_added_to_every_row_and_replace_no_text(corpus):
    view = whole(corpus)
    sampler = sampler_of(view, 12, 3, single="start A separator")
    text: list[list[int]] = [[], [], []]
    for draft in epoch_of(sampler, view):
        for row in range(3):
            tokens = used(draft, row)
            assert tokens[0] == corpus.tokenizer.special_id("start")
            assert tokens[-1] == corpus.tokenizer.special_id("separator")
            text[row] += tokens[1:-1]
    assert sum(text, []) == concatenated_tokens(view, sampler.packer.template)


def test_held_out_documents_are_skipped(corpus):
    view, validation = train_validation_split(corpus, 0.3, seed=1)
    assert len(validation.document_ranges) > 1
    sampler = sampler_of(view, 16, 4)
    tokens = [token for row in range(4) for batch in epoch_of(sampler_of(view, 16, 4), view)
              for token in used(batch, row)]
    assert tokens == concatenated_tokens(view, sampler.packer.template)


def test_documents_are_concatenated_without_a_separator_token(tmp_path, text_file):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True, roles={"mask"})
    tokenizer.save(tmp_path / "tokenizer")
    view = whole(corpus_of(tmp_path, [["the clerk"], ["a letter"], ["the river"]], tmp_path / "tokenizer"))
    sampler = sampler_of(view, 3, 1)
    assert not sampler.packer.template.has_separator
    assert [t for draft in epoch_of(sampler, view) for t in used(draft, 0)] == view.corpus.values_between("tokens", 0,
                                                                                                          6).tolist()


@pytest.mark.parametrize("which", ["forward", "backward", "both"])
@pytest.mark.parametrize(("name", "length", "rows"), [
    *(("tiny", *size) for size in [(1, 2), (2, 2), (3, 1), (7, 4)]), ("corpus", 7, 4), ("corpus", 16, 3)])
def test_next_tokens_follow_the_running_text(request, name, length, rows, which):
    """Also across the end of the window and around separators; the end of the text counts as a document end."""
    view = whole(request.getfixturevalue(name))
    sampler = sampler_of(view, length, rows, directions(rows, which))
    template = sampler.packer.template
    text, separator = concatenated_tokens(view, template), template.special_ids["separator"]
    batches = epoch_of(sampler, view)
    for row, column in enumerate(sampler.lanes):
        result = [int(token) for batch in batches for token in batch.next_tokens()[row, :len(used(batch, row))]]
        around = [separator, *text, separator]
        shifted = around[column.start:column.stop] if column.is_reversed else around[column.start + 2:column.stop + 2]
        assert result == (shifted[::-1] if column.is_reversed else shifted)
    assert all((batch.next_tokens()[:, -1] == -1).all() for batch in batches if (batch.lengths < length).all())


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_next_tokens_across_the_end_of_a_stream_row(tiny, which):
    view = whole(tiny)
    packing = packing_of(tiny, "stream", 4, single="A")
    spans = draft_of(view, "stream", 4, rows=6, single="A").spans
    backward = directions(6, which)
    draft = Draft(view, spans, packing.template, backward)
    begins, ends = set(tiny.document_starts[:-1].tolist()), set(tiny.document_starts[1:].tolist())
    states = set()
    for row in range(6):
        last = int(draft.lengths[row]) - 1
        offset = int(draft.corpus_offsets[row, last])
        ended = offset in begins if backward[row] else offset + 1 in ends
        after = offset - 1 if backward[row] else offset + 1
        states.add(ended)
        expected = tiny.tokenizer.special_id("separator") if ended else tiny.values_between("tokens", after, after + 1)
        assert draft.next_tokens()[row, last] == expected
        assert draft.next_tokens()[row, :last].tolist() == draft.original_ids[row, 1:last + 1].tolist()
        assert (draft.next_tokens()[row, last + 1:] == -1).all()
    assert states == {True, False}


@pytest.mark.parametrize(("kind", "single"), [("stream", "start A separator"), ("doc_sentences", "A"),
                                              ("full_sentences", SINGLE), ("segment_pair", SINGLE)])
def test_the_last_position_has_no_next_token_unless_the_text_continues(corpus, kind, single):
    draft = draft_of(whole(corpus), kind, 20, rows=9, single=single)
    following = draft.next_tokens()
    assert (following[np.arange(9), draft.lengths - 1] == -1).all()
    assert (following[:, :-1][np.arange(19) < draft.lengths[:, None] - 1] >= 0).all()


@pytest.mark.parametrize("kind", ["stream", "full_sentences", "segment_pair"])
def test_a_backward_row_is_the_reversed_forward_row(corpus, kind):
    forward = draft_of(whole(corpus), kind, 24, rows=10, short=0.3)
    backward = np.arange(10) >= 4
    both = Draft(forward.subset, forward.spans, forward.template, backward)
    assert (forward.lengths < 24).any() or kind == "stream"
    assert (both.lengths == forward.lengths).all()
    for row in range(10):
        length = int(forward.lengths[row])
        for name in ("input_ids", "corpus_offsets", "segment_ids"):
            before, after = getattr(forward, name)[row].tolist(), getattr(both, name)[row].tolist()
            assert after[:length] == (before[:length][::-1] if backward[row] else before[:length])
            assert after[length:] == before[length:]
        words = [np.unique(draft.word_ids[row, :length], return_inverse=True)[1] for draft in (forward, both)]
        order = slice(None, None, -1 if backward[row] else 1)
        assert words[1][order].tolist() == words[0].tolist()
    with pytest.raises(ValueError, match="read-only"):
        both.original_ids[9, 0] = 1


@pytest.mark.parametrize("which", ["forward", "backward", "both"])
@pytest.mark.parametrize(("length", "rows"), [(16, 4), (21, 3), (48, 2)])
def test_the_reused_half_continues_from_row_to_row_and_the_pair_follows_it(corpus, length, rows, which):
    view = whole(corpus)
    sampler = pair_sampler(view, length, rows, directions(rows, which))
    text, half = concatenated_tokens(view, sampler.packer.template), length // 2
    separator, start = corpus.tokenizer.special_id("separator"), corpus.tokenizer.special_id("start")
    text_room = length - half - 3
    num_continued = total = 0
    bounds = {0, len(text)}  # starts of sentences and separators
    position = 0
    for index, (first, stop) in enumerate(view.document_ranges):
        position += index > 0
        bounds |= {position - 1, *(position + int(s - first) for s in corpus.sentence_starts if first <= s < stop)}
        position += int(stop - first)
    batches = epoch_of(sampler, view)
    assert len(batches) > 4
    for row, column in enumerate(sampler.lanes):
        lane_tokens = text[column.start:column.stop][::-1 if column.is_reversed else 1]
        borders = {column.stop - b if column.is_reversed else b - column.start for b in bounds}
        assert len(lane_tokens) - length < half * len(batches)  # it continues while a full window is left
        for step, batch in enumerate(batches):
            tokens, segments = used(batch, row), batch.segment_ids[row].tolist()
            assert len(tokens) == length and batch.reuse_lengths[row] == half
            assert tokens[:half] == lane_tokens[step * half:(step + 1) * half]  # without gaps
            a = segments.index(1) - half - 1
            assert segments == [0] * (half + a + 1) + [1] * (length - half - a - 2) + [2]
            assert tokens[-1] == start and tokens[-2] == tokens[half + a] == separator
            begin = (step + 1) * half
            assert tokens[half:half + a] == lane_tokens[begin:begin + a]
            assert begin + a in borders or a == text_room - text_room // 2
            b = tokens[half + a + 1:-2]
            assert len(b) == text_room - a > 0
            continues = b == lane_tokens[begin + a:begin + a + len(b)]
            assert continues or any(lane_tokens[at:at + len(b)] == b for at in range(len(lane_tokens)))
            num_continued, total = num_continued + continues, total + 1
    assert 0.3 < num_continued / total < 0.8


def test_a_random_b_starts_at_a_sentence_if_one_is_near(corpus):
    view = whole(corpus)
    sampler = pair_sampler(view, 80, 2, np.array([False, True]))
    sentences = set(corpus.sentence_starts.tolist())
    num_at_sentence = 0
    batches = epoch_of(sampler, view)
    for batch in batches:
        for row in range(2):
            inside = np.flatnonzero((batch.segment_ids[row] == 1) & batch.is_text[row])
            first = int(batch.corpus_offsets[row, inside[0]])
            # the second row is reversed, so its B starts with the last token of a sentence
            num_at_sentence += first + 1 in sentences if row else first in sentences
    assert num_at_sentence > 0.9 * 2 * len(batches)


def test_another_epoch_or_seed_changes_the_pairs_but_not_the_reused_text(corpus):
    view = whole(corpus)
    sampler = pair_sampler(view, 32, 4)
    first, second = epoch_of(sampler, view), epoch_of(sampler, view)
    other = epoch_of(pair_sampler(view, 32, 4, seed=1), view)
    for batches in (second, other):
        assert all((a.original_ids[:, :16] == b.original_ids[:, :16]).all() for a,
                   b in zip(first, batches, strict=True))
        assert any((a.original_ids != b.original_ids).any() for a, b in zip(first, batches, strict=True))


def rows_of(spans: RowSpans) -> list[list[int]]:
    return [array.tolist() for array in (spans.row, spans.start, spans.length, spans.part, spans.separator_before)]


@pytest.mark.parametrize("make", [sampler_of, pair_sampler])
def test_resuming_at_any_cursor_continues_identically(corpus, make):
    view, backward = whole(corpus), np.array([False, False, True, True])
    uninterrupted = make(view, 24, 4, backward)
    states = []
    for _ in range(3 * uninterrupted.num_batches + 2):
        states.append((uninterrupted.cursor, uninterrupted.continues_previous, rows_of(uninterrupted.next_rows(4)[0])))
    assert uninterrupted.cursor.epoch == 3
    for at in range(0, len(states) - 1, 5):
        resumed = make(view, 24, 4, backward)
        resumed.cursor = Cursor(states[at][0].epoch, states[at][0].block, states[at][0].row)
        for expected in states[at:at + 2]:
            assert (resumed.cursor, resumed.continues_previous, rows_of(resumed.next_rows(4)[0])) == expected


@pytest.mark.parametrize("make", [sampler_of, pair_sampler])
@pytest.mark.parametrize("sentence", ["the", "the clerk", "the clerk reads", "the clerk reads a letter"])
def test_a_text_of_a_few_words_fills_any_batch(tmp_path, tokenizer_folder, make, sentence):
    view = whole(corpus_of(tmp_path, [[sentence]], tokenizer_folder))
    sampler = make(view, 24, 5, directions(5, "both"))
    for epoch in range(3):
        assert not sampler.continues_previous
        spans, epochs = sampler.next_rows(5)
        draft = Draft(view, spans, sampler.packer.template, sampler.reversed_rows)
        assert epochs.tolist() == [epoch] * 5 and draft.is_text.any(1).all()
        assert set(draft.corpus_offsets[draft.is_text].tolist()) == set(range(view.corpus.num_tokens))


@pytest.mark.parametrize("make", [sampler_of, pair_sampler])
def test_empty_text_and_too_short_windows_are_refused(corpus, make):
    with pytest.raises(UserError, match="too small"):
        make(CorpusSubset(corpus, corpus.document_starts[:0].reshape(0, 2)), 24, 2).next_rows(2)
    if make is pair_sampler:
        with pytest.raises(UserError, match="sequence_length"):
            make(whole(corpus), 6, 2).next_rows(2)


def test_boundaries_are_positions_of_sentence_starts_and_separators(corpus):
    view, _ = train_validation_split(corpus, 0.3, seed=1)
    text = ConcatenatedText(view, True)
    expected, position = set(), 0
    for index, (first, stop) in enumerate(view.document_ranges):
        if index:
            expected.add(position)
            position += 1
        expected |= {position + int(s - first) for s in corpus.sentence_starts if first <= s < stop}
        position += int(stop - first)
    assert position == text.size
    assert text.boundaries(0, text.size).tolist() == sorted(expected)
    for start in range(0, text.size - 40, 23):
        assert text.boundaries(start, start + 40).tolist() == sorted(b for b in expected if start <= b <= start + 40)


def test_a_template_without_reuse_has_reuse_length_0(corpus):
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, SINGLE, PAIR, 12)
    draft = Draft(whole(corpus), RowSpans.from_tuples(1, [(0, 5, 3, 0, False), (0, 0, 3, 1, False)]), layout)
    assert draft.reuse_lengths.tolist() == [0] and layout.reuse_length == 0 and layout.capacity(True) == 9

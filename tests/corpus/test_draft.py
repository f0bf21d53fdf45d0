import numpy as np
import pytest
from small_corpora import PACKINGS, PAIR, SINGLE, corpus_of, draft_of, packing_of, pieced_corpus, whole

from stemma.corpus.corpus import Corpus
from stemma.corpus.draft import Draft
from stemma.corpus.row_spans import RowSpans
from stemma.corpus.row_template import RowTemplate
from stemma.corpus.sampler import RowSampler
from stemma.text.train_tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


@pytest.fixture(scope="module")
def lines(tmp_path_factory, tokenizer_folder) -> Corpus:
    documents = [["The old clerk reads a letter.", "Our neighbour forgets the margin notes.", "Every scribe copies."],
                 ["The printer repairs seven pages by the window."],
                 ["A young reader numbers one missing leaf.", "The librarian collects an older manuscript."]]
    return corpus_of(tmp_path_factory.mktemp("lines"), documents, tokenizer_folder)


def text_of(corpus: Corpus, start: int, length: int) -> str:
    """The text of a span of tokens of one document."""
    document = int(np.searchsorted(corpus.document_starts, start, side="right")) - 1
    starts = corpus.values_between("starts", start, start + length)
    lengths = corpus.values_between("lengths", start, start + length)
    return corpus.document_text(document)[starts[0]:starts[-1] + lengths[-1]]


@pytest.mark.parametrize(("single", "pair"), [
    (SINGLE, PAIR), ("begin A end", "begin A end separator B:1 end:1"), ("A", "A separator B"),
    ("start:1 A:1", "separator A:1 mask:1 B")])
@pytest.mark.parametrize("kind", ["segment_pair", "sentence_pair", "doc_sentences"])
def test_rows_follow_the_template_as_the_tokenizer_does(lines, kind, single, pair):
    view = whole(lines)
    packing = packing_of(lines, kind, 60, single=single, pair=pair)
    spans, _ = RowSampler(view, packing, 0).next_rows(5)
    draft = Draft(view, spans, packing.template)
    tokenizer = lines.tokenizer.with_template(single, pair)
    for row in range(draft.rows):
        indices = np.flatnonzero(spans.row == row)
        texts = [text_of(lines, int(spans.start[at]), int(spans.length[at])) for at in indices]
        expected = tokenizer.encode(*texts)
        length = int(draft.lengths[row])
        assert draft.input_ids[row, :length].tolist() == expected.ids
        assert draft.segment_ids[row, :length].tolist() == expected.type_ids
        assert (draft.input_ids[row, length:] == lines.tokenizer.special_id("padding")).all()
        assert not draft.segment_ids[row, length:].any()
    assert (draft.lengths < 60).any()


@pytest.mark.parametrize("kind", PACKINGS)
@pytest.mark.parametrize("length", [7, 16, 33])
def test_every_text_position_has_its_corpus_offset(corpus, kind, length):
    draft = draft_of(whole(corpus), kind, length, rows=40, short=0.2)
    tokens = corpus.values_between("tokens", 0, corpus.num_tokens)
    assert draft.input_ids.shape == (40, length)
    assert (draft.lengths <= length).all()
    assert (draft.input_ids[draft.is_text] == tokens[draft.corpus_offsets[draft.is_text]]).all()
    assert draft.is_text.sum() == draft.spans.length.sum()
    # other positions are special tokens up to the row's length, and padding after it
    inside = np.arange(length) < draft.lengths[:, None]
    special = np.isin(draft.input_ids, corpus.tokenizer.special_ids)
    assert special[inside & ~draft.is_text].all()
    assert not draft.is_text[~inside].any()
    assert (draft.input_ids[~inside] == corpus.tokenizer.special_id("padding")).all()


@pytest.mark.parametrize("kind", ["full_sentences", "stream"])
def test_documents_in_one_row_are_separated_by_a_separator(corpus, kind):
    draft = draft_of(whole(corpus), kind, 200, rows=3)
    begins = set(corpus.document_starts[:-1].tolist())
    separator, crossings = corpus.tokenizer.special_id("separator"), 0
    for row in range(draft.rows):
        positions = np.flatnonzero(draft.is_text[row])
        for before, after in zip(positions[:-1], positions[1:], strict=True):
            new_document = int(draft.corpus_offsets[row, after]) in begins
            assert after - before == 1 + new_document
            if new_document:
                assert draft.input_ids[row, before + 1] == separator
                crossings += 1
    assert crossings


def test_a_tokenizer_without_a_separator_uses_its_end_token_or_no_separator(tmp_path, text_file):
    for roles, expected in (({"mask", "start", "end"}, "end"), ({"mask", "start"}, None)):
        folder = tmp_path / (expected or "none")
        tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True, roles=roles)
        tokenizer.save(folder / "tokenizer")
        corpus = corpus_of(folder, [["the clerk"], ["a letter"]], folder / "tokenizer")
        draft = draft_of(whole(corpus), "stream", 30, rows=1, single="start A")
        special_tokens = draft.input_ids[0, :draft.lengths[0]][~draft.is_text[0, :draft.lengths[0]]].tolist()
        assert special_tokens == [corpus.tokenizer.special_id("start"),
                                  *([corpus.tokenizer.special_id(expected)] if expected else [])]
        assert len(np.unique(draft.word_ids[0][draft.is_text[0]])) == 4  # "clerk" and "a" stay two words


def test_segments_follow_the_template(corpus):
    draft = draft_of(whole(corpus), "segment_pair", 40, rows=30)
    for row in range(30):
        length = int(draft.lengths[row])
        separators = np.flatnonzero(draft.input_ids[row, :length] == corpus.tokenizer.special_id("separator"))
        assert separators[-1] == length - 1
        expected = np.zeros(40, dtype=int)
        if len(separators) == 2:
            expected[separators[0] + 1:length] = 1
        assert (draft.segment_ids[row] == expected).all()


def test_word_ids_follow_the_word_starts_of_the_corpus(corpus):
    draft = draft_of(whole(corpus), "segment_pair", 24, rows=50)
    starts = corpus.values_between("word_starts", 0, corpus.num_tokens)
    assert (draft.word_ids[~draft.is_text] == -1).all()
    seen: set[int] = set()
    for row in range(draft.rows):
        previous = None
        for position in range(24):
            unit = int(draft.word_ids[row, position])
            if unit < 0:
                previous = None
                continue
            source = int(draft.corpus_offsets[row, position])
            continues = previous is not None and source == previous[1] + 1 and not starts[source]
            assert continues == (previous is not None and unit == previous[0])
            if not continues:
                assert unit not in seen  # word ids are unique in the batch
                seen.add(unit)
            previous = (unit, source)
    assert starts.mean() < 0.8  # there are words of several tokens


def test_the_first_token_of_the_corpus_starts_a_word_after_a_special_token(corpus):
    """Its offset is 0, which is one more than the -1 of a special token."""
    layout = RowTemplate.from_tokenizer(corpus.tokenizer, SINGLE, PAIR, 12)
    spans = RowSpans.from_tuples(1, [(0, 5, 3, 0, False), (0, 0, 3, 1, False)])
    draft = Draft(whole(corpus), spans, layout)
    units = draft.word_ids[0]
    assert units[5] not in (-1, units[3]) and len({*units[1:4]} & {*units[5:8]}) == 0


def test_objectives_may_change_tokens_but_not_the_shape(corpus):
    draft = draft_of(whole(corpus), "stream", 16, rows=2)
    before = draft.original_ids.copy()
    draft.input_ids = np.zeros_like(draft.input_ids)
    assert (draft.original_ids == before).all() and not draft.input_ids.any()
    with pytest.raises(AssertionError):
        draft.input_ids = np.zeros((2, 5), dtype=np.int32)


def test_token_targets_have_positions_and_labels(corpus):
    draft = draft_of(whole(corpus), "stream", 16, rows=2)
    at = np.zeros((2, 16), dtype=bool)
    at[0, 3] = at[1, 15] = True
    draft.add_token_targets("head", at, draft.original_ids)
    assert draft.token_targets["head"].index.tolist() == [3, 31]
    assert draft.token_targets["head"].labels.tolist() == [draft.original_ids[0, 3], draft.original_ids[1, 15]]


def test_separate_segments_have_their_own_rows(lines):
    """Each uses the template `single`, even if both would not fit one row."""
    view = whole(lines)
    bounds = view.sentence_bounds(0)
    layout = RowTemplate.from_tokenizer(lines.tokenizer, "A end", PAIR, 12, decoder_start="begin")
    spans = RowSpans.from_tuples(2, [(0, bounds[0], bounds[1] - bounds[0], 0, False),
                           (0, bounds[1], bounds[2] - bounds[1], 1, False),
                           (1, bounds[2], 2, 0, False), (1, bounds[0], 3, 1, False)])
    draft = Draft(view, spans, layout)
    end = lines.tokenizer.special_id("end")
    tokens = lines.values_between("tokens", 0, lines.num_tokens).tolist()
    for side, ranges in ((draft, [(bounds[0], bounds[1]), (bounds[2], bounds[2] + 2)]),
                         (draft.segment_b_draft(), [(bounds[1], bounds[2]), (bounds[0], bounds[0] + 3)])):
        for row, (start, stop) in enumerate(ranges):
            assert side.input_ids[row, :side.lengths[row]].tolist() == [*tokens[start:stop], end]
    assert draft.spans is spans and (spans.part == [0, 1, 0, 1]).all()


def test_boundary_none_puts_no_token_between_documents(lines):
    for boundary, marks in (("separator", 2), ("none", 0)):
        layout = RowTemplate.from_tokenizer(lines.tokenizer, "A", PAIR, 60, boundary=boundary)
        bounds = [whole(lines).sentence_bounds(index) for index in range(3)]
        spans = RowSpans.from_tuples(1, [(0, b[0], 4, 0, index > 0) for index, b in enumerate(bounds)])
        draft = Draft(whole(lines), spans, layout)
        assert (draft.input_ids[0, :draft.lengths[0]] == lines.tokenizer.special_id("separator")).sum() == marks
        assert draft.lengths[0] == 12 + marks

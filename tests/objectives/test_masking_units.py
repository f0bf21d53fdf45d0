"""Masking units (words, n-grams, spans, phrases, entities): all tokens of a unit are masked, at the exact rate."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_corpora import corpus_of, draft_of, pieced_corpus, whole

from stemma.atomic_files import CHECKSUMS, write_checksums
from stemma.corpus.corpus import MANIFEST, Corpus
from stemma.corpus.rng import PerRowRNG
from stemma.objectives.masked_lm import LM_HEAD_NAME, MaskedLM, MaskedLMSettings
from stemma.objectives.masking import broadcast_per_unit, choose_units, merge_adjacent_units, truncated_geometric
from stemma.text.train_tokenizer import train_tokenizer

UNITS = ["word", "ngram", "word_ngram", "span", "phrase", "entity"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Most words have several tokens; some phrases of three words and entities of two are annotated."""
    plain = pieced_corpus(tmp_path_factory.mktemp("pieced"))
    starts = np.flatnonzero(plain.values_between("word_starts", 0, plain.num_tokens))
    for name, size, every in (("phrases", 3, 7), ("entities", 2, 11)):
        marks = np.zeros(plain.num_tokens, np.uint8)
        for first in range(0, len(starts) - size, every):
            marks[starts[first]:starts[first + size]] = 2
            marks[starts[first]] = 1
        add_annotation(plain.path, name, marks)
    return Corpus.open(plain.path)


def add_annotation(path: Path, name: str, marks: np.ndarray) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    assert len(manifest["shards"]) == 1
    (path / manifest["shards"][0]["folder"] / f"{name}.bin").write_bytes(marks.tobytes())
    (path / MANIFEST).write_text(json.dumps(manifest | {"arrays": {**manifest["arrays"], name: "|u1"}}))
    (path / CHECKSUMS).unlink()
    write_checksums(path)


def objective(unit: str, **settings) -> MaskedLM:
    values = {"kind": "masked_lm", "rate": 0.15, "unit": unit, "dynamic": True, **settings}
    return MaskedLM("masked_lm", MaskedLMSettings(**values))


def masked_positions(draft) -> np.ndarray:
    selected = np.zeros(draft.input_ids.shape, bool)
    selected.reshape(-1)[draft.token_targets[LM_HEAD_NAME].index] = True
    return selected


def runs(units: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(units, prepend=-2, append=-2))
    return [(start, stop) for start, stop in zip(edges[:-1], edges[1:], strict=True) if units[start] >= 0]


@pytest.mark.parametrize("name", ["phrases", "entities"])
@pytest.mark.parametrize("length", [9, 40])
def test_annotated_spans_are_units_and_other_words_are_units(corpus, name, length):
    draft = draft_of(whole(corpus), "stream", length, rows=60)
    units = draft.annotated_unit_ids(name)
    marks, starts = (corpus.values_between(array, 0, corpus.num_tokens) for array in (name, "word_starts"))
    assert ((units >= 0) == draft.is_text).all()
    for row in range(draft.rows):
        source = draft.corpus_offsets[row]
        for position in range(1, length):
            if source[position] < 0 or source[position] != source[position - 1] + 1:
                continue
            token = source[position]
            begins = marks[token] == 1 if marks[token] else bool(starts[token]) or marks[token - 1] > 0
            assert (units[row, position] != units[row, position - 1]) == begins
    unit_ids = units[units >= 0]
    assert (np.diff(unit_ids) >= 0).all() and len(np.unique(unit_ids)) == unit_ids.max() + 1


def test_an_annotated_unit_may_start_and_end_inside_a_word(corpus, tmp_path):
    shutil.copytree(corpus.path, tmp_path / "cut")
    starts = corpus.values_between("word_starts", 0, corpus.num_tokens)
    inner = int(np.flatnonzero(~starts[1:-1] & ~starts[2:])[0]) + 1  # neither this token nor the next starts a word
    marks = np.zeros(corpus.num_tokens, np.uint8)
    marks[inner] = 1
    add_annotation(tmp_path / "cut", "phrases", marks)
    num_truncated = Corpus.open(tmp_path / "cut")
    draft = draft_of(whole(num_truncated), "stream", 64, rows=400)
    row, position = (result[0] for result in np.nonzero(draft.corpus_offsets == inner))
    units = draft.annotated_unit_ids("phrases")[row]
    assert len({units[position - 1], units[position], units[position + 1]}) == 3


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("packing", ["segment_pair", "full_sentences"])
def test_all_tokens_of_a_unit_are_masked_and_special_tokens_never(corpus, unit, packing):
    draft = draft_of(whole(corpus), packing, 50, rows=200, short=0.2)
    before = draft.input_ids.copy()
    objective(unit).make_targets(draft, np.random.default_rng(0))
    selected = masked_positions(draft)
    assert not (selected & ~draft.is_text).any() and selected.any(1).all()
    assert (draft.input_ids[~draft.is_text] == before[~draft.is_text]).all()
    words = draft.word_ids
    num_multi_token = 0
    for row in range(draft.rows):
        for start, stop in runs(words[row]) if unit == "span" else runs(draft.unit_ids[row]):
            assert len(set(selected[row, start:stop].tolist())) == 1  # a span may be truncated, but only between words
            num_multi_token += selected[row, start] and stop - start > 1
    assert num_multi_token > 50


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_the_masking_rate_is_exact_for_every_unit(corpus, unit, rate):
    draft = draft_of(whole(corpus), "stream", 131, rows=100)
    expected = draft.is_text.sum(1) * rate
    results = []
    for seed in range(30):
        fresh = draft_of(whole(corpus), "stream", 131, rows=100)
        objective(unit, rate=rate).make_targets(fresh, np.random.default_rng(seed))
        results.append(masked_positions(fresh).sum(1))
    difference = np.array(results) - expected
    assert abs(difference.mean()) < 4 * difference.std() / difference.size**0.5
    assert np.abs(difference).max() < 25  # a row differs by at most its last unit


def test_spans_keep_the_rate_even_if_one_exceeds_it(corpus):
    """A span of ten words exceeds the masking rate of a row, but no row is off by more than a word."""
    sizes = np.bincount(draft_of(whole(corpus), "stream", 131, rows=200).word_ids.clip(0).ravel())[1:]
    difference = []
    for seed in range(40):
        draft = draft_of(whole(corpus), "doc_sentences", 40, rows=100, seed=seed)
        objective("span", geometric_p=0.02, rate=0.3).make_targets(draft, np.random.default_rng(seed))
        full = draft.is_text.sum(1) * 0.3 > sizes.max()  # rows whose target is longer than the longest word
        difference.append((masked_positions(draft).sum(1) - draft.is_text.sum(1) * 0.3)[full])
        assert np.abs(difference[-1]).max() < sizes.max()
    difference = np.concatenate(difference)
    assert len(difference) > 1000 and abs(difference.mean()) < 4 * difference.std() / len(difference) ** 0.5


@pytest.mark.parametrize(("probability", "longest"), [(0.2, 10), (0.5, 4), (0.9, 1)])
def test_span_lengths_are_geometric_and_at_most_one_span_per_row_is_truncated(corpus, probability, longest):
    fractions = truncated_geometric(probability, longest)
    assert sum(fractions) == pytest.approx(1) and len(fractions) == longest
    assert all(later / before == pytest.approx(1 - probability)
               for before, later in zip(fractions, fractions[1:], strict=False))
    sampled, complete, partial = (np.zeros(longest + 1) for _ in range(3))
    for seed in range(8):
        draft = draft_of(whole(corpus), "stream", 400, rows=60, seed=seed)
        masking = objective("span", geometric_p=probability, max_span_words=longest)
        masking.make_targets(draft, np.random.default_rng(seed))
        selected, words = masked_positions(draft), draft.word_ids
        for row in range(draft.rows):
            num_truncated = 0
            for start, stop in runs(draft.unit_ids[row]):
                within, size = selected[row, start:stop], len(np.unique(words[row, start:stop]))
                if within.any() and not within.all():
                    num_truncated += 1
                    assert within[:within.sum()].all()  # its first words are masked
                if draft.is_text[row, min(stop, 399)]:  # otherwise the document ends here
                    sampled[size] += 1
                    complete[size] += within.all()
                    partial[size] += within.any()
            assert num_truncated <= 1
    unit_ids, total = np.arange(longest + 1), sampled.sum()
    assert np.abs(sampled[1:] / total - fractions).max() < 4 * (0.25 / total) ** 0.5 + 0.01
    # long spans are truncated more often: without them the mean is too small, with them too large
    mean, short, long = (float(np.dot(unit_ids, counts) / counts.sum()) for counts in (sampled, complete, partial))
    assert 0.8 * mean < short <= mean <= long < 1.25 * mean


def test_published_spans_are_3_8_words_long():
    assert np.dot(np.arange(1, 11), truncated_geometric(0.2, 10)) == pytest.approx(3.8, abs=0.05)


def test_merging_units_matches_a_sequential_algorithm():
    rng = np.random.default_rng(3)
    units = np.full((30, 40), -1)
    next_unit = 0
    for row in range(30):
        position = int(rng.integers(0, 3))
        while position < 40:
            size = int(rng.integers(1, 4))
            if rng.random() < 0.9:
                units[row, position:position + size] = next_unit
                next_unit += 1
            position += size
    fractions = [0.5, 0.3, 0.2]
    uniform = rng.random((30, 40))
    result = merge_adjacent_units(units, fractions, type("Given", (), {"random": lambda self, size: uniform})())
    assert ((result >= 0) == (units >= 0)).all()
    edges = np.cumsum(fractions)[:-1]
    for row in range(30):
        sizes = iter(1 + np.searchsorted(edges, uniform[row], side="right"))
        remaining, previous, expected = 0, None, []  # units left in the current span; a gap counts as one
        for position in range(40):
            if units[row, position] < 0 or units[row, position] != previous:
                if remaining == 0:
                    remaining = int(next(sizes))
                    new = True
                else:
                    new = position == 0 or units[row, position - 1] < 0
                remaining -= 1
            else:
                new = False
            previous = units[row, position] if units[row, position] >= 0 else None
            expected.append(new)
        changes = [position == 0 or result[row, position] != result[row, position - 1] for position in range(40)]
        for position in range(40):
            if units[row, position] >= 0 and (position == 0 or units[row, position - 1] >= 0):
                assert changes[position] == expected[position], (row, position)


@pytest.mark.parametrize("unit", UNITS)
def test_a_row_with_its_own_rng_has_the_same_masks_in_any_batch(corpus, unit):
    draft = draft_of(whole(corpus), "segment_pair", 40, rows=10)
    alone = []
    for row in range(10):
        single = draft_of(whole(corpus), "segment_pair", 40, rows=10)
        single.spans = single.spans.select(np.array([row]))
        objective(unit, replace_whole_units=True).make_targets(single, PerRowRNG([[3, row]]))
        alone.append(single.input_ids[0])
    objective(unit, replace_whole_units=True).make_targets(draft, PerRowRNG([[3, row] for row in range(10)]))
    assert (draft.input_ids == np.stack(alone)).all()


@pytest.mark.parametrize("unit", ["word", "span", "phrase"])
def test_together_masks_or_replaces_all_tokens_of_a_unit_at_the_same_probabilities(corpus, unit):
    mask = corpus.tokenizer.special_id("mask")
    states: list[str] = []
    tokens = np.zeros(3)
    for seed in range(20):
        draft = draft_of(whole(corpus), "stream", 128, rows=100, seed=seed)
        masking = objective(unit, rate=0.3, replace_whole_units=True, mask=0.6, random=0.3)
        masking.make_targets(draft, np.random.default_rng(seed))
        selected = masked_positions(draft)
        masked, kept = selected & (draft.input_ids == mask), selected & (draft.input_ids == draft.original_ids)
        tokens += [masked.sum(), (selected & ~masked & ~kept).sum(), kept.sum()]
        for row in range(draft.rows):
            for start, stop in runs(draft.unit_ids[row]):
                within = selected[row, start:stop]
                if within.sum() > 2:
                    assert len(set(masked[row, start:stop][within].tolist())) == 1
                    states.append("masked" if masked[row, start] else "kept" if kept[row, start:stop][within].all()
                                  else "replaced")
    for state, fraction in (("masked", 0.6), ("replaced", 0.3), ("kept", 0.1)):
        spread = (fraction * (1 - fraction) / len(states)) ** 0.5
        assert abs(states.count(state) / len(states) - fraction) < 4 * spread + 0.01
    assert np.abs(tokens / tokens.sum() - [0.6, 0.3, 0.1]).max() < 0.03


def test_without_together_each_token_of_a_unit_is_treated_independently(corpus):
    draft = draft_of(whole(corpus), "stream", 128, rows=100)
    objective("word", rate=0.3, mask=0.5, random=0.0).make_targets(draft, np.random.default_rng(0))
    masked = masked_positions(draft) & (draft.input_ids == corpus.tokenizer.special_id("mask"))
    mixed = [len(set(masked[row, start:stop].tolist())) for row in range(100)
             for start, stop in runs(draft.word_ids[row]) if masked_positions(draft)[row, start] and stop - start > 1]
    assert mixed.count(2) > len(mixed) / 3


def test_broadcast_per_unit_uses_the_last_number_of_the_unit():
    units = np.array([[0, 0, -1, 1], [2, 2, 2, -1]])
    unit_ids = np.arange(8.0).reshape(2, 4)
    assert broadcast_per_unit(unit_ids, units).tolist() == [[1, 1, 2, 3], [6, 6, 6, 7]]


def test_only_phrases_and_entities_require_annotations():
    assert [sorted(objective(unit).requirements().annotations) for unit in ("token", "span", "phrase", "entity")] == [
        [], [], ["phrases"], ["entities"]]


def test_only_b_is_masked_with_scored_second(corpus):
    for unit in UNITS:
        draft = draft_of(whole(corpus), "sentence_pair", 60, rows=40)
        objective(unit, rate=0.5, scored="second").make_targets(draft, np.random.default_rng(0))
        rows, positions = np.nonzero(masked_positions(draft))
        assert len(rows) and (positions >= draft.segment_b_start()[rows]).all()


CHINESE = ["我们在图书馆研究古代手稿的家谱。", "他喜欢阅读历史书籍和旅行，也写文章。",
           "自然语言处理是一个重要的研究方向。"]


def test_unspaced_chinese_has_many_words_and_the_middle_separator_is_never_masked(tmp_path):
    """Two defects of other implementations: Chinese text as one word, and the separator as part of the word before."""
    train_tokenizer(iter(CHINESE), "wordpiece", 400, lowercase=True, cjk_spacing=True).save(tmp_path / "tokenizer")
    corpus = corpus_of(tmp_path, [CHINESE] * 6, tmp_path / "tokenizer")
    separator = corpus.tokenizer.special_id("separator")
    for unit in ("word", "span"):
        for seed in range(10):
            draft = draft_of(whole(corpus), "sentence_pair", 48, rows=9, seed=seed)
            middle = draft.segment_b_start() - 1
            paired = np.flatnonzero(draft.spans.part_lengths(1) > 0)
            objective(unit, rate=0.5, mask=1.0, random=0.0).make_targets(draft, np.random.default_rng(seed))
            assert (draft.input_ids[paired, middle[paired]] == separator).all()
            assert not masked_positions(draft)[paired, middle[paired]].any()
            sizes = np.bincount(draft.word_ids[draft.word_ids >= 0])
            assert sizes.max() <= 6 and len(sizes) > 9 * 6
    assert choose_units(np.zeros((1, 12), int), 0.15, np.random.default_rng(0)).all()  # as one word would be

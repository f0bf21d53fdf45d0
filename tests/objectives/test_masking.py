import numpy as np
import pytest
from literal.masking import chosen_places
from small_corpora import corpus_of, draft_of, pieced_corpus, whole

from stemma.corpus.corpus import Corpus
from stemma.objectives.masking import choose_tokens, choose_units, merge_adjacent_units, token_units
from stemma.text.chinese_words import CJK_RUN
from stemma.text.train_tokenizer import train_tokenizer

KINDS = ["segment_pair", "full_sentences"]


def choose_words(draft, rate, rng):
    return choose_units(draft.word_ids, rate, rng)


def ngrams(text, fractions, rng):
    return merge_adjacent_units(token_units(text), fractions, rng)


class FixedNumbers:
    """A random generator that returns given numbers."""

    def __init__(self, *unit_ids: np.ndarray):
        self.numbers = list(unit_ids)

    def random(self, size):
        result = self.numbers.pop(0)
        assert result.shape == tuple(size)
        return result


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


@pytest.mark.parametrize("choose", [choose_tokens, choose_words])
@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_padding_are_never_masked_and_every_row_has_a_target(corpus, choose, kind):
    for seed in range(5):
        draft = draft_of(whole(corpus), kind, 17, rows=64, seed=seed, short=0.3)
        for rate in (0.01, 0.15, 0.5, 0.99):
            selected = choose(draft, rate, np.random.default_rng(seed))
            assert selected.shape == (64, 17) and selected.dtype == bool
            assert not (selected & ~draft.is_text).any()
            assert selected.any(1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_masked_whole_or_not_at_all(corpus, kind):
    draft = draft_of(whole(corpus), kind, 31, rows=200)
    selected = choose_words(draft, 0.15, np.random.default_rng(0))
    units = draft.word_ids
    for unit in np.unique(units[units >= 0]):
        assert len(set(selected[units == unit].tolist())) == 1
    several = [unit for unit in np.unique(units[selected]) if (units == unit).sum() > 1]
    assert len(several) > 50  # words of several tokens are among the masked ones


@pytest.mark.parametrize("length", [11, 12, 30, 63])
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_tokens_are_masked_at_the_exact_rate(corpus, length, rate):
    draft = draft_of(whole(corpus), "doc_sentences", length, rows=400)
    counts = draft.is_text.sum(1)
    result = [choose_tokens(draft, rate, np.random.default_rng(seed)).sum() for seed in range(25)]
    spread = 0.5 * (len(counts) * len(result)) ** 0.5  # rounding adds at most half a token per row
    expected = np.maximum(counts * rate, 1)
    assert abs(sum(result) - expected.sum() * len(result)) < 4 * spread


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_words_are_masked_at_the_exact_rate_if_a_row_has_room_for_the_longest(corpus, rate):
    draft = draft_of(whole(corpus), "stream", 131, rows=200)
    longest = np.bincount(draft.word_ids[draft.is_text]).max()
    expected = draft.is_text.sum(1) * rate
    assert (expected >= longest).all()
    result = np.array([choose_words(draft, rate, np.random.default_rng(seed)).sum(1) for seed in range(50)])
    assert (np.abs(result - expected) < longest).all()  # every row is off by less than a word
    assert abs(result.mean() - expected.mean()) < 4 * result.std() / result.size**0.5


def test_all_positions_are_equally_likely(corpus):
    draft = draft_of(whole(corpus), "stream", 34, rows=1)
    counts = sum(choose_tokens(draft, 0.25, np.random.default_rng(seed))[0].astype(int) for seed in range(4000))
    text = draft.is_text[0]
    assert not counts[~text].any()
    assert (np.abs(counts[text] - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.6, 0.95])
def test_unit_selection_matches_a_sequential_algorithm(seed, rate):
    rng = np.random.default_rng(seed)
    rows, length = 9, 23
    units = np.full((rows, length), -1)
    unit = 0
    for row in range(rows - 1):  # the last row has no text
        position = 0
        while position < length:
            size = int(rng.integers(1, 6))
            if rng.random() < 0.8:
                units[row, position:position + size] = unit
                unit += 1
            position += size
    uniform = rng.random((rows, length + 1))
    expected = [chosen_places(units[row].tolist(), rate, uniform[row, :length].tolist(), float(uniform[row, length]))
                for row in range(rows)]
    assert choose_units(units, rate, FixedNumbers(uniform)).tolist() == expected


SHARES = [0.8, 0.1, 0.1]


def test_ngrams_are_contiguous_and_have_their_length_distribution(corpus):
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=400)
    units = ngrams(draft.is_text, SHARES, np.random.default_rng(0))
    assert ((units >= 0) == draft.is_text).all()
    sizes = np.bincount(units[draft.is_text])
    assert sizes.min() == 1 and sizes.max() == 3
    for row in range(draft.rows):  # contiguous, without special tokens inside
        edges = np.flatnonzero(np.diff(units[row], prepend=-2, append=-2))
        runs = [int(units[row][start]) for start in edges[:-1] if units[row][start] >= 0]
        assert len(runs) == len(set(runs))
    fractions = np.bincount(sizes)[1:] / len(sizes)
    assert (np.abs(fractions - SHARES) < 0.02).all()  # the last unit of a text may be shorter


@pytest.mark.parametrize("fractions", [SHARES, [1.0], [0.0, 0.0, 1.0], [0.5, 0.5]])
def test_ngrams_are_masked_whole_at_the_exact_rate_and_length_distribution(corpus, fractions):
    draft = draft_of(whole(corpus), "stream", 130, rows=150)
    result, sizes, all_sizes = [], np.zeros(len(fractions) + 1), np.zeros(len(fractions) + 1)
    for seed in range(30):
        units = ngrams(draft.is_text, fractions, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        selected = choose_units(ngrams(draft.is_text, fractions, rng), 0.15, rng)
        result.append(selected.sum(1))
        unit_ids = np.unique(units[selected])
        unit_sizes = np.bincount(units[draft.is_text])[unit_ids]
        assert unit_sizes.sum() == selected.sum()  # all tokens of every selected unit
        assert not (selected & ~draft.is_text).any()
        sizes += np.bincount(unit_sizes, minlength=len(fractions) + 1)
        all_sizes += np.bincount(np.bincount(units[draft.is_text]), minlength=len(fractions) + 1)
    masked, expected = np.array(result), draft.is_text.sum(1) * 0.15
    assert (np.abs(masked - expected) < len(fractions)).all()
    assert abs(masked.mean() - expected.mean()) < 4 * masked.std() / masked.size**0.5
    fraction = all_sizes / all_sizes.sum()  # of all units, including those cut by the end of a document
    assert (np.abs(sizes / sizes.sum() - fraction) < 0.01).all()
    assert (np.abs(fraction[1:] - fractions) < 0.05).all()


def test_rows_without_text_have_no_masked_positions():
    assert not choose_units(np.full((3, 5), -1), 0.15, np.random.default_rng(0)).any()


def test_chinese_words_are_masked_whole_as_jieba_splits_them(tmp_path):
    jieba = pytest.importorskip("jieba")
    sentences = ["自然语言处理是人工智能的一个重要方向。", "我们在图书馆研究古代手稿的家谱。",
                 "他喜欢阅读历史书籍和旅行。"]
    train_tokenizer(iter(sentences), "wordpiece", 400, lowercase=True, cjk_spacing=True).save(tmp_path / "tokenizer")
    corpus = corpus_of(tmp_path, [sentences] * 5, tmp_path / "tokenizer")
    draft = draft_of(whole(corpus), "segment_pair", 64, rows=20)
    words: set[str] = set()
    for row in range(20):
        selected = choose_words(draft, 0.3, np.random.default_rng(row))
        for unit in np.unique(draft.word_ids[row][draft.is_text[row]]):
            positions = draft.word_ids[row] == unit
            assert len(set(selected[row][positions].tolist())) == 1
            words.add("".join(corpus.tokenizer.ids_to_tokens(draft.input_ids[row][positions])))
    expected = {word for sentence in sentences for run in CJK_RUN.findall(sentence) for word in jieba.cut(run)}
    assert expected <= words | {"。"}
    assert any(len(word) > 1 for word in expected)

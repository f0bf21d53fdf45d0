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


def ngrams(text, shares, rng):
    return merge_adjacent_units(token_units(text), shares, rng)


class Given:
    """Randomness that was drawn before."""

    def __init__(self, *numbers: np.ndarray):
        self.numbers = list(numbers)

    def random(self, size):
        result = self.numbers.pop(0)
        assert result.shape == tuple(size)
        return result


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    return pieced_corpus(tmp_path_factory.mktemp("pieced"))


@pytest.mark.parametrize("choose", [choose_tokens, choose_words])
@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_padding_are_never_chosen_and_every_row_has_a_target(corpus, choose, kind):
    for seed in range(5):
        draft = draft_of(whole(corpus), kind, 17, rows=64, seed=seed, short=0.3)
        for rate in (0.01, 0.15, 0.5, 0.99):
            chosen = choose(draft, rate, np.random.default_rng(seed))
            assert chosen.shape == (64, 17) and chosen.dtype == bool
            assert not (chosen & ~draft.is_text).any()
            assert chosen.any(1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_is_masked_whole_or_not_at_all(corpus, kind):
    draft = draft_of(whole(corpus), kind, 31, rows=200)
    chosen = choose_words(draft, 0.15, np.random.default_rng(0))
    units = draft.word_ids
    for unit in np.unique(units[units >= 0]):
        assert len(set(chosen[units == unit].tolist())) == 1
    several = [unit for unit in np.unique(units[chosen]) if (units == unit).sum() > 1]
    assert len(several) > 50  # words of several pieces are among those hidden


@pytest.mark.parametrize("length", [11, 12, 30, 63])
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_tokens_are_masked_at_the_exact_rate(corpus, length, rate):
    draft = draft_of(whole(corpus), "doc_sentences", length, rows=400)
    counts = draft.is_text.sum(1)
    result = [choose_tokens(draft, rate, np.random.default_rng(seed)).sum() for seed in range(25)]
    spread = 0.5 * (len(counts) * len(result)) ** 0.5  # a row is rounded up or down: at most half a token either way
    expected = np.maximum(counts * rate, 1)
    assert abs(sum(result) - expected.sum() * len(result)) < 4 * spread


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_words_are_masked_at_the_exact_rate_if_a_row_has_room_for_the_longest(corpus, rate):
    draft = draft_of(whole(corpus), "stream", 131, rows=200)
    longest = np.bincount(draft.word_ids[draft.is_text]).max()
    expected = draft.is_text.sum(1) * rate
    assert (expected >= longest).all()
    result = np.array([choose_words(draft, rate, np.random.default_rng(seed)).sum(1) for seed in range(50)])
    assert (np.abs(result - expected) < longest).all()  # row by row never off by more than a word
    assert abs(result.mean() - expected.mean()) < 4 * result.std() / result.size**0.5


def test_all_positions_are_equally_likely(corpus):
    draft = draft_of(whole(corpus), "stream", 34, rows=1)
    times = sum(choose_tokens(draft, 0.25, np.random.default_rng(seed))[0].astype(int) for seed in range(4000))
    text = draft.is_text[0]
    assert not times[~text].any()
    assert (np.abs(times[text] - 1000) < 5 * (4000 * 0.25 * 0.75) ** 0.5).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rate", [0.05, 0.15, 0.6, 0.95])
def test_units_are_chosen_as_one_by_one(seed, rate):
    rng = np.random.default_rng(seed)
    rows, length = 9, 23
    units = np.full((rows, length), -1)
    number = 0
    for row in range(rows - 1):  # the last row has no text
        place = 0
        while place < length:
            size = int(rng.integers(1, 6))
            if rng.random() < 0.8:
                units[row, place:place + size] = number
                number += 1
            place += size
    uniform = rng.random((rows, length + 1))
    expected = [chosen_places(units[row].tolist(), rate, uniform[row, :length].tolist(), float(uniform[row, length]))
                for row in range(rows)]
    assert choose_units(units, rate, Given(uniform)).tolist() == expected


SHARES = [0.8, 0.1, 0.1]


def test_ngrams_are_runs_of_text_with_their_length_distribution(corpus):
    draft = draft_of(whole(corpus), "segment_pair", 60, rows=400)
    units = ngrams(draft.is_text, SHARES, np.random.default_rng(0))
    assert ((units >= 0) == draft.is_text).all()
    sizes = np.bincount(units[draft.is_text])
    assert sizes.min() == 1 and sizes.max() == 3
    for row in range(draft.rows):  # each stands in one piece: no special token inside
        edges = np.flatnonzero(np.diff(units[row], prepend=-2, append=-2))
        runs = [int(units[row][start]) for start in edges[:-1] if units[row][start] >= 0]
        assert len(runs) == len(set(runs))
    shares = np.bincount(sizes)[1:] / len(sizes)
    assert (np.abs(shares - SHARES) < 0.02).all()  # a text's last unit may be cut


@pytest.mark.parametrize("shares", [SHARES, [1.0], [0.0, 0.0, 1.0], [0.5, 0.5]])
def test_ngrams_are_masked_whole_at_the_exact_rate_and_length_distribution(corpus, shares):
    draft = draft_of(whole(corpus), "stream", 130, rows=150)
    result, sizes, among = [], np.zeros(len(shares) + 1), np.zeros(len(shares) + 1)
    for seed in range(30):
        units = ngrams(draft.is_text, shares, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        chosen = choose_units(ngrams(draft.is_text, shares, rng), 0.15, rng)
        result.append(chosen.sum(1))
        numbers = np.unique(units[chosen])
        whole_sizes = np.bincount(units[draft.is_text])[numbers]
        assert whole_sizes.sum() == chosen.sum()  # every unit whole
        assert not (chosen & ~draft.is_text).any()
        sizes += np.bincount(whole_sizes, minlength=len(shares) + 1)
        among += np.bincount(np.bincount(units[draft.is_text]), minlength=len(shares) + 1)
    hidden, expected = np.array(result), draft.is_text.sum(1) * 0.15
    assert (np.abs(hidden - expected) < len(shares)).all()
    assert abs(hidden.mean() - expected.mean()) < 4 * hidden.std() / hidden.size**0.5
    share = among / among.sum()  # of all units, those cut by a document's end among them; none is preferred
    assert (np.abs(sizes / sizes.sum() - share) < 0.01).all()
    assert (np.abs(share[1:] - shares) < 0.05).all()


def test_nothing_is_chosen_where_there_is_no_text():
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
        chosen = choose_words(draft, 0.3, np.random.default_rng(row))
        for unit in np.unique(draft.word_ids[row][draft.is_text[row]]):
            places = draft.word_ids[row] == unit
            assert len(set(chosen[row][places].tolist())) == 1
            words.add("".join(corpus.tokenizer.ids_to_tokens(draft.input_ids[row][places])))
    expected = {word for sentence in sentences for run in CJK_RUN.findall(sentence) for word in jieba.cut(run)}
    assert expected <= words | {"。"}
    assert any(len(word) > 1 for word in expected)

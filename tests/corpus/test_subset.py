import numpy as np
import pytest
from small_corpora import corpus_of

from stemma.corpus.corpus import Corpus
from stemma.corpus.subset import CorpusSubset, train_validation_split

SENTENCE = "the old clerk reads a letter"  # six tokens or more


def spans(view: CorpusSubset) -> list[tuple[int, int]]:
    return [(int(start), int(stop)) for start, stop in view.document_ranges]


def check(corpus: Corpus, training: CorpusSubset, validation: CorpusSubset) -> None:
    """Assert that the two are disjoint and cover the whole corpus, and that training is not empty."""
    tokens = np.zeros(corpus.num_tokens, dtype=int)
    for view in (training, validation):
        for start, stop in spans(view):
            assert stop > start
            tokens[start:stop] += 1
    assert (tokens == 1).all()
    assert training.num_tokens > 0
    assert training.num_tokens + validation.num_tokens == corpus.num_tokens


@pytest.fixture(scope="module")
def make(tmp_path_factory, tokenizer_folder):
    def build(sentences: list[int]) -> Corpus:
        documents = [[SENTENCE] * count for count in sentences]
        return corpus_of(tmp_path_factory.mktemp("view"), documents, tokenizer_folder)

    return build


@pytest.mark.parametrize("fraction", [0.01, 0.02, 0.1, 0.5])
def test_whole_documents_of_about_the_requested_fraction_are_held_out(corpus_folder, fraction):
    corpus = Corpus.open(corpus_folder)
    longest = np.diff(corpus.document_starts).max() / corpus.num_tokens
    for seed in range(20):
        training, validation = train_validation_split(corpus, fraction, seed)
        check(corpus, training, validation)
        assert fraction / 2 <= validation.num_tokens / corpus.num_tokens <= fraction + longest
        assert {*spans(training), *spans(validation)} == set(
            zip(corpus.document_starts[:-1].tolist(), corpus.document_starts[1:].tolist(), strict=True))


def test_the_split_depends_only_on_the_seed(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    assert spans(train_validation_split(corpus, 0.1)[1]) == spans(train_validation_split(corpus, 0.1)[1])
    assert len({tuple(spans(train_validation_split(corpus, 0.1, seed)[1])) for seed in range(10)}) > 5


def test_a_fraction_of_0_holds_out_nothing(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    training, validation = train_validation_split(corpus, 0.0)
    assert training.num_tokens == corpus.num_tokens and len(validation.document_ranges) == 0


@pytest.mark.parametrize("fraction", [0.001, 0.02, 0.3, 0.99])
@pytest.mark.parametrize("sentences", [[40], [40, 1], [1, 40], [20, 20], [30, 1, 1, 30], [1, 1, 1, 100], [15] * 6])
def test_with_few_long_documents_the_end_of_one_is_held_out(make, sentences, fraction):
    corpus = make(sentences)
    per_sentence = corpus.num_tokens // sum(sentences)
    for seed in range(5):
        training, validation = train_validation_split(corpus, fraction, seed)
        check(corpus, training, validation)
        expected = max(fraction * corpus.num_tokens, per_sentence)
        assert expected / 2 - per_sentence <= validation.num_tokens or fraction > 0.5
        assert validation.num_tokens <= expected + per_sentence * max(1, corpus.num_tokens // per_sentence // 10)
        sentence_starts = set(corpus.sentence_starts.tolist())
        assert all(start in sentence_starts for start, _ in spans(validation))


def test_a_single_sentence_stays_in_training(make):
    corpus = make([1])
    training, validation = train_validation_split(corpus, 0.5)
    check(corpus, training, validation)
    assert validation.num_tokens == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_one_of_a_few_single_sentence_documents_is_held_out(make, count):
    corpus = make([1] * count)
    training, validation = train_validation_split(corpus, 0.02)
    check(corpus, training, validation)
    assert len(validation.document_ranges) == 1


def test_sentence_bounds_are_the_sentence_starts_and_the_document_end(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    training, _ = train_validation_split(corpus, 0.1)
    sentences = corpus.sentence_starts.tolist()
    for index, (start, stop) in enumerate(spans(training)):
        assert training.sentence_bounds(index).tolist() == [s for s in sentences if start <= s < stop] + [stop]

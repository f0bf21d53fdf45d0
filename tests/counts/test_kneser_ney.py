"""Modified Kneser-Ney against the literal transcription of the paper, and against a published example."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from closeness import assert_close
from literal.kneser_ney import START, KneserNey
from ngram_models import count, ngram_tables, random_documents, stream_of

from stemma.counts import kneser_ney
from stemma.counts.kneser_ney import Discounts
from stemma.counts.packed_ngrams import NgramPacker
from stemma.network.ngram_tables import NgramTable

END = 0


def table_of(tables) -> NgramTable:
    table = NgramTable(tables.vocab_size, tables.order)
    table.assign(tables)
    return table


def log_probabilities(table: NgramTable, documents: list[list[int]]) -> list[float]:
    """Of every token and of the end, document by document."""
    result = []
    for document in documents:
        tokens = [END, *document, END]
        width = max(1, table.order - 1)
        contexts = [[tokens[i - back] if i >= back else -1 for back in range(1, width + 1)]
                    for i in range(1, len(tokens))]
        values = table.score(torch.tensor(contexts).reshape(-1, width)[:, :table.order - 1], torch.tensor(tokens[1:]))
        result += values.tolist()
    return result


def literal_log_probabilities(model: KneserNey, documents: list[list[int]]) -> list[float]:
    result = []
    for document in documents:
        tokens = [START, *document, END]
        result += [math.log(model.probability(tokens[i], tokens[:i])) for i in range(1, len(tokens))]
    return result


@pytest.mark.parametrize("order", range(1, 7))
@pytest.mark.parametrize(("seed", "vocab_size", "number", "longest"), [
    (0, 2, 3, 4), (1, 4, 1, 200), (2, 7, 60, 12), (3, 30, 25, 40), (4, 70_000, 30, 40)])
def test_probabilities_equal_the_literal_transcription(order, seed, vocab_size, number, longest):
    """With 70,000 tokens an n-gram of four or more takes two words."""
    used = min(vocab_size, 30)
    documents = random_documents(seed, number, used, longest)
    tables, discounts = ngram_tables(documents, order, vocab_size, END)
    literal = KneserNey([[*document, END] for document in documents], order, range(vocab_size))
    for length, discount in enumerate(discounts, 1):
        assert_close(discount.values, literal.discounts[length], tolerance=1e-12)
    unseen = random_documents(seed + 100, 10, used, 15, skewed=False)
    table = table_of(tables)
    for texts in (documents[:20], unseen):
        assert_close(log_probabilities(table, texts), literal_log_probabilities(literal, texts), tolerance=1e-5)


@pytest.mark.parametrize("order", range(1, 7))
def test_probabilities_of_the_whole_vocabulary_sum_to_one(order):
    documents = random_documents(5, 40, 12, 20)
    table = table_of(ngram_tables(documents, order, 12, END)[0])
    rng = np.random.default_rng(6)
    seen = [tokens[i:i + order - 1][::-1] for tokens in ([END, *d, END] for d in documents)
            for i in range(max(0, len(tokens) - order + 1))][:50]
    begins = [[END] + [-1] * max(0, order - 2)][:order - 1]
    rows = [context for context in [*seen, *begins, *rng.integers(0, 12, (50, order - 1)).tolist()]
            if len(context) == order - 1]
    contexts = torch.tensor(rows, dtype=torch.long).reshape(len(rows), order - 1)
    distributions = table.distributions(contexts)
    assert_close(distributions.exp().sum(1), torch.ones(len(contexts)), tolerance=1e-5)
    tokens = torch.from_numpy(rng.integers(0, 12, len(contexts)))
    assert_close(distributions.gather(1, tokens[:, None])[:, 0], table.score(contexts, tokens), tolerance=1e-6)


def test_a_published_example(monkeypatch):
    """A bigram model with its numbers, computed by KenLM's lmplz: https://github.com/kpu/kenlm/issues/405.

    That page also explains why lmplz takes the discounts of the unigrams from n1 = 4 and n2 = 3: it files the last
    unigram, which follows one word and occurs twice, under 2. By the paper they are 5 and 2. The example is followed
    with lmplz's discounts of the unigrams; everything else is computed."""
    lines = ["I went to", "I go to", "You went to", "You go to", "Joe went to", "Joe go to", "Anna went ski",
             "Anna went ski"]
    words = ["</s>", "<unk>", *dict.fromkeys(" ".join(lines).split())]
    index = {word: number for number, word in enumerate(words)}
    assert len(words) == 10
    computed, estimate_discounts = [], kneser_ney.estimate_discounts

    def discounts_of_lmplz(counts):
        computed.append(estimate_discounts(counts))
        return Discounts((0.4, 1.6, 1.4), estimated=True) if len(computed) == 1 else computed[-1]

    monkeypatch.setattr(kneser_ney, "estimate_discounts", discounts_of_lmplz)
    tables, _ = ngram_tables([[index[word] for word in line.split()] for line in lines], 2, 10, END)
    y = 5 / (5 + 2 * 2)  # n1 = 5, n2 = 2, n3 = 1 (go), n4 = 1 (went)
    assert computed[0].values == pytest.approx((1 - 2 * y * 2 / 5, 2 - 3 * y / 2, 3 - 4 * y))
    table = table_of(tables)

    unigrams = {"<unk>": -1.30103, "</s>": -1.1249387, "I": -1.0579919, "went": -0.6726411, "to": -1.1249387,
                "go": -0.82390875, "You": -1.0579919, "Joe": -1.0579919, "Anna": -1.0579919, "ski": -1.0579919}
    backoffs = {"<s>": -0.059768215, "I": -0.5228788, "went": -0.022929981, "to": -0.30103, "You": -0.5228788,
                "Joe": -0.5228788, "Anna": -0.059768215, "ski": -0.059768215}
    bigrams = {"to </s>": -0.26962152, "ski </s>": -0.7123581, "<s> I": -0.9649993, "I went": -0.383262,
               "You went": -0.383262, "Joe went": -0.383262, "Anna went": -0.50341624}

    def number(word: str) -> int:
        return END if word == "<s>" else index[word]

    for word, value in unigrams.items():
        assert tables.log_probs[0][index[word]] / math.log(10) == pytest.approx(value, abs=1e-5), word
    for word, value in backoffs.items():
        assert tables.backoffs[0][number(word)] / math.log(10) == pytest.approx(value, abs=1e-5), word
    for bigram, value in bigrams.items():
        first, second = map(number, bigram.split())
        result = table.score(torch.tensor([[first]]), torch.tensor([second]))
        assert float(result) / math.log(10) == pytest.approx(value, abs=1e-5), bigram


@pytest.mark.parametrize("order", range(1, 7))
def test_the_end_token_in_a_text_ends_a_document(order):
    whole = [[3, END, 2, 4, 3, END, END, 2], [END], [4, 3, END], [END, 2, 3], *random_documents(8, 20, 6, 12)]
    split = [part for document in whole for part in split_at_end(document)]
    packer = NgramPacker(order, 6)
    for one, other in zip(count(whole, packer, END), count(split, packer, END), strict=True):
        assert np.array_equal(one, other)
    stream = stream_of(whole, END)
    for size in (1, 2, 3, 5):  # the size of the parts does not matter
        parts = [stream.ngrams(first, min(first + size, stream.num_positions), packer)[0]
                 for first in range(0, stream.num_positions, size)]
        assert np.array_equal(np.concatenate(parts), stream.ngrams(0, stream.num_positions, packer)[0])


def split_at_end(document: list[int]) -> list[list[int]]:
    ends = [index for index, token in enumerate(document) if token == END]
    return [document[first:last] for first, last in zip([0, *(end + 1 for end in ends)], [*ends, None], strict=True)]


def test_counts_without_discounts_get_the_usual_ones():
    """A text in which every n-gram occurs twice has no counts of 1."""
    _, discounts = ngram_tables([[1, 2, 3], [1, 2, 3]], 2, 5, END)
    assert discounts[1] == Discounts((0.5, 1.0, 1.5), estimated=False)


def test_a_discount_of_0_is_replaced_by_the_usual_ones():
    """n1 = 1, n2 = 1 and n3 = 2 give D2 = 0: a context whose n-grams all occur twice would leave nothing to others."""
    assert kneser_ney.estimate_discounts(np.array([1, 2, 3, 3])) == Discounts((0.5, 1.0, 1.5), estimated=False)
    documents = [[1], [2], [2], *[[3]] * 3, *[[4]] * 3]  # of bigrams after the start: counts 1, 2, 3 and 3
    table = table_of(ngram_tables(documents, 2, 6, END)[0])
    assert_close(table.distributions(torch.arange(6)[:, None]).exp().sum(1), torch.ones(6), tolerance=1e-5)


def test_more_context_lowers_the_loss_of_repetitive_text():
    documents = [[1, 2, 3, 1, 2, 4] * 3 + [5] for _ in range(20)] + random_documents(7, 30, 6, 20)
    losses = [-np.mean(log_probabilities(table_of(ngram_tables(documents, order, 6, END)[0]), documents[:20]))
              for order in range(1, 5)]
    assert all(second < first for first, second in pairwise(losses))

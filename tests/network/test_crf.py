"""The CRF against enumeration of all tag sequences."""

from __future__ import annotations

import pytest
import torch
from conftest import SEED
from literal import crf as literal

from stemma.network.crf import best_sequences, log_normalizer, marginals, sequence_score

LENGTHS = (4, 1, 3, 5)
TAGS = 3


@pytest.fixture
def problem():
    """Emission scores, mask, transition scores and tags of sentences of unequal length."""
    generator = torch.Generator().manual_seed(SEED)
    emissions = torch.randn(len(LENGTHS), max(LENGTHS), TAGS, generator=generator, dtype=torch.float64)
    transitions = torch.randn(TAGS + 2, TAGS, generator=generator, dtype=torch.float64)
    tags = torch.randint(TAGS, emissions.shape[:2], generator=generator)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return emissions.requires_grad_(), mask, transitions.requires_grad_(), tags


def sentences(emissions, transitions):
    """The arguments of the reference, sentence by sentence."""
    return [(row[:length], transitions[:-2], transitions[-2], transitions[-1])
            for row, length in zip(emissions, LENGTHS, strict=True)]


def test_loss_and_gradients_equal_enumeration(problem):
    emissions, mask, transitions, tags = problem
    losses = log_normalizer(emissions, mask, transitions) - sequence_score(emissions, mask, transitions, tags)
    expected = torch.stack([literal.loss(*arguments, tuple(row[:length].tolist())) for arguments, row, length in
                            zip(sentences(emissions, transitions), tags, LENGTHS, strict=True)])
    torch.testing.assert_close(losses, expected)
    weights = torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=torch.float64)
    gradients = [torch.autograd.grad((values * weights).sum(), (emissions, transitions), retain_graph=True)
                 for values in (losses, expected)]
    torch.testing.assert_close(*gradients)
    assert gradients[0][0][~mask].abs().max() == 0  # padding changes nothing


def test_best_sequences_equal_enumeration(problem):
    emissions, mask, transitions, _ = problem
    best = best_sequences(emissions, mask, transitions)
    assert [tuple(row[:length].tolist()) for row, length in zip(best, LENGTHS, strict=True)] \
        == [literal.best(*arguments) for arguments in sentences(emissions, transitions)]


def test_marginals_equal_enumeration(problem):
    emissions, mask, transitions, _ = problem
    with torch.inference_mode():
        probabilities = marginals(emissions.detach(), mask, transitions.detach())
    for row, length, arguments in zip(probabilities, LENGTHS, sentences(emissions, transitions), strict=True):
        expected = torch.tensor(literal.tag_probabilities(*arguments), dtype=torch.float64)
        torch.testing.assert_close(row[:length], expected)
        assert row[length:].abs().max() == 0 if length < max(LENGTHS) else True


def test_each_row_may_have_its_own_transitions(problem):
    """As in an ensemble."""
    emissions, mask, transitions, _ = problem
    stacked = torch.stack([transitions * scale for scale in (1.0, -1.0, 0.5, 2.0)])
    totals, best = log_normalizer(emissions, mask, stacked), best_sequences(emissions, mask, stacked)
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        torch.testing.assert_close(totals[one], log_normalizer(emissions[one], mask[one], stacked[row]))
        assert torch.equal(best[one], best_sequences(emissions[one], mask[one], stacked[row]))

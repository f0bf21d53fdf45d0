"""The sampled softmax equals its literal transcription, and its sample has the stated distribution."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from closeness import assert_close

from stemma.network import sampled_softmax
from stemma.network.sampled_softmax import TokenSample, log_expected_draws, sample_tokens, sampled_cross_entropy

sys.path.append(str(Path(__file__).parent.parent))
from literal import elmo as literal  # noqa: E402


@pytest.mark.parametrize(("count", "vocabulary"), [(1, 2), (5, 40), (30, 40), (200, 1000)])
def test_the_sample_equals_literal_draws(monkeypatch, count, vocabulary):
    generator, drawn, rand = torch.Generator().manual_seed(count), [], torch.rand
    monkeypatch.setattr(sampled_softmax.torch, "rand", lambda size, **options: drawn.append(
        rand(size, generator=generator, dtype=torch.float64)) or drawn[-1])
    sample = sample_tokens(count, vocabulary)
    ids, draws = literal.draw_sample(torch.cat(drawn).tolist(), count, vocabulary)
    assert (sample.ids.tolist(), sample.draws) == (ids, draws)


def test_the_correction_is_the_probability_that_a_token_is_drawn():
    """Of 10 tokens, with a fixed number of draws."""
    torch.manual_seed(0)
    vocabulary, draws, repeats = 10, 6, 40_000
    probabilities = torch.tensor([torch.log(torch.tensor((token + 2) / (token + 1))) for token in range(vocabulary)])
    samples = torch.multinomial(probabilities, draws * repeats, replacement=True).view(repeats, draws)
    shares = torch.stack([(samples == token).any(1).float().mean() for token in range(vocabulary)])
    assert_close(log_expected_draws(torch.arange(vocabulary), draws, vocabulary).exp(), shares, 0.02)


def test_losses_and_gradients_equal_the_literal_formula():
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (torch.randn(shape, generator=generator, requires_grad=True)
                            for shape in ((6, 4), (9, 4), (9,)))
    labels, sample = torch.tensor([0, 3, 5, 8, 3, 1]), TokenSample(torch.tensor([5, 0, 2, 1]), 7)  # 0, 5, 1: labels
    losses = sampled_cross_entropy(hidden, weight, bias, labels, sample)
    expected = torch.stack([literal.sampled_cross_entropy(hidden[row].double(), weight.double(), bias.double(), label,
                                                          sample.ids.tolist(), sample.draws)
                            for row, label in enumerate(labels.tolist())])
    assert_close(losses.double(), expected)
    factors = torch.randn(6, generator=generator)
    ours, theirs = (torch.autograd.grad((values * factors).sum(), (hidden, weight, bias)) for values in
                    (losses, expected))
    assert_close(ours, theirs)
    assert not ours[1][[4, 6, 7]].any() and ours[1][[0, 2, 3]].any(1).all()  # neither labels nor in the sample

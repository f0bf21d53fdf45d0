"""The SAN head (stochastic answer network) matches the paper's formulas, padding is ignored, and steps are dropped."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from closeness import assert_close
from literal import san

from stemma.network.san_head import SanHead, StochasticAnswerHead

WIDTH, CLASSES, STEPS = 6, 3, 4
PARTS = [(1, 3, 5, 2), (1, 1, 3, 4)]  # of rows of 9 positions: start and length of both texts


def build_head(**changes: float) -> StochasticAnswerHead:
    torch.manual_seed(3)
    head = StochasticAnswerHead(WIDTH, SanHead(CLASSES, STEPS, **{"dropout": 0.0, "forgets": 0.0, **changes}))
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return head


def hidden() -> torch.Tensor:
    return torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(1))


def literal_predictions(head: StochasticAnswerHead) -> list[list[san.Vector]]:
    """The predictions of every step, for both rows."""
    weights = {name: weight.tolist() for name, weight in head.named_parameters()}
    rows = hidden().tolist()
    return [san.guesses(row[a:a + n], row[b:b + m], weights, STEPS)
            for row, (a, n, b, m) in zip(rows, PARTS, strict=True)]


def test_the_output_matches_the_papers_formulas():
    head = build_head(forgets=0.5).eval()
    result = head(hidden(), torch.tensor(PARTS))
    expected = torch.tensor([san.mean(predictions, range(STEPS)) for predictions in literal_predictions(head)])
    torch.testing.assert_close(result.exp(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.exp().sum(1), torch.ones(2))


def test_only_the_two_texts_affect_the_output():
    head = build_head().eval()
    x, parts = hidden(), torch.tensor(PARTS)
    changed, longer = x.clone(), torch.cat([x, torch.full((2, 3, WIDTH), 50.0)], 1)
    changed[0, [0, 4, 7, 8]] = 99.0
    changed[1, [0, 2, 7, 8]] = -99.0
    assert_close(head(changed, parts), head(x, parts))
    torch.testing.assert_close(head(longer, parts), head(x, parts))
    for position in (1, 3, 5, 6):  # every token of both texts affects it
        other = x.clone()
        other[0, position] += 1.0
        assert not torch.allclose(head(other, parts)[0], head(x, parts)[0])


def test_the_order_of_the_two_texts_matters():
    head, x = build_head().eval(), hidden()
    swapped = torch.tensor([(b, m, a, n) for a, n, b, m in PARTS])
    assert not torch.allclose(head(x, torch.tensor(PARTS)), head(x, swapped), atol=1e-3)


def test_in_training_some_steps_are_dropped_but_never_all():
    head = build_head(forgets=0.6).train()
    predictions = literal_predictions(head)[0]
    means = {steps: torch.tensor(san.mean(predictions, steps)) for size in range(1, STEPS + 1)
             for steps in combinations(range(STEPS), size)}
    counts = dict.fromkeys(means, 0)
    torch.manual_seed(0)
    x = hidden()[:1].expand(2000, -1, -1)
    for probabilities in head(x, torch.tensor(PARTS[:1]).expand(2000, -1)).exp().detach():
        closest = min(means, key=lambda steps: float((means[steps] - probabilities).abs().max()))
        assert torch.allclose(means[closest], probabilities, atol=1e-5)
        counts[closest] += 1
    # one step is always kept, the others with probability 0.4, which gives the distribution of sizes
    for size in range(1, STEPS + 1):
        fraction = sum(count for steps, count in counts.items() if len(steps) == size) / 2000
        others = STEPS - 1
        assert abs(fraction - math.comb(others, size - 1) * 0.4**(size - 1) * 0.6**(others - size + 1)) < 0.04
    for step in range(STEPS):
        assert sum(count for steps, count in counts.items() if step in steps) / 2000 == pytest.approx(0.55, abs=0.04)


def test_gradients_reach_every_parameter_and_both_texts():
    head, x = build_head(forgets=0.3, dropout=0.1).train(), hidden().requires_grad_()
    torch.manual_seed(1)
    head(x, torch.tensor(PARTS))[:, 0].sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())
    has_gradient = x.grad.abs().sum(-1) > 0
    assert has_gradient[0].tolist() == [position in (1, 2, 3, 5, 6) for position in range(9)]


def test_the_head_computes_in_fp32_under_bf16_autocast():
    head, parts = build_head().eval(), torch.tensor(PARTS)
    bf16_hidden = hidden().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result = head(bf16_hidden, parts)
    assert_close(result, head(bf16_hidden.float(), parts))


def test_a_single_step_is_never_dropped():
    torch.manual_seed(0)
    head = StochasticAnswerHead(WIDTH, SanHead(CLASSES, 1, 0.0, 0.9)).train()  # dropout of steps is 0.9
    x, parts = hidden(), torch.tensor(PARTS)
    assert_close(head(x, parts), head(x, parts))

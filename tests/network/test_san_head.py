"""The SAN head equals the paper's formulas, reads nothing but the two texts, and forgets guesses as it should."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from closeness import assert_close
from literal import san

from stemma.network.san_head import SanHead, StochasticAnswerHead

WIDTH, CLASSES, STEPS = 6, 3, 4
PARTS = [(1, 3, 5, 2), (1, 1, 3, 4)]  # of rows of 9 places: first place and number of places of either text


def reader(**changes: float) -> StochasticAnswerHead:
    torch.manual_seed(3)
    made = StochasticAnswerHead(WIDTH, SanHead(CLASSES, STEPS, **{"dropout": 0.0, "forgets": 0.0, **changes}))
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.7)
    return made


def hidden() -> torch.Tensor:
    return torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(1))


def literally(head: StochasticAnswerHead) -> list[list[san.Vector]]:
    """The guesses of every step, for both rows."""
    weights = {name: weight.tolist() for name, weight in head.named_parameters()}
    rows = hidden().tolist()
    return [san.guesses(row[a:a + n], row[b:b + m], weights, STEPS)
            for row, (a, n, b, m) in zip(rows, PARTS, strict=True)]


def test_the_output_is_that_of_the_formulas():
    head = reader(forgets=0.5).eval()
    result = head(hidden(), torch.tensor(PARTS))
    expected = torch.tensor([san.mean(made, range(STEPS)) for made in literally(head)])
    torch.testing.assert_close(result.exp(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(result.exp().sum(1), torch.ones(2))


def test_only_the_two_texts_affect_the_output():
    head = reader().eval()
    x, parts = hidden(), torch.tensor(PARTS)
    changed, longer = x.clone(), torch.cat([x, torch.full((2, 3, WIDTH), 50.0)], 1)
    changed[0, [0, 4, 7, 8]] = 99.0
    changed[1, [0, 2, 7, 8]] = -99.0
    assert_close(head(changed, parts), head(x, parts))
    torch.testing.assert_close(head(longer, parts), head(x, parts))
    for place in (1, 3, 5, 6):  # and all of them are
        other = x.clone()
        other[0, place] += 1.0
        assert not torch.allclose(head(other, parts)[0], head(x, parts)[0])


def test_which_text_is_which_matters():
    head, x = reader().eval(), hidden()
    turned = torch.tensor([(b, m, a, n) for a, n, b, m in PARTS])
    assert not torch.allclose(head(x, torch.tensor(PARTS)), head(x, turned), atol=1e-3)


def test_in_training_some_steps_are_dropped_but_never_all():
    head = reader(forgets=0.6).train()
    made = literally(head)[0]
    means = {kept: torch.tensor(san.mean(made, kept)) for size in range(1, STEPS + 1)
             for kept in combinations(range(STEPS), size)}
    counts = dict.fromkeys(means, 0)
    torch.manual_seed(0)
    x = hidden()[:1].expand(2000, -1, -1)
    for chances in head(x, torch.tensor(PARTS[:1]).expand(2000, -1)).exp().detach():
        near = min(means, key=lambda kept: float((means[kept] - chances).abs().max()))
        assert torch.allclose(means[near], chances, atol=1e-5)
        counts[near] += 1
    # one step is always kept, the others with 0.4: of size n there are as many as that says
    for size in range(1, STEPS + 1):
        share = sum(count for kept, count in counts.items() if len(kept) == size) / 2000
        others = STEPS - 1
        assert abs(share - math.comb(others, size - 1) * 0.4**(size - 1) * 0.6**(others - size + 1)) < 0.04
    for step in range(STEPS):
        assert sum(count for kept, count in counts.items() if step in kept) / 2000 == pytest.approx(0.55, abs=0.04)


def test_gradients_reach_every_weight_and_both_texts():
    head, x = reader(forgets=0.3, dropout=0.1).train(), hidden().requires_grad_()
    torch.manual_seed(1)
    head(x, torch.tensor(PARTS))[:, 0].sum().backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in head.parameters())
    read = x.grad.abs().sum(-1) > 0
    assert read[0].tolist() == [place in (1, 2, 3, 5, 6) for place in range(9)]


def test_it_is_exact_also_where_the_network_computes_roughly():
    head, parts = reader().eval(), torch.tensor(PARTS)
    rough = hidden().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result = head(rough, parts)
    assert_close(result, head(rough.float(), parts))


def test_one_step_is_a_plain_classifier():
    torch.manual_seed(0)
    head = StochasticAnswerHead(WIDTH, SanHead(CLASSES, 1, 0.0, 0.9)).train()  # a single guess is never forgotten
    x, parts = hidden(), torch.tensor(PARTS)
    assert_close(head(x, parts), head(x, parts))

"""Sampling: each filter against its formula, and sample frequencies against the probabilities."""

from __future__ import annotations

import pytest
import torch

from stemma.errors import UserError
from stemma.generation import sampling
from stemma.generation.options import NUCLEUS, GenerationOptions
from stemma.generation.sampling import (
    apply_repetition_penalty,
    filter_top_k_top_p,
    mask_tokens,
    sample,
    uniform_numbers,
)


def random_logits(rows: int = 4, vocabulary: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def allowed_tokens(probabilities: torch.Tensor, top_k: int | None, top_p: float | None) -> list[set[int]]:
    """The tokens that can be sampled, in each row."""
    likely, tokens = filter_top_k_top_p(probabilities, top_k, top_p)
    if tokens is None:
        return [set(range(probabilities.shape[1]))] * len(probabilities)
    return [{int(token) for token, probability in zip(*row, strict=True) if probability > 0}
            for row in zip(tokens, likely, strict=True)]


def nucleus(row: torch.Tensor, top_p: float) -> set[int]:
    """The definition: the smallest set of most likely tokens with a total probability of at least top_p."""
    selected, total = set(), 0.0
    for token in row.argsort(descending=True).tolist():
        selected.add(token)
        total += float(row[token])
        if total >= top_p:
            break
    return selected


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.7, 0.95, 0.999])
@pytest.mark.parametrize("shortlist", [2, 1024])
def test_the_nucleus_is_the_smallest_set_with_probability_top_p(monkeypatch, top_p, shortlist):
    monkeypatch.setattr(sampling, "NUCLEUS_SHORTLIST", shortlist)
    probabilities = random_logits().softmax(-1)
    assert allowed_tokens(probabilities, None, top_p) == [nucleus(row, top_p) for row in probabilities]


def test_top_k_is_applied_before_top_p():
    probabilities = random_logits().softmax(-1)
    assert allowed_tokens(probabilities, 5, None) == [set(row.topk(5).indices.tolist()) for row in probabilities]
    assert allowed_tokens(probabilities, 500, None) == [set(range(50))] * 4
    assert allowed_tokens(probabilities, None, 1.0) == [set(range(50))] * 4
    for row, both in zip(probabilities, allowed_tokens(probabilities, 5, 0.6), strict=True):
        filtered = row * torch.zeros(50).scatter(0, row.topk(5).indices, 1.0)
        assert both == nucleus(filtered / filtered.sum(), 0.6)


@pytest.mark.parametrize("options, power", [({"top_p": 1.0}, 1.0), ({"top_p": 1.0, "temperature": 0.5}, 2.0),
                                            ({"top_k": 4, "temperature": 2.0}, 0.5), ({"top_p": 0.6}, 1.0)])
def test_sample_frequencies_match_the_probabilities(options, power):
    row = random_logits(1, 12)[0].softmax(-1)
    allowed = torch.zeros(12)
    raised = row**power / (row**power).sum()
    (selected,) = allowed_tokens(raised[None], options.get("top_k"), options.get("top_p"))
    allowed[list(selected)] = raised[list(selected)]
    numbers = torch.rand(40_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    samples = sample(row.log().expand(40_000, -1), GenerationOptions(**options), numbers)
    frequencies = torch.bincount(samples, minlength=12) / 40_000
    assert torch.allclose(frequencies, allowed / allowed.sum(), atol=0.01)
    assert set(samples.unique().tolist()) <= selected


def test_the_extreme_random_numbers_give_allowed_tokens():
    logits = mask_tokens(random_logits(2, 10), [0, 9], 8)
    for number in (0.0, 1.0 - 2**-53):
        tokens = sample(logits, GenerationOptions(top_p=1.0), torch.full((2,), number, dtype=torch.float64))
        assert all(1 <= int(token) < 8 for token in tokens)


def test_the_repetition_penalty_lowers_logits_of_earlier_tokens():
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0], [4.0, 3.0, 2.0, 1.0]])
    result = apply_repetition_penalty(logits, torch.tensor([[0, 1, 1], [3, 3, 3]]), 2.0)
    assert result.tolist() == [[1.0, -4.0, 1.0, -1.0], [4.0, 3.0, 2.0, 0.5]]
    assert apply_repetition_penalty(logits, torch.tensor([[0], [1]]), 1.0) is logits


def test_rows_have_their_own_random_numbers():
    options = GenerationOptions(tokens=5)
    rows = uniform_numbers(options, [[1, 2], [1, 2], [3]], [0, 1, 0], 9)
    assert rows.shape == (3, 5) and len({tuple(row.tolist()) for row in rows}) == 3
    assert torch.equal(uniform_numbers(options, [[3]], [0], 9)[0], rows[2])
    assert not torch.equal(uniform_numbers(options, [[3]], [0], 10)[0], rows[2])
    assert not torch.equal(uniform_numbers(options, [[3]], [0], 9 + 2**40)[0], rows[2])


def test_the_default_is_nucleus_sampling():
    assert GenerationOptions().nucleus == NUCLEUS and GenerationOptions(top_k=5).nucleus is None
    assert GenerationOptions(top_p=0.5).nucleus == 0.5
    assert GenerationOptions().do_sample
    assert not GenerationOptions(greedy=True).do_sample and not GenerationOptions(beams=2).do_sample


@pytest.mark.parametrize("options, wrong", [
    ({"temperature": 0.0}, [("temperature", "for the likeliest token each time use greedy")]),
    ({"temperature": -1.0}, [("temperature", "above 0, not -1")]),
    ({"temperature": float("nan")}, [("temperature", "not nan")]),
    ({"top_p": 0.0}, [("top_p", "above 0 and at most 1")]), ({"top_p": 1.5}, [("top_p", "not 1.5")]),
    ({"top_k": 0}, [("top_k", "1 or more")]), ({"tokens": 0}, [("tokens", "1 or more")]),
    ({"repetition_penalty": 0.0}, [("repetition_penalty", "above 0")]),
    ({"length_penalty": 1.0}, [("length_penalty", "add beams")]), ({"stop": ("",)}, [("stop", "empty")]),
    ({"greedy": True, "completions": 3}, [("completions", "the same text")]),
    ({"greedy": True, "top_k": 3}, [("greedy", "top_k would do nothing")]),
    ({"tokens": 4, "min_tokens": 5}, [("min_tokens", "more than tokens (4)")]),
    ({"beams": 4, "temperature": 0.7, "top_k": 0, "top_p": 0.9, "greedy": True, "seed": -1},
     [("top_k", "1 or more"), ("seed", "0 or more"), ("greedy", "temperature, top_k and top_p"),
      ("beams", "temperature, top_k and top_p"), ("beams", "greedy is 1 beam")]),
])
def test_all_contradicting_options_are_reported_at_once(options, wrong):
    with pytest.raises(UserError, match="cannot be followed") as error:
        GenerationOptions(**options)
    assert [option for option, _ in error.value.problems] == [option for option, _ in wrong]
    for (_, message), (_, expected) in zip(error.value.problems, wrong, strict=True):
        assert expected in message

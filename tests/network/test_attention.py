import numpy as np
import pytest
import torch
from literal.transformer import attention

from stemma.network.attention.self_attention import attend
from stemma.visibility import Bidirectional, Causal, CompiledMask, PaddingRule, Prefix, SlidingWindow, Visibility

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 6, 4
REAL = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
RULES: dict[str, Visibility] = {
    "full": Bidirectional(), "causal": Causal(), "padded": PaddingRule(REAL), "window": SlidingWindow(1, 2),
    "prefix": Prefix(torch.tensor([2, 4])),
    "both": Prefix(torch.tensor([3, 3])) & SlidingWindow(2, 1), "band": Causal() & SlidingWindow(1, 0),
}
NEARLY_NOTHING = 1e-9  # rounds to no dropout at all, but takes the way that training takes


def tensors(keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    shapes = ((BATCH, HEADS, LENGTH, WIDTH), (BATCH, HEADS, keys, WIDTH), (BATCH, HEADS, keys, WIDTH))
    return tuple(torch.randn(shape, generator=rng) for shape in shapes)


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("memory", [0, 3])
@pytest.mark.parametrize("name", RULES)
def test_attention_is_a_softmax_over_the_allowed_keys(name, memory, dropout):
    keys = LENGTH + memory
    query, key, value = tensors(keys)
    found = attend(query, key, value, RULES[name].compile(LENGTH, keys), dropout)
    places = torch.arange(-memory, LENGTH)
    seen = RULES[name].allows(places[memory:], places).expand(BATCH, LENGTH, keys)
    for row in range(BATCH):
        for head in range(HEADS):
            expected = attention(*(each[row, head].double().numpy() for each in (query, key, value)),
                                 lambda q, k, row=row: bool(seen[row, q, k]))
            np.testing.assert_allclose(found[row, head].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_a_mask_for_some_queries_is_those_rows_of_the_full_mask(name):
    mask = RULES[name].compile(LENGTH, LENGTH)
    query, key, value = tensors(LENGTH)
    places = torch.tensor([[0, 3, 5], [1, 1, 4]])
    whole = attend(query, key, value, mask, 0.0)
    chosen = places[:, None, :, None].expand(-1, HEADS, -1, WIDTH)
    some = attend(query.gather(2, chosen), key, value, mask.for_queries(places, LENGTH), 0.0)
    torch.testing.assert_close(some, whole.gather(2, chosen))


def test_dropout_keeps_the_mean():
    query, key, value = tensors(LENGTH)
    mask = Causal().compile(LENGTH, LENGTH)
    expected = attend(query, key, value, mask, 0.0)
    torch.manual_seed(0)
    draws = torch.stack([attend(query, key, value, mask, 0.3) for _ in range(4000)])
    error = draws.std(0) / 4000**0.5
    assert ((draws.mean(0) - expected).abs() < 5 * error + 1e-4).all()
    assert draws.std(0).max() > 0.05


def test_gradients_agree_on_both_ways():
    results = []
    for dropout in (0.0, NEARLY_NOTHING):
        leaves = [each.requires_grad_() for each in tensors(LENGTH)]
        mask = (Causal() & PaddingRule(torch.ones(BATCH, LENGTH).bool())).compile(LENGTH, LENGTH)
        attend(*leaves, mask, dropout).square().sum().backward()
        results.append([leaf.grad for leaf in leaves])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_open_mask_is_no_mask():
    query, key, value = tensors(LENGTH)
    torch.testing.assert_close(attend(query, key, value, CompiledMask(), 0.0),
                               attend(query, key, value, CompiledMask(dense=torch.ones(1, 1, 1, LENGTH).bool()), 0.0))


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 23])
@pytest.mark.parametrize("band", [1, 2, 3, 8])
def test_a_band_in_blocks_equals_the_same_band_as_a_mask(length, band, dropout):
    rng = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(BATCH, HEADS, length, WIDTH, generator=rng) for _ in range(3))
    seen = (Causal() & SlidingWindow(band - 1, 0)).grid(length)
    expected = attend(query, key, value, CompiledMask(dense=seen[None, None]), 0.0)
    torch.testing.assert_close(attend(query, key, value, CompiledMask(band=(band - 1, 0)), dropout), expected)


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("length", [1, 7, 16, 23])
@pytest.mark.parametrize("band", [(1, 1), (3, 3), (0, 2), (2, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_a_band_on_both_sides_equals_the_same_as_a_mask(length, band, dropout, padded):
    """With padding too, whose places have nobody around them but themselves; and gradients are equal."""
    rng = torch.Generator().manual_seed(length)
    tensors = [torch.randn(BATCH, HEADS, length, WIDTH, generator=rng, requires_grad=True) for _ in range(3)]
    place = torch.arange(length)
    real = torch.stack([place < max(1, length - 9 * row) for row in range(BATCH)]) if padded else None
    seen = SlidingWindow(*band).grid(length)[None]
    if real is not None:
        seen = seen & (real[:, None] | torch.eye(length).bool())
    results = [attend(*tensors, mask, drop) for mask, drop in ((CompiledMask(dense=seen[:, None]), 0.0),
                                                               (CompiledMask(band=band, token_mask=real), dropout))]
    assert results[1].isfinite().all()
    torch.testing.assert_close(*results)
    grads = [torch.autograd.grad(result.square().sum(), tensors) for result in results]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("mask", [CompiledMask(), CompiledMask(causal=True), CompiledMask(band=(1, 0)),
                                  CompiledMask(dense=REAL[:, None, None])],
                         ids=["none", "causal", "band", "dense"])
def test_a_bias_is_added_to_the_scores(mask, dropout):
    query, key, value = tensors(LENGTH)
    bias = torch.randn(BATCH, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(5))
    scores = query @ key.transpose(-1, -2) / WIDTH**0.5 + bias
    place = torch.arange(LENGTH)
    behind = place[:, None] - place
    seen = torch.ones(BATCH, 1, LENGTH, LENGTH).bool() if mask.dense is None else mask.dense
    seen = seen & (behind >= 0) if mask.causal or mask.band else seen
    seen = seen & (behind <= mask.band[0]) if mask.band else seen
    expected = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, mask, dropout, bias), expected)

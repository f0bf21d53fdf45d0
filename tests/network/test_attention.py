import numpy as np
import pytest
import torch
from literal.transformer import attention

from stemma.network.attention import self_attention
from stemma.network.attention.self_attention import attend
from stemma.visibility import Bidirectional, Causal, CompiledMask, PaddingRule, Prefix, SlidingWindow, Visibility

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 6, 4
TOKEN_MASK = torch.tensor([[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1]]).bool()
RULES: dict[str, Visibility] = {
    "full": Bidirectional(), "causal": Causal(), "padded": PaddingRule(TOKEN_MASK), "window": SlidingWindow(1, 2),
    "prefix": Prefix(torch.tensor([2, 4])),
    "both": Prefix(torch.tensor([3, 3])) & SlidingWindow(2, 1), "band": Causal() & SlidingWindow(1, 0),
}
NEARLY_NOTHING = 1e-9  # no dropout after rounding, but uses the code path of training


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
    result = attend(query, key, value, RULES[name].compile(LENGTH, keys), dropout)
    positions = torch.arange(-memory, LENGTH)
    allowed = RULES[name].allows(positions[memory:], positions).expand(BATCH, LENGTH, keys)
    for row in range(BATCH):
        for head in range(HEADS):
            expected = attention(*(tensor[row, head].double().numpy() for tensor in (query, key, value)),
                                 lambda q, k, row=row: bool(allowed[row, q, k]))
            np.testing.assert_allclose(result[row, head].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_a_mask_for_some_queries_is_those_rows_of_the_full_mask(name):
    mask = RULES[name].compile(LENGTH, LENGTH)
    query, key, value = tensors(LENGTH)
    positions = torch.tensor([[0, 3, 5], [1, 1, 4]])
    full = attend(query, key, value, mask, 0.0)
    index = positions[:, None, :, None].expand(-1, HEADS, -1, WIDTH)
    partial = attend(query.gather(2, index), key, value, mask.for_queries(positions, LENGTH), 0.0)
    torch.testing.assert_close(partial, full.gather(2, index))


def test_attention_dropout_preserves_the_mean():
    query, key, value = tensors(LENGTH)
    mask = Causal().compile(LENGTH, LENGTH)
    expected = attend(query, key, value, mask, 0.0)
    torch.manual_seed(0)
    samples = torch.stack([attend(query, key, value, mask, 0.3) for _ in range(4000)])
    error = samples.std(0) / 4000**0.5
    assert ((samples.mean(0) - expected).abs() < 5 * error + 1e-4).all()
    assert samples.std(0).max() > 0.05


def test_gradients_agree_with_and_without_fused_attention():
    results = []
    for dropout in (0.0, NEARLY_NOTHING):
        leaves = [tensor.requires_grad_() for tensor in tensors(LENGTH)]
        mask = (Causal() & PaddingRule(torch.ones(BATCH, LENGTH).bool())).compile(LENGTH, LENGTH)
        attend(*leaves, mask, dropout).square().sum().backward()
        results.append([leaf.grad for leaf in leaves])
    for first, second in zip(*results, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_values_and_gradients_in_bf16_are_close_to_fp32(name):
    mask, results = RULES[name].compile(LENGTH, LENGTH), []
    # nothing reads padding
    seen = TOKEN_MASK[:, None, :, None] if name == "padded" else torch.ones(1, dtype=torch.bool)
    for bf16 in (False, True):
        leaves = [tensor.requires_grad_() for tensor in tensors(LENGTH)]
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            attended = attend(*leaves, mask, 0.0) * seen
        attended.float().square().sum().backward()
        results.append([attended.float(), *(leaf.grad for leaf in leaves)])
    for fp32, bf16 in zip(*results, strict=True):
        assert (bf16 - fp32).norm() < 0.03 * fp32.norm()


@pytest.mark.parametrize(("keys", "trains", "bf16", "fused"), [
    (8, True, True, False), (8, True, False, True), (8, False, True, True), (9, True, True, True)])
def test_training_on_short_sequences_in_bf16_avoids_the_fused_kernel(keys, trains, bf16, fused, monkeypatch):
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(self_attention, "MAX_EXPLICIT_KEYS", 8)
    monkeypatch.setattr(self_attention.functional, "scaled_dot_product_attention",
                        lambda *arguments, **options: calls.append(1) or kernel(*arguments, **options))
    query, key, value = tensors(keys)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        attend(query.requires_grad_(trains), key, value, CompiledMask(), 0.0)
    assert bool(calls) is fused



def test_an_all_true_mask_equals_no_mask():
    query, key, value = tensors(LENGTH)
    torch.testing.assert_close(attend(query, key, value, CompiledMask(), 0.0),
                               attend(query, key, value, CompiledMask(dense=torch.ones(1, 1, 1, LENGTH).bool()), 0.0))


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 16, 23])
@pytest.mark.parametrize("band", [1, 2, 3, 8])
def test_causal_band_attention_in_blocks_equals_a_dense_mask(length, band, dropout):
    rng = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(BATCH, HEADS, length, WIDTH, generator=rng) for _ in range(3))
    allowed = (Causal() & SlidingWindow(band - 1, 0)).grid(length)
    expected = attend(query, key, value, CompiledMask(dense=allowed[None, None]), 0.0)
    torch.testing.assert_close(attend(query, key, value, CompiledMask(band=(band - 1, 0)), dropout), expected)


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("length", [1, 7, 16, 23])
@pytest.mark.parametrize("band", [(1, 1), (3, 3), (0, 2), (2, 5)])
@pytest.mark.parametrize("padded", [False, True])
def test_two_sided_band_attention_in_blocks_equals_a_dense_mask(length, band, dropout, padded):
    """Also with padding, whose positions attend only to themselves, and with equal gradients."""
    rng = torch.Generator().manual_seed(length)
    tensors = [torch.randn(BATCH, HEADS, length, WIDTH, generator=rng, requires_grad=True) for _ in range(3)]
    position = torch.arange(length)
    token_mask = torch.stack([position < max(1, length - 9 * row) for row in range(BATCH)]) if padded else None
    allowed = SlidingWindow(*band).grid(length)[None]
    if token_mask is not None:
        allowed = allowed & (token_mask[:, None] | torch.eye(length).bool())
    masks = CompiledMask(dense=allowed[:, None]), CompiledMask(band=band, token_mask=token_mask)
    results = [attend(*tensors, mask, p) for mask, p in zip(masks, (0.0, dropout), strict=True)]
    assert results[1].isfinite().all()
    torch.testing.assert_close(*results)
    grads = [torch.autograd.grad(result.square().sum(), tensors) for result in results]
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, NEARLY_NOTHING])
@pytest.mark.parametrize("mask", [CompiledMask(), CompiledMask(causal=True), CompiledMask(band=(1, 0)),
                                  CompiledMask(dense=TOKEN_MASK[:, None, None])],
                         ids=["none", "causal", "band", "dense"])
def test_a_bias_is_added_to_the_scores(mask, dropout):
    query, key, value = tensors(LENGTH)
    bias = torch.randn(BATCH, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(5))
    scores = query @ key.transpose(-1, -2) / WIDTH**0.5 + bias
    position = torch.arange(LENGTH)
    distance = position[:, None] - position
    allowed = torch.ones(BATCH, 1, LENGTH, LENGTH).bool() if mask.dense is None else mask.dense
    allowed = allowed & (distance >= 0) if mask.causal or mask.band else allowed
    allowed = allowed & (distance <= mask.band[0]) if mask.band else allowed
    expected = scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, mask, dropout, bias), expected)

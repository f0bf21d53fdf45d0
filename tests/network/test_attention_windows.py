"""Sliding windows are computed in blocks, also with padding, with a cache, in a decoder and for few output positions:
the outputs equal those of a dense mask, and no dense mask is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from stemma import recipe_loading
from stemma.network.attention.self_attention import attend, attend_with_scores
from stemma.network.heads import LMHeadSpec
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.visibility import Bidirectional, Causal, CompiledMask, PaddingRule, SlidingWindow, Visibility

ROWS, LENGTH, WINDOW, VOCABULARY = 9, 96, 5, 31
RIGHT_PADDED = torch.arange(LENGTH) < torch.tensor([96, 7, 40, 90, 61, 12, 30, 1, 55])[:, None]
TOKEN_MASKS = {"right": RIGHT_PADDED, "left": RIGHT_PADDED.flip(1)}


@pytest.fixture
def masks(monkeypatch) -> Iterator[list[int]]:
    """The sizes of the masks that scaled_dot_product_attention gets."""
    results: list[int] = []
    fused = functional.scaled_dot_product_attention

    def recording_attention(query: Tensor, *others, attn_mask: Tensor | None = None, **options) -> Tensor:
        results.append(0 if attn_mask is None else attn_mask.numel())
        return fused(query, *others, attn_mask=attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recording_attention)
    yield results
    assert results


def network_of(name: str, *changes: str) -> Network:
    recipe = recipe_loading.recipe(name, ["network.width=12", "network.heads=3", "network.feedforward=20",
                                          "network.layers=3",
                                   "network.dropout=0", "network.attention.dropout=0", "corpus.sequence_length=96",
                                   *changes])
    # sets windows directly, because recipes do not allow them in a decoder
    settings = recipe.settings.network
    attention = settings.attention.model_copy(update={"windows": [WINDOW]})
    torch.manual_seed(3)
    network = Network(settings.model_copy(update={"attention": attention}), VOCABULARY,
                      {"vocabulary": LMHeadSpec(transform=False)}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.05)
    return network


def with_dense_masks(monkeypatch: pytest.MonkeyPatch, compute: Callable[[], Tensor]) -> Tensor:
    """The result with dense masks instead of blocks."""
    with monkeypatch.context() as patch:
        patch.setattr(SlidingWindow, "band", lambda *_, **__: None)
        return compute()


def ids(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (ROWS, length), generator=torch.Generator().manual_seed(seed))


BLOCK_SCORES = LENGTH * 4 * WINDOW  # the largest number of scores of a row in blocks; dense: LENGTH x LENGTH


@pytest.mark.parametrize("padding", TOKEN_MASKS)
@pytest.mark.parametrize("name", ["modernbert@tiny", "gpt3@tiny"], ids=["both sides", "causal"])
@pytest.mark.parametrize("skip_padding", [False, True])
def test_windows_over_a_whole_text_equal_dense_masks(name, padding, skip_padding, masks, monkeypatch):
    network, token_mask = network_of(name), TOKEN_MASKS[padding]
    attention_mask = (Causal() if "gpt3" in name else Bidirectional()) & PaddingRule(token_mask)

    def compute() -> Tensor:
        return network({"encoder": Stream(ids(), attention_mask, skip_padding=skip_padding)})["encoder"][token_mask]

    result = compute()
    assert max(masks) <= ROWS * BLOCK_SCORES and result.isfinite().all()
    torch.testing.assert_close(result, with_dense_masks(monkeypatch, compute), rtol=1e-4, atol=1e-5)
    assert max(masks) > ROWS * BLOCK_SCORES, "the reference must use a dense mask"


@pytest.mark.parametrize("name", ["modernbert@tiny", "gpt3@tiny"], ids=["both sides", "causal"])
@pytest.mark.parametrize("skip_padding", [False, True])
def test_windows_with_few_output_positions_equal_dense_masks(name, skip_padding, masks, monkeypatch):
    """Also in the last layer, and with equal gradients."""
    network, positions = network_of(name), RIGHT_PADDED.flatten().nonzero()[::3, 0]
    attention_mask = (Causal() if "gpt3" in name else Bidirectional()) & PaddingRule(RIGHT_PADDED)

    def compute(outputs_only: bool = True) -> Tensor:
        stream = Stream(ids(), attention_mask, output_positions=positions if outputs_only else None,
                        skip_padding=skip_padding)
        return network({"encoder": stream})["encoder"].flatten(0, 1)[positions]

    result, parameters = compute(), list(network.encoder.parameters())
    assert max(masks) <= ROWS * BLOCK_SCORES
    expected = with_dense_masks(monkeypatch, lambda: compute(False))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    for first, second in zip(*(torch.autograd.grad(output.square().sum(), parameters) for output in (result, expected)),
                             strict=True):
        torch.testing.assert_close(first, second, rtol=2e-3, atol=2e-3)


@torch.no_grad()
@pytest.mark.parametrize("padding", [None, "left"])
def test_incremental_decoding_with_windows_equals_a_dense_mask(padding, masks, monkeypatch):
    """As in generation: left padding, a long prompt in two chunks, then single tokens."""
    network = network_of("gpt3@tiny")
    token_mask = torch.ones_like(RIGHT_PADDED) if padding is None else TOKEN_MASKS[padding]
    positions = (token_mask.long().cumsum(1) - 1).clamp(min=0)
    cuts = [0, 40, 80, 81, 82, 86, LENGTH]

    def compute() -> Tensor:
        cache, parts = network.new_cache(), []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            attention_mask: Visibility = Causal()
            if padding is not None:
                attention_mask = attention_mask & PaddingRule(token_mask[:, :stop], start)
            stream = Stream(ids()[:, start:stop], attention_mask, position_ids=positions[:, start:stop])
            parts.append(network({"encoder": stream}, cache)["encoder"])
        return torch.cat(parts, 1)[token_mask]

    result = compute()
    assert max(masks) <= ROWS * 40 * 4 * WINDOW
    torch.testing.assert_close(result, with_dense_masks(monkeypatch, compute), rtol=1e-4, atol=1e-5)
    stream = Stream(ids(), Causal() & PaddingRule(token_mask), position_ids=positions)
    torch.testing.assert_close(result, network({"encoder": stream})["encoder"][token_mask], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_encoder_decoder_windows_equal_dense_masks(masks, monkeypatch):
    """The encoder's windows are two-sided, the decoder's are causal, and cross-attention covers the whole source."""
    network = network_of("transformer@tiny", "network.decoder.layers=2")
    source = Stream(ids(), PaddingRule(RIGHT_PADDED))

    def compute(*cuts: int) -> Tensor:
        cache = network.new_cache() if len(cuts) > 2 else None
        parts = []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            streams = {"decoder": Stream(ids(seed=1)[:, start:stop], Causal())} | ({} if start else {"encoder": source})
            parts.append(network(streams, cache)["decoder"])
        return torch.cat(parts, 1)

    result = compute(0, LENGTH)
    assert max(masks) <= ROWS * BLOCK_SCORES
    torch.testing.assert_close(result, with_dense_masks(monkeypatch, lambda: compute(0, LENGTH)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compute(0, 50, 51, 90, LENGTH), result, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 2, 7, 16])
@pytest.mark.parametrize("cached", [1, 3, 20])
@pytest.mark.parametrize("band", [(1, 0), (4, 0), (3, 3), (0, 2)])
@pytest.mark.parametrize("padded", [False, True])
def test_band_attention_with_a_cache_equals_a_dense_mask(queries, cached, band, padded):
    rng, keys = torch.Generator().manual_seed(queries), cached + queries
    tensors = [torch.randn(2, 3, length, 4, generator=rng, requires_grad=True) for length in (queries, keys, keys)]
    token_mask = torch.stack([torch.arange(keys) >= min(first, keys - 1) for first in (2, 9)]) if padded else None
    allowed = SlidingWindow(*band).grid(keys)[-queries:]
    itself = torch.eye(keys).bool()[-queries:]
    allowed = allowed[None] if token_mask is None else allowed & (token_mask[:, None] | itself)
    for scale in (None, 0.7):
        mask = CompiledMask(band=band, token_mask=token_mask)
        expected = attend(*tensors, CompiledMask(dense=allowed[:, None]), 0.0, scale=scale)
        result = attend(*tensors, mask, 0.0, scale=scale)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(attend_with_scores(*tensors, mask, 0.0, None, scale)[0], expected)
        gradients = [torch.autograd.grad(output.square().sum(), tensors) for output in (result, expected)]
        for first, second in zip(*gradients, strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("windows", "last"), [([4], 6), ([4, 0], LENGTH - 1), ([0, 4], LENGTH - 1), ([1, 4], 3)])
def test_windows_alternate_with_bucketed_positions(windows, last):
    """How far a change of the first token has effect in two layers shows the window of each layer."""
    recipe = recipe_loading.recipe("prefix-lm@tiny", ["network.layers=2", f"network.attention.windows={windows}"])
    torch.manual_seed(0)
    network = Network(recipe.settings.network, VOCABULARY, {"vocabulary": LMHeadSpec()}).eval()
    text = ids()[:2]
    text[1, 1:] = text[0, 1:]
    text[1, 0] = (text[0, 0] + 1) % VOCABULARY
    attention_mask = Causal() & PaddingRule(RIGHT_PADDED[:1].expand(2, -1))
    first, second = network({"encoder": Stream(text, attention_mask)})["encoder"]
    assert torch.equal((first - second).abs().amax(-1) > 1e-7, torch.arange(LENGTH) <= last)

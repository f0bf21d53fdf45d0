"""Windows are computed in blocks, with padding, behind a cache, in a decoder and where few positions are read: the same
numbers as a mask of all pairs gives, and no such mask."""

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
RIGHT = torch.arange(LENGTH) < torch.tensor([96, 7, 40, 90, 61, 12, 30, 1, 55])[:, None]
REAL = {"right": RIGHT, "left": RIGHT.flip(1)}


@pytest.fixture
def masks(monkeypatch) -> Iterator[list[int]]:
    """How large each mask is that attention is given."""
    found: list[int] = []
    fused = functional.scaled_dot_product_attention

    def watched(query: Tensor, *others, attn_mask: Tensor | None = None, **options) -> Tensor:
        found.append(0 if attn_mask is None else attn_mask.numel())
        return fused(query, *others, attn_mask=attn_mask, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    yield found
    assert found


def network_of(name: str, *changes: str) -> Network:
    recipe = recipe_loading.recipe(name, ["network.width=12", "network.heads=3", "network.feedforward=20",
                                          "network.layers=3",
                                   "network.dropout=0", "network.attention.dropout=0", "corpus.sequence_length=96",
                                   *changes])
    # a decoder's windows are made here, whatever recipes may say of them
    settings = recipe.settings.network
    attention = settings.attention.model_copy(update={"windows": [WINDOW]})
    torch.manual_seed(3)
    network = Network(settings.model_copy(update={"attention": attention}), VOCABULARY,
                      {"vocabulary": LMHeadSpec(transform=False)}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.05)
    return network


def spelled_out(monkeypatch: pytest.MonkeyPatch, compute: Callable[[], Tensor]) -> Tensor:
    """The same with masks of all pairs."""
    with monkeypatch.context() as patch:
        patch.setattr(SlidingWindow, "band", lambda *_, **__: None)
        return compute()


def ids(length: int = LENGTH, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (ROWS, length), generator=torch.Generator().manual_seed(seed))


NEAR = LENGTH * 4 * WINDOW  # scores of a row in blocks, at most; all pairs are LENGTH x LENGTH


@pytest.mark.parametrize("padding", REAL)
@pytest.mark.parametrize("name", ["modernbert@tiny", "gpt3@tiny"], ids=["both sides", "causal"])
@pytest.mark.parametrize("skips", [False, True])
def test_text_at_once(name, padding, skips, masks, monkeypatch):
    network, real = network_of(name), REAL[padding]
    sees = (Causal() if "gpt3" in name else Bidirectional()) & PaddingRule(real)

    def read() -> Tensor:
        return network({"encoder": Stream(ids(), sees, skip_padding=skips)})["encoder"][real]

    found = read()
    assert max(masks) <= ROWS * NEAR and found.isfinite().all()
    torch.testing.assert_close(found, spelled_out(monkeypatch, read), rtol=1e-4, atol=1e-5)
    assert max(masks) > ROWS * NEAR, "this is what a mask of all pairs looks like"


@pytest.mark.parametrize("name", ["modernbert@tiny", "gpt3@tiny"], ids=["both sides", "causal"])
@pytest.mark.parametrize("skips", [False, True])
def test_few_output_positions(name, skips, masks, monkeypatch):
    """The last layer, too; and gradients are equal."""
    network, wanted = network_of(name), RIGHT.flatten().nonzero()[::3, 0]
    sees = (Causal() if "gpt3" in name else Bidirectional()) & PaddingRule(RIGHT)

    def read(wanted_only: bool = True) -> Tensor:
        stream = Stream(ids(), sees, output_positions=wanted if wanted_only else None, skip_padding=skips)
        return network({"encoder": stream})["encoder"].flatten(0, 1)[wanted]

    found, parameters = read(), list(network.encoder.parameters())
    assert max(masks) <= ROWS * NEAR
    expected = spelled_out(monkeypatch, lambda: read(False))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(each.square().sum(), parameters) for each in (found, expected)),
                          strict=True):
        torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)


@torch.no_grad()
@pytest.mark.parametrize("padding", [None, "left"])
def test_incremental_decoding(padding, masks, monkeypatch):
    """As rows are written: the padding comes first, a long prompt is read in two pieces, then single tokens."""
    network = network_of("gpt3@tiny")
    real = torch.ones_like(RIGHT) if padding is None else REAL[padding]
    positions = (real.long().cumsum(1) - 1).clamp(min=0)
    cuts = [0, 40, 80, 81, 82, 86, LENGTH]

    def read() -> Tensor:
        cache, parts = network.new_cache(), []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            sees: Visibility = Causal()
            if padding is not None:
                sees = sees & PaddingRule(real[:, :stop], start)
            stream = Stream(ids()[:, start:stop], sees, position_ids=positions[:, start:stop])
            parts.append(network({"encoder": stream}, cache)["encoder"])
        return torch.cat(parts, 1)[real]

    found = read()
    assert max(masks) <= ROWS * 40 * 4 * WINDOW
    torch.testing.assert_close(found, spelled_out(monkeypatch, read), rtol=1e-4, atol=1e-5)
    whole = network({"encoder": Stream(ids(), Causal() & PaddingRule(real), position_ids=positions)})["encoder"][real]
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_decoder_and_its_encoder(masks, monkeypatch):
    """Windows of the encoder lie on both sides, those of the decoder behind; all of the source is attended to."""
    network = network_of("transformer@tiny", "network.decoder.layers=2")
    source = Stream(ids(), PaddingRule(RIGHT))

    def read(*cuts: int) -> Tensor:
        cache = network.new_cache() if len(cuts) > 2 else None
        parts = []
        for start, stop in zip(cuts, cuts[1:], strict=False):
            streams = {"decoder": Stream(ids(seed=1)[:, start:stop], Causal())} | ({} if start else {"encoder": source})
            parts.append(network(streams, cache)["decoder"])
        return torch.cat(parts, 1)

    found = read(0, LENGTH)
    assert max(masks) <= ROWS * NEAR
    torch.testing.assert_close(found, spelled_out(monkeypatch, lambda: read(0, LENGTH)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(read(0, 50, 51, 90, LENGTH), found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("queries", [1, 2, 7, 16])
@pytest.mark.parametrize("kept", [1, 3, 20])
@pytest.mark.parametrize("band", [(1, 0), (4, 0), (3, 3), (0, 2)])
@pytest.mark.parametrize("padded", [False, True])
def test_a_band_behind_a_cache_equals_the_same_as_a_mask(queries, kept, band, padded):
    rng, keys = torch.Generator().manual_seed(queries), kept + queries
    tensors = [torch.randn(2, 3, length, 4, generator=rng, requires_grad=True) for length in (queries, keys, keys)]
    real = torch.stack([torch.arange(keys) >= min(first, keys - 1) for first in (2, 9)]) if padded else None
    seen = SlidingWindow(*band).grid(keys)[-queries:]
    seen = seen[None] if real is None else seen & (real[:, None] | torch.eye(keys).bool()[-queries:])
    for scale in (None, 0.7):
        mask = CompiledMask(band=band, token_mask=real)
        expected = attend(*tensors, CompiledMask(dense=seen[:, None]), 0.0, scale=scale)
        found = attend(*tensors, mask, 0.0, scale=scale)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(attend_with_scores(*tensors, mask, 0.0, None, scale)[0], expected)
        for one, other in zip(*(torch.autograd.grad(each.square().sum(), tensors) for each in (found, expected)),
                              strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("windows", "last"), [([4], 6), ([4, 0], LENGTH - 1), ([0, 4], LENGTH - 1), ([1, 4], 3)])
def test_windows_alternate_with_bucketed_positions(windows, last):
    """A network of two layers: how far the first token is noticed tells what each layer sees."""
    recipe = recipe_loading.recipe("prefix-lm@tiny", ["network.layers=2", f"network.attention.windows={windows}"])
    torch.manual_seed(0)
    network = Network(recipe.settings.network, VOCABULARY, {"vocabulary": LMHeadSpec()}).eval()
    text = ids()[:2]
    text[1, 1:] = text[0, 1:]
    text[1, 0] = (text[0, 0] + 1) % VOCABULARY
    one, other = network({"encoder": Stream(text, Causal() & PaddingRule(RIGHT[:1].expand(2, -1)))})["encoder"]
    assert torch.equal((one - other).abs().amax(-1) > 1e-7, torch.arange(LENGTH) <= last)

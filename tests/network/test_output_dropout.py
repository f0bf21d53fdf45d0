"""A stack's output is dropped on every way through it: half of the numbers become 0, the others twice as large."""

from __future__ import annotations

import pytest
import torch

from stemma import recipe_loading
from stemma.network import unpad
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.network.network import Network
from stemma.visibility import Bidirectional, Causal, PaddingRule, Permutation

ROWS, LENGTH, VOCABULARY, WIDTH = 40, 12, 29, 24
SMALL = [f"network.width={WIDTH}", "network.heads=3", "network.attention.head_width=8", "network.feedforward=20",
         "network.layers=2", "network.dropout=0", "network.attention.dropout=0", "network.inner_dropout=0",
         "network.output_dropout=0.5"]
IDS = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
REAL = torch.arange(LENGTH) < torch.randint(1, LENGTH, (ROWS, 1), generator=torch.Generator().manual_seed(2))
USED = REAL.flatten().nonzero()[:, 0]
SOME = USED[::3]
ORDER = torch.stack([torch.randperm(LENGTH, generator=torch.Generator().manual_seed(row)) for row in range(ROWS)])
PADDED = PaddingRule(REAL)
# recipe, the stream, which of the outputs are read, and at which places
WAYS = {
    "all places": ("bert@tiny", Stream(IDS), ("encoder",), None),
    "norm in front": ("gpt2@tiny", Stream(IDS, Causal()), ("encoder",), None),
    "wanted places alone": ("bert@tiny", Stream(IDS, output_positions=SOME), ("encoder",), SOME),
    "without filling": ("bert@tiny", Stream(IDS, PADDED, skip_padding=True), ("encoder",), USED),
    "both": ("bert@tiny", Stream(IDS, PADDED, output_positions=SOME, skip_padding=True), ("encoder",), SOME),
    "buckets": ("prefix-lm@tiny", Stream(IDS, PADDED, skip_padding=True), ("encoder",), USED),
    "memory": ("transformer-xl@tiny", Stream(IDS, Causal()), ("encoder",), None),
    "second stream": ("xlnet@tiny", Stream(IDS, Permutation(ORDER), query_positions=ORDER.argsort(1)[:, -4:]),
                      (QUERY,), None),
    "recurrent": ("universal-transformer@tiny", Stream(IDS, Causal()), ("encoder",), None),
}


def built(recipe: str, *changes: str) -> Network:
    torch.manual_seed(0)
    network = Network(recipe_loading.recipe(recipe, [*SMALL, *changes]).settings.network, VOCABULARY, {})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return network


def assert_half_is_dropped(trained: torch.Tensor, evaluated: torch.Tensor) -> None:
    dropped = trained == 0
    share, error = float(dropped.double().mean()), 0.5 / dropped.numel() ** 0.5
    assert abs(share - 0.5) < 6 * error, f"{share:.3f} of {dropped.numel()} numbers are dropped"
    torch.testing.assert_close(trained[~dropped], 2 * evaluated[~dropped], atol=2e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_on_every_way(way, monkeypatch):
    monkeypatch.setattr(unpad, "MIN_SCORES_TO_GROUP", 0)
    recipe, stream, parts, places = WAYS[way]
    network = built(recipe, *(["network.memory.evaluation=128"] if way == "memory" else []))
    torch.manual_seed(4)
    trained, evaluated = (network.train(mode)({"encoder": stream}) for mode in (True, False))
    for part in parts:
        one, other = (made[part].flatten(0, 1) if places is None else made[part].flatten(0, 1)[places]
                      for made in (trained, evaluated))
        assert_half_is_dropped(one, other)


@torch.no_grad()
def test_both_streams_where_both_are_computed():
    network = built("xlnet@tiny")
    stream = Stream(IDS, Permutation(ORDER), query_positions=ORDER.argsort(1)[:, -4:])
    torch.manual_seed(4)
    trained, evaluated = (network.train(mode)({"encoder": stream}, keep_hidden_states=True) for mode in (True, False))
    for part in ("encoder", QUERY):
        assert_half_is_dropped(trained[part], evaluated[part])
    # what a layer gives to the next, and to a memory, is not
    torch.testing.assert_close(trained.hidden_states["encoder"][-1], evaluated.hidden_states["encoder"][-1],
                               atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_encoder_and_decoder():
    network = built("t5@tiny", "network.decoder.layers=1")
    source = {"encoder": Stream(IDS)}
    torch.manual_seed(4)
    assert_half_is_dropped(network.train()(source)["encoder"], network.eval()(source)["encoder"])
    network.train().encoder.output_dropout.p = 0.0  # so that the decoder reads the same
    both = {**source, "decoder": Stream(IDS[:, :5], Causal())}
    assert_half_is_dropped(network(both)["decoder"], network.eval()(both)["decoder"])


@torch.no_grad()
def test_attention_may_have_another_rate_for_what_it_adds():
    """DistilBERT's is 0; without a rate of its own it is the network's."""
    def network(*changes: str) -> Network:
        return built("bert@tiny", "network.output_dropout=0", "network.dropout=0.3", *changes)

    block = network().encoder.blocks[0]
    assert block.attention_dropout.p == block.dropout.p == 0.3
    own = network("network.attention.output_dropout=0.1").encoder.blocks[0]
    assert (own.attention_dropout.p, own.dropout.p) == (0.1, 0.3)


def test_without_it_no_number_is_drawn():
    """A run that began before this setting goes on with the same random numbers."""
    network = built("bert@tiny", "network.output_dropout=0").train()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    network({"encoder": Stream(IDS, Bidirectional())})
    assert torch.equal(torch.get_rng_state(), before)

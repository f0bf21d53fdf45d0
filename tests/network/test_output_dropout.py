"""Output dropout applies on every code path of a stack: with p = 0.5 half of the values become 0, the others double."""

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
TOKEN_MASK = torch.arange(LENGTH) < torch.randint(1, LENGTH, (ROWS, 1), generator=torch.Generator().manual_seed(2))
USED = TOKEN_MASK.flatten().nonzero()[:, 0]
SOME = USED[::3]
ORDER = torch.stack([torch.randperm(LENGTH, generator=torch.Generator().manual_seed(row)) for row in range(ROWS)])
PADDED = PaddingRule(TOKEN_MASK)
# recipe, stream, outputs to compare, and their positions
CASES = {
    "all positions": ("bert@tiny", Stream(IDS), ("encoder",), None),
    "pre-norm": ("gpt2@tiny", Stream(IDS, Causal()), ("encoder",), None),
    "output positions only": ("bert@tiny", Stream(IDS, output_positions=SOME), ("encoder",), SOME),
    "without padding": ("bert@tiny", Stream(IDS, PADDED, skip_padding=True), ("encoder",), USED),
    "both": ("bert@tiny", Stream(IDS, PADDED, output_positions=SOME, skip_padding=True), ("encoder",), SOME),
    "buckets": ("prefix-lm@tiny", Stream(IDS, PADDED, skip_padding=True), ("encoder",), USED),
    "memory": ("transformer-xl@tiny", Stream(IDS, Causal()), ("encoder",), None),
    "second stream": ("xlnet@tiny", Stream(IDS, Permutation(ORDER), query_positions=ORDER.argsort(1)[:, -4:]),
                      (QUERY,), None),
    "recurrent": ("universal-transformer@tiny", Stream(IDS, Causal()), ("encoder",), None),
}


def build(recipe: str, *changes: str) -> Network:
    torch.manual_seed(0)
    network = Network(recipe_loading.recipe(recipe, [*SMALL, *changes]).settings.network, VOCABULARY, {})
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return network


def assert_half_is_dropped(trained: torch.Tensor, evaluated: torch.Tensor) -> None:
    dropped = trained == 0
    fraction, error = float(dropped.double().mean()), 0.5 / dropped.numel() ** 0.5
    assert abs(fraction - 0.5) < 6 * error, f"{fraction:.3f} of {dropped.numel()} values are dropped"
    torch.testing.assert_close(trained[~dropped], 2 * evaluated[~dropped], atol=2e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_output_dropout_applies_on_every_code_path(case, monkeypatch):
    monkeypatch.setattr(unpad, "MIN_SCORES_TO_GROUP", 0)
    recipe, stream, parts, positions = CASES[case]
    network = build(recipe, *(["network.memory.eval_length=128"] if case == "memory" else []))
    torch.manual_seed(4)
    trained, evaluated = (network.train(mode)({"encoder": stream}) for mode in (True, False))
    for part in parts:
        first, second = (output[part].flatten(0, 1) if positions is None else output[part].flatten(0, 1)[positions]
                         for output in (trained, evaluated))
        assert_half_is_dropped(first, second)


@torch.no_grad()
def test_output_dropout_applies_to_both_streams_of_xlnet():
    network = build("xlnet@tiny")
    stream = Stream(IDS, Permutation(ORDER), query_positions=ORDER.argsort(1)[:, -4:])
    torch.manual_seed(4)
    trained, evaluated = (network.train(mode)({"encoder": stream}, keep_hidden_states=True) for mode in (True, False))
    for part in ("encoder", QUERY):
        assert_half_is_dropped(trained[part], evaluated[part])
    # hidden states between layers and in the memory have no output dropout
    torch.testing.assert_close(trained.hidden_states["encoder"][-1], evaluated.hidden_states["encoder"][-1],
                               atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_output_dropout_applies_to_encoder_and_decoder():
    network = build("t5@tiny", "network.decoder.layers=1")
    source = {"encoder": Stream(IDS)}
    torch.manual_seed(4)
    assert_half_is_dropped(network.train()(source)["encoder"], network.eval()(source)["encoder"])
    network.train().encoder.output_dropout.p = 0.0  # so that the decoder reads the same
    both = {**source, "decoder": Stream(IDS[:, :5], Causal())}
    assert_half_is_dropped(network(both)["decoder"], network.eval()(both)["decoder"])


@torch.no_grad()
def test_the_attention_output_can_have_its_own_dropout():
    """DistilBERT's is 0. By default it is the dropout of the network."""
    def network(*changes: str) -> Network:
        return build("bert@tiny", "network.output_dropout=0", "network.dropout=0.3", *changes)

    block = network().encoder.blocks[0]
    assert block.attention_dropout.p == block.dropout.p == 0.3
    block = network("network.attention.output_dropout=0.1").encoder.blocks[0]
    assert (block.attention_dropout.p, block.dropout.p) == (0.1, 0.3)


def test_without_output_dropout_no_random_number_is_sampled():
    """So runs that started before this setting existed resume with the same random numbers."""
    network = build("bert@tiny", "network.output_dropout=0").train()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    network({"encoder": Stream(IDS, Bidirectional())})
    assert torch.equal(torch.get_rng_state(), before)

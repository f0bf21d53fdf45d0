"""Rotary positions, gated feed-forward layers, two-sided windows, and norms without parameters."""

from __future__ import annotations

import itertools

import pytest
import torch
from closeness import assert_close
from torch.nn import functional

from stemma.network.inputs_outputs import LayerContext, Stream
from stemma.network.network import Network
from stemma.network.position_kinds import RotaryPositionSettings
from stemma.network.rotary import build_rotation
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.visibility import Causal, CompiledMask, PaddingRule

pytestmark = pytest.mark.usefixtures("unpad_small_batches")

SIZES = ["network.width=24", "network.heads=2", "network.feedforward=20", "network.layers=3",
         "corpus.sequence_length=64"]
ROTARY = ["network.position.kind=rotary", "network.position.maximum=128", "network.position.base=50.0"]
LOCAL = [*ROTARY, "network.position.local_base=7.0", "network.attention.windows=[0,3]"]
PLAIN = ["network.dropout=0", "network.attention.dropout=0"]


def build_small_network(name: str, *changes: str, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    network = build_network(recipe(f"{name}@tiny", [*SIZES, *PLAIN, *changes]), 31).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(1))


def test_rotation_is_a_complex_multiplication():
    settings = RotaryPositionSettings(kind="rotary", maximum=99, base=50.0)
    positions = torch.tensor([[0, 3, 17], [5, 5, 90]])
    x = torch.randn(2, 3, 2, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    frequencies = torch.tensor([50.0 ** (-2 * pair / 6) for pair in range(3)], dtype=torch.float64)
    rotated = torch.complex(x[..., :3], x[..., 3:]) * torch.exp(1j * positions[:, :, None, None] * frequencies)
    angles = build_rotation(settings, False, 6, positions).key
    assert_close(angles.rotate(x), torch.cat([rotated.real, rotated.imag], -1))
    assert torch.autograd.gradcheck(lambda vectors: angles.rotate(vectors), x.clone().requires_grad_(), atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_only_relative_positions_change_the_output(name):
    network, text = build_small_network(name, *LOCAL), ids(2, 20)
    attention_mask = Causal() if name == "gpt2" else PaddingRule(torch.ones(2, 20).bool())
    position = torch.arange(20).expand(2, -1)
    near, far, stretched = (network({"encoder": Stream(text, attention_mask, position_ids=positions)})["encoder"]
                            for positions in (position, position + 40, 2 * position))
    assert_close(near, far)
    assert (near - stretched).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("changes", [ROTARY, LOCAL], ids=["global", "local"])
@pytest.mark.parametrize("length", [11, 60])
def test_skipping_padding_and_unneeded_outputs_does_not_change_the_others(monkeypatch, changes, length):
    """With output positions in the last block, with unpadded groups of similar length, and with both."""
    monkeypatch.setattr("stemma.network.unpad.MIN_SCORES_TO_GROUP", 0)
    network, text = build_small_network("bert", *changes), ids(12, length)
    lengths = torch.tensor([length, 2, 5, 3, 9, length - 1, 4, 4, 7, 2, 3, 6])
    attention_mask = PaddingRule(torch.arange(length) < lengths[:, None])
    token_mask = attention_mask.token_mask.flatten()
    positions_needed = token_mask.nonzero()[::5, 0]
    stretched = torch.arange(length) * (1 + torch.arange(12) % 3)[:, None]
    for positions in (None, stretched):
        expected = network({"encoder": Stream(text, attention_mask, position_ids=positions)})["encoder"].flatten(0, 1)
        for skip_padding, output_positions in itertools.product((False, True), (None, positions_needed)):
            stream = Stream(text, attention_mask, position_ids=positions, output_positions=output_positions,
                            skip_padding=skip_padding)
            result = network({"encoder": stream})["encoder"].flatten(0, 1)
            compared = token_mask.nonzero()[:, 0] if output_positions is None else output_positions
            assert_close(result[compared], expected[compared])


@torch.no_grad()
def test_the_window_of_an_encoder_is_two_sided():
    network = build_small_network("bert", *ROTARY, "network.attention.windows=[3]", "network.layers=1")
    text = ids(1, 12)
    other = text.clone()
    other[0, 6] = (other[0, 6] + 1) % 31
    changed = [network({"encoder": Stream(ids_)})["encoder"] for ids_ in (text, other)]
    differ = (changed[0] - changed[1]).abs().amax(-1)[0] > 1e-6
    assert differ.tolist() == [3 <= position <= 9 for position in range(12)]


@pytest.mark.parametrize(("activation", "function"), [("gelu", functional.gelu), ("silu", functional.silu)])
def test_a_gated_layer_multiplies_one_half_by_the_activated_other(activation, function):
    network = build_small_network("gpt2", "network.transition=gated", f"network.activation={activation}")
    layer = network.encoder.blocks[0].feedforward
    x = torch.randn(5, 24)
    first, second = layer.input.weight[:20], layer.input.weight[20:]
    expected = (function(x @ first.T + layer.input.bias[:20]) * (x @ second.T + layer.input.bias[20:])) \
        @ layer.output.weight.T + layer.output.bias
    assert_close(layer(x, LayerContext(CompiledMask())), expected)
    assert layer.fused_matrices == {"input": 2} and layer.output.weight.shape == (24, 20)


@pytest.mark.parametrize("kind", ["layer", "scale"])
def test_norms_can_have_no_parameters(kind):
    norm = ["network.norm.weight=false", "network.norm.bias=false"]
    if kind == "scale":
        norm += ["network.norm.kind=scale", "network.norm.placement=pre", "network.norm.epsilon=1e-6"]
    network = build_small_network("bert", *norm)
    assert not [name for name, _ in network.named_parameters() if "norm" in name]
    assert network({"encoder": Stream(ids(2, 7))})["encoder"].isfinite().all()


def test_blocks_with_zero_output_matrices_are_the_identity():
    network = build_network(recipe("gpt2@tiny", [*SIZES, *PLAIN, "network.initialization.zero_output=true",
                                                 "network.initialization.residual=false"]), 31).eval()
    hidden = network({"encoder": Stream(ids(2, 9), Causal())}, keep_hidden_states=True)
    first, *_, last = hidden.hidden_states["encoder"]
    assert torch.equal(first, last) and first.abs().max() > 0

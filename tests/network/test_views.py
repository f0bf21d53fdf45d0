"""Views of a network: other modules, another mode, the same parameters, and an unchanged network."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close
from torch import Tensor, nn

from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.network.prepacked_linear import PrepackedLinear, prepacked_view
from stemma.network.views import eval_view, inference_view
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.visibility import Causal

# all kinds of sharing: tied heads, shared layers, an embedding shared by encoder and decoder, a generator inside the
# network, an adaptive embedding, relative positions
KINDS = ["bert", "albert", "transformer", "electra", "transformer-xl", "t5", "modernbert", "universal-transformer",
         "nanochat", "neobert", "ltg-bert", "gpt-bert", "mdlm"]
SMALL = ["network.layers=2", "network.width=32", "network.heads=2", "network.feedforward=48",
         "network.initialization.zero_output=false"]


def network_of(kind: str) -> Network:
    torch.manual_seed(1)
    head = ["network.attention.head_width=16"] if kind in ("transformer-xl", "t5") else []
    return build_network(recipe(f"{kind}@tiny", [*SMALL, *head]), 60)


def logits(network: Network) -> Tensor:
    ids = torch.arange(24).view(4, 6)
    streams = {"encoder": Stream(ids, Causal())}
    if network.decoder is not None:
        streams["decoder"] = Stream(ids.flip(0), Causal())
    hidden = network(streams)["decoder" if network.decoder is not None else "encoder"]
    return network.heads["vocabulary"](hidden) if "vocabulary" in network.heads else hidden


def references(module: nn.Module) -> set[int]:
    """The ids of all modules reachable from this one, also through plain attributes."""
    results: dict[int, nn.Module] = {}
    queue: list[object] = [module]
    while queue:
        item = queue.pop()
        if isinstance(item, nn.Module) and id(item) not in results:
            results[id(item)] = item
            queue += vars(item).values()
        elif isinstance(item, tuple | list):
            queue += item
        elif isinstance(item, dict):
            queue += item.values()
    return set(results)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_view_shares_parameters_and_nothing_else(kind):
    network = network_of(kind).train()
    view = inference_view(network)
    assert type(view) is Network and not references(view) & references(network)
    assert len(references(view)) == len(references(network))  # sharing is preserved
    assert all(first is second for first, second in zip(network.parameters(), view.parameters(), strict=True))
    assert list(view.state_dict()) == list(network.state_dict())
    assert all(module.training for module in network.modules())
    assert not any(module.training for module in view.modules())
    result = logits(view)
    assert torch.equal(result, logits(network.eval()))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_prepacked_weights_do_not_change_the_network(kind):
    network = network_of(kind).eval()
    before = [dict(vars(module)) for module in network.modules()]
    packed = prepacked_view(network, 4)
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    assert len(linear) == sum(type(module) is PrepackedLinear for module in packed.modules()) > 0
    assert not any(type(module) is nn.Linear for module in packed.modules())
    assert_close(logits(packed), logits(network))
    assert [vars(module) for module in network.modules()] == before


def test_a_network_in_eval_mode_is_its_own_view():
    network = network_of("bert").eval()
    assert eval_view(network) is network
    network.heads.train()
    view = eval_view(network)
    assert view is not network and not view.heads.training and network.heads.training


def test_a_view_sees_changes_of_the_parameters():
    network = network_of("bert").train()
    view = eval_view(network)
    before = logits(view)
    with torch.no_grad():
        network.encoder.blocks[0].feedforward.output.weight.mul_(2)
    assert not torch.equal(before, logits(view))

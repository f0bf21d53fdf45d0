"""ELECTRA's generator: it shares the embedding with the discriminator, stored and counted once."""

from __future__ import annotations

import copy

import pytest
import torch

import stemma
from stemma.network.heads import DiscriminatorHeadSpec, LMHeadSpec
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.schema.network_tables import InitializationSettings

SMALL = ["network.width=12", "network.heads=2", "network.feedforward=20", "network.layers=2",
         "network.generator.multiplier=0.5", "corpus.sequence_length=24", "network.position.maximum=24"]
SHARED = ("tokens", "segments", "position", "norm")


@pytest.fixture(params=[[], ["network.embedding.width=7"], ["network.embedding.width=6"]],
                ids=["network width", "factorized", "generator width"])
def network(request):
    torch.manual_seed(0)
    return stemma.build("electra@tiny", 40, [*SMALL, *request.param]).network


def test_everything_of_the_embedding_but_the_projection_is_shared(network):
    ours, theirs = network.embedding, network.generator.embedding
    for name in SHARED:
        assert getattr(ours, name) is getattr(theirs, name) is not None
    width = ours.tokens.embedding_dim
    assert (ours.project is None) == (width == 12) and (theirs.project is None) == (width == 6)
    assert theirs.project is None or theirs.project is not ours.project
    stream = Stream(torch.arange(20)[None], segment_ids=torch.arange(20)[None] // 10)
    assert ours(stream).shape[-1] == 12 and theirs(stream).shape[-1] == 6


def test_every_parameter_is_stored_and_trained_once(network):
    names = [name for name, _ in network.named_parameters()]
    assert not any(name.startswith(f"generator.embedding.{part}") for part in SHARED for name in names)
    assert "embedding.tokens.weight" in names and "generator.encoder.blocks.0.attention.input.weight" in names
    total = sum(parameter.numel() for parameter in network.parameters())
    shared = sum(parameter.numel() for part in SHARED for parameter in getattr(network.embedding, part).parameters())
    assert total == network.parameter_count() + network.generator.parameter_count() - shared
    assert network.own_state_dict().keys() == {name for name in names if not name.startswith("generator.")}


def test_the_generator_is_a_complete_network(network):
    state = network.generator.state_dict()
    assert sum(tensor.numel() for tensor in state.values()) == network.generator.parameter_count()
    assert torch.equal(state["embedding.tokens.weight"], network.embedding.tokens.weight)
    hidden = network.generator({"encoder": Stream(torch.arange(9)[None])})["encoder"]
    assert network.generator.head("vocabulary")(hidden).shape == (1, 9, 40)


def test_a_loaded_state_dict_stays_tied(network):
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert other.generator.embedding.tokens is other.embedding.tokens
    network.load_state_dict(other.state_dict())
    assert torch.equal(network.generator.embedding.tokens.weight, other.embedding.tokens.weight)
    assert network.generator.embedding.norm is network.embedding.norm


def test_both_networks_use_their_own_initialization():
    """Without an explicit spread the standard deviation is 1 / sqrt(width): of the generator for its own matrices, and
    of the network for the shared embedding."""
    torch.manual_seed(0)
    settings = stemma.recipe("electra@tiny", ["network.width=256", "network.layers=1"]).settings.network
    settings = settings.model_copy(update={"initialization": InitializationSettings(std=None)})
    network = Network(settings, 500, {"judge": DiscriminatorHeadSpec()},
                      generator_head_specs={"vocabulary": LMHeadSpec()})
    truncated = 0.8796  # standard deviation of a normal truncated at two
    large, small = (part.encoder.blocks[0].attention.input.weight for part in (network, network.generator))
    for weight, width in ((network.embedding.tokens.weight, 256), (large, 256), (small, 64)):
        assert float(weight.detach().std()) == pytest.approx(truncated * width**-0.5, rel=0.05)


def test_a_network_without_a_generator_has_none():
    network = stemma.build("bert@tiny", 40).network
    assert network.generator is None and network.own_state_dict().keys() == network.state_dict().keys()

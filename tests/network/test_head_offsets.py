"""Heads of the first layer begin by attending to a neighbour; the network stays that of the paper."""

from __future__ import annotations

import pytest
import torch

from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_network
from stemma.recipe_loading import recipe

LENGTH = 96
SMALL = ["tokenizer.vocab_size=300", "network.dropout=0.0", "network.attention.dropout=0.0"]


def network_of(label, offsets):
    torch.manual_seed(0)
    key = "network.initialization.head_offsets"
    return build_network(recipe(label, [*SMALL, f"{key}={offsets}" if offsets else f"remove={key}"])).eval()


def attention_weights(network, part):
    """(heads, query, key): softmax of the scores of the part's first layer, of random tokens."""
    embedding, block = network.embedding_of(part), network.body_of(part).blocks[0]
    x = embedding(Stream(torch.randint(10, 300, (1, LENGTH))))
    x = block.attention_norm(x) if block.pre_norm else x
    attention = block.attention
    query, key = (part.view(LENGTH, attention.heads, attention.head_width).transpose(0, 1)
                  for part in attention.input(x)[0].chunk(3, -1)[:2])
    return (query @ key.mT * (attention.scale or attention.head_width**-0.5)).softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize(("label", "part"), [
    ("bert@tiny", "encoder"), ("bert@mini", "encoder"), ("albert@tiny", "encoder"), ("gpt2@tiny", "encoder"),
    ("roberta@midi", "encoder"), ("bart@tiny", "encoder"), ("bart@tiny", "decoder")])
def test_each_head_attends_mostly_to_its_offset(label, part):
    offsets = [-1, 2]
    weights = attention_weights(network_of(label, offsets), part)
    for head, head_weights in enumerate(weights):
        offset = offsets[head % 2] if part == "encoder" else -1
        mean = {near: float(torch.diagonal(head_weights, near).mean()) for near in range(-4, 5)}
        assert max(mean, key=mean.get) == offset and mean[offset] > 0.3


@torch.no_grad()
def test_random_positions_attend_everywhere():
    assert float(attention_weights(network_of("bert@tiny", None), "encoder").amax()) < 0.3


@torch.no_grad()
def test_the_generator_of_electra_attends_to_its_offsets():
    network = network_of("electra@mini", [-1])
    for part in (network, network.generator):
        diagonals = torch.diagonal(attention_weights(part, "encoder"), -1, dim1=1, dim2=2)
        assert float(diagonals.mean()) > 0.3


@torch.no_grad()
def test_a_generator_without_room_for_positions_keeps_its_tokens():
    """Of 32 dimensions, all would belong to the positions."""
    embedding = network_of("electra@tiny", [-1]).generator.embedding
    vectors = embedding(Stream(torch.arange(10, 60)[:, None]))[:, 0]
    assert float(torch.cdist(vectors, vectors).sum() / (50 * 49)) > 1


@torch.no_grad()
def test_positions_and_tokens_begin_in_different_dimensions():
    embedding = network_of("bert@tiny", [-1, 1]).embedding
    tokens, positions = embedding.tokens.weight, embedding.position.table.weight
    assert not (tokens.abs().sum(0) * positions.abs().sum(0)).any()
    torch.testing.assert_close(positions[:, -32:].var(), tokens[:, :-32].var(), rtol=0.3, atol=0)


def test_parameters_are_those_of_the_paper():
    shapes = [{name: tuple(p.shape) for name, p in network_of("bert@tiny", offsets).named_parameters()}
              for offsets in ([-1, 1], None)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("offsets", ["[]", "[9]", "1"])
def test_offsets_out_of_range_are_refused(offsets):
    with pytest.raises(UserError, match="head_offsets"):
        recipe("bert@tiny", [f"network.initialization.head_offsets={offsets}"])

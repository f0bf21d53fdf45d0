"""Batches computed without their filling: the numbers and gradients of every row by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stemma import recipe_loading
from stemma.network import stack, unpad
from stemma.network.heads import ClassHead, Pooler
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.network.unpad import UnpaddedBatch
from stemma.visibility import Bidirectional, Causal, PaddingRule, Visibility

LENGTHS = [3, 11, 1, 5, 5, 2, 9, 4, 6, 1, 2, 3, 3]
BATCH, LENGTH, VOCABULARY = len(LENGTHS), max(LENGTHS), 29
RIGHT = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
HOLES = RIGHT & (torch.arange(LENGTH) % 4 != 1)
REAL = {"right": RIGHT, "left": RIGHT.flip(1), "holes": HOLES}
FAMILIES = {"bert@tiny": Bidirectional(), "gpt2@tiny": Causal(), "t5@tiny": Bidirectional(),
            "xlnet@tiny": Bidirectional(), "albert@tiny": Bidirectional()}


def build(name: str) -> Network:
    settings = recipe_loading.recipe(name, ["network.width=12", "network.heads=3", "network.feedforward=20",
                                     "network.layers=2"]).settings.network
    if settings.decoder is not None:
        settings = settings.model_copy(update={"decoder": None})
    torch.manual_seed(0)
    network = Network(settings, VOCABULARY, {"pooler": Pooler(), "pair": ClassHead(2)}).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + 0.1)
    return network


def ids() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))


def learnt(network: Network, outputs: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of something that depends on every number differently."""
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    result = torch.autograd.grad((outputs * weights).sum(), list(network.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(result, network.parameters(), strict=True)]


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch):
    monkeypatch.setattr(unpad, "MIN_SCORES_TO_GROUP", 0)


@pytest.fixture
def counted(monkeypatch) -> list[UnpaddedBatch]:
    """Every batch that was computed without its filling."""
    made: list[UnpaddedBatch] = []

    class Counted(UnpaddedBatch):
        def __init__(self, *arguments: object, **more: object):
            super().__init__(*arguments, **more)
            made.append(self)

    monkeypatch.setattr(stack, "UnpaddedBatch", Counted)
    return made


@pytest.mark.parametrize("filled", REAL)
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_gradients_equal_those_with_padding(name, filled, counted):
    network, real = build(name), REAL[filled]
    sees: Visibility = FAMILIES[name] & PaddingRule(real)
    given = Stream(ids(), sees, reuse_length=0, skip_padding=True)
    without = network({"encoder": given})["encoder"]
    assert len(counted) == 1
    whole = network({"encoder": replace(given, skip_padding=False)})["encoder"]
    assert len(counted) == 1
    assert not without[~real].any()
    torch.testing.assert_close(without[real], whole[real], rtol=1e-4, atol=1e-5)
    for one, other in zip(learnt(network, without[real]), learnt(network, whole[real]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert@tiny", "gpt2@tiny", "xlnet@tiny"])
def test_rows_computed_together_are_those_computed_alone(name, counted):
    network = build(name)
    with torch.no_grad():
        given = Stream(ids(), FAMILIES[name] & PaddingRule(RIGHT), reuse_length=0, skip_padding=True)
        together = network({"encoder": given})["encoder"]
        for row, length in enumerate(LENGTHS):
            alone = network({"encoder": Stream(ids()[row:row + 1, :length], FAMILIES[name])})["encoder"]
            torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-4, atol=1e-5)
    assert len(counted) == 1


@pytest.mark.parametrize("filled", ["right", "holes"])
@pytest.mark.parametrize("each", [1, 2])
def test_the_last_block_at_output_positions_only(filled, each, counted):
    network, real = build("bert@tiny"), REAL[filled]
    expected = torch.cat([row.nonzero()[:each, 0] + index * LENGTH for index, row in enumerate(real)])
    given = Stream(ids(), PaddingRule(real), output_positions=expected, reuse_length=0, skip_padding=True)
    some = network({"encoder": given})["encoder"].flatten(0, 1)[expected]
    assert len(counted) == 1
    same = network({"encoder": replace(given, skip_padding=False)})["encoder"].flatten(0, 1)[expected]
    torch.testing.assert_close(some, same, rtol=1e-4, atol=1e-5)
    for one, other in zip(learnt(network, some), learnt(network, same), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_groups_have_similar_lengths_and_contain_every_token_once(monkeypatch):
    made = UnpaddedBatch(RIGHT, group_by_length=True)
    assert [group.length for group in made.groups] == [3, 5, 11]
    assert sorted(made.token_indices.tolist()) == RIGHT.flatten().nonzero()[:, 0].tolist()
    assert sum(group.num_positions for group in made.groups) < 0.6 * RIGHT.numel()
    x = torch.randn(BATCH, LENGTH, 2)
    torch.testing.assert_close(made.pad(made.unpad(x)), x * RIGHT[:, :, None])
    for group, part in made.padded_groups(made.unpad(x)):
        torch.testing.assert_close(part, (x * RIGHT[:, :, None])[group.rows, : group.length])
    assert len(UnpaddedBatch(RIGHT, group_by_length=False).groups) == len(UnpaddedBatch(RIGHT[:5],
        group_by_length=True).groups) == 1
    monkeypatch.setattr(unpad, "MIN_SCORES_TO_GROUP", 10_000)
    assert len(UnpaddedBatch(RIGHT, group_by_length=True).groups) == 1


def test_a_row_of_padding_only_is_allowed():
    real = RIGHT.clone()
    real[[2, 9]] = False
    network = build("bert@tiny")
    with torch.no_grad():
        result = network({"encoder": Stream(ids(), PaddingRule(real), reuse_length=0, skip_padding=True)})["encoder"]
        whole = network({"encoder": Stream(ids(), PaddingRule(RIGHT))})["encoder"]
    assert not result[[2, 9]].any() and torch.isfinite(result).all()
    torch.testing.assert_close(result[real], whole[real], rtol=1e-4, atol=1e-5)


def test_a_batch_with_little_padding_is_not_unpadded(counted):
    network = build("bert@tiny")
    nearly = torch.ones(8, 10, dtype=torch.bool)
    nearly[0, 5:] = False
    with torch.no_grad():
        network({"encoder": Stream(torch.zeros(8, 10, dtype=torch.int64), PaddingRule(nearly), reuse_length=0,
                                   skip_padding=True)})
    assert not counted

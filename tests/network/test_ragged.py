"""Batches computed without their filling: the numbers and gradients of every row by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stemma import lineage
from stemma.network import ragged, stack
from stemma.network.heads import ClassHead, Pooler
from stemma.network.network import Network
from stemma.network.ragged import Ragged
from stemma.network.streams import Stream
from stemma.visibility import Causal, Full, Padded, Visibility

LENGTHS = [3, 11, 1, 5, 5, 2, 9, 4, 6, 1, 2, 3, 3]
BATCH, LENGTH, VOCABULARY = len(LENGTHS), max(LENGTHS), 29
RIGHT = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
HOLES = RIGHT & (torch.arange(LENGTH) % 4 != 1)
REAL = {"right": RIGHT, "left": RIGHT.flip(1), "holes": HOLES}
FAMILIES = {"bert@tiny": Full(), "gpt2@tiny": Causal(), "t5@tiny": Full(), "xlnet@tiny": Full(), "albert@tiny": Full()}


def build(name: str) -> Network:
    settings = lineage.recipe(name, ["network.width=12", "network.heads=3", "network.feedforward=20",
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
    found = torch.autograd.grad((outputs * weights).sum(), list(network.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, network.parameters(), strict=True)]


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch):
    monkeypatch.setattr(ragged, "SMALL", 0)


@pytest.fixture
def counted(monkeypatch) -> list[Ragged]:
    """Every batch that was computed without its filling."""
    made: list[Ragged] = []

    class Counted(Ragged):
        def __init__(self, *arguments: object, **more: object):
            super().__init__(*arguments, **more)
            made.append(self)

    monkeypatch.setattr(stack, "Ragged", Counted)
    return made


@pytest.mark.parametrize("filled", REAL)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_numbers_and_gradients_are_those_with_filling(name, filled, counted):
    network, real = build(name), REAL[filled]
    sees: Visibility = FAMILIES[name] & Padded(real)
    given = Stream(ids(), sees, keep=0, skips_filling=True)
    without = network({"encoder": given})["encoder"]
    assert len(counted) == 1
    whole = network({"encoder": replace(given, skips_filling=False)})["encoder"]
    assert len(counted) == 1
    assert not without[~real].any()
    torch.testing.assert_close(without[real], whole[real], rtol=1e-4, atol=1e-5)
    for one, other in zip(learnt(network, without[real]), learnt(network, whole[real]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert@tiny", "gpt2@tiny", "xlnet@tiny"])
def test_rows_computed_together_are_those_computed_alone(name, counted):
    network = build(name)
    with torch.no_grad():
        given = Stream(ids(), FAMILIES[name] & Padded(RIGHT), keep=0, skips_filling=True)
        together = network({"encoder": given})["encoder"]
        for row, length in enumerate(LENGTHS):
            alone = network({"encoder": Stream(ids()[row:row + 1, :length], FAMILIES[name])})["encoder"]
            torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-4, atol=1e-5)
    assert len(counted) == 1


@pytest.mark.parametrize("filled", ["right", "holes"])
@pytest.mark.parametrize("each", [1, 2])
def test_the_last_block_for_some_places_only(filled, each, counted):
    network, real = build("bert@tiny"), REAL[filled]
    wanted = torch.cat([row.nonzero()[:each, 0] + number * LENGTH for number, row in enumerate(real)])
    given = Stream(ids(), Padded(real), wanted=wanted, keep=0, skips_filling=True)
    some = network({"encoder": given})["encoder"].flatten(0, 1)[wanted]
    assert len(counted) == 1
    same = network({"encoder": replace(given, skips_filling=False)})["encoder"].flatten(0, 1)[wanted]
    torch.testing.assert_close(some, same, rtol=1e-4, atol=1e-5)
    for one, other in zip(learnt(network, some), learnt(network, same), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_groups_are_of_like_length_and_hold_every_place_once(monkeypatch):
    made = Ragged(RIGHT, apart=True)
    assert [group.length for group in made.groups] == [3, 5, 11]
    assert sorted(made.places.tolist()) == RIGHT.flatten().nonzero()[:, 0].tolist()
    assert sum(group.count for group in made.groups) < 0.6 * RIGHT.numel()
    x = torch.randn(BATCH, LENGTH, 2)
    torch.testing.assert_close(made.spread(made.squeeze(x)), x * RIGHT[:, :, None])
    for group, part in made.parts(made.squeeze(x)):
        torch.testing.assert_close(part, (x * RIGHT[:, :, None])[group.rows, : group.length])
    assert len(Ragged(RIGHT, apart=False).groups) == len(Ragged(RIGHT[:5], apart=True).groups) == 1
    monkeypatch.setattr(ragged, "SMALL", 10_000)
    assert len(Ragged(RIGHT, apart=True).groups) == 1


def test_a_row_that_is_filling_throughout_is_no_trouble():
    real = RIGHT.clone()
    real[[2, 9]] = False
    network = build("bert@tiny")
    with torch.no_grad():
        found = network({"encoder": Stream(ids(), Padded(real), keep=0, skips_filling=True)})["encoder"]
        whole = network({"encoder": Stream(ids(), Padded(RIGHT))})["encoder"]
    assert not found[[2, 9]].any() and torch.isfinite(found).all()
    torch.testing.assert_close(found[real], whole[real], rtol=1e-4, atol=1e-5)


def test_little_filling_is_left_where_it_is(counted):
    network = build("bert@tiny")
    nearly = torch.ones(8, 10, dtype=torch.bool)
    nearly[0, 5:] = False
    with torch.no_grad():
        network({"encoder": Stream(torch.zeros(8, 10, dtype=torch.int64), Padded(nearly), keep=0, skips_filling=True)})
    assert not counted

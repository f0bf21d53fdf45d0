"""Batches computed without padding: outputs and gradients are those of the padded computation and of single rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stemma import recipe_loading
from stemma.network import stack, unpad
from stemma.network.heads import ClassHead, Pooler
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.network.unpad import UnpaddedBatch, should_unpad
from stemma.visibility import Bidirectional, Causal, PaddingRule, Visibility

pytestmark = pytest.mark.usefixtures("unpad_small_batches")

LENGTHS = [3, 11, 1, 5, 5, 2, 9, 4, 6, 1, 2, 3, 3]
BATCH, LENGTH, VOCABULARY = len(LENGTHS), max(LENGTHS), 29
RIGHT_PADDED = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
HOLES = RIGHT_PADDED & (torch.arange(LENGTH) % 4 != 1)
TOKEN_MASKS = {"right": RIGHT_PADDED, "left": RIGHT_PADDED.flip(1), "holes": HOLES}
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


def gradients(network: Network, outputs: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of a random linear function of the outputs."""
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    result = torch.autograd.grad((outputs * weights).sum(), list(network.parameters()), allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(result, network.parameters(), strict=True)]


@pytest.fixture(autouse=True)
def group_small_batches_too(monkeypatch):
    monkeypatch.setattr(unpad, "MIN_SCORES_TO_GROUP", 0)


@pytest.fixture
def recorded(monkeypatch) -> list[UnpaddedBatch]:
    """Every batch that is computed without padding."""
    batches: list[UnpaddedBatch] = []

    class RecordedBatch(UnpaddedBatch):
        def __init__(self, *arguments: object, **more: object):
            super().__init__(*arguments, **more)
            batches.append(self)

    monkeypatch.setattr(stack, "UnpaddedBatch", RecordedBatch)
    return batches


@pytest.mark.parametrize("padding", TOKEN_MASKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_outputs_and_gradients_equal_those_with_padding(name, padding, recorded):
    network, token_mask = build(name), TOKEN_MASKS[padding]
    attention_mask: Visibility = FAMILIES[name] & PaddingRule(token_mask)
    stream = Stream(ids(), attention_mask, reuse_length=0, skip_padding=True)
    unpadded = network({"encoder": stream})["encoder"]
    assert len(recorded) == 1
    with_padding = network({"encoder": replace(stream, skip_padding=False)})["encoder"]
    assert len(recorded) == 1
    assert not unpadded[~token_mask].any()
    torch.testing.assert_close(unpadded[token_mask], with_padding[token_mask], rtol=1e-4, atol=1e-5)
    for first, second in zip(gradients(network, unpadded[token_mask]),
                             gradients(network, with_padding[token_mask]), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert@tiny", "gpt2@tiny", "xlnet@tiny"])
def test_rows_have_the_same_output_in_a_batch_and_alone(name, recorded):
    network = build(name)
    with torch.no_grad():
        stream = Stream(ids(), FAMILIES[name] & PaddingRule(RIGHT_PADDED), reuse_length=0, skip_padding=True)
        together = network({"encoder": stream})["encoder"]
        for row, length in enumerate(LENGTHS):
            alone = network({"encoder": Stream(ids()[row:row + 1, :length], FAMILIES[name])})["encoder"]
            torch.testing.assert_close(together[row, :length], alone[0], rtol=1e-4, atol=1e-5)
    assert len(recorded) == 1


@pytest.mark.parametrize("padding", ["right", "holes"])
@pytest.mark.parametrize("per_row", [1, 2])
def test_output_positions_are_combined_with_unpadding(padding, per_row, recorded):
    network, token_mask = build("bert@tiny"), TOKEN_MASKS[padding]
    positions = torch.cat([row.nonzero()[:per_row, 0] + index * LENGTH for index, row in enumerate(token_mask)])
    stream = Stream(ids(), PaddingRule(token_mask), output_positions=positions, reuse_length=0, skip_padding=True)
    result = network({"encoder": stream})["encoder"].flatten(0, 1)[positions]
    assert len(recorded) == 1
    expected = network({"encoder": replace(stream, skip_padding=False)})["encoder"].flatten(0, 1)[positions]
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    for first, second in zip(gradients(network, result), gradients(network, expected), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_groups_have_similar_lengths_and_contain_every_token_once(monkeypatch):
    batch = UnpaddedBatch(RIGHT_PADDED, group_by_length=True)
    assert [group.length for group in batch.groups] == [3, 5, 11]
    assert sorted(batch.token_indices.tolist()) == RIGHT_PADDED.flatten().nonzero()[:, 0].tolist()
    assert sum(group.num_positions for group in batch.groups) < 0.6 * RIGHT_PADDED.numel()
    x = torch.randn(BATCH, LENGTH, 2)
    torch.testing.assert_close(batch.pad(batch.unpad(x)), x * RIGHT_PADDED[:, :, None])
    for group, part in batch.padded_groups(batch.unpad(x)):
        torch.testing.assert_close(part, (x * RIGHT_PADDED[:, :, None])[group.rows, : group.length])
    assert len(UnpaddedBatch(RIGHT_PADDED, group_by_length=False).groups) == len(UnpaddedBatch(RIGHT_PADDED[:5],
        group_by_length=True).groups) == 1
    monkeypatch.setattr(unpad, "MIN_SCORES_TO_GROUP", 10_000)
    assert len(UnpaddedBatch(RIGHT_PADDED, group_by_length=True).groups) == 1


def test_a_row_of_padding_only_is_allowed():
    token_mask = RIGHT_PADDED.clone()
    token_mask[[2, 9]] = False
    network = build("bert@tiny")
    with torch.no_grad():
        stream = Stream(ids(), PaddingRule(token_mask), reuse_length=0, skip_padding=True)
        result = network({"encoder": stream})["encoder"]
        with_padding = network({"encoder": Stream(ids(), PaddingRule(RIGHT_PADDED))})["encoder"]
    assert not result[[2, 9]].any() and torch.isfinite(result).all()
    torch.testing.assert_close(result[token_mask], with_padding[token_mask], rtol=1e-4, atol=1e-5)


def test_a_batch_with_little_padding_is_not_unpadded(recorded):
    network = build("bert@tiny")
    token_mask = torch.ones(8, 10, dtype=torch.bool)
    token_mask[0, 5:] = False
    with torch.no_grad():
        network({"encoder": Stream(torch.zeros(8, 10, dtype=torch.int64), PaddingRule(token_mask), reuse_length=0,
                                   skip_padding=True)})
    assert not recorded


@pytest.mark.parametrize(("tokens", "width", "unpadded"), [
    (95, 1024, False),  # 5% padding
    (60, 1024, False),  # too little in all: 40 positions
    (60, 2048, True)])
def test_padding_is_removed_only_where_that_pays(monkeypatch, tokens, width, unpadded):
    monkeypatch.setattr(unpad, "MIN_SAVING", 1 << 16)
    assert should_unpad(torch.arange(100)[None] < tokens, width) is unpadded

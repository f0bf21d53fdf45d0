"""Recurrent translators against a literal transcription: outputs and gradients, in eval and train mode; caches."""

from __future__ import annotations

import pytest
import torch
from closeness import assert_close
from conftest import SEED
from literal import attentional_translator as literal
from torch import Tensor

import stemma
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.recipe_loading import recipe
from stemma.visibility import Causal, PaddingRule

VOCABULARY, WIDTH = 30, 12
SIZES = ["network.width=12", "network.embedding.width=7", "network.initialization.std=0.4"]
KINDS = {
    "rnnsearch": ("rnnsearch@tiny", ["network.decoder.depth.hidden=5", "network.decoder.depth.readout=4"]),
    "one layer": ("rnnsearch@tiny", ["network.decoder.depth.hidden=5", "network.decoder.depth.readout=4",
                                     "network.layers=1", "network.decoder.layers=1"]),
    "additive, input feeding": ("rnnsearch@tiny", ["network.decoder.depth.hidden=5", "network.decoder.depth.readout=4",
                                                   "network.decoder.depth.feeding=output"]),
    "cove": ("cove@tiny", []),
    "general, no feeding": ("cove@tiny", ["network.decoder.depth.feeding=none"]),
    "dot, context": ("cove@tiny", ["network.decoder.depth.score=dot", "network.decoder.depth.feeding=context"]),
    "residual, context": ("cove@tiny", ["network.decoder.depth.residual=1", "network.decoder.depth.feeding=context",
                                        "network.decoder.own_embedding=true"]),
    "residual": ("cove@tiny", ["network.decoder.depth.residual=1"]),
    "residual, no feeding": ("cove@tiny", ["network.decoder.depth.residual=2",
                                           "network.decoder.depth.feeding=none"]),
}
LENGTHS, TARGET = (6, 3, 1), 5


def build(kind: str) -> Network:
    name, changes = KINDS[kind]
    if name.startswith("cove"):
        changes = [*changes, "network.decoder.depth.hidden=12", "network.decoder.depth.readout=12"]
    settings = recipe(name, [*SIZES, *changes, "network.dropout=0.0", "network.output_dropout=0.0"]).settings.network
    torch.manual_seed(SEED)
    network = Network(settings, VOCABULARY, {}).double()
    with torch.no_grad():
        for parameter in network.parameters():  # biases too
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return network


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    source = torch.randint(VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    target = torch.randint(VOCABULARY, (len(LENGTHS), TARGET), generator=generator)
    return source, target, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


def streams(source: Tensor, target: Tensor, mask: Tensor) -> dict[str, Stream]:
    return {"encoder": Stream(source, PaddingRule(mask)), "decoder": Stream(target, Causal())}


def named(module: torch.nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


def reference(network: Network, source: Tensor, target: Tensor) -> tuple[list[Tensor], list[list[list[Tensor]]]]:
    """(each row's readouts (L, width), each row's encoder outputs by layer) of the literal transcription."""
    body = network.settings.decoder.depth
    table, target_table = network.embedding.tokens.weight, network.embedding_of("decoder").tokens.weight
    encoder = [[named(direction) for direction in layer.directions] for layer in network.encoder.layers]
    decoder = network.decoder
    readouts, encoded = [], []
    for row, length in enumerate(LENGTHS):
        outputs, states = literal.encode(list(table[source[row, :length]]), encoder)
        if decoder.start is not None:
            states = literal.first_states(outputs[-1], [named(linear) for linear in decoder.start.maps])
        readouts.append(torch.stack(literal.decode(
            list(target_table[target[row]]), outputs[-1], states, [named(layer) for layer in decoder.layers],
            named(decoder.attention), named(decoder.readout), score=body.score, feeding=body.feeding,
            residual=body.residual)))
        encoded.append(outputs)
    return readouts, encoded


@pytest.fixture(autouse=True)
def double_precision(monkeypatch):
    """The body computes in fp32; the comparison of gradients needs more digits."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_equal_the_literal_transcription(kind, training):
    network = build(kind).train(training)
    source, target, mask = inputs()
    output = network(streams(source, target, mask))
    readouts, encoded = reference(network, source, target)
    expected = torch.stack(readouts)
    torch.testing.assert_close(output["decoder"], expected)
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(output["encoder"][row, :length], torch.stack(encoded[row][-1]))
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = list(network.parameters())
    gradients = [torch.autograd.grad((result * weights).sum(), parameters) for result in (output["decoder"], expected)]
    for (name, parameter), result, wanted in zip(network.named_parameters(), *gradients, strict=True):
        torch.testing.assert_close(result, wanted, msg=lambda text, name=name: f"{name}: {text}")
        assert parameter.grad is None and wanted.abs().max() > 0, name


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_cache_gives_the_same_outputs_in_another_order_of_rows(kind):
    network = build(kind).eval()
    source, target, mask = inputs()
    whole = network(streams(source, target, mask))["decoder"]
    cache = network.new_cache()
    first = network(streams(source, target[:, :2], mask), cache)["decoder"]
    assert_close(first, whole[:, :2])
    rows = torch.tensor([2, 0, 0, 1])
    cache.reorder(rows)
    for position in range(2, TARGET):
        step = network({"decoder": Stream(target[rows, position:position + 1], Causal())}, cache)["decoder"]
        assert_close(step[:, 0], whole[rows, position])


@torch.no_grad()
def test_attention_probabilities_add_up_to_one_and_leave_out_padding():
    network = build("rnnsearch").eval()
    source, target, mask = inputs()
    (scores,) = network(streams(source, target, mask), keep_attention_scores=True).attention_scores["cross"]
    assert scores.shape == (len(LENGTHS), 1, TARGET, max(LENGTHS))
    shares = scores.softmax(-1)
    assert shares.masked_select(~mask[:, None, None].expand_as(shares)).max() < 1e-12
    assert_close(shares.sum(-1), torch.ones_like(shares.sum(-1)))


def test_dropout_changes_outputs_in_training_only():
    network = build("cove")
    network.decoder.dropout.p = 0.5
    source, target, mask = inputs()
    results = [network.train(training)(streams(source, target, mask))["decoder"] for training in (True, True, False)]
    assert not torch.allclose(results[0], results[1])
    torch.testing.assert_close(results[2], network(streams(source, target, mask))["decoder"])


@pytest.mark.parametrize(("changes", "message"), [
    (["network.layers=1"], "encoder has 1 layers and the decoder 2"),
    (["network.depth.kind=lstm", "network.decoder.depth.start=first"], "backward direction"),
    (["network.decoder.depth.hidden=64"], "as wide as those of the decoder (64)"),
    (["remove=network.decoder", "network.depth.kind=attentional_lstm"], "attends to an encoder's output")])
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError) as caught:
        stemma.recipe("cove@tiny", changes)
    assert message in str(caught.value) + str(caught.value.problems)

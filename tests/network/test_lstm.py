"""LSTM layers and bodies equal a literal transcription and torch.nn.LSTM, with padding, states and dropout masks."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import stemma
from stemma import recipe_loading
from stemma.errors import UserError
from stemma.network import dropout, embedding, lstm_layer
from stemma.network.cache import Memory
from stemma.network.initialization import Initializer
from stemma.network.inputs_outputs import Stream
from stemma.network.lstm import flop_counts
from stemma.network.lstm_layer import LSTMLayer, LSTMState
from stemma.training.optimizers import count_hidden_matrices
from stemma.visibility import Bidirectional, Causal, PaddingRule

sys.path.append(str(Path(__file__).parent.parent))
from literal import lstm as literal  # noqa: E402

VOCABULARY = 17


@pytest.fixture
def masks(monkeypatch) -> list[Tensor]:
    """All dropout masks that are drawn during the test, in order."""
    drawn: list[Tensor] = []
    draw = dropout.dropout_mask

    def record(*arguments, **options) -> Tensor:
        drawn.append(draw(*arguments, **options))
        return drawn[-1]

    for module in (dropout, embedding, lstm_layer):
        monkeypatch.setattr(module, "dropout_mask", record)
    return drawn


def layer_weights(layer: LSTMLayer) -> literal.Weights:
    return {name: parameter.double() for name, parameter in layer.named_parameters()}


def literal_layer(layer: LSTMLayer, x: Tensor, state: LSTMState, lengths: Tensor | None, reverse: bool,
                  weight_mask: Tensor | None) -> tuple[Tensor, LSTMState]:
    rows, finals, options = [], [], {"weight_mask": weight_mask, "cell_clip": layer.cell_clip,
                                     "projection_clip": layer.projection_clip}
    for row in range(len(x)):
        length = x.shape[1] if lengths is None else int(lengths[row])
        ys, output, cell = literal.layer(list(x[row, :length]), state.output[row], state.cell[row],
                                         layer_weights(layer), reverse, **options)
        rows.append(torch.stack([*ys, *[torch.zeros_like(output)] * (x.shape[1] - length)]))
        finals.append((output, cell))
    return torch.stack(rows), LSTMState(*(torch.stack(parts) for parts in zip(*finals, strict=True)))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("lengths", [None, [6, 3, 0, 1]], ids=["full", "padded"])
@pytest.mark.parametrize(("projection", "clip"), [(None, None), (None, 0.4), (3, None), (3, 0.4)],
                         ids=["plain", "clipped", "projected", "both"])
def test_a_layer_equals_the_formulas_with_gradients(masks, projection, clip, lengths, training):
    """Both directions, from a given state; a weighted sum of outputs and states has the same gradients everywhere."""
    torch.manual_seed(0)
    layer = LSTMLayer(4, 5, Initializer(0.8), projection=projection, weight_dropout=0.5, cell_clip=clip,
                      projection_clip=clip and projection and clip / 2, forget_bias=0.5).double().train(training)
    x = torch.randn(4, 6, 4, dtype=torch.double, requires_grad=True)
    state = LSTMState(*(torch.randn(4, width, dtype=torch.double, requires_grad=True)
                        for width in (layer.output_width, 5)))
    row_lengths = None if lengths is None else torch.tensor(lengths)
    leaves = [x, *state, *layer.parameters()]
    for reverse in (False, True):
        masks.clear()
        results = [layer(x, state, row_lengths, reverse)]
        assert len(masks) == training
        results.append(literal_layer(layer, x, state, row_lengths, reverse, masks[0] if training else None))
        gradients = []
        for y, final in results:
            loss = (y * torch.arange(y.numel(), dtype=torch.double).view_as(y).sin()).sum()
            loss = loss + final.output.square().sum() + final.cell.pow(3).sum()
            gradients.append(torch.autograd.grad(loss, leaves))
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*gradients)


def test_clipping_is_reached_in_that_test():
    """Otherwise the gradient of a clipped value would not be tested."""
    torch.manual_seed(0)
    layer = LSTMLayer(4, 5, Initializer(0.8), cell_clip=0.4)
    _, state = layer(torch.randn(4, 6, 4))
    assert (state.cell.abs() == 0.4).any() and (state.cell.abs() < 0.4).any()


def body_of(name: str, *changes: str) -> stemma.Model:
    torch.manual_seed(0)
    return stemma.build(name, VOCABULARY, list(changes))


BILSTM = ("lstm-lm@tiny", "network.depth.kind=bilstm", "network.width=12", "remove=objective.causal_lm",
          "objective.masked_lm={rate=0.15, dynamic=true, unit='token'}", "corpus.packing=full_sentences")


@pytest.mark.parametrize("kind", ["lstm", "bilstm"])
def test_the_bodies_equal_torch(kind):
    """Two layers in one direction or both, with and without padding at the end, at the start and in between."""
    changes = BILSTM[1:] if kind == "bilstm" else ("network.width=12",)
    model, directions = body_of("lstm-lm@tiny", *changes), 1 + (kind == "bilstm")
    network = model.network.eval()
    reference = nn.LSTM(12, 12 // directions, 2, batch_first=True, bidirectional=directions == 2)
    with torch.no_grad():
        for (index, layer), (direction, suffix) in itertools.product(
                enumerate(network.encoder.layers), enumerate(["", "_reverse"][:directions])):
            ours = layer.directions[direction]
            ours.bias.normal_()
            for name, value in (("weight_ih", ours.input), ("weight_hh", ours.recurrent), ("bias_ih", ours.bias)):
                getattr(reference, f"{name}_l{index}{suffix}").copy_(value)
            getattr(reference, f"bias_hh_l{index}{suffix}").zero_()
        ids = torch.randint(VOCABULARY, (4, 9))
        token_mask = torch.ones(4, 9, dtype=torch.bool)
        token_mask[1, 5:] = token_mask[2, :4] = token_mask[3, [0, 3, 4, 8]] = False
        visibility = Causal() if kind == "lstm" else Bidirectional()
        y = network({"encoder": Stream(ids, visibility & PaddingRule(token_mask))})["encoder"]
        for row in range(4):
            x = network.embedding.tokens(ids[row:row + 1][:, token_mask[row]])
            assert_close(y[row, token_mask[row]], reference(x)[0][0])
            assert not y[row, ~token_mask[row]].any()


@torch.no_grad()
@pytest.mark.parametrize("changes", [
    ["lstm-lm@tiny"], ["lstm-lm@tiny", "network.depth.hidden=20"],
    ["lstm-lm@tiny", "network.depth.hidden=20", "network.depth.projection=true", "network.depth.residual=true",
     "network.depth.cell_clip=0.1"],
    ["awd-lstm@tiny"], ["nnlm@tiny"], ["nnlm@tiny", "network.width=200", "network.embedding.width=10",
                                       "network.depth.direct=true"]], ids=" ".join)
def test_reading_in_parts_equals_one_pass(changes):
    """With a cache, and in training with the memory that the trainer carries from row to row."""
    network = body_of(*changes).network.eval()
    ids = torch.randint(VOCABULARY, (3, 20))
    at_once = network({"encoder": Stream(ids, Causal())})["encoder"]
    assert at_once.std() > 1e-3
    cache = network.new_cache()
    parts = [network({"encoder": Stream(ids[:, first:last], Causal())}, cache)["encoder"]
             for first, last in ((0, 7), (7, 8), (8, 9), (9, 20))]
    assert_close(torch.cat(parts, 1), at_once)
    assert cache.length == 20
    cache.reorder(torch.tensor([2, 0]))
    more = torch.randint(VOCABULARY, (2, 4))
    expected = network({"encoder": Stream(torch.cat([ids[[2, 0]], more], 1), Causal())})["encoder"][:, -4:]
    assert_close(network({"encoder": Stream(more, Causal())}, cache)["encoder"], expected)
    network.train()
    state = None
    for first, last in ((0, 1), (1, 9), (9, 20)):
        output = network({"encoder": Stream(ids[:, first:last], Causal())}, state)
        state = output.state
        assert isinstance(state, Memory) and state.length > 0
        assert_close(output["encoder"], at_once[:, first:last])


def test_what_is_stored_is_chosen_by_the_stream():
    """Fine-tuning stores nothing; with `reuse_length` the state is that after the first positions."""
    network = body_of("lstm-lm@tiny").network.train()
    ids = torch.randint(VOCABULARY, (2, 8))
    assert network({"encoder": Stream(ids, Causal(), reuse_length=0)}).state is None
    some = network({"encoder": Stream(ids, Causal(), reuse_length=5)})
    short = network({"encoder": Stream(ids[:, :5], Causal())})
    assert_close(list(some.state.hidden_states), list(short.state.hidden_states))
    assert_close(some["encoder"], network({"encoder": Stream(ids, Causal())})["encoder"])
    assert not any(states.requires_grad for states in some.state.hidden_states)


AWD = ["network.width=6", "network.depth.hidden=9", "network.layers=3", "network.dropout=0.3",
       "network.output_dropout=0.4", "network.depth.weight_dropout=0.5", "network.depth.activation_penalty=2.0",
       "network.depth.temporal_penalty=1.0", "network.embedding.dropout=0.4", "network.embedding.word_dropout=0.3",
       "network.embedding.scale=false"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_awd_lstm_equals_the_formulas_with_gradients(masks, training):
    """Loss and both penalties of two consecutive rows; all masks are drawn once per row, not per position."""
    network = body_of("awd-lstm@tiny", *AWD).network.double().train(training)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4).add_(torch.randn(parameter.shape) * 0.2)
    batch, length = 2, 5
    ids = torch.randint(VOCABULARY, (batch, 2 * length + 1))
    layers = [layer_weights(layer.directions[0]) for layer in network.encoder.layers]
    table, bias = network.embedding.tokens.weight, network.heads["vocabulary"].bias
    states = [[(torch.zeros(len(weights["recurrent"][0]), dtype=torch.double),
                torch.zeros(len(weights["bias"]) // 4, dtype=torch.double)) for weights in layers]
              for _ in range(batch)]
    state = None if training else network.new_cache()
    for start in (0, length):
        masks.clear()
        network.zero_grad()
        output = network({"encoder": Stream(ids[:, start:start + length], Causal())}, state)
        state, labels = output.state, ids[:, start + 1:start + length + 1]
        logits = network.heads["vocabulary"](output["encoder"]).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
        one = torch.ones((), dtype=torch.double)
        if training:
            word, embedded, weight_0, hidden_0, weight_1, hidden_1, weight_2, last = masks
            assert [mask.shape for mask in (word, embedded, hidden_0, last)] == [
                (VOCABULARY,), (batch, 1, 6), (batch, 1, 9), (batch, 1, 6)]
            assert set(embedded.unique().tolist()) <= {0.0, embedded.max().item()}
            row_masks = [literal.Masks(word, embedded[row, 0], [weight_0, weight_1, weight_2],
                                       [hidden_0[row, 0], hidden_1[row, 0]], last[row, 0]) for row in range(batch)]
        else:
            assert not masks and not output.auxiliary_losses
            row_masks = [literal.Masks(one.expand(VOCABULARY), one, [one] * 3, [one] * 2, one)] * batch
        results = [literal.awd_lstm(ids[row, start:start + length].tolist(), labels[row].tolist(), table, bias, layers,
                                    states[row], row_masks[row], 2.0, 1.0) for row in range(batch)]
        states = [[(a.detach(), b.detach()) for a, b in result[3]] for result in results]
        expected = [sum(result[index] for result in results) for index in range(3)]
        assert_close(loss, expected[0])
        if not training:
            continue
        penalties = output.auxiliary_losses
        assert_close([penalties["activation"], penalties["temporal"]], [total / batch for total in expected[1:]])
        parameters = list(network.parameters())
        total = torch.autograd.grad(loss + sum(penalties.values()), parameters)
        reference = torch.autograd.grad(expected[0] + (expected[1] + expected[2]) / batch, parameters)
        assert_close(list(total), list(reference))


def test_penalties_are_means_over_tokens_without_padding():
    network = body_of("awd-lstm@tiny", "network.depth.activation_penalty=2.0",
                      "network.depth.temporal_penalty=1.0").network.train()
    ids = torch.randint(VOCABULARY, (2, 6))
    token_mask = torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    padded = network({"encoder": Stream(ids, Causal() & PaddingRule(token_mask))}).auxiliary_losses
    alone = [network({"encoder": Stream(ids[row:row + 1, start:], Causal())}).auxiliary_losses
             for row, start in ((0, 0), (1, 2))]
    for name, (first, second) in {"activation": (6, 4), "temporal": (5, 3)}.items():
        mean = (alone[0][name] * first + alone[1][name] * second) / (first + second)
        assert_close(padded[name], mean)


@pytest.mark.parametrize("direct", [False, True])
def test_nnlm_equals_the_formula_with_gradients(direct):
    width, hidden, order = 6, 5, 4
    network = body_of("nnlm@tiny", f"network.width={hidden + direct * width * (order - 1)}",
                      f"network.embedding.width={width}", f"network.depth.order={order}",
                      f"network.depth.direct={str(direct).lower()}").network.double().train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.5)
    ids, head, body = torch.randint(VOCABULARY, (2, 7)), network.heads["vocabulary"], network.encoder
    output = head(network({"encoder": Stream(ids, Causal())})["encoder"])
    matrix = head.output.weight
    expected = torch.stack([torch.stack(literal.nnlm(
        row.tolist(), order, network.embedding.tokens.weight, body.hidden.weight, body.hidden.bias, matrix[:, :hidden],
        matrix[:, hidden:] if direct else None, head.bias)) for row in ids])
    assert_close(output, expected)
    weights = torch.randn_like(expected)
    parameters = list(network.parameters())
    assert_close(*(list(torch.autograd.grad((logits * weights).sum(), parameters)) for logits in (output, expected)))


@pytest.mark.parametrize(("name", "changes", "key", "expected"), [
    ("lstm-lm@tiny", ["network.depth.residual=true", "network.depth.hidden=64"], "network.depth.residual",
     "all layers need one width"),
    ("lstm-lm@tiny", ["network.depth.projection=true"], "network.depth.projection", "set network.depth.hidden"),
    ("lstm-lm@tiny", ["network.depth.projection_clip=3.0"], "network.depth.projection_clip", "no projection to clip"),
    ("lstm-lm@tiny", ["network.depth.weight_dropout=1.0"], "network.depth.weight_dropout", "less than 1"),
    ("lstm-lm@tiny", ["network.heads=2"], "network.heads", "means nothing to a body of kind lstm"),
    ("lstm-lm@tiny", ["network.depth.kind=bilstm"], "network.depth.kind", "cannot be causal"),
    ("lstm-lm@tiny", ["network.memory.length=8"], "network.memory", "relative_xl"),
    (BILSTM[0], [*BILSTM[1:], "network.width=13"], "network.width", "is shared by two directions, and 13 is odd"),
    ("nnlm@tiny", ["network.depth.direct=true"], "network.depth.direct",
     "the output layer reads 4 embeddings, 256 numbers, and network.width is 128"),
    ("nnlm@tiny", ["network.depth.order=1"], "network.depth.order", "must lie between 2 and 64"),
    ("awd-lstm@tiny", ["training.ema=0.9"], "training.ema", "another average"),
    ("awd-lstm@tiny", ["network.embedding.width=32"], "network.embedding.width", "the LM head"),
])
def test_bad_settings_are_refused_in_a_sentence(name, changes, key, expected):
    with pytest.raises(UserError) as refused:
        recipe_loading.recipe(name, changes)
    assert any(found.split(" = ")[0] == key and expected in message for found, message in refused.value.problems), \
        refused.value.problems


def test_a_network_larger_than_memory_is_refused():
    with pytest.raises(UserError, match="this machine has"):
        stemma.build("awd-lstm@tiny", 100, ["network.depth.hidden=1000000"])


def test_word_dropout_removes_all_occurrences_of_a_word_in_any_network():
    network = body_of("gpt2@tiny", "network.embedding.word_dropout=0.5").network
    ids = torch.arange(VOCABULARY).repeat(2, 2)
    module, plain = network.embedding, network.embedding.tokens(ids)
    x = module.train()(Stream(ids)) - module.position(ids, None)
    kept = x[0, :VOCABULARY].abs().sum(1) > 1e-6
    assert 0 < kept.sum() < VOCABULARY
    assert_close(x, plain * 2 * kept.repeat(2)[None, :, None])
    assert_close(module.eval()(Stream(ids)) - module.position(ids, None), plain)


def test_muon_orthogonalizes_each_gate_separately():
    network = body_of("lstm-lm@tiny", "network.depth.hidden=20", "network.depth.projection=true").network
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    counts = {names[id(parameter)]: count for parameter, count in count_hidden_matrices(network).items()}
    assert counts == {f"encoder.layers.{layer}.directions.0.{name}": count for layer in range(2)
                      for name, count in (("input", 4), ("recurrent", 4), ("projection", 1))}


@pytest.mark.parametrize("projection", [None, 7])
def test_flops_are_those_of_the_matrix_products(projection):
    layer = LSTMLayer(5, 6, Initializer(0.1), projection=projection)
    with FlopCounterMode(display=False, custom_mapping=flop_counts()) as counter:
        layer(torch.randn(3, 4, 5, requires_grad=True))[0].sum().backward()
    weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim == 2)
    assert counter.get_total_flops() == 3 * 2 * 3 * 4 * weights

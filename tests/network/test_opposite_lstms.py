"""ELMo's network in training equals the literal transcription: directions, states, dropout, loss and gradients."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close
from torch import Tensor

import stemma
from stemma.exchange.elmo import from_published, layout
from stemma.network import dropout, embedding, lstm_layer
from stemma.network.cache import KVCache, Memory
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_objectives
from stemma.objectives.batch import Batch, Target
from stemma.visibility import Causal, PaddingRule

sys.path.append(str(Path(__file__).parent.parent))
from literal import elmo as literal  # noqa: E402

WORDS = ["<S>", "</S>", "the", "cat", "sat", "dog", "naïve"]
SMALL = ["tokenizer.vocab_size=7", "network.width=12", "network.embedding.width=6", "network.depth.hidden=10",
         "network.depth.cell_clip=0.3", "network.depth.projection_clip=0.3", "network.inputs.characters.longest=8",
         "network.inputs.characters.size=3", "network.inputs.characters.widths=[1,2]",
         "network.inputs.characters.filters=[4,5]", "objective.bidirectional_lm.sampled=0"]
LENGTHS = [5, 5, 5, 3]  # the last two rows are in reversed order


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


def small(*changes: str):
    """A small network with random weights, which also are in the layout of the released files."""
    model = stemma.build("elmo", changes=[*SMALL, *changes])
    generator = torch.Generator().manual_seed(0)
    arrays = {name: (torch.randn(shape, generator=generator) * 0.6).numpy()
              for name, shape in layout(model.recipe).items()}
    model.network.load_state_dict(from_published(arrays, model.recipe), strict=False)
    longest = model.recipe.settings.network.inputs["characters"].longest
    model.network.embedding.inputs["characters"].spell(
        np.array([literal.symbols(word, longest) for word in WORDS], np.int16))
    with torch.no_grad():
        model.network.heads["vocabulary"].output.weight.normal_(generator=generator)
        model.network.heads["vocabulary"].bias.normal_(generator=generator)
    return model, {name: torch.from_numpy(array).double().requires_grad_() for name, array in arrays.items()}


def batch_of(seed: int) -> Batch:
    """Four rows in reading order, two of each direction; every position but padding has a target."""
    generator = torch.Generator().manual_seed(seed)
    ids, labels = (torch.randint(7, (4, 5), generator=generator) for _ in range(2))
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    stream = Stream(ids, PaddingRule(mask), reversed_rows=torch.tensor([False, False, True, True]), skip_padding=True)
    index = mask.flatten().nonzero()[:, 0]
    return Batch({"encoder": stream}, {"vocabulary": Target(index, labels.flatten()[index], float(len(index)), 5)},
                 num_rows=4)


def literal_loss(batch: Batch, weights: literal.Weights, head: tuple[Tensor, Tensor], states: list, masks: list[Tensor],
                 score) -> tuple[Tensor, list]:
    """The mean loss over all targets, one row and position at a time, and the states of each row."""
    stream, target = batch.streams["encoder"], batch.token_targets["vocabulary"]
    labels = dict(zip(target.index.tolist(), target.labels.tolist(), strict=True))
    losses, last = [], []
    for row in range(4):
        direction, place = divmod(row, 2)

        def drop(key, x, row=row, direction=direction, place=place):
            if not masks:
                return x
            mask = {"embedding": lambda: masks[0][row, key[1]], "output": lambda: masks[-1][row, key[1]]}.get(
                key[0], lambda: masks[1 + direction][place, key[2]])()
            return x * mask.double()

        words = [WORDS[token] for token in stream.input_ids[row, :LENGTHS[row]].tolist()]
        vectors = [drop(("embedding", step), literal.word_vector(literal.symbols(word, 8), weights))
                   for step, word in enumerate(words)]
        outputs, state = literal.read(vectors, weights, direction, 2, True, 0.3, states[row], drop)
        last.append([tuple(part.detach() for part in layer) for layer in state])
        losses += [score(drop(("output", step), hidden), *head, labels[row * 5 + step], direction)
                   for step, hidden in enumerate(outputs[1])]
    return torch.stack(losses).mean(), last


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("sampled", [0, 3], ids=["full", "sampled"])
def test_the_loss_and_all_gradients_equal_the_literal_model(masks, monkeypatch, training, sampled):
    model, weights = small("network.dropout=0.25", "network.output_dropout=0.25",
                           f"objective.bidirectional_lm.sampled={sampled}")
    network, (objective,) = model.network.train(training), build_objectives(model.recipe)
    samples = []
    monkeypatch.setattr("stemma.network.heads.sample_tokens", lambda *arguments: samples.append(
        sample_tokens(*arguments)) or samples[-1])
    from stemma.network.sampled_softmax import sample_tokens

    head = tuple(parameter.detach().double().requires_grad_() for parameter in (network.head("vocabulary").weight,
                                                                                network.head("vocabulary").bias))
    state, states = None if training else KVCache(), [None] * 4
    for seed in range(2):  # the second batch continues the first
        masks.clear()
        samples.clear()
        network.zero_grad()
        batch = batch_of(seed)
        output = network(batch.streams, state)
        loss = objective.loss(network, output, batch)["bidirectional_lm"]
        loss.backward()
        assert len(masks) == (4 if training else 0) and len(samples) == (2 if training and sampled else 0)

        def score(hidden, matrix, bias, label, direction):
            if not samples:
                return literal.cross_entropy(hidden, matrix, bias, label)
            return literal.sampled_cross_entropy(hidden, matrix, bias, label, samples[direction].ids.tolist(),
                                                 samples[direction].draws)

        expected, states = literal_loss(batch, weights, head, states, masks, score)
        assert_close(loss.double(), expected)
        leaves = [*weights.values(), *head]
        gradients = torch.autograd.grad(expected, leaves)
        arrays = {name: gradient.float().numpy() for name, gradient in zip(weights, gradients, strict=False)}
        zeros = from_published({name: array * 0 for name, array in arrays.items()}, model.recipe)
        for name, gradient in from_published(arrays, model.recipe).items():
            assert_close(network.get_parameter(name).grad, gradient - zeros[name])
        for parameter, gradient in zip((network.head("vocabulary").weight, network.head("vocabulary").bias),
                                       gradients[-2:], strict=True):
            assert_close(parameter.grad, gradient.float())
        if training:
            assert isinstance(output.state, Memory)
            for layer in range(2):
                for part in range(2):
                    assert_close(output.state.hidden_states[2 * layer + part][:, 0].double(),
                                 torch.stack([row[layer][part] for row in states]))
            state = output.state
        for layer in [] if training else state.layers.values():  # a cache is for calls without gradients
            layer.sublayer_states = {name: part.detach() for name, part in layer.sublayer_states.items()}


@torch.no_grad()
def test_each_direction_sees_its_own_side_only():
    network = small()[0].network.eval()
    first = batch_of(0).streams["encoder"]
    ids = first.input_ids
    both = network({"encoder": Stream(ids)})["encoder"]
    assert both.shape == (4, 5, 12)
    changed = ids.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 7
    other = network({"encoder": Stream(changed)})["encoder"]
    same = (both == other).unflatten(-1, (2, 6)).all(-1).all(0)  # (L, directions)
    assert same.T.tolist() == [[True, True, False, False, False], [False, False, False, True, True]]
    assert_close(network({"encoder": Stream(ids, Causal())})["encoder"], both[..., :6])  # left to right alone
    flipped = network({"encoder": Stream(ids.flip(1), reversed_rows=torch.ones(4, dtype=torch.bool))})["encoder"]
    assert_close(flipped.flip(1), both[..., 6:])
    # padding, at either end, changes nothing
    padded = torch.cat([ids[:, :2] * 0, ids, ids[:, :1] * 0], 1)
    mask = torch.tensor([[False] * 2 + [True] * 5 + [False]]).expand(4, 8)
    states = network({"encoder": Stream(padded, PaddingRule(mask))}, keep_hidden_states=True)
    assert_close(states["encoder"][:, 2:7], both)
    assert [layer.shape[2] for layer in states.hidden_states["encoder"]] == [12, 12, 12]
    lowest = states.hidden_states["encoder"][0]
    assert torch.equal(lowest[..., :6], lowest[..., 6:])
    # slices of a batch may have rows of one direction only
    mixed = network({"encoder": first})["encoder"]
    for rows in (slice(0, 2), slice(2, 4)):
        assert_close(network({"encoder": replace(first.rows(rows), output_positions=None)})["encoder"], mixed[rows])


def test_the_laptop_sizes_use_the_fused_lstm():
    for size in ("tiny", "mini", "midi"):
        with torch.device("meta"):
            network = stemma.build(f"elmo@{size}").network
        for stack in network.encoder.directions:
            assert all(layer.projection is None and layer.cell_clip is None for layer in stack.layers)

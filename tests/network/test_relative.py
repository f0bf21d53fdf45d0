"""Relative positions, segments, memory and the second stream agree with XLNet's literal transcription."""

from __future__ import annotations

import random

import pytest
import torch
from literal import xlnet
from parity.reference import perturb

import stemma
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.visibility import Bidirectional, Causal, PaddingRule, Permutation

VOCABULARY, WIDTH, HEADS, MEMORY, REUSE = 31, 12, 3, 6, 4


def small(**changes) -> stemma.Model:
    values = {"layers": 2, "width": WIDTH, "heads": HEADS, "attention.head_width": 4, "feedforward": 17, "dropout": 0.0,
              "attention.dropout": 0.0, "inner_dropout": 0.0, "output_dropout": 0.0, "memory.length": MEMORY, **changes}
    base = stemma.recipe("xlnet").with_changes({f"network.{key}": value for key, value in values.items()}, "test")
    model = stemma.build(base, VOCABULARY)
    perturb(model.network, 2)
    return model


def transcribed(model: stemma.Model) -> xlnet.Weights:
    state = {name: value.double() for name, value in model.network.state_dict().items()}
    weights = {"table": state["embedding.tokens.weight"], "mask": state["embedding.query"],
               "bias": state["heads.vocabulary.bias"]}
    for layer in range(model.network.settings.layers):
        block = f"encoder.blocks.{layer}."
        query, key, value = state[f"{block}attention.input.weight"].chunk(3)
        relative = f"{block}attention.relative."
        same, different = state[f"{relative}segments"]
        weights |= {f"{layer}.{name}": tensor for name, tensor in {
            "query": query, "key": key, "value": value, "output": state[f"{block}attention.output.weight"],
            "relative": state[f"{relative}project.weight"], "u": state[f"{relative}content_bias"],
            "v": state[f"{relative}position_bias"], "segment_bias": state[f"{relative}segment_bias"],
            "same": same, "different": different}.items()}
        for ours, name in {"attention_norm": "attention_norm", "feedforward_norm": "feedforward_norm",
                           "feedforward.input": "inner", "feedforward.output": "outer"}.items():
            weights |= {f"{layer}.{name}": state[f"{block}{ours}.weight"],
                        f"{layer}.{name}_bias": state[f"{block}{ours}.bias"]}
    return weights


def nothing() -> list[torch.Tensor]:
    return [torch.zeros(0, WIDTH, dtype=torch.float64)] * 2


def random_order(length: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Three targets, one after the other in a random order; all else comes first, at once."""
    targets = rng.sample(range(length), 3)
    return [targets.index(place) + 1 if place in targets else 0 for place in range(length)], targets


def assert_near(ours: torch.Tensor, literal: torch.Tensor) -> None:
    assert literal.std() > 1e-2
    torch.testing.assert_close(ours.double(), literal, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("segmented", [False, True], ids=["without-segments", "segments"])
@pytest.mark.parametrize("clamp", [None, 3], ids=["plain", "clamped"])
def test_both_streams_over_several_segments(training, segmented, clamp):
    """One row is read forwards and one from its end, as in pre-training, where half of a row is remembered."""
    model = small(**{"position.clamp": clamp})
    network, weights = model.network.train(training), transcribed(model)
    rng, state, memories = random.Random(1), None, [nothing(), nothing()]
    for length in (8, 5, 7):
        ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(2)])
        types = torch.tensor([[rng.randrange(3) for _ in range(length)] for _ in range(2)]) if segmented else None
        orders, targets = zip(*(random_order(length, rng) for _ in range(2)), strict=True)
        stream = Stream(ids, Permutation(torch.tensor(orders)), segment_ids=types,
                        query_positions=torch.tensor(targets),
                        reversed_rows=torch.tensor([False, True]), reuse_length=REUSE)
        made = network({"encoder": stream}, state, keep_hidden_states=True)
        alone = network({"encoder": stream}, state) if training else made  # as it is trained: the text not to its end
        state = made.state
        scores = network.head("vocabulary")(alone[QUERY])
        for row in range(2):
            text, query, memories[row] = xlnet.two_streams(
                ids[row].tolist(), memories[row], weights, HEADS, orders[row], targets[row],
                None if types is None else types[row].tolist(), backward=row == 1, clamp=clamp, memory_length=MEMORY,
                reuse=REUSE)
            assert_near(made["encoder"][row], text)
            assert_near(made[QUERY][row], query)
            assert_near(scores[row], xlnet.logits(query, weights))
            if training:
                for ours, layer in zip(state.hidden_states, memories[row], strict=True):
                    assert_near(ours[row], layer)


@torch.no_grad()
def test_padding_on_either_side():
    model, rng = small(), random.Random(2)
    weights, length = transcribed(model), 7
    ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(2)])
    types = torch.tensor([[rng.randrange(3) for _ in range(length)] for _ in range(2)])
    real = torch.tensor([[place < 5 for place in range(length)], [place >= 3 for place in range(length)]])
    hidden = model.network({"encoder": Stream(ids, Bidirectional() & PaddingRule(real), segment_ids=types)})["encoder"]
    for row in range(2):
        expected, _, _ = xlnet.two_streams(ids[row].tolist(), nothing(), weights, HEADS, segments=types[row].tolist(),
                                           present=real[row].tolist())
        assert_near(hidden[row, real[row]], expected[real[row]])


@torch.no_grad()
@pytest.mark.parametrize(("start", "same_length"), [("empty", False), ("empty", True), ("zeros", True)])
def test_state_reuse_is_the_same_as_reading_again(start, same_length):
    """A cache of keys and values says what inputs, projected anew, would say; token by token or at once."""
    model = small(**{"memory.start": start, "memory.same_length": same_length, "memory.length": 20})
    ids = torch.randint(VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(0))
    whole = model.network({"encoder": Stream(ids, Causal())})["encoder"]
    cache = model.network.new_cache()
    pieces = [model.network({"encoder": Stream(ids[:, first:last], Causal())}, cache)["encoder"]
              for first, last in ((0, 3), (3, 4), (4, 10), (10, 11))]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=0)
    model.network.train()
    state, inputs = None, []
    for first, last in ((0, 3), (3, 4), (4, 10), (10, 11)):
        made = model.network({"encoder": Stream(ids[:, first:last], Causal())}, state)
        state = made.state
        inputs.append(made["encoder"])
    torch.testing.assert_close(torch.cat(inputs, 1), whole, atol=1e-5, rtol=0)


@torch.no_grad()
def test_as_many_distances_are_not_the_same_ones():
    """Eight of eight places and five of eleven are fifteen distances each, but others."""
    model, generator = small(), torch.Generator().manual_seed(0)
    first, second = (torch.randint(VOCABULARY, (1, length), generator=generator) for length in (8, 5))
    kept = model.network.new_cache()
    model.network({"encoder": Stream(first, Bidirectional())}, kept)
    made = model.network({"encoder": Stream(second, Bidirectional())}, kept)["encoder"]
    weights = transcribed(model)
    _, _, memory = xlnet.two_streams(first[0].tolist(), nothing(), weights, HEADS, memory_length=MEMORY)
    expected, _, _ = xlnet.two_streams(second[0].tolist(), memory, weights, HEADS, memory_length=MEMORY)
    assert_near(made[0], expected)

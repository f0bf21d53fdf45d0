"""Relative positions, segments, memory and the query stream match a literal transcription of XLNet."""

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


def empty_memory() -> list[torch.Tensor]:
    return [torch.zeros(0, WIDTH, dtype=torch.float64)] * 2


def random_order(length: int, rng: random.Random) -> tuple[list[int], list[int]]:
    """Three targets in random order, after all other positions."""
    targets = rng.sample(range(length), 3)
    return [targets.index(i) + 1 if i in targets else 0 for i in range(length)], targets


def assert_near(ours: torch.Tensor, literal: torch.Tensor) -> None:
    assert literal.std() > 1e-2
    torch.testing.assert_close(ours.double(), literal, atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("segmented", [False, True], ids=["without-segments", "segments"])
@pytest.mark.parametrize("clamp", [None, 3], ids=["plain", "clamped"])
def test_both_streams_match_over_several_segments(training, segmented, clamp):
    """One row is forward and one reversed, as in pre-training, where half of a row is stored in the memory."""
    model = small(**{"position.clamp": clamp})
    network, weights = model.network.train(training), transcribed(model)
    rng, state, memories = random.Random(1), None, [empty_memory(), empty_memory()]
    for length in (8, 5, 7):
        ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(2)])
        types = torch.tensor([[rng.randrange(3) for _ in range(length)] for _ in range(2)]) if segmented else None
        orders, targets = zip(*(random_order(length, rng) for _ in range(2)), strict=True)
        stream = Stream(ids, Permutation(torch.tensor(orders)), segment_ids=types,
                        query_positions=torch.tensor(targets),
                        reversed_rows=torch.tensor([False, True]), reuse_length=REUSE)
        output = network({"encoder": stream}, state, keep_hidden_states=True)
        # as in training, where the last layer of the content stream is not computed
        alone = network({"encoder": stream}, state) if training else output
        state = output.state
        scores = network.head("vocabulary")(alone[QUERY])
        for row in range(2):
            text, query, memories[row] = xlnet.two_streams(
                ids[row].tolist(), memories[row], weights, HEADS, orders[row], targets[row],
                None if types is None else types[row].tolist(), backward=row == 1, clamp=clamp, memory_length=MEMORY,
                reuse=REUSE)
            assert_near(output["encoder"][row], text)
            assert_near(output[QUERY][row], query)
            assert_near(scores[row], xlnet.logits(query, weights))
            if training:
                for ours, layer in zip(state.hidden_states, memories[row], strict=True):
                    assert_near(ours[row], layer)


@torch.no_grad()
def test_left_and_right_padding_match():
    model, rng = small(), random.Random(2)
    weights, length = transcribed(model), 7
    ids = torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(2)])
    types = torch.tensor([[rng.randrange(3) for _ in range(length)] for _ in range(2)])
    token_mask = torch.tensor([[i < 5 for i in range(length)], [i >= 3 for i in range(length)]])
    stream = Stream(ids, Bidirectional() & PaddingRule(token_mask), segment_ids=types)
    hidden = model.network({"encoder": stream})["encoder"]
    for row in range(2):
        expected, _, _ = xlnet.two_streams(ids[row].tolist(), empty_memory(), weights, HEADS,
                                           segments=types[row].tolist(), present=token_mask[row].tolist())
        assert_near(hidden[row, token_mask[row]], expected[token_mask[row]])


@torch.no_grad()
@pytest.mark.parametrize(("start", "same_length"), [("empty", False), ("empty", True), ("zeros", True)])
def test_reusing_state_equals_recomputing(start, same_length):
    """A cache of keys and values and a memory of hidden states both equal one pass over the whole text."""
    model = small(**{"memory.start": start, "memory.same_length": same_length, "memory.length": 20})
    ids = torch.randint(VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(0))
    at_once = model.network({"encoder": Stream(ids, Causal())})["encoder"]
    cache = model.network.new_cache()
    outputs = [model.network({"encoder": Stream(ids[:, first:last], Causal())}, cache)["encoder"]
               for first, last in ((0, 3), (3, 4), (4, 10), (10, 11))]
    torch.testing.assert_close(torch.cat(outputs, 1), at_once, atol=1e-5, rtol=0)
    model.network.train()
    state, inputs = None, []
    for first, last in ((0, 3), (3, 4), (4, 10), (10, 11)):
        output = model.network({"encoder": Stream(ids[:, first:last], Causal())}, state)
        state = output.state
        inputs.append(output["encoder"])
    torch.testing.assert_close(torch.cat(inputs, 1), at_once, atol=1e-5, rtol=0)


@torch.no_grad()
def test_cached_relative_positions_depend_on_queries_and_keys():
    """8 queries of 8 keys and 5 queries of 11 keys both have 15 distances, but different ones."""
    model, generator = small(), torch.Generator().manual_seed(0)
    first, second = (torch.randint(VOCABULARY, (1, length), generator=generator) for length in (8, 5))
    cache = model.network.new_cache()
    model.network({"encoder": Stream(first, Bidirectional())}, cache)
    output = model.network({"encoder": Stream(second, Bidirectional())}, cache)["encoder"]
    weights = transcribed(model)
    _, _, memory = xlnet.two_streams(first[0].tolist(), empty_memory(), weights, HEADS, memory_length=MEMORY)
    expected, _, _ = xlnet.two_streams(second[0].tolist(), memory, weights, HEADS, memory_length=MEMORY)
    assert_near(output[0], expected)

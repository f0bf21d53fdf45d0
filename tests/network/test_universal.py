"""The Universal Transformer agrees with its literal transcription: steps, halting, transitions, text bit by bit."""

from __future__ import annotations

import json
import math

import pytest
import torch
from closeness import assert_close
from literal import universal_transformer as literal
from parity.reference import perturb

import stemma
from stemma.network.inputs_outputs import NetworkOutput, Stream
from stemma.visibility import Bidirectional, Causal, PaddingRule

VOCABULARY, WIDTH, HEADS, STEPS, THRESHOLD = 31, 12, 3, 5, 0.9
HALTING = pytest.mark.parametrize("halting", [False, True], ids=["fixed", "adaptive"])
TRANSITION = pytest.mark.parametrize("transition", ["feedforward", "convolution"])
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
PLACE = pytest.mark.parametrize("place", ["post", "pre"])


def small(halting: bool, transition: str = "feedforward", place: str = "post", seed: int = 4) -> stemma.Model:
    values = {"layers": STEPS, "width": WIDTH, "heads": HEADS, "feedforward": 17, "dropout": 0.0, "norm.place": place,
              "norm.epsilon": 1e-5, "transition": transition}
    base = stemma.recipe("universal-transformer").with_changes(
        {f"network.{key}": value for key, value in values.items()}, "test")
    base = base.with_changes({"network.depth.halting": {"threshold": THRESHOLD, "cost": 0.01}} if halting
                             else {"remove": ["network.depth.halting"]}, "test")
    model = stemma.build(base, VOCABULARY)
    perturb(model.network, seed)
    if halting:
        spread(model)
    return model


@torch.no_grad()
def spread(model: stemma.Model) -> None:
    """Make some places halt at once and others later: by how far the first step tells them apart."""
    unit, asked = model.network.encoder.halting.unit, []
    unit.bias.fill_(-20.0)  # so that at first nobody halts
    hook = unit.register_forward_hook(lambda _, __, output: asked.append(output + 20.0))
    read(model, ids_of(4, 9, seed=1), Causal())
    hook.remove()
    scale = 4.0 / asked[0].std()
    unit.weight.mul_(scale)
    unit.bias.copy_(-asked[0].median() * scale)


def transcribed(model: stemma.Model) -> literal.Weights:
    return weights_of({name: value.double() for name, value in model.network.state_dict().items()}, "encoder")


def weights_of(state: dict[str, torch.Tensor], part: str) -> literal.Weights:
    """A side's weights by the names of the transcription."""
    weights: literal.Weights = {}
    for kind in ("weight", "bias"):
        end = "" if kind == "weight" else "_bias"
        for name, piece in zip(("query", "key", "value"), state[f"{part}.blocks.0.attention.input.{kind}"].chunk(3),
                               strict=True):
            weights[name + end] = piece
        if part == "decoder":
            weights["cross_key" + end], weights["cross_value" + end] = state[
                f"{part}.blocks.0.cross.input.{kind}"].chunk(2)
        for ours, name in {"attention.output": "output", "cross.query": "cross_query",
                           "cross.output": "cross_output", "cross_norm": "cross_norm", "feedforward.input": "inner",
                           "feedforward.output": "outer",
                           "feedforward.input.point": "point1", "feedforward.output.point": "point2",
                           "attention_norm": "attention_norm", "feedforward_norm": "transition_norm"}.items():
            if f"{part}.blocks.0.{ours}.{kind}" in state:
                weights[name + end] = state[f"{part}.blocks.0.{ours}.{kind}"]
        if f"{part}.final_norm.{kind}" in state:
            weights[f"final_norm{end}"] = state[f"{part}.final_norm.{kind}"]
        if f"{part}.halting.unit.{kind}" in state:
            weights[f"halt{end}"] = state[f"{part}.halting.unit.{kind}"][0]
    for number, ours in ((1, "input"), (2, "output")):
        name = f"{part}.blocks.0.feedforward.{ours}.depth.weight"
        weights |= {f"depth{number}": state[name][:, 0]} if name in state else {}
    return weights


def ids_of(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def read(model: stemma.Model, *arguments, **settings) -> NetworkOutput:
    return model.network({"encoder": Stream(*arguments, **settings)})


@torch.no_grad()
@HALTING
@TRANSITION
@CAUSAL
@PLACE
def test_it_agrees_with_the_transcription(halting, transition, causal, place):
    model = small(halting, transition, place)
    weights, ids = transcribed(model), ids_of(2, 7)
    made = read(model, ids, Causal() if causal else Bidirectional())
    counted, costs = [], []
    for row in range(2):
        x = model.network.embedding.tokens.weight[ids[row]].double() * math.sqrt(WIDTH)
        options = {"sees": lambda i, j: j <= i or not causal, "causal": causal, "pre": place == "pre"}
        if halting:
            expected, updates, remainders = literal.adaptive(x, weights, HEADS, STEPS, THRESHOLD, **options)
            assert made.metrics["steps"][row].tolist() == updates
            counted += updates
            costs += [update + float(rest) for update, rest in zip(updates, remainders, strict=True)]
        else:
            expected = literal.fixed(x, weights, HEADS, STEPS, **options)
        assert expected.std() > 0.1
        torch.testing.assert_close(made["encoder"][row].double(), expected, atol=1e-4, rtol=0)
    if halting:
        assert min(counted) < max(counted), "the places halt alike, which proves little"
        assert float(made.auxiliary_losses["ponder"]) == pytest.approx(0.01 * sum(costs) / len(costs), abs=1e-6)


def test_thinking_longer_costs_what_its_gradient_says():
    """Of the ponder cost only what was left at the last step has a gradient: it is what the cost changes by where the
    halting unit is turned up a little, and every place still takes as many steps."""
    torch.manual_seed(0)
    model = small(halting=True)
    unit, stream = model.network.encoder.halting.unit, Stream(ids_of(2, 7), Causal())
    made = model.network({"encoder": stream})
    made.auxiliary_losses["ponder"].backward()
    gradient = float(unit.bias.grad)
    costs, step = [], 3e-3
    for change in (step, -step):
        with torch.no_grad():
            unit.bias += change
            moved = model.network({"encoder": stream})
            unit.bias -= change
        assert torch.equal(moved.metrics["steps"], made.metrics["steps"]), "a place halts at another step"
        costs.append(float(moved.auxiliary_losses["ponder"]))
    assert abs(gradient) > 1e-4 and gradient == pytest.approx((costs[0] - costs[1]) / (2 * step), rel=0.02)


@HALTING
@TRANSITION
@CAUSAL
def test_filling_changes_nothing(halting, transition, causal):
    """A row reads alike alone, filled up on the right, and filled up on the left with its places stated."""
    model, sees = small(halting, transition), Causal() if causal else Bidirectional()
    ids, lengths, full = ids_of(3, 8), (8, 5, 3), 8
    alone = [read(model, ids[row:row + 1, :length], sees) for row, length in enumerate(lengths)]
    place = torch.arange(full)
    right = torch.stack([place < length for length in lengths])
    left = right.flip(1)
    moved = torch.stack([ids[row].roll(full - length) for row, length in enumerate(lengths)])
    positions = (left.long().cumsum(1) - 1).clamp(min=0)
    for real, filled in ((right, read(model, ids, sees & PaddingRule(right))),
                         (left, read(model, moved, sees & PaddingRule(left), position_ids=positions))):
        for row, expected in enumerate(alone):
            torch.testing.assert_close(filled["encoder"][row, real[row]], expected["encoder"][0], atol=1e-5, rtol=0)
            if halting:
                assert filled.metrics["steps"][row, real[row]].tolist() == expected.metrics["steps"][0].tolist()
        if halting:  # the mean is over tokens, and filling is none
            total = sum(float(one.auxiliary_losses["ponder"]) * length for one,
                        length in zip(alone, lengths, strict=True))
            assert float(filled.auxiliary_losses["ponder"]) == pytest.approx(total / sum(lengths), abs=1e-6)


@torch.no_grad()
@HALTING
@TRANSITION
@PLACE
def test_token_by_token_is_the_same_as_at_once(halting, transition, place):
    model, ids = small(halting, transition, place), ids_of(2, 9)
    whole = read(model, ids, Causal())
    cache = model.network.new_cache()
    for start, stop in ((0, 4), (4, 5), (5, 8), (8, 9)):
        made = model.network({"encoder": Stream(ids[:, start:stop], Causal())}, cache)
        torch.testing.assert_close(made["encoder"], whole["encoder"][:, start:stop], atol=1e-5, rtol=0)
        if halting:
            assert torch.equal(made.metrics["steps"], whole.metrics["steps"][:, start:stop])
    assert cache.length == 9


def test_halting_saves_steps_and_not_answers():
    """The loop ends when everyone has halted; that no later step would have counted is what the transcription says."""
    model, taken = small(halting=True), []
    model.network.encoder.blocks[0].attention.register_forward_hook(lambda *_: taken.append(1))
    with torch.no_grad():
        model.network.encoder.halting.unit.bias.fill_(20.0)
    made = read(model, ids_of(2, 6), Bidirectional())
    assert len(taken) == 1 and made.metrics["steps"].unique().tolist() == [1]


@HALTING
@TRANSITION
def test_what_is_saved_comes_back_in_our_own_layout(tmp_path, halting, transition):
    model, ids = small(halting, transition), ids_of(2, 7)
    stemma.save(model, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["model_type"], config["heads"]) == ("stemma", ["vocabulary"])
    again = stemma.load(tmp_path / "m")
    assert again.recipe == model.recipe and again.load_warnings == []
    assert_close(again.logits(ids), model.logits(ids))
    stemma.save(again, tmp_path / "again")
    for name in ("model.safetensors", "config.json", "recipe.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


@torch.no_grad()
def test_what_is_left_at_the_limit_can_go_to_the_last_state():
    """Places that would never halt by themselves then read as at a fixed depth; otherwise their weight is lost."""
    deep = small(halting=False)
    read_on = read(deep, ids_of(2, 7), Causal())["encoder"]
    for limit, same in (("full", True), ("open", False)):
        halting = {"network.depth.halting": {"bias": -30.0, "limit": limit}}
        model = stemma.build(deep.recipe.with_changes(halting, "test"), VOCABULARY)
        assert float(model.network.encoder.halting.unit.bias) == -30.0
        model.network.load_state_dict(deep.network.state_dict(), strict=False)
        made = read(model, ids_of(2, 7), Causal())
        assert made.metrics["steps"].unique().tolist() == [STEPS]
        assert torch.allclose(made["encoder"], read_on, atol=1e-5) is same

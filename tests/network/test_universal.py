"""The Universal Transformer matches a literal transcription: steps, halting, transitions and incremental decoding."""

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
        vary_halting_steps(model)
    return model


@torch.no_grad()
def vary_halting_steps(model: stemma.Model) -> None:
    """Scale the halting unit so that some positions halt at once and others later."""
    unit, halting_logits = model.network.encoder.halting.unit, []
    unit.bias.fill_(-20.0)  # at first no position halts
    hook = unit.register_forward_hook(lambda _, __, output: halting_logits.append(output + 20.0))
    run_encoder(model, ids_of(4, 9, seed=1), Causal())
    hook.remove()
    scale = 4.0 / halting_logits[0].std()
    unit.weight.mul_(scale)
    unit.bias.copy_(-halting_logits[0].median() * scale)


def transcribed(model: stemma.Model) -> literal.Weights:
    return weights_of({name: value.double() for name, value in model.network.state_dict().items()}, "encoder")


def weights_of(state: dict[str, torch.Tensor], part: str) -> literal.Weights:
    """The weights of the encoder or decoder by the names of the transcription."""
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
    for index, ours in ((1, "input"), (2, "output")):
        name = f"{part}.blocks.0.feedforward.{ours}.depth.weight"
        weights |= {f"depth{index}": state[name][:, 0]} if name in state else {}
    return weights


def ids_of(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def run_encoder(model: stemma.Model, *arguments, **settings) -> NetworkOutput:
    return model.network({"encoder": Stream(*arguments, **settings)})


@torch.no_grad()
@HALTING
@TRANSITION
@CAUSAL
@PLACE
def test_outputs_steps_and_cost_match_the_transcription(halting, transition, causal, place):
    model = small(halting, transition, place)
    weights, ids = transcribed(model), ids_of(2, 7)
    output = run_encoder(model, ids, Causal() if causal else Bidirectional())
    num_steps, costs = [], []
    for row in range(2):
        x = model.network.embedding.tokens.weight[ids[row]].double() * math.sqrt(WIDTH)
        options = {"sees": lambda i, j: j <= i or not causal, "causal": causal, "pre": place == "pre"}
        if halting:
            expected, updates, remainders = literal.adaptive(x, weights, HEADS, STEPS, THRESHOLD, **options)
            assert output.metrics["steps"][row].tolist() == updates
            num_steps += updates
            costs += [update + float(remainder) for update, remainder in zip(updates, remainders, strict=True)]
        else:
            expected = literal.fixed(x, weights, HEADS, STEPS, **options)
        assert expected.std() > 0.1
        torch.testing.assert_close(output["encoder"][row].double(), expected, atol=1e-4, rtol=0)
    if halting:
        assert min(num_steps) < max(num_steps), "all positions halt at the same step, so the test shows little"
        assert float(output.auxiliary_losses["ponder"]) == pytest.approx(0.01 * sum(costs) / len(costs), abs=1e-6)


def test_the_gradient_of_the_ponder_cost_is_that_of_the_remainder():
    """Only the remainder has a gradient. It equals the finite difference of the cost for a small change of the halting
    bias that changes no number of steps."""
    torch.manual_seed(0)
    model = small(halting=True)
    unit, stream = model.network.encoder.halting.unit, Stream(ids_of(2, 7), Causal())
    output = model.network({"encoder": stream})
    output.auxiliary_losses["ponder"].backward()
    gradient = float(unit.bias.grad)
    costs, step = [], 3e-3
    for change in (step, -step):
        with torch.no_grad():
            unit.bias += change
            moved = model.network({"encoder": stream})
            unit.bias -= change
        assert torch.equal(moved.metrics["steps"], output.metrics["steps"]), "a position halts at another step"
        costs.append(float(moved.auxiliary_losses["ponder"]))
    assert abs(gradient) > 1e-4 and gradient == pytest.approx((costs[0] - costs[1]) / (2 * step), rel=0.02)


@HALTING
@TRANSITION
@CAUSAL
def test_padding_does_not_change_the_output(halting, transition, causal):
    """A row has the same output alone, with right padding, and with left padding and explicit position ids."""
    model, attention_mask = small(halting, transition), Causal() if causal else Bidirectional()
    ids, lengths, full = ids_of(3, 8), (8, 5, 3), 8
    alone = [run_encoder(model, ids[row:row + 1, :length], attention_mask) for row, length in enumerate(lengths)]
    position = torch.arange(full)
    right = torch.stack([position < length for length in lengths])
    left = right.flip(1)
    moved = torch.stack([ids[row].roll(full - length) for row, length in enumerate(lengths)])
    positions = (left.long().cumsum(1) - 1).clamp(min=0)
    right_padded = run_encoder(model, ids, attention_mask & PaddingRule(right))
    left_padded = run_encoder(model, moved, attention_mask & PaddingRule(left), position_ids=positions)
    for token_mask, padded in ((right, right_padded), (left, left_padded)):
        for row, expected in enumerate(alone):
            result = padded["encoder"][row, token_mask[row]]
            torch.testing.assert_close(result, expected["encoder"][0], atol=1e-5, rtol=0)
            if halting:
                assert padded.metrics["steps"][row, token_mask[row]].tolist() == expected.metrics["steps"][0].tolist()
        if halting:  # the mean is over tokens without padding
            total = sum(float(output.auxiliary_losses["ponder"]) * length
                        for output, length in zip(alone, lengths, strict=True))
            assert float(padded.auxiliary_losses["ponder"]) == pytest.approx(total / sum(lengths), abs=1e-6)


@torch.no_grad()
@HALTING
@TRANSITION
@PLACE
def test_incremental_decoding_equals_one_pass(halting, transition, place):
    model, ids = small(halting, transition, place), ids_of(2, 9)
    at_once = run_encoder(model, ids, Causal())
    cache = model.network.new_cache()
    for start, stop in ((0, 4), (4, 5), (5, 8), (8, 9)):
        output = model.network({"encoder": Stream(ids[:, start:stop], Causal())}, cache)
        torch.testing.assert_close(output["encoder"], at_once["encoder"][:, start:stop], atol=1e-5, rtol=0)
        if halting:
            assert torch.equal(output.metrics["steps"], at_once.metrics["steps"][:, start:stop])
    assert cache.length == 9


def test_stopping_when_all_positions_halt_does_not_change_the_output():
    """The loop ends when all positions have halted. The transcription test shows that later steps have no effect."""
    model, calls = small(halting=True), []
    model.network.encoder.blocks[0].attention.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model.network.encoder.halting.unit.bias.fill_(20.0)
    output = run_encoder(model, ids_of(2, 6), Bidirectional())
    assert len(calls) == 1 and output.metrics["steps"].unique().tolist() == [1]


@HALTING
@TRANSITION
def test_a_saved_model_loads_in_stemmas_own_format(tmp_path, halting, transition):
    model, ids = small(halting, transition), ids_of(2, 7)
    stemma.save(model, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["model_type"], config["heads"]) == ("stemma", ["vocabulary"])
    loaded = stemma.load(tmp_path / "m")
    assert loaded.recipe == model.recipe and loaded.load_warnings == []
    assert_close(loaded.logits(ids), model.logits(ids))
    stemma.save(loaded, tmp_path / "again")
    for name in ("model.safetensors", "config.json", "recipe.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


@torch.no_grad()
def test_the_remainder_at_the_step_limit_can_go_to_the_last_state():
    """Then positions that never halt have the output of a fixed depth; otherwise their remaining weight is lost."""
    fixed_depth = small(halting=False)
    expected = run_encoder(fixed_depth, ids_of(2, 7), Causal())["encoder"]
    for limit, same in (("full", True), ("open", False)):
        halting = {"network.depth.halting": {"bias": -30.0, "limit": limit}}
        model = stemma.build(fixed_depth.recipe.with_changes(halting, "test"), VOCABULARY)
        assert float(model.network.encoder.halting.unit.bias) == -30.0
        model.network.load_state_dict(fixed_depth.network.state_dict(), strict=False)
        output = run_encoder(model, ids_of(2, 7), Causal())
        assert output.metrics["steps"].unique().tolist() == [STEPS]
        assert torch.allclose(output["encoder"], expected, atol=1e-5) is same

"""The encoder-decoder Universal Transformer matches a literal transcription in outputs and gradients. Decoding with a
cache equals one pass, and with a fixed depth it is a Transformer with cross-layer parameter sharing."""

from __future__ import annotations

import math

import pytest
import torch
from literal import universal_transformer as literal
from network.test_universal import HALTING, HEADS, PLACE, STEPS, THRESHOLD, TRANSITION, VOCABULARY, WIDTH, weights_of
from parity.reference import perturb
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

import stemma
from stemma.network.block import Block
from stemma.network.inputs_outputs import NetworkOutput, Stream
from stemma.network.position_embedding import SinusoidalPositionEmbedding
from stemma.visibility import Causal, PaddingRule

LENGTHS, TARGET_LENGTHS = (7, 4), (5, 6)  # of the sources and of the targets
IDS = torch.randint(VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))


def small(halting: bool, transition: str = "feedforward", place: str = "post") -> stemma.Model:
    values = {"layers": STEPS, "decoder.layers": STEPS - 1, "width": WIDTH, "heads": HEADS, "feedforward": 17,
              "dropout": 0.0, "norm.place": place, "norm.epsilon": 1e-5, "transition": transition}
    recipe = stemma.recipe("universal-transformer-seq2seq").with_changes(
        {f"network.{key}": value for key, value in values.items()}, "test")
    recipe = recipe.with_changes({"network.depth.halting.threshold": THRESHOLD} if halting
                                 else {"remove": ["network.depth.halting"]}, "test")
    torch.manual_seed(0)
    model = stemma.build(recipe, VOCABULARY)
    perturb(model.network, 4)
    model.network.double()
    if halting:
        vary_halting_steps(model)
    return model


@torch.no_grad()
def vary_halting_steps(model: stemma.Model) -> None:
    """Make some positions of encoder and decoder halt at once and others later."""
    for part in ("encoder", "decoder"):
        unit, halting_logits = getattr(model.network, part).halting.unit, []
        unit.bias.fill_(-20.0)
        hook = unit.register_forward_hook(lambda _, __, output, logits=halting_logits: logits.append(output + 20.0))
        model.network(streams())
        hook.remove()
        scale = 4.0 / halting_logits[0].std()
        unit.weight.mul_(scale)
        unit.bias.copy_(-halting_logits[0].median() * scale)


def token_mask(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def streams() -> dict[str, Stream]:
    """Streams as in a batch: the encoder masks padding, and the decoder's padding is after the causal text."""
    return {"encoder": Stream(IDS, PaddingRule(token_mask(LENGTHS))),
            "decoder": Stream(TARGETS, Causal(), causal_token_mask=token_mask(TARGET_LENGTHS))}


def expected_of(model: stemma.Model, state: dict[str, torch.Tensor], row: int,
                **options) -> dict[str, tuple[torch.Tensor, list[int], list[torch.Tensor]]]:
    """The output, updates and remainders of encoder and decoder for one pair."""
    halting, results, encoded = model.recipe.settings.network.depth.halting, {}, None
    for part, ids, length in (("encoder", IDS, LENGTHS[row]), ("decoder", TARGETS, TARGET_LENGTHS[row])):
        weights, causal = weights_of(state, part), part == "decoder"
        arguments = {"sees": lambda i, j, causal=causal: j <= i or not causal, "causal": causal, "encoded": encoded,
                     **options}
        x = state["embedding.tokens.weight"][ids[row, :length]] * math.sqrt(WIDTH)
        steps = model.network.parts[part].layers
        results[part] = literal.adaptive(x, weights, HEADS, steps, THRESHOLD, **arguments) if halting else \
            (literal.fixed(x, weights, HEADS, steps, **arguments), [], [])
        encoded = list(results[part][0])
    return results


@HALTING
@TRANSITION
@PLACE
def test_outputs_and_gradients_match_the_transcription(halting, transition, place):
    """Outputs, steps and costs of encoder and decoder, and the gradients of every parameter."""
    model = small(halting, transition, place)
    state = {name: value.detach().clone().requires_grad_() for name, value in model.network.state_dict().items()}
    result = model.network(streams())
    direction = torch.linspace(-1, 1, WIDTH, dtype=torch.float64)
    ours, theirs = torch.zeros(()), torch.zeros(())
    num_steps = {"encoder": [], "decoder": []}
    costs = {"encoder": [], "decoder": []}
    for row in range(2):
        for part, (expected, updates, remainders) in expected_of(model, state, row, pre=place == "pre").items():
            length, output = len(expected), result[part][row, :len(expected)]
            assert expected.std() > 0.1
            torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)  # the network's sinusoids are fp32
            if part == "decoder":
                ours, theirs = ours + (output @ direction).sum(), theirs + (expected @ direction).sum()
            if halting:
                assert result.metrics[f"{part}_steps"][row, :length].tolist() == updates
                assert result.metrics[f"{part}_steps"][row, length:].isnan().all()
                num_steps[part] += updates
                costs[part] += [update + remainder for update, remainder in zip(updates, remainders, strict=True)]
    for part in costs if halting else ():
        assert min(num_steps[part]) < max(num_steps[part]), "all positions halt at the same step"
        cost = 0.01 * torch.stack(costs[part]).mean()
        ponder = float(result.auxiliary_losses[f"{part}_ponder"].detach())
        assert ponder == pytest.approx(float(cost.detach()), abs=1e-7)
        ours, theirs = ours + result.auxiliary_losses[f"{part}_ponder"], theirs + cost
    ours.backward()
    theirs.backward()
    parameters = dict(model.network.named_parameters())
    gradients = [state[name].grad for name in parameters if name in state]
    assert sum(bool(gradient is not None and gradient.any()) for gradient in gradients) > 20
    for name in (name for name in parameters if name in state and state[name].grad is not None):
        torch.testing.assert_close(parameters[name].grad, state[name].grad, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@PLACE
def test_with_a_fixed_depth_it_is_a_transformer_with_shared_layers(place):
    """One whose layers get the position and step embeddings added to their input."""
    model = small(halting=False, place=place)
    recipe = model.recipe.with_changes({"network.depth": {"kind": "stacked"}, "network.sharing": "all",
                                        "network.position": {"kind": "none"}}, "test")
    shared = stemma.build(recipe, VOCABULARY)
    shared.network.double().load_state_dict(model.network.state_dict())
    for part in ("encoder", "decoder"):
        blocks = getattr(shared.network, part).blocks
        assert len(blocks) == model.network.parts[part].layers and len({id(block.attention) for block in blocks}) == 1
        for step, block in enumerate(blocks):
            block.register_forward_pre_hook(
                lambda _, inputs, step=step: (inputs[0] + step_embedding(inputs[0], step), *inputs[1:]))
    expected, output = shared.network(streams()), model.network(streams())
    for part, lengths in (("encoder", LENGTHS), ("decoder", TARGET_LENGTHS)):
        mask = token_mask(lengths)
        torch.testing.assert_close(output[part][mask], expected[part][mask], atol=1e-8, rtol=0)


def step_embedding(x: torch.Tensor, step: int) -> torch.Tensor:
    return SinusoidalPositionEmbedding.encode(torch.arange(x.shape[1]),
                                              WIDTH) + SinusoidalPositionEmbedding.encode(torch.tensor([step]), WIDTH)


@torch.no_grad()
@HALTING
@TRANSITION
def test_decoding_with_a_cache_equals_one_pass(halting, transition):
    """Token by token, with rows that are reordered and dropped."""
    network = small(halting, transition).network
    source, generated, cache = streams()["encoder"], TARGETS[:, :1], network.new_cache()
    sources = torch.arange(2)
    for step, rows in enumerate(([0, 1], [1, 0], [1, 1, 0], [0, 2], [1])):
        new = {"decoder": Stream(generated[:, -1:], Causal())} | ({} if step else {"encoder": source})
        result = network(new, cache)["decoder"][:, -1]
        at_once = network({"encoder": Stream(source.input_ids[sources], PaddingRule(token_mask(LENGTHS)[sources])),
                           "decoder": Stream(generated, Causal())})["decoder"]
        torch.testing.assert_close(result, at_once[:, -1], atol=1e-8, rtol=0)
        assert cache.length == step + 1
        generated = torch.cat([generated, (result.sum(-1, keepdim=True) * 100).long() % VOCABULARY], 1)[rows]
        sources = sources[rows]
        cache.reorder(torch.tensor(rows))


@torch.no_grad()
def test_cross_attention_keys_are_computed_once_per_pass():
    model, output = small(halting=False), []
    model.network.decoder.blocks[0].cross.input.register_forward_hook(lambda *_: output.append(1))
    model.network(streams())
    assert len(output) == 1


def test_activation_checkpointing_gives_the_same_gradients():
    """What all steps share is computed outside of the block."""
    results = []
    for checkpointed in (False, True):
        network = small(halting=True).network
        if checkpointed:
            apply_activation_checkpointing(network, check_fn=lambda module: isinstance(module, Block))
        output = network(streams())
        (output["decoder"].sum(-1) * torch.arange(6.0)).sum().backward()
        results.append({name.replace("_checkpoint_wrapped_module.", ""): parameter.grad
                        for name, parameter in network.named_parameters() if parameter.grad is not None})
    assert results[0].keys() == results[1].keys() and len(results[0]) > 20
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_encoder_and_decoder_may_have_different_bodies():
    """A stacked encoder with a recurrent decoder, and vice versa."""
    recipe = small(halting=True).recipe
    halting = {"kind": "recurrent", "halting": {"threshold": THRESHOLD}}
    stacked = {"kind": "stacked"}
    for encoder, decoder, recurrent in ((stacked, halting, "decoder"), (halting, stacked, "encoder")):
        model = stemma.build(recipe.with_changes({"network.depth": encoder, "network.decoder.depth": decoder}, "test"),
                             VOCABULARY)
        output: NetworkOutput = model.network(streams())
        assert list(output.metrics) == [f"{recurrent}_steps"]
        assert list(output.auxiliary_losses) == [f"{recurrent}_ponder"]
        blocks = {part: len(getattr(model.network, part).blocks) for part in ("encoder", "decoder")}
        assert blocks == {"encoder": STEPS, "decoder": STEPS - 1} | {recurrent: 1}
        assert (model.network.embedding.position is None, model.network.decoder_embedding.position is None) == (
            recurrent == "encoder", recurrent == "decoder")

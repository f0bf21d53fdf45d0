"""The Universal Transformer as an encoder-decoder agrees with its literal transcription, forward and backward; it
writes with a cache as without, and at a fixed depth it is a Transformer whose layers share their weights."""

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

LENGTHS, WRITTEN = (7, 4), (5, 6)  # of the sources and of the targets
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
        spread(model)
    return model


@torch.no_grad()
def spread(model: stemma.Model) -> None:
    """On both sides, make some positions halt at once and others later."""
    for part in ("encoder", "decoder"):
        unit, asked = getattr(model.network, part).halting.unit, []
        unit.bias.fill_(-20.0)
        hook = unit.register_forward_hook(lambda _, __, output, asked=asked: asked.append(output + 20.0))
        model.network(streams())
        hook.remove()
        scale = 4.0 / asked[0].std()
        unit.weight.mul_(scale)
        unit.bias.copy_(-asked[0].median() * scale)


def tokens(lengths: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def streams() -> dict[str, Stream]:
    """As a batch has them: padding is hidden from the encoder, and comes last where nobody sees it in the decoder."""
    return {"encoder": Stream(IDS, PaddingRule(tokens(LENGTHS))),
            "decoder": Stream(TARGETS, Causal(), causal_token_mask=tokens(WRITTEN))}


def expected_of(model: stemma.Model, state: dict[str, torch.Tensor], row: int,
                **options) -> dict[str, tuple[torch.Tensor, list[int], list[torch.Tensor]]]:
    """Of one pair: each side's output, and the updates and remainders of its positions."""
    halting, made, encoded = model.recipe.settings.network.depth.halting, {}, None
    for part, ids, length in (("encoder", IDS, LENGTHS[row]), ("decoder", TARGETS, WRITTEN[row])):
        weights, causal = weights_of(state, part), part == "decoder"
        given = {"sees": lambda i, j, causal=causal: j <= i or not causal, "causal": causal, "encoded": encoded,
                 **options}
        x = state["embedding.tokens.weight"][ids[row, :length]] * math.sqrt(WIDTH)
        steps = model.network.parts[part].layers
        made[part] = literal.adaptive(x, weights, HEADS, steps, THRESHOLD, **given) if halting else \
            (literal.fixed(x, weights, HEADS, steps, **given), [], [])
        encoded = list(made[part][0])
    return made


@HALTING
@TRANSITION
@PLACE
def test_it_agrees_with_the_transcription_and_learns_as_it(halting, transition, place):
    """Outputs, steps and costs of both sides; and the gradients of every weight through both."""
    model = small(halting, transition, place)
    state = {name: value.detach().clone().requires_grad_() for name, value in model.network.state_dict().items()}
    made = model.network(streams())
    direction = torch.linspace(-1, 1, WIDTH, dtype=torch.float64)
    ours, theirs = torch.zeros(()), torch.zeros(())
    taken = {"encoder": [], "decoder": []}
    costs = {"encoder": [], "decoder": []}
    for row in range(2):
        for part, (output, updates, remainders) in expected_of(model, state, row, pre=place == "pre").items():
            result = made[part][row, :len(output)]
            assert output.std() > 0.1
            torch.testing.assert_close(result, output, atol=1e-5, rtol=0)  # ours has its sinusoids in fp32
            if part == "decoder":
                ours, theirs = ours + (result @ direction).sum(), theirs + (output @ direction).sum()
            if halting:
                assert made.metrics[f"{part}_steps"][row, :len(output)].tolist() == updates
                assert made.metrics[f"{part}_steps"][row, len(output):].isnan().all()
                taken[part] += updates
                costs[part] += [update + rest for update, rest in zip(updates, remainders, strict=True)]
    for part in costs if halting else ():
        assert min(taken[part]) < max(taken[part]), "the positions halt alike, which proves little"
        cost = 0.01 * torch.stack(costs[part]).mean()
        assert float(made.auxiliary_losses[f"{part}_ponder"].detach()) == pytest.approx(float(cost.detach()), abs=1e-7)
        ours, theirs = ours + made.auxiliary_losses[f"{part}_ponder"], theirs + cost
    ours.backward()
    theirs.backward()
    learning = dict(model.network.named_parameters())
    assert sum(bool(state[name].grad is not None and state[name].grad.any()) for name in learning if name in state) > 20
    for name in (name for name in learning if name in state and state[name].grad is not None):
        torch.testing.assert_close(learning[name].grad, state[name].grad, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@PLACE
def test_at_a_fixed_depth_it_is_a_transformer_with_shared_weights(place):
    """One that is told the position and the step before each layer."""
    model = small(halting=False, place=place)
    recipe = model.recipe.with_changes({"network.depth": {"kind": "stacked"}, "network.sharing": "all",
                                        "network.position": {"kind": "none"}}, "test")
    shared = stemma.build(recipe, VOCABULARY)
    shared.network.double().load_state_dict(model.network.state_dict())
    for part in ("encoder", "decoder"):
        blocks = getattr(shared.network, part).blocks
        assert len(blocks) == model.network.parts[part].layers and len({id(block.attention) for block in blocks}) == 1
        for step, block in enumerate(blocks):
            block.register_forward_pre_hook(lambda _, given, step=step: (given[0] + signal(given[0], step), *given[1:]))
    expected, made = shared.network(streams()), model.network(streams())
    for part, lengths in (("encoder", LENGTHS), ("decoder", WRITTEN)):
        torch.testing.assert_close(made[part][tokens(lengths)], expected[part][tokens(lengths)], atol=1e-8, rtol=0)


def signal(x: torch.Tensor, step: int) -> torch.Tensor:
    return SinusoidalPositionEmbedding.encode(torch.arange(x.shape[1]),
                                              WIDTH) + SinusoidalPositionEmbedding.encode(torch.tensor([step]), WIDTH)


@torch.no_grad()
@HALTING
@TRANSITION
def test_it_writes_with_a_cache_as_without(halting, transition):
    """Token by token, with rows that change their order and one that ends."""
    network = small(halting, transition).network
    read, written, cache = streams()["encoder"], TARGETS[:, :1], network.new_cache()
    sources = torch.arange(2)
    for step, rows in enumerate(([0, 1], [1, 0], [1, 1, 0], [0, 2], [1])):
        new = {"decoder": Stream(written[:, -1:], Causal())} | ({} if step else {"encoder": read})
        result = network(new, cache)["decoder"][:, -1]
        whole = network({"encoder": Stream(read.input_ids[sources], PaddingRule(tokens(LENGTHS)[sources])),
                         "decoder": Stream(written, Causal())})["decoder"]
        torch.testing.assert_close(result, whole[:, -1], atol=1e-8, rtol=0)
        assert cache.length == step + 1
        written = torch.cat([written, (result.sum(-1, keepdim=True) * 100).long() % VOCABULARY], 1)[rows]
        sources = sources[rows]
        cache.reorder(torch.tensor(rows))


@torch.no_grad()
def test_keys_of_the_encoder_are_made_once_a_pass():
    model, made = small(halting=False), []
    model.network.decoder.blocks[0].cross.input.register_forward_hook(lambda *_: made.append(1))
    model.network(streams())
    assert len(made) == 1


def test_blocks_that_are_computed_again_have_the_same_gradients():
    """Activation checkpointing: what all steps share is made outside of the block."""
    results = []
    for again in (False, True):
        network = small(halting=True).network
        if again:
            apply_activation_checkpointing(network, check_fn=lambda module: isinstance(module, Block))
        made = network(streams())
        (made["decoder"].sum(-1) * torch.arange(6.0)).sum().backward()
        results.append({name.replace("_checkpoint_wrapped_module.", ""): parameter.grad
                        for name, parameter in network.named_parameters() if parameter.grad is not None})
    assert results[0].keys() == results[1].keys() and len(results[0]) > 20
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_encoder_and_decoder_may_have_different_bodies():
    """Here a stacked encoder and a recurrent decoder, and the other way round."""
    recipe = small(halting=True).recipe
    halting = {"kind": "recurrent", "halting": {"threshold": THRESHOLD}}
    stacked = {"kind": "stacked"}
    for encoder, decoder, told in ((stacked, halting, "decoder"), (halting, stacked, "encoder")):
        model = stemma.build(recipe.with_changes({"network.depth": encoder, "network.decoder.depth": decoder}, "test"),
                             VOCABULARY)
        made: NetworkOutput = model.network(streams())
        assert list(made.metrics) == [f"{told}_steps"] and list(made.auxiliary_losses) == [f"{told}_ponder"]
        blocks = {part: len(getattr(model.network, part).blocks) for part in ("encoder", "decoder")}
        assert blocks == {"encoder": STEPS, "decoder": STEPS - 1} | {told: 1}
        assert (model.network.embedding.position is None, model.network.decoder_embedding.position is None) == (
            told == "encoder", told == "decoder")

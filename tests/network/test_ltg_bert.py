"""LTG-BERT's and GPT-BERT's networks against literal transcriptions, in evaluation and training mode."""

from __future__ import annotations

import pytest
import torch
from literal import ltg_bert as literal

from stemma.network import dropout as dropout_module
from stemma.network.attention import self_attention
from stemma.network.disentangled_position import BucketEmbedding
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.objectives import build_network
from stemma.objectives.base import LM_HEAD
from stemma.recipe_loading import recipe
from stemma.visibility import Causal, PaddingRule

pytestmark = pytest.mark.usefixtures("unpad_small_batches")

VOCABULARY, LENGTH = 23, 19
SIZES = ["network.layers=3", "network.width=24", "network.heads=3", "network.feedforward=20", "network.dropout=0.2",
         "network.attention.dropout=0.3", "network.attention.output_dropout=0.3", "network.head.dropout=0.1",
         "network.position.buckets=8", "network.position.distance=16", f"tokenizer.vocab_size={VOCABULARY}"]
RECIPES = ["ltg-bert", "gpt-bert"]


def build(name: str, seed: int = 0, vocabulary: int = VOCABULARY) -> tuple[Network, literal.Shape, literal.Weights]:
    """A network with random weights everywhere, in double precision, and the same weights for the transcription."""
    settings = recipe(name, SIZES).settings
    network = build_network(recipe(name, SIZES), vocabulary).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3 + 0.1)
    gated = name == "gpt-bert"
    shape = literal.Shape(3, 3, 8, 16, settings.network.norm.epsilon, gated)
    positions, head = network.relative_positions, network.heads[LM_HEAD]
    weights = {"tokens": network.embedding.tokens.weight, "distances": positions.weight,
               "distance_scale": positions.norm.weight, "distance_bias": positions.norm.bias,
               "dense": head.dense.weight, "dense_bias": head.dense.bias, "output_bias": head.bias}
    for index, block in enumerate(network.encoder.blocks):
        names = ["query", "key", "value", *(["gate"] if gated else [])]
        for part, matrix, bias in zip(names, block.attention.input.weight.chunk(len(names)),
                                      block.attention.input.bias.chunk(len(names)), strict=True):
            weights |= {f"{index}.{part}": matrix, f"{index}.{part}_bias": bias}
        gate, inner = block.feedforward.input.weight.chunk(2)  # the activated half comes first
        weights |= {f"{index}.output": block.attention.output.weight,
                    f"{index}.output_bias": block.attention.output.bias, f"{index}.inner": inner,
                    f"{index}.inner_gate": gate, f"{index}.outer": block.feedforward.output.weight}
        if gated:
            weights |= {f"mix.{2 * index + sublayer}": mix for sublayer, mix in enumerate(block.mix)}
        else:
            weights |= {f"{index}.scale": block.attention.output_norm.weight,
                        f"{index}.bias": block.attention.output_norm.bias}
    return network, shape, weights


def tokens(rows: int = 2) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("causal", [False, True])
def test_logits_equal_the_transcription(name, causal):
    network, shape, weights = build(name)
    ids = tokens()
    with torch.no_grad():
        hidden = network.eval()({"encoder": Stream(ids, Causal() if causal else None)})["encoder"]
        ours = network.heads[LM_HEAD](hidden)
        for row in range(len(ids)):
            torch.testing.assert_close(ours[row], literal.logits(weights, shape, ids[row].tolist(), causal))


@pytest.mark.parametrize("name", RECIPES)
def test_padding_changes_nothing(name):
    network, shape, weights = build(name)
    ids, lengths = tokens(3), [LENGTH, 7, 4]
    mask = torch.arange(LENGTH)[None] < torch.tensor(lengths)[:, None]
    for skip in (False, True):
        with torch.no_grad():
            stream = Stream(ids, PaddingRule(mask), skip_padding=skip)
            ours = network.heads[LM_HEAD](network.eval()({"encoder": stream})["encoder"])
            for row, length in enumerate(lengths):
                expected = literal.logits(weights, shape, ids[row, :length].tolist())
                torch.testing.assert_close(ours[row, :length], expected)


@pytest.mark.parametrize("name", RECIPES)
def test_training_mode_with_the_same_dropout_masks(name, monkeypatch):
    """Every dropout has its place, its rate and its shape: the masks are recorded in the order in which they are drawn,
    and the transcription applies them in the paper's order. Gradients are equal too."""
    network, shape, weights = build(name)
    masks: list[torch.Tensor] = []
    original = dropout_module.dropout_mask

    def record(*arguments):
        masks.append(original(*arguments))
        rates.append(arguments[1])
        return masks[-1]

    rates: list[float] = []
    monkeypatch.setattr(dropout_module, "dropout_mask", record)
    monkeypatch.setattr(self_attention, "dropout_mask", record)
    torch.manual_seed(3)
    ids = tokens(1)
    hidden = network.train()({"encoder": Stream(ids)})["encoder"]
    ours = network.heads[LM_HEAD](hidden)[0]
    assert rates == [0.2, *[0.3, 0.3, 0.3, 0.2] * 3, 0.1]
    squeezed = [mask[0] if mask.dim() > 2 else mask for mask in masks]
    theirs = literal.logits(weights, shape, ids[0].tolist(), masks=squeezed)
    torch.testing.assert_close(ours, theirs)
    coefficients = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = list(network.parameters())
    for actual, expected in zip(torch.autograd.grad((ours * coefficients).sum(), parameters),
                                torch.autograd.grad((theirs * coefficients).sum(), parameters), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", RECIPES)
def test_a_cache_gives_the_same_logits(name):
    network, _, _ = build(name)
    ids = tokens()
    with torch.no_grad():
        whole = network.eval()({"encoder": Stream(ids, Causal())})["encoder"]
        cache, steps = network.new_cache(), []
        for part in ids.split([5, 1, 1, 4, 8], 1):
            steps.append(network({"encoder": Stream(part, Causal())}, cache)["encoder"])
    torch.testing.assert_close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("name", RECIPES)
def test_rows_can_leave_early(name):
    network, _, _ = build(name)
    ids, kept = tokens(3), torch.tensor([0, 2])
    mask = torch.arange(LENGTH)[None] < torch.tensor([LENGTH, 5, 6])[:, None]
    with torch.no_grad():
        expected = network.eval()({"encoder": Stream(ids, PaddingRule(mask))})["encoder"][kept]
        from stemma.network.stack_input import build_stack_input

        stream = Stream(ids, PaddingRule(mask), skip_padding=True)
        run = network.encoder.start_pass(network.embedding(stream), build_stack_input(network, stream, None, None))
        run.run_next_layer()
        run.select_rows(kept)
        while not run.done:
            run.run_next_layer()
        actual = run.finish().last_hidden_state
    for row, length in enumerate((LENGTH, 6)):
        torch.testing.assert_close(actual[row, :length], expected[row, :length])


def test_the_initial_weights_are_the_authors():
    network = build_network(recipe("ltg-bert@base", ["network.layers=3", "tokenizer.vocab_size=2000"]))
    std, truncated = (2 / (5 * 768))**0.5, 0.8796  # of a normal distribution truncated at two standard deviations
    assert float(network.embedding.tokens.weight.detach().std()) == pytest.approx(std * truncated, rel=0.02)
    for index, block in enumerate(network.encoder.blocks):
        for linear in (block.feedforward.input, block.feedforward.output):
            expected = std * truncated / (2 * (index + 1))**0.5
            assert float(linear.weight.detach().std()) == pytest.approx(expected, rel=0.02)
        assert float(block.attention.output.weight.detach().std()) == pytest.approx(std * truncated, rel=0.02)


def test_buckets():
    positions = build("ltg-bert")[0].relative_positions
    for distance in range(-40, 41):
        expected = 7 + literal.bucket(distance, 8, 16)
        assert int(positions.bucket_of(torch.tensor([distance]))[0]) == expected
    published = literal.Shape(1, 1, 32, 512, 1e-7)
    assert literal.bucket(511, published.buckets, published.max_distance) == 31


@pytest.mark.parametrize(("buckets", "distance"), [(4, 8), (42, 512), (84, 256), (74, 1024), (32, 512)])
def test_every_distance_has_a_bucket(buckets, distance):
    """Rounding lifts the logarithm of the largest distance above 1 for some of these."""
    positions = BucketEmbedding(buckets, distance, 4, 1e-7, torch.nn.init.zeros_)
    found = positions.bucket_of(torch.arange(-2 * distance, 2 * distance + 1))
    assert int(found.min()) == 0 and int(found.max()) == 2 * buckets - 2

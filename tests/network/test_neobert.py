"""NeoBERT equals a literal transcription of the paper: logits, loss and gradients, with padding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import stemma
from stemma.network.network import Network
from stemma.recipe_loading import recipe

sys.path.append(str(Path(__file__).parent.parent))
from literal import neobert as literal  # noqa: E402

LAYERS, HEADS, WIDTH, INNER, VOCABULARY = 2, 3, 12, 10, 23
CHANGES = [f"network.layers={LAYERS}", f"network.heads={HEADS}", f"network.width={WIDTH}",
           f"network.feedforward={INNER}"]
ROWS = [[3, 7, 1, 22, 9], [5, 5, 14]]


@pytest.fixture
def model() -> stemma.Model:
    torch.manual_seed(0)
    model = stemma.build("neobert@tiny", VOCABULARY, CHANGES)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model


def literal_weights(network: Network) -> literal.Weights:
    """The authors' layout: heads one after another in `qkv`, and neighbouring dimensions rotated together."""
    state = {name: parameter.double() for name, parameter in network.named_parameters()}

    def neighbours(matrix: Tensor) -> Tensor:  # here a rotation pairs the two halves of a head
        return matrix.view(HEADS, 2, -1, WIDTH).transpose(1, 2).reshape(HEADS, -1, WIDTH)

    weights = {"tokens": state["embedding.tokens.weight"], "final_norm": state["encoder.final_norm.weight"],
               "decoder": state["heads.vocabulary.output.weight"], "decoder_bias": state["heads.vocabulary.bias"]}
    for layer in range(LAYERS):
        block = f"encoder.blocks.{layer}."
        query, key, value = state[block + "attention.input.weight"].chunk(3)
        w1, w3 = state[block + "feedforward.input.weight"].chunk(2)
        qkv = torch.cat([neighbours(query), neighbours(key), value.view(HEADS, -1, WIDTH)], 1).flatten(0, 1)
        weights |= {f"{layer}.qkv": qkv, f"{layer}.wo": state[block + "attention.output.weight"],
                    f"{layer}.w1": w1, f"{layer}.w3": w3, f"{layer}.w2": state[block + "feedforward.output.weight"],
                    f"{layer}.attention_norm": state[block + "attention_norm.weight"],
                    f"{layer}.ffn_norm": state[block + "feedforward_norm.weight"]}
    return weights


@torch.no_grad()
def test_logits_equal_the_paper_with_padding(model):
    ids = torch.tensor([row + [0] * (5 - len(row)) for row in ROWS])
    mask = torch.tensor([[1] * len(row) + [0] * (5 - len(row)) for row in ROWS])
    result = model.logits(input_ids=ids, attention_mask=mask)
    for row, expected_ids in enumerate(ROWS):
        expected = literal.logits(expected_ids, literal_weights(model.network), LAYERS, HEADS, 1e-5)
        assert expected.std() > 0.1
        torch.testing.assert_close(result[row, : len(expected_ids)].double(), expected, atol=1e-4, rtol=0)


def test_gradients_equal_the_paper_in_training_mode(model):
    """Of the loss at two positions. The literal computes norms and rotations with Python numbers, so its gradient is by
    finite differences."""
    network, ids, positions = model.network.train().requires_grad_(True), torch.tensor([ROWS[0]]), [1, 3]
    labels = torch.tensor([4, 11])
    hidden = network({"encoder": model.encoder_stream(ids)})["encoder"][0, positions]
    network.heads["vocabulary"].loss(hidden, labels, denominator=2.0).backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}

    @torch.no_grad()
    def loss() -> float:
        scores = literal.logits(ROWS[0], literal_weights(network), LAYERS, HEADS, 1e-5)[positions]
        return float(functional.cross_entropy(scores, labels))

    network.double()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in network.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        losses = []
        for step in (1e-4, -2e-4):
            with torch.no_grad():
                parameter.add_(direction, alpha=step)
            losses.append(loss())
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-4)
        slope = (losses[0] - losses[1]) / 2e-4
        assert float((gradients[name].double() * direction).sum()) == pytest.approx(slope, rel=1e-3, abs=1e-5), name


def test_the_recipe_has_the_published_settings():
    settings = recipe("neobert").settings
    objective, optimizer = settings.objective["masked_lm"], settings.training.optimizer
    assert (objective.rate, objective.mask, objective.random) == (0.2, 1.0, 0.0)
    assert (optimizer.kind, optimizer.beta1, optimizer.beta2) == ("adamw", 0.9, 0.95)
    with torch.device("meta"):
        assert stemma.build("neobert").parameter_count(heads=False) == 221_665_536

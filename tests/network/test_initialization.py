"""How weights start: a normal that is cut off at two standard deviations, or one that is not, as each paper's code has
it; and smaller where many sublayers add to one sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stemma import recipe_loading
from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
from stemma.network.network import Network

HEADS = {"pooler": Pooler(), "pair": ClassHead(2), "vocabulary": LMHeadSpec(transform=False)}
BEYOND = math.erfc(math.sqrt(2))  # 0.0455 of a normal lie beyond two standard deviations
# fairseq's init_bert_params (RoBERTa, BART), pytorch-pretrained-BERT's (UniLM, SpanBERT), tf.random_normal_initializer
# (GPT, GPT-2, Transformer-XL, XLNet, and T5's attention and embedding); BERT, ALBERT, ELECTRA and ERNIE truncate.
NORMAL = {"gpt", "gpt2", "gpt3", "transformer-xl", "xlnet", "t5", "prefix-lm", "roberta", "bart", "unilm", "spanbert"}


def built(recipe: str, *changes: str, vocabulary: int = 500) -> Network:
    torch.manual_seed(0)
    return Network(recipe_loading.recipe(recipe, changes).settings.network, vocabulary, HEADS)


def drawn(network: Network) -> dict[str, Tensor]:
    """All that does not start as 0 or 1."""
    return {name: each.detach() for name, each in network.named_parameters() if each.numel() > 1 and each.std() > 0}


@pytest.mark.parametrize("recipe", recipe_loading.recipe_names())
def test_initialization_is_that_of_the_authors_code(recipe):
    chosen = recipe_loading.recipe(recipe).settings.network.initialization.distribution
    assert chosen == ("normal" if recipe in NORMAL else "truncated_normal")


@pytest.mark.parametrize(("recipe", "changes"), [
    ("gpt@tiny", []), ("xlnet@tiny", []), ("transformer-xl@tiny", ["network.embedding.cutoffs=[100,300]"]),
    ("bart@tiny", []), ("universal-transformer@tiny", ["network.initialization.distribution=normal"])])
def test_a_plain_normal_has_its_tails(recipe, changes):
    """Of some 300,000 draws 4.55% lie beyond two standard deviations; the bound is six standard errors of it."""
    network = built(recipe, *changes)
    spread = network.settings.initialization.std_for(network.settings.width)
    draws = torch.cat([each.flatten() for each in drawn(network).values()]) / spread
    error = math.sqrt(BEYOND * (1 - BEYOND) / len(draws))
    assert len(draws) > 200_000
    assert float((draws.abs() > 2).double().mean()) == pytest.approx(BEYOND, abs=6 * error)
    assert float(draws.std()) == pytest.approx(1, abs=6 / math.sqrt(2 * len(draws)))
    for name, each in drawn(network).items():  # and no tensor is left out: 1,000 draws without one are not to be had
        assert each.numel() < 1000 or each.abs().max() > 2 * spread, name


@pytest.mark.parametrize("recipe", ["bert@tiny", "albert@tiny", "electra@tiny", "ernie@tiny"])
def test_a_truncated_one_has_none(recipe):
    network = built(recipe)
    for name, each in drawn(network).items():
        assert each.abs().max() <= 2 * network.settings.initialization.std_for(network.settings.width), name


def test_t5_initializes_each_matrix_by_fan_in_without_truncation():
    network = built("t5@tiny")
    table, inner = network.embedding.tokens.weight.detach(), network.encoder.blocks[0].feedforward.input.weight.detach()
    for weight, spread in ((table, 1.0), (inner, network.settings.width**-0.5)):
        error = math.sqrt(BEYOND * (1 - BEYOND) / weight.numel())
        assert float((weight.abs() > 2 * spread).double().mean()) == pytest.approx(BEYOND, abs=6 * error)


@pytest.mark.parametrize("layers", [2, 5])
def test_what_is_added_to_the_residual_starts_smaller(layers):
    """GPT-2: by 1 / sqrt(N) of N sums, of which each layer makes two. 1 / sqrt(layers) would be 1.41 times as much, and
    16,384 draws are known to 3% (six standard errors)."""
    network = built("gpt2@tiny", f"network.layers={layers}")
    spread = 0.02 / math.sqrt(2 * layers)
    for block in network.encoder.blocks:
        for weight in (block.attention.output.weight, block.feedforward.output.weight):
            assert float(weight.detach().std()) == pytest.approx(spread, rel=6 / math.sqrt(2 * weight.numel()))
        for weight in (block.attention.input.weight, block.feedforward.input.weight):
            assert float(weight.detach().std()) == pytest.approx(0.02, rel=6 / math.sqrt(2 * weight.numel()))

"""Initialization: a normal or truncated normal as in each paper's code, and smaller standard deviations for matrices
that write into the residual stream."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stemma import recipe_loading
from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
from stemma.network.network import Network

HEADS = {"pooler": Pooler(), "pair": ClassHead(2), "vocabulary": LMHeadSpec(transform=False)}
BEYOND = math.erfc(math.sqrt(2))  # the fraction of a normal beyond two standard deviations: 0.0455
# fairseq's init_bert_params (RoBERTa, BART), pytorch-pretrained-BERT's (UniLM, SpanBERT), tf.random_normal_initializer
# (GPT, GPT-2, Transformer-XL, XLNet, and T5's attention and embedding); BERT, ALBERT, ELECTRA and ERNIE truncate.
NORMAL = {"gpt", "gpt2", "gpt3", "transformer-xl", "xlnet", "t5", "prefix-lm", "roberta", "bart", "unilm", "spanbert",
          "nanochat", "mdlm"}
NORMAL |= {"rnnsearch", "cove", "lm-init-seq2seq", "bilstm", "nnlm", "lstm-lm", "awd-lstm", "ulmfit", "elmo",
           "context2vec"}  # theirs, or in place of a uniform distribution


def build(recipe: str, *changes: str, vocabulary: int = 500) -> Network:
    torch.manual_seed(0)
    return Network(recipe_loading.recipe(recipe, changes).settings.network, vocabulary, HEADS)


def random_parameters(network: Network) -> dict[str, Tensor]:
    """The parameters that are not initialized to constants."""
    return {name: parameter.detach() for name, parameter in network.named_parameters()
            if parameter.numel() > 1 and parameter.std() > 0}


@pytest.mark.parametrize("recipe", recipe_loading.recipe_names())
def test_the_distribution_is_that_of_the_authors_code(recipe):
    distribution = recipe_loading.recipe(recipe).settings.network.initialization.distribution
    assert distribution == ("normal" if recipe in NORMAL else "truncated_normal")


@pytest.mark.parametrize(("recipe", "changes"), [
    ("gpt@tiny", []), ("xlnet@tiny", []), ("transformer-xl@tiny", ["network.embedding.cutoffs=[100,300]"]),
    ("bart@tiny", ["remove=network.initialization.head_offsets"]),
    ("universal-transformer@tiny", ["network.initialization.distribution=normal"])])
def test_an_untruncated_normal_has_values_beyond_two_standard_deviations(recipe, changes):
    """4.55% of about 300,000 values are beyond two standard deviations, within six standard errors."""
    network = build(recipe, *changes)
    spread = network.settings.initialization.std_for(network.settings.width)
    values = torch.cat([parameter.flatten() for parameter in random_parameters(network).values()]) / spread
    error = math.sqrt(BEYOND * (1 - BEYOND) / len(values))
    assert len(values) > 200_000
    assert float((values.abs() > 2).double().mean()) == pytest.approx(BEYOND, abs=6 * error)
    assert float(values.std()) == pytest.approx(1, abs=6 / math.sqrt(2 * len(values)))
    for name, parameter in random_parameters(network).items():  # 1,000 values without any are practically impossible
        assert parameter.numel() < 1000 or parameter.abs().max() > 2 * spread, name


@pytest.mark.parametrize("recipe", ["bert@tiny", "albert@tiny", "electra@tiny", "ernie@tiny"])
def test_a_truncated_normal_has_no_values_beyond_two_standard_deviations(recipe):
    network = build(recipe, "remove=network.initialization.head_offsets",
                    "remove=network.initialization.embedding_std")
    for name, parameter in random_parameters(network).items():
        assert parameter.abs().max() <= 2 * network.settings.initialization.std_for(network.settings.width), name


def test_t5_initializes_each_matrix_by_fan_in_without_truncation():
    network = build("t5@tiny")
    table, inner = network.embedding.tokens.weight.detach(), network.encoder.blocks[0].feedforward.input.weight.detach()
    for weight, spread in ((table, 1.0), (inner, network.settings.width**-0.5)):
        error = math.sqrt(BEYOND * (1 - BEYOND) / weight.numel())
        assert float((weight.abs() > 2 * spread).double().mean()) == pytest.approx(BEYOND, abs=6 * error)


@pytest.mark.parametrize("layers", [2, 5])
def test_residual_output_matrices_start_smaller_by_1_over_sqrt_of_twice_the_layers(layers):
    """GPT-2 scales by 1 / sqrt(N) for N residual additions, two per layer. 1 / sqrt(layers) would be 1.41 times as
    large, and six standard errors of 16,384 values are 3%."""
    network = build("gpt2", "network.width=128", "network.heads=2", "network.feedforward=512",
                    f"network.layers={layers}")
    spread = 0.02 / math.sqrt(2 * layers)
    for block in network.encoder.blocks:
        for weight in (block.attention.output.weight, block.feedforward.output.weight):
            assert float(weight.detach().std()) == pytest.approx(spread, rel=6 / math.sqrt(2 * weight.numel()))
        for weight in (block.attention.input.weight, block.feedforward.input.weight):
            assert float(weight.detach().std()) == pytest.approx(0.02, rel=6 / math.sqrt(2 * weight.numel()))

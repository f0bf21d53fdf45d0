"""GPT agrees with `transformers` (openai-gpt) to 1e-4, in both directions, with and without its head."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_loads_into, assert_same_outputs, load_both_ways
from safetensors.torch import load_file, save_file

import stemma
from stemma.text.train_tokenizer import train_tokenizer

KINDS = ["OpenAIGPTModel", "OpenAIGPTLMHeadModel"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_gpt_agrees_with_transformers(tmp_path, seed, kind):
    assert_agrees_both_ways(reference.random_reference("openai-gpt", seed, kind), tmp_path, seed)


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "swish"])
def test_every_activation_agrees(tmp_path, activation):
    hf_model = reference.random_reference("openai-gpt", 5, "OpenAIGPTLMHeadModel", afn=activation)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


@pytest.mark.parametrize("seed", range(2))
def test_a_saved_model_agrees_in_transformers(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": 4 * sizes["width"], "position.maximum": sizes["positions"], "norm.epsilon": 1e-4}
    model = stemma.build("gpt", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                      f"corpus.sequence_length={sizes['positions']}"])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "stemma")
    hf_model = assert_loads_into("OpenAIGPTLMHeadModel", tmp_path / "stemma")
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stemma")) is type(hf_model)
    assert hf_model.config.layer_norm_epsilon == 1e-4
    assert_same_outputs(model, hf_model, seed=seed)
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model, seed=seed)


def test_another_feedforward_width_is_saved_as_type_stemma(tmp_path):
    """openai-gpt has no key for it: it is always four times the width."""
    model = stemma.build("gpt@tiny", 40, ["network.feedforward=100"])
    stemma.save(model, tmp_path / "stemma")
    assert json.loads((tmp_path / "stemma/config.json").read_text())["model_type"] == "stemma"


def test_the_layout_of_the_released_checkpoint_loads(tmp_path):
    """Names without prefix, the causal mask stored as a buffer, and the tied output matrix stored too."""
    hf_model = reference.random_reference("openai-gpt", 2, "OpenAIGPTLMHeadModel")
    hf_model.save_pretrained(tmp_path)
    weights = {name.removeprefix("transformer."): tensor
               for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    weights |= {"h.0.attn.bias": torch.ones(1, 1, 9, 9).tril(),
                "lm_head.weight": weights["tokens_embed.weight"].clone()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = stemma.load(tmp_path)
    assert model.load_warnings == []
    assert_same_outputs(model, hf_model)


def test_a_vocabulary_without_an_end_token_can_be_saved(tmp_path, text_file):
    """The released vocabulary has only <unk>: the texts of a pair are then concatenated."""
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "bpe", 120, lowercase=True, roles=set())
    model = stemma.build("gpt@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    stemma.save(model, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (None, tokenizer.special_id("padding"))
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    first, second = hf_tokenizer("a letter")["input_ids"], hf_tokenizer("seven pages")["input_ids"]
    assert hf_tokenizer("a letter", "seven pages")["input_ids"] == [*first, *second]

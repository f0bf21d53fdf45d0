"""GPT agrees with `transformers` (openai-gpt) to 1e-4, in both directions, with its head and without."""

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
    theirs = reference.random_reference("openai-gpt", 5, "OpenAIGPTLMHeadModel", afn=activation)
    model, back = load_both_ways(theirs, tmp_path)
    assert_same_outputs(model, theirs)
    assert_same_outputs(model, back)


@pytest.mark.parametrize("seed", range(2))
def test_transformers_agrees_with_ours(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": 4 * sizes["width"], "position.maximum": sizes["places"], "norm.epsilon": 1e-4}
    model = stemma.build("gpt", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                      f"corpus.sequence_length={sizes['places']}"])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "ours")
    theirs = assert_loads_into("OpenAIGPTLMHeadModel", tmp_path / "ours")
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")) is type(theirs)
    assert theirs.config.layer_norm_epsilon == 1e-4
    assert_same_outputs(model, theirs, seed=seed)
    assert_same_outputs(stemma.load(tmp_path / "ours"), theirs, seed=seed)


def test_another_feedforward_width_is_saved_under_our_own_name(tmp_path):
    """openai-gpt has no name for it: it is always four times the width."""
    model = stemma.build("gpt@tiny", 40, ["network.feedforward=100"])
    stemma.save(model, tmp_path / "ours")
    assert json.loads((tmp_path / "ours/config.json").read_text())["model_type"] == "stemma"


def test_an_old_file_with_its_buffers_and_its_copy_loads(tmp_path):
    """As the released checkpoint has it: every name without its prefix, the mask beside the weights."""
    theirs = reference.random_reference("openai-gpt", 2, "OpenAIGPTLMHeadModel")
    theirs.save_pretrained(tmp_path)
    weights = {name.removeprefix("transformer."): tensor
               for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    weights |= {"h.0.attn.bias": torch.ones(1, 1, 9, 9).tril(),
                "lm_head.weight": weights["tokens_embed.weight"].clone()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = stemma.load(tmp_path)
    assert model.load_warnings == []
    assert_same_outputs(model, theirs)


def test_a_vocabulary_without_an_end_can_be_saved(tmp_path, text_file):
    """The released one has no special token but <unk>: a pair is then written without anything between."""
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "bpe", 120, lowercase=True, roles=set())
    model = stemma.build("gpt@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    stemma.save(model, tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (None, tokenizer.special_id("padding"))
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    first, second = tokens("a letter")["input_ids"], tokens("seven pages")["input_ids"]
    assert tokens("a letter", "seven pages")["input_ids"] == [*first, *second]

"""GPT-2 agrees with `transformers` to 1e-4, in both directions, with and without its head, and with a cache."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import (
    SEEDS,
    assert_agrees_both_ways,
    assert_loads_into,
    assert_same_outputs,
    config_of,
    configure,
    load_both_ways,
)
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers

import stemma
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Causal

KINDS = ["GPT2Model", "GPT2LMHeadModel"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_gpt2_agrees_with_transformers(tmp_path, seed, kind):
    assert_agrees_both_ways(reference.random_reference("gpt2", seed, kind), tmp_path, seed)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu", "tanh"])
def test_every_activation_agrees(tmp_path, activation):
    hf_model = reference.random_reference("gpt2", 5, "GPT2LMHeadModel", activation_function=activation)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


def test_no_inner_width_means_four_times_the_width(tmp_path):
    hf_model = reference.random_reference("gpt2", 3, "GPT2LMHeadModel", n_inner=None)
    assert_agrees_both_ways(hf_model, tmp_path)
    configure(tmp_path / "hf", n_inner=..., n_head=..., num_attention_heads=hf_model.config.n_head)
    assert_same_outputs(stemma.load(tmp_path / "hf"), hf_model)


@torch.no_grad()
def test_decoding_with_a_cache_agrees(tmp_path):
    """Keys and values are cached from one chunk to the next, in both libraries."""
    hf_model = reference.random_reference("gpt2", 2, "GPT2LMHeadModel")
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(hf_model.config.vocab_size, (3, 13), generator=torch.Generator().manual_seed(0))
    cache, past = model.network.new_cache(), None
    for start, stop in ((0, 5), (5, 6), (6, 12), (12, 13)):
        expected = hf_model(ids[:, start:stop], past_key_values=past, use_cache=True)
        past = expected.past_key_values
        hidden = model.network({"encoder": Stream(ids[:, start:stop], Causal())}, cache)["encoder"]
        torch.testing.assert_close(model.lm_head()(hidden), expected.logits, atol=1e-4, rtol=0)


@torch.no_grad()
def test_explicit_position_ids_agree(tmp_path):
    """As rows with padding on the left need them."""
    hf_model = reference.random_reference("gpt2", 1, "GPT2LMHeadModel")
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(hf_model.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 1, 2, 3, 4]])
    hidden = model.network({"encoder": Stream(ids, Causal(), position_ids=positions)})["encoder"]
    expected = hf_model(ids, position_ids=positions).logits
    torch.testing.assert_close(model.lm_head()(hidden), expected, atol=1e-4, rtol=0)
    assert (expected - hf_model(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("seed", range(2))
def test_a_saved_model_agrees_in_transformers(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": sizes["inner"], "position.maximum": sizes["positions"], "norm.epsilon": 1e-4}
    model = stemma.build("gpt2", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                       f"corpus.sequence_length={sizes['positions']}"])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "stemma")
    hf_model = assert_loads_into("GPT2LMHeadModel", tmp_path / "stemma")
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "stemma")) is type(hf_model)
    assert_same_outputs(model, hf_model, seed=seed)
    assert model.parameter_count() == hf_model.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model, seed=seed)
    assert config_of(tmp_path / "stemma")["n_ctx"] == sizes["positions"]  # other tools read it


# --- the published checkpoint and unsupported ones --------------------------------------------------------------------


def test_the_layout_of_the_released_checkpoint_loads(tmp_path):
    """Names without prefix although it has a head, and the causal mask stored as a buffer."""
    hf_model = reference.random_reference("gpt2", 2, "GPT2LMHeadModel")
    hf_model.save_pretrained(tmp_path)
    weights = {name.removeprefix("transformer."): tensor
               for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    weights |= {"h.0.attn.bias": torch.ones(1, 1, 9, 9).tril(), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = stemma.load(tmp_path)
    assert model.load_warnings == []
    assert_same_outputs(model, hf_model)


def test_different_dropout_rates_are_reported_and_do_not_prevent_loading(tmp_path):
    hf_model = reference.random_reference("gpt2", 2, "GPT2LMHeadModel", embd_pdrop=0.0, resid_pdrop=0.2)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    assert len(model.load_warnings) == 1 and "embd_pdrop = 0.0" in model.load_warnings[0]
    assert model.recipe.settings.network.dropout == 0.2
    assert_same_outputs(model, hf_model)


def test_all_differences_from_gpt2_are_reported_at_once(tmp_path):
    hf_model = reference.random_reference("gpt2", 2, "GPT2LMHeadModel")
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, scale_attn_by_inverse_layer_idx=True, add_cross_attention=True, scale_attn_weights=False,
              activation_function="gelu_nwe")
    with pytest.raises(UserError, match="family gpt2, of a kind that is not supported") as error:
        stemma.load(tmp_path)
    assert len(error.value.problems) == 4


def test_an_untied_head_is_refused(tmp_path):
    hf_model = reference.random_reference("gpt2", 2, "GPT2LMHeadModel", tie_word_embeddings=False)
    hf_model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"lm_head.weight untied from transformer.wte.weight"):
        stemma.load(tmp_path)


def test_a_model_without_head_reports_it(tmp_path):
    reference.random_reference("gpt2", 2, "GPT2Model").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no language-model head"):
        stemma.load(tmp_path).logits(torch.tensor([[1, 2]]))


NOT_GPT2 = {"post-norm": ("gpt2", ["network.norm.placement=post", "network.feedforward=100"]),
            "banded": ("gpt3", []), "backward": ("gpt2", ["objective.causal_lm.direction=backward"]),
            "recurrent": ("gpt2", ["network.depth.kind=recurrent", "network.position.kind=sinusoidal",
                                   "network.position.maximum=128"]),
            "scaled": ("gpt2", ["network.embedding.scale=true"]),
            "wide heads": ("gpt2", ["network.attention.head_width=8"])}


@pytest.mark.parametrize(("name", "changes"), NOT_GPT2.values(), ids=NOT_GPT2)
def test_a_network_that_is_not_gpt2_is_saved_as_type_stemma(tmp_path, name, changes):
    sizes = ["network.width=24", "network.heads=2", "network.feedforward=96"]
    model = stemma.build(f"{name}@tiny", 40, [*sizes, *changes])
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert_close(model.logits(ids), again.logits(ids))
    assert again.recipe == model.recipe


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def test_a_saved_folder_works_with_auto_tokenizer_and_generate(tmp_path, text_file):
    text = text_file.read_text()
    tokenizer = train_tokenizer(iter([text]), "byte_bpe", 300, lowercase=False, roles={"end"})
    model = stemma.build("gpt2@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    config, end = config_of(tmp_path / "m"), tokenizer.special_id("end")
    assert (config["bos_token_id"], config["eos_token_id"]) == (end, end)
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert hf_model.generation_config.eos_token_id == end
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    inputs = hf_tokenizer("the old clerk", return_tensors="pt")
    generated = hf_model.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert generated.shape[1] > 3
    assert hf_tokenizer("the old clerk")["input_ids"] == tokenizer.encode("the old clerk").ids


def test_the_released_vocabulary_can_be_saved(tmp_path):
    """It has one special token, <|endoftext|>: no separator, no padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: token_id for token_id, word in enumerate([*alphabet, "\u0120s", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n\u0120 s\n")
    model = stemma.build("gpt2@tiny", len(vocabulary))
    model.tokenizer = Tokenizer.load(tmp_path)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["pad_token_id"] is None
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    first, second = hf_tokenizer("a letter")["input_ids"], hf_tokenizer(" seven pages")["input_ids"]
    assert hf_tokenizer("a letter", " seven pages")["input_ids"] == [*first, vocabulary["<|endoftext|>"], *second]
    assert second[0] == vocabulary["\u0120s"]

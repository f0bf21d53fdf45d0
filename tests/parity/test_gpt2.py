"""GPT-2 agrees with `transformers` to 1e-4, in both directions, with its head and without, and bit by bit."""

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
    theirs = reference.random_reference("gpt2", 5, "GPT2LMHeadModel", activation_function=activation)
    model, back = load_both_ways(theirs, tmp_path)
    assert_same_outputs(model, theirs)
    assert_same_outputs(model, back)


def test_no_inner_width_means_four_times_the_width(tmp_path):
    theirs = reference.random_reference("gpt2", 3, "GPT2LMHeadModel", n_inner=None)
    assert_agrees_both_ways(theirs, tmp_path)
    configure(tmp_path / "theirs", n_inner=..., n_head=..., num_attention_heads=theirs.config.n_head)
    assert_same_outputs(stemma.load(tmp_path / "theirs"), theirs)


@torch.no_grad()
def test_text_in_pieces_agrees(tmp_path):
    """Keys and values kept from one piece to the next, here and there."""
    theirs = reference.random_reference("gpt2", 2, "GPT2LMHeadModel")
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(theirs.config.vocab_size, (3, 13), generator=torch.Generator().manual_seed(0))
    cache, past = model.network.new_cache(), None
    for start, stop in ((0, 5), (5, 6), (6, 12), (12, 13)):
        expected = theirs(ids[:, start:stop], past_key_values=past, use_cache=True)
        past = expected.past_key_values
        hidden = model.network({"encoder": Stream(ids[:, start:stop], Causal())}, cache)["encoder"]
        torch.testing.assert_close(model.lm_head()(hidden), expected.logits, atol=1e-4, rtol=0)


@torch.no_grad()
def test_stated_positions_agree(tmp_path):
    """As rows that are filled up on the left want them."""
    theirs = reference.random_reference("gpt2", 1, "GPT2LMHeadModel")
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(theirs.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 1, 2, 3, 4]])
    hidden = model.network({"encoder": Stream(ids, Causal(), position_ids=positions)})["encoder"]
    expected = theirs(ids, position_ids=positions).logits
    torch.testing.assert_close(model.lm_head()(hidden), expected, atol=1e-4, rtol=0)
    assert (expected - theirs(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("seed", range(2))
def test_transformers_agrees_with_ours(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": sizes["inner"], "position.maximum": sizes["places"], "norm.epsilon": 1e-4}
    model = stemma.build("gpt2", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                       f"corpus.sequence_length={sizes['places']}"])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "ours")
    theirs = assert_loads_into("GPT2LMHeadModel", tmp_path / "ours")
    assert type(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")) is type(theirs)
    assert_same_outputs(model, theirs, seed=seed)
    assert model.parameter_count() == theirs.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "ours"), theirs, seed=seed)
    assert config_of(tmp_path / "ours")["n_ctx"] == sizes["places"]  # other tools ask for it


# --- the published file, and what only looks like it ------------------------------------------------------------------


def test_the_layout_of_the_released_checkpoint_loads(tmp_path):
    """Its names have no prefix though it has a head, and the mask lies beside the weights."""
    theirs = reference.random_reference("gpt2", 2, "GPT2LMHeadModel")
    theirs.save_pretrained(tmp_path)
    weights = {name.removeprefix("transformer."): tensor
               for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    weights |= {"h.0.attn.bias": torch.ones(1, 1, 9, 9).tril(), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = stemma.load(tmp_path)
    assert model.load_warnings == []
    assert_same_outputs(model, theirs)


def test_different_dropout_rates_are_reported_and_do_not_prevent_loading(tmp_path):
    theirs = reference.random_reference("gpt2", 2, "GPT2LMHeadModel", embd_pdrop=0.0, resid_pdrop=0.2)
    theirs.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    assert len(model.load_warnings) == 1 and "embd_pdrop = 0.0" in model.load_warnings[0]
    assert model.recipe.settings.network.dropout == 0.2
    assert_same_outputs(model, theirs)


def test_all_differences_from_gpt2_are_reported_at_once(tmp_path):
    theirs = reference.random_reference("gpt2", 2, "GPT2LMHeadModel")
    theirs.save_pretrained(tmp_path)
    configure(tmp_path, scale_attn_by_inverse_layer_idx=True, add_cross_attention=True, scale_attn_weights=False,
              activation_function="gelu_nwe")
    with pytest.raises(UserError, match="family gpt2, of a kind that is not supported") as told:
        stemma.load(tmp_path)
    assert len(told.value.problems) == 4


def test_an_untied_head_is_refused(tmp_path):
    theirs = reference.random_reference("gpt2", 2, "GPT2LMHeadModel", tie_word_embeddings=False)
    theirs.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"lm_head.weight untied from transformer.wte.weight"):
        stemma.load(tmp_path)


def test_a_model_without_head_reports_it(tmp_path):
    reference.random_reference("gpt2", 2, "GPT2Model").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="no language-model head"):
        stemma.load(tmp_path).logits(torch.tensor([[1, 2]]))


NOT_GPT2 = {"post-norm": ("gpt2", ["network.norm.place=post", "network.feedforward=100"]),
            "banded": ("gpt3", []), "backward": ("gpt2", ["objective.causal_lm.direction=backward"]),
            "recurrent": ("gpt2", ["network.depth.kind=recurrent", "network.position.kind=sinusoidal",
                                   "network.position.maximum=128"]),
            "scaled": ("gpt2", ["network.embedding.scale=true"]),
            "wide heads": ("gpt2", ["network.attention.head_width=8"])}


@pytest.mark.parametrize(("name", "changes"), NOT_GPT2.values(), ids=NOT_GPT2)
def test_what_is_not_gpt2_is_saved_under_our_own_name(tmp_path, name, changes):
    sizes = ["network.width=24", "network.heads=2", "network.feedforward=96"]
    model = stemma.build(f"{name}@tiny", 40, [*sizes, *changes])
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert_close(model.logits(ids), again.logits(ids))
    assert again.recipe == model.recipe


# --- with its tokenizer -----------------------------------------------------------------------------------------------


def test_what_transformers_needs_to_generate_is_there(tmp_path, text_file):
    text = text_file.read_text()
    tokenizer = train_tokenizer(iter([text]), "byte_bpe", 300, lowercase=False, roles={"end"})
    model = stemma.build("gpt2@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    config, end = config_of(tmp_path / "m"), tokenizer.special_id("end")
    assert (config["bos_token_id"], config["eos_token_id"]) == (end, end)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert theirs.generation_config.eos_token_id == end
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    made = theirs.generate(**tokens("the old clerk", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert made.shape[1] > 3
    assert tokens("the old clerk")["input_ids"] == tokenizer.encode("the old clerk").ids


def test_the_released_vocabulary_can_be_saved(tmp_path):
    """It has one special token, <|endoftext|>: no separator, no padding."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate([*alphabet, "\u0120s", "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n\u0120 s\n")
    model = stemma.build("gpt2@tiny", len(words))
    model.tokenizer = Tokenizer.load(tmp_path)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["pad_token_id"] is None
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    first, second = tokens("a letter")["input_ids"], tokens(" seven pages")["input_ids"]
    assert tokens("a letter", " seven pages")["input_ids"] == [*first, words["<|endoftext|>"], *second]
    assert second[0] == words["\u0120s"]

"""T5 agrees with `transformers` to 1e-4, in both directions: encoder, decoder, cached decoding, tokenizer."""

from __future__ import annotations

import pytest
import sentencepiece
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import (
    SEEDS,
    assert_agrees_both_ways,
    assert_loads_into,
    assert_same_outputs,
    assert_same_steps,
    config_of,
    configure,
    load_both_ways,
)
from safetensors.torch import load_file, save_file
from transformers.models.t5.modeling_t5 import T5Attention

import stemma
from stemma.errors import UserError
from stemma.network.position_kinds import BucketedPositionSettings
from stemma.network.relative_bias import RelativePositionBias
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

KIND = "T5ForConditionalGeneration"
LINES = ["The old clerk copies a letter.", "A <extra_id_0> letter <extra_id_1> at noon", "two  spaces  here ",
         "na\u00efve Zo\u00eb", " before", ""]


@pytest.mark.parametrize("seed", SEEDS)
def test_t5_agrees_with_transformers(tmp_path, seed):
    model = assert_agrees_both_ways(reference.random_reference("t5", seed, KIND), tmp_path, seed)
    assert model.recipe.settings.network.decoder.layers == config_of(tmp_path / "hf")["num_decoder_layers"]


@pytest.mark.parametrize("seed", range(3))
def test_incremental_decoding_agrees(tmp_path, seed):
    hf_model = reference.random_reference("t5", seed, KIND)
    hf_model.save_pretrained(tmp_path)
    assert_same_steps(stemma.load(tmp_path), hf_model, seed)


@torch.no_grad()
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 11), (12, 40)])
def test_distances_beyond_the_last_bucket_agree(tmp_path, buckets, distance):
    """Inputs and targets are longer than the last bucket's edge."""
    hf_model = reference.random_reference("t5", 1, KIND, relative_attention_num_buckets=buckets,
                                          relative_attention_max_distance=distance)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    generator = torch.Generator().manual_seed(0)
    ids, target = (torch.randint(61, (2, length), generator=generator) for length in (190, 160))
    expected = hf_model(input_ids=ids, decoder_input_ids=target).logits
    torch.testing.assert_close(model.logits(ids, decoder_input_ids=target), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 11), (16, 100), (64, 1000)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_every_distance_has_the_bucket_of_transformers(buckets, distance, bidirectional):
    distances = torch.arange(-3 * distance, 3 * distance)
    settings = BucketedPositionSettings(kind="bucketed", buckets=buckets, distance=distance)
    indices = RelativePositionBias(settings, 1, bidirectional).bucket_of(distances)
    expected = T5Attention._relative_position_bucket(distances, bidirectional, buckets, distance)
    assert torch.equal(indices, expected)
    unused = {buckets // 2} if bidirectional else set()  # distance 0 of the second half; the first half has it
    assert set(indices.tolist()) == set(range(buckets)) - unused


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_new", "silu"])
def test_every_activation_agrees(tmp_path, activation):
    hf_model = reference.random_reference("t5", 5, KIND, feed_forward_proj=activation)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


@pytest.mark.parametrize("seed", range(2))
def test_a_saved_model_agrees_in_transformers(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "decoder.layers": sizes["layers"] + 1, "width": sizes["width"],
               "heads": sizes["heads"], "feedforward": sizes["inner"], "norm.epsilon": 1e-4, "activation": "gelu"}
    wide = ["network.attention.head_width=9"] if seed else []
    model = stemma.build("t5", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                     *wide])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "stemma")
    hf_model = assert_loads_into(KIND, tmp_path / "stemma")
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "stemma")) is type(hf_model)
    assert_same_outputs(model, hf_model, seed=seed)
    assert_same_steps(model, hf_model, seed)
    assert model.parameter_count() == hf_model.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model, seed=seed)


@torch.no_grad()
def test_a_bare_body_is_the_same_with_its_head(tmp_path):
    """The head has no weights of its own: the output matrix is the tied embedding."""
    hf_model = reference.random_reference("t5", 2, "T5Model")
    hf_model.save_pretrained(tmp_path / "hf")
    model = stemma.load(tmp_path / "hf")
    ids, target = torch.arange(8).view(2, 4), torch.arange(6).view(2, 3)
    expected = hf_model(input_ids=ids, decoder_input_ids=target).last_hidden_state
    torch.testing.assert_close(model.hidden(ids, decoder_input_ids=target), expected, atol=1e-4, rtol=0)
    stemma.save(model, tmp_path / "stemma")
    assert_loads_into(KIND, tmp_path / "stemma")
    assert (tmp_path / "stemma/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()


# --- published checkpoints and unsupported ones -----------------------------------------------------------------------


def test_a_checkpoint_with_stored_tied_tensors_loads(tmp_path):
    """The embedding is stored four times, and so is a relative bias that was never used."""
    hf_model = reference.random_reference("t5", 2, KIND)
    hf_model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    copies = {name: weights["shared.weight"].clone()
              for name in ("lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
    unused = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(32, 3)}
    save_file({**weights, **copies, **unused}, tmp_path / "model.safetensors", {"format": "pt"})
    model = stemma.load(tmp_path)
    assert model.load_warnings == []
    assert_same_outputs(model, hf_model)
    copies["lm_head.weight"][0, 0] += 1
    save_file({**weights, **copies, **unused}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lm_head.weight untied from shared.weight"):
        stemma.load(tmp_path)


def test_config_defaults_are_those_of_transformers(tmp_path):
    """Eight heads of 64, and a decoder as deep as the encoder."""
    hf_model = reference.random_reference("t5", 1, KIND, num_layers=2, num_decoder_layers=2, num_heads=8, d_kv=64)
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, num_decoder_layers=..., d_kv=..., num_heads=..., relative_attention_num_buckets=...)
    assert_same_outputs(stemma.load(tmp_path), hf_model)


def test_t5_1_1_is_refused_with_all_reasons(tmp_path):
    reference.random_reference("t5", 1, KIND, feed_forward_proj="gated-gelu").save_pretrained(tmp_path)
    configure(tmp_path, tie_word_embeddings=False, scale_decoder_outputs=False)
    with pytest.raises(UserError, match="family t5, of a kind that is not supported") as error:
        stemma.load(tmp_path)
    assert [where for where, _ in error.value.problems] == [
        "tie_word_embeddings = False", "scale_decoder_outputs = False", "feed_forward_proj = gated-gelu"]


def test_a_checkpoint_of_only_the_encoder_is_refused(tmp_path):
    reference.random_reference("t5", 1, "T5EncoderModel").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="is_encoder_decoder = False +only True is supported"):
        stemma.load(tmp_path)


NOT_T5 = {"layer norm": ("t5", ["network.norm={kind='layer', placement='pre', epsilon=1e-6}"]),
          "post-norm": ("t5", ["network.norm.placement=post"]),
          "biases": ("t5", ["network.bias=true"]), "biases in attention": ("t5", ["network.attention.bias=true"]),
          "scaled scores": ("t5", ["network.attention.scale=true"]),
          "embedding not quiet": ("t5", ["network.embedding.scale_logits=false"]),
          "scaled embedding": ("t5", ["network.embedding.scale=true"]), "one stack": ("prefix-lm", []),
          "learned positions": ("t5", ["network.position={kind='learned', maximum=64}", "corpus.sequence_length=64"]),
          "transformer": ("transformer", []), "mass": ("mass", [])}


@pytest.mark.parametrize(("name", "changes"), NOT_T5.values(), ids=NOT_T5)
def test_a_network_that_is_not_t5_is_saved_as_type_stemma(tmp_path, name, changes):
    sizes = ["network.width=24", "network.heads=2", "network.feedforward=96"]
    model = stemma.build(f"{name}@tiny", 40, [*sizes, *changes])
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    decoder_inputs = {} if name == "prefix-lm" else {"decoder_input_ids": ids[:, :9]}
    assert_close(model.logits(ids, **decoder_inputs), again.logits(ids, **decoder_inputs))
    assert again.recipe == model.recipe


# --- the tokenizer ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf_tokenizer_folder(tmp_path_factory, text_file):
    """A SentencePiece model without sentinels, as in the first T5 checkpoints."""
    folder = tmp_path_factory.mktemp("t5")
    sentencepiece.SentencePieceTrainer.train(
        input=str(text_file), model_prefix=str(folder / "spiece"), vocab_size=120, pad_id=0, eos_id=1, unk_id=2,
        bos_id=-1, hard_vocab_limit=False, minloglevel=2)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    return folder


@pytest.mark.parametrize("layout", ["slow", "fast"])
def test_a_tokenizer_of_transformers_loads_with_the_same_ids(tmp_path, hf_tokenizer_folder, layout):
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(hf_tokenizer_folder)
    hf_tokenizer.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(hf_tokenizer_folder if layout == "slow" else tmp_path)
    assert [tokenizer.encode(line).ids for line in LINES] == [hf_tokenizer(line)["input_ids"] for line in LINES]
    pairs = zip(LINES[:-1], reversed(LINES[:-1]), strict=True)
    assert all(tokenizer.encode(*pair).ids == hf_tokenizer(*pair)["input_ids"] for pair in pairs)
    names = [f"<extra_id_{index}>" for index in range(100)]
    assert tokenizer.sentinels == hf_tokenizer.convert_tokens_to_ids(names)
    last = tokenizer.vocab_size - 1  # the first sentinel has the last id
    assert tokenizer.sentinels == list(range(last, last - 100, -1))
    assert tokenizer.special_token_ids == {"padding": 0, "end": 1, "separator": 1, "unknown": 2,
                                           "sentinel": tokenizer.vocab_size - 1}


def test_an_embedding_with_spare_rows_keeps_them(tmp_path, hf_tokenizer_folder):
    """32,128 rows for 32,100 tokens, as published."""
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(hf_tokenizer_folder)
    hf_model = reference.random_reference("t5", 1, KIND, vocab_size=len(hf_tokenizer) + 14, decoder_start_token_id=0)
    hf_model.save_pretrained(tmp_path / "hf")
    hf_tokenizer.save_pretrained(tmp_path / "hf")
    model = stemma.load(tmp_path / "hf")
    assert model.load_warnings == [] and model.network.vocab_size == len(hf_tokenizer) + 14
    settings = model.recipe.settings
    assert (settings.corpus.decoder_start, settings.tokenizer.kind, settings.corpus.single) == ("padding", "unigram",
                                                                                                "A end")
    stemma.save(model, tmp_path / "stemma")
    back = assert_loads_into(KIND, tmp_path / "stemma")
    assert_same_outputs(model, back)
    assert back.config.decoder_start_token_id == 0


def test_another_decoder_start_token_is_reported(tmp_path, hf_tokenizer_folder):
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(hf_tokenizer_folder)
    reference.random_reference("t5", 1, KIND, vocab_size=len(hf_tokenizer)).save_pretrained(tmp_path)
    hf_tokenizer.save_pretrained(tmp_path)
    configure(tmp_path, decoder_start_token_id=1)
    assert stemma.load(tmp_path).recipe.settings.corpus.decoder_start == "end"
    configure(tmp_path, decoder_start_token_id=7)
    with pytest.raises(UserError, match="decoder_start_token_id 7"):
        stemma.load(tmp_path)


def test_a_saved_folder_works_with_auto_tokenizer_and_generate(tmp_path, text_file):
    text = text_file.read_text()
    tokenizer = train_tokenizer(iter([text]), "unigram", 260, lowercase=False, roles={"end", "sentinel"})
    model = stemma.build("t5@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    config = config_of(tmp_path / "m")
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    assert [config[name] for name in names] == [tokenizer.special_id(role) for role in ("padding", "end", "padding")]
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    end = tokenizer.special_id("end")
    for line in LINES:
        assert hf_tokenizer(line)["input_ids"] == [*tokenizer.encode(line, special=False).ids, end]
    first, second = (hf_tokenizer(line)["input_ids"] for line in LINES[:2])
    assert hf_tokenizer(*LINES[:2])["input_ids"] == [*first, *second]
    sentinels = hf_tokenizer.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_7>"])
    assert sentinels == [tokenizer.sentinels[i] for i in (0, 7)]
    hf_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "m").eval()
    inputs = hf_tokenizer("the old clerk", return_tensors="pt")
    generated = hf_model.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert generated[0, 0] == tokenizer.special_id("padding")
    logits = model.logits(inputs["input_ids"], decoder_input_ids=generated[:, :-1])
    assert_close(logits.gather(-1, generated[:, 1:, None])[..., 0], logits.amax(-1))

"""BART agrees with `transformers` to 1e-4, in both directions: encoder, decoder, cached decoding, tokenizer."""

from __future__ import annotations

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
    assert_same_steps,
    config_of,
    configure,
    load_both_ways,
)
from safetensors.torch import load_file, save_file

import stemma
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

KIND = "BartForConditionalGeneration"
LINES = ["The old clerk copies a letter.", "A<mask> letter", "two  spaces  here ", "na\u00efve Zo\u00eb", " before"]


@pytest.mark.parametrize("seed", SEEDS)
def test_bart_agrees_with_transformers(tmp_path, seed):
    model = assert_agrees_both_ways(reference.random_reference("bart", seed, KIND), tmp_path, seed)
    assert model.recipe.settings.network.decoder.layers == config_of(tmp_path / "hf")["decoder_layers"]


@pytest.mark.parametrize("seed", range(3))
def test_incremental_decoding_agrees(tmp_path, seed):
    hf_model = reference.random_reference("bart", seed, KIND)
    hf_model.save_pretrained(tmp_path)
    assert_same_steps(stemma.load(tmp_path), hf_model, seed)


@pytest.mark.parametrize("settings", [{"activation_function": "relu"}, {"activation_function": "gelu_new"},
                                      {"scale_embedding": True}, {"dropout": 0, "activation_dropout": 0.3}],
                         ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, settings):
    hf_model = reference.random_reference("bart", 5, KIND, **settings)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)
    assert all(getattr(back.config, name) == value for name, value in settings.items())


@pytest.mark.parametrize("seed", range(2))
def test_a_saved_model_agrees_in_transformers(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "decoder.layers": sizes["layers"] + 1, "width": sizes["width"],
               "heads": sizes["heads"], "feedforward": sizes["inner"], "position.maximum": sizes["positions"]}
    model = stemma.build("bart", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                       f"corpus.sequence_length={sizes['positions']}"])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "stemma")
    hf_model = assert_loads_into(KIND, tmp_path / "stemma")
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "stemma")) is type(hf_model)
    assert_same_outputs(model, hf_model, seed=seed)
    assert_same_steps(model, hf_model, seed)
    assert model.parameter_count() == hf_model.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model, seed=seed)


# --- published checkpoints and unsupported ones -----------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("copied", [False, True], ids=["new", "old"])
def test_the_published_body_loads_with_its_head(tmp_path, copied):
    """BART was released as a BartModel without a head: the output matrix is the tied embedding."""
    hf_model = reference.random_reference("bart", 2, "BartModel")
    hf_model.save_pretrained(tmp_path / "hf")
    file = tmp_path / "hf/model.safetensors"
    if copied:
        weights = load_file(file)
        copies = {f"{part}.embed_tokens.weight": weights["shared.weight"].clone() for part in ("encoder", "decoder")}
        versions = {f"{part}.version": torch.ones(1) for part in ("encoder", "decoder")}
        save_file({**weights, **copies, **versions}, file, {"format": "pt"})
    model = stemma.load(tmp_path / "hf")
    assert model.load_warnings == []
    ids, target = torch.arange(8).view(2, 4), torch.arange(6).view(2, 3)
    expected = hf_model(input_ids=ids, decoder_input_ids=target).last_hidden_state
    torch.testing.assert_close(model.hidden(ids, decoder_input_ids=target), expected, atol=1e-4, rtol=0)
    hf_lm = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    assert_same_outputs(model, hf_lm)
    stemma.save(model, tmp_path / "stemma")
    assert_same_outputs(model, assert_loads_into(KIND, tmp_path / "stemma"))


def test_a_nonzero_logits_bias_is_refused(tmp_path):
    """Every checkpoint stores final_logits_bias; only zero is supported."""
    hf_model = reference.random_reference("bart", 1, KIND)
    hf_model.final_logits_bias[0, 3] = 0.5
    hf_model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="final_logits_bias"):
        stemma.load(tmp_path)


def test_all_differences_from_bart_are_reported_at_once(tmp_path):
    reference.random_reference("bart", 1, KIND).save_pretrained(tmp_path)
    configure(tmp_path, decoder_attention_heads=99, decoder_ffn_dim=98, tie_word_embeddings=False,
              activation_function="gleu")
    with pytest.raises(UserError, match="family bart, of a kind that is not supported") as error:
        stemma.load(tmp_path)
    assert [where for where, _ in error.value.problems] == [
        "decoder_attention_heads = 99", "decoder_ffn_dim = 98", "tie_word_embeddings = False",
        "activation_function = gleu"]


NOT_BART = {"pre-norm": ["network.norm.placement=pre"], "another epsilon": ["network.norm.epsilon=1e-6"],
            "no norm": ["network.embedding.norm=false"], "no offset": ["network.position.offset=0"],
            "wide heads": ["network.attention.head_width=8"], "no biases": ["network.bias=false"],
            "sinusoids": ["network.position={kind='sinusoidal', maximum=128}"],
            "unscaled scores": ["network.attention.scale=false"],
            "scaled logits": ["network.embedding.scale_logits=true"]}


@pytest.mark.parametrize("changes", NOT_BART.values(), ids=NOT_BART)
def test_a_network_that_is_not_bart_is_saved_as_type_stemma(tmp_path, changes):
    model = stemma.build("bart@tiny", 40, ["network.width=24", "network.heads=2", "network.feedforward=96", *changes])
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert_close(model.logits(ids, decoder_input_ids=ids), again.logits(ids, decoder_input_ids=ids))
    assert again.recipe == model.recipe


# --- the tokenizer ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf_tokenizer_folder(tmp_path_factory, text_file):
    """vocab.json and merges.txt, as in the first checkpoints."""
    folder = tmp_path_factory.mktemp("bart")
    reference.write_bpe_files(folder, text_file)
    (folder / "config.json").write_text('{"model_type": "bart"}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BartTokenizer"}')
    return folder


@pytest.mark.parametrize("layout", ["slow", "fast"])
def test_a_tokenizer_of_transformers_loads_with_the_same_ids(tmp_path, hf_tokenizer_folder, layout):
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(hf_tokenizer_folder)
    hf_tokenizer.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(hf_tokenizer_folder if layout == "slow" else tmp_path)
    assert [tokenizer.encode(line).ids for line in LINES] == [hf_tokenizer(line)["input_ids"] for line in LINES]
    pairs = zip(LINES, reversed(LINES), strict=True)
    assert all(tokenizer.encode(*pair).ids == hf_tokenizer(*pair)["input_ids"] for pair in pairs)
    assert tokenizer.special_token_ids == {"padding": 1, "unknown": 3, "start": 0, "separator": 2,
                                           "mask": tokenizer.vocab_size - 1,
                          "begin": 0, "end": 2}


@pytest.mark.parametrize(("stated", "role"), [(2, "end"), (0, "begin"), (1, "padding"), (..., "end")])
def test_the_decoder_start_token_is_loaded(tmp_path, hf_tokenizer_folder, stated, role):
    """Two special tokens may have the same id; then it is the family's default."""
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(hf_tokenizer_folder)
    reference.random_reference("bart", 1, KIND, vocab_size=len(hf_tokenizer)).save_pretrained(tmp_path / "m")
    hf_tokenizer.save_pretrained(tmp_path / "m")
    configure(tmp_path / "m", decoder_start_token_id=stated)
    model = stemma.load(tmp_path / "m")
    assert model.recipe.settings.corpus.decoder_start == role
    stemma.save(model, tmp_path / "again")
    assert config_of(tmp_path / "again")["decoder_start_token_id"] == (2 if stated is ... else stated)


def test_a_saved_folder_works_with_auto_tokenizer_and_generate(tmp_path, text_file):
    text = text_file.read_text()
    tokenizer = train_tokenizer(iter([text]), "byte_bpe", 330, lowercase=False, roles={"start", "end", "mask"})
    model = stemma.build("bart@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    config, end, start = config_of(tmp_path / "m"), tokenizer.special_id("end"), tokenizer.special_id("start")
    names = ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id")
    assert [config[name] for name in names] == [end, start, end, tokenizer.special_id("padding"), None]
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    for line in LINES:
        assert hf_tokenizer(line)["input_ids"] == [start, *tokenizer.encode(line, special=False).ids, end]
    first, second = (hf_tokenizer(line)["input_ids"] for line in LINES[:2])
    assert hf_tokenizer(*LINES[:2])["input_ids"] == [*first, end, *second[1:]]
    hf_model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "m").eval()
    inputs = hf_tokenizer("The old clerk", return_tensors="pt")
    generated = hf_model.generate(**inputs, max_new_tokens=5, do_sample=False)
    assert generated[0, 0] == end
    logits = model.logits(inputs["input_ids"], decoder_input_ids=generated[:, :-1])
    assert_close(logits.gather(-1, generated[:, 1:, None])[..., 0], logits.amax(-1))

"""BART agrees with `transformers` to 1e-4, in both directions: encoder, decoder, steps, and its tokenizer."""

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
    assert model.recipe.settings.network.decoder.layers == config_of(tmp_path / "theirs")["decoder_layers"]


@pytest.mark.parametrize("seed", range(3))
def test_incremental_decoding_agrees(tmp_path, seed):
    theirs = reference.random_reference("bart", seed, KIND)
    theirs.save_pretrained(tmp_path)
    assert_same_steps(stemma.load(tmp_path), theirs, seed)


@pytest.mark.parametrize("settings", [{"activation_function": "relu"}, {"activation_function": "gelu_new"},
                                      {"scale_embedding": True}, {"dropout": 0, "activation_dropout": 0.3}],
                         ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, settings):
    theirs = reference.random_reference("bart", 5, KIND, **settings)
    model, back = load_both_ways(theirs, tmp_path)
    assert_same_outputs(model, theirs)
    assert_same_outputs(model, back)
    assert all(getattr(back.config, name) == value for name, value in settings.items())


@pytest.mark.parametrize("seed", range(2))
def test_transformers_agrees_with_ours(tmp_path, seed):
    sizes = reference.random_sizes(seed + 10)
    changes = {"layers": sizes["layers"], "decoder.layers": sizes["layers"] + 1, "width": sizes["width"],
               "heads": sizes["heads"], "feedforward": sizes["inner"], "position.maximum": sizes["places"]}
    model = stemma.build("bart", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                       f"corpus.sequence_length={sizes['places']}"])
    reference.perturb(model.network, seed)
    stemma.save(model, tmp_path / "ours")
    theirs = assert_loads_into(KIND, tmp_path / "ours")
    assert type(transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")) is type(theirs)
    assert_same_outputs(model, theirs, seed=seed)
    assert_same_steps(model, theirs, seed)
    assert model.parameter_count() == theirs.num_parameters()
    assert_same_outputs(stemma.load(tmp_path / "ours"), theirs, seed=seed)


# --- the published file, and what only looks like it ------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("copied", [False, True], ids=["new", "old"])
def test_the_published_body_loads_with_its_head(tmp_path, copied):
    """It was released as a BartModel, and everybody writes with it: the head is the table."""
    theirs = reference.random_reference("bart", 2, "BartModel")
    theirs.save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs/model.safetensors"
    if copied:
        weights = load_file(file)
        again = {f"{part}.embed_tokens.weight": weights["shared.weight"].clone() for part in ("encoder", "decoder")}
        versions = {f"{part}.version": torch.ones(1) for part in ("encoder", "decoder")}
        save_file({**weights, **again, **versions}, file, {"format": "pt"})
    model = stemma.load(tmp_path / "theirs")
    assert model.load_warnings == []
    ids, target = torch.arange(8).view(2, 4), torch.arange(6).view(2, 3)
    expected = theirs(input_ids=ids, decoder_input_ids=target).last_hidden_state
    torch.testing.assert_close(model.hidden(ids, decoder_input_ids=target), expected, atol=1e-4, rtol=0)
    writer = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "theirs").eval()
    assert_same_outputs(model, writer)
    stemma.save(model, tmp_path / "ours")
    assert_same_outputs(model, assert_loads_into(KIND, tmp_path / "ours"))


def test_constants_that_are_added_to_the_scores_are_refused(tmp_path):
    """Every file has them, and in those of this family they are zero."""
    theirs = reference.random_reference("bart", 1, KIND)
    theirs.final_logits_bias[0, 3] = 0.5
    theirs.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="final_logits_bias"):
        stemma.load(tmp_path)


def test_all_differences_from_bart_are_reported_at_once(tmp_path):
    reference.random_reference("bart", 1, KIND).save_pretrained(tmp_path)
    configure(tmp_path, decoder_attention_heads=99, decoder_ffn_dim=98, tie_word_embeddings=False,
              activation_function="gleu")
    with pytest.raises(UserError, match="family bart, of a kind that is not supported") as told:
        stemma.load(tmp_path)
    assert [place for place, _ in told.value.problems] == [
        "decoder_attention_heads = 99", "decoder_ffn_dim = 98", "tie_word_embeddings = False",
        "activation_function = gleu"]


NOT_BART = {"pre-norm": ["network.norm.place=pre"], "another epsilon": ["network.norm.epsilon=1e-6"],
            "no norm": ["network.embedding.norm=false"], "no offset": ["network.position.offset=0"],
            "wide heads": ["network.attention.head_width=8"], "no constants": ["network.bias=false"],
            "sinusoids": ["network.position={kind='sinusoidal', maximum=128}"],
            "unscaled scores": ["network.attention.scale=false"], "quiet": ["network.embedding.quiet=true"]}


@pytest.mark.parametrize("changes", NOT_BART.values(), ids=NOT_BART)
def test_what_is_not_bart_is_saved_under_our_own_name(tmp_path, changes):
    model = stemma.build("bart@tiny", 40, ["network.width=24", "network.heads=2", "network.feedforward=96", *changes])
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert_close(model.logits(ids, decoder_input_ids=ids), again.logits(ids, decoder_input_ids=ids))
    assert again.recipe == model.recipe


# --- with its tokenizer -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs_folder(tmp_path_factory, text_file):
    """As the first checkpoints have it: a vocabulary and merges."""
    folder = tmp_path_factory.mktemp("bart")
    reference.write_byte_pairs(folder, text_file)
    (folder / "config.json").write_text('{"model_type": "bart"}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BartTokenizer"}')
    return folder


@pytest.mark.parametrize("layout", ["slow", "fast"])
def test_their_tokenizer_gives_the_same_ids(tmp_path, theirs_folder, layout):
    theirs = transformers.AutoTokenizer.from_pretrained(theirs_folder)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(theirs_folder if layout == "slow" else tmp_path)
    assert [ours.encode(line).ids for line in LINES] == [theirs(line)["input_ids"] for line in LINES]
    pairs = zip(LINES, reversed(LINES), strict=True)
    assert all(ours.encode(*pair).ids == theirs(*pair)["input_ids"] for pair in pairs)
    assert ours.special_token_ids == {"padding": 1, "unknown": 3, "start": 0, "separator": 2,
                                      "mask": ours.vocab_size - 1,
                          "begin": 0, "end": 2}


@pytest.mark.parametrize(("stated", "role"), [(2, "end"), (0, "begin"), (1, "padding"), (..., "end")])
def test_the_decoder_start_token_is_loaded(tmp_path, theirs_folder, stated, role):
    """Two roles may share a token: then the family's usual one is meant."""
    tokens = transformers.AutoTokenizer.from_pretrained(theirs_folder)
    reference.random_reference("bart", 1, KIND, vocab_size=len(tokens)).save_pretrained(tmp_path / "m")
    tokens.save_pretrained(tmp_path / "m")
    configure(tmp_path / "m", decoder_start_token_id=stated)
    model = stemma.load(tmp_path / "m")
    assert model.recipe.settings.corpus.decoder_start == role
    stemma.save(model, tmp_path / "again")
    assert config_of(tmp_path / "again")["decoder_start_token_id"] == (2 if stated is ... else stated)


def test_what_transformers_needs_to_write_is_there(tmp_path, text_file):
    text = text_file.read_text()
    tokenizer = train_tokenizer(iter([text]), "byte_bpe", 330, lowercase=False, roles={"start", "end", "mask"})
    model = stemma.build("bart@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    config, end, start = config_of(tmp_path / "m"), tokenizer.special_id("end"), tokenizer.special_id("start")
    names = ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id")
    assert [config[name] for name in names] == [end, start, end, tokenizer.special_id("padding"), None]
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    for line in LINES:
        assert tokens(line)["input_ids"] == [start, *tokenizer.encode(line, special=False).ids, end]
    first, second = (tokens(line)["input_ids"] for line in LINES[:2])
    assert tokens(*LINES[:2])["input_ids"] == [*first, end, *second[1:]]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "m").eval()
    given = tokens("The old clerk", return_tensors="pt")
    made = theirs.generate(**given, max_new_tokens=5, do_sample=False)
    assert made[0, 0] == end
    ours = model.logits(given["input_ids"], decoder_input_ids=made[:, :-1])
    assert_close(ours.gather(-1, made[:, 1:, None])[..., 0], ours.amax(-1))

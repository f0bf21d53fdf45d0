"""ALBERT agrees with `transformers` to 1e-4, in both directions, for each of its classes, with and without sharing."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_same_outputs, config_of, configure, load_both_ways
from safetensors.torch import load_file

import stemma
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

CLASSES = [("AlbertForPreTraining", {}), ("AlbertModel", {}), ("AlbertModel", {"add_pooling_layer": False}),
           ("AlbertForMaskedLM", {})]
NAMES = ["pretraining", "model", "model-without-pooler", "masked-lm"]
LINES = ["The old clerk copies a letter.", "two  spaces  here ", "na\u00efve Zo\u00eb", " before", "a [MASK] letter"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "arguments"), CLASSES, ids=NAMES)
def test_albert_agrees_with_transformers(tmp_path, seed, kind, arguments):
    model = assert_agrees_both_ways(reference.random_reference("albert", seed, kind, arguments), tmp_path, seed)
    network = model.recipe.settings.network
    assert network.sharing == "all" and network.embedding.width == config_of(tmp_path / "hf")["embedding_size"]
    assert len(model.network.encoder.blocks) == network.layers


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_without_sharing_agree(tmp_path, layers):
    hf_model = reference.random_reference("albert", 4, "AlbertForPreTraining", num_hidden_layers=layers,
                                          num_hidden_groups=layers)
    model = assert_agrees_both_ways(hf_model, tmp_path)
    assert model.recipe.settings.network.sharing == "none"
    assert config_of(tmp_path / "stemma")["num_hidden_groups"] == layers


@pytest.mark.parametrize("settings", [{"hidden_act": "gelu"}, {"hidden_act": "relu"}, {"layer_norm_eps": 0.01},
                                      {"type_vocab_size": 1, "hidden_dropout_prob": 0.1}],
                         ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, settings):
    hf_model = reference.random_reference("albert", 5, "AlbertForPreTraining", **settings)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)
    assert all(getattr(back.config, name) == value for name, value in settings.items())


def small(*changes: str) -> list[str]:
    return ["network.layers=3", "network.width=20", "network.heads=4", "network.feedforward=28",
            "network.embedding.width=12", "network.position.maximum=24", "corpus.sequence_length=24", *changes]


SAVED = [((), "AlbertForPreTraining"), (("remove=objective.sentence_order",), "AlbertForMaskedLM"),
         (("network.sharing=none",), "AlbertForPreTraining")]


@pytest.mark.parametrize(("changes", "kind"), SAVED, ids=["both", "masked-lm", "unshared"])
def test_a_saved_model_agrees_in_transformers(tmp_path, changes, kind):
    model = stemma.build("albert", 61, small(*changes))
    reference.perturb(model.network, 3)
    stemma.save(model, tmp_path / "stemma")
    hf_model = reference.assert_loads_into(kind, tmp_path / "stemma")
    assert_same_outputs(model, hf_model)
    assert model.parameter_count() == hf_model.num_parameters()
    again = stemma.load(tmp_path / "stemma")
    assert_same_outputs(again, hf_model)
    assert again.recipe == model.recipe
    stemma.save(again, tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "stemma" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_shared_layers_are_stored_once(tmp_path):
    stemma.save(stemma.build("albert", 61, small()), tmp_path / "m")
    names = load_file(tmp_path / "m/model.safetensors").keys()
    assert any("albert_layer_groups.0." in name for name in names)
    assert not any("albert_layer_groups.1." in name for name in names)


NOT_ALBERT = {"attention": ["network.sharing=attention"], "feedforward": ["network.sharing=feedforward"],
              "no projection": ["network.embedding.width=20"],
              "pre-norm": ["network.norm.placement=pre"], "three orders": ["objective.sentence_order.other=0.3"],
              "offset": ["network.position.offset=2"], "counted tokens": ["network.position.numbering=skip_padding"]}


@pytest.mark.parametrize("changes", NOT_ALBERT.values(), ids=NOT_ALBERT)
def test_a_network_that_is_not_albert_is_saved_as_type_stemma(tmp_path, changes):
    model = stemma.build("albert", 61, small(*changes))
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(24)[None]
    assert_close(model.logits(ids), again.logits(ids))
    assert again.recipe == model.recipe and again.parameter_count() == model.parameter_count()


def test_all_unsupported_settings_are_reported_at_once(tmp_path):
    hf_model = reference.random_reference("albert", 1, "AlbertForMaskedLM", num_hidden_layers=4)
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, num_hidden_groups=2, inner_group_num=3, embedding_size=hf_model.config.hidden_size)
    with pytest.raises(UserError, match="family albert, of a kind that is not supported") as error:
        stemma.load(tmp_path)
    assert [where for where, _ in error.value.problems] == [
        "inner_group_num = 3", f"embedding_size = {hf_model.config.hidden_size}", "num_hidden_groups = 2"]


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def test_a_saved_folder_works_with_auto_tokenizer_and_auto_model(tmp_path, text_file):
    """Through AutoTokenizer and AutoModelForPreTraining."""
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "unigram", 120, lowercase=True,
                                roles={"start", "separator", "mask"})
    model = stemma.build("albert@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    with_template = tokenizer.with_template("start A separator", "start A separator B:1 separator:1")
    for line in LINES:
        assert hf_tokenizer(line)["input_ids"] == with_template.encode(line).ids
    pair = hf_tokenizer(LINES[0], LINES[1])
    assert pair["input_ids"] == with_template.encode(LINES[0], LINES[1]).ids
    assert pair["token_type_ids"] == with_template.encode(LINES[0], LINES[1]).type_ids
    hf_model = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "m").eval()
    inputs = hf_tokenizer(LINES[0], LINES[1], return_tensors="pt")
    with torch.no_grad():
        expected = hf_model(**inputs)
    torch.testing.assert_close(model.logits(**inputs), expected.prediction_logits, atol=1e-4, rtol=0)
    assert json.loads((tmp_path / "m/tokenizer_config.json").read_text())["model_max_length"] == 512


def test_a_tokenizer_of_transformers_loads_with_the_same_ids(tmp_path):
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["\u2581the", "\u2581old", "\u2581clerk", "\u2581copies", "\u2581a", "\u2581letter", "\u2581two", "\u2581",
              *"abcdefghijklmnopqrstuvwxyz.'\""]
    vocabulary = [(piece, 0.0) for piece in special] + [(piece, -float(i)) for i, piece in enumerate(pieces, 1)]
    hf_tokenizer = transformers.AlbertTokenizer(vocab=vocabulary)
    hf_tokenizer.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.encode(line).ids for line in LINES] == [hf_tokenizer(line)["input_ids"] for line in LINES]
    hf_pair = hf_tokenizer(*LINES[:2], return_token_type_ids=True)
    pair = tokenizer.encode(*LINES[:2])
    assert (pair.ids, pair.type_ids) == (hf_pair["input_ids"], hf_pair["token_type_ids"])
    assert tokenizer.kind == "unigram" and tokenizer.lowercase
    expected = {"padding": 0, "unknown": 1, "start": 2, "separator": 3, "mask": 4}
    assert {name: tokenizer.special_token_ids[name] for name in expected} == expected

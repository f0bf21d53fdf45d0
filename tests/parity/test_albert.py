"""ALBERT agrees with `transformers` to 1e-4, in both directions, for each of its classes, shared or not."""

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
    assert network.sharing == "all" and network.embedding.width == config_of(tmp_path / "theirs")["embedding_size"]
    assert len(model.network.encoder.blocks) == network.layers


@pytest.mark.parametrize("layers", [2, 3])
def test_layers_that_share_nothing_agree(tmp_path, layers):
    theirs = reference.random_reference("albert", 4, "AlbertForPreTraining", num_hidden_layers=layers,
                                        num_hidden_groups=layers)
    model = assert_agrees_both_ways(theirs, tmp_path)
    assert model.recipe.settings.network.sharing == "none"
    assert config_of(tmp_path / "ours")["num_hidden_groups"] == layers


@pytest.mark.parametrize("settings", [{"hidden_act": "gelu"}, {"hidden_act": "relu"}, {"layer_norm_eps": 0.01},
                                      {"type_vocab_size": 1, "hidden_dropout_prob": 0.1}],
                         ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, settings):
    theirs = reference.random_reference("albert", 5, "AlbertForPreTraining", **settings)
    model, back = load_both_ways(theirs, tmp_path)
    assert_same_outputs(model, theirs)
    assert_same_outputs(model, back)
    assert all(getattr(back.config, name) == value for name, value in settings.items())


def small(*changes: str) -> list[str]:
    return ["network.layers=3", "network.width=20", "network.heads=4", "network.feedforward=28",
            "network.embedding.width=12", "network.position.maximum=24", "corpus.sequence_length=24", *changes]


OURS = [((), "AlbertForPreTraining"), (("remove=objective.sentence_order",), "AlbertForMaskedLM"),
        (("network.sharing=none",), "AlbertForPreTraining")]


@pytest.mark.parametrize(("changes", "kind"), OURS, ids=["both", "masked-lm", "unshared"])
def test_transformers_agrees_with_ours(tmp_path, changes, kind):
    model = stemma.build("albert", 61, small(*changes))
    reference.perturb(model.network, 3)
    stemma.save(model, tmp_path / "ours")
    theirs = reference.assert_loads_into(kind, tmp_path / "ours")
    assert_same_outputs(model, theirs)
    assert model.parameter_count() == theirs.num_parameters()
    again = stemma.load(tmp_path / "ours")
    assert_same_outputs(again, theirs)
    assert again.recipe == model.recipe
    stemma.save(again, tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_what_is_shared_is_written_once(tmp_path):
    stemma.save(stemma.build("albert", 61, small()), tmp_path / "m")
    names = load_file(tmp_path / "m/model.safetensors").keys()
    assert any("albert_layer_groups.0." in name for name in names)
    assert not any("albert_layer_groups.1." in name for name in names)


NOT_ALBERT = {"attention": ["network.sharing=attention"], "feedforward": ["network.sharing=feedforward"],
              "no map": ["network.embedding.width=20"],
              "pre-norm": ["network.norm.place=pre"], "three orders": ["objective.sentence_order.other=0.3"],
              "offset": ["network.position.offset=2"], "places": ["network.position.counts=tokens"]}


@pytest.mark.parametrize("changes", NOT_ALBERT.values(), ids=NOT_ALBERT)
def test_what_is_not_albert_is_saved_under_our_own_name(tmp_path, changes):
    model = stemma.build("albert", 61, small(*changes))
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(24)[None]
    assert_close(model.logits(ids), again.logits(ids))
    assert again.recipe == model.recipe and again.parameter_count() == model.parameter_count()


def test_all_unsupported_settings_are_reported_at_once(tmp_path):
    theirs = reference.random_reference("albert", 1, "AlbertForMaskedLM", num_hidden_layers=4)
    theirs.save_pretrained(tmp_path)
    configure(tmp_path, num_hidden_groups=2, inner_group_num=3, embedding_size=theirs.config.hidden_size)
    with pytest.raises(UserError, match="family albert, of a kind that is not supported") as told:
        stemma.load(tmp_path)
    assert [place for place, _ in told.value.problems] == [
        "inner_group_num = 3", f"embedding_size = {theirs.config.hidden_size}", "num_hidden_groups = 2"]


# --- with its tokenizer -----------------------------------------------------------------------------------------------


def test_what_transformers_needs_is_there(tmp_path, text_file):
    """Our own vocabulary, through AutoTokenizer and the pipeline that fills masks."""
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "unigram", 120, lowercase=True,
                                roles={"start", "separator", "mask"})
    model = stemma.build("albert@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    laid_out = tokenizer.with_template("start A separator", "start A separator B:1 separator:1")
    for line in LINES:
        assert tokens(line)["input_ids"] == laid_out.encode(line).ids
    made = tokens(LINES[0], LINES[1])
    assert made["input_ids"] == laid_out.encode(LINES[0], LINES[1]).ids
    assert made["token_type_ids"] == laid_out.encode(LINES[0], LINES[1]).type_ids
    theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "m").eval()
    given = tokens(LINES[0], LINES[1], return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**given)
    torch.testing.assert_close(model.logits(**given), expected.prediction_logits, atol=1e-4, rtol=0)
    assert json.loads((tmp_path / "m/tokenizer_config.json").read_text())["model_max_length"] == 512


def test_their_tokenizer_gives_the_same_ids(tmp_path):
    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["\u2581the", "\u2581old", "\u2581clerk", "\u2581copies", "\u2581a", "\u2581letter", "\u2581two", "\u2581",
              *"abcdefghijklmnopqrstuvwxyz.'\""]
    vocabulary = [(piece, 0.0) for piece in special] + [(piece, -float(i)) for i, piece in enumerate(pieces, 1)]
    theirs = transformers.AlbertTokenizer(vocab=vocabulary)
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert [ours.encode(line).ids for line in LINES] == [theirs(line)["input_ids"] for line in LINES]
    both = theirs(*LINES[:2], return_token_type_ids=True)
    made = ours.encode(*LINES[:2])
    assert (made.ids, made.type_ids) == (both["input_ids"], both["token_type_ids"])
    assert ours.kind == "unigram" and ours.lowercase
    assert {role: ours.special_token_ids[role] for role in ("padding", "unknown", "start", "separator", "mask")} == {
        "padding": 0, "unknown": 1, "start": 2, "separator": 3, "mask": 4}

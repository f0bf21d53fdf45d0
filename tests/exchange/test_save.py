"""A folder of ours carries a family's name only if it truly is one, and gives back what was put in."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from closeness import assert_close
from parity.reference import assert_loads_into, perturb

import stemma
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer

SMALL = ["network.width=24", "network.layers=2", "network.heads=3", "network.feedforward=20"]
BERT = {"": "BertForPreTraining", "remove=objective.next_sentence": "BertForMaskedLM",
        "remove=objective.masked_lm": "BertForNextSentencePrediction"}
NOT_BERT = ["network.norm.place=pre", "network.embedding.width=11", "network.embedding.scale=true",
            "network.embedding.norm=false", "network.position.offset=2", "network.attention.head_width=5"]


def small(*changes: str, vocabulary: int = 60) -> stemma.Model:
    torch.manual_seed(0)
    model = stemma.build("bert@tiny", vocabulary, [*SMALL, *changes])
    perturb(model.network, 0)
    return model


def config_of(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def assert_same_model(one: stemma.Model, other: stemma.Model) -> None:
    before, after = one.network.state_dict(), other.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert one.recipe == other.recipe
    ids, types = torch.tensor([[7, 11, 13, 17], [19, 23, 29, 31]]), torch.tensor([[0, 0, 1, 1]] * 2)
    assert_close(one.hidden(ids), other.hidden(ids))
    if one.recipe.settings.network.embedding.segments > 1:
        assert_close(one.hidden(ids, token_type_ids=types), other.hidden(ids, token_type_ids=types))


@pytest.mark.parametrize(("change", "architecture"), BERT.items())
def test_what_is_bert_is_saved_as_bert(tmp_path, change, architecture):
    model = small(*filter(None, [change]))
    stemma.save(model, tmp_path / "m")
    config = config_of(tmp_path / "m")
    assert (config["model_type"], config["architectures"]) == ("bert", [architecture])
    assert config["vocab_size"] == 60
    assert_same_model(stemma.load(tmp_path / "m"), model)
    assert_loads_into(architecture, tmp_path / "m")


@pytest.mark.parametrize("changes", [*([change] for change in NOT_BERT),
                                     ["network.position.kind=sinusoidal", "network.position.maximum=128"],
                                     ["network.position.kind=none"],
                                     ["network.embedding.segments=0", "corpus.pair=start A separator B separator"]],
                         ids=lambda changes: changes[0])
def test_what_is_not_bert_is_never_saved_as_bert(tmp_path, changes):
    model = small(*changes)
    stemma.save(model, tmp_path / "m")
    config = config_of(tmp_path / "m")
    assert config["model_type"] == "stemma"
    assert not any("Bert" in name for name in config["architectures"])
    assert_same_model(stemma.load(tmp_path / "m"), model)
    with pytest.raises(ValueError, match="stemma"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_another_kind_of_head_is_not_bert(tmp_path):
    from stemma.exchange.save import matching_family
    from stemma.model import Model
    from stemma.network.heads import ClassHead, Pooler
    from stemma.network.network import Network

    recipe = small().recipe
    for classes, expected in ((2, "bert"), (3, None)):
        heads = {"pooler": Pooler(), "next_sentence": ClassHead(classes)}
        family = matching_family(Model(recipe, None, Network(recipe.settings.network, 60, heads)))
        assert (family and family.model_type) == expected


@pytest.mark.parametrize(("spoil", "told"), [({"heads": ["pooler", "crown"]}, "lists the head crown"),
                                             ({"vocab_size": 61}, "do not fit its config.json")])
def test_a_spoilt_folder_of_our_own_kind_is_told(tmp_path, spoil, told):
    stemma.save(small("network.norm.place=pre"), tmp_path / "m")
    (tmp_path / "m/checksums.json").unlink()
    (tmp_path / "m/config.json").write_text(json.dumps({**config_of(tmp_path / "m"), **spoil}))
    with pytest.raises(UserError, match=told):
        stemma.load(tmp_path / "m")


def test_what_our_own_kind_leaves_aside_is_named(tmp_path):
    stemma.save(small("network.norm.place=pre"), tmp_path / "m")
    (tmp_path / "m/checksums.json").unlink()
    (tmp_path / "m/config.json").write_text(json.dumps({**config_of(tmp_path / "m"), "heads": ["pooler"]}))
    assert "7 tensors" in stemma.load(tmp_path / "m").load_warnings[0]


def test_nothing_is_overwritten_unasked(tmp_path):
    model = small()
    stemma.save(model, tmp_path / "m")
    with pytest.raises(UserError, match="not empty"):
        stemma.save(model, tmp_path / "m")
    stemma.save(model, tmp_path / "m", overwrite=True)
    assert {file.name for file in (tmp_path / "m").iterdir()} == {"config.json", "model.safetensors", "recipe.toml",
                                                                  "checksums.json"}
    assert not list(tmp_path.glob(".*"))


# --- the tokenizer ----------------------------------------------------------------------------------------------------

TEXTS = ["the old clerk copies a letter", "", "  The  CLERK, numbers (seven) pages... ", "naïve café Ångström",
         "北京 the river 東京", "read 🙂 this 👩‍👩‍👧 now", "zßœ ﬁ İstanbul \u200b\ufeff x\x00y", "a" * 120,
         "don't [MASK] [SEP] it", "##er [S3] <mask> \t tab\nline"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    model = small(vocabulary=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    folder = tmp_path_factory.mktemp("saved") / "m"
    stemma.save(model, folder)
    return folder


def test_auto_tokenizer_gives_our_ids(saved):
    theirs, ours = transformers.AutoTokenizer.from_pretrained(saved), stemma.load(saved).tokenizer
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text).ids, text
        assert theirs(text)["token_type_ids"] == ours.encode(text).type_ids
        for second in filter(None, TEXTS):  # an empty second text is none over there
            pair, encoding = theirs(text, second), ours.encode(text, second)
            assert (pair["input_ids"], pair["token_type_ids"]) == (encoding.ids, encoding.type_ids)
    assert set(theirs("a b", "c")["token_type_ids"]) == {0, 1}
    assert theirs.decode(theirs(TEXTS[0])["input_ids"], skip_special_tokens=True) == TEXTS[0]


def test_auto_tokenizer_knows_the_special_tokens_and_the_limit(saved):
    theirs, ours = transformers.AutoTokenizer.from_pretrained(saved), stemma.load(saved).tokenizer
    assert (theirs.mask_token_id, theirs.pad_token_id) == (ours.special_token_ids["mask"],
                                                           ours.special_token_ids["padding"])
    assert (theirs.cls_token_id, theirs.sep_token_id) == (ours.special_token_ids["start"],
                                                          ours.special_token_ids["separator"])
    assert theirs.model_max_length == 512
    long = theirs("the letter " * 600, truncation=True)
    assert len(long["input_ids"]) == 512 and long["input_ids"][-1] == theirs.sep_token_id
    assert config_of(saved)["pad_token_id"] == theirs.pad_token_id


def test_their_tokenizer_and_their_model_together(saved):
    """What a user of transformers does with a folder of ours."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    theirs = transformers.AutoModel.from_pretrained(saved).eval()
    ours = stemma.load(saved)
    batch = tokenizer(["the old clerk", "a young reader reads seven pages"], ["by the window", "x"], padding=True,
                      return_tensors="pt")
    with torch.no_grad():
        expected = theirs(**batch).last_hidden_state
    found = ours.hidden(**batch)
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=0)


def test_a_tokenizer_survives_a_round_trip(tmp_path, saved):
    stemma.save(stemma.load(saved), tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors", "recipe.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes(), name

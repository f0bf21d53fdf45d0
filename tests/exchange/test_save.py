"""A saved model has a family's model_type only if it belongs to the family, and loads as the same model."""

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
NOT_BERT = ["network.norm.placement=pre", "network.embedding.width=11", "network.embedding.scale=true",
            "network.embedding.norm=false", "network.position.offset=2", "network.attention.head_width=5"]


def small(*changes: str, vocabulary: int = 60) -> stemma.Model:
    torch.manual_seed(0)
    model = stemma.build("bert@tiny", vocabulary, [*SMALL, *changes])
    perturb(model.network, 0)
    return model


def config_of(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def assert_same_model(first: stemma.Model, second: stemma.Model) -> None:
    before, after = first.network.state_dict(), second.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert first.recipe == second.recipe
    ids, types = torch.tensor([[7, 11, 13, 17], [19, 23, 29, 31]]), torch.tensor([[0, 0, 1, 1]] * 2)
    assert_close(first.hidden(ids), second.hidden(ids))
    if first.recipe.settings.network.embedding.segments > 1:
        assert_close(first.hidden(ids, token_type_ids=types), second.hidden(ids, token_type_ids=types))


@pytest.mark.parametrize(("change", "architecture"), BERT.items())
def test_a_bert_is_saved_as_bert(tmp_path, change, architecture):
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
def test_a_network_that_is_not_bert_is_saved_as_type_stemma(tmp_path, changes):
    model = small(*changes)
    stemma.save(model, tmp_path / "m")
    config = config_of(tmp_path / "m")
    assert config["model_type"] == "stemma"
    assert not any("Bert" in name for name in config["architectures"])
    assert_same_model(stemma.load(tmp_path / "m"), model)
    with pytest.raises(ValueError, match="stemma"):
        transformers.AutoModel.from_pretrained(tmp_path / "m")


def test_a_head_with_another_number_of_classes_is_not_bert(tmp_path):
    from stemma.exchange.save import matching_family
    from stemma.model import Model
    from stemma.network.heads import ClassHead, Pooler
    from stemma.network.network import Network

    recipe = small().recipe
    for classes, expected in ((2, "bert"), (3, None)):
        heads = {"pooler": Pooler(), "next_sentence": ClassHead(classes)}
        family = matching_family(Model(recipe, None, Network(recipe.settings.network, 60, heads)))
        assert (family and family.model_type) == expected


@pytest.mark.parametrize(("damage", "message"), [({"heads": ["pooler", "crown"]}, "lists the head crown"),
                                             ({"vocab_size": 61}, "do not fit its config.json")])
def test_a_damaged_config_of_type_stemma_is_reported(tmp_path, damage, message):
    stemma.save(small("network.norm.placement=pre"), tmp_path / "m")
    (tmp_path / "m/checksums.json").unlink()
    (tmp_path / "m/config.json").write_text(json.dumps({**config_of(tmp_path / "m"), **damage}))
    with pytest.raises(UserError, match=message):
        stemma.load(tmp_path / "m")


def test_unused_tensors_of_type_stemma_are_reported(tmp_path):
    stemma.save(small("network.norm.placement=pre"), tmp_path / "m")
    (tmp_path / "m/checksums.json").unlink()
    (tmp_path / "m/config.json").write_text(json.dumps({**config_of(tmp_path / "m"), "heads": ["pooler"]}))
    assert "7 tensors" in stemma.load(tmp_path / "m").load_warnings[0]


def test_an_existing_folder_is_overwritten_only_with_overwrite(tmp_path):
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


def test_auto_tokenizer_gives_the_same_ids(saved):
    hf_tokenizer, tokenizer = transformers.AutoTokenizer.from_pretrained(saved), stemma.load(saved).tokenizer
    for text in TEXTS:
        assert hf_tokenizer(text)["input_ids"] == tokenizer.encode(text).ids, text
        assert hf_tokenizer(text)["token_type_ids"] == tokenizer.encode(text).type_ids
        for second in filter(None, TEXTS):  # transformers ignores an empty second text
            pair, encoding = hf_tokenizer(text, second), tokenizer.encode(text, second)
            assert (pair["input_ids"], pair["token_type_ids"]) == (encoding.ids, encoding.type_ids)
    assert set(hf_tokenizer("a b", "c")["token_type_ids"]) == {0, 1}
    assert hf_tokenizer.decode(hf_tokenizer(TEXTS[0])["input_ids"], skip_special_tokens=True) == TEXTS[0]


def test_auto_tokenizer_has_the_special_tokens_and_the_maximum_length(saved):
    hf_tokenizer, tokenizer = transformers.AutoTokenizer.from_pretrained(saved), stemma.load(saved).tokenizer
    assert (hf_tokenizer.mask_token_id, hf_tokenizer.pad_token_id) == (tokenizer.special_token_ids["mask"],
                                                                       tokenizer.special_token_ids["padding"])
    assert (hf_tokenizer.cls_token_id, hf_tokenizer.sep_token_id) == (tokenizer.special_token_ids["start"],
                                                                      tokenizer.special_token_ids["separator"])
    assert hf_tokenizer.model_max_length == 512
    long = hf_tokenizer("the letter " * 600, truncation=True)
    assert len(long["input_ids"]) == 512 and long["input_ids"][-1] == hf_tokenizer.sep_token_id
    assert config_of(saved)["pad_token_id"] == hf_tokenizer.pad_token_id


def test_auto_tokenizer_and_auto_model_give_the_same_hidden_states(saved):
    """As a user of transformers uses a saved folder."""
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(saved)
    hf_model = transformers.AutoModel.from_pretrained(saved).eval()
    model = stemma.load(saved)
    batch = hf_tokenizer(["the old clerk", "a young reader reads seven pages"], ["by the window", "x"], padding=True,
                         return_tensors="pt")
    with torch.no_grad():
        expected = hf_model(**batch).last_hidden_state
    hidden = model.hidden(**batch)
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(hidden[mask], expected[mask], atol=1e-4, rtol=0)


def test_saving_a_loaded_model_gives_the_same_files(tmp_path, saved):
    stemma.save(stemma.load(saved), tmp_path / "again")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors", "recipe.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (saved / name).read_bytes(), name

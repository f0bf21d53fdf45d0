"""RoBERTa agrees with `transformers` to 1e-4, in both directions, with padding on either side."""

from __future__ import annotations

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_same_outputs, config_of, configure

import stemma
from stemma.errors import UserError
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import train_tokenizer

CLASSES = [("RobertaForMaskedLM", {}), ("RobertaModel", {}), ("RobertaModel", {"add_pooling_layer": False})]
NAMES = ["masked-lm", "model", "model-without-pooler"]
LINES = ["The old clerk copies a letter.", "A <mask> letter", "two  spaces  here ", "na\u00efve Zo\u00eb", " before"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("kind", "arguments"), CLASSES, ids=NAMES)
def test_roberta_agrees_with_transformers(tmp_path, seed, kind, arguments):
    model = assert_agrees_both_ways(reference.random_reference("roberta", seed, kind, arguments), tmp_path, seed)
    stated = config_of(tmp_path / "hf")["max_position_embeddings"]
    assert model.recipe.settings.network.position.maximum == stated - 2
    assert config_of(tmp_path / "stemma")["max_position_embeddings"] == stated


def test_left_padding_is_not_counted_in_positions(tmp_path):
    """The comparison can fail: positions that count padding give other outputs."""
    hf_model = reference.random_reference("roberta", 1, "RobertaForMaskedLM")
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    model.recipe = model.recipe.with_changes({"network.position.numbering": "absolute"}, "test")
    with pytest.raises(AssertionError, match="of input 3 differs by"):
        assert_same_outputs(model, hf_model)


def test_config_defaults_are_those_of_transformers(tmp_path):
    """transformers' defaults are BERT's positions, segments and epsilon, not those of the published RoBERTa."""
    hf_model = reference.random_reference("roberta", 2, "RobertaForMaskedLM", max_position_embeddings=512,
                                          type_vocab_size=2, layer_norm_eps=1e-12)
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, max_position_embeddings=..., type_vocab_size=..., layer_norm_eps=..., pad_token_id=...)
    network = stemma.load(tmp_path).recipe.settings.network
    assert (network.position.maximum, network.embedding.segments, network.norm.epsilon) == (510, 2, 1e-12)


@pytest.mark.parametrize("segments", [1, 2])
def test_a_saved_model_agrees_in_transformers(tmp_path, segments):
    sizes = reference.random_sizes(12)
    changes = {"layers": sizes["layers"], "width": sizes["width"], "heads": sizes["heads"],
               "feedforward": sizes["inner"], "position.maximum": 29, "embedding.segments": segments}
    model = stemma.build("roberta", sizes["vocabulary"], [*(f"network.{key}={value}" for key, value in changes.items()),
                                                          "corpus.sequence_length=29"])
    reference.perturb(model.network, 3)
    stemma.save(model, tmp_path / "stemma")
    hf_model = reference.assert_loads_into("RobertaForMaskedLM", tmp_path / "stemma")
    assert type(transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "stemma")) is type(hf_model)
    assert_same_outputs(model, hf_model)
    assert model.parameter_count() == hf_model.num_parameters()
    again = stemma.load(tmp_path / "stemma")
    assert_same_outputs(again, hf_model)
    stemma.save(again, tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "stemma" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_checkpoint_with_an_untrained_pooler_keeps_it(tmp_path):
    """Published checkpoints store the tensors of a pooler besides those of the head."""
    hf_model = reference.random_reference("roberta", 3, "RobertaForMaskedLM")
    body = transformers.RobertaModel(hf_model.config).eval()
    hf_model.save_pretrained(tmp_path, state_dict={**hf_model.state_dict(), **{
        f"roberta.{name}": tensor for name, tensor in body.state_dict().items() if name.startswith("pooler.")}})
    model = stemma.load(tmp_path)
    assert set(model.network.heads) == {"pooler", "vocabulary"} and model.load_warnings == []
    ids = torch.arange(2, 12)[None]
    torch.testing.assert_close(model.logits(ids), hf_model(ids).logits.detach(), atol=1e-4, rtol=0)


def test_all_differences_from_roberta_are_reported_at_once(tmp_path):
    reference.random_reference("roberta", 1, "RobertaForMaskedLM").save_pretrained(tmp_path)
    configure(tmp_path, pad_token_id=0, is_decoder=True, hidden_act="relu")
    with pytest.raises(UserError, match="family roberta, of a kind that is not supported") as error:
        stemma.load(tmp_path)
    assert {where for where, _ in error.value.problems} == {"is_decoder = True", "pad_token_id = 0",
                                                            "hidden_act = relu"}


NOT_ROBERTA = {"pre-norm": ["network.norm.placement=pre"], "another activation": ["network.activation=relu"],
               "counted padding": ["network.position.numbering=absolute"], "no offset": ["network.position.offset=1"],
               "shared": ["network.sharing=all"], "shared in part": ["network.sharing=feedforward"],
               "next sentence": ["corpus.packing=segment_pair", "objective.next_sentence.random=0.5"]}


@pytest.mark.parametrize("changes", NOT_ROBERTA.values(), ids=NOT_ROBERTA)
def test_a_network_that_is_not_roberta_is_saved_as_type_stemma(tmp_path, changes):
    small = ["network.width=24", "network.heads=2", "network.feedforward=96"]
    model = stemma.build("roberta@tiny", 40, [*small, *changes])
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    again = stemma.load(tmp_path / "m")
    ids = torch.arange(40)[None]
    assert_close(model.logits(ids), again.logits(ids))
    assert again.recipe == model.recipe


# --- the tokenizer ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hf_tokenizer_folder(tmp_path_factory, text_file):
    """vocab.json with the mask token last, and merges.txt, as published."""
    folder = tmp_path_factory.mktemp("roberta")
    reference.write_bpe_files(folder, text_file)
    (folder / "config.json").write_text('{"model_type": "roberta"}')
    return folder


@pytest.mark.parametrize("layout", ["slow", "fast"])
def test_a_tokenizer_of_transformers_loads_with_the_same_ids(tmp_path, hf_tokenizer_folder, layout):
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(hf_tokenizer_folder)
    hf_tokenizer.save_pretrained(tmp_path)
    tokenizer = Tokenizer.load(hf_tokenizer_folder if layout == "slow" else tmp_path)
    assert [tokenizer.encode(line).ids for line in LINES] == [hf_tokenizer(line)["input_ids"] for line in LINES]
    pairs = zip(LINES, reversed(LINES), strict=True)
    assert all(tokenizer.encode(*pair).ids == hf_tokenizer(*pair)["input_ids"] for pair in pairs)
    assert tokenizer.special_token_ids["padding"] == 1
    assert tokenizer.special_token_ids["mask"] == tokenizer.vocab_size - 1


def save_with_tokenizer(folder, kind: str, text: str) -> stemma.Model:
    tokenizer = train_tokenizer(iter([text]), kind, 320, lowercase=False, roles={"start", "separator", "mask"})
    model = stemma.build("roberta@tiny", tokenizer.vocab_size)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, folder)
    return model


def test_a_saved_folder_works_with_auto_tokenizer_and_auto_model(tmp_path, text_file):
    model = save_with_tokenizer(tmp_path / "m", "byte_bpe", text_file.read_text())
    assert config_of(tmp_path / "m")["pad_token_id"] == 1
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    start, end = model.tokenizer.special_id("start"), model.tokenizer.special_id("separator")
    for line in LINES:
        assert hf_tokenizer(line)["input_ids"] == [start, *model.tokenizer.encode(line, special=False).ids, end]
    first, second = (hf_tokenizer(line)["input_ids"] for line in LINES[:2])
    assert hf_tokenizer(*LINES[:2])["input_ids"] == [*first, end, *second[1:]]
    hf_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m").eval()
    for side in ("right", "left"):
        inputs = hf_tokenizer(LINES, padding=True, padding_side=side, return_tensors="pt")
        mask = inputs["attention_mask"].bool()
        assert not mask.all() and "token_type_ids" not in inputs
        with torch.no_grad():
            expected = hf_model(**inputs).logits[mask]
        torch.testing.assert_close(model.logits(**inputs)[mask], expected, atol=1e-4, rtol=0)


def test_a_roberta_with_another_padding_id_is_saved_as_type_stemma(tmp_path, text_file):
    """In transformers the first position follows the padding id: [PAD] is 0 here, and the position offset is 2."""
    model = save_with_tokenizer(tmp_path / "m", "wordpiece", text_file.read_text())
    assert model.tokenizer.special_id("padding") == 0
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    ids = torch.arange(30)[None]
    assert_close(stemma.load(tmp_path / "m").logits(ids), model.logits(ids))

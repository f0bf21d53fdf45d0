"""Whatever folder is given: it loads as what it is, or is refused in a sentence. Never silently as something else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from closeness import assert_close
from parity.reference import assert_same_outputs, random_reference
from safetensors.torch import load_file, save_file

import stemma
from stemma.errors import CorruptFileError, UserError


@pytest.fixture
def theirs(tmp_path):
    """A small BertForPreTraining folder as transformers writes it, and the model itself."""
    made = random_reference("bert", 1, "BertForPreTraining")
    made.save_pretrained(tmp_path / "hf")
    return made


@pytest.fixture
def folder(tmp_path, theirs):
    return tmp_path / "hf"


def configure(folder: Path, **changes) -> None:
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def rewrite(folder: Path, change) -> None:
    """Replace the weights by what `change` makes of them."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in change(tensors).items()},
              folder / "model.safetensors", {"format": "pt"})


# --- what differs in spelling only ------------------------------------------------------------------------------------


def test_names_of_the_first_releases(folder, theirs):
    def old(tensors):
        names = {name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in tensors}
        return {names[name]: tensor for name, tensor in tensors.items()} | {
            "bert.embeddings.position_ids": torch.arange(23)[None],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone()}

    rewrite(folder, old)
    model = stemma.load(folder)
    assert model.load_warnings == []
    assert_same_outputs(model, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_fp32(folder, dtype):
    rewrite(folder, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    stored = load_file(folder / "model.safetensors")
    network = stemma.load(folder).network
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    kept = stored["bert.embeddings.word_embeddings.weight"].float()
    assert torch.equal(network.state_dict()["embedding.tokens.weight"], kept)


def test_the_model_is_ready_to_ask_and_to_train(folder):
    model = stemma.load(folder)
    assert not model.network.training
    assert all(parameter.requires_grad for parameter in model.network.parameters())
    assert str(model.device) == "cpu"


def test_a_silent_config_means_the_recipe(tmp_path):
    """Early files leave out what was always the same."""
    made = random_reference("bert", 1, "BertModel", hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=2)
    made.save_pretrained(tmp_path)
    configure(tmp_path, hidden_act=..., layer_norm_eps=..., type_vocab_size=..., is_decoder=None,
              position_embedding_type=None)
    assert_same_outputs(stemma.load(tmp_path), made)


def test_the_recipe_says_what_the_folder_is(folder, theirs):
    recipe = stemma.load(folder).recipe
    assert (recipe.name, recipe.size, recipe.label) == ("bert", None, "bert")
    assert recipe.settings.network.width == theirs.config.hidden_size
    assert recipe.settings.tokenizer.vocab_size == theirs.config.vocab_size
    assert recipe.origin["network.width"] == "config.json"
    assert recipe.origin["network.norm.place"] == "transformer"
    assert recipe.settings.corpus.sequence_length == theirs.config.max_position_embeddings


# --- more or less than a pre-trained BERT -----------------------------------------------------------------------------


def test_a_folder_with_a_head_of_its_own_loads_its_body_and_names_the_rest(tmp_path):
    made = random_reference("bert", 2, "BertForSequenceClassification")
    made.save_pretrained(tmp_path)
    configure(tmp_path, architectures=["BertForSomethingElse"])
    model = stemma.load(tmp_path)
    assert set(model.network.heads) == {"pooler"}
    assert len(model.load_warnings) == 1
    assert "classifier.bias, classifier.weight" in model.load_warnings[0] and "2 tensors" in model.load_warnings[0]
    ids = torch.tensor([[5, 3, 1]])
    torch.testing.assert_close(model.hidden(ids), made.bert(ids).last_hidden_state.detach(), atol=1e-4, rtol=0)


def test_a_masked_lm_that_kept_its_pooler_stays_a_masked_lm(folder, tmp_path):
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if "seq_rel" not in name})
    model = stemma.load(folder)
    assert set(model.network.heads) == {"pooler", "vocabulary"}
    stemma.save(model, tmp_path / "stemma")
    assert json.loads((tmp_path / "stemma/config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize("name", ["bert.encoder.layer.0.attention.self.key.bias", "bert.pooler.dense.bias",
                                  "cls.predictions.transform.LayerNorm.weight", "bert.embeddings.LayerNorm.weight"])
def test_a_missing_tensor_is_named(folder, name):
    rewrite(folder, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(CorruptFileError, match=f"1 tensor missing in .*{name}"):
        stemma.load(folder)


def test_a_config_of_more_layers_is_told_by_what_the_weights_have(folder, theirs):
    layers = theirs.config.num_hidden_layers
    configure(folder, num_hidden_layers=layers + 1)
    with pytest.raises(CorruptFileError, match="do not fit its config.json") as told:
        stemma.load(folder)
    ((said, why),) = told.value.problems
    assert said == f"num_hidden_layers = {layers + 1}" and why.startswith(f"the weights have {layers} layer")


def test_a_config_of_fewer_layers_is_told_by_what_is_left(tmp_path):
    random_reference("bert", 1, "BertModel", num_hidden_layers=3).save_pretrained(tmp_path)
    configure(tmp_path, num_hidden_layers=2)
    assert "16 tensors" in stemma.load(tmp_path).load_warnings[0]


def test_wrong_shapes_are_all_named(folder, theirs):
    width = theirs.config.hidden_size

    def cut(tensors):
        key, pooler = "bert.encoder.layer.0.attention.self.key.weight", "bert.pooler.dense.bias"
        return {**tensors, key: tensors[key][:-1], pooler: tensors[pooler][:-2]}

    rewrite(folder, cut)
    with pytest.raises(CorruptFileError, match="do not fit its config.json") as told:
        stemma.load(folder)
    assert told.value.problems == [
        ("bert.encoder.layer.0.attention.self.key.weight", f"is {width - 1}x{width} and should be {width}x{width}"),
        ("bert.pooler.dense.bias", f"is {width - 2} and should be {width}")]


def test_whole_numbers_are_no_weights(folder):
    name = "bert.pooler.dense.weight"
    rewrite(folder, lambda tensors: {**tensors, name: tensors[name].to(torch.int8)})
    with pytest.raises(CorruptFileError, match=r"bert.pooler.dense.weight +is \d+x\d+ of int8"):
        stemma.load(folder)


# --- what only looks like a BERT that we build ------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "value", "told"), [
    ("position_embedding_type", "relative_key", "position_embedding_type = relative_key +only absolute is supported"),
    ("is_decoder", True, "is_decoder = True +only False is supported"),
    ("add_cross_attention", True, "add_cross_attention = True +only False is supported"),
    ("hidden_act", "gelu_nwe", 'hidden_act = gelu_nwe +is not one of gelu, .*Did you mean "gelu_new"'),
    ("hidden_act", "mish", "hidden_act = mish +is not one of gelu"),
    ("hidden_act", ["gelu"], "hidden_act = .*is not one of gelu"),
    ("quantization_config", {"load_in_8bit": True}, "quantized weights are not supported"),
])
def test_a_bert_of_another_kind_is_refused(folder, setting, value, told):
    configure(folder, **{setting: value})
    with pytest.raises(UserError, match=told):
        stemma.load(folder)


def test_all_reasons_are_told_at_once(folder):
    configure(folder, is_decoder=True, position_embedding_type="relative_key_query", hidden_act="quick_gelu")
    with pytest.raises(UserError) as told:
        stemma.load(folder)
    assert len(told.value.problems) == 3


def test_untied_output_weights_are_refused(folder):
    embedding = "bert.embeddings.word_embeddings.weight"
    rewrite(folder, lambda tensors: {**tensors, "cls.predictions.decoder.weight": tensors[embedding] + 0.01})
    with pytest.raises(UserError, match="cls.predictions.decoder.weight untied from"):
        stemma.load(folder)


def test_untied_by_configuration_is_refused_unless_the_copies_are_there_and_equal(tmp_path, folder, theirs):
    configure(folder, tie_word_embeddings=False)
    with pytest.raises(UserError, match="untied"):
        stemma.load(folder)
    rewrite(folder, lambda tensors: {
        **tensors, "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone()})
    assert_same_outputs(stemma.load(folder), theirs)
    body = random_reference("bert", 2, "BertModel", tie_word_embeddings=False)  # nothing there to tie
    body.save_pretrained(tmp_path / "body")
    assert_same_outputs(stemma.load(tmp_path / "body"), body)


@pytest.mark.parametrize(("kind", "told"), [("bret", 'Did you mean "bert"'), ("brt", 'Did you mean "bert"'),
                                            ("mamba", "not supported"), (None, 'model_type "None"')])
def test_another_model_type_is_refused(folder, kind, told):
    configure(folder, model_type=kind)
    with pytest.raises(UserError, match=told):
        stemma.load(folder)


@pytest.mark.parametrize(("setting", "value", "told"), [
    ("hidden_size", "32", "network.width = 32"), ("num_attention_heads", 4, "network.heads = 4 .*not divisible"),
    ("max_position_embeddings", "many", "network.position.maximum"), ("type_vocab_size", "2", "embedding.segments"),
    ("num_hidden_layers", 0, "network.layers"), ("vocab_size", -1, "tokenizer.vocab_size"),
    ("hidden_dropout_prob", 7, "network.dropout"),
])
def test_impossible_values_are_told_with_their_place(folder, setting, value, told):
    configure(folder, **{setting: value})
    with pytest.raises(UserError, match=told) as error:
        stemma.load(folder)
    assert str(folder) in error.value.message


@pytest.mark.parametrize("content", ["{not json", "[1, 2]", "", "\xff\xfe"])
def test_a_broken_config_is_told(folder, content):
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CorruptFileError, match="config.json is"):
        stemma.load(folder)


# --- where a model may stand ------------------------------------------------------------------------------------------


def test_what_is_no_model_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for where, told in (("empty", "has no config.json"), ("nowhere", "there is no model at nowhere"),
                        ("not/here", "there is no folder not/here")):
        with pytest.raises(UserError, match=told):
            stemma.load(where)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    with pytest.raises(UserError, match="has no model yet; `stemma resume run`"):
        stemma.load("run")


def test_a_folder_without_weights_is_told(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        stemma.load(folder)


def test_a_damaged_copy_of_ours_is_told(tmp_path, folder):
    stemma.save(stemma.load(folder), tmp_path / "stemma")
    file = tmp_path / "stemma/model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptFileError, match="model.safetensors is damaged"):
        stemma.load(tmp_path / "stemma")


def test_ours_loads_without_the_recipe_and_the_checksums(tmp_path, folder, theirs):
    """As another tool would copy it."""
    stemma.save(stemma.load(folder), tmp_path / "stemma")
    for name in ("recipe.toml", "checksums.json"):
        (tmp_path / "stemma" / name).unlink()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), theirs)


# --- the tokenizer beside it ------------------------------------------------------------------------------------------


def test_a_folder_without_tokenizer_has_none(folder):
    model = stemma.load(folder)
    assert model.tokenizer is None
    with pytest.raises(UserError, match="no tokenizer"):
        model.require_tokenizer()


def test_a_legacy_vocabulary_is_enough(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "clerk", "##s", "read"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    model = stemma.load(folder)
    assert model.tokenizer.encode("The clerks read").ids == [2, 5, 6, 7, 8, 3]
    assert model.recipe.settings.tokenizer.lowercase is False  # "The" is in there
    assert model.recipe.settings.tokenizer.vocab_size == model.network.vocab_size  # not the file's 9


def test_a_tokenizer_that_is_too_large_is_told(folder, theirs):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(theirs.config.vocab_size))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    model = stemma.load(folder)
    assert "cannot be used" in model.load_warnings[0]
    with pytest.raises(UserError, match="use the tokenizer it was trained with"):
        model.hidden(torch.tensor([[theirs.config.vocab_size]]))


def test_a_run_and_its_model_folder_are_the_same(tmp_path, folder):
    stemma.save(stemma.load(folder), tmp_path / "run/model")
    shutil.copy(tmp_path / "run/model/recipe.toml", tmp_path / "run/recipe.toml")
    ids = torch.tensor([[1, 2, 3]])
    assert_close(stemma.load(tmp_path / "run").hidden(ids), stemma.load(tmp_path / "run/model").hidden(ids))


def test_a_part_that_computes_a_buffer_is_loaded_with_it(tmp_path, monkeypatch):
    """Networks are built without memory and filled from the file, which has no such buffer."""
    from stemma.network.position_embedding import SinusoidalPositionEmbedding

    real = SinusoidalPositionEmbedding.__init__

    def with_buffer(self, width):
        real(self, width)
        self.register_buffer("table", self.encode(torch.arange(30), width), persistent=False)

    monkeypatch.setattr(SinusoidalPositionEmbedding, "__init__", with_buffer)
    monkeypatch.setattr(SinusoidalPositionEmbedding, "forward", lambda self, ids, positions: self.table[: ids.shape[1]])
    model = stemma.build("transformer@tiny", 40, ["corpus.sequence_length=16"])
    stemma.save(model, tmp_path / "m")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    again = stemma.load(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)
    ids = torch.arange(1, 9)[None]
    torch.testing.assert_close(again.logits(ids, decoder_input_ids=ids), model.logits(ids, decoder_input_ids=ids))

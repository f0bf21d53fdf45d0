"""A model folder loads as what it is or is refused with an error, and never loads as something else."""

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
def hf_model(tmp_path):
    """A small BertForPreTraining, saved by transformers to the folder hf."""
    model = random_reference("bert", 1, "BertForPreTraining")
    model.save_pretrained(tmp_path / "hf")
    return model


@pytest.fixture
def folder(tmp_path, hf_model):
    return tmp_path / "hf"


def configure(folder: Path, **changes) -> None:
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def rewrite_weights(folder: Path, change) -> None:
    """Replace the weights by what `change` makes of them."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in change(tensors).items()},
              folder / "model.safetensors", {"format": "pt"})


# --- supported variants -----------------------------------------------------------------------------------------------


def test_tensor_names_of_early_releases_are_loaded(folder, hf_model):
    def to_early_layout(tensors):
        names = {name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in tensors}
        return {names[name]: tensor for name, tensor in tensors.items()} | {
            "bert.embeddings.position_ids": torch.arange(23)[None],
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone()}

    rewrite_weights(folder, to_early_layout)
    model = stemma.load(folder)
    assert model.load_warnings == []
    assert_same_outputs(model, hf_model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_fp32(folder, dtype):
    rewrite_weights(folder, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    stored = load_file(folder / "model.safetensors")
    network = stemma.load(folder).network
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    expected = stored["bert.embeddings.word_embeddings.weight"].float()
    assert torch.equal(network.state_dict()["embedding.tokens.weight"], expected)


def test_a_loaded_model_is_in_eval_mode_with_trainable_parameters(folder):
    model = stemma.load(folder)
    assert not model.network.training
    assert all(parameter.requires_grad for parameter in model.network.parameters())
    assert str(model.device) == "cpu"


def test_absent_config_keys_have_the_recipes_values(tmp_path):
    """Early config.json files lack keys that had one possible value."""
    hf_model = random_reference("bert", 1, "BertModel", hidden_act="gelu", layer_norm_eps=1e-12, type_vocab_size=2)
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, hidden_act=..., layer_norm_eps=..., type_vocab_size=..., is_decoder=None,
              position_embedding_type=None)
    assert_same_outputs(stemma.load(tmp_path), hf_model)


def test_the_recipe_has_the_values_of_config(folder, hf_model):
    recipe = stemma.load(folder).recipe
    assert (recipe.name, recipe.size, recipe.label) == ("bert", None, "bert")
    assert recipe.settings.network.width == hf_model.config.hidden_size
    assert recipe.settings.tokenizer.vocab_size == hf_model.config.vocab_size
    assert recipe.origin["network.width"] == "config.json"
    assert recipe.origin["network.norm.placement"] == "transformer"
    assert recipe.settings.corpus.sequence_length == hf_model.config.max_position_embeddings


# --- missing, additional and wrong tensors ----------------------------------------------------------------------------


def test_a_checkpoint_with_an_unknown_head_loads_its_body_and_reports_the_head(tmp_path):
    hf_model = random_reference("bert", 2, "BertForSequenceClassification")
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, architectures=["BertForSomethingElse"])
    model = stemma.load(tmp_path)
    assert set(model.network.heads) == {"pooler"}
    assert len(model.load_warnings) == 1
    assert "classifier.bias, classifier.weight" in model.load_warnings[0] and "2 tensors" in model.load_warnings[0]
    ids = torch.tensor([[5, 3, 1]])
    torch.testing.assert_close(model.hidden(ids), hf_model.bert(ids).last_hidden_state.detach(), atol=1e-4, rtol=0)


def test_a_masked_lm_with_a_pooler_is_saved_as_a_masked_lm(folder, tmp_path):
    rewrite_weights(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if "seq_rel" not in name})
    model = stemma.load(folder)
    assert set(model.network.heads) == {"pooler", "vocabulary"}
    stemma.save(model, tmp_path / "stemma")
    assert json.loads((tmp_path / "stemma/config.json").read_text())["architectures"] == ["BertForMaskedLM"]


@pytest.mark.parametrize("name", ["bert.encoder.layer.0.attention.self.key.bias", "bert.pooler.dense.bias",
                                  "cls.predictions.transform.LayerNorm.weight", "bert.embeddings.LayerNorm.weight"])
def test_a_missing_tensor_is_reported_by_name(folder, name):
    rewrite_weights(folder, lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name})
    with pytest.raises(CorruptFileError, match=f"1 tensor missing in .*{name}"):
        stemma.load(folder)


def test_a_config_with_more_layers_than_the_weights_is_reported(folder, hf_model):
    layers = hf_model.config.num_hidden_layers
    configure(folder, num_hidden_layers=layers + 1)
    with pytest.raises(CorruptFileError, match="do not fit its config.json") as error:
        stemma.load(folder)
    ((where, reason),) = error.value.problems
    assert where == f"num_hidden_layers = {layers + 1}" and reason.startswith(f"the weights have {layers} layer")


def test_a_config_with_fewer_layers_reports_the_unused_tensors(tmp_path):
    random_reference("bert", 1, "BertModel", num_hidden_layers=3).save_pretrained(tmp_path)
    configure(tmp_path, num_hidden_layers=2)
    assert "16 tensors" in stemma.load(tmp_path).load_warnings[0]


def test_all_wrong_shapes_are_reported(folder, hf_model):
    width = hf_model.config.hidden_size

    def truncate(tensors):
        key, pooler = "bert.encoder.layer.0.attention.self.key.weight", "bert.pooler.dense.bias"
        return {**tensors, key: tensors[key][:-1], pooler: tensors[pooler][:-2]}

    rewrite_weights(folder, truncate)
    with pytest.raises(CorruptFileError, match="do not fit its config.json") as error:
        stemma.load(folder)
    assert error.value.problems == [
        ("bert.encoder.layer.0.attention.self.key.weight", f"is {width - 1}x{width} and should be {width}x{width}"),
        ("bert.pooler.dense.bias", f"is {width - 2} and should be {width}")]


def test_integer_weights_are_reported(folder):
    name = "bert.pooler.dense.weight"
    rewrite_weights(folder, lambda tensors: {**tensors, name: tensors[name].to(torch.int8)})
    with pytest.raises(CorruptFileError, match=r"bert.pooler.dense.weight +is \d+x\d+ of int8"):
        stemma.load(folder)


# --- unsupported and invalid configs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("setting", "value", "message"), [
    ("position_embedding_type", "relative_key", "position_embedding_type = relative_key +only absolute is supported"),
    ("is_decoder", True, "is_decoder = True +only False is supported"),
    ("add_cross_attention", True, "add_cross_attention = True +only False is supported"),
    ("hidden_act", "gelu_nwe", 'hidden_act = gelu_nwe +is not one of gelu, .*Did you mean "gelu_new"'),
    ("hidden_act", "mish", "hidden_act = mish +is not one of gelu"),
    ("hidden_act", ["gelu"], "hidden_act = .*is not one of gelu"),
    ("quantization_config", {"load_in_8bit": True}, "quantized weights are not supported"),
])
def test_unsupported_settings_are_reported(folder, setting, value, message):
    configure(folder, **{setting: value})
    with pytest.raises(UserError, match=message):
        stemma.load(folder)


def test_all_unsupported_settings_are_reported_at_once(folder):
    configure(folder, is_decoder=True, position_embedding_type="relative_key_query", hidden_act="quick_gelu")
    with pytest.raises(UserError) as error:
        stemma.load(folder)
    assert len(error.value.problems) == 3


def test_untied_output_weights_are_refused(folder):
    embedding = "bert.embeddings.word_embeddings.weight"
    rewrite_weights(folder, lambda tensors: {**tensors, "cls.predictions.decoder.weight": tensors[embedding] + 0.01})
    with pytest.raises(UserError, match="cls.predictions.decoder.weight untied from"):
        stemma.load(folder)


def test_tie_word_embeddings_false_is_refused_unless_stored_copies_are_equal(tmp_path, folder, hf_model):
    configure(folder, tie_word_embeddings=False)
    with pytest.raises(UserError, match="untied"):
        stemma.load(folder)
    rewrite_weights(folder, lambda tensors: {
        **tensors, "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone()})
    assert_same_outputs(stemma.load(folder), hf_model)
    body = random_reference("bert", 2, "BertModel", tie_word_embeddings=False)  # no head to tie
    body.save_pretrained(tmp_path / "body")
    assert_same_outputs(stemma.load(tmp_path / "body"), body)


@pytest.mark.parametrize(("kind", "message"), [("bret", 'Did you mean "bert"'), ("brt", 'Did you mean "bert"'),
                                            ("mamba", "not supported"), (None, 'model_type "None"')])
def test_another_model_type_is_refused(folder, kind, message):
    configure(folder, model_type=kind)
    with pytest.raises(UserError, match=message):
        stemma.load(folder)


@pytest.mark.parametrize(("setting", "value", "message"), [
    ("hidden_size", "32", "network.width = 32"), ("num_attention_heads", 4, "network.heads = 4 .*not divisible"),
    ("max_position_embeddings", "many", "network.position.maximum"), ("type_vocab_size", "2", "embedding.segments"),
    ("num_hidden_layers", 0, "network.layers"), ("vocab_size", -1, "tokenizer.vocab_size"),
    ("hidden_dropout_prob", 7, "network.dropout"),
])
def test_invalid_values_are_reported_with_the_folder(folder, setting, value, message):
    configure(folder, **{setting: value})
    with pytest.raises(UserError, match=message) as error:
        stemma.load(folder)
    assert str(folder) in error.value.message


@pytest.mark.parametrize("content", ["{not json", "[1, 2]", "", "\xff\xfe"])
def test_a_damaged_config_is_reported(folder, content):
    (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CorruptFileError, match="config.json is"):
        stemma.load(folder)


# --- paths and files --------------------------------------------------------------------------------------------------


def test_a_path_without_a_model_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for path, message in (("empty", "has no config.json"), ("nowhere", "there is no model at nowhere"),
                          ("not/here", "there is no folder not/here")):
        with pytest.raises(UserError, match=message):
            stemma.load(path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    with pytest.raises(UserError, match="has no model yet; `stemma resume run`"):
        stemma.load("run")


def test_a_folder_without_weights_is_reported(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds no weights"):
        stemma.load(folder)


def test_a_damaged_weight_file_is_reported(tmp_path, folder):
    stemma.save(stemma.load(folder), tmp_path / "stemma")
    file = tmp_path / "stemma/model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptFileError, match="model.safetensors is damaged"):
        stemma.load(tmp_path / "stemma")


def test_a_saved_model_loads_without_recipe_and_checksums(tmp_path, folder, hf_model):
    """As another tool may copy it."""
    stemma.save(stemma.load(folder), tmp_path / "stemma")
    for name in ("recipe.toml", "checksums.json"):
        (tmp_path / "stemma" / name).unlink()
    assert_same_outputs(stemma.load(tmp_path / "stemma"), hf_model)


# --- the tokenizer ----------------------------------------------------------------------------------------------------


def test_a_folder_without_tokenizer_has_none(folder):
    model = stemma.load(folder)
    assert model.tokenizer is None
    with pytest.raises(UserError, match="no tokenizer"):
        model.require_tokenizer()


def test_a_vocab_txt_is_loaded_as_tokenizer(folder):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "clerk", "##s", "read"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    model = stemma.load(folder)
    assert model.tokenizer.encode("The clerks read").ids == [2, 5, 6, 7, 8, 3]
    assert model.recipe.settings.tokenizer.lowercase is False  # the vocabulary has "The"
    assert model.recipe.settings.tokenizer.vocab_size == model.network.vocab_size  # not 9, as in vocab.txt


def test_a_tokenizer_with_too_many_tokens_is_reported(folder, hf_model):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(hf_model.config.vocab_size))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    model = stemma.load(folder)
    assert "cannot be used" in model.load_warnings[0]
    with pytest.raises(UserError, match="use the tokenizer it was trained with"):
        model.hidden(torch.tensor([[hf_model.config.vocab_size]]))


def test_a_run_folder_loads_its_model_folder(tmp_path, folder):
    stemma.save(stemma.load(folder), tmp_path / "run/model")
    shutil.copy(tmp_path / "run/model/recipe.toml", tmp_path / "run/recipe.toml")
    ids = torch.tensor([[1, 2, 3]])
    assert_close(stemma.load(tmp_path / "run").hidden(ids), stemma.load(tmp_path / "run/model").hidden(ids))


def test_a_buffer_that_is_not_stored_is_computed(tmp_path, monkeypatch):
    """Networks are built on the meta device and get their tensors from the file, which has no such buffer."""
    from stemma.network.position_embedding import SinusoidalPositionEmbedding

    original_init = SinusoidalPositionEmbedding.__init__

    def with_buffer(self, width):
        original_init(self, width)
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

"""ELECTRA agrees with `transformers` to 1e-4, in both directions: discriminator, generator, and the bare body."""

from __future__ import annotations

import pytest
import torch
import transformers
from closeness import assert_close
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_same_outputs, config_of, configure

import stemma
from stemma.errors import UserError
from stemma.text.train_tokenizer import train_tokenizer

CLASSES = ["ElectraForPreTraining", "ElectraForMaskedLM", "ElectraModel"]
SMALL = ["network.generator.multiplier=0.5", "network.layers=2", "network.width=12", "network.heads=2",
         "network.feedforward=20", "network.position.maximum=19", "corpus.sequence_length=19"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CLASSES)
def test_electra_agrees_with_transformers(tmp_path, seed, kind):
    hf_model = reference.random_reference("electra", seed, kind)
    model = assert_agrees_both_ways(hf_model, tmp_path, seed)
    assert (model.recipe.settings.network.generator is None) == (kind == "ElectraForMaskedLM")


@pytest.mark.parametrize("kind", CLASSES)
def test_an_embedding_as_wide_as_the_network_has_no_projection(tmp_path, kind):
    """The tensors are BERT's; the recipe makes it an ELECTRA."""
    width = reference.random_sizes(2)["width"]
    hf_model = reference.random_reference("electra", 2, kind, embedding_size=width)
    assert not any("embeddings_project" in name for name in hf_model.state_dict())
    model = assert_agrees_both_ways(hf_model, tmp_path, 2)
    assert model.recipe.settings.network.embedding.width is None


@pytest.mark.parametrize("width", [[], ["network.embedding.width=7"]], ids=["same width", "factorised"])
def test_our_discriminator_and_generator_load_in_transformers(tmp_path, width):
    model = stemma.build("electra@tiny", 61, [*SMALL, *width])
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_discriminator = reference.assert_loads_into("ElectraForPreTraining", tmp_path / "m")
    hf_generator = reference.assert_loads_into("ElectraForMaskedLM", tmp_path / "m/generator")
    loaded, generator = stemma.load(tmp_path / "m"), stemma.load(tmp_path / "m/generator")
    assert_same_outputs(loaded, hf_discriminator)
    assert_same_outputs(generator, hf_generator)
    embeddings = [hf_model.electra.embeddings.word_embeddings.weight for hf_model in (hf_discriminator, hf_generator)]
    assert torch.equal(*embeddings)
    assert hf_generator.config.hidden_size == 6
    assert hf_generator.config.embedding_size == hf_discriminator.config.embedding_size
    ids = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(0))
    assert loaded.logits(ids).shape == (2, 9) and generator.logits(ids).shape == (2, 9, 61)
    torch.testing.assert_close(loaded.logits(ids), model.logits(ids))
    assert [loaded.parameter_count(), generator.parameter_count()] == [
        hf_discriminator.num_parameters(), hf_generator.num_parameters()] == [
        model.parameter_count(), model.network.generator.parameter_count()]
    assert loaded.recipe.settings.network.generator is not None and generator.recipe.settings.network.generator is None
    assert loaded.network.generator is None


def test_both_folders_have_the_tokenizer(tmp_path, text_file):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 200, lowercase=True)
    model = stemma.build("electra@tiny", tokenizer.vocab_size, SMALL)
    model.tokenizer = tokenizer
    stemma.save(model, tmp_path / "m")
    text, second = "The old clerk reads.", "A letter"
    for folder in (tmp_path / "m", tmp_path / "m/generator"):
        hf_encoding = transformers.AutoTokenizer.from_pretrained(folder)(text, second)
        template = tokenizer.with_template("start A separator", "start A separator B:1 separator:1")
        encoding = template.encode(text, second)
        assert hf_encoding["input_ids"] == encoding.ids and hf_encoding["token_type_ids"] == encoding.type_ids
        assert config_of(folder)["pad_token_id"] == tokenizer.special_id("padding")


def test_an_activation_that_the_generator_head_does_not_support_is_refused(tmp_path):
    reference.random_reference("electra", 1, "ElectraForMaskedLM").save_pretrained(tmp_path)
    configure(tmp_path, hidden_act="relu")
    with pytest.raises(UserError) as error:
        stemma.load(tmp_path)
    assert error.value.problems[0][0] == "hidden_act = relu"


def test_electra_with_pre_norm_is_saved_as_type_stemma(tmp_path):
    """Discriminator and generator then have model_type stemma, and load with the same outputs."""
    model = stemma.build("electra@tiny", 61, [*SMALL, "network.norm.placement=pre"])
    stemma.save(model, tmp_path / "m")
    ids = torch.arange(12)[None]
    for folder, network in ((tmp_path / "m", model.network), (tmp_path / "m/generator", model.network.generator)):
        assert config_of(folder)["model_type"] == "stemma"
        again = stemma.load(folder)
        assert again.load_warnings == []
        assert_close(again.hidden(ids), network({"encoder": again.encoder_stream(ids)})["encoder"])

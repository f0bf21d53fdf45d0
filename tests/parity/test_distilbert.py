"""DistilBERT agrees with `transformers` to 1e-4, in both directions."""

from __future__ import annotations

import pytest
import torch
import transformers
from parity import reference
from parity.reference import SEEDS, assert_agrees_both_ways, assert_same_outputs, config_of, configure, load_both_ways

import stemma
from stemma.text.train_tokenizer import train_tokenizer

CHANGES = ["network.embedding.segments=0", "corpus.pair=start A separator B separator",
           "remove=objective.next_sentence", "network.width=24", "network.heads=2", "network.feedforward=96"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["DistilBertForMaskedLM", "DistilBertModel"])
def test_distilbert_agrees_with_transformers(tmp_path, seed, kind):
    model = assert_agrees_both_ways(reference.random_reference("distilbert", seed, kind), tmp_path, seed)
    assert model.recipe.settings.network.embedding.segments == 0
    assert ":1" not in model.recipe.settings.corpus.pair


@pytest.mark.parametrize("settings", [{"activation": "relu"}, {"activation": "gelu_new"},
                                      {"dropout": 0.0, "attention_dropout": 0.2}, {"sinusoidal_pos_embds": True}],
                         ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, settings):
    """Sinusoids only initialize the position embedding, which is stored in any case."""
    if "sinusoidal_pos_embds" in settings:
        settings = {**settings, "dim": 20, "n_heads": 2}
    hf_model = reference.random_reference("distilbert", 5, "DistilBertForMaskedLM", **settings)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


def test_half_of_berts_layers_is_the_default(tmp_path):
    reference.random_reference("distilbert", 2, "DistilBertModel", n_layers=6).save_pretrained(tmp_path)
    configure(tmp_path, n_layers=...)
    assert stemma.load(tmp_path).recipe.settings.network.layers == 6


def test_a_bert_without_segments_and_pooler_is_a_distilbert_in_transformers(tmp_path, text_file):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "wordpiece", 300, lowercase=True)
    model = stemma.build("bert@tiny", tokenizer.vocab_size, CHANGES)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_model = reference.assert_loads_into("DistilBertForMaskedLM", tmp_path / "m")
    assert_same_outputs(model, hf_model)
    assert stemma.load(tmp_path / "m").recipe == model.recipe
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    inputs = hf_tokenizer("The old clerk.", "A letter.", return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == tokenizer.with_template(
        "start A separator", "start A separator B separator").encode("The old clerk.", "A letter.").ids
    with torch.no_grad():
        torch.testing.assert_close(model.logits(**inputs), hf_model(**inputs).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", ["network.norm.epsilon=1e-6", "network.sharing=all", "network.position.offset=2",
                                    "network.position.numbering=skip_padding"])
def test_a_network_that_is_not_distilbert_is_saved_as_type_stemma(tmp_path, change):
    stemma.save(stemma.build("bert@tiny", 40, [*CHANGES, change]), tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"

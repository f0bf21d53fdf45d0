"""ModernBERT and its decoder agree with `transformers` to 1e-4, in both directions, with long texts and a cache."""

from __future__ import annotations

import pytest
import torch
import transformers
from parity import reference
from parity.reference import (
    SEEDS,
    assert_agrees_both_ways,
    assert_loads_into,
    assert_same_outputs,
    config_of,
    configure,
    load_both_ways,
)

import stemma
from stemma.errors import UserError
from stemma.network.inputs_outputs import Stream
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Causal

CLASSES = [("modernbert", "ModernBertForMaskedLM"), ("modernbert", "ModernBertModel"),
           ("modernbert-decoder", "ModernBertDecoderForCausalLM"), ("modernbert-decoder", "ModernBertDecoderModel")]
LM_CLASSES = CLASSES[::2]
SMALL = ["network.width=24", "network.heads=2", "corpus.sequence_length=40", "network.position.maximum=40"]
COUNTS = {"modernbert@base": 149_655_232, "modernbert@large": 395_881_664, "ettin@17m": 16_913_600,
          "ettin@32m": 32_081_344, "ettin@68m": 68_457_664, "ettin@150m": 149_655_232, "ettin@400m": 395_881_664,
          "ettin@1b": 1_031_314_112}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("family", "kind"), CLASSES)
def test_modernbert_agrees_with_transformers(tmp_path, family, kind, seed):
    assert_agrees_both_ways(reference.random_reference(family, seed, kind), tmp_path, seed)


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_published_sizes_have_the_published_parameter_counts(name, count):
    for recipe_name in (name, name.replace("ettin", "ettin-decoder")):
        with torch.device("meta"):
            assert build_network(recipe(recipe_name), 50368).parameter_count() == count


@pytest.mark.parametrize(("family", "kind"), LM_CLASSES)
@pytest.mark.parametrize("settings", [
    {"hidden_activation": "silu", "classifier_activation": "silu"}, {"num_hidden_layers": 5, "local_attention": 2},
    {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "num_hidden_layers": 3},
    {"layer_types": ["full_attention"] * 2, "num_hidden_layers": 2}, {"local_attention": 400}, {"norm_eps": 1e-3},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 50.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}}},
], ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, family, kind, settings):
    hf_model = reference.random_reference(family, 5, kind, **settings)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)


@pytest.mark.parametrize(("family", "kind"), LM_CLASSES)
def test_the_keys_of_earlier_releases_are_read(tmp_path, family, kind):
    hf_model = reference.random_reference(family, 7, kind, num_hidden_layers=5, layer_types=[
        "sliding_attention" if index % 2 else "full_attention" for index in range(5)], rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 50.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}})
    hf_model.save_pretrained(tmp_path)
    configure(tmp_path, rope_parameters=..., layer_types=..., global_rope_theta=50, local_rope_theta=7.0,
              global_attn_every_n_layers=2)
    model = stemma.load(tmp_path)
    assert model.recipe.settings.network.attention.windows == [0, 3]
    assert_same_outputs(model, hf_model)


@torch.no_grad()
@pytest.mark.parametrize(("family", "kind"), LM_CLASSES)
def test_long_texts_agree_in_blocks(tmp_path, family, kind):
    """Long enough for windows to be computed in blocks, with padding on either side."""
    hf_model = reference.random_reference(family, 2, kind, num_hidden_layers=3, max_position_embeddings=200)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(1, hf_model.config.vocab_size, (3, 90), generator=torch.Generator().manual_seed(0))
    position = torch.arange(90)
    for attention_mask in (torch.ones(3, 90), torch.stack([position < 90, position < 31, position < 7]),
                           torch.stack([position >= 0, position >= 40, position >= 85])):
        attention_mask = attention_mask.long()
        # our padding positions attend to themselves, so that no row is NaN: only the others are compared
        expected = hf_model(input_ids=ids, attention_mask=attention_mask).logits
        logits = model.logits(input_ids=ids, attention_mask=attention_mask)
        torch.testing.assert_close(logits[attention_mask.bool()], expected[attention_mask.bool()], atol=1e-4, rtol=0)
        assert logits.isfinite().all()


@torch.no_grad()
def test_decoding_with_a_cache_agrees(tmp_path):
    """Rotated keys are cached from one chunk to the next, and windows reach back into them."""
    hf_model = reference.random_reference("modernbert-decoder", 2, "ModernBertDecoderForCausalLM", num_hidden_layers=3)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(hf_model.config.vocab_size, (3, 13), generator=torch.Generator().manual_seed(0))
    expected = hf_model(ids).logits
    cache = model.network.new_cache()
    for start, stop in ((0, 5), (5, 6), (6, 12), (12, 13)):
        hidden = model.network({"encoder": Stream(ids[:, start:stop], Causal())}, cache)["encoder"]
        torch.testing.assert_close(model.lm_head()(hidden), expected[:, start:stop], atol=1e-4, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(("family", "kind"), LM_CLASSES)
def test_explicit_position_ids_agree(tmp_path, family, kind):
    hf_model = reference.random_reference(family, 1, kind)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(hf_model.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 1, 2, 3, 4]])
    stream = Stream(ids, *([Causal()] if "decoder" in family else []), position_ids=positions)
    hidden = model.network({"encoder": stream})["encoder"]
    expected = hf_model(ids, position_ids=positions).logits
    torch.testing.assert_close(model.lm_head()(hidden), expected, atol=1e-4, rtol=0)
    assert (expected - hf_model(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize(("name", "kind"), [("modernbert@tiny", "ModernBertForMaskedLM"),
                                            ("ettin@tiny", "ModernBertForMaskedLM"),
                                            ("ettin-decoder@tiny", "ModernBertDecoderForCausalLM")])
def test_a_model_trained_here_loads_in_transformers(tmp_path, text_file, name, kind):
    tokenizer = train_tokenizer(iter([text_file.read_text()]), "byte_bpe", 300, lowercase=False,
                                roles={"start", "separator", "mask", "end"})
    model = stemma.build(name, tokenizer.vocab_size, SMALL)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_model = assert_loads_into(kind, tmp_path / "m")
    assert_same_outputs(model, hf_model)
    assert stemma.load(tmp_path / "m").recipe == model.recipe
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("The old clerk.", return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(model.logits(**inputs), hf_model(**inputs).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", ["network.attention.bias=true", "network.norm.first=true", "network.norm.bias=true",
                                    "network.transition=feedforward", "network.attention.windows=[0,3,5]",
                                    "network.embedding.norm=false", "network.embedding.segments=1",
                                    "network.bias=true"])
def test_a_network_that_is_not_modernbert_is_saved_as_type_stemma(tmp_path, change):
    model = stemma.build("modernbert@tiny", 50, [change, "network.width=24", "network.heads=2"])
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    assert stemma.load(tmp_path / "m").recipe == model.recipe


@pytest.mark.parametrize(("settings", "message"), [
    ({"attention_bias": True}, "attention_bias = True"), ({"mlp_bias": True}, "mlp_bias = True"),
    ({"norm_bias": True}, "norm_bias = True"), ({"classifier_activation": "relu"}, "classifier_activation = relu"),
    ({"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 10.0, "factor": 2.0},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 10.0}}}, "rope_parameters"),
    ({"local_attention": 1}, "local_attention = 1"), ({"local_attention": 0}, "local_attention = 0"),
    ({"num_attention_heads": 30, "hidden_size": 30}, "even width"),
])
def test_unsupported_settings_are_reported(tmp_path, settings, message):
    reference.random_reference("modernbert", 3, "ModernBertForMaskedLM").save_pretrained(tmp_path)
    configure(tmp_path, **settings)
    with pytest.raises(UserError) as error:
        stemma.load(tmp_path)
    assert message in f"{error.value.message} {error.value.problems}"

"""nanochat agrees with `transformers` to 1e-4, in both directions, in evaluation and training, with a cache."""

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
from stemma.exchange import find_family
from stemma.exchange.tensor_map import to_hf
from stemma.network.inputs_outputs import Stream
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Causal

LM = "NanoChatForCausalLM"
SMALL = ["network.width=24", "network.heads=2", "network.feedforward=40", "corpus.sequence_length=40",
         "network.position.maximum=40"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [LM, "NanoChatModel"])
def test_nanochat_agrees_with_transformers(tmp_path, kind, seed):
    assert_agrees_both_ways(reference.random_reference("nanochat", seed, kind), tmp_path, seed)


@pytest.mark.parametrize("settings", [
    {"hidden_act": "silu"}, {"final_logit_softcapping": None}, {"final_logit_softcapping": 0.7}, {"rms_norm_eps": 0.1},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
], ids=lambda settings: "-".join(settings))
def test_unusual_settings_agree(tmp_path, settings):
    hf_model = reference.random_reference("nanochat", 1, LM, **settings)
    model, back = load_both_ways(hf_model, tmp_path)
    assert_same_outputs(model, hf_model)
    assert_same_outputs(model, back)
    for key, value in settings.items():
        assert getattr(back.config, key) == getattr(hf_model.config, key) == value


@pytest.mark.parametrize("softcap", [15.0, 1.5])
def test_loss_and_gradients_agree_in_training_mode(tmp_path, softcap):
    hf_model = reference.random_reference("nanochat", 1, LM, final_logit_softcapping=softcap, num_hidden_layers=2)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    network, ids = model.network.train(), torch.randint(1, 61, (3, 11), generator=torch.Generator().manual_seed(0))
    network.requires_grad_(True)
    expected = hf_model.train()(ids, labels=ids).loss
    expected.backward()
    hidden = network({"encoder": Stream(ids, Causal())})["encoder"][:, :-1].flatten(0, 1)
    loss = network.heads["vocabulary"].loss(hidden, ids[:, 1:].flatten(), denominator=30.0)
    loss.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    family, gradients = find_family("nanochat"), {name: p.grad for name, p in network.named_parameters()}
    ours = to_hf(family.tensor_keys(["vocabulary"], gradients, bare=False), gradients,
                 model.recipe.settings.network.heads)
    theirs = {name: p.grad for name, p in hf_model.named_parameters()}
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-5, rtol=1e-3,
                                   msg=lambda text, name=name: f"{name}: {text}")
        assert gradient.abs().max() > 1e-5, name


@torch.no_grad()
def test_decoding_with_a_cache_agrees(tmp_path):
    hf_model = reference.random_reference("nanochat", 2, LM, num_hidden_layers=3)
    hf_model.save_pretrained(tmp_path)
    model = stemma.load(tmp_path)
    ids = torch.randint(61, (3, 13), generator=torch.Generator().manual_seed(0))
    expected, cache = hf_model(ids).logits, model.network.new_cache()
    for start, stop in ((0, 5), (5, 6), (6, 12), (12, 13)):
        hidden = model.network({"encoder": Stream(ids[:, start:stop], Causal())}, cache)["encoder"]
        torch.testing.assert_close(model.lm_head()(hidden), expected[:, start:stop], atol=1e-4, rtol=0)


@pytest.fixture
def tokenizer(text_file):
    return train_tokenizer(iter([text_file.read_text()]), "byte_bpe", 300, lowercase=False, roles={"end"})


def test_a_model_trained_here_loads_in_transformers_and_generates_the_same(tmp_path, tokenizer):
    model = stemma.build("nanochat@tiny", tokenizer.vocab_size, SMALL)
    model.tokenizer = tokenizer
    reference.perturb(model.network, 0)
    stemma.save(model, tmp_path / "m")
    hf_model = assert_loads_into(LM, tmp_path / "m")
    assert_same_outputs(model, hf_model)
    loaded = stemma.load(tmp_path / "m")
    assert loaded.recipe == model.recipe
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("The old clerk", return_tensors="pt")
    expected = hf_model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=8,
                                 do_sample=False)[0, inputs["input_ids"].shape[1]:]
    (completion,) = loaded.generate(["The old clerk"], tokens=8, greedy=True)
    assert list(completion.tokens) == expected.tolist()[: len(completion.tokens)] and completion.tokens


@pytest.mark.parametrize("change", ["network.attention.bias=true", "network.norm.weight=true",
                                    "network.attention.qk_norm=before", "network.attention.qk_norm=none",
                                    "network.embedding.tied=true", "network.position.clockwise=false",
                                    "network.embedding.norm=false", "network.norm.kind=layer network.norm.bias=false",
                                    "network.transition=gated"])
def test_a_network_that_is_not_nanochat_is_saved_as_type_stemma(tmp_path, change):
    kind = ["network.norm.placement=pre", "network.norm.epsilon=1e-6"] if "norm.kind" in change else []
    optimizer = ["remove=training.optimizer.embedding_learning_rate"] if "tied" in change else []
    model = stemma.build("nanochat@tiny", 50, [*change.split(), *kind, *optimizer, *SMALL])
    stemma.save(model, tmp_path / "m")
    assert config_of(tmp_path / "m")["model_type"] == "stemma"
    assert stemma.load(tmp_path / "m").recipe == model.recipe


@pytest.mark.parametrize(("settings", "message"), [
    ({"attention_bias": True}, "attention_bias = True"), ({"num_key_value_heads": 1}, "num_key_value_heads = 1"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings = True"), ({"hidden_act": "mish"}, "hidden_act = mish"),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 10.0, "factor": 2.0}}, "rope_parameters"),
])
def test_unsupported_settings_are_reported(tmp_path, settings, message):
    reference.random_reference("nanochat", 1, LM).save_pretrained(tmp_path)
    configure(tmp_path, **settings)
    with pytest.raises(UserError) as error:
        stemma.load(tmp_path)
    assert message in f"{error.value.message} {error.value.problems}"


def test_the_default_configuration_of_transformers_has_the_same_parameter_count():
    config = transformers.NanoChatConfig()
    changes = [f"network.layers={config.num_hidden_layers}", f"network.width={config.hidden_size}",
               f"network.heads={config.num_attention_heads}", f"network.feedforward={config.intermediate_size}"]
    with torch.device("meta"):
        count = stemma.build("nanochat", config.vocab_size, changes).parameter_count()
        assert count == transformers.NanoChatForCausalLM(config).num_parameters() == 256_573_440

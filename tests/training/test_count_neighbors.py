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

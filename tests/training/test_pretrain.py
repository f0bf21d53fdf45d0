"""Pre-training runs: what they report, budgets, reproducibility, and initialization from another model."""

from __future__ import annotations

import json
import shutil
import time

import pytest
import torch
import transformers

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.recipe_loading import recipe
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.init_from import init_from_model
from stemma.training.pretrain import pretrain, resume

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=2", "training.threads=1"]


def weights(run):
    return (run / "model/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus_folder):
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, pretrain("bert@tiny", corpus_folder, run, steps=6, changes=SMALL, seed=1)


def test_the_result_has_losses_counts_and_speed(finished, corpus_folder):
    run, result = finished
    assert {"run", "recipe", "steps", "tokens", "loss", "validation_loss", "unigram_loss", "tokens_per_second",
            "seconds"} <= result.keys()
    assert (result["run"], result["recipe"], result["steps"]) == (str(run), "bert@tiny", 6)
    assert 0 < result["tokens"] <= 6 * 8 * 32 and result["tokens_per_second"] > 0
    assert json.loads((run / "result.json").read_text()) == result == resume(run)
    assert stemma.load(run).parameter_count() == result["parameters"]


def test_a_budget_in_tokens_ends_with_the_step_that_uses_it_up(tmp_path, corpus_folder):
    changes = [*SMALL, "training.log_every=1"]
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", tokens=1000, changes=changes)
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in lines if "loss" in line]
    assert tokens[-2] < 1000 <= tokens[-1] == result["tokens"]


def test_a_budget_in_minutes_ends_after_that_time(tmp_path, corpus_folder):
    began = time.monotonic()
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", minutes=0.01, changes=SMALL)
    assert result["steps"] > 1 and 0.1 < result["seconds"] <= time.monotonic() - began  # steps only
    assert 0.6 < time.monotonic() - began < 30


def test_the_recipe_of_a_run_reproduces_its_bytes(finished, tmp_path, corpus_folder):
    run, _ = finished
    shutil.copy(run / "recipe.toml", tmp_path / "alone.toml")
    pretrain(str(tmp_path / "alone.toml"), corpus_folder, tmp_path / "again", steps=6, seed=1)
    assert weights(tmp_path / "again") == weights(run)
    pretrain(str(tmp_path / "alone.toml"), corpus_folder, tmp_path / "other", steps=6, seed=2)
    assert weights(tmp_path / "other") != weights(run)


def test_the_recipe_of_a_run_on_raw_text_reproduces_its_bytes(tmp_path, text_file, monkeypatch):
    """Its vocabulary is smaller than requested. Requesting exactly that size gives the same tokenizer."""
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path / "cache"))
    pretrain("bert@tiny", text_file, tmp_path / "run", steps=2, changes=SMALL)
    saved_recipe = recipe(tmp_path / "run/recipe.toml")
    assert saved_recipe.origin["tokenizer.vocab_size"] == "corpus" and saved_recipe.settings.tokenizer.vocab_size < 1000
    pretrain(str(tmp_path / "run/recipe.toml"), text_file, tmp_path / "again", steps=2)
    assert weights(tmp_path / "again") == weights(tmp_path / "run")
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_initializing_from_a_model_keeps_its_weights_and_network_settings(finished, tmp_path, corpus_folder, caplog):
    run, result = finished
    corpus = Corpus.open(corpus_folder)
    resolved = adopt_tokenizer(recipe("bert@mini", ["corpus.sequence_length=32"]), corpus)
    adopted, network = init_from_model(str(run), resolved, corpus)
    ours, theirs = network.state_dict(), stemma.load(run).network.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (adopted.settings.network.layers, adopted.settings.network.width) == (2, 32)  # not mini's
    assert adopted.origin["network.layers"] == "run" and caplog.messages == []

    # with so small a learning rate the loss does not change
    after = pretrain("bert@mini", corpus_folder, tmp_path / "on", steps=1, init_from=run, changes=[
        "corpus.sequence_length=32", "training.batch_size=8", "training.learning_rate=1e-12",
        "training.optimizer.adamw_learning_rate=1e-12", "training.threads=1"])
    assert after["validation_loss"] == pytest.approx(result["validation_loss"], abs=1e-4)
    assert recipe(tmp_path / "on/recipe.toml").settings.network.width == 32


def test_new_and_unneeded_heads_are_reported(finished, tmp_path, corpus_folder, caplog):
    run, _ = finished
    lone = pretrain("bert@tiny", corpus_folder, tmp_path / "lone", steps=1, init_from=run,
                    changes=["remove=objective.next_sentence", "corpus.sequence_length=32", "training.batch_size=8"])
    assert any("not needed" in text and "heads.next_sentence" in text for text in caplog.messages)
    # the pooler is kept unchanged, so that fine-tuning before and after this stage starts from the same one
    before, after = (stemma.load(path).network.state_dict() for path in (run, lone["run"]))
    assert torch.equal(before["heads.pooler.dense.weight"], after["heads.pooler.dense.weight"])
    assert not any(name.startswith("heads.next_sentence") for name in after)
    caplog.clear()
    pretrain("bert@tiny", corpus_folder, tmp_path / "both", steps=1, init_from=lone["run"],
             changes=["corpus.sequence_length=32", "training.batch_size=8"])
    assert any("started at random" in text and "heads.next_sentence" in text for text in caplog.messages)


def test_network_settings_must_agree_with_the_model(finished, tmp_path, corpus_folder):
    with pytest.raises(UserError) as refusal:
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=1, init_from=finished[0],
                 changes=["network.layers=3", "network.width=32"])
    assert [where for where, _ in refusal.value.problems] == ["network.layers = 3"]
    assert list(tmp_path.iterdir()) == []


def test_raw_text_is_tokenised_with_the_tokenizer_of_the_initial_model(finished, tmp_path, text_file):
    run, _ = finished
    text = tmp_path / "new.txt"
    text.write_text(text_file.read_text() + "Quite new words appear here.\n")
    pretrain("bert@tiny", text, tmp_path / "on", steps=1, init_from=run, changes=["corpus.sequence_length=32"])
    assert stemma.load(tmp_path / "on").tokenizer.fingerprint == stemma.load(run).tokenizer.fingerprint


@pytest.mark.parametrize("name", ["modernbert", "ettin-decoder", "nanochat"])
def test_a_published_checkpoint_with_a_padded_vocabulary_is_trained_further(name, tmp_path, corpus_folder):
    """As releases come: a config.json without a recipe, and an embedding matrix with more rows than tokens."""
    corpus = Corpus.open(corpus_folder)
    rows = corpus.tokenizer.vocab_size + 24
    model = stemma.build(f"{name}@tiny", rows, ["network.width=32", "network.heads=2"])
    model.tokenizer = corpus.tokenizer
    with torch.no_grad():
        for parameter in model.network.parameters():  # nothing is zero in a published checkpoint
            parameter.add_(0.02 * torch.randn_like(parameter))
    stemma.save(model, tmp_path / "published")
    for file in ("recipe.toml", "checksums.json"):
        (tmp_path / "published" / file).unlink()
    pretrain(name, corpus_folder, tmp_path / "on", steps=2, init_from=tmp_path / "published", changes=[
        "corpus.sequence_length=32", "training.batch_size=8", "training.threads=1", "training.learning_rate=1e-3"])
    further = stemma.load(tmp_path / "on")
    assert further.network.vocab_size == rows
    before, after = (m.network.state_dict()["encoder.blocks.0.attention.input.weight"] for m in (model, further))
    assert not torch.equal(before, after) and (before - after).abs().max() < 0.01
    auto_class = getattr(transformers, {"modernbert": "AutoModelForMaskedLM"}.get(name, "AutoModelForCausalLM"))
    assert auto_class.from_pretrained(tmp_path / "on/model").config.vocab_size == rows


def test_a_run_that_fails_in_its_first_step_leaves_no_folder(tmp_path, corpus_folder, monkeypatch):
    with pytest.raises(UserError, match="at step 1; training stopped before anything was learnt"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=3,
                 changes=[*SMALL, "network.initialization.std=1e30"])
    assert list(tmp_path.iterdir()) == []


def test_overwrite_replaces_the_old_run(finished, tmp_path, corpus_folder):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / "notes.txt").write_text("old")
    with pytest.raises(UserError, match="--overwrite"):
        pretrain("bert@tiny", corpus_folder, run, steps=1, changes=SMALL)
    assert (run / "notes.txt").is_file()
    assert pretrain("bert@tiny", corpus_folder, run, steps=1, changes=SMALL, overwrite=True)["steps"] == 1
    assert not (run / "notes.txt").exists() and [path.name for path in tmp_path.iterdir()] == ["run"]


def test_tensorboard_events_are_written(tmp_path, corpus_folder):
    pytest.importorskip("tensorboard")
    pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=2, changes=SMALL, tensorboard=True)
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_a_model_of_another_architecture_is_refused_as_initialization(tmp_path, corpus_folder):
    """Sizes are adopted from the initial model; the kind of network is not."""
    small = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=32",
             "corpus.sequence_length=16", "training.batch_size=4", "network.attention.head_width=16"]
    pretrain("transformer-xl@tiny", corpus_folder, tmp_path / "xl", steps=1, changes=small)
    with pytest.raises(UserError, match="is a Transformer-XL and gpt2@tiny is built differently") as refused:
        pretrain("gpt2@tiny", corpus_folder, tmp_path / "run", steps=1, init_from=tmp_path / "xl")
    assert any("position.kind" in where for where, _ in refused.value.problems)
    assert not (tmp_path / "run").exists()
    further = pretrain("transformer-xl@tiny", corpus_folder, tmp_path / "further", steps=1, init_from=tmp_path / "xl",
                       changes=["corpus.sequence_length=16", "training.batch_size=4"])
    assert further["steps"] == 1

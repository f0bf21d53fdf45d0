"""Early stopping: training ends when patience runs out, and the run keeps the weights of the best validation."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import SEED
from safetensors.torch import load_file

from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import recipe
from stemma.training.budget import Budget
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain import pretrain
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.trainer import Trainer

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=32",
         "corpus.sequence_length=16", "training.batch_size=4", "training.validate_every=2",
         "training.checkpoint_every=3", "training.log_every=1"]


def build_trainer(run, corpus_folder, scores, *changes, steps=40):
    """A trainer whose validations return these scores, and the weights after each step."""
    run.mkdir(exist_ok=True)
    corpus = Corpus.open(corpus_folder)
    resolved = adopt_tokenizer(recipe("bert@tiny", [*SMALL, *changes]), corpus)
    torch.manual_seed(0)
    network = build_network(resolved, corpus.tokenizer.vocab_size)
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    remaining = iter(scores)
    loop = Trainer(run, resolved, loader, network, Budget("steps", steps), 0, metric_fn=lambda: next(remaining))
    history = {}
    step = loop._step

    def recording_step(progress):
        is_over = step(progress)
        history[loop.state.step] = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        return is_over

    loop._step = recording_step
    return loop, history


def assert_same(network, weights):
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_training_ends_when_patience_runs_out_and_keeps_the_best_weights(tmp_path, corpus_folder):
    scores = [0.1, 0.5, 0.4, 0.5, 0.3, 0.9]
    loop, history = build_trainer(tmp_path / "run", corpus_folder, scores, "training.patience=3")
    result = loop.train()
    assert result["steps"] == 10 and result["best_step"] == 4  # an equal score is not better
    assert_same(loop.network, history[4])
    assert [folder.name for folder in (tmp_path / "run/checkpoints").glob("best-*")] == ["best-4"]
    assert (tmp_path / "run/checkpoints/step-10").is_dir()
    logged = [entry["score"] for line in (tmp_path / "run/log.jsonl").read_text().splitlines()
              if "score" in (entry := json.loads(line))]
    assert logged == [0.1, 0.5, 0.4, 0.5, 0.3]


def test_a_better_validation_resets_the_patience(tmp_path, corpus_folder):
    loop, history = build_trainer(tmp_path / "run", corpus_folder, [0.5, 0.4, 0.6, 0.1, 0.2], "training.patience=2")
    result = loop.train()
    assert result["steps"] == 10 and result["best_step"] == 6
    assert_same(loop.network, history[6])


def test_keep_best_works_without_patience(tmp_path, corpus_folder):
    scores = [0.5, float("nan"), 0.4]
    loop, history = build_trainer(tmp_path / "run", corpus_folder, scores, "training.keep_best=true", steps=6)
    result = loop.train()
    assert result["steps"] == 6 and result["best_step"] == 2
    assert_same(loop.network, history[2])


def test_a_nan_score_is_the_worst(tmp_path, corpus_folder):
    scores = [float("nan"), -7.0, -8.0]
    loop, history = build_trainer(tmp_path / "run", corpus_folder, scores, "training.keep_best=true", steps=6)
    assert loop.train()["best_step"] == 4
    assert_same(loop.network, history[4])


def test_a_run_killed_at_any_step_resumes_to_the_same_best_step(tmp_path, corpus_folder):
    scores = [0.1, 0.5, 0.4, 0.6, 0.3, 0.2]
    uninterrupted, history = build_trainer(tmp_path / "whole", corpus_folder, scores, "training.patience=2")
    assert uninterrupted.train()["best_step"] == 8

    class Killed(Exception):  # noqa: N818
        pass

    for last in range(1, 12):
        run = tmp_path / f"killed-{last}"
        loop, _ = build_trainer(run, corpus_folder, scores, "training.patience=2")
        step = loop._step

        def step_or_kill(progress, loop=loop, step=step, last=last):
            if loop.state.step == last:
                raise Killed
            return step(progress)

        loop._step = step_or_kill
        with pytest.raises(Killed):
            loop.train()
        resumed, _ = build_trainer(run, corpus_folder, scores[last // 3 * 3 // 2:], "training.patience=2")
        result = resumed.train()
        assert (result["steps"], result["best_step"]) == (12, 8), last
        assert_same(resumed.network, history[8])
        assert load_file(run / "checkpoints/best-8/weights.safetensors").keys() <= history[8].keys()
        assert len(list((run / "checkpoints").glob("best-*"))) == 1


def test_without_a_metric_the_validation_loss_decides(tmp_path, corpus_folder):
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=12, seed=SEED, changes=[
        *SMALL, "training.keep_best=true", "training.learning_rate=0.9", "training.warmup_steps=1",
        "training.optimizer.kind=adamw",
        "training.schedule={kind='constant'}"])  # so that training diverges
    losses = {entry["step"]: entry["validation_loss"] for line in (tmp_path / "run/log.jsonl").read_text().splitlines()
              if "validation_loss" in (entry := json.loads(line))}
    best = min(losses, key=losses.get)
    assert result["best_step"] == best < 12
    assert result["validation_loss"] == pytest.approx(losses[best], rel=1e-6)


def test_patience_without_held_out_text_is_refused(tmp_path, corpus_folder, monkeypatch):
    monkeypatch.setattr(PretrainLoader, "validation_batches", lambda self, length: [])  # as with a single document
    with pytest.raises(UserError, match="training.patience compares validation scores"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=4,
                 changes=[*SMALL, "training.patience=1"])
    assert not (tmp_path / "run").exists()


def test_reinitializing_top_layers_needs_an_initial_model(tmp_path, corpus_folder):
    with pytest.raises(UserError, match="name the model with --from"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=4, changes=[*SMALL, "training.fresh=1"])


def test_continued_pre_training_reinitializes_the_top_layers(tmp_path, corpus_folder, caplog):
    first = [*SMALL, "network.layers=2", "network.initialization.zero_output=false"]
    pretrain("bert@tiny", corpus_folder, tmp_path / "first", steps=3, changes=first)
    pretrain("bert@tiny", corpus_folder, tmp_path / "second", steps=1, seed=5, init_from=tmp_path / "first",
             changes=[*first, "training.fresh=1", "training.learning_rate=1e-9",
                      "training.optimizer.adamw_learning_rate=1e-9"])
    before, after = (load_file(tmp_path / name / "model/model.safetensors") for name in ("first", "second"))
    moved = {name for name in before if (before[name] - after[name]).abs().max() > 1e-4}
    assert any("layer.1." in name for name in moved) and not any("layer.0." in name for name in moved)
    assert not any("started at random" in text for text in caplog.messages)

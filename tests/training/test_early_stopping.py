"""The best look at held-out data is the run's, and training ends where no better one comes."""

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


def loop_of(run, corpus_folder, scores, *changes, steps=40):
    """A run whose judge says these scores, look by look."""
    run.mkdir(exist_ok=True)
    corpus = Corpus.open(corpus_folder)
    chosen = adopt_tokenizer(recipe("bert@tiny", [*SMALL, *changes]), corpus)
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    supply = PretrainLoader(chosen, corpus, build_objectives(chosen), 0)
    said = iter(scores)
    loop = Trainer(run, chosen, supply, network, Budget("steps", steps), 0, metric_fn=lambda: next(said))
    seen = {}
    step = loop._step

    def noted(progress):
        over = step(progress)
        seen[loop.state.step] = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        return over

    loop._step = noted
    return loop, seen


def assert_same(network, weights):
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, weights[name]), name


def test_training_ends_when_patience_runs_out_and_keeps_the_best_weights(tmp_path, corpus_folder):
    loop, seen = loop_of(tmp_path / "run", corpus_folder, [0.1, 0.5, 0.4, 0.5, 0.3, 0.9], "training.patience=3")
    result = loop.train()
    assert result["steps"] == 10 and result["best_step"] == 4  # an equal look is no better one
    assert_same(loop.network, seen[4])
    assert [folder.name for folder in (tmp_path / "run/checkpoints").glob("best-*")] == ["best-4"]
    assert (tmp_path / "run/checkpoints/step-10").is_dir()
    scores = [entry["score"] for line in (tmp_path / "run/log.jsonl").read_text().splitlines()
              if "score" in (entry := json.loads(line))]
    assert scores == [0.1, 0.5, 0.4, 0.5, 0.3]


def test_a_better_validation_resets_the_patience(tmp_path, corpus_folder):
    loop, seen = loop_of(tmp_path / "run", corpus_folder, [0.5, 0.4, 0.6, 0.1, 0.2], "training.patience=2")
    result = loop.train()
    assert result["steps"] == 10 and result["best_step"] == 6
    assert_same(loop.network, seen[6])


def test_the_best_is_kept_without_patience_too(tmp_path, corpus_folder):
    loop, seen = loop_of(tmp_path / "run", corpus_folder, [0.5, float("nan"), 0.4], "training.keep_best=true", steps=6)
    result = loop.train()
    assert result["steps"] == 6 and result["best_step"] == 2
    assert_same(loop.network, seen[2])


def test_a_score_that_is_no_number_is_the_worst(tmp_path, corpus_folder):
    scores = [float("nan"), -7.0, -8.0]
    loop, seen = loop_of(tmp_path / "run", corpus_folder, scores, "training.keep_best=true", steps=6)
    assert loop.train()["best_step"] == 4
    assert_same(loop.network, seen[4])


def test_a_run_that_stopped_anywhere_goes_on_to_the_same_choice(tmp_path, corpus_folder):
    scores = [0.1, 0.5, 0.4, 0.6, 0.3, 0.2]
    whole, seen = loop_of(tmp_path / "whole", corpus_folder, scores, "training.patience=2")
    assert whole.train()["best_step"] == 8

    class Killed(Exception):  # noqa: N818
        pass

    for last in range(1, 12):
        run = tmp_path / f"killed-{last}"
        loop, _ = loop_of(run, corpus_folder, scores, "training.patience=2")
        step = loop._step

        def until(progress, loop=loop, step=step, last=last):
            if loop.state.step == last:
                raise Killed
            return step(progress)

        loop._step = until
        with pytest.raises(Killed):
            loop.train()
        went_on, _ = loop_of(run, corpus_folder, scores[last // 3 * 3 // 2:], "training.patience=2")
        result = went_on.train()
        assert (result["steps"], result["best_step"]) == (12, 8), last
        assert_same(went_on.network, seen[8])
        assert load_file(run / "checkpoints/best-8/weights.safetensors").keys() <= seen[8].keys()
        assert len(list((run / "checkpoints").glob("best-*"))) == 1


def test_the_validation_loss_decides_without_a_metric(tmp_path, corpus_folder):
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=12, seed=SEED, changes=[
        *SMALL, "training.keep_best=true", "training.learning_rate=0.9", "training.warmup_steps=1",
        "training.schedule={kind='constant'}"])  # soon astray
    losses = {entry["step"]: entry["validation_loss"] for line in (tmp_path / "run/log.jsonl").read_text().splitlines()
              if "validation_loss" in (entry := json.loads(line))}
    best = min(losses, key=losses.get)
    assert result["best_step"] == best < 12
    assert result["validation_loss"] == pytest.approx(losses[best], rel=1e-6)


def test_nothing_held_out_is_nothing_to_choose_by(tmp_path, corpus_folder, monkeypatch):
    monkeypatch.setattr(PretrainLoader, "validation_batches", lambda self, length: [])  # as of a single document
    with pytest.raises(UserError, match="training.patience compares validation scores"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=4,
                 changes=[*SMALL, "training.patience=1"])
    assert not (tmp_path / "run").exists()


def test_a_fresh_top_needs_a_model(tmp_path, corpus_folder):
    with pytest.raises(UserError, match="name the model with --from"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=4, changes=[*SMALL, "training.fresh=1"])


def test_a_pretraining_goes_on_with_a_fresh_top(tmp_path, corpus_folder, caplog):
    first = [*SMALL, "network.layers=2"]
    pretrain("bert@tiny", corpus_folder, tmp_path / "first", steps=3, changes=first)
    pretrain("bert@tiny", corpus_folder, tmp_path / "second", steps=1, seed=5, init_from=tmp_path / "first",
             changes=[*first, "training.fresh=1", "training.learning_rate=1e-9"])
    before, after = (load_file(tmp_path / name / "model/model.safetensors") for name in ("first", "second"))
    moved = {name for name in before if (before[name] - after[name]).abs().max() > 1e-4}
    assert any("layer.1." in name for name in moved) and not any("layer.0." in name for name in moved)
    assert not any("started at random" in text for text in caplog.messages)

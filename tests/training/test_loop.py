"""The training loop: it reduces the loss, stops at NaN and spikes, and stores all state that a resumed run needs."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from dataclasses import fields, replace

import pytest
import torch
from conftest import SEED

from stemma.corpus.corpus import Corpus
from stemma.errors import Interrupted, UserError
from stemma.objectives import build_network, build_objectives
from stemma.recipe_loading import recipe
from stemma.training.budget import Budget
from stemma.training.checkpoints import load_latest
from stemma.training.corpus_cache import adopt_tokenizer
from stemma.training.pretrain import pretrain
from stemma.training.pretrain_loader import PretrainLoader
from stemma.training.signals import deferred_signals
from stemma.training.train_state import TrainState
from stemma.training.trainer import Trainer

SMALL = ["network.width=32", "network.heads=2", "network.layers=2", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=5"]


@pytest.fixture(scope="module")
def corpus(corpus_folder):
    return Corpus.open(corpus_folder)


def build_trainer(run, corpus, *changes, steps=None, minutes=None, seed=0):
    run.mkdir(exist_ok=True)
    resolved = adopt_tokenizer(recipe("bert@tiny", [*SMALL, *changes]), corpus)
    torch.manual_seed(seed)
    network = build_network(resolved, corpus.tokenizer.vocab_size)
    budget = Budget.from_options(steps, None, minutes, 10)
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), seed)
    return Trainer(run, resolved, loader, network, budget, seed)


def lr_factor(loop):
    """The factor of the learning rate at the next step."""
    return loop.method.learning_rate.factor(loop.state, loop._progress())


def entries(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("dynamic", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_the_loss_falls_below_the_unigram_baseline(tmp_path, corpus_folder, dynamic):
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=300, seed=SEED, changes=[
        *SMALL, f"objective.masked_lm.dynamic={dynamic}", "network.width=64", "network.feedforward=128",
        "training.batch_size=32", "training.learning_rate=3e-3", "training.warmup_steps=30", "network.dropout=0.0",
        "network.attention.dropout=0.0"])
    assert result["validation_loss"] < 0.85 * result["unigram_loss"], result
    losses = [entry["loss"] for entry in entries(tmp_path / "run") if "loss" in entry]
    assert losses[0] > 1.3 * result["unigram_loss"] and losses[-1] < 0.9 * result["unigram_loss"]


def test_micro_batches_give_the_update_of_the_whole_batch(tmp_path, corpus):
    ends = {}
    for rows in ("1", "3", "8"):
        loop = build_trainer(tmp_path / rows, corpus, f"training.micro_batch_size={rows}", "network.dropout=0.0",
                             "network.attention.dropout=0.0", "training.precision=fp32", steps=3)
        assert loop.train()["steps"] == 3
        ends[rows] = torch.cat([parameter.detach().flatten() for parameter in loop.network.parameters()])
    # Adam divides by the size of the gradient, so rounding shows where gradients are near zero
    for rows in ("1", "3"):
        assert (ends[rows] - ends["8"]).abs().mean() < 1e-6


def test_a_checkpoint_stores_the_whole_training_state(tmp_path, corpus):
    loop = build_trainer(tmp_path, corpus, steps=7)
    loop.train()
    saved = load_latest(tmp_path, loop.network, loop.method)
    assert {"step", "tokens", "words", *saved.state} == {field.name for field in fields(TrainState)}  # no words: 0
    then = replace(loop.state, elapsed=saved.state["elapsed"])  # saving takes time
    assert TrainState(saved.step, saved.tokens, **saved.state) == then


def test_a_resumed_run_keeps_the_number_of_threads(tmp_path, corpus):
    """Without a number in the recipe it comes from the environment, which may have changed since."""
    torch.set_num_threads(2)
    try:
        build_trainer(tmp_path, corpus, steps=3).train()
        torch.set_num_threads(1)
        assert build_trainer(tmp_path, corpus, steps=4).train()["threads"] == 2
        assert build_trainer(tmp_path, corpus, "training.threads=1", steps=5).train()["threads"] == 1
    finally:
        torch.set_num_threads(1)


def test_a_time_budget_ends_with_a_validated_and_saved_step(tmp_path, corpus, monkeypatch):
    """Even if validating and saving are slow, the last step of a budget in minutes is validated and saved."""
    loop = build_trainer(tmp_path, corpus, "training.validate_every=1000", "training.checkpoint_every=2", minutes=0.01)
    save = loop.save

    def slow_save():
        time.sleep(0.4)
        save()

    monkeypatch.setattr(loop, "save", slow_save)
    result = loop.train()
    assert [entry["step"] for entry in entries(tmp_path) if "validation_loss" in entry] == [result["steps"]]
    assert (tmp_path / f"checkpoints/step-{result['steps']}").is_dir()


def test_validation_does_not_change_training(tmp_path, corpus):
    ends = []
    for every in ("1", "1000"):
        loop = build_trainer(tmp_path / every, corpus, f"training.validate_every={every}", steps=6)
        ends.append(loop.train())
        validated_steps = [entry["step"] for entry in entries(tmp_path / every) if "validation_loss" in entry]
        assert validated_steps == (list(range(1, 7)) if every == "1" else [6])
        assert loop.validate() == loop.validate()
    assert ends[0]["validation_loss"] == ends[1]["validation_loss"] and ends[0]["loss"] == ends[1]["loss"]


def test_a_warm_up_longer_than_the_budget_is_shortened_with_a_warning(tmp_path, corpus, caplog):
    build_trainer(tmp_path, corpus, "training.warmup_steps=100", "training.log_every=1", "training.learning_rate=1e-3",
                  steps=20).train()
    assert "2 steps are used instead" in caplog.messages[0]
    rates = [entry["learning_rate"] for entry in entries(tmp_path) if "loss" in entry]
    assert max(rates) == rates[1] == pytest.approx(1e-3) and rates[0] == pytest.approx(5e-4)
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_a_warm_up_shortened_by_a_time_budget_stays_so_after_a_resume(tmp_path, corpus):
    changes = ["training.warmup_steps=1000", "training.schedule.kind=linear"]
    loop = build_trainer(tmp_path, corpus, *changes, minutes=1.0)
    loop.state = TrainState(step=40, tokens=4000, elapsed=9.0, loss=5.0)
    at_the_top = lr_factor(loop)
    assert at_the_top == 1.0 and loop.state.warmup == 41
    loop.state.step, loop.state.elapsed = 80, 30.0
    later = lr_factor(loop)
    loop.save()
    resumed = build_trainer(tmp_path, corpus, *changes, minutes=1.0)
    resumed._restore()
    assert lr_factor(resumed) == later < 0.65


def test_decay_by_fraction_of_a_time_budget_follows_the_clock(tmp_path, corpus):
    """Independent of the number of steps, also after a shortened warm-up."""
    loop = build_trainer(tmp_path, corpus, "training.warmup_steps=1000", "training.schedule.kind=warmup_stable_decay",
                         "training.schedule.decay=0.4", minutes=1.0)
    results = []
    for step, seconds in ((40, 9.0), (50, 20.0), (90, 36.0), (91, 48.0), (500, 59.4)):
        loop.state.step, loop.state.elapsed = step, seconds
        results.append(lr_factor(loop))
    assert results == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.025])


def test_a_nan_loss_stops_training_before_the_update(tmp_path, corpus, monkeypatch):
    loop = build_trainer(tmp_path, corpus, steps=10)
    compute_losses = loop.forward_backward.compute_losses
    before = {}

    def nan_at_step_5(objectives, batch, state):
        result = compute_losses(objectives, batch, state)
        if loop.state.step == 4:
            before.update({name: value.clone() for name, value in loop.network.state_dict().items()})
            return result._replace(total=result.total * math.nan)
        return result

    monkeypatch.setattr(loop.forward_backward, "compute_losses", nan_at_step_5)
    with pytest.raises(UserError, match=r"not a number at step 5; .* state of step 4 saved .*learning_rate"):
        loop.train()
    fresh = build_trainer(tmp_path, corpus, steps=10)
    state = load_latest(tmp_path, fresh.network, fresh.method)
    assert state.step == 4
    assert all(torch.equal(value, before[name]) for name, value in fresh.network.state_dict().items())
    assert fresh.train()["steps"] == 10  # the state is good


def test_a_loss_spike_stops_the_run(tmp_path, corpus):
    loop = build_trainer(tmp_path, corpus, "training.spike_factor=0.5", "training.batch_size=2", steps=200)
    with pytest.raises(UserError, match=r"jumped to .* at step 102; .* state of step 101 saved"):
        loop.train()
    assert (tmp_path / "checkpoints/step-101").is_dir()


def test_a_small_loss_that_grows_is_no_spike(tmp_path, corpus, monkeypatch):
    """The loss of a classifier that is nearly always right is multiplied by one wrong example: only losses above 1 nat
    can be a spike."""
    loop = build_trainer(tmp_path, corpus, "training.spike_factor=3.0", "training.batch_size=2", steps=104)
    compute_losses, losses = loop.forward_backward.compute_losses, []

    def small_losses(objectives, batch, state):
        result = compute_losses(objectives, batch, state)
        wanted = 0.1 if loop.state.step < 102 else 0.9 if loop.state.step == 102 else 3.1
        losses.append(wanted)
        return result._replace(total=result.total * 0 + wanted)

    monkeypatch.setattr(loop.forward_backward, "compute_losses", small_losses)
    with pytest.raises(UserError, match=r"jumped to 3.1 \(its running mean is 0.1.*\) at step 104"):
        loop.train()
    assert 0.9 in losses


def test_the_first_signal_is_deferred_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), deferred_signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_finishes_the_step_saves_and_prints_the_resume_command(tmp_path, corpus, monkeypatch):
    loop = build_trainer(tmp_path, corpus, steps=10)
    compute_losses = loop.forward_backward.compute_losses

    def interrupted(objectives, batch, state):
        if loop.state.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return compute_losses(objectives, batch, state)

    monkeypatch.setattr(loop.forward_backward, "compute_losses", interrupted)
    with pytest.raises(Interrupted, match=f"stopped at step 3 and saved; `stemma resume {tmp_path}`"):
        loop.train()
    assert (tmp_path / "checkpoints/step-3").is_dir()

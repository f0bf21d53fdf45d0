"""The loop itself: it learns, it stops before harm is done, and it forgets nothing that a resumed run needs."""

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


def make_loop(run, corpus, *changes, steps=None, minutes=None, seed=0):
    run.mkdir(exist_ok=True)
    chosen = adopt_tokenizer(recipe("bert@tiny", [*SMALL, *changes]), corpus)
    torch.manual_seed(seed)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    budget = Budget.from_options(steps, None, minutes, 10)
    supply = PretrainLoader(chosen, corpus, build_objectives(chosen), seed)
    return Trainer(run, chosen, supply, network, budget, seed)


def factor(loop):
    """Of the learning rate, at the next step."""
    return loop.method.learning_rate.factor(loop.state, loop._progress())


def entries(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("dynamic", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_the_loss_falls_below_what_frequencies_know(tmp_path, corpus_folder, dynamic):
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=300, seed=SEED, changes=[
        *SMALL, f"objective.masked_lm.dynamic={dynamic}", "network.width=64", "network.feedforward=128",
        "training.batch_size=32", "training.learning_rate=3e-3", "training.warmup_steps=30", "network.dropout=0.0",
        "network.attention.dropout=0.0"])
    assert result["validation_loss"] < 0.85 * result["unigram_loss"], result
    losses = [entry["loss"] for entry in entries(tmp_path / "run") if "loss" in entry]
    assert losses[0] > 1.3 * result["unigram_loss"] and losses[-1] < 0.9 * result["unigram_loss"]


def test_slices_add_up_to_the_whole_batch(tmp_path, corpus):
    ends = {}
    for rows in ("1", "3", "8"):
        loop = make_loop(tmp_path / rows, corpus, f"training.micro_batch_size={rows}", "network.dropout=0.0",
                         "network.attention.dropout=0.0", "training.precision=fp32", steps=3)
        assert loop.train()["steps"] == 3
        ends[rows] = torch.cat([parameter.detach().flatten() for parameter in loop.network.parameters()])
    # Adam divides by the gradient's size, so rounding shows where a gradient is nearly nothing
    for rows in ("1", "3"):
        assert (ends[rows] - ends["8"]).abs().mean() < 1e-6


def test_a_checkpoint_stores_the_whole_training_state(tmp_path, corpus):
    loop = make_loop(tmp_path, corpus, steps=7)
    loop.train()
    saved = load_latest(tmp_path, loop.network, loop.method)
    assert {"step", "tokens", *saved.state} == {field.name for field in fields(TrainState)}
    then = replace(loop.state, elapsed=saved.state["elapsed"])  # the saving itself took time
    assert TrainState(saved.step, saved.tokens, **saved.state) == then


def test_a_resumed_run_keeps_the_number_of_threads(tmp_path, corpus):
    """Without a wish in the recipe it is the environment's, which may be another one by then."""
    torch.set_num_threads(2)
    try:
        make_loop(tmp_path, corpus, steps=3).train()
        torch.set_num_threads(1)
        assert make_loop(tmp_path, corpus, steps=4).train()["threads"] == 2
        assert make_loop(tmp_path, corpus, "training.threads=1", steps=5).train()["threads"] == 1
    finally:
        torch.set_num_threads(1)


def test_a_time_budget_ends_with_a_validated_and_saved_step(tmp_path, corpus, monkeypatch):
    """However long looking and saving take, a budget in minutes ends after a step, with both done for that step."""
    loop = make_loop(tmp_path, corpus, "training.validate_every=1000", "training.checkpoint_every=2", minutes=0.01)
    real = loop.save

    def slowly():
        time.sleep(0.4)
        real()

    monkeypatch.setattr(loop, "save", slowly)
    result = loop.train()
    assert [entry["step"] for entry in entries(tmp_path) if "validation_loss" in entry] == [result["steps"]]
    assert (tmp_path / f"checkpoints/step-{result['steps']}").is_dir()


def test_validation_does_not_change_training(tmp_path, corpus):
    ends = []
    for every in ("1", "1000"):
        loop = make_loop(tmp_path / every, corpus, f"training.validate_every={every}", steps=6)
        ends.append(loop.train())
        looks = [entry["step"] for entry in entries(tmp_path / every) if "validation_loss" in entry]
        assert looks == (list(range(1, 7)) if every == "1" else [6])
        assert loop.validate() == loop.validate()
    assert ends[0]["validation_loss"] == ends[1]["validation_loss"] and ends[0]["loss"] == ends[1]["loss"]


def test_a_warm_up_longer_than_the_budget_is_shortened_with_a_warning(tmp_path, corpus, caplog):
    make_loop(tmp_path, corpus, "training.warmup_steps=100", "training.log_every=1", "training.learning_rate=1e-3",
              steps=20).train()
    assert "2 steps are used instead" in caplog.messages[0]
    rates = [entry["learning_rate"] for entry in entries(tmp_path) if "loss" in entry]
    assert max(rates) == rates[1] == pytest.approx(1e-3) and rates[0] == pytest.approx(5e-4)
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_a_warm_up_cut_short_by_time_stays_so_after_a_resume(tmp_path, corpus):
    loop = make_loop(tmp_path, corpus, "training.warmup_steps=1000", minutes=1.0)
    loop.state = TrainState(step=40, tokens=4000, elapsed=9.0, loss=5.0)
    at_the_top = factor(loop)
    assert at_the_top == 1.0 and loop.state.warmup == 41
    loop.state.step, loop.state.elapsed = 80, 30.0
    later = factor(loop)
    loop.save()
    resumed = make_loop(tmp_path, corpus, "training.warmup_steps=1000", minutes=1.0)
    resumed._restore()
    assert factor(resumed) == later < 0.65


def test_a_decay_by_fraction_of_the_budget_goes_by_the_clock(tmp_path, corpus):
    """However many steps there were; also after a warm-up that time has cut short."""
    loop = make_loop(tmp_path, corpus, "training.warmup_steps=1000", "training.schedule.kind=warmup_stable_decay",
                     "training.schedule.decay=0.4", minutes=1.0)
    found = []
    for step, seconds in ((40, 9.0), (50, 20.0), (90, 36.0), (91, 48.0), (500, 59.4)):
        loop.state.step, loop.state.elapsed = step, seconds
        found.append(factor(loop))
    assert found == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.025])


def test_a_nan_loss_stops_before_it_reaches_the_weights(tmp_path, corpus, monkeypatch):
    loop = make_loop(tmp_path, corpus, steps=10)
    real = loop.forward_backward.compute_losses
    before = {}

    def broken(objectives, batch, state):
        found = real(objectives, batch, state)
        if loop.state.step == 4:
            before.update({name: value.clone() for name, value in loop.network.state_dict().items()})
            return found._replace(total=found.total * math.nan)
        return found

    monkeypatch.setattr(loop.forward_backward, "compute_losses", broken)
    with pytest.raises(UserError, match=r"not a number at step 5; .* state of step 4 saved .*learning_rate"):
        loop.train()
    fresh = make_loop(tmp_path, corpus, steps=10)
    state = load_latest(tmp_path, fresh.network, fresh.method)
    assert state.step == 4
    assert all(torch.equal(value, before[name]) for name, value in fresh.network.state_dict().items())
    assert fresh.train()["steps"] == 10  # the state is good


def test_a_loss_that_jumps_stops_the_run(tmp_path, corpus):
    loop = make_loop(tmp_path, corpus, "training.spike_factor=0.5", "training.batch_size=2", steps=200)
    with pytest.raises(UserError, match=r"jumped to .* at step 102; .* state of step 101 saved"):
        loop.train()
    assert (tmp_path / "checkpoints/step-101").is_dir()


def test_the_first_signal_is_noted_and_the_second_obeyed():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), deferred_signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        assert received == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_ends_the_step_saves_and_says_how_to_go_on(tmp_path, corpus, monkeypatch):
    loop = make_loop(tmp_path, corpus, steps=10)
    real = loop.forward_backward.compute_losses

    def interrupted(objectives, batch, state):
        if loop.state.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(objectives, batch, state)

    monkeypatch.setattr(loop.forward_backward, "compute_losses", interrupted)
    with pytest.raises(Interrupted, match=f"stopped at step 3 and saved; `stemma resume {tmp_path}`"):
        loop.train()
    assert (tmp_path / "checkpoints/step-3").is_dir()

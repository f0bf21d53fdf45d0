"""The moving average of the weights: its values, which weights are validated and saved, and exact resume."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stemma
from stemma.errors import UserError
from stemma.training.pretrain import pretrain, resume
from stemma.training.weight_average import WeightAverage

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64", "training.ema=0.9",
         "corpus.sequence_length=32", "remove=corpus.first_phase", "training.batch_size=8", "training.warmup_steps=2",
         "training.learning_rate=0.01", "training.checkpoint_every=2", "training.keep_checkpoints=100",
         "training.log_every=1", "training.validate_every=2", "training.precision=fp32"]
STEPS = 6


@pytest.fixture(scope="module", params=[(), ("training.keep_best=true",), ("training.precision=bf16",)],
                ids=["last", "best", "bf16"])
def finished(request, tmp_path_factory, corpus_folder):
    run = tmp_path_factory.mktemp("average") / "run"
    pretrain("bert@tiny", corpus_folder, run, steps=STEPS, changes=[*SMALL, *request.param])
    return run


def test_the_average_follows_its_formula():
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    average, expected = WeightAverage(network, 0.5), network.weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            network.weight.add_(torch.randn(2, 3))
        average.update()
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * network.weight.detach()
        torch.testing.assert_close(average.averages["weight"], expected)
    live = network.weight.detach().clone()
    with average.applied():
        torch.testing.assert_close(network.weight.detach(), expected)
    assert torch.equal(network.weight, live)


def test_the_model_has_the_average_and_the_checkpoint_the_live_weights(finished):
    state = json.loads((finished / f"checkpoints/step-{STEPS}/state.json").read_text())
    assert state["optimizer"]["average_updates"] == STEPS
    best = json.loads((finished / "result.json").read_text()).get("best_step", STEPS)
    folder = finished / f"checkpoints/step-{best}"
    averages = {name.removeprefix("average/"): tensor for name, tensor in
                load_file(folder / "optimizer.safetensors").items() if name.startswith("average/")}
    live, saved = load_file(folder / "weights.safetensors"), load_file(finished / "model/model.safetensors")
    table = next(tensor for name, tensor in saved.items() if "word_embeddings" in name)
    assert torch.equal(table, averages["embedding.tokens.weight"])
    assert not torch.equal(table, live["embedding.tokens.weight"])


@pytest.mark.parametrize("step", [0, 2, 4, STEPS])
def test_a_resumed_run_ends_with_the_same_bytes(finished, tmp_path, step):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    for later in range(step + 2, STEPS + 1, 2):
        shutil.rmtree(run / f"checkpoints/step-{later}")
    result, expected = resume(run), json.loads((finished / "result.json").read_text())
    model = "model/model.safetensors"
    assert (run / model).read_bytes() == (finished / model).read_bytes()
    assert result["validation_loss"] == expected["validation_loss"]


def test_a_checkpoint_without_an_average_is_refused(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text("".join(line for line in recipe.splitlines(keepends=True) if "ema" not in line))
    with pytest.raises(UserError):
        resume(run)


def test_revisions_have_the_average(tmp_path, corpus_folder):
    pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=2, changes=[*SMALL, "training.checkpoint_every=1"],
             checkpoint_words=[1])
    saved = load_file(tmp_path / "run/revisions/words-1/model.safetensors")
    table = next(tensor for name, tensor in saved.items() if "word_embeddings" in name)
    checkpoint = tmp_path / "run/checkpoints/step-1"
    average = load_file(checkpoint / "optimizer.safetensors")["average/embedding.tokens.weight"]
    live = load_file(checkpoint / "weights.safetensors")["embedding.tokens.weight"]
    assert torch.equal(table, average) and not torch.equal(table, live)


class SaveDuringValidation(stemma.Callback):
    def on_validation(self, trainer, metrics):
        trainer.save()


def test_a_callback_that_saves_during_a_validation_saves_the_live_weights(tmp_path, corpus_folder):
    changes = [*SMALL, "training.checkpoint_every=100"]
    for name, callbacks in (("plain", ()), ("saved", (SaveDuringValidation(),))):
        pretrain("bert@tiny", corpus_folder, tmp_path / name, steps=STEPS, changes=changes, callbacks=callbacks)
    run, files = tmp_path / "saved", ("model/model.safetensors", f"checkpoints/step-{STEPS}/weights.safetensors")
    for file in files:
        assert (run / file).read_bytes() == (tmp_path / "plain" / file).read_bytes()
    for leftover in ("model", f"checkpoints/step-{STEPS}"):
        shutil.rmtree(run / leftover)
    (run / "result.json").unlink()
    resume(run)  # from the checkpoint that the callback saved
    assert all((run / file).read_bytes() == (tmp_path / "plain" / file).read_bytes() for file in files)

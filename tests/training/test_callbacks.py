"""Callbacks are called at steps, validations and checkpoints, and may stop the training, also of a resumed run."""

from __future__ import annotations

import json

import pytest
import torch

import stemma
from stemma import plugins, registry
from stemma.errors import UserError
from stemma.plugins import use_plugin
from stemma.recipe_loading import recipe
from stemma.training import trainer as loop_module

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=32",
         "corpus.sequence_length=16", "training.batch_size=4", "training.validate_every=4",
         "training.checkpoint_every=3", "training.log_every=2"]
PLUGIN = '''
from stemma.extend import Callback, CallbackSettings, register

class CeilingSettings(CallbackSettings):
    steps: int = 5

@register("callback", "ceiling", CeilingSettings)
class Ceiling(Callback):
    """Stops the training after a number of steps."""
    def __init__(self, settings):
        self.settings = settings

    def on_step(self, loop, report):
        return loop.state.step >= self.settings.steps
'''


class RecordingCallback(stemma.Callback):
    def __init__(self, last=None):
        self.events, self.last = [], last

    def on_step(self, trainer, report):
        assert report.loss == trainer.state.loss and report.details["learning_rate"] > 0
        self.events.append(("step", trainer.state.step))
        torch.rand(10)  # a callback may draw random numbers
        return trainer.state.step == self.last

    def on_validation(self, trainer, metrics):
        metrics["doubled"] = 2 * metrics["validation_loss"]
        self.events.append(("validation", trainer.state.step))

    def on_checkpoint(self, trainer, folder):
        assert (folder / "weights.safetensors").is_file() and trainer.network is not None
        self.events.append(("checkpoint", int(folder.name.removeprefix("step-"))))


def train(run, corpus_folder, *callbacks, changes=(), steps=8):
    return stemma.pretrain("bert@tiny", corpus_folder, run, steps=steps, changes=[*SMALL, *changes],
                           callbacks=callbacks)


def weights(run):
    return (run / "model/model.safetensors").read_bytes()


def test_callbacks_are_called_in_order_and_do_not_change_training(tmp_path, corpus_folder):
    recorder = RecordingCallback()
    result = train(tmp_path / "recorded", corpus_folder, recorder)
    steps_by_event = {kind: [step for event, step in recorder.events if event == kind] for kind, _ in recorder.events}
    assert steps_by_event == {"step": [*range(1, 9)], "validation": [4, 8], "checkpoint": [3, 6, 8]}
    assert recorder.events[-3:] == [("step", 8), ("validation", 8), ("checkpoint", 8)]
    lines = [json.loads(line) for line in (tmp_path / "recorded/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "doubled" in line] == [4, 8]
    assert result["doubled"] == 2 * result["validation_loss"]
    train(tmp_path / "plain", corpus_folder)
    assert weights(tmp_path / "recorded") == weights(tmp_path / "plain")


def test_a_callback_stops_training_also_in_a_resumed_run(tmp_path, corpus_folder, monkeypatch):
    ended = train(tmp_path / "ended", corpus_folder, RecordingCallback(last=5))
    assert ended["steps"] == 5 and (tmp_path / "ended/checkpoints/step-5").is_dir()

    class KilledError(Exception):
        pass

    def raise_killed(loop):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop_module.Trainer, "summarize", raise_killed)  # after the last checkpoint, before the model
        with pytest.raises(KilledError):
            train(tmp_path / "killed", corpus_folder, RecordingCallback(last=5))
    assert stemma.resume(tmp_path / "killed")["steps"] == 5  # without the callback
    assert weights(tmp_path / "killed") == weights(tmp_path / "ended")


def test_a_fine_tune_calls_its_callbacks(tmp_path, corpus_folder):
    train(tmp_path / "run", corpus_folder)
    rows = [f"{'good' if n % 2 else 'bad'} text {n}\t{n % 2}" for n in range(12)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]))
    recorder = RecordingCallback()
    result = stemma.finetune("classify", tmp_path / "run", tmp_path / "rows.tsv", tmp_path / "rows.tsv",
                             tmp_path / "tuned", steps=3, callbacks=[recorder])
    assert [step for event, step in recorder.events if event == "step"] == [1, 2, 3] and "doubled" in result
    num_events = len(recorder.events)
    stemma.finetune("classify", tmp_path / "run", tmp_path / "rows.tsv", tmp_path / "rows.tsv", tmp_path / "other",
                    steps=3)
    assert len(recorder.events) == num_events  # callbacks belong to one call


def test_a_recipe_can_name_a_callback_of_a_plug_in(tmp_path, corpus_folder, monkeypatch):
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    plugin = tmp_path / "ceiling.py"
    plugin.write_text(PLUGIN)
    use_plugin(plugin)
    named = ["training.callbacks.ceiling.kind=ceiling", "training.callbacks.ceiling.steps=2"]
    assert train(tmp_path / "run", corpus_folder, changes=named)["steps"] == 2
    written = (tmp_path / "run/recipe.toml").read_text()
    assert "[training.callbacks.ceiling]" in written and "ceiling.py" in written
    # a fine-tune does not inherit callbacks, as it inherits no other setting of the run
    rows = [f"{'good' if n % 2 else 'bad'} text {n}\t{n % 2}" for n in range(8)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]))
    assert stemma.finetune("classify", tmp_path / "run", tmp_path / "rows.tsv", tmp_path / "rows.tsv",
                           tmp_path / "tuned", steps=3)["steps"] == 3
    with pytest.raises(UserError, match="2 problems") as caught:
        recipe("bert@tiny", ["training.callbacks.one.kind=ceilin", "training.callbacks.two.kind=ceiling",
                             "training.callbacks.two.step=2"])
    assert "training.callbacks.one.kind" in str(caught.value.problems) and "ceiling" in str(caught.value.problems)
    assert "training.callbacks.two.step" in str(caught.value.problems)


def test_an_object_without_callback_methods_is_refused_before_the_run_is_created(tmp_path, corpus_folder):
    for wrong in (RecordingCallback, print, object()):
        with pytest.raises(UserError, match=r"is no callback: it has none of on_step, on_validation, on_checkpoint"):
            train(tmp_path / "run", corpus_folder, wrong)
    assert not (tmp_path / "run").exists()


def test_recipes_without_callbacks_and_methods_keep_their_digest():
    """Keys that were added later do not appear in a resolved recipe, so that digests in older labs stay valid."""
    plain = recipe("bert@tiny")
    assert {"callbacks", "method"}.isdisjoint(plain.values["training"])
    assert "callbacks" not in plain.to_toml() and "method" not in plain.to_toml()
    stated = recipe("bert@tiny", ["training.method.kind=gradient_descent"])
    assert stated.values == plain.values and stated.settings == plain.settings
    with pytest.raises(UserError, match="1 problem") as caught:
        recipe("bert@tiny", ["training.method.kind=gradient_decent"])
    assert "gradient_descent" in str(caught.value.problems)

"""Callbacks hear of steps, looks and checkpoints, may end the training, and a resumed run ends where it would have."""

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
    """Ends the training after so many steps."""
    def __init__(self, settings):
        self.settings = settings

    def on_step(self, loop, report):
        return loop.state.step >= self.settings.steps
'''


class Noted(stemma.Callback):
    def __init__(self, last=None):
        self.heard, self.last = [], last

    def on_step(self, trainer, report):
        assert report.loss == trainer.state.loss and report.details["learning_rate"] > 0
        self.heard.append(("step", trainer.state.step))
        torch.rand(10)  # whoever draws does not disturb the run
        return trainer.state.step == self.last

    def on_validation(self, trainer, metrics):
        metrics["doubled"] = 2 * metrics["validation_loss"]
        self.heard.append(("validation", trainer.state.step))

    def on_checkpoint(self, trainer, folder):
        assert (folder / "weights.safetensors").is_file() and trainer.network is not None
        self.heard.append(("checkpoint", int(folder.name.removeprefix("step-"))))


def train(run, corpus_folder, *callbacks, changes=(), steps=8):
    return stemma.pretrain("bert@tiny", corpus_folder, run, steps=steps, changes=[*SMALL, *changes],
                           callbacks=callbacks)


def weights(run):
    return (run / "model/model.safetensors").read_bytes()


def test_each_event_is_heard_in_order_and_changes_nothing(tmp_path, corpus_folder):
    noted = Noted()
    result = train(tmp_path / "heard", corpus_folder, noted)
    of_kind = {kind: [step for what, step in noted.heard if what == kind] for kind, _ in noted.heard}
    assert of_kind == {"step": [*range(1, 9)], "validation": [4, 8], "checkpoint": [3, 6, 8]}
    assert noted.heard[-3:] == [("step", 8), ("validation", 8), ("checkpoint", 8)]
    lines = [json.loads(line) for line in (tmp_path / "heard/log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "doubled" in line] == [4, 8]
    assert result["doubled"] == 2 * result["validation_loss"]
    train(tmp_path / "silent", corpus_folder)
    assert weights(tmp_path / "heard") == weights(tmp_path / "silent")


def test_a_callback_ends_the_training_also_of_a_run_that_is_resumed(tmp_path, corpus_folder, monkeypatch):
    ended = train(tmp_path / "ended", corpus_folder, Noted(last=5))
    assert ended["steps"] == 5 and (tmp_path / "ended/checkpoints/step-5").is_dir()

    class KilledError(Exception):
        pass

    def killed(loop):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(loop_module.Trainer, "summarize", killed)  # after the last checkpoint, before the model
        with pytest.raises(KilledError):
            train(tmp_path / "killed", corpus_folder, Noted(last=5))
    assert stemma.resume(tmp_path / "killed")["steps"] == 5  # nobody says it again
    assert weights(tmp_path / "killed") == weights(tmp_path / "ended")


def test_a_fine_tune_calls_them_too(tmp_path, corpus_folder):
    train(tmp_path / "run", corpus_folder)
    rows = [f"{'good' if n % 2 else 'bad'} text {n}\t{n % 2}" for n in range(12)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]))
    noted = Noted()
    result = stemma.finetune("classify", tmp_path / "run", tmp_path / "rows.tsv", tmp_path / "rows.tsv",
                             tmp_path / "tuned", steps=3, callbacks=[noted])
    assert [step for what, step in noted.heard if what == "step"] == [1, 2, 3] and "doubled" in result
    heard = len(noted.heard)
    stemma.finetune("classify", tmp_path / "run", tmp_path / "rows.tsv", tmp_path / "rows.tsv", tmp_path / "other",
                    steps=3)
    assert len(noted.heard) == heard  # only in the call that they are given to


def test_a_plug_in_brings_one_that_a_recipe_names(tmp_path, corpus_folder, monkeypatch):
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    plugin = tmp_path / "ceiling.py"
    plugin.write_text(PLUGIN)
    use_plugin(plugin)
    named = ["training.callbacks.ceiling.kind=ceiling", "training.callbacks.ceiling.steps=2"]
    assert train(tmp_path / "run", corpus_folder, changes=named)["steps"] == 2
    written = (tmp_path / "run/recipe.toml").read_text()
    assert "[training.callbacks.ceiling]" in written and "ceiling.py" in written
    # a fine-tune does not inherit it, as it does not inherit other choices for one run
    rows = [f"{'good' if n % 2 else 'bad'} text {n}\t{n % 2}" for n in range(8)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]))
    assert stemma.finetune("classify", tmp_path / "run", tmp_path / "rows.tsv", tmp_path / "rows.tsv",
                           tmp_path / "tuned", steps=3)["steps"] == 3
    with pytest.raises(UserError, match="2 problems") as caught:
        recipe("bert@tiny", ["training.callbacks.one.kind=ceilin", "training.callbacks.two.kind=ceiling",
                             "training.callbacks.two.step=2"])
    assert "training.callbacks.one.kind" in str(caught.value.problems) and "ceiling" in str(caught.value.problems)
    assert "training.callbacks.two.step" in str(caught.value.problems)


def test_what_is_no_callback_is_refused_before_anything_is_made(tmp_path, corpus_folder):
    for wrong in (Noted, print, object()):
        with pytest.raises(UserError, match=r"is no callback: it has none of on_step, on_validation, on_checkpoint"):
            train(tmp_path / "run", corpus_folder, wrong)
    assert not (tmp_path / "run").exists()


def test_recipes_without_callbacks_and_methods_stay_as_they_were():
    """Keys that came later are in no resolved recipe, so that the numbers of cells in older labs hold."""
    plain = recipe("bert@tiny")
    assert {"callbacks", "method"}.isdisjoint(plain.values["training"])
    assert "callbacks" not in plain.to_toml() and "method" not in plain.to_toml()
    stated = recipe("bert@tiny", ["training.method.kind=gradient_descent"])
    assert stated.values == plain.values and stated.settings == plain.settings
    with pytest.raises(UserError, match="1 problem") as caught:
        recipe("bert@tiny", ["training.method.kind=gradient_decent"])
    assert "gradient_descent" in str(caught.value.problems)

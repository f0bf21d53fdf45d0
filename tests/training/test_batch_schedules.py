"""Schedules of batch size and masking rate: their values, exact resume, and what they do not combine with."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest

from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_objectives
from stemma.recipe_loading import recipe
from stemma.training.pretrain import pretrain, resume
from stemma.training.pretrain_loader import PretrainLoader

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=16", "training.warmup_steps=2",
         "training.checkpoint_every=1", "training.keep_checkpoints=100", "training.log_every=1",
         "training.validate_every=3"]
SCHEDULES = ["training.batch_schedule.start=0.25", "training.batch_schedule.growth=0.5",
             "objective.masked_lm.final_rate=0.15", "objective.masked_lm.rate=0.5"]
STEPS = 8


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus_folder):
    run = tmp_path_factory.mktemp("schedules") / "run"
    pretrain("roberta@tiny", corpus_folder, run, steps=STEPS, changes=[*SMALL, *SCHEDULES])
    return run


def test_the_batch_grows_and_the_masking_rate_falls(corpus_folder):
    chosen = recipe("roberta@tiny", [*SMALL, *SCHEDULES])
    loader = PretrainLoader(chosen, Corpus.open(corpus_folder), build_objectives(chosen), seed=0)
    rows, rates = [], []
    for step in range(100):
        batch = loader.get_batch(step, 32, step / 100).batch
        rows.append(batch.num_rows)
        targets = len(batch.token_targets["vocabulary"].index)
        rates.append(targets / (batch.num_tokens - 2 * batch.num_rows))
    loader.close()
    assert rows[0] == 4 and rows[25] == 10 and rows[50:] == [16] * 50
    assert all(later >= earlier for earlier, later in pairwise(rows))
    assert rates[0] == pytest.approx(0.5, abs=0.06) and rates[-1] == pytest.approx(0.15, abs=0.06)
    middle = sum(rates[45:55]) / 10
    assert middle == pytest.approx(0.325, abs=0.02)


def test_validation_masks_at_the_final_rate(corpus_folder):
    chosen = recipe("roberta@tiny", [*SMALL, *SCHEDULES])
    loader = PretrainLoader(chosen, Corpus.open(corpus_folder), build_objectives(chosen), seed=0)
    batches = [batch for _, batch in loader.validation_batches(32)]
    loader.close()
    targets = sum(len(batch.token_targets["vocabulary"].index) for batch in batches)
    assert targets / sum(batch.num_tokens - 2 * batch.num_rows for batch in batches) == pytest.approx(0.15, abs=0.03)


@pytest.mark.parametrize("step", [0, 1, 3, 6, STEPS])
def test_a_resumed_run_ends_with_the_same_bytes(finished, tmp_path, step):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    (run / "result.json").unlink()
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(run / f"checkpoints/step-{later}")
    result, expected = resume(run), json.loads((finished / "result.json").read_text())
    model = "model/model.safetensors"
    assert (run / model).read_bytes() == (finished / model).read_bytes()
    assert result["tokens"] == expected["tokens"] and result["loss"] == expected["loss"]


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("transformer-xl@tiny", ["training.batch_schedule.start=0.25"], "continue in the next batch"),
    ("transformer@tiny", ["training.batch_schedule.start=0.25"], "by length"),
    ("bert@tiny", ["objective.masked_lm.final_rate=0.1"], "static masks are made once"),
    ("transformer-xl@large", ["training.z_loss=0.0001", "network.embedding.cutoffs=[2000]"], "no single normalizer"),
])
def test_what_schedules_do_not_combine_with_is_refused(name, changes, message):
    with pytest.raises(UserError, match="problem") as error:
        recipe(name, changes)
    assert message in str(error.value) or any(message in text for _, text in error.value.problems)


def test_the_training_loss_includes_the_z_loss(corpus_folder, tmp_path):
    changes = [*SMALL, "training.z_loss=0.01"]
    first = pretrain("roberta@tiny", corpus_folder, tmp_path / "a", steps=3, changes=changes)
    second = pretrain("roberta@tiny", corpus_folder, tmp_path / "b", steps=3, changes=SMALL)
    assert first["loss"] > second["loss"] + 0.05  # 0.01 x (log 1000)^2 is about 0.4

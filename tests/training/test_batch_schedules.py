"""Schedules of batch size and masking rate: their values, exact resume, and what they do not combine with."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest
import toy_tasks

import stemma
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_objectives
from stemma.recipe_loading import recipe
from stemma.schema.training import BatchScheduleSettings
from stemma.tasks.runs.finetune import finetune_recipe
from stemma.training.budget import Budget
from stemma.training.learning_rate import LearningRate
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


@pytest.mark.parametrize(("start", "growth"), [(0.25, 1.0), (0.25, 0.5), (0.9, 0.3)])
@pytest.mark.parametrize(("first", "last"), [(0.0, 1.0), (0.0, 0.4), (0.3, 0.8)])
def test_the_number_of_steps_is_that_of_the_mean_batch(start, growth, first, last):
    schedule = BatchScheduleSettings(start=start, growth=growth)
    points = [first + (last - first) * (index + 0.5) / 1000 for index in range(1000)]
    expected = sum(1 / schedule.fraction_at(point) for point in points) / 1000
    assert schedule.steps_factor(first, last) == pytest.approx(expected, rel=1e-4)


def test_the_warm_up_of_a_budget_in_tokens_counts_small_batches(caplog):
    """16 x 32 tokens a step are 100 steps at full size and 185 with the schedule: 80 of them may be warm-up."""
    changes, budget = [*SMALL, "training.warmup_steps=80"], Budget("tokens", 100 * 16 * 32)
    plain, growing = (LearningRate(recipe("roberta@tiny", [*changes, *more]).settings, budget)
                      for more in ([], SCHEDULES[:1]))
    assert (plain.warmups, growing.warmups) == ([10], [80])
    assert len(caplog.records) == 1


def test_fine_tuning_refuses_a_batch_that_grows(tmp_path):
    start = stemma.load(toy_tasks.save_model(tmp_path / "start"))
    with pytest.raises(UserError, match="is for pre-training"):
        finetune_recipe(start, ["training.batch_schedule.start=0.25"])


def test_fine_tuning_on_pairs_keeps_its_masking_rate():
    masked = recipe("roberta@tiny", SCHEDULES).settings.objective["masked_lm"]
    assert masked.pair_finetuning_keys["final_rate"] is None

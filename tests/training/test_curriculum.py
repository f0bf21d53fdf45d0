"""Stages of a curriculum: which objective is active when, for every unit of budget, and the same after a resume."""

import json

import numpy as np
import pytest
from conftest import SEED

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import build_objectives
from stemma.training.budget import Budget
from stemma.training.curriculum import active_objectives, check_curriculum
from stemma.training.pretrain import pretrain
from stemma.training.pretrain_loader import PretrainLoader

WORDS = ["objective.words.kind=masked_lm", "objective.words.rate=0.2", "objective.words.unit=word",
         "objective.words.dynamic=true"]
TWO_STAGES = ["remove=objective.next_sentence", "objective.masked_lm.dynamic=true",
              "objective.masked_lm.end_fraction=0.5", *WORDS, "objective.words.start_fraction=0.5"]
SMALL = ["network.width=32", "network.heads=2", "network.feedforward=64", "corpus.sequence_length=32",
         "training.batch_size=8", "training.warmup_steps=2", "training.log_every=1"]


def recipe_of(*changes: str):
    return recipe_loading.recipe("bert@tiny", ["training.batch_size=8", "corpus.sequence_length=32", *changes])


def names(changes, step: int, used: float) -> list[str]:
    return [o.name for o in active_objectives(build_objectives(recipe_of(*changes)), step, used)]


def test_a_stage_begins_and_ends_at_its_fraction_of_the_budget():
    assert [names(TWO_STAGES, 7, used) for used in (0.0, 0.499, 0.5, 0.999)] == [["masked_lm"]] * 2 + [["words"]] * 2
    both = [*TWO_STAGES, "objective.words.start_fraction=0.25", "objective.words.start_step=100"]
    assert names(both, 99, 0.3) == ["masked_lm"] and names(both, 100, 0.3) == ["masked_lm", "words"]
    assert names(both, 100, 0.2) == ["masked_lm"] and names(both, 100, 0.5) == ["words"]


def test_gaps_between_stages_are_filled_by_the_stage_before():
    gap = [*TWO_STAGES, "objective.words.start_fraction=0.7", "objective.words.end_fraction=0.9"]
    result = [names(gap, 0, used) for used in (0.4, 0.6, 0.8, 0.95)]
    assert result == [["masked_lm"], ["masked_lm"], ["words"], ["words"]]


@pytest.fixture
def make(corpus_folder):
    loaders: list[PretrainLoader] = []

    def build(*changes: str) -> PretrainLoader:
        recipe = recipe_of(*changes)
        loaders.append(PretrainLoader(recipe, Corpus.open(corpus_folder), build_objectives(recipe), 0))
        return loaders[-1]

    yield build
    for loader in loaders:
        loader.close()


def batch_contents(prepared) -> list:
    stream = prepared.batch.streams["encoder"]
    return [[o.name for o in prepared.objectives], stream.input_ids.tolist(), prepared.cursors]


@pytest.mark.parametrize("changes", [
    TWO_STAGES, [*TWO_STAGES, "objective.words.start_fraction=0.3"],
    [*TWO_STAGES, "objective.words.packing=full_sentences", "objective.words.start_fraction=0.2"]])
def test_rows_prefetched_for_a_finished_stage_are_put_back(make, changes):
    """The fraction of the budget that a step uses is known only after it, so a stage may end after a batch was
    prefetched. The next batch is then the one that a run resumed at this step gets."""
    used = [0.05 * step for step in range(20)]
    uninterrupted = make(*changes)
    batches = [batch_contents(uninterrupted.get_batch(step, 32, used[step])) for step in range(20)]
    assert {name for entry in batches for name in entry[0]} == {"masked_lm", "words"}
    for stop in range(1, 20):
        resumed = make(*changes)
        resumed.restore(batches[stop - 1][2])
        result = [batch_contents(resumed.get_batch(step, 32, used[step])) for step in range(stop, min(stop + 3, 20))]
        assert result == batches[stop:stop + 3]


def test_a_paused_objective_skips_no_rows(make):
    pausing = [*TWO_STAGES, "objective.words.start_fraction=0.3", "objective.words.end_fraction=0.6",
               "objective.masked_lm.end_fraction=1.0"]
    loader, alone = make(*pausing), make(*TWO_STAGES[:2])
    cursors = []
    for step in range(40):
        prepared = loader.get_batch(step, 32, step / 40)
        if prepared.objectives[0].name == "masked_lm":
            cursors.append(prepared.cursors["0:32"])
    expected = [alone.get_batch(step, 32, 0.0).cursors["0:32"] for step in range(len(cursors))]
    assert 20 < len(cursors) < 40 and cursors == expected


def test_a_budget_that_ends_before_a_task_starts_is_refused():
    late = recipe_of("objective.next_sentence.start_step=500")
    with pytest.raises(UserError) as caught:
        check_curriculum(late, Budget("steps", 500))
    assert caught.value.problems == [("objective.next_sentence.start_step = 500", "the last step is number 499")]
    assert "500 steps" in caught.value.message
    check_curriculum(late, Budget("steps", 501))
    check_curriculum(late, Budget("minutes", 0.1))
    with pytest.raises(UserError, match="about 101 steps"):
        check_curriculum(late, Budget("tokens", 8 * 32 * 100))
    check_curriculum(late, Budget("tokens", 8 * 32 * 501))


@pytest.mark.parametrize(("starts", "stops", "steps", "trained"), [
    (0.5, 0.6, 10, True), (0.5, 0.6, 3, False), (0.5, 0.6, 2, True), (0.95, 1.0, 10, False), (0.9, 1.0, 10, True),
    (0.34, 0.35, 3, False), (0.33, 0.34, 100, True), (0.0, 0.01, 1, True)])
def test_a_stage_that_contains_no_step_is_refused(starts, stops, steps, trained):
    resolved = recipe_of(f"objective.next_sentence.start_fraction={starts}",
                         f"objective.next_sentence.end_fraction={stops}")
    active = any("next_sentence" in [o.name for o in active_objectives(build_objectives(resolved), step, step / steps)]
                 for step in range(steps))
    assert active is trained
    if trained:
        check_curriculum(resolved, Budget("steps", steps))
    else:
        with pytest.raises(UserError) as caught:
            check_curriculum(resolved, Budget("steps", steps))
        assert caught.value.problems[0][0] == f"objective.next_sentence.start_fraction = {starts:g}"


def test_a_refused_curriculum_leaves_no_files(tmp_path, corpus_folder):
    with pytest.raises(UserError, match="without some tasks"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=5,
                 changes=[*SMALL, "objective.next_sentence.start_step=5"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("amount", [{"steps": 20}, {"tokens": 4000}])
def test_validation_covers_objectives_that_have_started(tmp_path, corpus_folder, amount):
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", **amount,
                      changes=[*SMALL, *TWO_STAGES, "training.validate_every=2"])
    entries = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    trained: set[str] = set()
    validated = []
    for entry in entries:
        if "losses" in entry:
            trained |= set(entry["losses"])
        if "validation_losses" in entry:
            validated.append(set(entry["validation_losses"]))
            assert validated[-1] == set(entry["baselines"]) == trained
    assert validated[0] == {"masked_lm"} and validated[-1] == {"masked_lm", "words"} == set(result["validation_losses"])
    trained_by = ["masked_lm" if "masked_lm" in entry["losses"] else "words" for entry in entries if "losses" in entry]
    assert trained_by == sorted(trained_by) and 5 <= trained_by.count("words") <= len(trained_by) - 5


def test_each_task_has_its_own_mean_loss_for_spike_detection(tmp_path, corpus_folder):
    """Alternating between tasks with high and low losses is not a loss spike."""
    changes = [*SMALL, "objective.masked_lm.packing=full_sentences", "objective.next_sentence.sampling_weight=12.0",
               "training.spike_factor=3.0", "training.checkpoint_every=1000", "training.validate_every=1000"]
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=160, changes=changes, seed=SEED)
    assert result["steps"] == 160
    entries = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    losses = [entry for entry in entries if "losses" in entry]
    only_pairs = [entry for entry in losses if set(entry["losses"]) == {"next_sentence"}]
    assert np.mean([entry["losses"]["next_sentence"] for entry in only_pairs]) < 1.5
    assert all(entry["loss"] is None for entry in only_pairs), "the reported loss is that of token objectives only"
    assert result["loss"] == [entry["loss"] for entry in losses if entry["loss"] is not None][-1] > 2

"""Stages of a curriculum: who is trained when, whatever the budget counts, and to the same bytes after a stop."""

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
TURN = ["remove=objective.next_sentence", "objective.masked_lm.dynamic=true", "objective.masked_lm.stops=0.5", *WORDS,
        "objective.words.starts=0.5"]
SMALL = ["network.width=32", "network.heads=2", "network.feedforward=64", "corpus.sequence_length=32",
         "training.batch_size=8", "training.warmup_steps=2", "training.log_every=1"]


def recipe_of(*changes: str):
    return recipe_loading.recipe("bert@tiny", ["training.batch_size=8", "corpus.sequence_length=32", *changes])


def names(changes, step: int, used: float) -> list[str]:
    return [o.name for o in active_objectives(build_objectives(recipe_of(*changes)), step, used)]


def test_a_stage_begins_and_ends_at_its_fraction_of_the_budget():
    assert [names(TURN, 7, used) for used in (0.0, 0.499, 0.5, 0.999)] == [["masked_lm"]] * 2 + [["words"]] * 2
    both = [*TURN, "objective.words.starts=0.25", "objective.words.start_step=100"]
    assert names(both, 99, 0.3) == ["masked_lm"] and names(both, 100, 0.3) == ["masked_lm", "words"]
    assert names(both, 100, 0.2) == ["masked_lm"] and names(both, 100, 0.5) == ["words"]


def test_no_moment_is_without_a_task():
    gap = [*TURN, "objective.words.starts=0.7", "objective.words.stops=0.9"]
    found = [names(gap, 0, used) for used in (0.4, 0.6, 0.8, 0.95)]
    assert found == [["masked_lm"], ["masked_lm"], ["words"], ["words"]]


@pytest.fixture
def make(corpus_folder):
    made: list[PretrainLoader] = []

    def build(*changes: str) -> PretrainLoader:
        recipe = recipe_of(*changes)
        made.append(PretrainLoader(recipe, Corpus.open(corpus_folder), build_objectives(recipe), 0))
        return made[-1]

    yield build
    for supply in made:
        supply.close()


def told(prepared) -> list:
    stream = prepared.batch.streams["encoder"]
    return [[o.name for o in prepared.objectives], stream.input_ids.tolist(), prepared.cursors]


@pytest.mark.parametrize("changes", [TURN, [*TURN, "objective.words.starts=0.3"],
                                     [*TURN, "objective.words.packing=full_sentences", "objective.words.starts=0.2"]])
def test_rows_prefetched_for_a_finished_stage_are_put_back(make, changes):
    """The share of the budget that a step uses is known only after it, so that stages change by surprise: what comes
    then is what a run would get that was resumed just there."""
    used = [0.05 * step for step in range(20)]
    straight = make(*changes)
    taken = [told(straight.get_batch(step, 32, used[step])) for step in range(20)]
    assert {name for entry in taken for name in entry[0]} == {"masked_lm", "words"}
    for stop in range(1, 20):
        again = make(*changes)
        again.restore(taken[stop - 1][2])
        found = [told(again.get_batch(step, 32, used[step])) for step in range(stop, min(stop + 3, 20))]
        assert found == taken[stop:stop + 3]


def test_every_row_of_a_sampler_comes_once_whatever_the_stages(make):
    """A task that waits while another one has its stage loses no row by it."""
    pausing = [*TURN, "objective.words.starts=0.3", "objective.words.stops=0.6", "objective.masked_lm.stops=1.0"]
    supply, alone = make(*pausing), make(*TURN[:2])
    seen = []
    for step in range(40):
        prepared = supply.get_batch(step, 32, step / 40)
        if prepared.objectives[0].name == "masked_lm":
            seen.append(prepared.cursors["0:32"])
    expected = [alone.get_batch(step, 32, 0.0).cursors["0:32"] for step in range(len(seen))]
    assert 20 < len(seen) < 40 and seen == expected


def test_a_schedule_that_never_starts_a_task_is_refused_with_its_figures():
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
def test_a_stage_between_two_steps_is_refused(starts, stops, steps, trained):
    chosen = recipe_of(f"objective.next_sentence.starts={starts}", f"objective.next_sentence.stops={stops}")
    active = any("next_sentence" in [o.name for o in active_objectives(build_objectives(chosen), step, step / steps)]
                 for step in range(steps))
    assert active is trained
    if trained:
        check_curriculum(chosen, Budget("steps", steps))
    else:
        with pytest.raises(UserError) as caught:
            check_curriculum(chosen, Budget("steps", steps))
        assert caught.value.problems[0][0] == f"objective.next_sentence.starts = {starts:g}"


def test_a_refused_schedule_leaves_nothing_behind(tmp_path, corpus_folder):
    with pytest.raises(UserError, match="without some tasks"):
        pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=5,
                 changes=[*SMALL, "objective.next_sentence.start_step=5"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("amount", [{"steps": 20}, {"tokens": 4000}])
def test_validation_covers_objectives_that_have_started(tmp_path, corpus_folder, amount):
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", **amount,
                      changes=[*SMALL, *TURN, "training.validate_every=2"])
    entries = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    trained: set[str] = set()
    looks = []
    for entry in entries:
        if "losses" in entry:
            trained |= set(entry["losses"])
        if "validation_losses" in entry:
            looks.append(set(entry["validation_losses"]))
            assert looks[-1] == set(entry["baselines"]) == trained
    assert looks[0] == {"masked_lm"} and looks[-1] == {"masked_lm", "words"} == set(result["validation_losses"])
    trained_by = ["masked_lm" if "masked_lm" in entry["losses"] else "words" for entry in entries if "losses" in entry]
    assert trained_by == sorted(trained_by) and 5 <= trained_by.count("words") <= len(trained_by) - 5


def test_a_task_among_others_has_a_mean_of_its_own(tmp_path, corpus_folder):
    """The losses of a hard task among easy ones are no jump."""
    changes = [*SMALL, "objective.masked_lm.packing=full_sentences", "objective.next_sentence.turns=12.0",
               "training.spike_factor=3.0", "training.checkpoint_every=1000", "training.validate_every=1000"]
    result = pretrain("bert@tiny", corpus_folder, tmp_path / "run", steps=160, changes=changes, seed=SEED)
    assert result["steps"] == 160
    entries = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    losses = [entry for entry in entries if "losses" in entry]
    only_pairs = [entry for entry in losses if set(entry["losses"]) == {"next_sentence"}]
    assert np.mean([entry["losses"]["next_sentence"] for entry in only_pairs]) < 1.5
    assert all(entry["loss"] is None for entry in only_pairs), "the loss that people compare is that of tokens"
    assert result["loss"] == [entry["loss"] for entry in losses if entry["loss"] is not None][-1] > 2

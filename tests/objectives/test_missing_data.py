"""Objectives without data in the corpus are switched off by name, and others take over their stages."""

import json

import pytest
from commands import stemma
from conftest import small_text
from small_corpora import corpus_of

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.objectives import check_requirements, drop_unsupported
from stemma.objectives.missing_data import drop_objectives

STAGES = {name: {"starts": starts, "stops": stops} for name, starts, stops in
          (("one", 0.0, 0.25), ("two", 0.25, 0.5), ("three", 0.5, 1.0))}


def recipe_with_stages(**more: str):
    """Three consecutive masked language models, and next-sentence prediction."""
    changes = ["remove=objective.masked_lm"]
    for name, stage in STAGES.items():
        table = {"kind": "masked_lm", "rate": 0.15, "unit": "token", "dynamic": "true", **stage}
        changes += [f"objective.{name}.{key}={value}" for key, value in table.items()]
    return recipe_loading.recipe("bert@tiny", changes)


def stages_of(recipe) -> dict[str, tuple[float, float]]:
    return {name: (task.start_fraction, task.end_fraction) for name, task in recipe.settings.objective.items()
            if task.kind == "masked_lm"}


@pytest.mark.parametrize(("dropped", "expected"), [
    (["two"], {"one": (0.0, 0.5), "three": (0.5, 1.0)}),
    (["two", "three"], {"one": (0.0, 1.0)}),
    (["three"], {"one": (0.0, 0.25), "two": (0.25, 1.0)}),
    (["one"], {"two": (0.0, 0.5), "three": (0.5, 1.0)}),
    (["one", "two"], {"three": (0.0, 1.0)}),
    (["one", "three"], {"two": (0.0, 1.0)}),
])
def test_the_previous_stage_takes_over_or_the_next_one_starts_earlier(dropped, expected):
    for order in (dropped, dropped[::-1]):
        remaining, messages = drop_objectives(recipe_with_stages(), dict.fromkeys(order, "it has nothing"))
        assert stages_of(remaining) == expected and "next_sentence" in remaining.settings.objective
        assert [text.split()[0] for text in messages] == [f"objective.{name}" for name in STAGES if name in dropped]
        extended = [name for name, stage in expected.items() if stage != tuple(STAGES[name].values())]
        assert all(any(f"objective.{name} takes over" in text for text in messages) for name in extended)
        assert sum(text.count("takes over") for text in messages) == len(dropped)
        origin = remaining.origin
        assert all("corpus" in (origin[f"objective.{name}.start_fraction"], origin[f"objective.{name}.end_fraction"])
                   for name in extended)


def test_dropping_an_objective_without_stages_changes_no_other():
    before = recipe_with_stages()
    remaining, messages = drop_objectives(before, {"next_sentence": "why"})
    assert stages_of(remaining) == stages_of(before) and messages == ["objective.next_sentence is switched off: why."]


def test_masks_of_a_dropped_objective_are_dropped_with_it():
    ernie = recipe_loading.recipe("ernie-2@tiny")
    remaining, messages = drop_objectives(ernie, {"discourse_relation": "none found"})
    dropped = ernie.settings.objective.keys() - remaining.settings.objective.keys()
    assert dropped == {"discourse_relation", "discourse_mask"}
    assert messages == [
        "objective.discourse_relation is switched off, and objective.discourse_mask with it: none found."]


def test_masks_with_the_same_task_id_are_dropped_independently():
    reasons = {"phrase_mask": "none", "entity_mask": "none"}
    remaining, _ = drop_objectives(recipe_loading.recipe("ernie-2@tiny"), reasons)
    assert stages_of(remaining)["masked_lm"] == (0.0, 1.0)


def test_ernie_on_plain_text_has_only_masked_lm(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    remaining, messages = drop_unsupported(recipe_loading.recipe("ernie@tiny"), corpus)
    assert stages_of(remaining) == {"masked_lm": (0.0, 1.0)} and len(remaining.settings.objective) == 1
    assert [text.split()[0] for text in messages] == [f"objective.{name}"
                                                      for name in recipe_loading.recipe("ernie@tiny").settings
                                                      .objective if name != "masked_lm"]
    assert any("--phrases mine" in text for text in messages) and any("--dialogue" in text for text in messages)
    assert drop_unsupported(remaining, corpus) == (remaining, [])
    bert = recipe_loading.recipe("bert@tiny")
    assert drop_unsupported(bert, corpus) == (bert, [])


@pytest.fixture(scope="module")
def single_sentences(tmp_path_factory, tokenizer_folder) -> Corpus:
    """A corpus of documents with one sentence each."""
    lines = [line for line in small_text(documents=12).splitlines() if line]
    return corpus_of(tmp_path_factory.mktemp("lines"), [[line] for line in lines], tokenizer_folder)


@pytest.mark.parametrize(("name", "dropped"), [
    ("bert@tiny", {"next_sentence"}), ("albert@tiny", {"sentence_order"}), ("structbert@tiny", {"sentence_order"}),
    ("ernie-2@tiny", {"sentence_distance", "sentence_reordering", "discourse_relation"})])
def test_sentence_objectives_are_switched_off_for_single_sentence_documents(single_sentences, name, dropped):
    recipe = recipe_loading.recipe(name)
    assert dropped <= recipe.settings.objective.keys()
    remaining, messages = drop_unsupported(recipe, single_sentences)
    assert not dropped & remaining.settings.objective.keys() and "masked_lm" in remaining.settings.objective
    for task in dropped:
        (line,) = [line for line in messages if line.startswith(f"objective.{task} is switched off")]
        assert "single sentence" in line and "--documents" in line and "--sentences split" in line
    check_requirements(remaining, single_sentences)


def test_a_recipe_with_only_an_unsupported_sentence_objective_is_refused(single_sentences):
    with pytest.raises(UserError) as caught:
        drop_unsupported(recipe_loading.recipe("bert@tiny", ["remove=objective.masked_lm"]), single_sentences)
    [(key, reason)] = caught.value.problems
    assert key == "objective.next_sentence" and "single sentence" in reason


def test_if_no_objective_is_left_all_reasons_are_given(corpus_folder):
    only = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence", "objective.masked_lm.unit=phrase"])
    with pytest.raises(UserError) as caught:
        drop_unsupported(only, Corpus.open(corpus_folder))
    [(key, reason)] = caught.value.problems
    assert key == "objective.masked_lm" and "annotate" in reason and "bert@tiny" in caught.value.message


def test_pretrain_and_inspect_report_dropped_objectives_and_the_run_stores_the_others(tmp_path, corpus_folder):
    arguments = ["ernie@tiny", "--corpus", corpus_folder, "network.width=32", "corpus.sequence_length=32",
                 "training.batch_size=4"]
    inspected = stemma("inspect", *arguments, "--json")
    assert inspected.code == 0 and "note: objective.phrase_mask is switched off" in inspected.err, inspected.err
    assert inspected.json["objectives"] == ["masked_lm"] and inspected.json["task"] is None
    completed = stemma("pretrain", *arguments, "--steps", 3, "--out", tmp_path / "run", "--json")
    assert completed.code == 0 and "note: objective.entity_mask is switched off" in completed.err, completed.err
    stored = recipe_loading.recipe(tmp_path / "run" / "recipe.toml")
    assert list(stored.settings.objective) == ["masked_lm"]
    assert stored.origin["objective.masked_lm.end_fraction"] == "corpus"
    assert json.loads((tmp_path / "run/model/config.json").read_text())["model_type"] == "ernie"


def test_inspect_shows_the_task_id_of_a_step(corpus_folder):
    """Relative to the recipe's number of steps, so later steps are in later stages."""
    arguments = ["ernie-2@tiny", "--corpus", corpus_folder, "network.width=32", "corpus.sequence_length=32",
                 "training.batch_size=2", "training.steps=20", "--json"]
    task_ids = {}
    for step in range(0, 20, 3):
        inspected = stemma("inspect", *arguments, "--step", step).json
        task_ids[step] = inspected["task"]
        assert all(recipe_loading.recipe("ernie-2").settings.objective[name].task_id == inspected["task"]
                   for name in inspected["objectives"])
    assert task_ids[0] == 0 and len(set(task_ids.values())) >= 3

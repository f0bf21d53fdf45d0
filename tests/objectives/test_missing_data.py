"""Tasks that a corpus has nothing for are switched off by name, and others take over their time."""

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


def staged(**more: str):
    """Three masked language models, one after another, beside next sentence prediction."""
    changes = ["remove=objective.masked_lm"]
    for name, stage in STAGES.items():
        table = {"kind": "masked_lm", "rate": 0.15, "unit": "token", "dynamic": "true", **stage}
        changes += [f"objective.{name}.{key}={value}" for key, value in table.items()]
    return recipe_loading.recipe("bert@tiny", changes)


def stages_of(recipe) -> dict[str, tuple[float, float]]:
    return {name: (task.starts, task.stops) for name, task in recipe.settings.objective.items()
            if task.kind == "masked_lm"}


@pytest.mark.parametrize(("gone", "expected"), [
    (["two"], {"one": (0.0, 0.5), "three": (0.5, 1.0)}),
    (["two", "three"], {"one": (0.0, 1.0)}),
    (["three"], {"one": (0.0, 0.25), "two": (0.25, 1.0)}),
    (["one"], {"two": (0.0, 0.5), "three": (0.5, 1.0)}),
    (["one", "two"], {"three": (0.0, 1.0)}),
    (["one", "three"], {"two": (0.0, 1.0)}),
])
def test_the_stage_before_takes_over_or_the_one_after_starts_earlier(gone, expected):
    for order in (gone, gone[::-1]):
        left, told = drop_objectives(staged(), dict.fromkeys(order, "it has nothing"))
        assert stages_of(left) == expected and "next_sentence" in left.settings.objective
        assert [text.split()[0] for text in told] == [f"objective.{name}" for name in STAGES if name in gone]
        heirs = [name for name, stage in expected.items() if stage != tuple(STAGES[name].values())]
        assert all(any(f"objective.{heir} takes over" in text for text in told) for heir in heirs)
        assert sum(text.count("takes over") for text in told) == len(gone)
        assert all("corpus" in (left.origin[f"objective.{heir}.starts"], left.origin[f"objective.{heir}.stops"])
                   for heir in heirs)


def test_a_task_without_stages_leaves_all_others_as_they_were():
    before = staged()
    left, told = drop_objectives(before, {"next_sentence": "why"})
    assert stages_of(left) == stages_of(before) and told == ["objective.next_sentence is switched off: why."]


def test_masks_that_go_along_with_a_task_go_with_it():
    ernie = recipe_loading.recipe("ernie-2@tiny")
    left, told = drop_objectives(ernie, {"discourse_relation": "none found"})
    assert ernie.settings.objective.keys() - left.settings.objective.keys() == {"discourse_relation", "discourse_mask"}
    assert told == ["objective.discourse_relation is switched off, and objective.discourse_mask with it: none found."]


def test_masks_of_the_same_vector_are_no_companions_of_each_other():
    left, _ = drop_objectives(recipe_loading.recipe("ernie-2@tiny"), {"phrase_mask": "none", "entity_mask": "none"})
    assert stages_of(left)["masked_lm"] == (0.0, 1.0)


def test_ernie_on_plain_text_is_masks_alone(corpus_folder):
    corpus = Corpus.open(corpus_folder)
    left, told = drop_unsupported(recipe_loading.recipe("ernie@tiny"), corpus)
    assert stages_of(left) == {"masked_lm": (0.0, 1.0)} and len(left.settings.objective) == 1
    assert [text.split()[0] for text in told] == [f"objective.{name}"
                                                  for name in recipe_loading.recipe("ernie@tiny").settings
                                                  .objective if name != "masked_lm"]
    assert any("--phrases mine" in text for text in told) and any("--dialogue" in text for text in told)
    assert drop_unsupported(left, corpus) == (left, [])
    bert = recipe_loading.recipe("bert@tiny")
    assert drop_unsupported(bert, corpus) == (bert, [])


@pytest.fixture(scope="module")
def single_sentences(tmp_path_factory, tokenizer_folder) -> Corpus:
    """Documents of one sentence each, and long enough that none of them fills a row."""
    lines = [line for line in small_text(documents=12).splitlines() if line]
    return corpus_of(tmp_path_factory.mktemp("lines"), [[line] for line in lines], tokenizer_folder)


@pytest.mark.parametrize(("name", "gone"), [
    ("bert@tiny", {"next_sentence"}), ("albert@tiny", {"sentence_order"}), ("structbert@tiny", {"sentence_order"}),
    ("ernie-2@tiny", {"sentence_distance", "sentence_reordering", "discourse_relation"})])
def test_tasks_about_neighbouring_sentences_are_switched_off_where_there_are_none(single_sentences, name, gone):
    recipe = recipe_loading.recipe(name)
    assert gone <= recipe.settings.objective.keys()
    left, told = drop_unsupported(recipe, single_sentences)
    assert not gone & left.settings.objective.keys() and "masked_lm" in left.settings.objective
    for task in gone:
        (line,) = [line for line in told if line.startswith(f"objective.{task} is switched off")]
        assert "single sentence" in line and "--documents" in line and "--sentences split" in line
    check_requirements(left, single_sentences)


def test_a_sentence_task_alone_is_refused(single_sentences):
    with pytest.raises(UserError) as caught:
        drop_unsupported(recipe_loading.recipe("bert@tiny", ["remove=objective.masked_lm"]), single_sentences)
    [(place, why)] = caught.value.problems
    assert place == "objective.next_sentence" and "single sentence" in why


def test_if_no_objective_is_left_all_reasons_are_given(corpus_folder):
    only = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence", "objective.masked_lm.unit=phrase"])
    with pytest.raises(UserError) as caught:
        drop_unsupported(only, Corpus.open(corpus_folder))
    [(place, why)] = caught.value.problems
    assert place == "objective.masked_lm" and "annotate" in why and "bert@tiny" in caught.value.message


def test_pretrain_and_inspect_say_so_and_the_run_keeps_what_ran(tmp_path, corpus_folder):
    given = ["ernie@tiny", "--corpus", corpus_folder, "network.width=32", "corpus.sequence_length=32",
             "training.batch_size=4"]
    looked = stemma("inspect", *given, "--json")
    assert looked.code == 0 and "note: objective.phrase_mask is switched off" in looked.err, looked.err
    assert looked.json["objectives"] == ["masked_lm"] and looked.json["task"] is None
    ran = stemma("pretrain", *given, "--steps", 3, "--out", tmp_path / "run", "--json")
    assert ran.code == 0 and "note: objective.entity_mask is switched off" in ran.err, ran.err
    kept = recipe_loading.recipe(tmp_path / "run" / "recipe.toml")
    assert list(kept.settings.objective) == ["masked_lm"] and kept.origin["objective.masked_lm.stops"] == "corpus"
    assert json.loads((tmp_path / "run/model/config.json").read_text())["model_type"] == "ernie"


def test_inspect_shows_the_task_of_a_step(corpus_folder):
    """By the recipe's own number of steps: a later step is in a later stage."""
    given = ["ernie-2@tiny", "--corpus", corpus_folder, "network.width=32", "corpus.sequence_length=32",
             "training.batch_size=2", "training.steps=20", "--json"]
    seen = {}
    for step in range(0, 20, 3):
        looked = stemma("inspect", *given, "--step", step).json
        seen[step] = looked["task"]
        assert all(recipe_loading.recipe("ernie-2").settings.objective[name].task_id == looked["task"]
                   for name in looked["objectives"])
    assert seen[0] == 0 and len(set(seen.values())) >= 3

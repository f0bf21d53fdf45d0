"""The plan of a pipeline: parents of stages, and all problems in one error."""

from __future__ import annotations

import pytest
from toy_pipeline import four_stages, write_data, write_plan

from stemma.errors import UserError
from stemma.tasks.pipeline.provenance import StageDigests
from stemma.tasks.pipeline.read_plan import read_pipeline_plan
from stemma.tasks.pipeline.stage_recipes import continued_pretraining_recipe, stage_recipes


@pytest.fixture
def folder(tmp_path):
    write_data(tmp_path)
    return tmp_path


def problems(folder, stages, **header) -> dict[str, str]:
    with pytest.raises(UserError) as caught:
        read_pipeline_plan(write_plan(folder, stages, **header))
    assert str(len(caught.value.problems)) in caught.value.message
    return dict(caught.value.problems)


def test_each_stage_starts_from_the_one_above_it(folder):
    plan = read_pipeline_plan(write_plan(folder, four_stages(), seed=3))
    assert [(name, stage.after, stage.kind, stage.seed) for name, stage in plan.stages.items()] == [
        ("general", None, "text", 3), ("domain", "general", "text", 3), ("task", "domain", "text", 3),
        ("finetune", "task", "task", 3)]
    assert [stage.name for stage in plan.ancestors("task")] == ["general", "domain", "task"]
    assert plan.stages["domain"].entry.corpus == [str(folder / "domain.txt")]


def test_after_overrides_the_order(folder):
    stages = four_stages()
    stages["plain"] = {**stages["finetune"], "after": "general"}
    stages = {"general": stages["general"], "finetune": {**stages["finetune"], "after": "task"},
              "task": {**stages["task"], "after": "domain"}, "domain": {**stages["domain"], "after": "general"},
              "plain": stages["plain"]}
    plan = read_pipeline_plan(write_plan(folder, stages))
    assert list(plan.stages) == ["general", "domain", "task", "finetune", "plain"]
    assert plan.stages["plain"].after == "general"


def test_a_stored_plan_is_the_same_plan(folder, tmp_path_factory):
    plan = read_pipeline_plan(write_plan(folder, four_stages(), ablate=True, seeds=2))
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "stored.toml"
    elsewhere.write_text(plan.to_toml())
    again = read_pipeline_plan(elsewhere)
    assert again.header == plan.header and list(again.stages) == list(plan.stages)
    assert StageDigests(again).output_digest == StageDigests(plan).output_digest


def test_changes_of_a_plan(folder, tmp_path, monkeypatch):
    """A changed path is relative to the working directory, a path of the plan to the plan."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.txt").write_text("Another text of the domain.\n")
    path = write_plan(folder, four_stages(), seed=3)
    old = read_pipeline_plan(path)
    plan = read_pipeline_plan(path, ["seed=5", "stages.domain.corpus=other.txt", "stages.domain.minutes=2"])
    assert plan.header.seed == 5 and plan.stages["domain"].entry.corpus == [str(tmp_path / "other.txt")]
    assert plan.stages["domain"].budget() == {"minutes": 2} != old.stages["domain"].budget()
    assert plan.stages["general"].entry == old.stages["general"].entry


def test_a_changed_stage_may_be_a_given_model(folder):
    plan = read_pipeline_plan(write_plan(folder, four_stages()), ["stages.general.model=some/model"])
    assert plan.stages["general"].kind == "model"
    assert plan.stages["general"].entry.model_fields_set == {"model"}


def test_wrong_changes_are_reported_together(folder):
    with pytest.raises(UserError, match="3 problems") as caught:
        read_pipeline_plan(write_plan(folder, four_stages()),
                           ["seed", "stages.domain.stepps=5", "stages.task.epochs=no"])
    assert [where.split(" = ")[0] for where, _ in caught.value.problems] == [
        "seed", "stages.domain.stepps", "stages.task.epochs"]


def test_an_unknown_plan(folder):
    with pytest.raises(UserError, match='there is no plan "ulmfitt". Did you mean "ulmfit"'):
        read_pipeline_plan("ulmfitt")


def test_a_cycle_is_rejected(folder):
    stages = four_stages()
    stages["domain"]["after"] = "task"
    assert "domain after task after domain" in problems(folder, stages)["stages.domain.after"]


def test_all_problems_are_reported_together(folder):
    stages = four_stages()
    stages["domain"] |= {"after": "generl", "tokens": 5, "stepz": 3, "replay": 1.5}
    stages["task"] |= {"texts_of": "domain", "train": "train.tsv"}
    stages["finetune"] |= {"task": "clasify", "dev": "gone.tsv", "replay": 0.1}
    del stages["finetune"]["train"]
    result = problems(folder, stages, seedz=3)
    assert 'Did you mean "seed"' in result["seedz = 3"] or 'Did you mean "seeds"' in result["seedz = 3"]
    assert 'no such key. Did you mean "steps"' in result["stages.domain.stepz = 3"]
    assert "must lie between 0 and 1" in result["stages.domain.replay = 1.5"]
    assert "does not belong in a stage that learns a task" in result["stages.task.texts_of"]
    assert {f"stages.finetune.{key}" for key in ("train", "dev", "task", "replay")} <= set(result)
    assert 'Did you mean "classify"' in result["stages.finetune.task"]
    del stages["domain"]["stepz"], stages["domain"]["replay"]
    result = problems(folder, stages)
    assert 'there is no stage "generl". Did you mean "general"?' in result["stages.domain.after"]
    assert "steps and tokens exclude each other" in result["stages.domain.tokens"]


@pytest.mark.parametrize("change, where, what", [
    ({"task": {"texts_of": "finetune"}}, "stages.task", "say how long to learn"),
    ({"more": {"corpus": "domain.txt", "steps": 2}}, "stages.more", "so no stage can start from it"),
    ({"general": {"corpus": "general.txt", "steps": 2}}, "stages.general.recipe", "says what to build"),
    ({"domain": {"corpus": "nowhere.txt", "steps": 2}}, "stages.domain.corpus", "nowhere.txt"),
    ({"task": {"texts_of": "domain", "steps": 2}}, "stages.task.texts_of", 'no stage "domain" that learns a task'),
    ({"task": {"steps": 2}}, "stages.task.corpus", "is missing"),
    ({"general": {"model": "somewhere", "steps": 2}}, "stages.general.steps", "does not belong in a model"),
    ({"a b": {"corpus": "domain.txt", "steps": 2, "after": "general"}}, "stages.a b", "is also a folder"),
    ({"domain": {"corpus": "-", "steps": 2}}, "stages.domain.corpus", "can be read only once"),
])
def test_each_problem_is_reported(folder, change, where, what):
    result = problems(folder, four_stages() | change)
    assert what in result[where]


def test_header_problems_are_reported(folder):
    stages = four_stages()
    del stages["finetune"], stages["task"]
    assert "add a stage that learns one" in problems(folder, stages, ablate=True)["ablate"]
    assert "is for `ablate = true`" in problems(folder, stages, seeds=3)["seeds"]
    assert "a table [stages.NAME]" in problems(folder, {})["stages"]
    model_stages = {"given": {"model": "some/model"}, "domain": {"corpus": "domain.txt", "steps": 2, "replay": 0.1}}
    assert "name it with `general`" in problems(folder, model_stages)["stages.domain.replay"]


def test_recipes_are_built_before_training(folder):
    stages = four_stages()
    stages["task"]["changes"] = ["training.learning_rate=1e-3", "corpus.sequence_length=24"]
    result = stage_recipes(read_pipeline_plan(write_plan(folder, stages)))
    assert "next_sentence" in result["general"].settings.objective
    assert list(result["domain"].settings.objective) == ["masked_lm"]  # a text by itself has no next sentence
    assert result["domain"].settings.corpus.packing == "full_sentences"
    assert result["domain"].settings.training.learning_rate < result["general"].settings.training.learning_rate
    assert result["task"].settings.corpus.sequence_length == 24
    stages["task"]["changes"] = ["network.heads=7"]
    stages["domain"]["changes"] = ["objective.masked_lm.rate=2"]
    with pytest.raises(UserError) as caught:
        stage_recipes(read_pipeline_plan(write_plan(folder, stages)))
    assert any("rate" in where for where, _ in caught.value.problems)
    del stages["domain"]["changes"]
    stages["general"] |= {"recipe": "transformer@tiny", "changes": []}
    with pytest.raises(UserError, match="cannot be built") as caught:
        stage_recipes(read_pipeline_plan(write_plan(folder, stages)))
    assert "reads pairs" in dict(caught.value.problems)["stages.general"]


def test_a_causal_recipe_keeps_its_objective():
    from stemma.recipe_loading import recipe

    gpt2 = recipe("gpt2@tiny")
    assert list(continued_pretraining_recipe(gpt2).settings.objective) == list(gpt2.settings.objective)
    assert continued_pretraining_recipe(gpt2).settings.corpus.packing == gpt2.settings.corpus.packing
    assert continued_pretraining_recipe(gpt2, 1000).settings.training.warmup_steps == 2  # GPT's 0.2%
    assert continued_pretraining_recipe(recipe("bert@tiny"), 50).settings.training.warmup_steps == 5


def test_digests_change_with_the_inputs_and_only_downstream(folder):
    def numbers(**changes):
        stages = {name: table | changes.get(name, {}) for name, table in four_stages().items()}
        return StageDigests(read_pipeline_plan(write_plan(folder, stages))).output_digest

    before = numbers()
    assert numbers() == before

    def changed(**changes):
        return [name for name, value in numbers(**changes).items() if value != before[name]]

    assert changed(domain={"steps": 9}) == ["domain", "task", "finetune"]
    assert changed(finetune={"seed": 4}) == ["finetune"]
    assert changed(task={"replay": 0.2}) == ["task", "finetune"]
    (folder / "train.tsv").write_text((folder / "train.tsv").read_text().replace("lamp", "light"))
    assert changed() == ["task", "finetune"]  # its texts are read by one, its labels by the other
    before = numbers()
    (folder / "dev.tsv").write_text((folder / "dev.tsv").read_text().replace("lamp", "light"))
    assert changed() == ["finetune"]


def test_a_digest_depends_on_the_values_of_a_recipe_and_not_on_its_summary(folder):
    def digests(text):
        (folder / "own.toml").write_text(text)
        stages = four_stages()
        stages["general"]["recipe"] = f"{folder / 'own.toml'}@tiny"
        return StageDigests(read_pipeline_plan(write_plan(folder, stages))).output_digest

    text = 'parent = "bert"\nsummary = "{}"\n[training]\nclip_norm = {}\n'
    first = digests(text.format("one", 0.2))
    assert digests(text.format("another", 0.2)) == first
    assert digests(text.format("one", 0.3))["general"] != first["general"]


def test_interpolation_changes_the_output_digest_but_not_the_run_digest(folder):
    stages = four_stages()
    plain = StageDigests(read_pipeline_plan(write_plan(folder, stages)))
    stages["domain"]["interpolate"] = [0.5, 1.0]
    mixed = StageDigests(read_pipeline_plan(write_plan(folder, stages)))
    assert mixed.run_digest["domain"] == plain.run_digest["domain"]
    assert mixed.output_digest["domain"] != plain.output_digest["domain"]
    assert mixed.run_digest["task"] != plain.run_digest["task"]


def test_no_stage_starts_from_a_table_of_counts(folder):
    stages = four_stages()
    stages["general"] = {**stages["general"], "recipe": "ngram@tiny", "changes": []}
    stages["finetune"]["after"] = "general"
    with pytest.raises(UserError, match="cannot be built") as caught:
        stage_recipes(read_pipeline_plan(write_plan(folder, stages)))
    message = "ngram@tiny is a table of counts, which has no weights, so no stage can start from it"
    assert [name for name, _ in caught.value.problems] == ["stages.domain", "stages.finetune"]
    assert all(problem.startswith(message) for _, problem in caught.value.problems)

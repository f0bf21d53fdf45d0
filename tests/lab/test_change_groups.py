"""Groups of changes between two recipes that can be applied alone, and the ablation variants made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from stemma.errors import UserError
from stemma.lab import change_groups
from stemma.lab.ablation import ablation_variants, no_effect_reason
from stemma.lab.change_groups import ChangeGroup, apply_changes, atomic_changes, recipe_changes, regroup, revert_changes
from stemma.lab.report.run_html import command_line_changes
from stemma.recipe_loading import RecipeChange, list_recipes, recipe

CHILDREN = [(info.parent, info.name) for info in list_recipes() if info.parent]


def between(parent: str, child: str, size: str | None = "tiny") -> list[ChangeGroup]:
    return atomic_changes(recipe(parent, size=size), recipe(child, size=size))


def contents(groups: list[ChangeGroup]) -> dict[str, set[str]]:
    return {group.name: {change.key for change in group.changes} for group in groups}


def group_named(groups: list[ChangeGroup], name: str) -> ChangeGroup:
    return next(group for group in groups if group.name == name)


def all_changes(groups: list[ChangeGroup]) -> ChangeGroup:
    return ChangeGroup("everything", tuple(change for group in groups for change in group.changes))


def mine(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# --- automatic grouping


@pytest.mark.parametrize(("parent", "child"), CHILDREN)
def test_applying_all_changes_gives_the_child_and_reverting_them_the_parent(parent, child):
    before, after = recipe(parent, size="tiny"), recipe(child, size="tiny")
    groups = atomic_changes(before, after)
    assert apply_changes(before, all_changes(groups)).values == after.values
    assert revert_changes(after, all_changes(groups)).values == before.values
    keys = [change.key for group in groups for change in group.changes]
    assert sorted(keys) == sorted(change.key for change in recipe_changes(before.values, after.values))
    assert len({group.name for group in groups}) == len(groups)


@pytest.mark.parametrize(("parent", "child"), [*CHILDREN, ("bert", "xlnet"), ("bert", "bart"), ("gpt", "bert")])
def test_all_changes_apply_and_revert_at_published_sizes(parent, child):
    before, after = recipe(parent), recipe(child)
    group = ChangeGroup("everything", tuple(recipe_changes(before.values, after.values)))
    assert apply_changes(before, group).values == after.values
    assert revert_changes(after, group).values == before.values


def test_change_groups_of_roberta():
    assert contents(between("bert", "roberta")) == {
        "tokenizer": {"tokenizer.kind", "tokenizer.vocab_size", "tokenizer.lowercase"},
        "corpus.packing": {"corpus.packing", "corpus.short_probability"},
        "network.embedding.segments": {"network.embedding.segments", "corpus.pair"},
        "corpus.first_phase": {"corpus.first_phase"},
        "network.position.offset": {"network.position.offset"},
        "network.position.numbering": {"network.position.numbering"},
        "network.norm.epsilon": {"network.norm.epsilon"},
        "network.initialization.distribution": {"network.initialization.distribution"},
        "objective.next_sentence": {"objective.next_sentence"},
        "objective.masked_lm.dynamic": {"objective.masked_lm.dynamic"},
        "training.clip_norm": {"training.clip_norm"},
        "finetuning": {"finetuning.clip_norm", "finetuning.learning_rate", "finetuning.width", "finetuning.epochs",
                       "finetuning.warmup", "finetuning.optimizer.beta2", "finetuning.optimizer.weight_decay"}}
    # the tokenizer is one group, also if its kind does not change
    assert contents(between("bert", "spanbert"))["tokenizer"] == {"tokenizer.vocab_size", "tokenizer.lowercase"}


def test_a_sentence_objective_is_grouped_with_the_one_it_replaces_and_a_learning_rate_with_its_optimizer():
    groups = contents(between("bert", "albert"))
    assert groups["objective.sentence_order"] == {"objective.next_sentence", "objective.sentence_order"}
    published = contents(atomic_changes(recipe("bert"), recipe("albert")))
    assert published["training.optimizer"] >= {"training.optimizer.kind", "training.learning_rate"}
    assert "training.optimizer" not in groups  # laptop sizes have an optimizer of their own
    assert published["network.dropout"] == {"network.dropout", "network.attention.dropout"}
    assert groups["objective.masked_lm.unit"] == {"objective.masked_lm.unit", "objective.masked_lm.ngrams"}
    assert groups["objective.masked_lm.duplicates"] == {"objective.masked_lm.duplicates"}  # its masks stay static
    assert groups["network.sharing"] == {"network.sharing"}
    assert groups["network.embedding.width"] == {"network.embedding.width"}
    assert "objective.word_structure" in contents(between("bert", "structbert"))  # it replaces no objective


def test_a_part_of_the_network_is_grouped_with_the_objective_that_needs_it():
    electra = contents(between("bert", "electra"))
    assert electra["objective.replaced_token"] == {"objective.replaced_token", "network.generator"}
    assert electra["objective.masked_lm.mask"] == {"objective.masked_lm.mask", "objective.masked_lm.random"}
    for parent, replaced in (("transformer-xl", "causal_lm"), ("bert", "masked_lm")):
        assert contents(between(parent, "xlnet"))["objective.permutation_lm"] == {
            "objective.permutation_lm", f"objective.{replaced}", "network.embedding.query"}
    assert "objective.next_sentence" in contents(between("bert", "xlnet"))  # no objective replaces it


def test_stages_and_objectives_of_the_same_rows_are_one_group():
    ernie = contents(between("bert", "ernie"))
    assert ernie["objective.phrase_mask"] == {"objective.phrase_mask", "objective.entity_mask",
                                              "objective.masked_lm.end_fraction"}
    assert ernie["objective.dialogue_lm"] == {"objective.dialogue_lm", "objective.dialogue_mask"}
    after = contents(between("ernie", "ernie-2"))
    assert after["objective.dialogue_lm"] == {"objective.dialogue_lm", "objective.dialogue_mask"}
    assert after["objective.sentence_distance"] == {"objective.sentence_distance", "objective.distance_mask"}
    assert after["objective.capitalisation"] == {"objective.capitalisation"}
    assert after["network.embedding.tasks"] == {
        "network.embedding.tasks", *(f"objective.{name}_mask.task_id" for name in ("phrase", "entity")),
        "objective.masked_lm.task_id"}
    assert {"objective.sequence_to_sequence", "objective.left_to_right", "objective.right_to_left"} <= \
        contents(between("bert", "unilm")).keys()


def test_a_change_that_is_impossible_alone_joins_the_fewest_others():
    for child, task in (("t5", "span_corruption"), ("bart", "denoise"), ("mass", "masked_span_to_span")):
        groups = between("transformer", child)
        joined = group_named(groups, f"objective.{task} & corpus.packing")
        assert {change.key for change in joined.changes} == {"corpus.packing", "objective.translation",
                                                             f"objective.{task}"}
        assert apply_changes(recipe("transformer@tiny"), joined) and revert_changes(recipe(f"{child}@tiny"), joined)
    xl = contents(between("transformer", "transformer-xl"))
    assert xl["network.position & network.memory"] == {"network.position", "network.memory"}


def test_a_change_joins_two_groups_if_one_is_not_enough(tmp_path):
    base = mine(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentence"]\n[network.embedding]\ntasks = 1\n'
                          '[objective.masked_lm]\nscored = "second"\ntask_id = 0\n', "base.toml")
    # the old objective needs pairs and a task embedding, the new one running text; a decoder has no task embeddings
    child = mine(tmp_path, 'parent = "base.toml"\nremove = ["objective.masked_lm"]\n'
                           '[corpus]\npacking = "doc_sentences"\n[network]\ndecoder = { layers = 2 }\n'
                           'embedding = { tasks = 0 }\n[objective.denoise]\n[training]\nclip_norm = 2.0\n')
    before, after = recipe(base, size="tiny"), recipe(child, size="tiny")
    groups = atomic_changes(before, after)
    assert contents(groups) == {
        "objective.denoise & 2 more": {"corpus.packing", "objective.denoise", "objective.masked_lm", "network.decoder",
                                       "network.embedding.tasks"},
        "training.clip_norm": {"training.clip_norm"}}
    assert apply_changes(before, groups[0]) and revert_changes(after, groups[0])


def test_partners_valid_in_both_directions_are_preferred(monkeypatch):
    directions = {"network.norm.epsilon": 0, "corpus.first_phase & network.norm.epsilon": 1,
                 "network.norm.epsilon & training.clip_norm": 2}
    monkeypatch.setattr(change_groups, "_feasible_directions", lambda group, *_: directions.get(
        " & ".join(sorted(change.key for change in group.changes)), 0 if len(group.changes) > 1 else 1))
    groups = contents(between("bert", "roberta"))
    assert groups["network.norm.epsilon & training.clip_norm"] == {"network.norm.epsilon", "training.clip_norm"}
    assert "corpus.first_phase" in groups


def test_a_new_table_of_defaults_is_a_change(tmp_path):
    """`stemma diff` does not list a table with only default values."""
    child = recipe(mine(tmp_path, 'parent = "transformer"\n[corpus.mixture]\n'), size="tiny")
    parent = recipe("transformer@tiny")
    groups = atomic_changes(parent, child)
    assert groups == [ChangeGroup("corpus.mixture", (RecipeChange("corpus.mixture", None, {"temperature": 1.0}),))]
    assert apply_changes(parent, groups[0]).values == child.values
    _, details = ablation_variants("transformer", str(tmp_path / "mine.toml@tiny"), "tiny")
    assert details["groups"] == [{"name": "corpus.mixture", "keys": ["+ corpus.mixture"]}]


def test_a_change_of_kind_keeps_the_other_values_of_its_table():
    groups = regroup(between("transformer", "t5"), [], ["network.norm.placement"])
    assert contents(groups)["network.norm.kind"] == {"network.norm.kind"}
    changed = apply_changes(recipe("transformer@tiny"), group_named(groups, "network.norm.kind")).settings.network.norm
    assert (changed.kind, changed.placement, changed.epsilon) == ("scale", "post", 1e-6)
    reverted = revert_changes(recipe("t5@tiny"), group_named(groups, "network.norm.kind")).settings.network.norm
    assert (reverted.kind, reverted.placement) == ("layer", "pre")


# --- grouping by the user


def test_split_and_merge_groups():
    before = between("bert", "roberta")
    groups = contents(regroup(before, [["objective.next_sentence", "corpus.packing"]], ["tokenizer.lowercase"]))
    assert groups["objective.next_sentence & corpus.packing"] == {"objective.next_sentence", "corpus.packing",
                                                                 "corpus.short_probability"}
    assert groups["tokenizer.lowercase"] == {"tokenizer.lowercase"}
    assert groups["tokenizer"] == {"tokenizer.kind", "tokenizer.vocab_size"}
    assert list(groups)[:2] == ["tokenizer.lowercase", "tokenizer"]  # at the position of the old group
    assert len(groups) == len(before)


def test_splitting_a_group_gives_single_changes_and_splitting_again_changes_nothing():
    groups = contents(regroup(atomic_changes(recipe("bert"), recipe("albert")), [],
                              ["network.dropout", "network.attention.dropout", "network.sharing"]))
    assert groups["network.dropout"] == {"network.dropout"}
    assert groups["network.attention.dropout"] == {"network.attention.dropout"}
    assert groups["network.sharing"] == {"network.sharing"}
    assert {"tokenizer.kind", "tokenizer.vocab_size"} <= \
        contents(regroup(between("bert", "albert"), [], ["tokenizer"])).keys()


def test_a_table_stands_for_all_changes_in_it_and_three_changes_are_named_by_the_first():
    groups = contents(regroup(between("bert", "roberta"), [["network.position", "training.clip_norm"]], []))
    assert groups["network.position.offset & 2 more"] == {"network.position.offset", "network.position.numbering",
                                                         "training.clip_norm"}


def test_all_unknown_changes_are_reported_together():
    with pytest.raises(UserError) as caught:
        regroup(between("bert", "albert"), [["network.sharin", "tokenizer"], ["network.sharing"]],
                ["objective.sentence_order.swapped", "training.batch_size"], {"training.batch_size": "both have 16"})
    problems = dict(caught.value.problems)
    assert problems["network.sharin"] == 'is no change between the two. Did you mean "network.sharing"?'
    assert problems["training.batch_size"] == "is in no group: both have 16"
    assert ("cannot be separated from the rest of objective.sentence_order"
            in problems["objective.sentence_order.swapped"])
    assert "two changes or more" in problems["network.sharing"]


# --- variants


@pytest.mark.parametrize(("parent", "child"), [("bert", "roberta"), ("bert", "albert"), ("transformer-xl", "xlnet"),
                                               ("bert", "electra")])
def test_a_variant_differs_from_its_base_by_one_group_and_has_a_command(parent, child):
    variants, details = ablation_variants(parent, child, "tiny")
    before, after = recipe(parent, size="tiny"), recipe(child, size="tiny")
    groups = contents(atomic_changes(before, after, [entry["key"] for entry in details["hidden"]]))
    assert [(variant.name, variant.role, variant.change) for variant in variants[:2]] == \
        [(f"{parent}@tiny", "parent", None), (f"{child}@tiny", "child", None)]
    assert [entry["name"] for entry in details["groups"]] == list(groups)
    for variant in variants[2:]:
        base, sign = (before, "+") if variant.role == "plus" else (after, "-")
        assert variant.name == f"{base.label} {sign} {variant.change}"
        assert {change.key for change in recipe_changes(base.values, variant.recipe.values)} == groups[variant.change]
        assert recipe(base.label, command_line_changes(variant.recipe)).values == variant.recipe.values
    reported = {variant.name for variant in variants} | {entry["variant"] for entry in details["impossible"]}
    assert len(reported) == len(variants) + len(details["impossible"]) == 2 + 2 * len(groups)


def test_the_command_of_a_run_has_its_actual_vocabulary_size_if_a_larger_one_was_requested():
    """A run's recipe has the actual vocabulary size; without the override the default of the recipe would be used."""
    requested = recipe("bert@tiny", ["tokenizer.kind=byte_bpe", "tokenizer.vocab_size=50265"])
    assert "tokenizer.vocab_size=31755" in command_line_changes(requested.with_changes(
        {"tokenizer.vocab_size": 31755}, "corpus"))
    default = recipe("bert@tiny", []).with_changes({"tokenizer.vocab_size": 25639}, "corpus")
    assert command_line_changes(default) == []


def test_a_change_valid_in_one_direction_has_a_reason_for_the_other():
    variants, details = ablation_variants("bert", "roberta", "tiny")
    variant_names = {variant.name for variant in variants}
    reasons = {entry["variant"]: entry["why"] for entry in details["impossible"]}
    assert "bert@tiny + objective.next_sentence" in variant_names and "roberta@tiny - corpus.packing" in variant_names
    assert reasons["roberta@tiny - objective.next_sentence"].startswith(
        "objective.next_sentence: needs segment_pair or")
    assert reasons["bert@tiny + corpus.packing"].startswith("corpus.packing = full_sentences: objective.next_sentence ")
    assert reasons["roberta@tiny - network.embedding.segments"] == \
        "it would be roberta@tiny again: no row of pre-training has a text pair; no row has that many segments"
    assert len(reasons) == 3


def test_a_variant_without_an_objective_is_impossible(tmp_path):
    _, details = ablation_variants("transformer-xl", "xlnet", "tiny", split=["objective.causal_lm"])
    reasons = {entry["variant"]: entry["why"] for entry in details["impossible"]}
    assert reasons["transformer-xl@tiny + objective.causal_lm"] == "no task of transformer-xl@tiny is left to train"
    late = mine(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentence"]\n'
                          '[objective.masked_lm]\nstarts = 0.5\n[objective.span_boundary]\nstarts = 0.5\n')
    with pytest.raises(UserError, match="no task of mine@tiny starts at the first step"):
        ablation_variants("bert", late, "tiny")  # the child itself


def test_changes_are_excluded_by_size_budget_machine_or_lack_of_effect():
    _, details = ablation_variants("bert", "roberta", "tiny")
    assert {entry["key"]: entry["why"] for entry in details["hidden"]} == {
        "training.batch_size": "both have 16 at size tiny",
        "training.learning_rate": "both have 0.02 at size tiny",
        "training.warmup_steps": "both have 50 at size tiny",
        "training.optimizer.beta2": "both have 0.98 at size tiny",
        "training.steps": "the lab's budget decides",
        "tokenizer.vocab_size": "at this size the vocabulary follows from the amount of text",
        "corpus.first_phase": "rows of the first phase are not shorter than the others here",
        "network.position.offset": "it only decides which rows of the position embedding are unused",
        "network.position.numbering": "they differ only with padding on the left",
        "finetuning": "no task is fine-tuned here, and pre-training does not use it"}
    _, large = ablation_variants("bert", "roberta", "base")
    hidden = {entry["key"] for entry in large["hidden"]}
    assert hidden == {"training.steps", "network.position.offset", "network.position.numbering", "finetuning"}
    assert {"training.batch_size", "corpus.first_phase"} <= {entry["name"] for entry in large["groups"]}
    _, bert = ablation_variants("transformer", "bert", "tiny")
    assert {"key": "training.keep_checkpoints", "why": "has no effect on the model"} in bert["hidden"]
    assert "network.layers" not in {entry["key"] for entry in bert["hidden"]}  # the size was requested


def test_fine_tuning_settings_are_a_change_only_if_there_is_a_task():
    without, _ = ablation_variants("bert", "roberta", "tiny")
    assert not [variant for variant in without if variant.change and variant.change.startswith("finetuning")]
    variants, details = ablation_variants("bert", "roberta", "tiny", tasks=True)
    hidden = {entry["key"]: entry["why"] for entry in details["hidden"]}
    assert hidden["finetuning.epochs"] == "the lab's --epochs decides" and "finetuning" not in hidden
    bert, roberta = (recipe(f"{name}@tiny").values for name in ("bert", "roberta"))
    plus, minus = (variant.recipe.values for variant in variants if variant.change == "finetuning")
    for values, base, other in ((plus, bert, roberta), (minus, roberta, bert)):
        assert {key: values[key] for key in values if key != "finetuning"} == {
            key: base[key] for key in base if key != "finetuning"}
        assert values["finetuning"] == {**other["finetuning"], "epochs": base["finetuning"]["epochs"]}


def test_a_common_corpus_excludes_the_tokenizer_and_shared_values_exclude_changes():
    variants, details = ablation_variants("bert", "roberta", "tiny", [
        "objective.masked_lm.dynamic=true", "network.layers=1"], own_corpus=False)
    hidden = {entry["key"]: entry["why"] for entry in details["hidden"]}
    assert hidden["tokenizer"] == "the corpus has its own tokenizer"
    assert hidden["objective.masked_lm.dynamic"] == "both have true, as you set it"
    assert not {"tokenizer", "objective.masked_lm.dynamic"} & {entry["name"] for entry in details["groups"]}
    assert all(variant.recipe.settings.network.layers == 1 for variant in variants)
    with pytest.raises(UserError) as caught:
        ablation_variants("bert", "roberta", "tiny", merge=[["tokenizer", "corpus.packing"]], own_corpus=False)
    assert dict(caught.value.problems) == {"tokenizer": "is in no group: the corpus has its own tokenizer"}


@pytest.mark.parametrize(("overrides", "key", "no_effect"), [
    ([], "objective.masked_lm.duplicates", False), (["objective.masked_lm.dynamic=true"],
                                                    "objective.masked_lm.duplicates", True),
    ([], "objective.masked_lm.ngrams", True), (["objective.masked_lm.unit=word_ngram"],
                                               "objective.masked_lm.ngrams", False),
    ([], "corpus.short_probability", False), (["corpus.packing=stream", "remove=objective.next_sentence"],
                                              "corpus.short_probability", True),
    ([], "network.embedding.query", True), ([], "network.embedding.segments", True),
    ([], "network.attention.head_width", True), (["network.heads=4"], "network.attention.head_width", False),
    ([], "corpus.first_phase.fraction", True), (["corpus.sequence_length=256"], "corpus.first_phase.fraction", False)])
def test_changes_without_an_effect_are_detected(overrides, key, no_effect):
    values = {"objective.masked_lm.duplicates": 3, "objective.masked_lm.ngrams": [1.0], "network.embedding.query": True,
              "corpus.short_probability": 0.5, "network.embedding.segments": 5, "network.attention.head_width": 64,
              "corpus.first_phase.fraction": 0.4}
    before = recipe("bert@tiny", overrides)
    after = before.with_changes({key: values[key]}, "test")
    change = recipe_changes(before.values, after.values)[0]
    assert change.key == key
    assert (no_effect_reason(change, before, after) is not None) is no_effect


def test_the_default_parent_is_that_of_the_child_at_the_same_size(tmp_path):
    variants, _ = ablation_variants(None, "roberta@mini", None)
    assert [variant.name for variant in variants[:2]] == ["bert@mini", "roberta@mini"]
    assert [variant.name for variant in ablation_variants("bert@tiny", "roberta@mini", None)[0][:2]] == ["bert@tiny",
                                                                                                 "roberta@mini"]
    assert [variant.name for variant in ablation_variants(None, "gpt2", None)[0][:2]] == ["gpt@base", "gpt2@small"]
    mine(tmp_path, 'parent = "bert"\n[network]\nactivation = "relu"\n', "first.toml")
    mine(tmp_path, 'parent = "first.toml"\n[network]\nactivation = "silu"\n', "second.toml")
    variants, details = ablation_variants(None, f"{tmp_path}/second.toml", "tiny")
    assert [variant.name for variant in variants] == ["first@tiny", "second@tiny", "first@tiny + network.activation",
                                              "second@tiny - network.activation"]
    assert details["groups"] == [{"name": "network.activation", "keys": ["~ network.activation relu -> silu"]}]


def test_recipes_without_a_difference_or_a_parent_are_rejected():
    with pytest.raises(UserError, match="do not differ in anything that can be measured here") as caught:
        ablation_variants(None, "bert-wwm-ext", "tiny")
    assert dict(caught.value.problems)["training.steps"] == "the lab's budget decides"
    with pytest.raises(UserError, match="--against"):
        ablation_variants(None, "transformer", "tiny")


@pytest.mark.parametrize(("parent", "child", "size"), [(None, "two-sided-ngram", None), ("gpt2", "ngram", "tiny")])
def test_a_counting_method_changes_together_with_its_body_and_its_objective(parent, child, size):
    """The method counts in the tables of its own body, for its own objective."""
    variants, details = ablation_variants(parent, child, size)
    for variant in variants:
        settings = variant.recipe.settings
        method = settings.training.method_settings
        assert settings.network.depth.kind == getattr(method, "body", "stacked"), variant.name
        assert all(method.serves(task) for task in settings.objective.values() if hasattr(method, "serves"))
    keys = next(keys for group in details["groups"] if "training.method" in (keys := " ".join(group["keys"])))
    assert "network.depth" in keys


@pytest.mark.parametrize(("name", "change", "message"), [
    ("ngram@tiny", "training.method.kind=gradient_descent", "no weights that gradient descent could change"),
    ("gpt2@tiny", "network.depth.kind=ngram", "set training.method.kind too"),
    ("ngram@tiny", "objective.causal_lm.direction=backward", "its only objective is objective.causal_lm, forward"),
    ("two-sided-ngram", "objective.masked_lm.shifted=true", "and not shifted"),
    ("ngram@tiny", "remove=objective.causal_lm", "its only objective is objective.causal_lm")])
def test_a_counting_method_without_its_body_or_its_objective_is_refused(name, change, message):
    with pytest.raises(UserError) as caught:
        recipe(name, [change])
    assert message in str(caught.value)

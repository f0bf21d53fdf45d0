"""What changed between two recipes, in the smallest pieces that make sense, and the variants that come of them."""

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


def of(groups: list[ChangeGroup], name: str) -> ChangeGroup:
    return next(group for group in groups if group.name == name)


def everything(groups: list[ChangeGroup]) -> ChangeGroup:
    return ChangeGroup("everything", tuple(change for group in groups for change in group.changes))


def mine(folder: Path, text: str, name: str = "mine.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


# --- the rule


@pytest.mark.parametrize(("parent", "child"), CHILDREN)
def test_all_changes_together_make_the_child_and_taken_back_the_parent(parent, child):
    before, after = recipe(parent, size="tiny"), recipe(child, size="tiny")
    groups = atomic_changes(before, after)
    assert apply_changes(before, everything(groups)).values == after.values
    assert revert_changes(after, everything(groups)).values == before.values
    keys = [change.key for group in groups for change in group.changes]
    assert sorted(keys) == sorted(change.key for change in recipe_changes(before.values, after.values))
    assert len({group.name for group in groups}) == len(groups)


@pytest.mark.parametrize(("parent", "child"), [*CHILDREN, ("bert", "xlnet"), ("bert", "bart"), ("gpt", "bert")])
def test_the_same_at_published_sizes(parent, child):
    before, after = recipe(parent), recipe(child)
    whole = ChangeGroup("everything", tuple(recipe_changes(before.values, after.values)))
    assert apply_changes(before, whole).values == after.values
    assert revert_changes(after, whole).values == before.values


def test_roberta():
    assert contents(between("bert", "roberta")) == {
        "tokenizer": {"tokenizer.kind", "tokenizer.vocab_size", "tokenizer.lowercase"},
        "corpus.packing": {"corpus.packing", "corpus.short_probability"},
        "network.embedding.segments": {"network.embedding.segments", "corpus.pair"},
        "corpus.first_phase": {"corpus.first_phase"},
        "network.position.offset": {"network.position.offset"},
        "network.position.counts": {"network.position.counts"},
        "network.norm.epsilon": {"network.norm.epsilon"},
        "network.initialization.distribution": {"network.initialization.distribution"},
        "objective.next_sentence": {"objective.next_sentence"},
        "objective.masked_lm.dynamic": {"objective.masked_lm.dynamic"},
        "training.optimizer.beta2": {"training.optimizer.beta2"},
        "training.clip_norm": {"training.clip_norm"},
        "finetuning": {"finetuning.clip_norm", "finetuning.learning_rate", "finetuning.width", "finetuning.warmup",
                       "finetuning.optimizer.beta2", "finetuning.optimizer.weight_decay"}}
    # the tokenizer is one thing, also where its kind stays
    assert contents(between("bert", "spanbert"))["tokenizer"] == {"tokenizer.vocab_size", "tokenizer.lowercase"}


def test_a_sentence_task_takes_the_place_of_another_and_a_rate_goes_with_its_optimizer():
    found = contents(between("bert", "albert"))
    assert found["objective.sentence_order"] == {"objective.next_sentence", "objective.sentence_order"}
    assert found["training.optimizer"] == {"training.optimizer.kind", "training.learning_rate"}
    assert found["network.dropout"] == {"network.dropout", "network.attention.dropout"}
    assert found["objective.masked_lm.unit"] == {"objective.masked_lm.unit", "objective.masked_lm.ngrams"}
    assert found["objective.masked_lm.duplicates"] == {"objective.masked_lm.duplicates"}  # its masks stay static
    assert found["network.sharing"] == {"network.sharing"}
    assert found["network.embedding.width"] == {"network.embedding.width"}
    assert "objective.word_structure" in contents(between("bert", "structbert"))  # which replaces nothing


def test_a_part_of_the_network_goes_with_the_task_that_needs_it():
    electra = contents(between("bert", "electra"))
    assert electra["objective.replaced_token"] == {"objective.replaced_token", "network.generator"}
    assert electra["objective.masked_lm.mask"] == {"objective.masked_lm.mask", "objective.masked_lm.random"}
    for parent, replaced in (("transformer-xl", "causal_lm"), ("bert", "masked_lm")):
        assert contents(between(parent, "xlnet"))["objective.permutation_lm"] == {
            "objective.permutation_lm", f"objective.{replaced}", "network.embedding.query"}
    assert "objective.next_sentence" in contents(between("bert", "xlnet"))  # no task took its place


def test_stages_and_tasks_of_the_same_rows_are_one():
    ernie = contents(between("bert", "ernie"))
    assert ernie["objective.phrase_mask"] == {"objective.phrase_mask", "objective.entity_mask",
                                              "objective.masked_lm.stops"}
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


def test_what_is_impossible_both_ways_joins_the_fewest_others():
    for child, task in (("t5", "span_corruption"), ("bart", "denoise"), ("mass", "masked_span_to_span")):
        groups = between("transformer", child)
        joined = of(groups, f"objective.{task} & corpus.packing")
        assert {change.key for change in joined.changes} == {"corpus.packing", "objective.translation",
                                                             f"objective.{task}"}
        assert apply_changes(recipe("transformer@tiny"), joined) and revert_changes(recipe(f"{child}@tiny"), joined)
    xl = contents(between("transformer", "transformer-xl"))
    assert xl["network.position & network.memory"] == {"network.position", "network.memory"}


def test_two_partners_where_one_does_not_do(tmp_path):
    base = mine(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentence"]\n[network.embedding]\ntasks = 1\n'
                          '[objective.masked_lm]\nscored = "second"\ntask_id = 0\n', "base.toml")
    # the old task needs pairs and a task vector, the new one running text, and a decoder allows no task vectors
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
    open_ways = {"network.norm.epsilon": 0, "corpus.first_phase & network.norm.epsilon": 1,
                 "network.norm.epsilon & training.clip_norm": 2}
    monkeypatch.setattr(change_groups, "_feasible_directions", lambda group, *_: open_ways.get(
        " & ".join(sorted(change.key for change in group.changes)), 0 if len(group.changes) > 1 else 1))
    found = contents(between("bert", "roberta"))
    assert found["network.norm.epsilon & training.clip_norm"] == {"network.norm.epsilon", "training.clip_norm"}
    assert "corpus.first_phase" in found


def test_defaults_that_come_with_a_table_come_with_its_change(tmp_path):
    """`stemma diff` does not tell of a table that holds defaults only, and yet it is a change."""
    child = recipe(mine(tmp_path, 'parent = "transformer"\n[corpus.mixture]\n'), size="tiny")
    parent = recipe("transformer@tiny")
    groups = atomic_changes(parent, child)
    assert groups == [ChangeGroup("corpus.mixture", (RecipeChange("corpus.mixture", None, {"temperature": 1.0}),))]
    assert apply_changes(parent, groups[0]).values == child.values
    _, details = ablation_variants("transformer", str(tmp_path / "mine.toml@tiny"), "tiny")
    assert details["groups"] == [{"name": "corpus.mixture", "keys": ["+ corpus.mixture"]}]


def test_a_kind_alone_leaves_the_rest_of_its_table_as_it_was():
    groups = regroup(between("transformer", "t5"), [], ["network.norm.place"])
    assert contents(groups)["network.norm.kind"] == {"network.norm.kind"}
    changed = apply_changes(recipe("transformer@tiny"), of(groups, "network.norm.kind")).settings.network.norm
    assert (changed.kind, changed.place, changed.epsilon) == ("scale", "post", 1e-6)
    back = revert_changes(recipe("t5@tiny"), of(groups, "network.norm.kind")).settings.network.norm
    assert (back.kind, back.place) == ("layer", "pre")


# --- the user's own grouping


def test_split_and_merge_groups():
    groups = between("bert", "roberta")
    found = contents(regroup(groups, [["objective.next_sentence", "corpus.packing"]], ["tokenizer.lowercase"]))
    assert found["objective.next_sentence & corpus.packing"] == {"objective.next_sentence", "corpus.packing",
                                                                 "corpus.short_probability"}
    assert found["tokenizer.lowercase"] == {"tokenizer.lowercase"}
    assert found["tokenizer"] == {"tokenizer.kind", "tokenizer.vocab_size"}
    assert list(found)[:2] == ["tokenizer.lowercase", "tokenizer"]  # in the place of what they were
    assert len(found) == len(groups)


def test_splitting_a_whole_group_gives_single_changes_and_splitting_twice_changes_nothing():
    found = contents(regroup(between("bert", "albert"), [], ["network.dropout", "network.attention.dropout",
                                                             "network.sharing"]))
    assert found["network.dropout"] == {"network.dropout"}
    assert found["network.attention.dropout"] == {"network.attention.dropout"}
    assert found["network.sharing"] == {"network.sharing"}
    assert {"tokenizer.kind", "tokenizer.vocab_size"} <= \
        contents(regroup(between("bert", "albert"), [], ["tokenizer"])).keys()


def test_three_together_are_named_by_one_of_them_and_a_table_means_all_in_it():
    found = contents(regroup(between("bert", "roberta"), [["network.position", "training.clip_norm"]], []))
    assert found["network.position.offset & 2 more"] == {"network.position.offset", "network.position.counts",
                                                         "training.clip_norm"}


def test_all_unknown_changes_are_reported_at_once():
    with pytest.raises(UserError) as caught:
        regroup(between("bert", "albert"), [["network.sharin", "tokenizer"], ["network.sharing"]],
                ["objective.sentence_order.swapped", "training.batch_size"], {"training.batch_size": "both have 16"})
    told = dict(caught.value.problems)
    assert told["network.sharin"] == 'is no change between the two. Did you mean "network.sharing"?'
    assert told["training.batch_size"] == "is in no group: both have 16"
    assert "cannot be separated from the rest of objective.sentence_order" in told["objective.sentence_order.swapped"]
    assert "two changes or more" in told["network.sharing"]


# --- variants


@pytest.mark.parametrize(("parent", "child"), [("bert", "roberta"), ("bert", "albert"), ("transformer-xl", "xlnet"),
                                               ("bert", "electra")])
def test_a_variant_differs_from_its_base_by_its_group_alone_and_can_be_typed(parent, child):
    variants, details = ablation_variants(parent, child, "tiny")
    before, after = recipe(parent, size="tiny"), recipe(child, size="tiny")
    groups = contents(atomic_changes(before, after, [one["key"] for one in details["hidden"]]))
    assert [(one.name, one.role, one.change) for one in variants[:2]] == \
        [(f"{parent}@tiny", "parent", None), (f"{child}@tiny", "child", None)]
    assert [one["name"] for one in details["groups"]] == list(groups)
    for one in variants[2:]:
        base, sign = (before, "+") if one.role == "plus" else (after, "-")
        assert one.name == f"{base.label} {sign} {one.change}"
        assert {change.key for change in recipe_changes(base.values, one.recipe.values)} == groups[one.change]
        assert recipe(base.label, command_line_changes(one.recipe)).values == one.recipe.values
    told = {one.name for one in variants} | {one["variant"] for one in details["impossible"]}
    assert len(told) == len(variants) + len(details["impossible"]) == 2 + 2 * len(groups)


def test_a_vocabulary_larger_than_the_text_can_fill_is_asked_for_again():
    """A run's recipe says how many tokens there were; without a word, its recipe's own number would be taken."""
    asked = recipe("bert@tiny", ["tokenizer.kind=byte_bpe", "tokenizer.vocab_size=50265"])
    assert "tokenizer.vocab_size=31755" in command_line_changes(asked.with_changes({"tokenizer.vocab_size": 31755},
                                                                                   "corpus"))
    usual = recipe("bert@tiny", []).with_changes({"tokenizer.vocab_size": 25639}, "corpus")
    assert command_line_changes(usual) == []



def test_a_change_valid_in_one_direction_stays_alone_and_the_other_direction_has_a_reason():
    variants, details = ablation_variants("bert", "roberta", "tiny")
    made, why = {one.name for one in variants}, {one["variant"]: one["why"] for one in details["impossible"]}
    assert "bert@tiny + objective.next_sentence" in made and "roberta@tiny - corpus.packing" in made
    assert why["roberta@tiny - objective.next_sentence"].startswith("objective.next_sentence: needs segment_pair or")
    assert why["bert@tiny + corpus.packing"].startswith("corpus.packing = full_sentences: objective.next_sentence ")
    assert why["roberta@tiny - network.embedding.segments"] == \
        "it would be roberta@tiny again: no row of pre-training has a text pair; no row has that many segments"
    assert len(why) == 3


def test_nothing_to_train_is_a_reason_too(tmp_path):
    _, details = ablation_variants("transformer-xl", "xlnet", "tiny", split=["objective.causal_lm"])
    why = {one["variant"]: one["why"] for one in details["impossible"]}
    assert why["transformer-xl@tiny + objective.causal_lm"] == "no task of transformer-xl@tiny is left to train"
    late = mine(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentence"]\n'
                          '[objective.masked_lm]\nstarts = 0.5\n[objective.span_boundary]\nstarts = 0.5\n')
    with pytest.raises(UserError, match="no task of mine@tiny starts at the first step"):
        ablation_variants("bert", late, "tiny")  # the child itself


def test_changes_are_excluded_by_size_budget_machine_or_lack_of_effect():
    _, details = ablation_variants("bert", "roberta", "tiny")
    assert {one["key"]: one["why"] for one in details["hidden"]} == {
        "training.batch_size": "both have 16 at size tiny",
        "training.learning_rate": "both have 0.002 at size tiny",
        "training.warmup_steps": "both have 200 at size tiny",
        "training.steps": "the lab's budget decides",
        "corpus.first_phase": "rows of the first phase are not shorter than the others here",
        "network.position.offset": "it only decides which rows of the position embedding are unused",
        "network.position.counts": "they differ only with padding on the left",
        "finetuning": "no task is fine-tuned here, and pre-training does not use it"}
    _, large = ablation_variants("bert", "roberta", "base")
    hidden = {one["key"] for one in large["hidden"]}
    assert hidden == {"training.steps", "network.position.offset", "network.position.counts", "finetuning"}
    assert {"training.batch_size", "corpus.first_phase"} <= {one["name"] for one in large["groups"]}
    _, bert = ablation_variants("transformer", "bert", "tiny")
    assert {"key": "training.keep_checkpoints", "why": "has no effect on the model"} in bert["hidden"]
    assert "network.layers" not in {one["key"] for one in bert["hidden"]}  # a size is what was asked for


def test_how_a_recipe_is_fine_tuned_is_a_change_where_there_is_a_task():
    without, _ = ablation_variants("bert", "roberta", "tiny")
    assert not [one for one in without if one.change and one.change.startswith("finetuning")]
    variants, details = ablation_variants("bert", "roberta", "tiny", tasks=True)
    hidden = {one["key"]: one["why"] for one in details["hidden"]}
    assert hidden["finetuning.epochs"] == "the lab's --epochs decides" and "finetuning" not in hidden
    bert, roberta = (recipe(f"{name}@tiny").values for name in ("bert", "roberta"))
    plus, minus = (one.recipe.values for one in variants if one.change == "finetuning")
    for made, base, other in ((plus, bert, roberta), (minus, roberta, bert)):
        assert {key: made[key] for key in made if key != "finetuning"} == {
            key: base[key] for key in base if key != "finetuning"}
        assert made["finetuning"] == {**other["finetuning"], "epochs": base["finetuning"]["epochs"]}


def test_a_common_corpus_excludes_the_tokenizer_and_shared_values_exclude_changes():
    variants, details = ablation_variants("bert", "roberta", "tiny", ["objective.masked_lm.dynamic=true",
                                                                      "network.layers=1"],
                                 own_corpus=False)
    hidden = {one["key"]: one["why"] for one in details["hidden"]}
    assert hidden["tokenizer"] == "the corpus has its own tokenizer"
    assert hidden["objective.masked_lm.dynamic"] == "both have true, as you set it"
    assert not {"tokenizer", "objective.masked_lm.dynamic"} & {one["name"] for one in details["groups"]}
    assert all(one.recipe.settings.network.layers == 1 for one in variants)
    with pytest.raises(UserError) as caught:
        ablation_variants("bert", "roberta", "tiny", merge=[["tokenizer", "corpus.packing"]], own_corpus=False)
    assert dict(caught.value.problems) == {"tokenizer": "is in no group: the corpus has its own tokenizer"}


@pytest.mark.parametrize(("typed", "key", "idle"), [
    ([], "objective.masked_lm.duplicates", False), (["objective.masked_lm.dynamic=true"],
                                                    "objective.masked_lm.duplicates", True),
    ([], "objective.masked_lm.ngrams", True), (["objective.masked_lm.unit=word_ngram"],
                                               "objective.masked_lm.ngrams", False),
    ([], "corpus.short_probability", False), (["corpus.packing=stream", "remove=objective.next_sentence"],
                                              "corpus.short_probability", True),
    ([], "network.embedding.query", True), ([], "network.embedding.segments", True),
    ([], "network.attention.head_width", True), (["network.heads=4"], "network.attention.head_width", False),
    ([], "corpus.first_phase.share", True), (["corpus.sequence_length=256"], "corpus.first_phase.share", False)])
def test_effect(typed, key, idle):
    values = {"objective.masked_lm.duplicates": 3, "objective.masked_lm.ngrams": [1.0], "network.embedding.query": True,
              "corpus.short_probability": 0.5, "network.embedding.segments": 5, "network.attention.head_width": 64,
              "corpus.first_phase.share": 0.4}
    one = recipe("bert@tiny", typed)
    other = one.with_changes({key: values[key]}, "test")
    change = recipe_changes(one.values, other.values)[0]
    assert change.key == key
    assert (no_effect_reason(change, one, other) is not None) is idle


def test_the_parent_is_the_one_that_the_child_names_at_the_childs_size(tmp_path):
    variants, _ = ablation_variants(None, "roberta@mini", None)
    assert [one.name for one in variants[:2]] == ["bert@mini", "roberta@mini"]
    assert [one.name for one in ablation_variants("bert@tiny", "roberta@mini", None)[0][:2]] == ["bert@tiny",
                                                                                                 "roberta@mini"]
    assert [one.name for one in ablation_variants(None, "gpt2", None)[0][:2]] == ["gpt@base", "gpt2@small"]
    mine(tmp_path, 'parent = "bert"\n[network]\nactivation = "relu"\n', "first.toml")
    mine(tmp_path, 'parent = "first.toml"\n[network]\nactivation = "silu"\n', "second.toml")
    variants, details = ablation_variants(None, f"{tmp_path}/second.toml", "tiny")
    assert [one.name for one in variants] == ["first@tiny", "second@tiny", "first@tiny + network.activation",
                                              "second@tiny - network.activation"]
    assert details["groups"] == [{"name": "network.activation", "keys": ["~ network.activation relu -> silu"]}]


def test_recipes_without_a_difference_or_a_parent_are_refused():
    with pytest.raises(UserError, match="do not differ in anything that can be measured here") as caught:
        ablation_variants(None, "bert-wwm-ext", "tiny")
    assert dict(caught.value.problems)["training.steps"] == "the lab's budget decides"
    with pytest.raises(UserError, match="--against"):
        ablation_variants(None, "transformer", "tiny")

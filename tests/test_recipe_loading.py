"""Loading recipes: inheritance, origins of values, sizes, overrides, and error messages."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from stemma import recipe_files, recipe_loading, toml
from stemma.errors import UserError
from stemma.schema.corpus import TemplateSlot, parse_template
from stemma.schema.overrides import flatten


def problems(*arguments, **named) -> dict[str, str]:
    """Key -> message of every problem."""
    with pytest.raises(UserError) as caught:
        recipe_loading.recipe(*arguments, **named)
    return dict(caught.value.problems)


def message(*arguments, **named) -> str:
    with pytest.raises(UserError) as caught:
        recipe_loading.recipe(*arguments, **named)
    return str(caught.value)


def child(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """A copy of the shipped recipes that a test may add to."""
    folder = tmp_path / "recipes"
    shutil.copytree(recipe_files.RECIPES, folder)
    monkeypatch.setattr(recipe_files, "RECIPES", folder)
    return folder


# --- inheritance


def test_tables_merge_and_every_value_records_its_origin(tmp_path):
    mine = recipe_loading.recipe(child(tmp_path, 'parent = "bert"\n[network]\nlayers = 3\n'))
    assert mine.settings.network.layers == 3
    assert mine.settings.network.width == 768
    assert mine.origin["network.layers"] == "mine"
    assert mine.origin["network.width"] == "bert"
    assert mine.origin["network.dropout"] == "transformer"
    assert mine.origin["corpus.validation"] == "default"
    assert mine.origin.keys() == flatten(mine.values).keys()
    assert (mine.name, mine.parent, mine.size, mine.label) == ("mine", "bert", None, "mine")


def test_a_new_kind_drops_the_keys_of_the_old_kind(tmp_path):
    mine = recipe_loading.recipe(child(tmp_path, 'parent = "bert"\n[training.optimizer]\nkind = "adamax"\n'))
    optimizer = mine.values["training"]["optimizer"]
    assert optimizer["epsilon"] == 1e-8 and optimizer["weight_decay"] == 0.0  # adamax's own defaults, not bert's values
    assert mine.origin["training.optimizer.kind"] == "mine"
    assert mine.origin["training.optimizer.beta2"] == "default"


def test_the_same_kind_keeps_its_keys(tmp_path):
    mine = recipe_loading.recipe(child(tmp_path,
                                       'parent = "bert"\n[training.optimizer]\nkind = "adamw"\nbeta1 = 0.8\n'))
    assert mine.values["training"]["optimizer"]["epsilon"] == 1e-6


def test_remove_deletes_a_table_or_restores_a_default(tmp_path):
    path = child(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentence", "corpus.short_probability"]\n')
    mine = recipe_loading.recipe(path)
    assert list(mine.values["objective"]) == ["masked_lm"]
    assert mine.settings.corpus.short_probability == 0.0
    assert mine.origin["corpus.short_probability"] == "default"


def test_removing_an_unknown_key_suggests_the_nearest(tmp_path):
    reported = problems(child(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentense"]\n'))
    assert reported == {"line 2: remove = objective.next_sentense":
                     'there is nothing of this name. Did you mean "objective.next_sentence"?'}


def test_repeating_a_value_of_the_parent_is_an_error_in_built_in_recipes_only(tree, tmp_path):
    text = ('parent = "bert"\n[network]\nlayers = 12\n[corpus]\nvalidation = 0.02\n'
            '[training.optimizer]\nkind = "adam"\nbeta1 = 0.9\n')
    child(tree, text, "echo.toml")
    reported = problems("echo")  # beta1 is new: the optimizer's old keys went with its kind
    assert list(reported) == ["line 3: network.layers = 12", "line 5: corpus.validation = 0.02"]
    assert recipe_loading.recipe(child(tmp_path, text)).settings.network.layers == 12


def test_objectives_that_rearrange_text_come_before_those_that_mask(tmp_path):
    mine = child(tmp_path, 'parent = "bert"\nremove = ["objective.next_sentence"]\n')
    again = recipe_loading.recipe(child(tmp_path, 'parent = "mine.toml"\n[objective.next_sentence]\n', "again.toml"))
    assert list(recipe_loading.recipe(mine).settings.objective) == ["masked_lm"]
    assert list(again.settings.objective) == ["next_sentence", "masked_lm"]
    assert again.origin["objective.next_sentence.kind"] == "again"


def test_an_objective_may_have_another_name_than_its_kind():
    lines = ["objective.easy.kind=masked_lm", "objective.easy.rate=0.05", "objective.easy.unit=word",
             "objective.easy.dynamic=true"]
    assert recipe_loading.recipe("bert@tiny", lines).settings.objective["easy"].rate == 0.05


# --- files


def test_toml_syntax_errors_name_file_and_line(tmp_path):
    path = child(tmp_path, 'parent = "bert"\n[network\n')
    assert str(path) in message(path) and "line 2" in message(path)


def test_an_unknown_parent_is_reported_with_line_and_nearest_name(tmp_path):
    path = child(tmp_path, 'title = "Mine"\nparent = "brt"\n')
    assert message(path) == f'{path}, line 2: no recipe "brt". Did you mean "bert"? `stemma tree` lists all of them.'


def test_a_parent_with_a_size_is_rejected(tmp_path):
    path = child(tmp_path, 'title = "Mine"\nparent = "bert@tiny"\n')
    assert message(path) == f'{path}, line 2: a parent has no size; write "bert".'


def test_a_cycle_of_parents_is_rejected(tmp_path):
    child(tmp_path, 'parent = "b.toml"\n', "a.toml")
    assert "own ancestor" in message(child(tmp_path, 'parent = "a.toml"\n', "b.toml"))


def test_all_problems_of_a_file_are_reported_together_with_their_lines(tmp_path):
    path = child(tmp_path, 'parent = "bert"\ntitel = "Mine"\n[network]\nheads = 7\n[traning]\nsteps = 3\n'
                           '[objective.masked_lm]\nrate = 2\n[sizes.x]\nnetwork.widht = 3\n')
    assert problems(path) == {
        'line 2: titel = Mine': 'no such key. Did you mean "title"?',
        "line 4: network.heads = 7": "width 768 is not divisible by 7 (try 8)",
        "line 6: traning.steps = 3": 'no such key. Did you mean "training.steps"?',
        "line 8: objective.masked_lm.rate = 2": "must lie between 0 and 1",
        "line 10: sizes.x.network.widht = 3": 'is not for a size to set. Did you mean "network.width"?',
    }


def test_a_size_may_set_only_keys_of_size(tmp_path):
    reported = problems(child(tmp_path, 'parent = "bert"\n[sizes.x]\nnetwork.activation = "relu"\n'))
    assert list(reported) == ["line 3: sizes.x.network.activation = relu"]


def test_missing_and_binary_files_are_rejected(tmp_path):
    assert "cannot read" in message(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "not valid TOML" in message(tmp_path / "binary.toml")


# --- names and sizes


def test_unknown_recipes_and_sizes_are_reported_with_the_nearest_name():
    assert message("brt@tiny") == 'no recipe "brt". Did you mean "bert"? `stemma tree` lists all of them.'
    assert message("bert@tny").startswith('no size "tny" of bert. Did you mean "tiny"?')
    assert "base, large, small, medium, tiny, mini, midi" in message("bert@huge")


def test_a_bare_name_is_the_first_published_size():
    assert recipe_loading.recipe("bert") == recipe_loading.recipe("bert@base") == recipe_loading.recipe("bert",
                                                                                                        size="base")
    assert recipe_loading.recipe("bert").label == "bert@base"


def test_laptop_sizes_are_inherited_and_published_ones_are_not(tmp_path):
    path = child(tmp_path, 'parent = "bert"\n[sizes.wide]\nnetwork.width = 1536\n'
                           "[sizes.tiny]\ntraining.batch_size = 8\n")
    assert recipe_loading.recipe(path).sizes == ("wide", "tiny", "mini", "midi")
    assert recipe_loading.recipe(path).settings.network.width == 1536
    tiny = recipe_loading.recipe(f"{path}@tiny")
    assert (tiny.settings.network.width, tiny.settings.training.batch_size) == (128, 8)
    assert tiny.origin["network.width"] == "mine@tiny"


def test_a_key_of_a_size_is_skipped_if_its_table_does_not_exist(tmp_path):
    assert recipe_loading.recipe("bert@tiny").settings.network.decoder is None
    assert recipe_loading.recipe("transformer@tiny").values["network"]["decoder"] == {"layers": 2}
    path = child(tmp_path, 'parent = "bert"\n[network.position]\nkind = "none"\n[sizes.x]\n'
                           "network.position.maximum = 9\nnetwork.embedding.width = 64\n")
    small = recipe_loading.recipe(path)
    assert small.values["network"]["position"] == {"kind": "none"}
    assert small.settings.network.embedding.width == 64  # unset in the parent, but its table is there


def test_an_invalid_size_is_reported(tmp_path):
    path = child(tmp_path, 'parent = "bert"\n[sizes.odd]\nnetwork.heads = 5\n')
    assert message(path).startswith("1 problem in mine@odd\n  network.heads = 5   width 768 is not divisible by 5")


# --- changes


def test_overrides_are_toml_values_or_bare_words():
    changed = recipe_loading.recipe("bert@tiny", [
        "training.learning_rate=3e-4", "network.norm.placement=pre", "network.dropout=.2", "tokenizer.lowercase=false",
        'corpus.single="A separator"', "training.batch_size=8", "training.batch_size=16"])
    settings = changed.settings
    assert settings.training.learning_rate == 3e-4 and settings.network.norm.placement == "pre"
    assert settings.network.dropout == 0.2 and settings.tokenizer.lowercase is False
    assert settings.corpus.single == "A separator"
    assert settings.training.batch_size == 16  # the last one counts, as on every command line
    assert changed.origin["network.norm.placement"] == "command line"


def test_a_kind_and_its_keys_can_be_overridden_in_any_order():
    lines = ["training.schedule.floor=0.1", "training.schedule.kind=cosine"]
    for changes in (lines, lines[::-1]):
        assert recipe_loading.recipe("bert", changes).values["training"]["schedule"] == {"kind": "cosine", "floor": 0.1}


@pytest.mark.parametrize("change", ["remove=objective.next_sentence", 'remove=["objective.next_sentence"]',
                                    "remove=[objective.next_sentence]"])
def test_remove_works_as_an_override(change):
    changed = recipe_loading.recipe("bert", [change, "corpus.packing=full_sentences"])
    assert list(changed.settings.objective) == ["masked_lm"]


def test_two_invalid_overrides_give_one_aligned_message():
    assert message("bert@tiny", ["network.heads=7", "objective.masked_lm.rate=1.7"]) == (
        "2 problems in bert@tiny with your changes\n"
        "  network.heads = 7                width 128 is not divisible by 7 (try 8)\n"
        "  objective.masked_lm.rate = 1.7   must lie between 0 and 1")


@pytest.mark.parametrize(("change", "expected"), [
    ("network.layers=abc", "must be a whole number"),
    ("network.layers=2.5", "must be a whole number"),
    ("network.layers=0", "must be 1 or more"),
    ("network.layers=true", "must be a whole number"),
    ("tokenizer.lowercase=1", "must be true or false"),
    ("training.learning_rate=nan", "must be a finite number"),
    ("training.learning_rate=-1", "must be greater than 0"),
    ("training.warmup_steps=-1", "must be 0 or more"),
    ("network=3", "must be a table"),
    ("network.haeds=3", 'Did you mean "network.heads"?'),
    ("netwrok.heads=3", 'Did you mean "network.heads"?'),
    ("network.attention.windows=[-1]", "a window must be 1 or more"),
    ("network.norm.weight=false", "a norm without weights has no bias either"),
    ("network.norm.first=false", "is about norms before each sublayer"),
    ("batch_size=3", 'Did you mean "training.batch_size"?'),
    ("objective.masked_lm.rat=0.2", 'Did you mean "objective.masked_lm.rate"?'),
    ("objective.maskd_lm.rate=0.2", 'no objective "maskd_lm"'),
    ("training.optimizer.kind=adamx", 'Did you mean "adamax"?'),
    ("training.precision=fp23", "must be one of auto, fp32, bf16"),
    ("network.position.kind=[1]",
     "must be one of learned, sinusoidal, relative_xl, bucketed, disentangled, rotary, none"),
    ("corpus.pair=start A separator", "must hold A and then B"),
    ("corpus.single=start A sepparator", 'Did you mean "separator"?'),
    ("network.layers", "key=value"),
    ("=3", "key=value"),
    ("remove=objective.nsp", "nothing of this name"),
    ("training.schedule.floor=0.1", "no such key of this kind; it goes with training.schedule.kind=cosine or "
                                    "warmup_stable_decay"),  # linear has none
    ("training.schedule.decay=0.4", "no such key of this kind; it goes with "
                                    "training.schedule.kind=warmup_stable_decay"),
    ("training.optimizer.adamw_learning_rate=1", "no such key of this kind; it goes with "
                                                 "training.optimizer.kind=muon"),
])
def test_each_invalid_override_has_its_own_message(change, expected):
    (problem,) = problems("bert", [change]).values()
    assert expected in problem


# --- conflicts between keys


@pytest.mark.parametrize(("changes", "key", "expected"), [
    (["network.width=130", "network.heads=4"], "network.heads = 4", "not divisible"),
    (["network.heads=4", "network.width=130"], "network.heads = 4", "not divisible"),
    (["network.width=129"], "network.width = 129", "is not divisible by 2 heads (try 128)"),
    (["corpus.sequence_length=600"], "corpus.sequence_length = 600", "is longer than network.position.maximum = 512"),
    (["network.position.maximum=64"], "network.position.maximum = 64", "is shorter than corpus.sequence_length = 128"),
    (["corpus.packing=stream"], "corpus.packing = stream", "next_sentence needs segment_pair or sentence_pair"),
    (["objective.next_sentence.packing=stream"], "objective.next_sentence.packing = stream", "needs segment_pair"),
    (["objective.masked_lm.mask=0.95"], "objective.masked_lm.mask = 0.95", "add up to more than 1"),
    (["objective.masked_lm.random=0.3"], "objective.masked_lm.random = 0.3", "add up to more than 1"),
    (["network.embedding.segments=1"], "network.embedding.segments = 1", "at least 2 are needed"),
    (["network.embedding.segments=0"], "network.embedding.segments = 0", "at least 2 are needed"),
])
def test_conflicts_name_the_key_that_was_changed(changes, key, expected):
    ((reported_key, problem),) = problems("bert@tiny", changes).items()
    assert reported_key == key and expected in problem


@pytest.mark.parametrize("changes", [
    ["network.heads=3", "network.attention.head_width=32"],
    ["corpus.packing=stream", "objective.next_sentence.packing=sentence_pair"],
    ["network.embedding.segments=0", "corpus.pair=start A separator B separator"],
    ["objective.masked_lm.mask=0.9"],
])
def test_valid_combinations_are_not_reported_as_conflicts(changes):
    changed = recipe_loading.recipe("bert@tiny", changes)
    assert {changed.origin[change.partition("=")[0]] for change in changes} == {"command line"}


def test_conflicts_are_reported_together_with_invalid_values():
    invalid = ["training.optimizer.kind=adafactor", "training.optimizer.beta1=0.9", "tokenizer=3"]
    reported = problems("bert@tiny", [*invalid, "corpus.sequence_length=600"])
    assert list(reported) == ["training.optimizer.beta1 = 0.9", "tokenizer = 3", "corpus.sequence_length = 600"]


# --- special tokens, diffs and stored recipes


def test_required_special_tokens_come_from_templates_in_use_and_objectives():
    assert recipe_loading.required_special_tokens(recipe_loading.recipe("bert")) == {"start", "separator", "mask"}
    assert recipe_loading.required_special_tokens(recipe_loading.recipe("transformer")) == {"begin", "end"}
    alone = recipe_loading.recipe("bert", ["remove=objective.next_sentence", "corpus.packing=stream",
                                           "corpus.single=A"])
    assert recipe_loading.required_special_tokens(alone) == {"mask"}


def test_templates_are_parsed_to_slots():
    assert parse_template("start A end B:1") == [TemplateSlot("start", 0), TemplateSlot("A", 0),
                                                 TemplateSlot("end", 0), TemplateSlot("B", 1)]


def test_diff_collapses_removed_tables_and_is_directed():
    bert = recipe_loading.recipe("bert@tiny")
    mine = recipe_loading.recipe("bert@tiny", [
        "remove=objective.next_sentence", "corpus.packing=stream", "training.threads=1",
        "network.position.kind=sinusoidal", "network.position.maximum=512"])
    assert mine.diff(bert) == [
        recipe_loading.RecipeChange("objective.next_sentence", bert.values["objective"]["next_sentence"], None),
        recipe_loading.RecipeChange("training.threads", None, 1),
        recipe_loading.RecipeChange("corpus.packing", "segment_pair", "stream"),
        recipe_loading.RecipeChange("network.position.kind", "learned", "sinusoidal"),
    ]  # the default offset is not listed
    assert {change.key for change in bert.diff(mine)} == {
        "objective.next_sentence.kind", "training.threads", "corpus.packing", "network.position.kind"}
    assert recipe_loading.diff("bert", "bert") == []


def test_with_changes_replaces_tables_and_does_not_modify_the_recipe():
    bert = recipe_loading.recipe("bert@tiny")
    table = {"kind": "byte_bpe", "vocab_size": 500}
    changed = bert.with_changes({"tokenizer": table, "training.steps": 7}, origin="corpus")
    assert changed.values["tokenizer"] == {**table, "lowercase": False, "cjk_spacing": True, "simplify": False}
    assert changed.origin["tokenizer.vocab_size"] == changed.origin["training.steps"] == "corpus"
    assert bert.settings.tokenizer.vocab_size == 30522 and bert.origin["tokenizer.vocab_size"] == "bert"
    with pytest.raises(UserError, match="what the corpus brings"):
        bert.with_changes({"tokenizer.vocab_size": 0}, origin="corpus")


def test_a_stored_recipe_loads_equal_without_its_parents(tmp_path, monkeypatch):
    resolved = recipe_loading.recipe("bert@tiny", ["training.steps=7", "corpus.first_phase.fraction=0.5",
                                                   'corpus.single="A"'])
    path = child(tmp_path, resolved.to_toml(), "recipe.toml")
    monkeypatch.setattr(recipe_files, "RECIPES", tmp_path / "nothing")  # its parents do not exist here
    again = recipe_loading.recipe(path)
    assert again == resolved
    assert again.to_toml() == resolved.to_toml()
    assert again.origin["training.steps"] == "command line" and again.origin["network.layers"] == "bert@tiny"
    assert recipe_loading.recipe(path, ["training.steps=8"]).origin["network.layers"] == "bert@tiny"
    assert "is resolved at size tiny" in message(path, size="mini")


@pytest.mark.parametrize("name", ["t5@tiny", "xlnet@tiny", "transformer-xl@tiny", "gpt2@tiny"])
def test_a_stored_recipe_without_a_newer_setting_uses_the_old_behaviour(tmp_path, name):
    """A stored recipe.toml inherits nothing, so the default of the setting must be the old behaviour."""
    stored = recipe_loading.recipe(name).to_toml().splitlines()
    older = [line for line in stored if "output_dropout" not in line and "distribution" not in line]
    assert len(older) < len(stored)
    network = recipe_loading.recipe(child(tmp_path, "\n".join(older) + "\n", "recipe.toml")).settings.network
    assert (network.output_dropout, network.attention.output_dropout) == (0.0, None)
    assert network.initialization.distribution == "truncated_normal"
    assert network.dropout == recipe_loading.recipe(name).settings.network.dropout


def test_the_toml_writer_escapes_quotes_and_control_characters():
    values = {"a": 'quote " back \\ tab \t line \n del \x7f 中文', "b.c": {"d": [1, 2.5, True], "e": {"f": 1e-12}},
              "g": {}}
    assert tomllib.loads(toml.dumps(values)) == values


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("transformer-xl", ["network.memory.length=0"], "remove=network.memory makes segments independent"),
    ("transformer-xl", ["network.position.kind=none"], "with network.memory only relative_xl will do"),
    ("gpt2", ["network.memory.length=4"], "needs network.position.kind=relative_xl"),
    ("gpt2", ["network.attention.segments=true"], "needs network.position.kind=relative_xl"),
    ("gpt2", ["network.embedding.cutoffs=[9, 5]"], "must be in ascending order"),
    ("gpt2", ["network.embedding.cutoffs=[9]", "network.embedding.width=64"], "already say how wide each part is"),
    ("xlnet", ["objective.permutation_lm.context=1"], "with 1 every token is predicted and none is left"),
    ("xlnet", ["network.embedding.query=false"], "objective.permutation_lm needs it"),
    ("bert", ["objective.permutation_lm.unit=token"], "the query stream: set network.embedding.query=true"),
    ("universal-transformer", ["network.attention.windows=[0, 8]"], "recurrent depth has one layer"),
    ("universal-transformer", ["network.position.kind=relative_xl"], "with recurrent depth only sinusoidal will do"),
    ("universal-transformer", ["network.position.kind=learned", "network.position.maximum=64"],
     "with recurrent depth only sinusoidal will do"),
    ("universal-transformer", ["network.embedding.query=true"], "is not supported with recurrent depth"),
    ("bert", ["corpus.packing=contiguous", "remove=objective.next_sentence"], "objective.masked_lm needs"),
])
def test_conflicts_are_reported_before_a_network_is_built(name, changes, expected):
    with pytest.raises(UserError) as caught:
        recipe_loading.recipe(name, changes)
    assert any(expected in problem for _, problem in caught.value.problems), caught.value


def test_diff_lists_every_value_that_differs():
    """Also if the new value is a default: a child of RoBERTa that restores a default has changed the value."""
    recipes = [recipe_loading.recipe(name) for name in recipe_loading.recipe_names()]
    back_to_default = 0
    for a in recipes:
        for b in recipes:
            before, after = flatten(a.values), flatten(b.values)
            differ = {key for key in before if key in after and before[key] != after[key]}
            assert differ <= {change.key for change in recipe_loading.diff(a, b)}
            back_to_default += any(b.origin[key] == recipe_loading.DEFAULT for key in differ)
    assert back_to_default > 100


@pytest.mark.parametrize("changes", [["network.heads=128"], ["network.width=130", "network.heads=26"],
                                     ["network.attention.head_width=5"]])
def test_rotary_positions_need_an_even_head_width(changes):
    with pytest.raises(UserError) as caught:
        recipe_loading.recipe("modernbert@tiny", changes)
    assert "rotary positions rotate pairs of numbers" in str(caught.value.problems)

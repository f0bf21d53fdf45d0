"""Recipe keys of version 0.1 that have a new name are still read."""

from __future__ import annotations

import json

import pytest

from stemma import recipe_loading
from stemma.errors import UserError
from stemma.lab import cells
from stemma.lab.experiment import Variant
from stemma.recipe_loading import recipe
from stemma.schema.renamed_keys import RENAMED_KEYS, RENAMED_VALUES, new_key, old_entry, rename_keys

OLD = ["network.norm.place=pre", "objective.masked_lm.stops=0.5", "network.position.counts=tokens",
       "network.initialization.spread=0.1"]
NEW = ["network.norm.placement=pre", "objective.masked_lm.end_fraction=0.5", "network.position.numbering=skip_padding",
       "network.initialization.std=0.1"]


def test_old_keys_of_a_command_line_are_read_with_a_note(caplog):
    assert recipe("bert@tiny", OLD) == recipe("bert@tiny", NEW)
    assert "bert@tiny: network.norm.place is now network.norm.placement" in caplog.text
    assert caplog.text.count("The old name is still read, but not in the next version.") == 1


def test_old_keys_of_a_recipe_file_are_read_with_a_note(tmp_path, caplog):
    old = ('parent = "bert"\nremove = ["network.initialization.spread"]\n[network.norm]\nplace = "pre"\n'
           '[objective.masked_lm]\nstops = 0.5\n[sizes.wide]\nnetwork.width = 960\n'
           'network.initialization.spread = 0.1\n')
    new = old.replace("spread", "std").replace("place", "placement").replace("stops", "end_fraction")
    values = []
    for text in (old, new):
        (tmp_path / "mine.toml").write_text(text)
        values.append(recipe(tmp_path / "mine.toml", size="wide").values)
    assert values[0] == values[1] and values[0]["network"]["initialization"]["std"] == 0.1
    assert caplog.text.count(f"{tmp_path / 'mine.toml'}: ") == 1
    for key in ("network.norm.place", "objective.masked_lm.stops", "network.initialization.spread"):
        assert f"{key} is now {new_key(key)}" in caplog.text


def test_an_old_recipe_of_a_run_is_read_without_a_note(tmp_path, caplog):
    text = recipe("bert@tiny", NEW).to_toml()
    old = text.replace("placement", "place").replace("end_fraction", "stops").replace("start_fraction", "starts") \
        .replace('numbering = "skip_padding"', 'counts = "tokens"').replace("position.numbering", "position.counts")
    assert old != text
    (tmp_path / "recipe.toml").write_text(old)
    stored = recipe(tmp_path / "recipe.toml", stored=True)
    assert stored.to_toml() == text
    assert "is now" not in caplog.text


def test_old_and_new_key_together_are_refused():
    with pytest.raises(UserError) as caught:
        recipe("bert@tiny", ["network.norm.place=pre", "network.norm.placement=pre"])
    assert [place for place, _ in caught.value.problems] == ["network.norm.place = pre"]


def test_every_old_key_has_a_present_key_that_some_recipe_has():
    present = {key for name in recipe_loading.recipe_names() for key in recipe(name).origin}
    for old in RENAMED_KEYS:
        start, _, last = new_key(old).rpartition(".")
        assert any(key.rpartition(".")[2] == last and key.split(".")[0] == start.split(".")[0] for key in present), old
        for word, value in RENAMED_VALUES.get(old, {}).items():
            assert old_entry(new_key(old), value) == (old, word)


def test_a_table_keeps_its_order_and_its_other_keys():
    table = {"network": {"norm": {"kind": "layer", "place": "pre"}}, "objective": {"mine": {"turns": 2.0, "rate": 0.1}}}
    renamed, old = rename_keys(table)
    assert json.dumps(renamed) == json.dumps({
        "network": {"norm": {"kind": "layer", "placement": "pre"}},
        "objective": {"mine": {"sampling_weight": 2.0, "rate": 0.1}}})
    assert old == ["network.norm.place", "objective.mine.turns"]


def test_the_digest_of_a_lab_s_cell_has_the_old_keys_so_that_older_labs_resume(monkeypatch):
    digested = []
    monkeypatch.setattr(cells, "short_digest", lambda values: digested.append(values) or "digest")
    cells.recipe_digest(Variant("roberta@tiny", recipe("roberta@tiny")))
    values, = digested
    assert values["network.norm.place"] == "post" and values["network.position.counts"] == "tokens"
    assert values["objective.masked_lm.sees"] == "full"
    assert not [key for key in values if new_key(key) == key and old_entry(key, None)[0] != key]

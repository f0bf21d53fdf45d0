"""Plug-ins: parts written by users work with every verb, and their code is loaded only if the user names it."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path

import plugin_files
import pytest
from commands import has_checkpoint
from commands import start_unreported as start
from commands import stemma_unreported as stemma

from stemma import plugins, recipe_loading, registry
from stemma.errors import UserError
from stemma.plugins import use_plugin

FREQUENT_CHECKPOINTS = ["training.checkpoint_every=2", "training.validate_every=20", "training.log_every=1"]
HARMLESS = '@register("schedule", "{}")\ndef schedule(settings, at):\n    return 1.0\n'
IMPORT = "from stemma.extend import register\n"


@pytest.fixture
def restored_registry(monkeypatch):
    """Restores the registry and the loaded plug-ins after a test."""
    for slot in registry.BUILT_IN:
        registry.entries(slot)  # built-in parts are registered first, so they stay
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture(scope="module")
def plugin_runs(tmp_path_factory, corpus_folder) -> Path:
    """A folder with the plug-ins, a run that used them, and the same run killed with SIGKILL."""
    folder = tmp_path_factory.mktemp("own")
    plugin_files.write(folder)
    command = ["pretrain", "mine.toml@small", "--corpus", corpus_folder, "--steps", "9", "--json",
               *FREQUENT_CHECKPOINTS]
    complete = stemma(*command, "--out", "complete", folder=folder)
    assert complete.code == 0, complete.err
    start(*command, "--out", "killed", folder=folder).kill_when(lambda: has_checkpoint(folder / "killed", 2))
    return folder


# --- through the verbs -----------------------------------------------------------------------------------------------


def test_show_and_diff_list_keys_of_plugins(plugin_runs):
    shown = stemma("show", "mine.toml", "--json", folder=plugin_runs)
    assert shown.code == 0, shown.err
    assert shown.json["values"]["objective"]["reverse"]["rate"] == 0.3
    changes = stemma("diff", "bert", "mine.toml", "--json", folder=plugin_runs).json["changes"]
    assert {"key": "training.schedule.power", "from": None, "to": 3.0} in changes
    shown = stemma("show", "bert@tiny", "objective.reverse.rate=0.2", "--plugin", "my_objective.py", "--json",
                   folder=plugin_runs)
    assert shown.json["values"]["objective"]["reverse"]["rate"] == 0.2
    misspelled = stemma("show", "mine.toml", "objective.reverse.rat=1", folder=plugin_runs)
    assert misspelled.code == 2 and 'Did you mean "objective.reverse.rate"?' in misspelled.err


def test_a_killed_run_resumes_to_the_same_bytes_with_its_plugins(plugin_runs):
    refused = stemma("resume", "killed", folder=plugin_runs)
    assert refused.code == 2
    assert "killed uses the plug-in my_objective.py, which is code and is loaded only if you name it; give --plugin " \
           "my_objective.py" in refused.err
    resumed = stemma("resume", "killed", "--json", *plugin_files.write(plugin_runs), folder=plugin_runs)
    assert resumed.code == 0, resumed.err
    assert resumed.json["steps"] == 9
    complete, killed = ((plugin_runs / name / "model" / "model.safetensors").read_bytes()
                        for name in ("complete", "killed"))
    assert complete == killed


def test_runs_and_models_record_names_and_sha256_of_plugins(plugin_runs):
    expected = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in plugin_files.FILES.items()}
    for folder in (plugin_runs / "complete" / "model", plugin_runs / "complete"):
        assert tomllib.loads((folder / "recipe.toml").read_text())["plugins"] == expected
        expected.pop("my_family.py", None)  # a run does not depend on the family, which is the file layout of the model
        assert "recipe.toml" in json.loads((folder / "checksums.json").read_text())


@pytest.mark.parametrize("words", [
    ["fill", "complete", "the old [MASK] reads"], ["average", "complete", "--last", "2", "--out", "mean"],
    ["embed", "complete", "text.txt", "--out", "vectors.npy"], ["perplexity", "complete", "text.txt"],
    ["pretrain", "bert@tiny", "--from", "complete", "--corpus", "text.txt", "--out", "more", "--steps", "2"],
    ["pretrain", "complete/recipe.toml", "--corpus", "text.txt", "--out", "again", "--steps", "2"]])
def test_reading_a_folder_requires_its_plugins(plugin_runs, words):
    (plugin_runs / "text.txt").write_text("The old clerk copies a letter. Our neighbour reads.\n")
    refused = stemma(*words, folder=plugin_runs)
    assert refused.code == 2 and "give --plugin my_objective.py" in refused.err
    options = plugin_files.write(plugin_runs)
    if words[0] in ("average", "fill", "embed"):
        done = stemma(*words, *options, folder=plugin_runs)
        assert done.code == 0 or "cannot fill a mask" in done.err, done.err


def test_a_model_is_saved_in_the_layout_of_a_family_plugin(plugin_runs):
    assert json.loads((plugin_runs / "complete" / "model" / "config.json").read_text())["model_type"] == "own-bert"
    missing = [word for name in plugin_files.FILES if name != "my_family.py" for word in ("--plugin", name)]
    refused = stemma("embed", "complete", "mine.toml", "--out", "other.npy", *missing, folder=plugin_runs)
    assert refused.code == 2 and "uses the plug-in my_family.py" in refused.err


def test_a_model_fine_tuned_with_plugins_predicts(plugin_runs):
    rows = ["text\tlabel", *(f"{word} letter reads\t{label}" for word, label in (("old", "a"), ("young", "b")) * 4)]
    (plugin_runs / "train.tsv").write_text("\n".join(rows))
    options = plugin_files.write(plugin_runs)
    tuned = stemma("finetune", "classify", "--model", "complete", "--train", "train.tsv", "--dev", "train.tsv", "--out",
                   "tuned", "--steps", "2", *options, folder=plugin_runs)
    assert tuned.code == 0, tuned.err
    command = ["predict", "tuned", "train.tsv"]
    assert "give --plugin" in stemma(*command, folder=plugin_runs).err
    predicted = stemma(*command, "--json", *options, folder=plugin_runs)
    assert predicted.code == 0, predicted.err
    assert predicted.json["predictions"][0]["label"] in "ab"


def test_ablate_compares_keys_of_plugins(plugin_runs, corpus_folder):
    (plugin_runs / "steeper.toml").write_text('parent = "mine.toml"\n[training.schedule]\npower = 4.0\n')
    done = stemma("ablate", "steeper.toml@small", "--against", "mine.toml@small", "--corpus", corpus_folder, "--tokens",
                  "600", "--seeds", "1", "--out", "lab", "--json", *FREQUENT_CHECKPOINTS, folder=plugin_runs)
    assert done.code == 0, done.err
    assert "steeper@small - training.schedule.power" in done.out
    assert "give --plugin" in stemma("resume", "lab", folder=plugin_runs).err
    again = stemma("resume", "lab", "--json", *plugin_files.write(plugin_runs), folder=plugin_runs)
    assert again.code == 0, again.err


def test_network_plugins_work_with_every_command(tmp_path, corpus_folder):
    """Plug-ins for attention, positions, a feed-forward layer, a norm and a stack."""
    options = plugin_files.write_network(tmp_path)
    small = ["network.layers=2", "network.width=16", "network.heads=2", "network.feedforward=32",
             "corpus.sequence_length=24", "training.batch_size=4", *FREQUENT_CHECKPOINTS]
    changed = {change["key"]: change["to"] for change in stemma("diff", "bert", "deep.toml", "--json",
                                                                folder=tmp_path).json["changes"]}
    assert (changed["network.attention.kind"], changed["network.position.base"], changed["network.transition"]) == \
        ("linear", 50.0, "single")
    command = ["pretrain", "deep.toml@tiny", "--corpus", corpus_folder, "--steps", "7", *small]
    complete = stemma(*command, "--out", "complete", "--json", folder=tmp_path)
    assert complete.code == 0, complete.err
    start(*command, "--out", "killed", folder=tmp_path).kill_when(lambda: has_checkpoint(tmp_path / "killed", 2))
    assert "give --plugin my_attention.py" in stemma("resume", "killed", folder=tmp_path).err
    resumed = stemma("resume", "killed", *options, folder=tmp_path)
    assert resumed.code == 0, resumed.err
    first, second = ((tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("complete", "killed"))
    assert first == second
    filled = stemma("fill", "complete", "the old [MASK] reads", "--json", *options, folder=tmp_path)
    assert filled.code == 0 and len(filled.json["predictions"]) == 1, filled.err
    rows = ["text\tlabel", *(f"{word} letter reads\t{label}" for word, label in (("old", "a"), ("young", "b")) * 4)]
    (tmp_path / "train.tsv").write_text("\n".join(rows))
    tuned = stemma("finetune", "classify", "--model", "complete", "--train", "train.tsv", "--dev", "train.tsv", "--out",
                   "tuned", "--steps", "2", *options, folder=tmp_path)
    assert tuned.code == 0, tuned.err
    predicted = stemma("predict", "tuned", "train.tsv", "--json", *options, folder=tmp_path)
    assert predicted.code == 0 and predicted.json["predictions"][0]["label"] in "ab", predicted.err
    (tmp_path / "child.toml").write_text('parent = "deep.toml"\n[network.attention]\nepsilon = 1e-3\n')
    lab = stemma("ablate", "child.toml@tiny", "--against", "deep.toml@tiny", "--corpus", corpus_folder, "--tokens",
                 "300", "--seeds", "1", "--out", "lab", "--json", "training.warmup_steps=1", *small, folder=tmp_path)
    assert lab.code == 0 and "network.attention.epsilon" in lab.out, lab.err


# --- what is rejected ------------------------------------------------------------------------------------------------


def test_a_changed_plugin_is_rejected_with_instructions_to_accept_it(plugin_runs, tmp_path):
    options = plugin_files.write(tmp_path)
    (tmp_path / "my_schedule.py").write_text(plugin_files.SCHEDULE + "# changed\n")
    (tmp_path / "model").mkdir()
    for file in (plugin_runs / "complete" / "model").iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    words = ["embed", "model", "mine.toml", "--out", "vectors.npy", *options]
    refused = stemma(*words, folder=tmp_path)
    assert refused.code == 2 and "is not the one that model was made with" in refused.err
    old, new = (hashlib.sha256(text.encode()).hexdigest() for text in (plugin_files.SCHEDULE,
                                                                       plugin_files.SCHEDULE + "# changed\n"))
    assert f'write "{new}" for my_schedule.py into model/recipe.toml and delete the checksums.json' in refused.err
    recipe = tmp_path / "model" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(old, new))
    (tmp_path / "model" / "checksums.json").unlink()
    done = stemma(*words, folder=tmp_path)
    assert done.code == 0, done.err


@pytest.mark.parametrize("recipe", ['plugins = ["evil.py"]\n', '[plugins]\n"evil.py" = "0"\n'])
def test_code_in_a_model_or_run_folder_is_never_loaded_unasked(plugin_runs, tmp_path, recipe):
    """Plug-ins that a stored recipe lists are not loaded by any command unless --plugin names them."""
    evil = "from pathlib import Path\nPath(__file__).with_name('loaded').touch()\n"
    source = plugin_runs / "complete"
    run = tmp_path / "run"
    for file in [path for path in source.rglob("*") if path.is_file() and "checkpoints" not in path.parts]:
        target = run / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    for folder in (run, run / "model"):
        (folder / "checksums.json").unlink()
        (folder / "evil.py").write_text(evil)
        text = re.sub(r"\[(plugins|origin)\]\n(.+\n)*", "", (folder / "recipe.toml").read_text())
        (folder / "recipe.toml").write_text(recipe + text if recipe[0] == "p" else text + recipe)
    options = [word if word == "--plugin" else plugin_runs / word for word in plugin_files.write(plugin_runs)]
    for words in (["resume", "run"], ["fill", "run", "a [MASK]"],
                  ["embed", "run/model", "run/evil.py", "--out", "v.npy"],
                  ["show", "run/recipe.toml"], ["show", "run/model/recipe.toml"],
                  ["pretrain", "bert@tiny", "--from", "run", "--corpus", "run/evil.py", "--out", "o", "--steps", "1"]):
        refused = stemma(*words, *options, folder=tmp_path)
        assert refused.code == 2 and "give --plugin evil.py" in refused.err, refused.err
    assert not list(tmp_path.rglob("loaded"))


@pytest.mark.parametrize(("content", "expected"), [
    ("x = (\n", r"line 1: '\(' was never closed; correct it"),
    ("\nfrom stemma.extend import Objektive\n", r"line 2: ImportError: .*Objektive"),
    ("\n\nmissing + 1\n", r"line 3: NameError: name 'missing' is not defined"),
    ("raise SystemExit(0)\n", r"line 1: SystemExit"),
    ("x = 1\n", r"registers nothing; put @register\(SLOT, KIND, SETTINGS\)"),
    (IMPORT + HARMLESS.format("linear"), r'line 2: the schedule "linear" is registered already, by stemma.training'),
    (IMPORT + HARMLESS.format("x").replace('"schedule"', '"shedule"'), r'line 2: there is no slot "shedule"')])
def test_a_plugin_that_cannot_be_loaded_is_reported_with_its_line(restored_registry, tmp_path, content, expected):
    (tmp_path / "bad.py").write_text(content)
    before = dict(registry._entries)
    with pytest.raises(UserError, match=rf"^the plug-in {tmp_path / 'bad.py'}(, | ){expected}"):
        use_plugin(tmp_path / "bad.py")
    assert registry._entries == before and not plugins._loaded


def test_a_command_with_an_unloadable_plugin_exits_with_2(tmp_path):
    (tmp_path / "bad.py").write_text("x = (\n")
    for name, expected in (("bad.py", "the plug-in bad.py, line 1:"), ("none.py", "cannot read the plug-in none.py")):
        refused = stemma("show", "bert", "--plugin", name, "--json", folder=tmp_path)
        assert refused.code == 2 and refused.err.startswith(f"error: {expected}") and expected in refused.json["error"]


def test_plugin_paths_in_a_recipe_are_relative_to_it(restored_registry, tmp_path):
    (tmp_path / "level.py").write_text(IMPORT + HARMLESS.format("level"))
    (tmp_path / "mine.toml").write_text('parent = "bert"\nplugins = ["level.py"]\n[training.schedule]\nkind = "level"')
    (tmp_path / "child.toml").write_text('parent = "mine.toml"\n[network]\nlayers = 2\n')
    assert recipe_loading.recipe(tmp_path / "child.toml").settings.training.schedule.kind == "level"
    for invalid in ('"level.py"', "[1]", "{a = 1}"):
        (tmp_path / "mine.toml").write_text(f'parent = "bert"\nplugins = {invalid}\n')
        with pytest.raises(UserError) as caught:
            recipe_loading.recipe(tmp_path / "mine.toml")
        assert "must be a list of files" in str(caught.value)


def test_a_changed_file_is_loaded_again_and_a_second_file_of_the_same_name_is_rejected(restored_registry, tmp_path):
    (tmp_path / "own.py").write_text(IMPORT + HARMLESS.format("one"))
    first = use_plugin(tmp_path / "own.py")
    assert use_plugin(tmp_path / "own.py") is first
    (tmp_path / "own.py").write_text(IMPORT + HARMLESS.format("two"))
    assert use_plugin(tmp_path / "own.py").sha256 != first.sha256
    assert registry.find("schedule", "two") is not None and registry.find("schedule", "one") is None
    (tmp_path / "own.py").write_text("x = (\n")
    with pytest.raises(UserError):
        use_plugin(tmp_path / "own.py")
    assert registry.find("schedule", "two") is not None
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "own.py").write_text(IMPORT + HARMLESS.format("three"))
    with pytest.raises(UserError, match="two plug-ins of one name"):
        use_plugin(tmp_path / "other" / "own.py")


def test_an_error_in_a_plugin_is_reported_with_its_file_and_line(plugin_runs, tmp_path, corpus_folder):
    plugin_files.write(tmp_path)
    broken = plugin_files.OBJECTIVE.replace("ids = draft.input_ids.copy()", "ids = 1 / 0")
    (tmp_path / "my_objective.py").write_text(broken)
    line = plugin_files.OBJECTIVE.splitlines().index("        ids = draft.input_ids.copy()") + 1
    failed = stemma("pretrain", "mine.toml@small", "--corpus", corpus_folder, "--steps", "2", "--out", "run",
                    folder=tmp_path)
    assert failed.code == 2 and f"my_objective.py, line {line}: ZeroDivisionError" in failed.err
    assert not (tmp_path / "run").exists()


# --- installed packages ----------------------------------------------------------------------------------------------


def test_installed_packages_register_parts(restored_registry, tmp_path, monkeypatch):
    (tmp_path / "their_parts.py").write_text(IMPORT + HARMLESS.format("theirs"))
    info = tmp_path / "their_parts-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-parts\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[stemma.plugins]\nparts = their_parts\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_entry_points_loaded", False)
    monkeypatch.setattr(registry, "plugin_packages", {})
    recipe = recipe_loading.recipe("bert", ["training.schedule.kind=theirs"])
    text = recipe.to_toml()
    assert tomllib.loads(text)["plugins"] == {"their-parts": "package 1.2"}
    (tmp_path / "kept.toml").write_text(text)
    assert recipe_loading.recipe(tmp_path / "kept.toml", stored=True).values == recipe.values
    registry.plugin_packages.clear()
    with pytest.raises(UserError, match="uses parts of the package their-parts, which is not installed; .*==1.2"):
        recipe_loading.recipe(tmp_path / "kept.toml", stored=True)
    sys.modules.pop("their_parts")
    (tmp_path / "their_parts.py").write_text("1 / 0\n")
    monkeypatch.setattr(registry, "_entry_points_loaded", False)
    with pytest.raises(UserError, match=r"the package their-parts \(their_parts\) cannot be loaded: ZeroDivision"):
        registry.kinds("schedule")


READER = '''
from stemma.extend import ReaderKind, register, whole_document

@register("reader", ".entries", ReaderKind)
def entries(file, options):
    for entry, text in enumerate(file.read_text(options.encoding).split("%%"), 1):
        yield from whole_document(text.strip(), f"{file}, entry {entry}", str(file), options.errors)
'''


def test_a_reader_plugin_reads_files_of_its_suffix(tmp_path):
    """A run on such files records the plug-in, and resuming it requires --plugin."""
    (tmp_path / "my_reader.py").write_text(READER)
    (tmp_path / "text").mkdir()
    entries = [f"The old clerk copies letter {n}. He reads it again. Our neighbour sees him." for n in range(40)]
    (tmp_path / "text" / "notes.entries").write_text(" %% ".join(entries))
    option = ["--plugin", "my_reader.py"]
    assert stemma("corpus", "build", "text", "--tokenizer", "none", "--out", "c", folder=tmp_path).code == 2
    small = ["network.layers=1", "network.width=16", "network.heads=2", "network.feedforward=32", *FREQUENT_CHECKPOINTS,
             "corpus.sequence_length=16", "training.batch_size=4", "tokenizer.vocab_size=120"]
    command = ["pretrain", "gpt2@tiny", "--corpus", "text", "--out", "run", "--steps", "2",
               *[change for change in small if "vocab" not in change], "tokenizer.vocab_size=300"]
    refused = stemma(*command, folder=tmp_path)
    assert refused.code == 2 and "the folder has no text files" in refused.err
    done = stemma(*command, *option, "--json", folder=tmp_path)
    assert done.code == 0, done.err
    recorded = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["plugins"]
    assert recorded == {"my_reader.py": hashlib.sha256(READER.encode()).hexdigest()}
    assert "give --plugin my_reader.py" in stemma("resume", "run", folder=tmp_path).err
    assert stemma("resume", "run", *option, folder=tmp_path).code == 0
    assert stemma("generate", "run", "The old", "--tokens", "3", folder=tmp_path).code == 0  # a model reads no files

"""Damage to what a run or a lab reads again is found before anything goes on from it: exit 2, a sentence, no change."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from damaging import FOUND, Damage, another_number, flipped, one, refused, replaced, shorter, written
from toy_tasks import save_model, write_sets

from stemma.atomic_files import CHECKSUMS, read_checksums, write_checksums
from stemma.checksummed_files import (
    APPENDED,
    RULES,
    WRITE_ONCE,
    record_finished_file,
    verify_file,
    write_file,
    write_rule,
)
from stemma.cli import main
from stemma.errors import CorruptFileError, UserError
from stemma.lab.quickstart.quickstart import QuickstartConfig, StageState
from stemma.tasks.pipeline.pipeline import _ledger
from stemma.text.tokenizer import Tokenizer
from stemma.training.checkpoints import Checkpoint, load_latest, save_checkpoint
from stemma.training.optimizer_state import OptimizerState
from stemma.training.run_folder import read_run
from stemma.training.run_log import RunLog

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=2", "training.log_every=1"]
DEEP = "[" * 100_000


@pytest.fixture(scope="session")
def made(tmp_path_factory, text_file, corpus_folder) -> Path:
    """A pre-training, a fine-tune and a lab, all of them finished."""
    folder = tmp_path_factory.mktemp("made")
    assert main(["pretrain", "bert@tiny", *SMALL, "--steps", "4", "--corpus", str(corpus_folder), "--out",
                 str(folder / "run"), "training.checkpoint_every=2"]) == 0
    sets = write_sets(folder, "classify", 32, 16)
    assert main(["finetune", "classify", "--model", str(save_model(folder / "model")), "--train", str(sets["train"]),
                 "--dev", str(sets["dev"]), "--steps", "2", "--out", str(folder / "tuned")]) == 0
    assert main(["compare", "bert@tiny", "gpt2@tiny", *SMALL, "tokenizer.vocab_size=300", "--corpus", str(text_file),
                 "--tokens", "2000", "--seeds", "1", "--out", str(folder / "lab")]) == 0
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch, made) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def copy(made: Path, name: str, finished: bool = False) -> Path:
    """One of them; unless it is to be `finished`, as if it had been killed before its end."""
    shutil.copytree(made / name, name)
    if not finished and name != "lab":
        Path(name, "result.json").unlink()
        shutil.rmtree(Path(name, "model"))
    return Path(name)


CASES: dict[str, tuple[str, str, Damage, str]] = {
    "another label": ("tuned", "train.jsonl", replaced('"label": "', '"label": "un'), FOUND),
    "a line less": ("tuned", "train.jsonl", shorter, FOUND),
    "no examples": ("tuned", "train.jsonl", Path.unlink, "train.jsonl is missing"),
    "no dev examples": ("tuned", "dev.jsonl", Path.unlink, "dev.jsonl is missing"),
    "a bit of a dev example": ("tuned", "dev.jsonl", flipped, FOUND),
    "a bit of the tokenizer": ("tuned", "tokenizer/tokenizer.json", flipped, "tokenizer.json is damaged"),
    "the tokenizer's settings": ("tuned", "tokenizer/tokenizer_config.json", replaced("[MASK]", "[PAD]"),
                                 "tokenizer_config.json is damaged"),
    "another seed": ("run", "run.json", replaced('"seed": 0', '"seed": 1'), FOUND),
    "another version": ("run", "run.json", replaced('"version": 1', '"version": 99'), FOUND),
    "a fine-tune's plan": ("tuned", "run.json", replaced('"seed": 0', '"seed": 1'), FOUND),
    "another recipe": ("run", "recipe.toml", replaced("layers", "layers "), "start a new run by this one"),
    "a fine-tune's recipe": ("tuned", "recipe.toml", replaced("layers", "layers "), "give what you changed as KEY=V"),
    "no recipe": ("run", "recipe.toml", Path.unlink, "recipe.toml is missing"),
    "checksums that list nothing": ("run", CHECKSUMS, written("{}"), "run.json has no checksum"),
    "checksums that are a list": ("run", CHECKSUMS, written("[]"), "an object is expected, and it holds a list"),
    "checksums nested too deeply": ("run", CHECKSUMS, written(DEEP), "nested too deeply"),
    "checksums of a file outside": ("run", CHECKSUMS, written('{"../tuned/run.json": "0"}'), "lies outside of it"),
    "a checksum that is a number": ("run", CHECKSUMS, written('{"run.json": 5}'), "of run.json it gives no checksum"),
    "another text to learn from": ("lab", "text/train.jsonl", flipped, "text/train.jsonl is damaged"),
    "another text to be asked about": ("lab", "text/held_out.jsonl", flipped, "text/held_out.jsonl is damaged"),
    "a text without checksums": ("lab", "text/checksums.json", written("{}"), "does not list train.jsonl"),
    "a cell's result": ("lab", "cells/*/run/result.json", another_number, FOUND),
    "a cell's scores": ("lab", "cells/*/scores.json", another_number, FOUND),
    "a cell's curve": ("lab", "cells/*/run/log.jsonl", another_number, FOUND),
    "a cell's plan": ("lab", "cells/*/run/run.json", replaced('"seed": 0', '"seed": 1'), FOUND),
    "the price of a step": ("lab", "costs/????????????????.json", replaced('"flops": ', '"flops": 1'), FOUND),
    "another experiment": ("lab", "lab.json", replaced('"amount": 2000', '"amount": 3000'), FOUND),
    "another variant": ("lab", "recipes/000.toml", replaced("layers", "layers "), FOUND),
}


@pytest.mark.parametrize("case", CASES)
def test_damage_is_found(here, made, capsys, case):
    name, file, change, said = CASES[case]
    copy(made, name)
    place = one(f"{name}/{file}")
    change(place)
    found = refused(capsys, "resume", name)
    assert said in found and place.name in found, found


# What is no longer readable at all, in a folder made before there were checksums: a sentence, too.
UNREADABLE = {"nothing": "", "cut": '{"a": [1,', "a list": "[1]", "null": "null", "no key": "{}", "deep": DEEP,
              "not UTF-8": "\udcff"}
OLD: dict[str, tuple[str, str, bool]] = {  # the folder, the file, and whether the run is finished
    "run.json": ("run", "run.json", False), "result.json": ("run", "result.json", True),
    "train.jsonl": ("tuned", "train.jsonl", False), "dev.jsonl": ("tuned", "dev.jsonl", False),
    "tokenizer_config.json": ("tuned", "tokenizer/tokenizer_config.json", False),
    "lab.json": ("lab", "lab.json", True), "scores.json": ("lab", "cells/*/scores.json", True),
    "a cell's result.json": ("lab", "cells/*/run/result.json", True),
    "a cell's log.jsonl": ("lab", "cells/*/run/log.jsonl", True),
    "held_out.jsonl": ("lab", "text/held_out.jsonl", True),
    "the price of a step": ("lab", "costs/????????????????.json", True),
}
HARMLESS = {("result.json", "no key"), ("tokenizer_config.json", "no key"),  # nothing of them is needed
            ("train.jsonl", "nothing"), ("dev.jsonl", "nothing"),  # no examples: refused by those who need some
            ("a cell's log.jsonl", "nothing"), ("a cell's log.jsonl", "no key"), ("held_out.jsonl", "nothing")}


def without_checksums(folder: Path) -> None:
    """As it was before files that are written one by one were listed."""
    for file in folder.rglob(CHECKSUMS):
        if not {"checkpoints", "model"} & set(file.relative_to(folder).parts):
            file.unlink()


@pytest.mark.parametrize(("case", "content"), [(case, content) for case in OLD for content in UNREADABLE
                                               if (case, content) not in HARMLESS])
def test_unreadable_input_is_reported(here, made, capsys, case, content):
    name, file, finished = OLD[case]
    copy(made, name, finished)
    without_checksums(Path(name))
    place = one(f"{name}/{file}")
    place.write_bytes(UNREADABLE[content].encode("utf-8", "surrogateescape"))
    found = refused(capsys, "resume", name)
    assert place.name in found or place.parts[2] in found, found
    assert ";" in found, "and what to do"


@pytest.mark.parametrize("name", ["run", "tuned"])
def test_another_version_is_refused_without_checksums_too(here, made, capsys, name):
    run = copy(made, name)
    without_checksums(run)
    replaced('"version": 1', '"version": 99')(run / "run.json")
    assert "another version of Stemma (run.json says version 99, this one reads 1)" in refused(capsys, "resume", name)


@pytest.mark.parametrize("name", ["run", "tuned", "lab"])
def test_runs_and_labs_made_before_there_were_checksums_go_on(here, made, name):
    folder = copy(made, name)
    without_checksums(folder)
    for state in folder.glob("checkpoints/*/state.json"):
        stored = json.loads(state.read_text())
        del stored["values"]["log"]
        state.write_text(json.dumps(stored))
        write_checksums(state.parent)
    assert main(["resume", name, "--json"]) == 0
    if name != "lab":
        assert main(["resume", name]) == 0
        assert {"run.json", "recipe.toml", "result.json"} <= read_checksums(folder, "").keys()
        model = Path(name, "model/model.safetensors")
        assert model.read_bytes() == (made / model).read_bytes()


def test_an_edited_recipe_is_answered_by_a_command_that_works(here, made, capsys):
    copy(made, "run", finished=True)
    text = Path("run/recipe.toml").read_text()
    Path("run/recipe.toml").write_text(re.sub(r"(\nlearning_rate\s+= )\S+", r"\g<1>0.2", text))
    Path("run/result.json").unlink()
    command = shlex.split(refused(capsys, "resume", "run").split("`")[1])
    assert command[:3] == ["stemma", "pretrain", "run/recipe.toml"] and "--from" in command
    assert main([*command[1:], "--steps", "1"]) == 0
    assert read_run(Path("NEW"))[0].settings.training.learning_rate == 0.2


def test_text_that_came_through_a_pipe(here, monkeypatch, capsys, text_file):
    """It is kept in the run, from which the corpus is made."""
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_bytes, args=(text_file.read_bytes(),))
    writer.start()
    monkeypatch.setattr("stemma.training.pretrain.build_or_load_corpus", interrupt)
    assert main(["pretrain", "bert@tiny", *SMALL, "--corpus", "pipe", "--out", "piped"]) == 130
    writer.join()
    assert main(["resume", "piped"]) == 130
    flipped(Path("piped/text-1.txt"))
    Path("pipe").unlink()
    assert f"text-1.txt {FOUND}" in refused(capsys, "resume", "piped")


def test_what_several_tasks_reached_together(here, made, capsys):
    run = copy(made, "tuned")
    plan = read_run(run)[1]
    replace(plan, task={**plan.task, "kind": "multitask", "finetune": True}).write(run)
    write_file(run / "shared.json", "{}")
    Path(run, "shared.json").write_text("[]")
    assert f"shared.json {FOUND}" in refused(capsys, "resume", "tuned")
    without_checksums(run)
    assert "shared.json is damaged (an object is expected" in refused(capsys, "resume", "tuned")


WITHOUT_SPEED = json.dumps({"wishes": asdict(QuickstartConfig(1.0, 0, 1, 1, 1)), "found": {"pretrain": {}}})


@pytest.mark.parametrize("content", ["[]", "{}", DEEP, "{", WITHOUT_SPEED])
def test_the_numbers_of_a_pipeline_and_the_state_of_a_quickstart(tmp_path, content):
    (tmp_path / "lineage.json").write_text(content)
    with pytest.raises(UserError, match="lineage.json is damaged"):
        _ledger(tmp_path).digests()
    (tmp_path / "quickstart.json").write_text(content)
    with pytest.raises(UserError, match="quickstart.json is damaged .*--overwrite"):
        StageState.begin(tmp_path, QuickstartConfig(1.0, 0, 1, 1, 1), False)


@pytest.mark.parametrize("content", ['{"mask_token": ["[MASK]"]}', '{"pad_token": {"content": 5}}', "[1]", DEEP])
def test_the_settings_of_a_tokenizer(tmp_path, tokenizer_folder, content):
    shutil.copytree(tokenizer_folder, tmp_path / "tok")
    write_checksums(tmp_path / "tok")
    file = tmp_path / "tok/tokenizer_config.json"
    file.write_text(content)
    with pytest.raises(CorruptFileError, match="tokenizer_config.json is damaged .its checksum"):
        Tokenizer.load(tmp_path / "tok")
    (tmp_path / "tok" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match="tokenizer_config.json"):
        Tokenizer.load(tmp_path / "tok")


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("content", "said"), [
    ("{}", "does not list weights.safetensors"), ("[]", "holds a list"), ("7", "holds a number"), (DEEP, "too deeply"),
    ("", "is damaged"), ('{"state.json": {}}', "gives no checksum"),
    ('{"../../outside": "0"}', "names ../../outside, which lies outside"),
    ('{"/etc/hostname": "0"}', "names /etc/hostname, which lies outside")])
def test_a_damaged_listing_of_a_checkpoint_falls_back_to_the_one_before(tmp_path, content, said, caplog):
    network = torch.nn.Linear(2, 2)
    optimizer = OptimizerState(network, torch.optim.SGD(network.parameters(), 0.1))
    (tmp_path / "outside").write_text("not ours")
    for step in (1, 2):
        save_checkpoint(tmp_path, network, optimizer, Checkpoint(step, 10 * step), num_kept=2)
    (tmp_path / "checkpoints/step-2" / CHECKSUMS).write_text(content)
    found = load_latest(tmp_path, network, optimizer)
    assert found is not None and found.step == 1
    (told,) = caplog.messages
    assert said in told and "going on from step-1 instead" in told
    (tmp_path / "checkpoints/step-1" / CHECKSUMS).write_text(content)
    with pytest.raises(CorruptFileError, match="no other checkpoint is good"):
        load_latest(tmp_path, network, optimizer)


def test_a_log_changed_before_a_checkpoint_gives_a_warning(tmp_path):
    with RunLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.write({"step": step, "loss": 0.5})
        known = log.file_digest()
        log.write({"step": 4, "loss": 0.5})  # after the checkpoint: written again
        assert log.truncate_after(3, known) is None and log.truncate_after(3) is None
        replaced("0.5", "0.4")(log.path)
        assert "log.jsonl is damaged before step 3" in (log.truncate_after(3, known) or "")


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 1])
def test_a_kill_between_the_listing_and_the_file_leaves_a_file_that_is_known(tmp_path, monkeypatch, written):
    """Whichever of the two is written first."""
    write_file(tmp_path / "run.json", "old")
    with monkeypatch.context() as patch:
        done: list[Path] = []

        def killed(path: Path, content: str | bytes) -> None:
            if len(done) == written:
                raise KeyboardInterrupt
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            done.append(path)

        patch.setattr("stemma.checksummed_files.atomic_write", killed)
        with pytest.raises(KeyboardInterrupt):
            write_file(tmp_path / "run.json", "new")
    verify_file(tmp_path / "run.json", "")
    write_file(tmp_path / "run.json", "new")
    write_file(tmp_path / "run.json", "newer")
    verify_file(tmp_path / "run.json", "")
    (tmp_path / "run.json").write_text("old")  # what was listed before the last two
    with pytest.raises(CorruptFileError):
        verify_file(tmp_path / "run.json", "")


def test_the_first_file_stored_lists_what_is_there(tmp_path):
    for name in ("train.jsonl", "dev-first.jsonl", "notes.txt", "log.jsonl"):
        (tmp_path / name).write_text(name)
    write_file(tmp_path / "run.json", "{}")
    assert read_checksums(tmp_path, "").keys() == {"train.jsonl", "dev-first.jsonl", "run.json"}
    verify_file(tmp_path / "log.jsonl", "")
    record_finished_file(tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").write_text("other")
    for name in ("log.jsonl", "notes.txt"):  # the one has changed, of the other nothing is known
        with pytest.raises(CorruptFileError):
            verify_file(tmp_path / name, "")


def test_every_file_of_a_run_or_a_lab_has_a_rule(made):
    """Or lies in a folder that lists all that is in it, or is only written for people."""
    told = {"report.html", "report.md", "results.json", "workers.log", CHECKSUMS}
    for name in ("run", "tuned", "lab"):
        for file in (file for file in (made / name).rglob("*") if file.is_file() and file.name not in told
                     and file.suffix != ".svg"):
            whole = any((place / CHECKSUMS).is_file() and file.relative_to(place).as_posix()
                        in read_checksums(place, "") for place in file.parents if place.is_relative_to(made))
            assert whole, f"{file} is listed nowhere"
    assert write_rule("train-first.jsonl") == WRITE_ONCE and write_rule("log.jsonl") == APPENDED
    assert write_rule("else.json") is None


def test_the_page_states_the_rule_of_every_file():
    page = (Path(__file__).parents[2] / "docs/project/architecture.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    stated = {name.strip("` "): row[2].strip() for row in rows if len(row) > 3 for name in row[1].split(",")}
    for pattern, rule in RULES.items():
        named = "COST.json" if pattern.startswith("[0-9a-f]") else "recipes/NNN.toml" if "[0-9]" in pattern else pattern
        assert stated.get(named) == rule, pattern


def test_json_is_read_in_one_place():
    source = Path(__file__).parents[2] / "src/stemma"
    others = [f"{file.relative_to(source)}: {line.strip()}" for file in source.rglob("*.py")
              for line in file.read_text().splitlines()
              if ("json.loads(" in line or "json.load(" in line) and file.name != "json_files.py"
              and "backend.to_str()" not in line and "__getstate__" not in line]  # texts that no user can damage
    assert others == []

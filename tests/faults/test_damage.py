"""A damaged file of a run or a lab is detected before anything resumes from it: exit code 2, an error, no change."""

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
from file_damage import (
    CHECKSUM_DIFFERS,
    Damage,
    change_a_number,
    drop_last_line,
    first_match,
    flip_bit,
    overwrite_with,
    refusal,
    replace_text,
)
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
def finished_runs(tmp_path_factory, text_file, corpus_folder) -> Path:
    """A pre-training run, a fine-tune and a lab, all finished."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(["pretrain", "bert@tiny", *SMALL, "--steps", "4", "--corpus", str(corpus_folder), "--out",
                 str(folder / "run"), "training.checkpoint_every=2"]) == 0
    sets = write_sets(folder, "classify", 32, 16)
    assert main(["finetune", "classify", "--model", str(save_model(folder / "model")), "--train", str(sets["train"]),
                 "--dev", str(sets["dev"]), "--steps", "2", "--out", str(folder / "tuned")]) == 0
    assert main(["compare", "bert@tiny", "gpt2@tiny", *SMALL, "tokenizer.vocab_size=300", "--corpus", str(text_file),
                 "--tokens", "2000", "--seeds", "1", "--out", str(folder / "lab")]) == 0
    return folder


@pytest.fixture
def workspace(tmp_path, monkeypatch, finished_runs) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def copy(finished_runs: Path, name: str, finished: bool = False) -> Path:
    """Copy one of the runs here, finished or as if it had been killed before its end."""
    shutil.copytree(finished_runs / name, name)
    if not finished and name != "lab":
        Path(name, "result.json").unlink()
        shutil.rmtree(Path(name, "model"))
    return Path(name)


CASES: dict[str, tuple[str, str, Damage, str]] = {
    "another label": ("tuned", "train.jsonl", replace_text('"label": "', '"label": "un'), CHECKSUM_DIFFERS),
    "a line less": ("tuned", "train.jsonl", drop_last_line, CHECKSUM_DIFFERS),
    "no examples": ("tuned", "train.jsonl", Path.unlink, "train.jsonl is missing"),
    "no dev examples": ("tuned", "dev.jsonl", Path.unlink, "dev.jsonl is missing"),
    "a bit of a dev example": ("tuned", "dev.jsonl", flip_bit, CHECKSUM_DIFFERS),
    "a bit of the tokenizer": ("tuned", "tokenizer/tokenizer.json", flip_bit, "tokenizer.json is damaged"),
    "the tokenizer's settings": ("tuned", "tokenizer/tokenizer_config.json", replace_text("[MASK]", "[PAD]"),
                                 "tokenizer_config.json is damaged"),
    "another seed": ("run", "run.json", replace_text('"seed": 0', '"seed": 1'), CHECKSUM_DIFFERS),
    "another version": ("run", "run.json", replace_text('"version": 1', '"version": 99'), CHECKSUM_DIFFERS),
    "a fine-tune's plan": ("tuned", "run.json", replace_text('"seed": 0', '"seed": 1'), CHECKSUM_DIFFERS),
    "another recipe": ("run", "recipe.toml", replace_text("layers", "layers "), "start a new run with this one"),
    "a fine-tune's recipe": ("tuned", "recipe.toml", replace_text("layers", "layers "), "give what you changed as KEY"),
    "no recipe": ("run", "recipe.toml", Path.unlink, "recipe.toml is missing"),
    "checksums that list nothing": ("run", CHECKSUMS, overwrite_with("{}"), "run.json has no checksum"),
    "checksums that are a list": ("run", CHECKSUMS, overwrite_with("[]"), "an object is expected, and it holds a list"),
    "checksums nested too deeply": ("run", CHECKSUMS, overwrite_with(DEEP), "nested too deeply"),
    "a path outside the run": ("run", CHECKSUMS, overwrite_with('{"../tuned/run.json": "0"}'), "lies outside of it"),
    "a numeric checksum": ("run", CHECKSUMS, overwrite_with('{"run.json": 5}'), "of run.json it gives no checksum"),
    "changed training text": ("lab", "text/train.jsonl", flip_bit, "text/train.jsonl is damaged"),
    "changed held-out text": ("lab", "text/held_out.jsonl", flip_bit, "text/held_out.jsonl is damaged"),
    "a text without checksums": ("lab", "text/checksums.json", overwrite_with("{}"), "does not list train.jsonl"),
    "a cell's result": ("lab", "cells/*/run/result.json", change_a_number, CHECKSUM_DIFFERS),
    "a cell's scores": ("lab", "cells/*/scores.json", change_a_number, CHECKSUM_DIFFERS),
    "a cell's curve": ("lab", "cells/*/run/log.jsonl", change_a_number, CHECKSUM_DIFFERS),
    "a cell's plan": ("lab", "cells/*/run/run.json", replace_text('"seed": 0', '"seed": 1'), CHECKSUM_DIFFERS),
    "the cost of a step": ("lab", "costs/????????????????.json", replace_text('"flops": ', '"flops": 1'),
                           CHECKSUM_DIFFERS),
    "another experiment": ("lab", "lab.json", replace_text('"amount": 2000', '"amount": 3000'), CHECKSUM_DIFFERS),
    "another variant": ("lab", "recipes/000.toml", replace_text("layers", "layers "), CHECKSUM_DIFFERS),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_file_is_refused(workspace, finished_runs, capsys, case):
    name, file, damage, message = CASES[case]
    copy(finished_runs, name)
    path = first_match(f"{name}/{file}")
    damage(path)
    error = refusal(capsys, "resume", name)
    assert message in error and path.name in error, error


# A file that cannot be parsed, in a folder from before there were checksums, is an error too.
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
    "the cost of a step": ("lab", "costs/????????????????.json", True),
}
HARMLESS = {("result.json", "no key"), ("tokenizer_config.json", "no key"),  # no key of them is needed
            ("train.jsonl", "nothing"), ("dev.jsonl", "nothing"),  # no examples: an error only where some are needed
            ("a cell's log.jsonl", "nothing"), ("a cell's log.jsonl", "no key"), ("held_out.jsonl", "nothing")}


def without_checksums(folder: Path) -> None:
    """Delete the checksums that versions before them did not write."""
    for file in folder.rglob(CHECKSUMS):
        if not {"checkpoints", "model"} & set(file.relative_to(folder).parts):
            file.unlink()


@pytest.mark.parametrize(("case", "content"), [(case, content) for case in OLD for content in UNREADABLE
                                               if (case, content) not in HARMLESS])
def test_an_unreadable_file_without_checksums_is_refused(workspace, finished_runs, capsys, case, content):
    name, file, finished = OLD[case]
    copy(finished_runs, name, finished)
    without_checksums(Path(name))
    path = first_match(f"{name}/{file}")
    path.write_bytes(UNREADABLE[content].encode("utf-8", "surrogateescape"))
    message = refusal(capsys, "resume", name)
    assert path.name in message or path.parts[2] in message, message
    assert ";" in message, "no advice in the error"


@pytest.mark.parametrize("name", ["run", "tuned"])
def test_another_format_version_is_refused_without_checksums_too(workspace, finished_runs, capsys, name):
    run = copy(finished_runs, name)
    without_checksums(run)
    replace_text('"version": 1', '"version": 99')(run / "run.json")
    assert "another version of Stemma (run.json says version 99, this one reads 1)" in refusal(capsys, "resume", name)


@pytest.mark.parametrize("name", ["run", "tuned", "lab"])
def test_runs_and_labs_without_checksums_resume(workspace, finished_runs, name):
    folder = copy(finished_runs, name)
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
        assert model.read_bytes() == (finished_runs / model).read_bytes()


def test_the_command_suggested_for_an_edited_recipe_works(workspace, finished_runs, capsys):
    copy(finished_runs, "run", finished=True)
    text = Path("run/recipe.toml").read_text()
    Path("run/recipe.toml").write_text(re.sub(r"(\nlearning_rate\s+= )\S+", r"\g<1>0.2", text))
    Path("run/result.json").unlink()
    command = shlex.split(refusal(capsys, "resume", "run").split("`")[1])
    assert command[:3] == ["stemma", "pretrain", "run/recipe.toml"] and "--from" in command
    assert main([*command[1:], "--steps", "1"]) == 0
    assert read_run(Path("NEW"))[0].settings.training.learning_rate == 0.2


def test_damage_to_text_that_came_through_a_pipe_is_refused(workspace, monkeypatch, capsys, text_file):
    """The run stores such text, because the pipe cannot be read again."""
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    os.mkfifo("pipe")
    writer = threading.Thread(target=Path("pipe").write_bytes, args=(text_file.read_bytes(),))
    writer.start()
    monkeypatch.setattr("stemma.training.pretrain.build_or_load_corpus", interrupt)
    assert main(["pretrain", "bert@tiny", *SMALL, "--corpus", "pipe", "--out", "piped"]) == 130
    writer.join()
    assert main(["resume", "piped"]) == 130
    flip_bit(Path("piped/text-1.txt"))
    Path("pipe").unlink()
    assert f"text-1.txt {CHECKSUM_DIFFERS}" in refusal(capsys, "resume", "piped")


def test_a_damaged_multitask_result_is_refused(workspace, finished_runs, capsys):
    run = copy(finished_runs, "tuned")
    plan = read_run(run)[1]
    replace(plan, task={**plan.task, "kind": "multitask", "finetune": True}).write(run)
    write_file(run / "shared.json", "{}")
    Path(run, "shared.json").write_text("[]")
    assert f"shared.json {CHECKSUM_DIFFERS}" in refusal(capsys, "resume", "tuned")
    without_checksums(run)
    assert "shared.json is damaged (an object is expected" in refusal(capsys, "resume", "tuned")


WITHOUT_SPEED = json.dumps({"wishes": asdict(QuickstartConfig(1.0, 0, 1, 1, 1)), "found": {"pretrain": {}}})


@pytest.mark.parametrize("content", ["[]", "{}", DEEP, "{", WITHOUT_SPEED])
def test_a_damaged_lineage_or_quickstart_state_is_refused(tmp_path, content):
    (tmp_path / "lineage.json").write_text(content)
    with pytest.raises(UserError, match="lineage.json is damaged"):
        _ledger(tmp_path).digests()
    (tmp_path / "quickstart.json").write_text(content)
    with pytest.raises(UserError, match="quickstart.json is damaged .*--overwrite"):
        StageState.begin(tmp_path, QuickstartConfig(1.0, 0, 1, 1, 1), False)


@pytest.mark.parametrize("content", ['{"mask_token": ["[MASK]"]}', '{"pad_token": {"content": 5}}', "[1]", DEEP])
def test_a_damaged_tokenizer_config_is_refused(tmp_path, tokenizer_folder, content):
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


@pytest.mark.parametrize(("content", "expected"), [
    ("{}", "does not list weights.safetensors"), ("[]", "holds a list"), ("7", "holds a number"), (DEEP, "too deeply"),
    ("", "is damaged"), ('{"state.json": {}}', "gives no checksum"),
    ('{"../../outside": "0"}', "names ../../outside, which lies outside"),
    ('{"/etc/hostname": "0"}', "names /etc/hostname, which lies outside")])
def test_damaged_checksums_of_a_checkpoint_fall_back_to_the_one_before(tmp_path, content, expected, caplog):
    network = torch.nn.Linear(2, 2)
    optimizer = OptimizerState(network, torch.optim.SGD(network.parameters(), 0.1))
    (tmp_path / "outside").write_text("not ours")
    for step in (1, 2):
        save_checkpoint(tmp_path, network, optimizer, Checkpoint(step, 10 * step), num_kept=2)
    (tmp_path / "checkpoints/step-2" / CHECKSUMS).write_text(content)
    result = load_latest(tmp_path, network, optimizer)
    assert result is not None and result.step == 1
    (message,) = caplog.messages
    assert expected in message and "going on from step-1 instead" in message
    (tmp_path / "checkpoints/step-1" / CHECKSUMS).write_text(content)
    with pytest.raises(CorruptFileError, match="no other checkpoint is good"):
        load_latest(tmp_path, network, optimizer)


def test_a_log_that_changed_before_a_checkpoint_gives_a_warning(tmp_path):
    with RunLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.write({"step": step, "loss": 0.5})
        digest = log.file_digest()
        log.write({"step": 4, "loss": 0.5})  # after the checkpoint, so it is truncated
        assert log.truncate_after(3, digest) is None and log.truncate_after(3) is None
        replace_text("0.5", "0.4")(log.path)
        assert "log.jsonl is damaged before step 3" in (log.truncate_after(3, digest) or "")


# --- the rules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_written", [0, 1])
def test_a_kill_between_the_checksum_and_the_file_leaves_a_valid_file(tmp_path, monkeypatch, num_written):
    """In either order of the two writes."""
    write_file(tmp_path / "run.json", "old")
    with monkeypatch.context() as patch:
        done: list[Path] = []

        def killed(path: Path, content: str | bytes) -> None:
            if len(done) == num_written:
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
    (tmp_path / "run.json").write_text("old")  # content from before the last two writes
    with pytest.raises(CorruptFileError):
        verify_file(tmp_path / "run.json", "")


def test_the_first_write_records_checksums_of_existing_files(tmp_path):
    for name in ("train.jsonl", "dev-first.jsonl", "notes.txt", "log.jsonl"):
        (tmp_path / name).write_text(name)
    write_file(tmp_path / "run.json", "{}")
    assert read_checksums(tmp_path, "").keys() == {"train.jsonl", "dev-first.jsonl", "run.json"}
    verify_file(tmp_path / "log.jsonl", "")
    record_finished_file(tmp_path / "log.jsonl")
    (tmp_path / "log.jsonl").write_text("other")
    for name in ("log.jsonl", "notes.txt"):  # the first has changed, the second has no checksum
        with pytest.raises(CorruptFileError):
            verify_file(tmp_path / name, "")


def test_every_file_of_a_run_or_a_lab_has_a_checksum(finished_runs):
    """Except reports, which nothing reads again."""
    reports = {"report.html", "report.md", "results.json", "workers.log", CHECKSUMS}
    for name in ("run", "tuned", "lab"):
        for file in (file for file in (finished_runs / name).rglob("*") if file.is_file() and file.name not in reports
                     and file.suffix != ".svg"):
            listed = any((path / CHECKSUMS).is_file() and file.relative_to(path).as_posix()
                         in read_checksums(path, "") for path in file.parents if path.is_relative_to(finished_runs))
            assert listed, f"{file} has no checksum"
    assert write_rule("train-first.jsonl") == WRITE_ONCE and write_rule("log.jsonl") == APPENDED
    assert write_rule("else.json") is None


def test_the_architecture_page_documents_the_write_rule_of_every_file():
    page = (Path(__file__).parents[2] / "docs/project/architecture.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    documented = {name.strip("` "): row[2].strip() for row in rows if len(row) > 3 for name in row[1].split(",")}
    for pattern, rule in RULES.items():
        is_cost = pattern.startswith("[0-9a-f]")
        name = "costs/DIGEST.json" if is_cost else "recipes/NNN.toml" if "[0-9]" in pattern else pattern
        assert documented.get(name) == rule, pattern


def test_only_json_files_module_parses_json():
    source = Path(__file__).parents[2] / "src/stemma"
    offending_lines = [f"{file.relative_to(source)}: {line.strip()}" for file in source.rglob("*.py")
              for line in file.read_text().splitlines()
              if ("json.loads(" in line or "json.load(" in line) and file.name != "json_files.py"
              and "backend.to_str()" not in line and "__getstate__" not in line]  # text that no user can damage
    assert offending_lines == []

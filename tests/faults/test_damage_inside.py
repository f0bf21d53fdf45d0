"""Damage to the stored state of a fine-tune is refused: the best weights, finished trials, and copied examples."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import toy_pairs
import toy_tasks
from file_damage import (
    CHECKSUM_DIFFERS,
    Damage,
    change_a_number,
    drop_last_line,
    first_match,
    flip_bit,
    refusal,
    replace_text,
)

from stemma.cli import main


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory) -> Path:
    """A fine-tune with early stopping, one with two trials and one on pairs, all finished."""
    folder = tmp_path_factory.mktemp("finished")
    sets = toy_tasks.write_sets(folder, "classify", 32, 16)
    command = ["finetune", "classify", "--model", str(toy_tasks.save_model(folder / "model")), "--train",
               str(sets["train"]), "--dev", str(sets["dev"]), "--steps", "4", "training.log_every=1"]
    assert main([*command, "--out", str(folder / "early"), "training.patience=2", "training.validate_every=1"]) == 0
    assert main([*command, "--out", str(folder / "tried"), "--restarts", "2"]) == 0
    writer = toy_pairs.save_model(folder / "writer", "t5")
    pairs = str(toy_pairs.write_pairs(folder / "pairs.tsv", toy_pairs.pairs(30)))
    assert main(["finetune", "seq2seq", "--model", str(writer), "--train", pairs, "--dev", pairs, "--steps", "2",
                 "--beams", "1", "--out", str(folder / "pairs")]) == 0
    return folder


@pytest.fixture
def workspace(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES: dict[str, tuple[str, str, Damage, str]] = {
    "a bit of the best weights": ("early", "checkpoints/best-*/weights.safetensors", flip_bit, "is damaged"),
    "no best weights": ("early", "checkpoints/best-*/weights.safetensors", Path.unlink, "lacks weights.safetensors"),
    "a trial's result": ("tried", "trials/*/result.json", change_a_number, CHECKSUM_DIFFERS),
    "a bit of a trial's predictions": ("tried", "trials/*/dev.jsonl", flip_bit, CHECKSUM_DIFFERS),
    "a trial's recipe": ("tried", "trials/*/recipe.toml", replace_text("layers", "layers "), CHECKSUM_DIFFERS),
    "a trial's curve": ("tried", "trials/*/log.jsonl", change_a_number, CHECKSUM_DIFFERS),
    "a missing dev pair": ("pairs", "dev.jsonl", drop_last_line, CHECKSUM_DIFFERS),
}


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_file_is_refused(workspace, finished_runs, capsys, case):
    """The run is as if killed after the last step, before its result. All trials are damaged, because the better one
    is read and the test does not know which it is."""
    name, file, damage, message = CASES[case]
    shutil.copytree(finished_runs / name, name)
    Path(name, "result.json").unlink()
    shutil.rmtree(Path(name, "model"))
    first = first_match(f"{name}/{file}")
    for path in sorted(Path(name).glob(file)):
        damage(path)
    error = refusal(capsys, "resume", name)
    assert message in error and first.name in error, error


@pytest.mark.parametrize("file", ["train.jsonl", "dev.jsonl"])
def test_a_trial_does_not_start_with_damaged_examples(workspace, finished_runs, capsys, file):
    shutil.copytree(finished_runs / "tried", "tried")
    Path("tried/result.json").unlink()
    shutil.rmtree("tried/model")
    shutil.rmtree(sorted(Path("tried/trials").iterdir())[1])
    replace_text('"label": "', '"label": "un')(Path("tried", file))
    assert f"{file} {CHECKSUM_DIFFERS}" in refusal(capsys, "resume", "tried")

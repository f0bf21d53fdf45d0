"""Damage to what a fine-tune keeps for later: the best weights, finished trials, examples that are copied or scored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import toy_pairs
import toy_tasks
from damaging import FOUND, Damage, another_number, flipped, one, refused, replaced, shorter

from stemma.cli import main


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A fine-tune that stopped early, one of two trials and one on pairs, all of them finished."""
    folder = tmp_path_factory.mktemp("made")
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
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES: dict[str, tuple[str, str, Damage, str]] = {
    "a bit of the best weights": ("early", "checkpoints/best-*/weights.safetensors", flipped, "is damaged"),
    "no best weights": ("early", "checkpoints/best-*/weights.safetensors", Path.unlink, "lacks weights.safetensors"),
    "a trial's result": ("tried", "trials/*/result.json", another_number, FOUND),
    "a bit of what a trial said": ("tried", "trials/*/dev.jsonl", flipped, FOUND),
    "a trial's recipe": ("tried", "trials/*/recipe.toml", replaced("layers", "layers "), FOUND),
    "a trial's curve": ("tried", "trials/*/log.jsonl", another_number, FOUND),
    "a pair less to be judged by": ("pairs", "dev.jsonl", shorter, FOUND),
}


@pytest.mark.parametrize("case", CASES)
def test_damage_is_found(here, made, capsys, case):
    """In a run that was killed when all was learnt and nothing told. Of two trials, one or both may be damaged: which
    of them is the better one is not known."""
    name, file, change, said = CASES[case]
    shutil.copytree(made / name, name)
    Path(name, "result.json").unlink()
    shutil.rmtree(Path(name, "model"))
    place = one(f"{name}/{file}")
    for each in sorted(Path(name).glob(file)):
        change(each)
    found = refused(capsys, "resume", name)
    assert said in found and place.name in found, found


@pytest.mark.parametrize("file", ["train.jsonl", "dev.jsonl"])
def test_a_trial_does_not_begin_with_damaged_examples(here, made, capsys, file):
    shutil.copytree(made / "tried", "tried")
    Path("tried/result.json").unlink()
    shutil.rmtree("tried/model")
    shutil.rmtree(sorted(Path("tried/trials").iterdir())[1])
    replaced('"label": "', '"label": "un')(Path("tried", file))
    assert f"{file} {FOUND}" in refused(capsys, "resume", "tried")

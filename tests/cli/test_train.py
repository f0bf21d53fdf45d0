"""`pretrain`, `resume` and `inspect` as a user meets them."""

from __future__ import annotations

import io
import json
import shutil
import sys

import pytest

from stemma.cli import main

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "corpus.sequence_length=32", "training.batch_size=8", "training.warmup_steps=1"]
KEYS = {"run", "recipe", "steps", "tokens", "loss", "validation_loss", "unigram_loss", "tokens_per_second", "seconds"}


def run(*words: object) -> int:
    return main([str(word) for word in words])


def one_object(capsys) -> dict:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_json_is_one_object_for_pretrain_and_resume(tmp_path, capsys, corpus_folder):
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", tmp_path / "run", "--steps", 2, *SMALL,
               "--json") == 0
    result = one_object(capsys)
    assert result.keys() >= KEYS and result["steps"] == 2 and all(result[key] is not None for key in KEYS)
    assert run("resume", tmp_path / "run", "--json") == 0
    assert one_object(capsys) == result
    assert run("resume", tmp_path / "run", "--processes", 2) == 2  # one run cannot be shared out
    assert "is for a lab" in capsys.readouterr().err


def test_people_are_told_what_to_do_next(tmp_path, capsys, corpus_folder):
    out = tmp_path / "run"
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", out, "--steps", 2, *SMALL) == 0
    told = capsys.readouterr()
    assert "bert@tiny · 2 steps" in told.out and "held-out loss" in told.out and f"`stemma fill {out}" in told.out
    assert "\r" not in told.err and "\x1b" not in told.err  # no bar where nobody watches


def test_a_single_sentence_leaves_nothing_to_hold_out(tmp_path, capsys, tokenizer_folder):
    (tmp_path / "one.txt").write_text("the old clerk reads a letter by the window and forgets the margin notes\n")
    assert run("corpus", "build", tmp_path / "one.txt", "--tokenizer", tokenizer_folder, "--out", tmp_path / "c") == 0
    capsys.readouterr()
    command = ["pretrain", "bert@tiny", "--corpus", tmp_path / "c", "--steps", 1, *SMALL]
    assert run(*command, "--out", tmp_path / "run", "--json") == 0
    result = one_object(capsys)
    assert result.keys() >= KEYS and result["validation_loss"] is None and result["loss"] > 0
    assert run(*command, "--out", tmp_path / "for people") == 0
    assert "held-out" not in capsys.readouterr().out


def test_text_from_several_places_and_from_stdin(tmp_path, capsys, text_file, monkeypatch):
    monkeypatch.setenv("STEMMA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    shutil.copy(text_file, folder / "a.txt")
    (folder / "b.jsonl").write_text(json.dumps({"body": "One sentence here. Another one there."}) + "\n")
    assert run("pretrain", "bert@tiny", "--corpus", folder / "*.jsonl", "--corpus", folder / "a.txt", "--field", "body",
               "--out", tmp_path / "one", "--steps", 1, *SMALL, "--json") == 0
    assert one_object(capsys)["steps"] == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    assert run("pretrain", "bert@tiny", "--corpus", "-", "--out", tmp_path / "two", "--steps", 1, *SMALL) == 0
    assert (tmp_path / "two/text-1.txt").read_bytes() == text_file.read_bytes()


def test_a_diverging_run_stops_with_a_sentence(tmp_path, capsys, corpus_folder):
    out = tmp_path / "run"
    command = ["pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", out, "--steps", 50, *SMALL,
               "training.learning_rate=1e30", "training.clip_norm=1e30", "training.optimizer.weight_decay=0.0"]
    assert run(*command) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: the loss is not a number at step ") and "training.learning_rate" in told
    step = int(told.split(" at step ")[1].split(";")[0]) - 1
    assert (out / f"checkpoints/step-{step}").is_dir() and f"state of step {step} saved in {out}" in told
    assert run("resume", out, "--json") == 2  # it is the same again, and again a sentence
    assert set(one_object(capsys)) == {"error", "problems"}


def test_a_seed_is_all_the_chance_there_is(tmp_path, capsys, corpus_folder):
    losses = []
    for number, seed in enumerate((1, 1, 2)):
        assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", tmp_path / str(number), "--steps", 2,
                   *SMALL, "--seed", seed, "--json") == 0
        losses.append(one_object(capsys)["loss"])
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("source", ["corpus", "text", "stdin"])
def test_inspect(tmp_path, capsys, corpus_folder, text_file, monkeypatch, source):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text_file.read_bytes())))
    where = {"corpus": corpus_folder, "text": text_file, "stdin": "-"}[source]
    assert run("inspect", "bert@tiny", "--corpus", where, "--examples", 3, "corpus.sequence_length=32", "--json") == 0
    examples = one_object(capsys)["examples"]
    assert len(examples) == 3
    for example in examples:
        assert example["input"][0] == "[CLS]" and example["targets"] and set(example["labels"]) == {"next_sentence"}
        masked = [target for target in example["targets"] if example["input"][target["position"]] == "[MASK]"]
        assert all(example["original"][target["position"]] == target["token"] for target in masked)

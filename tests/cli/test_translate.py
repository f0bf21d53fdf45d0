"""`translate` and `average` as a user meets them, on a language that is the other one spelt backwards."""

from __future__ import annotations

import io
import json
import sys

import pytest
from conftest import small_text

from stemma.cli import main

SMALL = ["network.width=32", "network.heads=2", "network.layers=1", "network.feedforward=64",
         "network.decoder.layers=1", "corpus.sequence_length=40", "training.batch_size=8", "training.warmup_steps=1",
         "training.checkpoint_every=2", "training.keep_checkpoints=3"]


def other_language(line: str) -> str:
    return " ".join(word[::-1] for word in line.lower().rstrip(".").split())


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("translate")
    lines = [line.lower().rstrip(".") for line in small_text(documents=60).split("\n") if line]
    for name, part in (("train", lines[:-6]), ("test", lines[-6:])):
        (made / f"{name}.en").write_text("".join(f"{line}\n" for line in part))
        (made / f"{name}.de").write_text("".join(f"{other_language(line)}\n" for line in part))
    assert run("tokenizer", "train", made / "train.en", made / "train.de", "--kind", "bpe", "--vocab-size", 300,
               "--out", made / "tokenizer") == 0
    assert run("corpus", "build", made / "train.en", "--target", made / "train.de", "--tokenizer", made / "tokenizer",
               "--out", made / "corpus", "--workers", 1) == 0
    assert run("pretrain", "transformer@tiny", "--corpus", made / "corpus", "--out", made / "run", "--steps", 6,
               *SMALL) == 0
    return made


def asked(capsys, *words: object) -> dict:
    capsys.readouterr()
    assert run("translate", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def failed(capsys, *words: object) -> str:
    capsys.readouterr()
    assert run("translate", *words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ")
    return said.err


def test_json_holds_every_line_and_the_scores(folder, capsys):
    found = asked(capsys, folder / "run", folder / "test.en", "--reference", folder / "test.de", "--rouge",
                  "--n-best", 2)
    lines = (folder / "test.en").read_text().splitlines()
    assert [one["source"] for one in found["translations"]] == lines
    for one in found["translations"]:
        assert set(one) == {"source", "text", "tokens", "log_probability", "alternatives"}
        assert one["tokens"] and one["log_probability"] < 0 and len(one["alternatives"]) == 1
    assert 0 <= found["bleu"]["score"] <= 100 and "nrefs:1|case:mixed" in found["bleu"]["signature"]
    assert "nrefs:1" in found["chrf"]["signature"] and set(found["rouge"]) > {"rouge1", "rouge2", "rougeL"}
    uncached = asked(capsys, folder / "run", folder / "test.en", "--n-best", 2, "--no-cache", "--batch", 1)
    assert [one["tokens"] for one in uncached["translations"]] == [one["tokens"] for one in found["translations"]]


def test_people_read_a_line_each_and_the_scores_beside_them(folder, capsys, tmp_path):
    expected = [one["text"] for one in asked(capsys, folder / "run", folder / "test.en")["translations"]]
    assert run("translate", folder / "run", folder / "test.en", "--reference", folder / "test.de") == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == expected and "BLEU " in said.err and "|version:" in said.err and "chrF" in said.err
    out = tmp_path / "new" / "test.hyp"
    assert run("translate", folder / "run", folder / "test.en", "--out", out, "--reference", folder / "test.de") == 0
    said = capsys.readouterr()
    assert out.read_text().split("\n")[:-1] == expected and said.out.startswith("6 lines in ") and "BLEU " in said.out
    assert "exists and is not empty" in failed(capsys, folder / "run", folder / "test.en", "--out", out)


def test_text_and_standard_input(folder, capsys, monkeypatch):
    lines = (folder / "test.en").read_text().splitlines()
    wanted = [one["tokens"] for one in asked(capsys, folder / "run", folder / "test.en")["translations"]]
    typed = asked(capsys, folder / "run", "--text", lines[1], "--text", lines[4])
    assert [one["tokens"] for one in typed["translations"]] == [wanted[1], wanted[4]]
    content = (lines[0] + "\r\n\r\n" + lines[1]).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    piped = asked(capsys, folder / "run", "-")["translations"]
    assert [one["tokens"] for one in piped] == [wanted[0], [], wanted[1]]


def test_an_empty_line_keeps_its_place(folder, capsys, tmp_path):
    lines = (folder / "test.en").read_text().splitlines()
    (tmp_path / "gap.en").write_text(f"{lines[0]}\n\n{lines[1]}\n")
    assert run("translate", folder / "run", tmp_path / "gap.en", "--out", tmp_path / "out") == 0
    assert f"note: {tmp_path / 'gap.en'}, line 2 is empty, and so is its translation." in capsys.readouterr().err
    assert (tmp_path / "out").read_text().count("\n") == 3 and (tmp_path / "out").read_text().split("\n")[1] == ""


def test_bad_input_is_named_with_file_and_line(folder, capsys, tmp_path):
    long = tmp_path / "long.en"
    long.write_text("the old clerk\n" + "the old clerk reads " * 20 + "\n")
    said = failed(capsys, folder / "run", long)
    assert f"{long}, line 2 is " in said and "transformer@tiny reads at most 39 tokens" in said and "--crop" in said
    assert run("translate", folder / "run", long, "--crop") == 0
    assert f"note: {long}, line 2 was truncated to 39 tokens" in capsys.readouterr().err
    said = failed(capsys, folder / "run", folder / "test.en", "--reference", folder / "train.de")
    assert "train.de has " in said and "there are 6 to translate" in said
    (tmp_path / "empty").write_text("")
    assert "empty is empty" in failed(capsys, folder / "run", tmp_path / "empty")
    assert "there is nothing to translate; name a file" in failed(capsys, folder / "run")
    assert "nowhere.en" in failed(capsys, folder / "run", "nowhere.en")
    assert "--rouge compares" in failed(capsys, folder / "run", "--text", "the", "--rouge")
    assert "--n-best" in failed(capsys, "no-such-model", "--text", "the", "--n-best", 9)
    (tmp_path / "bad").write_bytes(b"the \xff clerk\n")
    assert "bad" in failed(capsys, folder / "run", tmp_path / "bad")


def test_swapped_languages_are_refused(folder, capsys):
    said = failed(capsys, folder / "run", folder / "test.de")
    assert "6 of 6 lines (the first is" in said and f"{folder / 'test.de'}, line 1" in said and "--force" in said
    assert run("translate", folder / "run", folder / "test.de", "--force") == 0


def test_other_models_are_told_what_to_do(folder, capsys, corpus_folder, tmp_path):
    small = [change for change in SMALL if "decoder" not in change]
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", tmp_path / "run", "--steps", 1, *small) == 0
    assert "bert@tiny reads a text and does not generate one; train a model that translates" in failed(
        capsys, tmp_path / "run", "--text", "the old clerk")


def test_averaged_checkpoints_translate(folder, capsys):
    assert run("average", folder / "run", "--last", 2, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == [4, 6] and found["out"] == str(folder / "run/averaged")
    assert len(asked(capsys, folder / "run/averaged", folder / "test.en")["translations"]) == 6
    assert "looks like the language" in failed(capsys, folder / "run/averaged", "--text",
                                               (folder / "test.de").read_text().split("\n")[0])
    assert run("average", folder / "run", "--last", 9, "--overwrite") == 2
    assert "training.keep_checkpoints=9" in capsys.readouterr().err
    assert run("average", folder / "run", "--last", 3, "--overwrite") == 0
    assert "is the mean of the checkpoints of the steps 2, 4, 6" in capsys.readouterr().out


def test_generate_writes_from_a_source(folder, capsys):
    line = (folder / "test.en").read_text().split("\n")[0]
    assert run("generate", folder / "run", line, "--greedy", "--tokens", 5, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["completions"]
    assert run("generate", folder / "run", line, "--greedy", "--tokens", 5) == 0
    assert capsys.readouterr().out == f"{found['text']}\n"


def test_a_finished_run_says_how_to_use_it(folder, capsys, tmp_path):
    capsys.readouterr()
    assert run("resume", folder / "run") == 0
    assert f'`stemma translate {folder / "run"} --text "..."`' in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["translate", "average"])
def test_help_has_an_example(verb, capsys):
    assert run(verb, "--help") == 0
    assert f"Example: stemma {verb} run" in " ".join(capsys.readouterr().out.split())

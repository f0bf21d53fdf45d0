"""`translate` and `average`: the target language is the source language with reversed words."""

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
    folder = tmp_path_factory.mktemp("translate")
    lines = [line.lower().rstrip(".") for line in small_text(documents=60).split("\n") if line]
    for name, part in (("train", lines[:-6]), ("test", lines[-6:])):
        (folder / f"{name}.en").write_text("".join(f"{line}\n" for line in part))
        (folder / f"{name}.de").write_text("".join(f"{other_language(line)}\n" for line in part))
    assert run("tokenizer", "train", folder / "train.en", folder / "train.de", "--kind", "bpe", "--vocab-size", 300,
               "--out", folder / "tokenizer") == 0
    assert run("corpus", "build", folder / "train.en", "--target", folder / "train.de",
               "--tokenizer", folder / "tokenizer", "--out", folder / "corpus", "--workers", 1) == 0
    assert run("pretrain", "transformer@tiny", "--corpus", folder / "corpus", "--out", folder / "run", "--steps", 6,
               *SMALL) == 0
    return folder


def translate_json(capsys, *words: object) -> dict:
    capsys.readouterr()
    assert run("translate", *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def error_message(capsys, *words: object) -> str:
    capsys.readouterr()
    assert run("translate", *words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    return captured.err


def token_ids(result: dict) -> list[list[int]]:
    return [translation["tokens"] for translation in result["translations"]]


def test_json_has_every_line_and_the_scores(folder, capsys):
    result = translate_json(capsys, folder / "run", folder / "test.en", "--reference", folder / "test.de", "--rouge",
                            "--n-best", 2)
    lines = (folder / "test.en").read_text().splitlines()
    assert [translation["source"] for translation in result["translations"]] == lines
    for translation in result["translations"]:
        assert set(translation) == {"source", "text", "tokens", "log_probability", "alternatives"}
        assert translation["tokens"] and translation["log_probability"] < 0 and len(translation["alternatives"]) == 1
    assert 0 <= result["bleu"]["score"] <= 100 and "nrefs:1|case:mixed" in result["bleu"]["signature"]
    assert "nrefs:1" in result["chrf"]["signature"] and set(result["rouge"]) > {"rouge1", "rouge2", "rougeL"}
    uncached = translate_json(capsys, folder / "run", folder / "test.en", "--n-best", 2, "--no-cache", "--batch", 1)
    assert token_ids(uncached) == token_ids(result)


def test_translations_are_printed_line_by_line_and_the_scores_apart_from_them(folder, capsys, tmp_path):
    result = translate_json(capsys, folder / "run", folder / "test.en")
    expected = [translation["text"] for translation in result["translations"]]
    assert run("translate", folder / "run", folder / "test.en", "--reference", folder / "test.de") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == expected
    assert all(text in captured.err for text in ("BLEU ", "|version:", "chrF"))
    out = tmp_path / "new" / "test.hyp"
    assert run("translate", folder / "run", folder / "test.en", "--out", out, "--reference", folder / "test.de") == 0
    captured = capsys.readouterr()
    assert out.read_text().split("\n")[:-1] == expected
    assert captured.out.startswith("6 lines in ") and "BLEU " in captured.out
    assert "exists and is not empty" in error_message(capsys, folder / "run", folder / "test.en", "--out", out)


def test_text_comes_from_the_command_line_or_standard_input(folder, capsys, monkeypatch):
    lines = (folder / "test.en").read_text().splitlines()
    expected = token_ids(translate_json(capsys, folder / "run", folder / "test.en"))
    from_option = translate_json(capsys, folder / "run", "--text", lines[1], "--text", lines[4])
    assert token_ids(from_option) == [expected[1], expected[4]]
    content = (lines[0] + "\r\n\r\n" + lines[1]).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert token_ids(translate_json(capsys, folder / "run", "-")) == [expected[0], [], expected[1]]


def test_an_empty_line_has_an_empty_translation(folder, capsys, tmp_path):
    lines = (folder / "test.en").read_text().splitlines()
    (tmp_path / "gap.en").write_text(f"{lines[0]}\n\n{lines[1]}\n")
    assert run("translate", folder / "run", tmp_path / "gap.en", "--out", tmp_path / "out") == 0
    assert f"note: {tmp_path / 'gap.en'}, line 2 is empty, and so is its translation." in capsys.readouterr().err
    assert (tmp_path / "out").read_text().count("\n") == 3 and (tmp_path / "out").read_text().split("\n")[1] == ""


def test_errors_name_the_file_and_the_line(folder, capsys, tmp_path):
    long = tmp_path / "long.en"
    long.write_text("the old clerk\n" + "the old clerk reads " * 20 + "\n")
    message = error_message(capsys, folder / "run", long)
    assert f"{long}, line 2 is " in message and "--crop" in message
    assert "transformer@tiny reads at most 39 tokens" in message
    assert run("translate", folder / "run", long, "--crop") == 0
    assert f"note: {long}, line 2 was truncated to 39 tokens" in capsys.readouterr().err
    message = error_message(capsys, folder / "run", folder / "test.en", "--reference", folder / "train.de")
    assert "train.de has " in message and "there are 6 to translate" in message
    (tmp_path / "empty").write_text("")
    assert "empty is empty" in error_message(capsys, folder / "run", tmp_path / "empty")
    assert "there is nothing to translate; name a file" in error_message(capsys, folder / "run")
    assert "nowhere.en" in error_message(capsys, folder / "run", "nowhere.en")
    assert "--rouge compares" in error_message(capsys, folder / "run", "--text", "the", "--rouge")
    assert "--n-best" in error_message(capsys, "no-such-model", "--text", "the", "--n-best", 9)
    (tmp_path / "bad").write_bytes(b"the \xff clerk\n")
    assert "bad" in error_message(capsys, folder / "run", tmp_path / "bad")


def test_text_in_the_target_language_is_refused(folder, capsys):
    message = error_message(capsys, folder / "run", folder / "test.de")
    assert "6 of 6 lines (the first is" in message and "--force" in message
    assert f"{folder / 'test.de'}, line 1" in message
    assert run("translate", folder / "run", folder / "test.de", "--force") == 0


def test_an_encoder_is_refused_with_a_remedy(folder, capsys, corpus_folder, tmp_path):
    small = [change for change in SMALL if "decoder" not in change]
    assert run("pretrain", "bert@tiny", "--corpus", corpus_folder, "--out", tmp_path / "run", "--steps", 1, *small) == 0
    assert "bert@tiny reads a text and does not generate one; train a model that translates" in error_message(
        capsys, tmp_path / "run", "--text", "the old clerk")


def test_averaged_checkpoints_translate(folder, capsys):
    assert run("average", folder / "run", "--last", 2, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == [4, 6] and result["out"] == str(folder / "run/averaged")
    assert len(translate_json(capsys, folder / "run/averaged", folder / "test.en")["translations"]) == 6
    assert "looks like the language" in error_message(capsys, folder / "run/averaged", "--text",
                                               (folder / "test.de").read_text().split("\n")[0])
    assert run("average", folder / "run", "--last", 9, "--overwrite") == 2
    assert "training.keep_checkpoints=9" in capsys.readouterr().err
    assert run("average", folder / "run", "--last", 3, "--overwrite") == 0
    assert "is the mean of the checkpoints of the steps 2, 4, 6" in capsys.readouterr().out


def test_generate_takes_the_prompt_as_source(folder, capsys):
    line = (folder / "test.en").read_text().split("\n")[0]
    assert run("generate", folder / "run", line, "--greedy", "--tokens", 5, "--json") == 0
    (result,) = json.loads(capsys.readouterr().out)["completions"]
    assert run("generate", folder / "run", line, "--greedy", "--tokens", 5) == 0
    assert capsys.readouterr().out == f"{result['text']}\n"


def test_resume_of_a_finished_run_prints_the_translate_command(folder, capsys, tmp_path):
    capsys.readouterr()
    assert run("resume", folder / "run") == 0
    assert f'`stemma translate {folder / "run"} --text "..."`' in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["translate", "average"])
def test_help_has_an_example(verb, capsys):
    assert run(verb, "--help") == 0
    assert f"Example: stemma {verb} run" in " ".join(capsys.readouterr().out.split())

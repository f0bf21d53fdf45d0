"""`perplexity`, `cloze` and `prompt`: results, printed output, errors."""

from __future__ import annotations

import io
import json
import math
import sys

import pytest
import torch
from closeness import assert_close
from parity.reference import perturb

import stemma
from stemma.cli import main
from stemma.text.train_tokenizer import train_tokenizer

TEXT = "the old clerk reads a letter. a young reader forgets the river. good bad " * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Random weights, saved with a tokenizer."""
    folder = tmp_path_factory.mktemp("evaluate")
    tokenizer = train_tokenizer(iter([TEXT]), "byte_bpe", 300, lowercase=False, roles={"end"})
    torch.manual_seed(0)
    built = stemma.build("gpt2@tiny", tokenizer.vocab_size, ["network.layers=1", "network.width=16", "network.heads=2",
                                                             "network.feedforward=16", "corpus.sequence_length=32"])
    perturb(built.network, 0)
    built.tokenizer = tokenizer
    stemma.save(built, folder / "model")
    return folder / "model"


def run(*words: object) -> int:
    return main([str(word) for word in words])


def json_output(capsys, *words: object) -> dict:
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def error_message(capsys, *words: object) -> str:
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    return captured.err


def test_perplexity_is_that_of_the_logits(model, tmp_path, capsys, monkeypatch):
    (tmp_path / "a.txt").write_text("the old clerk\n\na young reader")
    result = json_output(capsys, "perplexity", model, tmp_path / "a.txt", "--by", "document")
    assert result["documents"] == 2 and result["words"] == 6 and result["bytes"] == 27 and result["stride"] == 16
    loaded, nats = stemma.load(model), 0.0
    for text in ("the old clerk", "a young reader"):
        ids = torch.tensor([[loaded.tokenizer.special_token_ids["end"], *loaded.tokenizer.encode(text).ids]])
        nats -= float(loaded.logits(ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).sum())
    assert result["perplexity"] == pytest.approx(math.exp(nats / result["tokens"]), rel=1e-4)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / 27, rel=1e-4)
    assert [document["begins"] for document in result["by_document"]] == ["the old clerk", "a young reader"]
    assert run("perplexity", model, tmp_path / "a.txt") == 0
    printed = capsys.readouterr().out
    assert f"{result['bits_per_byte']:,.4g}" in printed and "27 bytes" in printed
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the old clerk\n\na young reader")))
    assert_close(json_output(capsys, "perplexity", model, "-")["perplexity"], result["perplexity"])


def test_perplexity_refuses_bad_input(model, tmp_path, capsys, tokenizer_folder):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.txt").write_text("word")
    assert "no text in" in error_message(capsys, "perplexity", model, tmp_path / "empty.txt")
    assert "no such file" in error_message(capsys, "perplexity", model, tmp_path / "b.txt")
    assert run("perplexity", model, tmp_path / "a.txt") == 0
    assert "note: the text is a single word" in capsys.readouterr().err
    by_word = ["perplexity", model, tmp_path / "a.txt", "--by", "word"]
    assert "the only choice is document" in error_message(capsys, *by_word)
    message = error_message(capsys, "perplexity", model, tmp_path / "a.txt", "--length", 4096, "--stride", 0,
                            "--memory", 0)
    assert message.count("\n") == 4 and "--memory 0" in message and "between 1 and 1024" in message
    bert = stemma.build("bert@tiny", 320, ["network.width=16", "network.heads=2"])
    bert.tokenizer = stemma.text.tokenizer.Tokenizer.load(tokenizer_folder)
    stemma.save(bert, tmp_path / "bert")
    assert "fills gaps" in error_message(capsys, "perplexity", tmp_path / "bert", tmp_path / "a.txt")


def test_cloze_reads_lambada_and_cbt(model, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "the old clerk"}\n{"text": "a young reader"}\n')
    result = json_output(capsys, "cloze", model, tmp_path / "a.jsonl", "--limit", 1)
    assert result["format"] == "lambada" and result["questions"] == 1 and result["perplexity"] > 1
    (tmp_path / "cbt.txt").write_text("1 the old clerk .\n2 a XXXXX reader .\tyoung\t\told|young\n")
    assert run("cloze", model, tmp_path / "cbt.txt") == 0
    assert "of 1 question · chance level 50.0%" in capsys.readouterr().out
    assert 'Did you mean "lambada"' in error_message(capsys, "cloze", model, tmp_path / "cbt.txt", "--format", "lambda")


def test_prompt_scores_and_writes_predictions(model, tmp_path, capsys):
    (tmp_path / "t.toml").write_text('kind = "classify"\ntext = "{s}"\nlabel = "l"\nlabels = {n = " bad", y = " good"}')
    (tmp_path / "dev.tsv").write_text("s\tl\n" + "".join(f'the "old clerk {n}\t{"ny"[n % 2]}\n' for n in range(6)))
    answers = tmp_path / "deep/answers.jsonl"
    result = json_output(capsys, "prompt", model, tmp_path / "t.toml", "--data", tmp_path / "dev.tsv", "--shots", 1,
                  "--predictions", answers)
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert result["rows"] == len(lines) == 6 and result["majority"] == 0.5
    assert result["accuracy"] == sum(line["label"] == line["prediction"] for line in lines) / 6
    assert [line["line"] for line in lines] == [2, 3, 4, 5, 6, 7]
    assert 'the "old clerk 0' in result["example"]
    command = ["prompt", model, tmp_path / "t.toml", "--data", tmp_path / "dev.tsv"]
    assert "--overwrite" in error_message(capsys, *command, "--predictions", answers)
    assert run(*command) == 0
    assert "accuracy " in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["answers.jsonl", "dev.tsv", "t.toml"]


def test_prompt_lists_all_unknown_columns(model, tmp_path, capsys):
    (tmp_path / "t.toml").write_text('kind = "qa"\ntext = "{quesion}"\nanswer = "{answer}"\n')
    (tmp_path / "dev.csv").write_text("question,answr\na,b\n")
    message = error_message(capsys, "prompt", model, tmp_path / "t.toml", "--data", tmp_path / "dev.csv")
    assert message.count("Did you mean") == 2
    (tmp_path / "t.toml").write_text('kind = "qa"\ntext = "{question}"\nanswer = "{answr}"\ntokens = 3\n')
    result = json_output(capsys, "prompt", model, tmp_path / "t.toml", "--data", tmp_path / "dev.csv")
    assert result["exact_match"] == 0 and result["rows"] == 1

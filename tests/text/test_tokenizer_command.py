"""The commands `stemma tokenizer train` and `stemma tokenizer info`."""

from __future__ import annotations

import json

import pytest

from stemma.cli import main
from stemma.text.tokenizer import Tokenizer

TEXT = "".join(f"The {word} river is wide, said {word}.\n" for word in ("old", "new", "Low", "lower") * 20)


@pytest.fixture
def stemma(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_train_writes_a_tokenizer_that_info_describes(stemma, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    command = ["tokenizer", "train", tmp_path / "a.txt", "--kind", "wordpiece", "--vocab-size", 190]
    command += ["--out", tmp_path / "tok"]
    code, out, err = stemma(*command, "--lowercase", "--json")
    result = json.loads(out)
    assert code == 0 and "note: the text has only" in err
    assert result["kind"] == "wordpiece" and result["requested"] == 190 and result["out"] == str(tmp_path / "tok")
    assert result["special_tokens"] == 107 and result["roles"]["mask"] == 4 and result["seconds"] > 0
    tokenizer = Tokenizer.load(tmp_path / "tok")
    assert tokenizer.vocab_size == result["vocab_size"] and tokenizer.lowercase
    code, out, _ = stemma("tokenizer", "info", tmp_path / "tok", "--json")
    assert code == 0 and json.loads(out)["fingerprint"] == tokenizer.fingerprint
    code, out, _ = stemma("tokenizer", "info", tmp_path / "tok")
    assert code == 0 and "[MASK]" in out and "99 more sentinels" in out
    code, _, err = stemma(*command)
    assert code == 2 and "--overwrite" in err
    code, out, _ = stemma(*command, "--overwrite")
    assert code == 0 and "wordpiece pieces" in out and not Tokenizer.load(tmp_path / "tok").lowercase


def test_a_recipe_sets_kind_and_special_tokens(stemma, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    code, out, _ = stemma("tokenizer", "train", tmp_path / "a.txt", "--for", "bert@tiny", "--vocab-size", 90,
                          "--out", tmp_path / "tok", "--json")  # fmt: skip
    result = json.loads(out)
    assert code == 0 and result["kind"] == "wordpiece" and result["lowercase"] and result["sentinels"] == 0
    assert set(result["roles"]) == {"padding", "unknown", "start", "separator", "mask"}


@pytest.mark.parametrize(("words", "message"), [
    (["a.txt"], "--kind and --vocab-size must be given"), (["a.txt", "--kind", "word"], "--vocab-size must be given"),
    (["a.txt", "--kind", "wordpeace", "--vocab-size", "500"], 'Did you mean "wordpiece"'),
    (["a.txt", "--kind", "bpe", "--vocab-size", "20"], "too small"), (["none.txt", "--for", "bert"], "no such file"),
    (["empty.txt", "--for", "bert"], "no text in"), (["nul.txt", "--for", "bert"], "NUL byte at byte 3"),
])  # fmt: skip
def test_invalid_input_leaves_no_files(stemma, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "nul.txt").write_bytes(b"abc\x00")
    before = sorted(tmp_path.iterdir())
    code, out, err = stemma("tokenizer", "train", *words, "--out", "tok", "--json")
    assert code == 2 and err.startswith("error: ") and message in err and "error" in json.loads(out)
    assert sorted(tmp_path.iterdir()) == before

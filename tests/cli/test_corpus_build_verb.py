"""`stemma corpus build` with dialogues and with queries and titles."""

from __future__ import annotations

import json

import pytest
from commands import stemma
from conftest import small_text
from mixed_corpora import dialogues, judged


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("verbs")
    (path / "a.txt").write_text(small_text(4))
    (path / "d.jsonl").write_text("".join(json.dumps({"messages": [{"role": role, "content": text} for role, text in
                                                                    talk]}) + "\n" for talk in dialogues(10)))
    (path / "e.yml").write_text("conversations:\n- - who reads?\n  - the clerk.\n")
    (path / "r.tsv").write_text("query\ttitle\tlabel\n" + "".join(f"{q}\t{t}\t{n}\n" for q, t, n in judged(6)))
    (path / "bare.jsonl").write_text('{"turns": ["who reads?", "the clerk."]}\n')
    return path


def test_a_corpus_holds_text_dialogues_and_queries(folder, tokenizer_folder, tmp_path):
    words = ["corpus", "build", folder / "a.txt", "--dialogue", folder / "d.jsonl", "--dialogue", folder / "e.yml",
             "--relevance", folder / "r.tsv", "--tokenizer", tokenizer_folder]
    result = stemma(*words, "--out", tmp_path / "c", "--json").json
    assert (result["documents"], result["dialogues"], result["judged"]) == (4 + 11 + 6, 11, 6)
    done = stemma(*words, "--out", tmp_path / "d")
    assert done.code == 0 and "11 of them dialogues, 6 queries with titles" in done.out
    assert stemma("corpus", "info", tmp_path / "c", "--json").json["sides"] == ["capitals", "roles", "relevance"]


def test_a_folder_of_dialogues_needs_no_path(folder, tokenizer_folder, tmp_path):
    (tmp_path / "talks").mkdir()
    for name in ("d.jsonl", "e.yml"):
        (tmp_path / "talks" / name).write_text((folder / name).read_text())
    words = ["corpus", "build", "--dialogue", tmp_path / "talks", "--tokenizer", tokenizer_folder]
    assert stemma(*words, "--out", tmp_path / "c", "--json").json["dialogues"] == 11


@pytest.mark.parametrize(("words", "message"), [
    ([], "no text to read: name a file"),
    (["--dialogue", "bare.jsonl"], "bare.jsonl, line 1 has no role at turn 1"),
    (["--dialogue", "none.jsonl"], "no such file"), (["--relevance", "a.txt"], "a.txt"),
    (["a.txt", "--target", "a.txt", "--dialogue", "d.jsonl"], "--dialogue is for running text, and this is parallel"),
    (["r.tsv", "--pairs", "--relevance", "r.tsv"], "--relevance is for running text, and this is parallel"),
    (["--dialogue", "d.jsonl", "--documents", "line"], "--documents say how running text is read"),
])
def test_bad_input_is_an_error_message_and_leaves_no_files(folder, tokenizer_folder, tmp_path, words, message):
    paths = [folder / word if (folder / word).exists() else word for word in words]
    done = stemma("corpus", "build", *paths, "--tokenizer", tokenizer_folder, "--out", tmp_path / "c", "--json")
    assert done.code == 2 and message in done.err and "error" in done.json and not list(tmp_path.iterdir())

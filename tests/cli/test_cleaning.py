"""The verbs `clean` and `overlap`: one JSON object, tables for people, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import stemma
from conftest import small_text


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text(small_text() + "\n" + small_text(documents=3) + "\nShort.\n")
    return path


def test_clean(notes: Path, tmp_path: Path) -> None:
    done = stemma("clean", notes, "--out", tmp_path / "clean.txt", "--set", "min_words=20", "--set", "max_top_pair=1",
                  "--set", "max_repeated_runs=1", "--set", "max_repeated_lines=1", "--json")
    assert done.code == 0, done.err
    assert done.json["documents_in"] == 44
    steps = {step["step"]: step for step in done.json["steps"]}
    assert steps["exact_duplicates"]["documents"] == 3
    assert (steps["min_words"]["documents"], steps["min_words"]["setting"]) == (1, 20)
    gone = sum(step["documents"] for step in done.json["steps"] if step["step"] != "normalise")
    assert done.json["documents_out"] == 44 - gone == (tmp_path / "clean.txt").read_text().count("\n\n")
    assert done.err == ""


def test_clean_for_people(notes: Path, tmp_path: Path) -> None:
    done = stemma("clean", notes, "--out", tmp_path / "clean.txt", "--set", "max_repeated_runs=1", "--show", 1)
    assert done.code == 0, done.err
    assert "of 44 documents" in done.out.splitlines()[0]
    row = next(line for line in done.out.splitlines() if "min_words = 50" in line)
    assert row.endswith("dropped")
    again = stemma("clean", notes, "--out", tmp_path / "clean.txt")
    assert again.code == 2
    assert "--overwrite" in again.err


def test_clean_reads_standard_input(notes: Path, tmp_path: Path) -> None:
    done = stemma("clean", "-", "--out", tmp_path / "clean.jsonl", "--set", "max_repeated_runs=1", "--json",
                  standard_input=str(notes))
    assert done.code == 0, done.err
    assert (tmp_path / "clean.jsonl").read_text().count('{"text": ') == done.json["documents_out"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["--out", "clean.csv"], "must end in .txt"),
    (["--out", "clean.txt", "--language", "xx"], '--language is "xx"'),
    (["--out", "clean.txt", "--set", "min_wrds=3"], "1 problem in the rules"),
    (["--out", "clean.txt", "--documents", "page"], "--documents is"),
    (["--out", "clean.txt", "--rules", "nowhere.toml"], "cannot read the rules nowhere.toml"),
])
def test_clean_refuses(notes: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    placed = [str(tmp_path / word) if word.startswith("clean.") else word for word in arguments]
    done = stemma("clean", notes, *placed, "--json")
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert said in done.json["error"]
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_overlap(corpus_folder: Path, notes: Path, tmp_path: Path) -> None:
    done = stemma("overlap", corpus_folder, notes, "--exclude", tmp_path / "rest.txt", "--json")
    assert done.code == 0, done.err
    assert done.json["share"] == 1.0, "the corpus was made of this text"
    assert done.json["overlapping_documents"] == list(range(1, 44))
    assert done.json["false_positives"]["lookups"] == 10_000_000
    assert done.json["false_positives"]["at_most"] >= done.json["false_positives"]["measured"]
    assert (tmp_path / "rest.txt").read_text() == "Short.\n\n"


def test_overlap_for_people(text_file: Path, notes: Path) -> None:
    done = stemma("overlap", text_file, notes, notes, "--show", 2)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("100.00% of the 8-grams")
    assert sum(line.strip().startswith("document ") for line in lines) == 2
    assert "1 are shorter than 8 words" in done.out
    assert "lookups of 8-grams that no text holds" in lines[-1]


def test_overlap_refuses_one_word(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word\n")
    done = stemma("overlap", text_file, tmp_path / "one.txt", "--json")
    assert done.code == 2
    assert "no 8 words in a row" in done.json["error"]

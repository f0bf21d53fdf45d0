"""`clean` and `overlap`: JSON output, printed tables, exit codes."""

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


def test_clean_counts_what_each_step_drops(notes: Path, tmp_path: Path) -> None:
    done = stemma("clean", notes, "--out", tmp_path / "clean.txt", "--set", "min_words=20", "--set", "max_top_pair=1",
                  "--set", "max_repeated_runs=1", "--set", "max_repeated_lines=1", "--json")
    assert done.code == 0, done.err
    assert done.json["documents_in"] == 44
    steps = {step["step"]: step for step in done.json["steps"]}
    assert steps["exact_duplicates"]["documents"] == 3
    assert (steps["min_words"]["documents"], steps["min_words"]["setting"]) == (1, 20)
    dropped = sum(step["documents"] for step in done.json["steps"] if step["step"] != "normalise")
    assert done.json["documents_out"] == 44 - dropped == (tmp_path / "clean.txt").read_text().count("\n\n")
    assert done.err == ""


def test_clean_prints_a_table_and_refuses_to_overwrite(notes: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("arguments", "message"), [
    (["--out", "clean.csv"], "must end in .txt"),
    (["--out", "clean.txt", "--language", "xx"], '--language is "xx"'),
    (["--out", "clean.txt", "--set", "min_wrds=3"], "1 problem in the rules"),
    (["--out", "clean.txt", "--documents", "page"], "--documents is"),
    (["--out", "clean.txt", "--rules", "nowhere.toml"], "cannot read the rules nowhere.toml"),
])
def test_clean_refuses_bad_options(notes: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    words = [str(tmp_path / word) if word.startswith("clean.") else word for word in arguments]
    done = stemma("clean", notes, *words, "--json")
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.json["error"]
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_overlap_finds_the_text_of_the_corpus(corpus_folder: Path, notes: Path, tmp_path: Path) -> None:
    done = stemma("overlap", corpus_folder, notes, "--exclude", tmp_path / "rest.txt", "--json")
    assert done.code == 0, done.err
    assert done.json["share"] == 1.0, "the corpus was made of this text"
    assert done.json["overlapping_documents"] == list(range(1, 44))
    assert done.json["false_positives"]["lookups"] == 10_000_000
    assert done.json["false_positives"]["at_most"] >= done.json["false_positives"]["measured"]
    assert (tmp_path / "rest.txt").read_text() == "Short.\n\n"


def test_overlap_prints_the_documents_with_the_largest_overlap(text_file: Path, notes: Path) -> None:
    done = stemma("overlap", text_file, notes, notes, "--show", 2)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("100.00% of the 8-grams")
    assert sum(line.strip().startswith("document ") for line in lines) == 2
    assert "1 are shorter than 8 words" in done.out
    assert "lookups of 8-grams of random words" in lines[-1]


def test_overlap_refuses_a_text_without_n_grams(text_file: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word\n")
    done = stemma("overlap", text_file, tmp_path / "one.txt", "--json")
    assert done.code == 2
    assert "no 8 words in a row" in done.json["error"]

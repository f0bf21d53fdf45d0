"""Reading sentence pairs from files and tables, and errors for lines that are not pairs."""

from __future__ import annotations

import gzip
import io
import json
import sys

import pytest

from stemma.errors import MAX_PROBLEMS_SHOWN, UserError
from stemma.text import parallel
from stemma.text.parallel import PairSource, TextPair, pair_sources, read_pairs

ENGLISH = ["A dog runs.", "Two men talk.", "She reads a book."]
GERMAN = ["Ein Hund läuft.", "Zwei Männer reden.", "Sie liest ein Buch."]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


def write_lines(path, texts, end="\n"):
    path.write_text("".join(text + end for text in texts), encoding="utf-8")
    return path


def read(*sources: PairSource, **options) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(sources, **options)]


def refusal(*sources: PairSource, **options) -> str:
    with pytest.raises(UserError) as caught:
        list(read_pairs(sources, **options))
    return str(caught.value)


def test_two_files_are_read_line_by_line(tmp_path, caplog):
    (tmp_path / "a.de.gz").write_bytes(gzip.compress("\n".join(GERMAN).encode("latin-1")))  # no newline at the end
    (tmp_path / "a.en").write_bytes("\r\n".join([*ENGLISH, ""]).encode("latin-1"))
    source = PairSource(tmp_path / "a.en", tmp_path / "a.de.gz")
    assert read(source, encoding="latin-1") == PAIRS
    assert len(caplog.messages) == 1 and "CRLF" in caplog.messages[0]


def test_unicode_line_separators_do_not_end_a_line(tmp_path):
    source = write_lines(tmp_path / "a", ["one\u2028two\x85three", "four"])
    target = write_lines(tmp_path / "b", ["eins", "vier"])
    assert read(PairSource(source, target)) == [("one\u2028two\x85three", "eins"), ("four", "vier")]


@pytest.mark.parametrize(("name", "text", "options"), [
    ("a.tsv", "".join(f"{a}\t{b}\n" for a, b in PAIRS), {}),
    ("a.txt", "".join(f"{a}\t{b}\n" for a, b in PAIRS), {}),
    ("a.tsv", "target\tid\tsource\n" + "".join(f"{b}\t7\t{a}\n\n" for a, b in PAIRS), {}),
    ("a.csv", "en,de\n" + "".join(f'"{a}", "{b}"\n'.replace(", ", ",") for a, b in PAIRS), {"columns": "en, de"}),
    ("a.csv", "".join(f'7,"{b}","{a}"\n' for a, b in PAIRS), {"columns": "3,2"}),
    ("a.jsonl", "".join(json.dumps({"de": b, "en": a, "n": 1}) + "\n" for a, b in PAIRS), {"columns": "en,de"}),
    ("a", "".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in PAIRS), {}),
])  # fmt: skip
def test_tables_with_source_and_target_are_read(tmp_path, name, text, options, caplog):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(PairSource(tmp_path / name, **options)) == PAIRS
    has_no_header = "\t" in text and not text.startswith("target")
    message = f"{tmp_path / name} has no header with source and target, so its first line is read as a pair."
    assert caplog.messages == ([message] if has_no_header else [])


def test_quotes_are_literal_in_tsv_and_quote_cells_in_csv(tmp_path):
    tabs, commas = tmp_path / "a.tsv", tmp_path / "a.csv"
    tabs.write_text('source\ttarget\n"Go"\t"Geh\n')
    commas.write_text('source,target\n"Go, ""now""\n\nor later","Geh"\n')
    assert read(PairSource(tabs)) == [('"Go"', '"Geh')]
    assert read(PairSource(commas)) == [('Go, "now"\n\nor later', "Geh")]


def test_stdin_can_be_one_side_or_a_table(tmp_path, monkeypatch):
    class Piped:
        def __init__(self, text):
            self.buffer = io.BytesIO(text.encode())

    monkeypatch.setattr(sys, "stdin", Piped("\n".join(ENGLISH)))
    assert read(*pair_sources(["-"], [write_lines(tmp_path / "de", GERMAN)])) == PAIRS
    monkeypatch.setattr(sys, "stdin", Piped("".join(f"{a}\t{b}\n" for a, b in PAIRS)))
    assert read(*pair_sources(["-"])) == PAIRS
    with pytest.raises(UserError, match="both come from stdin"):
        pair_sources(["-"], ["-"])


def test_each_pair_source_has_its_own_prefix(tmp_path):
    (tmp_path / "sum.tsv").write_text("long text\tshort\n")
    source, target = write_lines(tmp_path / "en", ENGLISH), write_lines(tmp_path / "de", GERMAN)
    translate = PairSource(source, target, "ende", "to German: ")
    result = list(read_pairs([translate, PairSource(tmp_path / "sum.tsv", name="sum", prefix="summarize: ")]))
    assert result[0] == TextPair("to German: A dog runs.", "Ein Hund läuft.", ("ende", "to German: "))
    assert result[3] == TextPair("summarize: long text", "short", ("sum", "summarize: ")) and len(result) == 4


def test_command_line_arguments_become_pair_sources(tmp_path):
    files = [write_lines(tmp_path / name, ENGLISH) for name in ("a.en", "a.de", "b.en", "b.de")]
    sources = pair_sources([files[0], files[2]], [files[1], files[3]])
    assert [(source.path, source.target) for source in sources] == [(files[0], files[1]), (files[2], files[3])]
    with pytest.raises(UserError, match="2 source files and 1 target file"):
        pair_sources([files[0], files[2]], [files[1]])
    with pytest.raises(UserError, match="--columns names the columns of a table"):
        pair_sources([files[0]], [files[1]], "a,b")
    for columns in ("a", "a,", "a,b,c", "a,a"):
        with pytest.raises(UserError, match="name two, the source first"):
            read_pairs(pair_sources([files[0]], columns=columns))
    with pytest.raises(UserError, match='--empty is "skp".*Did you mean "skip"'):
        read_pairs(sources, empty="skp")


def test_files_of_different_length_are_refused_with_both_line_counts(tmp_path):
    source = write_lines(tmp_path / "en", [*ENGLISH, "more", "and more"])
    target = write_lines(tmp_path / "de", ["", *GERMAN[1:]])
    message = refusal(PairSource(source, target))
    assert message.startswith(f"{source} has 5 lines and {target} 3; ")
    assert message.endswith(f"{target}, line 1   is empty")  # all problems at once
    assert refusal(PairSource(target, source)).startswith(f"{target} has 3 lines and {source} 5; ")
    (tmp_path / "none").write_text("")
    assert refusal(PairSource(source, tmp_path / "none")).startswith(f"{tmp_path / 'none'} is empty and {source} has 5")
    assert "there is no pair" in refusal(PairSource(tmp_path / "none", tmp_path / "none"))


def test_empty_lines_are_refused_or_skipped(tmp_path, caplog):
    source = write_lines(tmp_path / "en", [" " if index % 10 == 3 else f"s{index}" for index in range(1, 201)])
    target = write_lines(tmp_path / "de", ["" if index in (5, 13) else f"t{index}" for index in range(1, 201)])
    message = refusal(PairSource(source, target))
    first, *listed = message.split("\n")
    assert first.startswith(f"21 lines of {source} and {target} are no pairs") and "--empty skip" in first
    assert listed[0].split(maxsplit=1)[1] == "line 3    is empty" and str(target) in listed[1]
    assert "line 13" in listed[2] and "has no source and no target" in listed[2]
    assert len(listed) == MAX_PROBLEMS_SHOWN + 1 and listed[-1].strip() == f"and {21 - MAX_PROBLEMS_SHOWN} more"

    pairs = read_pairs([PairSource(source, target)])  # reading stops at the first empty line
    assert [next(pairs).source for _ in range(2)] == ["s1", "s2"]
    with pytest.raises(UserError):
        next(pairs)
    remaining = read(PairSource(source, target), empty="skip")
    assert len(remaining) == 179 and all(a and b and a[1:] == b[1:] for a, b in remaining)
    assert caplog.messages == [f"{source}: 21 pairs with an empty side are left out."]


def test_a_single_empty_line_is_named(tmp_path):
    source, target = write_lines(tmp_path / "en", ENGLISH), write_lines(tmp_path / "de", [GERMAN[0], "\t", GERMAN[2]])
    assert refusal(PairSource(source, target)).startswith(f"{target}, line 2 is empty; correct it, or drop ")


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.tsv", "a\tb\nc\nd\te\n", "a.tsv, line 2 has one column, not a source and a target; correct it."),
    ("a.tsv", "alone\n", "a.tsv, line 1 has one column"),
    ("a.tsv", "a\tb\nc\td\te\n", "a.tsv, line 2 has 3 columns instead of 2 (are there tabs inside the text?)"),
    ("a.tsv", "a\tb\n\tc\n", "line 2 has no source; correct it, or drop pairs without a side with --empty skip."),
    ("a.tsv", "a\tb\tc\n", "no column source and no column target (its first line has: a, b, c)"),
    ("a.tsv", "sorce\ttarget\tid\n", 'Did you mean "sorce"?'),
    ("a.csv", 'source,target\na,b\n"c\nd,e\n', "a.csv, line 3: "),
    ("a.jsonl", '{"source": "a", "target": null}\n', "a.jsonl, line 1 has no target"),
    ("a.jsonl", '\n{"source": "a"}\n', "line 2 has no target, only source (choose with --columns)"),
    ("a.jsonl", '{"source": "a", "target": [["b"]]}\n', "line 1 holds a list, not text"),
    ("a.jsonl", '{"source": "a\\u0000", "target": "b"}\n', "line 1 has a NUL or half a character"),
    ("a.jsonl", '{"source": "a", "target": "\\ud83d"}\n', "line 1 has a NUL or half a character"),
    ("a.jsonl", '{"source": \n[]\n', "2 lines of"),
    ("a.txt", "just a sentence\n", "holds no pairs: its first line has no tab"),
    ("a.tsv", " \n\n", "a.tsv is empty"),
    ("a.tsv", "source\ttarget\n", "there is no pair in"),
])  # fmt: skip
def test_a_row_that_is_not_a_pair_is_reported_with_its_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    assert message in refusal(PairSource(tmp_path / name))


def test_nul_and_surrogates_in_json_are_replaced_on_request(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"source": "a\\u0000b", "target": "c\\ud83dd"}\n')
    assert read(PairSource(tmp_path / "a.jsonl"), errors="replace") == [("ab", "c?d")]


def test_wrong_encodings_missing_files_and_too_long_lines_are_refused(tmp_path, monkeypatch):
    source, target = write_lines(tmp_path / "en", ENGLISH), tmp_path / "de"
    target.write_bytes("\n".join(GERMAN).encode("latin-1"))
    assert f"{target} is not utf-8 at byte 10" in refusal(PairSource(source, target))
    assert "no such file" in refusal(PairSource(source, tmp_path / "nowhere"))
    assert "is 2 files" in refusal(PairSource(source, tmp_path / "[de][en]"))
    monkeypatch.setattr(parallel, "LINE_LIMIT", 20)
    assert f"{source}, line 1 is longer than 20 characters" in refusal(
        PairSource(write_lines(tmp_path / "en", ["x" * 30], end=""), source))

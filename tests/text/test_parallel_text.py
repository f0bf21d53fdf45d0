"""Pairs as they are read, and what is said where a line is no pair."""

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


def lines(path, texts, end="\n"):
    path.write_text("".join(text + end for text in texts), encoding="utf-8")
    return path


def read(*sources: PairSource, **options) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in read_pairs(sources, **options)]


def refused(*sources: PairSource, **options) -> str:
    with pytest.raises(UserError) as caught:
        list(read_pairs(sources, **options))
    return str(caught.value)


def test_two_files_line_by_line(tmp_path, caplog):
    (tmp_path / "a.de.gz").write_bytes(gzip.compress("\n".join(GERMAN).encode("latin-1")))  # no line end at the end
    (tmp_path / "a.en").write_bytes("\r\n".join([*ENGLISH, ""]).encode("latin-1"))
    source = PairSource(tmp_path / "a.en", tmp_path / "a.de.gz")
    assert read(source, encoding="latin-1") == PAIRS
    assert len(caplog.messages) == 1 and "CRLF" in caplog.messages[0]


def test_other_line_ends_of_unicode_stay_inside_a_line(tmp_path):
    source = lines(tmp_path / "a", ["one\u2028two\x85three", "four"])
    target = lines(tmp_path / "b", ["eins", "vier"])
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
def test_tables_of_both_sides(tmp_path, name, text, options, caplog):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read(PairSource(tmp_path / name, **options)) == PAIRS
    headless = "\t" in text and not text.startswith("target")
    said = f"{tmp_path / name} has no header with source and target, so its first line is read as a pair."
    assert caplog.messages == ([said] if headless else [])


def test_quotes_are_text_in_tabs_and_quotes_in_commas(tmp_path):
    tabs, commas = tmp_path / "a.tsv", tmp_path / "a.csv"
    tabs.write_text('source\ttarget\n"Go"\t"Geh\n')
    commas.write_text('source,target\n"Go, ""now""\n\nor later","Geh"\n')
    assert read(PairSource(tabs)) == [('"Go"', '"Geh')]
    assert read(PairSource(commas)) == [('Go, "now"\n\nor later', "Geh")]


def test_stdin_is_one_of_the_sides_or_a_table(tmp_path, monkeypatch):
    class Piped:
        def __init__(self, text):
            self.buffer = io.BytesIO(text.encode())

    monkeypatch.setattr(sys, "stdin", Piped("\n".join(ENGLISH)))
    assert read(*pair_sources(["-"], [lines(tmp_path / "de", GERMAN)])) == PAIRS
    monkeypatch.setattr(sys, "stdin", Piped("".join(f"{a}\t{b}\n" for a, b in PAIRS)))
    assert read(*pair_sources(["-"])) == PAIRS
    with pytest.raises(UserError, match="both come from stdin"):
        pair_sources(["-"], ["-"])


def test_several_tasks_with_a_prefix_each(tmp_path):
    (tmp_path / "sum.tsv").write_text("long text\tshort\n")
    translate = PairSource(lines(tmp_path / "en", ENGLISH), lines(tmp_path / "de", GERMAN), "ende", "to German: ")
    found = list(read_pairs([translate, PairSource(tmp_path / "sum.tsv", name="sum", prefix="summarize: ")]))
    assert found[0] == TextPair("to German: A dog runs.", "Ein Hund läuft.", ("ende", "to German: "))
    assert found[3] == TextPair("summarize: long text", "short", ("sum", "summarize: ")) and len(found) == 4


def test_what_the_command_line_means(tmp_path):
    files = [lines(tmp_path / name, ENGLISH) for name in ("a.en", "a.de", "b.en", "b.de")]
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


def test_files_of_different_length_say_how_many_lines_each_has(tmp_path):
    source, target = lines(tmp_path / "en", [*ENGLISH, "more", "and more"]), lines(tmp_path / "de", ["", *GERMAN[1:]])
    said = refused(PairSource(source, target))
    assert said.startswith(f"{source} has 5 lines and {target} 3; ")
    assert said.endswith(f"{target}, line 1   is empty")  # all problems at once
    assert refused(PairSource(target, source)).startswith(f"{target} has 3 lines and {source} 5; ")
    (tmp_path / "none").write_text("")
    assert refused(PairSource(source, tmp_path / "none")).startswith(f"{tmp_path / 'none'} is empty and {source} has 5")
    assert "there is no pair" in refused(PairSource(tmp_path / "none", tmp_path / "none"))


def test_empty_lines_are_counted_and_the_first_are_named(tmp_path, caplog):
    source = lines(tmp_path / "en", [" " if number % 10 == 3 else f"s{number}" for number in range(1, 201)])
    target = lines(tmp_path / "de", ["" if number in (5, 13) else f"t{number}" for number in range(1, 201)])
    said = refused(PairSource(source, target))
    first, *listed = said.split("\n")
    assert first.startswith(f"21 lines of {source} and {target} are no pairs") and "--empty skip" in first
    assert listed[0].split(maxsplit=1)[1] == "line 3    is empty" and str(target) in listed[1]
    assert "line 13" in listed[2] and "has no source and no target" in listed[2]
    assert len(listed) == MAX_PROBLEMS_SHOWN + 1 and listed[-1].strip() == f"and {21 - MAX_PROBLEMS_SHOWN} more"

    pairs = read_pairs([PairSource(source, target)])  # whoever reads is not kept busy with what is refused in the end
    assert [next(pairs).source for _ in range(2)] == ["s1", "s2"]
    with pytest.raises(UserError):
        next(pairs)
    kept = read(PairSource(source, target), empty="skip")
    assert len(kept) == 179 and all(a and b and a[1:] == b[1:] for a, b in kept)
    assert caplog.messages == [f"{source}: 21 pairs with an empty side are left out."]


def test_one_bad_line_is_one_sentence(tmp_path):
    source, target = lines(tmp_path / "en", ENGLISH), lines(tmp_path / "de", [GERMAN[0], "\t", GERMAN[2]])
    assert refused(PairSource(source, target)).startswith(f"{target}, line 2 is empty; correct it, or drop ")


@pytest.mark.parametrize(("name", "text", "said"), [
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
def test_a_row_that_is_not_a_pair_is_reported_with_its_line(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    assert said in refused(PairSource(tmp_path / name))


def test_what_json_should_not_spell_is_dropped_on_request(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"source": "a\\u0000b", "target": "c\\ud83dd"}\n')
    assert read(PairSource(tmp_path / "a.jsonl"), errors="replace") == [("ab", "c?d")]


def test_wrong_encodings_missing_files_and_endless_lines(tmp_path, monkeypatch):
    source, target = lines(tmp_path / "en", ENGLISH), tmp_path / "de"
    target.write_bytes("\n".join(GERMAN).encode("latin-1"))
    assert f"{target} is not utf-8 at byte 10" in refused(PairSource(source, target))
    assert "no such file" in refused(PairSource(source, tmp_path / "nowhere"))
    assert "is 2 files" in refused(PairSource(source, tmp_path / "[de][en]"))
    monkeypatch.setattr(parallel, "LINE_LIMIT", 20)
    assert f"{source}, line 1 is longer than 20 characters" in refused(
        PairSource(lines(tmp_path / "en", ["x" * 30], end=""), source))

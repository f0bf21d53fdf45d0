import json

import pytest

from stemma.errors import UserError
from stemma.text.lexicon import AnnotatedSpans, Lexicon, read_annotations


def write_list(tmp_path, text, name="list.txt", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def read_error(path, **options):
    with pytest.raises(UserError) as error:
        read_annotations(path, **options)
    return error.value


def test_a_lexicon_has_one_entry_per_line_with_an_optional_type(tmp_path):
    result = read_annotations(write_list(tmp_path, "New  York\tplace\r\nthe river\n北京\t地名\nNew York\tplace"))
    assert result == Lexicon({"New York": "place", "the river": None, "北京": "地名"})


def test_a_byte_order_mark_and_other_encodings_are_read(tmp_path):
    assert read_annotations(write_list(tmp_path, "北京\n", encoding="utf-8-sig")) == Lexicon({"北京": None})
    assert read_annotations(write_list(tmp_path, "北京\n", encoding="gb18030"), "gb18030") == Lexicon({"北京": None})


def test_all_invalid_lines_of_a_lexicon_are_reported_at_once(tmp_path):
    error = read_error(write_list(tmp_path, "one\n\ntwo\tA\n\tB\ntwo\tC\nthree\tA\tB\n   \n"))
    assert [line for line, _ in error.problems] == ["line 2", "line 4", "line 5", "line 6", "line 7"]
    assert "list.txt" in error.message and error.problems[0][1] == "is empty"
    many = read_error(write_list(tmp_path, "one\n" + "\n" * 30 + "two\n"))
    assert len(many.problems) == 9 and many.problems[-1][1] == "and 22 more"


def test_a_wrong_encoding_is_reported_with_the_line(tmp_path):
    path = write_list(tmp_path, "river\n北京\n", encoding="gb18030")
    assert "list.txt, line 2 is not utf-8" in read_error(path).message and "--encoding" in read_error(path).message
    assert "no text encoding" in read_error(path, encoding="utf-9").message


def test_empty_and_missing_files_are_refused(tmp_path):
    assert "is empty" in read_error(write_list(tmp_path, "")).message
    assert "is empty" in read_error(write_list(tmp_path, "\n \n")).message
    assert "cannot read" in read_error(tmp_path / "none.txt").message


COLUMNS = "document\tstart\tend\ttype\n1\t4\t6\tPER\n0\t3\t5\n0\t0\t3\tLOC\n"
LINES = [{"document": 1, "start": 4, "end": 6, "type": "PER"}, {"document": 0, "start": 3, "end": 5},
         {"document": 0, "start": 0, "end": 3, "type": "LOC"}]


@pytest.mark.parametrize(("name", "text"), [("spans.tsv", COLUMNS), ("spans.txt", COLUMNS.split("\n", 1)[1]),
                                            ("spans.jsonl", "\n".join(map(json.dumps, LINES)))])
def test_spans_are_sorted_and_keep_their_line_numbers(tmp_path, name, text):
    result = read_annotations(write_list(tmp_path, text, name))
    assert isinstance(result, AnnotatedSpans) and len(result) == 3
    assert result.table.tolist() == [[0, 0, 3], [0, 3, 5], [1, 4, 6]] and result.kinds == ["LOC", None, "PER"]
    first = 2 if text.startswith("document") else 1
    assert result.lines.tolist() == [first + 2, first + 1, first]


def test_spans_that_overlap_are_refused_by_line(tmp_path):
    error = read_error(write_list(tmp_path, "0\t5\t9\n0\t0\t6\n1\t0\t6\n1\t6\t7\n1\t2\t3\n", "spans.tsv"))
    assert [(line, message) for line, message in error.problems] == [
        ("line 1", "overlaps the span of line 2"), ("line 5", "overlaps the span of line 3")]


@pytest.mark.parametrize(("name", "line", "message"), [
    ("spans.tsv", "0\t5\tx", "end is 'x'"), ("spans.tsv", "0\t-1\t4", "start is '-1'"),
    ("spans.tsv", "0\t5\t5", "not after"),
    ("spans.tsv", "", "is empty"), ("spans.tsv", "0\t1", "2 columns"), ("spans.tsv", "0\t1\t2\tA\tB", "5 columns"),
    ("spans.jsonl", "{", "is no JSON"), ("spans.jsonl", '{"document": 0}', "has no start and no end"),
    ("spans.jsonl", "[0, 1, 2]", "has no document"),
    ("spans.jsonl", '{"document": true, "start": 0, "end": 1}', "document is"),
    ("spans.jsonl", "", "is empty"),
])
def test_invalid_spans_are_reported_by_line(tmp_path, name, line, message):
    good = "0\t0\t2" if name.endswith("tsv") else '{"document": 0, "start": 0, "end": 2}'
    error = read_error(write_list(tmp_path, f"{good}\n{line}\n{good.replace('0', '7', 1)}\n", name))
    assert [where for where, _ in error.problems] == ["line 2"] and message in error.problems[0][1]

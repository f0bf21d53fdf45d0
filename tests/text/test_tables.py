"""Reading TSV, CSV and JSONL tables, and errors for files that are not tables."""

from __future__ import annotations

import gzip
import json

import pytest

from stemma.errors import UserError
from stemma.text.tables import cell_text, read_table


def write(path, content: str):
    path.write_text(content, encoding="utf-8")
    return path


def test_only_tabs_separate_tsv_cells(tmp_path):
    text = '\ufeffQuality\t#1 String\r\n1\t" He said \u2028 so , " \r\n\r\n0\tcan\'t "\r\n'
    table = read_table(write(tmp_path / "dev.tsv", text))
    assert table.columns == ["Quality", "#1 String"]
    assert table.rows == [{"Quality": "1", "#1 String": '" He said \u2028 so , " '},
                          {"Quality": "0", "#1 String": 'can\'t "'}]
    assert table.lines == [2, 4] and table.location(1).endswith("dev.tsv, line 4") and len(table) == 2


def test_quoted_csv_cells_may_contain_commas_and_newlines(tmp_path):
    table = read_table(write(tmp_path / "a.csv", 'text,label\n"one, ""two""\nthree",1\n\nfour,0\n'))
    assert table.rows == [{"text": 'one, "two"\nthree', "label": "1"}, {"text": "four", "label": "0"}]
    assert table.lines == [2, 5]


def test_json_lines_keep_the_types_of_values(tmp_path):
    rows = [{"text": "a\tb", "label": 1, "endings": ["x", "y"]}, {"text": "\u2028", "label": True}]
    content = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    compressed = tmp_path / "a.jsonl.gz"
    compressed.write_bytes(gzip.compress(content.encode()))
    table = read_table(compressed)
    assert table.rows == rows and table.lines == [1, 3] and table.columns == ["text", "label", "endings"]
    assert [cell_text(value) for value in ("a", 1, True, None, [1])] == ["a", "1", "true", "null", "[1]"]


@pytest.mark.parametrize(("content", "columns"), [("a\tb\n1\t2", ["a", "b"]), ("a,b\n1,2", ["a", "b"]),
                                                  ('{"a": 1}', ["a"])])
def test_without_a_suffix_the_format_follows_from_the_first_line(tmp_path, content, columns):
    assert read_table(write(tmp_path / "data", content)).columns == columns


def test_a_header_can_be_given(tmp_path):
    path = write(tmp_path / "dev.tsv", "gj04\t1\t\tThe sailors.\n")
    table = read_table(path, ["source", "label", "star", "sentence"])
    assert table.rows == [{"source": "gj04", "label": "1", "star": "", "sentence": "The sailors."}]


def test_all_missing_columns_are_reported_with_the_nearest_name(tmp_path):
    table = read_table(write(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n'))
    assert table.problems(["text"]) == []
    (first, message), (second, missing) = table.problems(["texd", "label"])
    assert (first, second) == ("texd", "label")
    assert message.endswith('a.jsonl has no such column. Did you mean "text"?')
    assert missing.endswith("a.jsonl, line 2")
    assert table.problems(["zzz"])[0][1].endswith("It has text, label.")


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.tsv", " \n", "a.tsv is empty"),
    ("a.tsv", "text\tlabel\n", "a.tsv has a header and no rows"),
    ("a.tsv", "text\ttext\na\tb\n", 'two columns named "text"'),
    ("a.csv", 'a,b\n1,"x"y\n', "a.csv, line 2: .*a quote within a quoted cell is written twice"),
    ("a.txt", "just words\n", "no tab, no comma and no JSON"),
])
def test_files_that_are_not_tables_are_refused(tmp_path, name, content, message):
    with pytest.raises(UserError, match=message):
        read_table(write(tmp_path / name, content))


def test_all_rows_with_a_wrong_number_of_cells_are_reported(tmp_path):
    rows = "".join(f"a\t{'b' if index % 2 else 'b' + chr(9) + 'c'}\n" for index in range(30))
    with pytest.raises(UserError, match="15 rows do not have the 2 cells of the header; are there tabs") as error:
        read_table(write(tmp_path / "a.tsv", "text\tlabel\n" + rows))
    assert error.value.problems[:2] == [("line 2", "3 cells"), ("line 4", "3 cells")]
    assert error.value.problems[-1] == ("", "and 7 more")
    with pytest.raises(UserError, match="2 lines that are not JSON objects") as error:
        read_table(write(tmp_path / "a.jsonl", '{"a": 1}\n[1]\n{"a"\n'))
    assert [line for line, _ in error.value.problems] == ["line 2", "line 3"]
    with pytest.raises(UserError, match="no such file"):
        read_table(tmp_path / "b.tsv")

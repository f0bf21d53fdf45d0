"""Relevance tables of query, title and label: formats, numeric and text labels, and errors by line."""

from __future__ import annotations

import pytest

from stemma.errors import UserError
from stemma.text.relevance import RelevanceExample, open_relevance

ROWS = [RelevanceExample("red shoe", "shoes, red", 2), RelevanceExample("river", 'the "Po"', 0)]


@pytest.mark.parametrize(("name", "text"), [
    ("r.tsv", 'query\ttitle\tlabel\nred shoe\tshoes, red\t2\n\nriver\tthe "Po"\t0\n'),
    ("r.tsv", 'label\tid\ttitle\tQuery\n2\tx\tshoes, red\tred shoe\n0\ty\tthe "Po"\triver\n'),
    ("r.csv", 'query,title,label\nred shoe,"shoes, red",2\nriver,"the ""Po""",0\n'),
    ("r.jsonl", '{"query": "red shoe", "title": "shoes, red", "label": 2}\n'
                '{"query": "river", "title": "the \\"Po\\"", "label": "0", "more": 1}\n'),
    ("r.tsv", 'red shoe\tshoes, red\t2\nriver\tthe "Po"\t0\n'),
])
def test_tsv_csv_and_jsonl_give_the_same_rows(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    result = open_relevance([tmp_path / name])
    assert list(result.rows()) == ROWS and result.labels == ["0", "1", "2"]
    assert list(result.rows()) == ROWS  # the rows can be read again


def test_word_labels_are_numbered_in_sorted_order_over_all_files(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text("query\ttitle\tlabel\nq\tt\tgood\n")
    (tmp_path / "b.tsv").write_text("query\ttitle\tlabel\nq\tt\tbad\nq\tt\tgood\n")
    result = open_relevance([tmp_path])
    assert [row.label for row in result.rows()] == [1, 0, 1] and result.labels == ["bad", "good"]
    assert caplog.messages == ['labels are numbered 0 = "bad", 1 = "good".']


def test_a_missing_header_is_reported(tmp_path, caplog):
    (tmp_path / "a.tsv").write_text("q\tt\t1\n")
    assert list(open_relevance([tmp_path / "a.tsv"]).rows()) == [RelevanceExample("q", "t", 1)]
    assert "has no header" in caplog.messages[0]


@pytest.mark.parametrize(("name", "text", "message"), [
    ("r.tsv", "query\ttitle\nq\tt\n", "has no column label (its first line has: query, title)"),
    ("r.tsv", "query\ttitle\tlabel\nq\tt\n", "r.tsv, line 2 has 2 columns instead of 3"),
    ("r.tsv", "query\ttitle\tlabel\n\nq\t\t1\n", "r.tsv, line 3 has no title"),
    ("r.tsv", "query\ttitle\tlabel\n\t \t\nq\t\t1\n", "line 3 has no title"),
    ("r.tsv", "query\ttitle\tlabel\nq\t\t\nq\tt\n", "2 rows of"),
    ("r.tsv", "query\ttitle\tlabel\n", "there is no row in"), ("r.tsv", "\n", "there is no row in"),
    ("r.csv", 'query,title,label\nq,"t,1\n', "line 2: "),
    ("r.jsonl", '{"query": "q", "title": "t"}\n', "line 1 has no label"), ("r.jsonl", "[1]\n", "is not a JSON object"),
    ("r.jsonl", "{\n", "line 1 is not JSON"), ("r.tsv", "query\ttitle\tlabel\nq\tt\t254\n", "a few numbers from 0 on"),
    ("r.tsv", "query\ttitle\tlabel\n" + "".join(f"q\tt\tw{n}\n" for n in range(255)), "holds 255 different values"),
])
def test_invalid_tables_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        open_relevance([tmp_path / name])
    assert name in str(caught.value) and message in str(caught.value)


def test_standard_input_cannot_be_read_twice():
    with pytest.raises(UserError, match="name a file"):
        open_relevance(["-"])

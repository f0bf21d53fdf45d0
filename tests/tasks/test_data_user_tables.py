"""User tables: columns by name, and all problems of a file in one error."""

from __future__ import annotations

import json

import pytest

from stemma.errors import UserError
from stemma.tasks.data.checks import check_labelled, check_labels
from stemma.tasks.data.examples import TextExample, duplicate_fraction, label_counts, labels_of
from stemma.tasks.datasets import read_examples


@pytest.fixture
def write(tmp_path):
    def write_file(content: str | bytes, name: str = "a.tsv"):
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(data)
        return tmp_path / name
    return write_file


def test_default_columns_of_each_kind(write):
    assert read_examples("classify", write("label\ttext\n1\ta b\n"))[0].texts == ("a b",)
    assert read_examples("classify", write('{"text": "a", "label": 1}\n', "a.jsonl"))[0].label == "1"
    assert read_examples("classify", write('text,label\n"a, b",x\n', "a.csv"))[0].texts == ("a, b",)
    for first_column, second_column in (("text_a", "text_b"), ("sentence1", "sentence2"), ("premise", "hypothesis")):
        examples = read_examples("pair", write(f"id\t{first_column}\t{second_column}\tlabel\n9\ta\tb\tyes\n"))
        assert (examples[0].texts, examples[0].label, examples[0].id) == (("a", "b"), "yes", "9")
    assert read_examples("regress", write("text\tlabel\na\t-1.5e1\n"))[0] == \
           TextExample(str(write("")) + ", line 2", ("a",), -15.0)
    assert read_examples("regress", write("sentence1\tsentence2\tscore\na\tb\t2\n"))[0].texts == ("a", "b")
    examples = read_examples("rank", write("query\tcandidate\tlabel\nq\ta\t1\nq\tb\t0\nr\tc\t1\n"))
    assert [example.group for example in examples] == ["q", "q", "r"]
    examples = read_examples("rank", write("group\tquery\tcandidate\tlabel\n1\tq\ta\t1\n2\tq\tb\t0\n"))
    assert [example.group for example in examples] == ["1", "2"]


def test_columns_can_be_renamed(write):
    path = write("stars\treview\tlabel\n5\tgood\tx\n")
    assert read_examples("classify", path, columns={"text": "review", "label": "stars"})[0].label == "5"
    with pytest.raises(UserError, match='no column is called "txt".*Did you mean "text"'):
        read_examples("classify", path, columns={"txt": "review"})
    with pytest.raises(UserError, match='has no column star.*Did you mean "stars"'):
        read_examples("classify", path, columns={"text": "review", "label": "star"})
    with pytest.raises(UserError, match="no column text_a and no text_b"):
        read_examples("pair", path)


@pytest.mark.parametrize(("kind", "content", "columns", "expected"), [
    ("classify", "a fine film\t1\na dull one\t0\n", {"text": "1", "label": "2"},
     'has no column text. Its first line is "a fine film", "1": no header? Then count the columns: '
     "--columns text=1,label=2."),
    ("pair", "a\tb\tyes\nc\td\tno\n", {"text_a": "1", "text_b": "2", "label": "3"},
     'has no column text_a and no text_b. Its first line is "a", "b", "yes": no header? Then count the columns: '
     "--columns text_a=1,text_b=2,label=3."),
])
def test_a_file_without_a_header_needs_column_numbers(write, kind, content, columns, expected):
    path = write(content)
    with pytest.raises(UserError) as caught:
        read_examples(kind, path)
    assert expected in str(caught.value)
    examples = read_examples(kind, path, columns=columns)
    assert len(examples) == 2 and examples[0].where == f"{path}, line 1" and examples[1].label in ("0", "no")


def test_choices_need_a_header(write):
    with pytest.raises(UserError, match='first line is "c", "x", "1": no header.*put a line with the names'):
        read_examples("choice", write("c\tx\t1\nc\ty\t0\n"))


def test_a_header_that_lacks_one_column_is_a_header(write):
    with pytest.raises(UserError, match="has no column text. It has body, label."):
        read_examples("classify", write("body\tlabel\na\t1\n"))
    with pytest.raises(UserError, match="has no column text. It has body, class."):  # keys of JSON are no row
        read_examples("classify", write('{"body": "a", "class": 1}\n', "a.jsonl"))
    examples = read_examples("classify", write("2\t1\na\tb\n"), columns={"text": "1", "label": "2"})
    assert (examples[0].texts, examples[0].label) == (("b",), "a")  # columns that are named by numbers
    with pytest.raises(UserError, match=r'two columns named "same".*put a header above'):
        read_examples("classify", write("same\tsame\na\tb\n"))


def test_options_are_read_from_columns_or_lists(write):
    examples = read_examples("choice", write("context\toption_a\toption_b\tlabel\nc\tx\ty\tB\nc\tx\ty\t0\n"))
    assert [(example.options, example.label, example.question) for example in examples] == \
           [(("x", "y"), 1, ""), (("x", "y"), 0, "")]
    rows = [{"context": "c", "question": "q", "options": ["x", "y", "z"], "label": 2},
            {"context": "c", "options": ["x", "y"], "label": 1}]
    examples = read_examples("choice", write("\n".join(map(json.dumps, rows)), "a.jsonl"))
    assert [(example.options, example.label, example.question) for example in examples] == \
           [(("x", "y", "z"), 2, "q"), (("x", "y"), 1, "")]
    examples = read_examples("choice", write("context\tone\ttwo\tlabel\nc\tx\ty\t1\n"), columns={"options": "one,two"})
    assert examples[0].options == ("x", "y")
    assert read_examples("choice", write("context\tending0\tending1\nc\tx\ty\n"))[0].label is None
    with pytest.raises(UserError, match="has no options"):
        read_examples("choice", write("context\tlabel\nc\t1\n"))
    with pytest.raises(UserError, match="line 2"):
        read_examples("choice", write("context\toption0\toption1\tlabel\nc\tx\ty\t2\n"))


def test_all_problems_are_reported_together(write):
    rows = "".join(f"{text}\t{label}\n" for text, label in [("a", "1"), ("  ", "1"), ("b", ""), ("c", "0"), ("", "0")])
    with pytest.raises(UserError, match="3 problems") as error:
        read_examples("classify", write("text\tlabel\n" + rows))
    assert [where.rsplit(" ", 1)[1] for where, _ in error.value.problems] == ["3", "4", "6"]
    with pytest.raises(UserError, match=r'line 3: nothing in column "text"; correct it'):
        read_examples("classify", write("text\tlabel\na\t1\n\t1\n"))
    with pytest.raises(UserError, match="12 problems") as error:
        read_examples("classify", write("text\tlabel\na\t1\n" + "\t1\n" * 12))
    assert len(error.value.problems) == 9 and error.value.problems[-1] == ("", "and 4 more")


def test_scores_must_be_numbers(write):
    with pytest.raises(UserError, match="3 problems") as error:
        read_examples("regress", write("text\tlabel\na\t1\nb\ttwo\nc\tnan\nd\t\n"))
    assert [where.rsplit(" ", 1)[1] for where, _ in error.value.problems] == ["3", "4", "5"]
    assert '"two" is no number' in str(error.value)


@pytest.mark.parametrize(("content", "message"), [
    (b"", "is empty"), (b"text\tlabel\n", "no rows"), (b"text\tlabel\na\tb\tc\n", "does not have the 2 cells"),
    ("text\tlabel\nn\u00e9\t1\n".encode("latin-1"), "UTF-8|utf-8")])
def test_invalid_files_are_reported(write, content, message):
    with pytest.raises(UserError, match=message):
        read_examples("classify", write(content))


def test_files_in_other_encodings_are_read(write):
    path = write("text\tlabel\n很好\t1\n".encode("gb18030"))
    assert read_examples("classify", path, encoding="gb18030")[0].texts == ("很好",)


def test_labels_are_sorted_numerically_or_alphabetically(write):
    path = write("text\tlabel\n" + "".join(f"t{n}\t{label}\n" for n, label in enumerate(["10", "2", "2", "-1"])))
    assert labels_of(read_examples("classify", path)) == ["-1", "2", "10"]
    assert label_counts(read_examples("classify", path)) == {"2": 2, "-1": 1, "10": 1}
    assert labels_of([TextExample("", ("a",), label) for label in ("yes", "10", None)]) == ["10", "yes"]


def test_labels_missing_from_training_are_rejected():
    labels = ["yes", "No", None, "no", "maybe"]
    dev = [TextExample(f"dev.tsv, line {line}", ("a",), label) for line, label in enumerate(labels, 2)]
    check_labels(["yes", "No", "no", "maybe"], dev, "dev.tsv")
    with pytest.raises(UserError, match="2 problems in dev.tsv") as error:
        check_labels(["yes", "no"], dev, "dev.tsv")
    assert [where for where, _ in error.value.problems] == ["dev.tsv, line 3", "dev.tsv, line 6"]
    with pytest.raises(UserError, match="dev.tsv, line 4"):
        check_labelled(dev, "dev.tsv")


def test_unlabelled_files_are_reported(write, caplog):
    for content in ("text\na\n", "text\tlabel\na\t\n"):
        assert read_examples("classify", write(content))[0].label is None
    assert len(caplog.messages) == 2 and all("has no label" in text for text in caplog.messages)


def test_duplicate_fraction_is_that_of_dev_texts_in_train():
    train = [TextExample("", (text,), "1") for text in "abc"]
    dev = [TextExample("", (text,), "0") for text in "abxy"]
    assert duplicate_fraction(train, dev) == 0.5
    assert duplicate_fraction(train, train) == 1.0
    assert duplicate_fraction(train, []) == 0.0

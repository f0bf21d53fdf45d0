"""Inputs of `predict` come in chunks, in every format, and each row has its line number."""

from __future__ import annotations

import json

import pytest

from stemma.errors import UserError
from stemma.tasks import predict_inputs
from stemma.tasks.data.examples import ChoiceExample
from stemma.tasks.predict_inputs import read_inputs


def write(path, content: str):
    path.write_text(content, encoding="utf-8")
    return path


def test_rows_are_predicted_before_the_rest_of_the_file_is_read(tmp_path):
    rows = [json.dumps({"text": f"row {index}"}) for index in range(3 * predict_inputs.CHUNK_ROWS)]
    chunks = read_inputs("classify", write(tmp_path / "in.jsonl", "\n".join([*rows, "{broken"])))
    for index in range(3):
        chunk = next(chunks)
        assert [one.echo["text"] for one in chunk] == [f"row {index * predict_inputs.CHUNK_ROWS + n}"
                                                       for n in range(predict_inputs.CHUNK_ROWS)]
    with pytest.raises(UserError, match=f"line {3 * predict_inputs.CHUNK_ROWS + 1} is not JSON"):
        next(chunks)


def test_long_rows_make_short_chunks(tmp_path):
    text = "x" * (predict_inputs.CHUNK_CHARACTERS // 2)
    for name, content in (("in.txt", f"{text}\n" * 5), ("in.tsv", "text\n" + f"{text}\n" * 5)):
        assert [len(chunk) for chunk in read_inputs("classify", write(tmp_path / name, content))] == [2, 2, 1]


def test_line_numbers_are_correct_after_multi_line_cells(tmp_path):
    content = 'text,id\n"one\ntwo",a\n\n"thr""ee",b\n'
    ((first, second),) = read_inputs("classify", write(tmp_path / "in.csv", content))
    assert first.echo == {"line": 2, "id": "a", "text": "one\ntwo"}
    assert second.echo == {"line": 5, "id": "b", "text": 'thr"ee'}
    with pytest.raises(UserError, match="line 2: .*a quote within a quoted cell"):
        list(read_inputs("classify", write(tmp_path / "bad.csv", 'text\n"one" two"\n')))


def test_gold_columns_are_ignored(tmp_path):
    row = {"text_a": "a", "text_b": "b", "label": "never seen", "score": "no number"}
    for kind in ("pair", "regress", "rank", "classify"):  # whoever judges texts may judge pairs
        ((one,),) = read_inputs(kind, write(tmp_path / "in.jsonl", json.dumps(row)))
        assert one.example.texts == ("a", "b") and one.example.label is None
    ((one,),) = read_inputs("tag", write(tmp_path / "in.jsonl", json.dumps({"words": ["a", "b"], "tags": ["X"]})))
    assert one.example.tags is None and one.word_offsets == [(0, 1), (2, 3)]
    row = {"context": "c", "question": "q", "answers": [{"text": "nowhere", "answer_start": 0}]}
    ((one,),) = read_inputs("qa", write(tmp_path / "in.jsonl", json.dumps(row)))
    assert one.example.answers == () and one.echo == {"line": 1, "question": "q"}
    row = {"context": "c", "question": "", "options": ["x", "y"], "label": 7}
    ((one,),) = read_inputs("choice", write(tmp_path / "in.jsonl", json.dumps(row)))
    assert isinstance(one.example, ChoiceExample) and one.example.label is None


def test_columns_can_be_renamed(tmp_path):
    file = write(tmp_path / "in.tsv", "score\treview\n5\tfine\n")
    ((one,),) = read_inputs("classify", file, columns={"text": "score"})
    assert one.echo["text"] == "5"  # a column that is asked for is no answer
    assert next(read_inputs("classify", file))[0].echo["text"] == "fine"


def test_plain_text_is_split_into_words_with_offsets(tmp_path):
    text = "Dr. Müller's 字典, 3.5%"
    ((one,),) = read_inputs("tag", write(tmp_path / "in.txt", f"\n  {text}  \n"))
    assert one.echo == {"line": 2, "text": text}
    assert [text[a:b] for a, b in one.word_offsets] == list(one.example.words)
    assert one.example.words[:6] == ("Dr", ".", "Müller", "'", "s", "字")


def test_only_lf_ends_a_line(tmp_path):
    ((one,),) = read_inputs("classify", write(tmp_path / "in.txt", "a\u2028b\x85c\n"))
    assert one.echo["text"] == "a\u2028b\x85c"

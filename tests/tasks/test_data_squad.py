"""SQuAD and its Chinese variants, and answers with wrong start positions."""

from __future__ import annotations

import json

import pytest

from stemma.errors import UserError
from stemma.tasks.data.checks import check_labelled
from stemma.tasks.data.examples import Answer, duplicate_fraction, label_counts
from stemma.tasks.datasets import read_examples

CONTEXT = "The old clerk reads the letter by the window."


@pytest.fixture
def write(tmp_path):
    def write_file(content, name: str = "a.json"):
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name
    return write_file


def squad(*entries: dict, context: str = CONTEXT) -> dict:
    return {"version": "v2.0", "data": [{"title": "T", "paragraphs": [{"context": context, "qas": list(entries)}]}]}


def entry(index: int, *answers: tuple[str, int], **more) -> dict:
    return {"id": f"q{index}", "question": "Who?", "answers": [{"text": text, "answer_start": start}
                                                               for text, start in answers], **more}


def test_squad_of_both_versions(write):
    (first,) = read_examples("squad", write(squad(entry(1, ("clerk", 8), ("The old clerk", 0)))))
    assert first.answers == (Answer("clerk", 8), Answer("The old clerk", 0)) and first.impossible is False
    assert (first.id, first.context, first.question) == ("q1", CONTEXT, "Who?") and '"q1"' in first.where
    examples = read_examples("squad2", write(squad(
        entry(1, ("clerk", 8), is_impossible=False),
        entry(2, is_impossible=True, plausible_answers=[{"text": "letter", "answer_start": 24}]), entry(3),
        entry(4, is_impossible=False))))
    assert [(example.answers, example.impossible) for example in examples] == \
           [((Answer("clerk", 8),), False), ((), True), ((), None), ((), None)]
    assert label_counts(examples) == {"answerable": 1, "unanswerable": 1}
    check_labelled(examples[:2], "a.json")
    with pytest.raises(UserError, match='"q3"'):
        check_labelled(examples, "a.json")
    assert duplicate_fraction(examples[:1], examples) == 1.0  # one context, one question


def test_an_answer_with_a_wrong_start_moves_to_its_only_occurrence(write, caplog):
    (example,) = read_examples("qa", write(squad(entry(1, ("clerk", 9)))))
    assert example.answers == (Answer("clerk", 8),)
    assert example.context[8:8 + len("clerk")] == "clerk"
    assert len(caplog.messages) == 1 and "1 answer" in caplog.messages[0]


def test_answers_that_cannot_be_located_are_rejected(write):
    with pytest.raises(UserError, match="3 problems") as error:
        read_examples("qa", write(squad(entry(1, ("clerk", 8)), entry(2, ("scribe", 8)), entry(3, ("the", 5)),
                                        entry(4, ("clerk", 8), is_impossible=True))))
    message = str(error.value)
    assert "nowhere in its paragraph" in message and "not at character 5" in message and '"q1"' not in message
    assert "is_impossible" in message
    assert read_examples("qa", write(squad(entry(3, ("the", 34)))))[0].answers == (Answer("the", 34),)


def test_both_formats_of_cmrc(write):
    context = "《战国无双3》是由光荣开发的。光荣很大。"
    (example,) = read_examples("cmrc2018", write([{"context_id": "D_0", "context_text": context, "title": "T", "qas": [
        {"query_id": "D_0_Q_0", "query_text": "谁开发？", "answers": ["光荣", "由光荣"]}]}]))
    assert (example.id, example.question) == ("D_0_Q_0", "谁开发？")
    assert example.answers == (Answer("光荣", 9), Answer("由光荣", 8)) and context[9:11] == "光荣"
    (example,) = read_examples("cmrc2018", write(squad(entry(1, ("光荣", 15)), context=context)))
    assert example.answers == (Answer("光荣", 15),)
    (example,) = read_examples("drcd", write(squad(entry(1, ("光荣", 15)), context=context)))
    assert example.answers == (Answer("光荣", 15),)


def test_cjrc_as_released(write, caplog):
    no, yes = {"is_impossible": "false"}, {"is_impossible": "true"}
    content = squad(entry(1, ("clerk", 8), ("old clerk", 4), **no), entry(2, ("YES", -1), **no),
                    entry(3, ("", -1), **yes), entry(4, ("clerk", 8), **yes),
                    entry(5, ("nobody", 3), ("clerk", 8), **no), entry(6, ("nobody", 3), **no))
    examples = read_examples("cjrc", write(content))
    assert [(example.id, len(example.answers), example.impossible) for example in examples] == \
           [("q1", 2, False), ("q3", 0, True), ("q4", 1, False), ("q5", 1, False)]
    first, second = caplog.messages
    assert "1 question with the answer YES or NO" in first and "left out 2 answers" in second


def test_json_lines(write):
    rows = [{"id": 7, "context": CONTEXT, "question": "Who?", "answers": {"text": ["clerk"], "answer_start": [8]}},
            {"context": CONTEXT, "question": "Who?", "answers": [{"text": "clerk"}]},
            {"context": CONTEXT, "question": "Who?", "answers": []}, {"context": CONTEXT, "question": "Who?"}]
    path = write("\n".join(map(json.dumps, rows)), "a.jsonl")
    examples = read_examples("qa", path)
    assert [(example.answers, example.impossible) for example in examples] == \
           [((Answer("clerk", 8),), False), ((Answer("clerk", 8),), False), ((), True), ((), None)]
    assert examples[0].id == "7" and examples[1].where.endswith("line 2")
    renamed = [{"text": CONTEXT, "question": "Who?", "answers": ["letter"]}]
    path = write("\n".join(map(json.dumps, renamed)), "b.jsonl")
    assert read_examples("qa", path, columns={"context": "text"})[0].answers == (Answer("letter", 24),)
    with pytest.raises(UserError, match="no questions about paragraphs"):
        read_examples("qa", path)


@pytest.mark.parametrize(("content", "message"), [
    ('{"data": [', "line 1 is not JSON"), ("[1, 2]", "is no SQuAD file"),
    ({"data": [{"paragraphs": [{"context": "c"}]}]}, "'qas'"),
    ({"version": "1"}, "'data'"), ({"data": []}, "has no questions"), ("  \n", "is empty"),
    (squad(entry(1), context=" "), "no context"), (squad({**entry(1), "question": ""}), "no question"),
    (squad(entry(1), entry(1)), "another question has this id")])
def test_invalid_files_are_reported(write, content, message):
    with pytest.raises(UserError, match=message):
        read_examples("squad", write(content))

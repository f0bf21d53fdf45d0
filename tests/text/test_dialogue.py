"""Dialogue files: the common formats, speaker numbers, and errors by file and line."""

from __future__ import annotations

import gzip
import json

import pytest

from stemma.errors import UserError
from stemma.text.dialogue import Dialogue, read_dialogues

EXPECTED = [Dialogue(["Are you there?", "I am.", "Good."], [0, 1, 0])]


def write_jsonl(path, *lines: object):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("turns", [
    [{"role": "user", "text": "Are you there?"}, {"role": "assistant", "text": "I am."},
     {"role": "user", "text": "Good."}],
    [{"speaker": 7, "utterance": "Are you there?"}, {"speaker": 3, "utterance": "I am."},
     {"speaker": 7, "utterance": "Good."}],
    [{"from": "human", "value": "Are you there?"}, {"from": "gpt", "value": "I am."},
     {"from": "human", "value": "Good."}],
    [{"role": "a", "content": " Are you there?\n"}, {"role": "b", "content": "I am."},
     {"role": "a", "content": "Good."}],
    [["Ada", "Are you there?"], ["Bo", "I am."], ["Ada", "Good."]],
])
@pytest.mark.parametrize("key", ["turns", "messages", "conversations", "dialogue", None])
def test_the_common_formats_give_the_same_dialogue(tmp_path, turns, key):
    path = write_jsonl(tmp_path / "d.jsonl", turns if key is None else {"id": 5, key: turns})
    assert list(read_dialogues([path])) == EXPECTED


def test_speakers_are_numbered_as_they_appear_in_each_dialogue(tmp_path):
    path = write_jsonl(tmp_path / "d.jsonl", [["b", "x"], ["b", "y"], ["a", "z"], ["c", "w"]], [["a", "v"], ["b", "u"]])
    assert [dialogue.speakers for dialogue in read_dialogues([path])] == [[0, 0, 1, 2], [0, 1]]


def test_yml_turns_alternate_and_values_stay_text(tmp_path):
    text = 'categories:\n- x\nconversations:\n- - Are you there?\n  - no\n  - "3: four"\n  - yes\n- - 1984\n'
    (tmp_path / "d.yml").write_text(text)
    (tmp_path / "e.yml.gz").write_bytes(gzip.compress(text.encode()))
    expected = [Dialogue(["Are you there?", "no", "3: four", "yes"], [0, 1, 0, 1]), Dialogue(["1984"], [0])]
    assert list(read_dialogues([tmp_path / "d.yml"])) == expected
    assert list(read_dialogues([tmp_path])) == expected * 2  # a folder: all dialogue files in it


def test_yml_may_name_its_speakers(tmp_path):
    (tmp_path / "d.yml").write_text("conversations:\n- - {role: x, text: a}\n  - {role: x, text: b}\n"
                                    "  - {role: y, text: c}\n")
    assert list(read_dialogues([tmp_path / "d.yml"])) == [Dialogue(["a", "b", "c"], [0, 0, 1])]


@pytest.mark.parametrize(("line", "message"), [
    (["Are you there?", "I am."], "line 2 has no role at turn 1"),
    ([["a", "b"], {"text": "I am."}], "line 2 has no role at turn 2"),
    ([["a", "b"], {"role": "", "text": "I am."}], "line 2 has no role at turn 2"),
    ({"text": "hello"}, "line 2 has no turns, only text"), ({"turns": "hello"}, "line 2 has no list of turns"),
    ([], "line 2 has no turns"), ([["a", ["b"]]], "holds a list and no text at turn 1"),
    ([{"role": "a", "content": None}], "has no text at turn 1"), ([["a", "  "]], "has an empty text at turn 1"),
    ([[str(index), "x"] for index in range(300)], "300 speakers"), ("hello", "has no list of turns"),
])
def test_invalid_dialogues_are_refused_by_file_and_line(tmp_path, line, message):
    path = write_jsonl(tmp_path / "d.jsonl", [["a", "b"]], line)
    with pytest.raises(UserError) as caught:
        list(read_dialogues([path]))
    assert str(caught.value).startswith(f"{path}, line 2 ") and message in str(caught.value)
    assert '{"role": "user"' in str(caught.value)  # shows the expected format


def test_all_problems_of_a_file_are_reported_at_once(tmp_path):
    path = write_jsonl(tmp_path / "d.jsonl", *[["bare"]] * 12)
    with pytest.raises(UserError, match="12 records of .*d.jsonl are no dialogues") as caught:
        list(read_dialogues([path]))
    assert len(caught.value.problems) == 9 and caught.value.problems[-1][1] == "and 4 more"


def test_plain_text_is_refused(tmp_path):
    (tmp_path / "d.txt").write_text("A: hello\nB: hello\n")
    with pytest.raises(UserError, match="2 records of .*d.txt are no dialogues"):
        list(read_dialogues([tmp_path / "d.txt"]))


@pytest.mark.parametrize(("text", "message"), [
    ("a: 1\n", 'has no list "conversations"'), ("conversations: x\n", 'has no list "conversations"'),
    ("", "has no list"),
    ("conversations:\n- - a\n- b\n", "line 3 has no list of turns"), ("conversations: []\n", "there is no dialogue in"),
    ("conversations:\n- - 'a\n", "is not YAML"), ("conversations:\n- - a\n  - b: c: d\n", "line 3 is not YAML"),
    ("conversations: &a\n- *a\n", "is not YAML"),
])
def test_invalid_yml_is_refused(tmp_path, text, message):
    (tmp_path / "d.yml").write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_dialogues([tmp_path / "d.yml"]))
    assert str(tmp_path / "d.yml") in str(caught.value) and message in str(caught.value)


def test_other_encodings_and_lone_surrogates(tmp_path):
    (tmp_path / "d.jsonl").write_bytes('[["a", "你好"]]\n'.encode("gb18030"))
    assert list(read_dialogues([tmp_path / "d.jsonl"], encoding="gb18030"))[0].texts == ["你好"]
    with pytest.raises(UserError, match="try --encoding gb18030"):
        list(read_dialogues([tmp_path / "d.jsonl"]))
    (tmp_path / "e.jsonl").write_text('[["a", "x\\ud800"]]\n')
    with pytest.raises(UserError, match="line 1, turn 1 has half a character"):
        list(read_dialogues([tmp_path / "e.jsonl"]))
    assert list(read_dialogues([tmp_path / "e.jsonl"], errors="replace"))[0].texts == ["x?"]

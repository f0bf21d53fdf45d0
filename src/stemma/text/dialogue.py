"""Reads dialogues: JSON lines with a dialogue per line, or YAML in the layout of chatterbot-corpus.

    {"turns": [{"role": "user", "text": "Are you there?"}, {"role": "assistant", "text": "I am."}]}
    [["user", "Are you there?"], ["assistant", "I am."]]

Speakers are numbered within a dialogue by order of appearance, from 0. In YAML, where turns have no speaker, two
speakers alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.errors import UserError
from stemma.json_files import parse
from stemma.text.line_errors import LineErrors
from stemma.text.readers import JSON_LINES, clean_text, list_files, read_lines
from stemma.text.text_io import COMPRESSED, check_encoding, display_name, format_suffix, read_text

YAML = (".yml", ".yaml")
SUFFIXES = tuple(kind + packed for kind in (*JSON_LINES, *YAML) for packed in ("", *COMPRESSED))
TURN_KEYS = ("turns", "messages", "conversations", "conversation", "dialogue", "dialog", "utterances")
SPEAKER_KEYS = ("role", "speaker", "from")
TEXT_KEYS = ("text", "content", "value", "utterance")
MAX_SPEAKERS = 254  # 1 + speaker must fit a byte; 0 is no speaker
LIKE_JSON = 'a dialogue is a line like {"turns": [{"role": "user", "text": "..."}, {"role": "helper", "text": "..."}]}'
LIKE_YAML = 'a dialogue is a list of turns under "conversations:", the first after "- - ", the others after "  - "'
Record = tuple[int, Any]  # first line, content


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Texts of the turns, in order, and the index of each turn's speaker."""

    texts: list[str]
    speakers: list[int]


class DialogueError(Exception):
    """A record that is not a dialogue; the message says why."""


def read_dialogues(paths: Sequence[str | Path], *, encoding: str = "utf-8",
                   errors: str = "strict") -> Iterator[Dialogue]:
    """All dialogues of all files, in order. Options are checked immediately, files when they are read."""
    encoding, files = check_encoding(encoding, errors), list_files(paths, SUFFIXES)
    return (dialogue for file in files for dialogue in _read(file, encoding, errors))


def _read(file: Path, encoding: str, errors: str) -> Iterator[Dialogue]:
    read, advice = (_yaml, LIKE_YAML) if format_suffix(file) in YAML else (_json, LIKE_JSON)
    name, line_errors, count = display_name(file), LineErrors(), 0
    for line, record in read(file, encoding, errors):
        where = f"{name}, line {line}"
        try:
            dialogue = _parse_dialogue(record, where, errors)
        except DialogueError as error:
            line_errors.add(where, str(error))
            continue
        if not line_errors.lines:  # after an error, the rest is read only to count further errors
            count += 1
            yield dialogue
    line_errors.raise_if_any(f"records of {name} are no dialogues", advice)
    if not count:
        raise UserError(f"there is no dialogue in {name}; {advice}.")


def _json(file: Path, encoding: str, errors: str) -> Iterator[Record]:
    for line_number, line in read_lines(file, encoding, errors):
        if line and not line.isspace():
            try:
                yield line_number, parse(line)
            except ValueError as error:
                yield line_number, DialogueError(f"is not JSON ({getattr(error, 'msg', error)})")


def _yaml(file: Path, encoding: str, errors: str) -> Iterator[Record]:
    """Reads nodes, not values: words stay as written ("no" is not a boolean) and have line numbers."""
    import yaml

    name = display_name(file)
    try:
        root = yaml.compose("".join(read_text(file, encoding, errors)), Loader=yaml.SafeLoader)
        sections = {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}
        dialogues = sections.get("conversations")
        if not isinstance(dialogues, yaml.SequenceNode):
            raise UserError(f'{name} has no list "conversations" at its top; {LIKE_YAML}.')
        records = [(node.start_mark.line + 1, _with_alternating_speakers(_plain(node))) for node in dialogues.value]
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}, line {mark.line + 1}" if mark else name
        reason = getattr(error, "problem", None) or "it refers to itself"
        raise UserError(f"{where} is not YAML ({reason}); put text that begins with a YAML sign (such as - or :) in "
                        "quotes.") from error
    yield from records


def _plain(node: Any) -> Any:
    if isinstance(node.value, str):
        return node.value
    if node.id == "mapping":
        return {_plain(key): _plain(value) for key, value in node.value}
    return [_plain(item) for item in node.value]


def _with_alternating_speakers(record: object) -> Any:
    """Add two alternating speakers to turns that are only text."""
    if isinstance(record, list) and all(isinstance(turn, str) for turn in record):
        return [[str(index % 2), text] for index, text in enumerate(record)]
    return record


def _parse_dialogue(record: object, where: str, errors: str) -> Dialogue:
    if isinstance(record, DialogueError):
        raise record
    if isinstance(record, dict):
        turns = next((record[key] for key in TURN_KEYS if key in record), None)
        if turns is None:
            raise DialogueError(f"has no turns, only {', '.join(record) or 'nothing'}")
    else:
        turns = record
    if not isinstance(turns, list) or not turns:
        raise DialogueError("has no list of turns" if not isinstance(turns, list) else "has no turns")
    speakers: dict[str, int] = {}
    dialogue = Dialogue([], [])
    for turn_number, turn in enumerate(turns, 1):
        role, text = _parse_turn(turn, f"turn {turn_number}")
        dialogue.speakers.append(speakers.setdefault(role, len(speakers)))
        dialogue.texts.append(clean_text(text, f"{where}, turn {turn_number}", errors).strip())
    if len(speakers) > MAX_SPEAKERS:
        raise DialogueError(f"has {len(speakers)} speakers, more than the {MAX_SPEAKERS} that can be told apart")
    return dialogue


def _parse_turn(turn: object, name: str) -> tuple[str, str]:
    """(speaker, text) of one turn."""
    if isinstance(turn, dict):
        role, text = (next((turn[key] for key in keys if turn.get(key) is not None), None)
                      for keys in (SPEAKER_KEYS, TEXT_KEYS))
    elif isinstance(turn, list) and len(turn) == 2:
        role, text = turn
    else:
        role, text = None, turn
    if role is None or isinstance(role, list | dict) or not str(role).strip():
        raise DialogueError(f"has no role at {name}")
    if not isinstance(text, str):
        raise DialogueError(f"has no text at {name}" if text is None else
                            f"holds a {type(text).__name__} and no text at {name}")
    if not text.strip():
        raise DialogueError(f"has an empty text at {name}")
    return str(role).strip(), text

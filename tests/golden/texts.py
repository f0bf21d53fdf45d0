"""The data that both versions read: text, text pairs, dialogues, queries, examples of every task, and plans. They are
the same on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NAMES = ["Ada Bohm", "Karl Weiss", "Mira Sandoval", "Tom Okafor", "Lena Fischer", "Ivan Petrov"]
GOOD, BAD = ["mends", "praises", "finds", "paints"], ["loses", "breaks", "burns", "hides"]
THINGS = ["a wooden boat", "the stone bridge", "seven lanterns", "an iron key", "the garden gate", "one blue kettle",
          "the harbour map", "a broken clock"]
PLACES = ["near the mill", "behind the church", "before winter", "in Rotterdam", "at the market", "without a word"]
CONNECTIVES = ["However,", "Therefore,", "Because of that,", "For example,", "Meanwhile,", ""]
WORDS = ["boat", "bridge", "lantern", "key", "gate", "kettle", "map", "clock", "mill", "church", "winter", "market"]
KINDS = ("classify", "pair", "regress", "choice", "qa", "tag", "rank")


def write_texts(folder: Path, seed: int = 0) -> None:
    """Write all files that cases name as {data}/FILE."""
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    _write(folder / "text.txt", _documents(rng, 60))
    _write(folder / "domain.txt", _documents(rng, 20).replace("kettle", "anchor").replace("clock", "compass"))
    _write(folder / "pairs.tsv", "source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in _pairs(rng, 160)))
    _write(folder / "pairs-dev.tsv", "source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in _pairs(rng, 12)))
    _write(folder / "sources.txt", "".join(f"{a}\n" for a, _ in _pairs(rng, 4)))
    _lines(folder / "talks.jsonl", [{"turns": _turns(rng)} for _ in range(40)])
    clicks = [(rng.choice(THINGS), _sentence(rng), index % 3) for index in range(60)]
    _write(folder / "clicks.tsv", "query\ttitle\tlabel\n" + "".join(f"{q}\t{t}\t{n}\n" for q, t, n in clicks))
    _write(folder / "entities.txt", "".join(f"{name}\tperson\n" for name in NAMES) + "Rotterdam\tplace\n")
    _write(folder / "held-out.txt", _documents(rng, 4))
    _write(folder / "sentences.txt", "".join(f"{_sentence(rng)}\n" for _ in range(6)))
    for kind in KINDS:
        for split, count in (("train", 48), ("dev", 16)):
            _lines(folder / f"{kind}-{split}.jsonl", [MAKERS[kind](rng) for _ in range(count)])
    _write(folder / "tasks.toml", "".join(
        f'[tasks.{kind}]\nkind = "{kind}"\ntrain = "{kind}-train.jsonl"\ndev = "{kind}-dev.jsonl"\n' for kind in KINDS)
        + '[tasks.both]\nkind = "pair"\ntrain = "pair-train.jsonl"\ndev = "pair-dev.jsonl"\nhead = "san"\n')


def write_stages(file: Path, changes: Sequence[str], finetune_changes: Sequence[str]) -> None:
    """Write a plan of four stages, with overrides for pre-training and for fine-tuning."""
    _write(file, "\n".join([
        '[stages.general]', 'recipe = "bert@tiny"', 'corpus = "text.txt"', "steps = 8",
        f"changes = {json.dumps(changes)}", '[stages.domain]', 'corpus = "domain.txt"', "steps = 8",
        '[stages.task]', 'texts_of = "finetune"', "epochs = 2",
        '[stages.finetune]', 'task = "classify"', 'train = "classify-train.jsonl"', 'dev = "classify-dev.jsonl"',
        "epochs = 1", f"changes = {json.dumps(finetune_changes)}", ""]))


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")


def _lines(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    _write(file, "".join(json.dumps(row) + "\n" for row in rows))


def _sentence(rng: random.Random, verb: str | None = None) -> str:
    sentence = f"{rng.choice(NAMES)} {verb or rng.choice(GOOD + BAD)} {rng.choice(THINGS)} {rng.choice(PLACES)}."
    return f"{rng.choice(THINGS)[2:].strip().capitalize()} and {sentence}" if rng.random() < 0.2 else sentence


def _documents(rng: random.Random, count: int) -> str:
    """One sentence per line, a blank line between documents; some sentences begin with a discourse connective."""
    return "\n\n".join("\n".join(f"{rng.choice(CONNECTIVES) if index else ''} {_sentence(rng)}".strip()
                                 for index in range(rng.randint(4, 14))) for _ in range(count)) + "\n"


def _pairs(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Every word is translated to the word three positions later in WORDS."""
    sources = [[rng.choice(WORDS) for _ in range(rng.randint(1, 9))] for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[(WORDS.index(word) + 3) % len(WORDS)] for word in words))
            for words in sources]


def _turns(rng: random.Random) -> list[tuple[str, str]]:
    return [(f"speaker {rng.randrange(2) if turn else 0}", _sentence(rng)) for turn in range(rng.randint(2, 6))]


def _classify(rng: random.Random) -> dict[str, Any]:
    good = rng.random() < 0.5
    return {"text": _sentence(rng, rng.choice(GOOD if good else BAD)), "label": "good" if good else "bad"}


def _pair(rng: random.Random) -> dict[str, Any]:
    example = _classify(rng)
    return {"text_a": _sentence(rng), "text_b": example["text"], "label": "yes" if example["label"] == "good" else "no"}


def _regress(rng: random.Random) -> dict[str, Any]:
    example = _classify(rng)
    return {"text": example["text"], "score": (1.0 if example["label"] == "good" else -1.0) + rng.random()}


def _choice(rng: random.Random) -> dict[str, Any]:
    correct = rng.randrange(3)
    options = [_sentence(rng, rng.choice(GOOD if index == correct else BAD)) for index in range(3)]
    return {"context": _sentence(rng), "question": "what then?", "options": options, "label": correct}


def _qa(rng: random.Random) -> dict[str, Any]:
    """One question in four has no answer."""
    first, answer = _sentence(rng), rng.choice(THINGS)
    context = f"{first} {rng.choice(NAMES)} asks for {answer} {rng.choice(PLACES)}."
    answerable = rng.random() < 0.75
    answers = [{"text": answer, "answer_start": context.rindex(answer)}] if answerable else []
    return {"id": f"{rng.random():.12f}", "context": context, "question": "asks for what?", "answers": answers}


def _tag(rng: random.Random) -> dict[str, Any]:
    words, tags = [], []
    for text, kind in ((rng.choice(NAMES), "PER"), (rng.choice(GOOD), ""), (rng.choice(THINGS), "OBJ")):
        parts = text.split()
        words += parts
        tags += [f"{'I' if index else 'B'}-{kind}" if kind else "O" for index in range(len(parts))]
    return {"words": words, "tags": tags}


def _rank(rng: random.Random) -> dict[str, Any]:
    good = rng.random() < 0.4
    return {"text_a": rng.choice(NAMES[:2]), "text_b": _sentence(rng, rng.choice(GOOD if good else BAD)),
            "label": int(good)}


MAKERS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "classify": _classify, "pair": _pair, "regress": _regress, "choice": _choice, "qa": _qa, "tag": _tag, "rank": _rank}

"""A corpus of text, dialogues and relevance pairs, for tests that must know every turn."""

from __future__ import annotations

import json
import random
from pathlib import Path

from conftest import OBJECTS, PLACES, SUBJECTS, VERBS, small_text

from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus


def dialogues(count: int = 40, seed: int = 0, speakers: int = 2, most: int = 9) -> list[list[tuple[str, str]]]:
    """Dialogues of (speaker, text) turns; a speaker may have several turns in a row."""
    rng = random.Random(seed)
    return [[(f"speaker {rng.randrange(speakers) if turn else 0}",
              f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} " * rng.randint(1, 3))
             for turn in range(rng.randint(1, most))] for _ in range(count)]


def judged(count: int = 30, seed: int = 0, classes: int = 3) -> list[tuple[str, str, int]]:
    rng = random.Random(seed)
    return [(rng.choice(OBJECTS), f"{rng.choice(SUBJECTS)} {rng.choice(PLACES)}", index % classes)
            for index in range(count)]


def mixed_corpus(folder: Path, tokenizer: Path, *, text: bool = True, talks: list | None = None,
                 rows: list | None = None, workers: int = 1) -> Corpus:
    talks, rows = dialogues() if talks is None else talks, judged() if rows is None else rows
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(small_text(documents=20))
    (folder / "talks.jsonl").write_text("".join(json.dumps({"turns": talk}) + "\n" for talk in talks))
    (folder / "rows.tsv").write_text("query\ttitle\tlabel\n" + "".join(f"{q}\t{t}\t{n}\n" for q, t, n in rows))
    build_corpus([folder / "text.txt"] if text else [], tokenizer, folder / "corpus", workers=workers, sentences="line",
                 dialogue=[folder / "talks.jsonl"] if talks else [], relevance=[folder / "rows.tsv"] if rows else [])
    return Corpus.open(folder / "corpus")

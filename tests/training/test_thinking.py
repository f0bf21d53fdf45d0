"""A Universal Transformer with halting learns the tasks it is known for, and thinks longer where there is more to do.

Digits are copied, turned round and added; questions in bAbI's format are answered. Every run is a few minutes long.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SEED

import stemma
from stemma.corpus.build import build_corpus
from stemma.network.inputs_outputs import Stream
from stemma.text.train_tokenizer import train_tokenizer
from stemma.visibility import Causal

pytestmark = pytest.mark.slow

CHANGES = ["corpus.packing=sentence_pair", "objective.causal_lm.scored=second", "corpus.single=A end",
           "corpus.pair=A separator B end", "network.layers=6", "network.width=64",
           "network.heads=4", "network.feedforward=256", "network.dropout=0.0", "network.depth.halting.cost=0.001",
           "training.batch_size=64", "training.schedule.kind=linear", "training.clip_norm=1.0", "training.threads=1",
           "training.spike_factor=1e6", "training.checkpoint_every=100000", "training.validate_every=100000"]

Pair = tuple[list[str], list[str]]  # what is given, and what is to be answered
PEOPLE = ["Mary", "John", "Daniel", "Sandra"]
PLACES = ["kitchen", "garden", "office", "bathroom", "hallway", "bedroom"]


def copying(rng: random.Random) -> Pair:
    digits = [rng.choice("0123456789") for _ in range(rng.randint(2, 6))]
    return digits, digits


def reversing(rng: random.Random) -> Pair:
    digits, _ = copying(rng)
    return digits, digits[::-1]


def adding(rng: random.Random) -> Pair:
    """Two numbers of one to three digits; their sum, ones first, so that a carry is known when it is needed."""
    length = rng.randint(1, 3)
    first, second = (rng.randrange(10**length) for _ in range(2))
    return [*f"{first:0{length}d}", "+", *f"{second:0{length}d}"], [*f"{first + second:0{length + 1}d}"[::-1]]


def story(rng: random.Random, facts: int | None = None) -> str:
    """One to three facts and a question as bAbI's files have them: numbered lines, the answer behind a tab."""
    where, lines = {}, []
    for number in range(1, 1 + (facts or rng.randint(1, 3))):
        person, place = rng.choice(PEOPLE), rng.choice(PLACES)
        where[person] = (place, number)
        lines.append(f"{number} {person} went to the {place}.")
    person = rng.choice(sorted(where))
    return "\n".join([*lines, f"{len(lines) + 1} Where is {person}?\t{where[person][0]}\t{where[person][1]}"])


def answering(rng: random.Random) -> Pair:
    return parsed(story(rng))


def parsed(lines: str) -> Pair:
    text = [line.partition(" ")[2] for line in lines.splitlines()]
    question, answer, _ = text[-1].split("\t")
    words = " ".join([*text[:-1], question]).replace(".", " .").replace("?", " ?").split()
    return words, [answer]


def corpus_of(example: Callable[[random.Random], Pair], rows: int, folder: Path) -> Path:
    rng = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"{' '.join(given)}\n{' '.join(wanted)}" for given, wanted in
                                (example(rng) for _ in range(rows))))
    tokenizer = train_tokenizer(iter([text.read_text()]), "word", 40, lowercase=False, roles={"end", "separator"})
    tokenizer.save(folder / "tokenizer")
    build_corpus([text], folder / "tokenizer", folder / "corpus", workers=1, sentences="line")
    return folder / "corpus"


def asked(model: stemma.Model, given: list[str], wanted: list[str]) -> tuple[bool, list[float], list[float]]:
    """Whether every token of the answer is right, the steps taken where each is guessed, and those of the question."""
    assert model.tokenizer is not None
    given_ids, wanted_ids = (model.tokenizer.encode(" ".join(part), special=False).ids for part in (given, wanted))
    ids = [*given_ids, model.tokenizer.special_id("separator"), *wanted_ids]
    with torch.inference_mode():
        hidden = model.network({"encoder": Stream(torch.tensor([ids]), Causal())})
        guessed = model.lm_head()(hidden["encoder"])[0].argmax(-1).tolist()
    steps = hidden.metrics["steps"][0].tolist()
    asks = len(given_ids)
    return guessed[asks:-1] == wanted_ids, steps[asks:-1], steps[:asks]


def learned(example: Callable[[random.Random], Pair], folder: Path, steps: int, *changes: str) -> stemma.Model:
    recipe = stemma.recipe("universal-transformer@tiny", [*CHANGES, "corpus.sequence_length=16", *changes])
    stemma.pretrain(recipe, corpus=corpus_of(example, 20_000, folder), out=folder / "run", steps=steps, seed=SEED)
    return stemma.load(folder / "run")


@pytest.mark.parametrize(("example", "steps"), [(copying, 1500), (reversing, 1500), (adding, 5000)],
                         ids=["copy", "reverse", "add"])
def test_digits(tmp_path, example, steps):
    model = learned(example, tmp_path, steps)
    rng, found, taken = random.Random(1), [], defaultdict(list)
    for _ in range(300):
        right, at_answer, at_question = asked(model, *example(rng))
        found.append(right)
        taken["first"].append(at_answer[0])
        taken["later"] += at_answer[1:]
        taken["question"] += at_question
    means = {name: float(np.mean(values)) for name, values in taken.items()}
    print(f"{example.__name__}: exact {np.mean(found):.3f}, mean steps {means}")
    assert np.mean(found) > 0.95
    if example is reversing:  # the answer's first digit is the one read last, right before; others must be looked up
        assert means["later"] > means["first"] + 0.5


def test_questions_about_facts(tmp_path):
    """First at a fixed depth, then with halting from there: places that learn to stop before there is anything worth
    stopping for never learn the task."""
    corpus = corpus_of(answering, 40_000, tmp_path)
    changes = [*CHANGES, "corpus.sequence_length=26", "network.layers=4", "training.learning_rate=1e-3",
               "training.warmup_steps=500"]
    fixed = stemma.recipe("universal-transformer@tiny", [*(change for change in changes if "halting" not in change),
                                                         "remove=network.depth.halting"])
    stemma.pretrain(fixed, corpus=corpus, out=tmp_path / "fixed", steps=6000, seed=SEED)
    halting = stemma.recipe("universal-transformer@tiny", [
        *changes, "network.depth.halting.bias=-4.0", "network.depth.halting.limit=full", "training.learning_rate=5e-4",
        "training.warmup_steps=100"])
    stemma.pretrain(halting, corpus=corpus, out=tmp_path / "run", steps=4000, init_from=tmp_path / "fixed", seed=SEED)
    model = stemma.load(tmp_path / "run")
    rng, found, taken = random.Random(1), defaultdict(list), defaultdict(list)
    for facts in (1, 2, 3):
        for _ in range(200):
            right, at_answer, at_question = asked(model, *parsed(story(rng, facts)))
            found[facts].append(right)
            taken["answer", facts] += at_answer
            taken["text", facts] += at_question
    print({facts: float(np.mean(values)) for facts, values in found.items()},
          {name: round(float(np.mean(values)), 2) for name, values in taken.items()})
    assert all(np.mean(values) > 0.95 for values in found.values())
    assert np.mean(taken["answer", 3]) > np.mean(taken["text", 3])  # what is asked takes more thought than what is told

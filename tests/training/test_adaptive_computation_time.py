"""A Universal Transformer with adaptive halting learns its paper's tasks and takes more steps at harder positions.

The tasks are copying, reversing and adding digits, and questions in bAbI's format. Every run takes a few minutes.
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

Pair = tuple[list[str], list[str]]  # question and answer, as words
PEOPLE = ["Mary", "John", "Daniel", "Sandra"]
PLACES = ["kitchen", "garden", "office", "bathroom", "hallway", "bedroom"]


def copying(rng: random.Random) -> Pair:
    digits = [rng.choice("0123456789") for _ in range(rng.randint(2, 6))]
    return digits, digits


def reversing(rng: random.Random) -> Pair:
    digits, _ = copying(rng)
    return digits, digits[::-1]


def adding(rng: random.Random) -> Pair:
    """Two numbers of one to three digits and their sum, ones first, so that each carry comes before it is used."""
    length = rng.randint(1, 3)
    first, second = (rng.randrange(10**length) for _ in range(2))
    return [*f"{first:0{length}d}", "+", *f"{second:0{length}d}"], [*f"{first + second:0{length + 1}d}"[::-1]]


def story(rng: random.Random, facts: int | None = None) -> str:
    """One to three facts and a question in bAbI's file format: numbered lines, the answer after a tab."""
    location, lines = {}, []
    for index in range(1, 1 + (facts or rng.randint(1, 3))):
        person, place = rng.choice(PEOPLE), rng.choice(PLACES)
        location[person] = (place, index)
        lines.append(f"{index} {person} went to the {place}.")
    person = rng.choice(sorted(location))
    return "\n".join([*lines, f"{len(lines) + 1} Where is {person}?\t{location[person][0]}\t{location[person][1]}"])


def question_answering(rng: random.Random) -> Pair:
    return parse_story(story(rng))


def parse_story(lines: str) -> Pair:
    text = [line.partition(" ")[2] for line in lines.splitlines()]
    question, answer, _ = text[-1].split("\t")
    words = " ".join([*text[:-1], question]).replace(".", " .").replace("?", " ?").split()
    return words, [answer]


def corpus_of(example: Callable[[random.Random], Pair], rows: int, folder: Path) -> Path:
    rng = random.Random(0)
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"{' '.join(question)}\n{' '.join(answer)}" for question, answer in
                                (example(rng) for _ in range(rows))))
    tokenizer = train_tokenizer(iter([text.read_text()]), "word", 40, lowercase=False, roles={"end", "separator"})
    tokenizer.save(folder / "tokenizer")
    build_corpus([text], folder / "tokenizer", folder / "corpus", workers=1, sentences="line")
    return folder / "corpus"


def predict(model: stemma.Model, question: list[str], answer: list[str]) -> tuple[bool, list[float], list[float]]:
    """Whether the whole answer is predicted, the steps at the positions that predict it, and those of the question."""
    assert model.tokenizer is not None
    question_ids, answer_ids = (model.tokenizer.encode(" ".join(part), special=False).ids
                                for part in (question, answer))
    ids = [*question_ids, model.tokenizer.special_id("separator"), *answer_ids]
    with torch.inference_mode():
        hidden = model.network({"encoder": Stream(torch.tensor([ids]), Causal())})
        predicted = model.lm_head()(hidden["encoder"])[0].argmax(-1).tolist()
    steps = hidden.metrics["steps"][0].tolist()
    length = len(question_ids)
    return predicted[length:-1] == answer_ids, steps[length:-1], steps[:length]


def train_on(example: Callable[[random.Random], Pair], folder: Path, steps: int, *changes: str) -> stemma.Model:
    recipe = stemma.recipe("universal-transformer@tiny", [*CHANGES, "corpus.sequence_length=16", *changes])
    stemma.pretrain(recipe, corpus=corpus_of(example, 20_000, folder), out=folder / "run", steps=steps, seed=SEED)
    return stemma.load(folder / "run")


@pytest.mark.parametrize(("example", "steps"), [(copying, 1500), (reversing, 1500), (adding, 5000)],
                         ids=["copy", "reverse", "add"])
def test_digit_tasks_are_learned(tmp_path, example, steps):
    model = train_on(example, tmp_path, steps)
    rng, exact, num_steps = random.Random(1), [], defaultdict(list)
    for _ in range(300):
        correct, at_answer, at_question = predict(model, *example(rng))
        exact.append(correct)
        num_steps["first"].append(at_answer[0])
        num_steps["later"] += at_answer[1:]
        num_steps["question"] += at_question
    means = {name: float(np.mean(values)) for name, values in num_steps.items()}
    print(f"{example.__name__}: exact {np.mean(exact):.3f}, mean steps {means}")
    assert np.mean(exact) > 0.95
    if example is reversing:  # the first answer digit is the last one read; the others are farther back
        assert means["later"] > means["first"] + 0.5


def test_question_answering_is_learned_with_more_steps_at_the_answer(tmp_path):
    """Trained at a fixed depth first, and with halting from there: positions that learn to halt before the task is
    learned never learn it."""
    corpus = corpus_of(question_answering, 40_000, tmp_path)
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
    rng, exact, num_steps = random.Random(1), defaultdict(list), defaultdict(list)
    for facts in (1, 2, 3):
        for _ in range(200):
            correct, at_answer, at_question = predict(model, *parse_story(story(rng, facts)))
            exact[facts].append(correct)
            num_steps["answer", facts] += at_answer
            num_steps["text", facts] += at_question
    print({facts: float(np.mean(values)) for facts, values in exact.items()},
          {name: round(float(np.mean(values)), 2) for name, values in num_steps.items()})
    assert all(np.mean(values) > 0.95 for values in exact.values())
    assert np.mean(num_steps["answer", 3]) > np.mean(num_steps["text", 3])

"""A labelled task that costs no labels: tell sentences as they were written from the same sentences damaged.

Knowing which word fits is what pre-training on masked or replaced words teaches, so a few hundred of these labels show
what the pre-trained weights are worth (the replaced-word question is ELECTRA's, arXiv:2003.10555; the order question is
one of SentEval's probes, arXiv:1805.01070). Words are split at spaces: the task does not depend on any tokenizer.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stemma.atomic_files import atomic_folder
from stemma.errors import UserError, did_you_mean

MIN_WORDS, MAX_WORDS = 8, 30                       # words of a sentence that is used
ORIGINAL, CORRUPTED = 0, 1
LABELS = {ORIGINAL: "as written", CORRUPTED: "damaged"}
_MARKS = string.punctuation.replace("_", "")   # what may stand around a word; underscores belong to names

TRAIN, TEST = "train.jsonl", "test.jsonl"

Example = tuple[str, int]


@dataclass(frozen=True)
class Probe:
    """Balanced examples (text, label): 0 as written, 1 damaged. No sentence lends itself to two examples."""

    kind: str
    train: list[Example]
    test: list[Example]

    def write(self, folder: Path) -> None:
        """As files that `stemma finetune classify` reads."""
        with atomic_folder(folder, overwrite=True) as place:
            for name, examples in ((TRAIN, self.train), (TEST, self.test)):
                rows = (json.dumps({"text": text, "label": LABELS[label]}) for text, label in examples)
                (place / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


def make_probe(kind: str, sentences: Iterable[str], vocabulary_counts: Mapping[str, int], seed: int, train: int,
               test: int,
         strength: int | None = None) -> Probe:
    """A task of `train` and `test` examples from disjoint sentences.

    `strength` is the number of words replaced, or of words in each swapped span. `vocabulary_counts` says how often
    each word occurs in the training text, as `count_words` counts them.
    """
    if kind not in KINDS:
        raise UserError(f'no probe "{kind}".{did_you_mean(kind, KINDS)} There are {" and ".join(KINDS)}.')
    damage, usual_strength = KINDS[kind]
    strength = usual_strength if strength is None else strength
    vocabulary = Vocabulary(vocabulary_counts)
    if len(vocabulary.words) < 2:
        raise UserError("a probe needs the word counts of the training text; these hold fewer than two words.")
    rng = np.random.default_rng(seed)
    usable = _usable_sentences(sentences)
    examples: list[Example] = []
    for index in rng.permutation(len(usable)):
        if len(examples) == train + test:
            break
        damaged = damage(usable[index], strength, vocabulary, rng)
        if damaged is not None:                 # also of an intact one: what cannot be damaged would betray its label
            label = len(examples) % 2           # alternating, so that both parts are balanced
            examples.append((usable[index] if label == ORIGINAL else damaged, label))
    if len(examples) < train + test:
        raise UserError(f"{train + test} probe examples need as many sentences of {MIN_WORDS} to {MAX_WORDS} words; "
                        f"the held-out text has {len(examples)}: ask for fewer or hold out more.")
    return Probe(kind, _shuffle(examples[:train], rng), _shuffle(examples[train:], rng))


def count_words(sentences: Iterable[str]) -> dict[str, int]:
    """How often each word occurs, without punctuation and without the capital that only begins a sentence."""
    counts: dict[str, int] = {}
    for sentence in sentences:
        for place, word in enumerate(sentence.split()):
            core = _split_punctuation(word)[1]
            core = core if place else _uncapitalize(core)
            if core:
                counts[core] = counts.get(core, 0) + 1
    return counts


class Vocabulary:
    """Words to draw from, each as often as it occurs in the training text."""

    def __init__(self, counts: Mapping[str, int]):
        self.words = [word for word in counts if word.isalpha()]
        self.cumulative = np.cumsum([counts[word] for word in self.words])

    def draw(self, other_than: str, rng: np.random.Generator) -> str:
        while True:
            drawn = self.words[int(np.searchsorted(self.cumulative, rng.integers(self.cumulative[-1]), side="right"))]
            if drawn.lower() != other_than.lower():
                return drawn


def replace_words(sentence: str, count: int, vocabulary: Vocabulary, rng: np.random.Generator) -> str | None:
    """`count` words give way to others drawn by frequency, so that rarity alone betrays nothing."""
    words = sentence.split()
    places = [i for i, word in enumerate(words) if _split_punctuation(word)[1].isalpha()]
    if len(places) < count:
        return None
    for i in rng.choice(places, count, replace=False):
        before, old, after = _split_punctuation(words[i])
        new = vocabulary.draw(old, rng)
        words[i] = before + (new if i else _capitalize(new)) + after
    return " ".join(words)


def swap_words(sentence: str, span: int, _: Vocabulary, rng: np.random.Generator) -> str | None:
    """Two neighbouring spans of `span` words change places; punctuation and the first capital stay where they are."""
    words = [_split_punctuation(word) for word in sentence.split()]
    cores = [core for _, core, _ in words]
    plain = [core.lower() for core in cores]
    starts = [i for i in range(len(cores) - 2 * span + 1)
              if all(cores[i:i + 2 * span]) and plain[i:i + span] != plain[i + span:i + 2 * span]]
    if not starts:
        return None
    start = int(rng.choice(starts))
    middle, end = start + span, start + 2 * span
    if start == 0:
        cores[0], cores[middle] = _uncapitalize(cores[0]), _capitalize(cores[middle])
    cores[start:end] = cores[middle:end] + cores[start:middle]
    return " ".join(before + core + after for (before, _, after), core in zip(words, cores, strict=True))


Corruption = Callable[[str, int, Vocabulary, np.random.Generator], str | None]
KINDS: dict[str, tuple[Corruption, int]] = {"replaced_words": (replace_words, 2), "swapped_words": (swap_words, 1)}


def _usable_sentences(sentences: Iterable[str]) -> list[str]:
    """Distinct sentences of the right length, in a fixed order; letters' case does not make two of one."""
    distinct: dict[str, str] = {}
    for sentence in sentences:
        words = sentence.split()
        if MIN_WORDS <= len(words) <= MAX_WORDS:
            distinct.setdefault(" ".join(words).casefold(), " ".join(words))
    return list(distinct.values())


def _split_punctuation(word: str) -> tuple[str, str, str]:
    """Punctuation before, the word itself, punctuation after."""
    core = word.strip(_MARKS)
    if not core:
        return word, "", ""
    before, _, after = word.partition(core)
    return before, core, after


def _capitalize(word: str) -> str:
    return word[:1].upper() + word[1:]


def _uncapitalize(word: str) -> str:
    """`The` and `A` lose their capital, `OSError` and `XML` are spelt so."""
    return word.lower() if not any(letter.isupper() for letter in word[1:]) else word


def _shuffle(examples: Sequence[Example], rng: np.random.Generator) -> list[Example]:
    return [examples[i] for i in rng.permutation(len(examples))]

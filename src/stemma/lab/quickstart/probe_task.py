"""A probing task without annotation: classify sentences as original or corrupted.

Masked or replaced-token pre-training teaches which word fits, so a few hundred labels show what pre-training
contributes (word replacement is ELECTRA's question, arXiv:2003.10555; word order is a SentEval probe,
arXiv:1805.01070). Words are split at spaces, so the task does not depend on a tokenizer.
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

MIN_WORDS, MAX_WORDS = 8, 30  # of a sentence
ORIGINAL, CORRUPTED = 0, 1
LABELS = {ORIGINAL: "as written", CORRUPTED: "damaged"}
_MARKS = string.punctuation.replace("_", "")  # punctuation around a word; underscores belong to names

TRAIN, TEST = "train.jsonl", "test.jsonl"

Example = tuple[str, int]


@dataclass(frozen=True)
class Probe:
    """Balanced examples (text, label): 0 original, 1 corrupted. Each sentence is used once."""

    kind: str
    train: list[Example]
    test: list[Example]

    def write(self, folder: Path) -> None:
        """Write files for `stemma finetune classify`."""
        with atomic_folder(folder, overwrite=True) as temporary:
            for name, examples in ((TRAIN, self.train), (TEST, self.test)):
                rows = (json.dumps({"text": text, "label": LABELS[label]}) for text, label in examples)
                (temporary / name).write_text("\n".join(rows) + "\n", encoding="utf-8")


def make_probe(kind: str, sentences: Iterable[str], vocabulary_counts: Mapping[str, int], seed: int, train: int,
               test: int, strength: int | None = None) -> Probe:
    """A task of `train` and `test` examples from disjoint sentences.

    `strength` is the number of replaced words, or of words in each swapped span. `vocabulary_counts` are the word
    counts of the training text, from `count_words`.
    """
    if kind not in KINDS:
        raise UserError(f'no probe "{kind}".{did_you_mean(kind, KINDS)} There are {" and ".join(KINDS)}.')
    corrupt, default_strength = KINDS[kind]
    strength = default_strength if strength is None else strength
    vocabulary = Vocabulary(vocabulary_counts)
    if len(vocabulary.words) < 2:
        raise UserError("a probe needs the word counts of the training text; these hold fewer than two words.")
    rng = np.random.default_rng(seed)
    usable = _usable_sentences(sentences)
    examples: list[Example] = []
    for index in rng.permutation(len(usable)):
        if len(examples) == train + test:
            break
        corrupted = corrupt(usable[index], strength, vocabulary, rng)
        if corrupted is not None:  # required of originals too: otherwise suitability would reveal the label
            label = len(examples) % 2  # alternating, so that both splits are balanced
            examples.append((usable[index] if label == ORIGINAL else corrupted, label))
    if len(examples) < train + test:
        raise UserError(f"{train + test} probe examples need as many sentences of {MIN_WORDS} to {MAX_WORDS} words; "
                        f"the held-out text has {len(examples)}: ask for fewer or hold out more.")
    return Probe(kind, _shuffle(examples[:train], rng), _shuffle(examples[train:], rng))


def count_words(sentences: Iterable[str]) -> dict[str, int]:
    """Word counts, without punctuation and without the capital at the start of a sentence."""
    counts: dict[str, int] = {}
    for sentence in sentences:
        for index, word in enumerate(sentence.split()):
            core = _split_punctuation(word)[1]
            core = core if index else _uncapitalize(core)
            if core:
                counts[core] = counts.get(core, 0) + 1
    return counts


class Vocabulary:
    """Words to sample from, weighted by their frequency in the training text."""

    def __init__(self, counts: Mapping[str, int]):
        self.words = [word for word in counts if word.isalpha()]
        self.cumulative = np.cumsum([counts[word] for word in self.words])

    def draw(self, other_than: str, rng: np.random.Generator) -> str:
        while True:
            word = self.words[int(np.searchsorted(self.cumulative, rng.integers(self.cumulative[-1]), side="right"))]
            if word.lower() != other_than.lower():
                return word


def replace_words(sentence: str, count: int, vocabulary: Vocabulary, rng: np.random.Generator) -> str | None:
    """Replace `count` words by others sampled by frequency, so that rare words do not reveal the label."""
    words = sentence.split()
    candidates = [i for i, word in enumerate(words) if _split_punctuation(word)[1].isalpha()]
    if len(candidates) < count:
        return None
    for i in rng.choice(candidates, count, replace=False):
        before, old, after = _split_punctuation(words[i])
        new = vocabulary.draw(old, rng)
        words[i] = before + (new if i else _capitalize(new)) + after
    return " ".join(words)


def swap_words(sentence: str, span: int, _: Vocabulary, rng: np.random.Generator) -> str | None:
    """Swap two neighbouring spans of `span` words; punctuation and the first capital keep their positions."""
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
    """Sentences of suitable length without duplicates, in their order; case is ignored."""
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
    """Lowercase `The` and `A`; keep `OSError` and `XML`."""
    return word.lower() if not any(letter.isupper() for letter in word[1:]) else word


def _shuffle(examples: Sequence[Example], rng: np.random.Generator) -> list[Example]:
    return [examples[i] for i in rng.permutation(len(examples))]

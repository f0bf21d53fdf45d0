"""What a document must be like to be kept: the measurable rules of Gopher (arXiv:2112.11446, appendix A.1), C4
(arXiv:1910.10683, section 2.2) and FineWeb (arXiv:2406.17557), with their published numbers.

Words are those of `text/ngrams.py`, which need no library and mean something in Chinese; datatrove has these rules too,
but counts spaCy's words, at 0.4 MB a second. Its own filters can be asked for by name: see `published.py`. Gopher's
list of English stop words is left out: `--language` asks the same, and of other languages as well.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from stemma.errors import UserError
from stemma.schema.base import Count, Natural, NonNegative, Positive, Probability, Settings
from stemma.schema.overrides import Problem, parse_changes
from stemma.schema.recipe_checks import explain
from stemma.text.ngrams import ngram_hashes, normalized_words, word_hashes
from stemma.text.sentences import CLOSING, STOPS

BULLETS = ("-", "*", "•", "‣", "◦", "·", "–")
LOREM = "lorem ipsum"


class CleaningRules(Settings):
    """Every number of `stemma clean`. A minimum of 0 and a maximum of 1 (or a huge one) ask for nothing."""

    min_words: Natural = 50  # Gopher
    max_words: Count = 100_000  # Gopher
    min_word_length: NonNegative = 3.0  # mean, in characters; Gopher
    max_word_length: Positive = 10.0  # mean; Gopher
    max_symbols: NonNegative = 0.1  # hashes, and ellipses, for each word; Gopher
    min_letters: Probability = 0.8  # share of words with a letter in them; Gopher
    max_bullets: Probability = 0.9  # share of lines that begin with a bullet; Gopher
    max_ellipses: Probability = 0.3  # share of lines that end in an ellipsis; Gopher
    min_stops: Probability = 0.12  # share of lines that end in a stop; FineWeb
    max_repeated_lines: Probability = 0.3  # share of lines that stood before in the document; Gopher
    max_top_pair: Probability = 0.2  # share of characters in the most frequent pair of words; Gopher
    max_repeated_runs: Probability = 0.15  # share of characters in runs of five words that stood before; Gopher
    placeholder: bool = False  # keep documents that say "lorem ipsum"; C4 drops them
    line_documents: Natural = 0  # how many documents may share a line; later ones lose it. 0: any number
    near_duplicates: Probability = 0.8  # documents that share so much of their five-word runs; 0: not looked for


def load_rules(file: Path | None = None, changes: Sequence[str] = ()) -> CleaningRules:
    """The published numbers, then those of a TOML file, then `key=value` changes; every problem at once."""
    values = {}
    if file is not None:
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the rules {file}: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{file} is no TOML file ({error}).") from error
    layer, problems = parse_changes(changes)
    values.update(layer)
    # In TOML 3 is a whole number; where a rule takes any number, it is one.
    numbers = {name for name, field in CleaningRules.model_fields.items() if field.annotation is float}
    values = {key: float(value) if key in numbers and type(value) is int else value for key, value in values.items()}
    try:
        rules = CleaningRules.model_validate(values)
    except ValidationError as error:
        problems += list(explain(error, values, CleaningRules))
        rules = CleaningRules()
    if rules.min_words > rules.max_words:
        problems.append(Problem("min_words", rules.min_words, f"is more than max_words = {rules.max_words}"))
    if problems:
        known = ", ".join(CleaningRules.model_fields)
        raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the rules (they are {known})",
                        [(problem.location, problem.message) for problem in problems])
    return rules


def first_failed_rule(text: str, rules: CleaningRules) -> str | None:
    """The first rule that a document breaks, by its name."""
    return next(_failed_rules(text, rules), None)


def _failed_rules(text: str, rules: CleaningRules) -> Iterator[str]:
    found = normalized_words(text)
    count = len(found)
    if count < rules.min_words:
        yield "min_words"
    if count > rules.max_words:
        yield "max_words"
    if not rules.placeholder and LOREM in text.lower():
        yield "placeholder"
    lengths = np.fromiter(map(len, found), np.int64, count)
    if count:
        yield from _failed_word_rules(text, found, lengths, rules)
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    if lines:
        yield from _failed_line_rules(lines, rules)
    hashes = word_hashes(found)
    total = max(1, int(lengths.sum()))
    if top_bigram_chars(hashes, lengths) > rules.max_top_pair * total:
        yield "max_top_pair"
    if repeated_ngram_chars(hashes, lengths) > rules.max_repeated_runs * total:
        yield "max_repeated_runs"


def _failed_word_rules(text: str, found: list[str], lengths: np.ndarray, rules: CleaningRules) -> Iterator[str]:
    spaced = lengths
    if not text.isascii():
        spaced = lengths[np.fromiter((not "\u3040" <= word[0] <= "\u9fff" for word in found), bool, len(found))]
    if 2 * len(spaced) > len(found):  # a Chinese character is a word, so the length of words says nothing there
        mean = spaced.mean()
        if mean < rules.min_word_length:
            yield "min_word_length"
        if mean > rules.max_word_length:
            yield "max_word_length"
    most = rules.max_symbols * len(found)
    if text.count("#") > most or text.count("...") + text.count("…") > most:
        yield "max_symbols"
    if len(found) - sum(map(str.isdecimal, found)) < rules.min_letters * len(found):
        yield "min_letters"


def _failed_line_rules(lines: list[str], rules: CleaningRules) -> Iterator[str]:
    count = len(lines)
    if sum(line.startswith(BULLETS) for line in lines) > rules.max_bullets * count:
        yield "max_bullets"
    if sum(line.endswith(("...", "…")) for line in lines) > rules.max_ellipses * count:
        yield "max_ellipses"
    if sum((line.rstrip(CLOSING)[-1:] or " ") in STOPS for line in lines) < rules.min_stops * count:
        yield "min_stops"
    if count - len(set(lines)) > rules.max_repeated_lines * count:
        yield "max_repeated_lines"


def top_bigram_chars(hashes: np.ndarray, lengths: np.ndarray) -> int:
    """Characters in the most frequent pair of words, if it comes at least twice."""
    if len(hashes) < 3:
        return 0
    _, first, times = np.unique(ngram_hashes(hashes, 2), return_index=True, return_counts=True)
    best = int(times.argmax())
    return int(times[best] * lengths[first[best] : first[best] + 2].sum()) if times[best] > 1 else 0


def repeated_ngram_chars(hashes: np.ndarray, lengths: np.ndarray, n: int = 5) -> int:
    """Characters of the words that lie in a run of n words which stood before; each word counts once."""
    runs = ngram_hashes(hashes, n)
    _, first = np.unique(runs, return_index=True)
    again = np.ones(len(runs), bool)
    again[first] = False
    covered = np.zeros(len(hashes), bool)
    for place in range(n if len(runs) else 0):
        covered[place : place + len(runs)] |= again
    return int(lengths[covered].sum())

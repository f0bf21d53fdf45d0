"""Quality filters: rules of Gopher (arXiv:2112.11446, appendix A.1), C4 (arXiv:1910.10683, section 2.2) and FineWeb
(arXiv:2406.17557), with their published thresholds.

Words are those of `text/ngrams.py`, which need no library and also work for Chinese. datatrove has these rules too, but
uses spaCy's words, at 0.4 MB per second; its filters are available by name (`datatrove_filters.py`). Gopher's list of
English stop words is left out: `--language` does the same, for other languages too.
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
    """All thresholds of `stemma clean`. A minimum of 0 or a maximum of 1 (or a huge one) switches a rule off."""

    min_words: Natural = 50  # Gopher
    max_words: Count = 100_000  # Gopher
    min_word_length: NonNegative = 3.0  # mean, in characters; Gopher
    max_word_length: Positive = 10.0  # mean; Gopher
    max_symbols: NonNegative = 0.1  # hashes, and ellipses, per word; Gopher
    min_letters: Probability = 0.8  # fraction of words with a letter; Gopher
    max_bullets: Probability = 0.9  # fraction of lines that begin with a bullet; Gopher
    max_ellipses: Probability = 0.3  # fraction of lines that end in an ellipsis; Gopher
    min_stops: Probability = 0.12  # fraction of lines that end in a stop; FineWeb
    max_repeated_lines: Probability = 0.3  # fraction of duplicate lines in a document; Gopher
    max_top_pair: Probability = 0.2  # fraction of characters in the most frequent bigram; Gopher
    max_repeated_runs: Probability = 0.15  # fraction of characters in duplicate 5-grams; Gopher
    placeholder: bool = False  # keep documents with "lorem ipsum"; C4 drops them
    line_documents: Natural = 0  # maximum number of documents with the same line; later ones lose it. 0: unlimited
    near_duplicates: Probability = 0.8  # similarity of near-duplicates, by their 5-grams; 0: no deduplication


def load_rules(file: Path | None = None, changes: Sequence[str] = ()) -> CleaningRules:
    """The published thresholds, changed by a TOML file, then by `key=value` changes; reports all problems at once."""
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
    # TOML's 3 is an integer; rules with a float field accept it too.
    floats = {name for name, field in CleaningRules.model_fields.items() if field.annotation is float}
    values = {key: float(value) if key in floats and type(value) is int else value for key, value in values.items()}
    try:
        rules = CleaningRules.model_validate(values)
    except ValidationError as error:
        problems += list(explain(error, values, CleaningRules))
        rules = CleaningRules()
    if rules.min_words > rules.max_words:
        problems.append(Problem("min_words", rules.min_words, f"is more than max_words = {rules.max_words}"))
    if problems:
        names = ", ".join(CleaningRules.model_fields)
        raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the rules (they are {names})",
                        [(problem.location, problem.message) for problem in problems])
    return rules


def first_failed_rule(text: str, rules: CleaningRules) -> str | None:
    """Name of the first rule that a document breaks; None if it breaks none."""
    return next(_failed_rules(text, rules), None)


def _failed_rules(text: str, rules: CleaningRules) -> Iterator[str]:
    words = normalized_words(text)
    count = len(words)
    if count < rules.min_words:
        yield "min_words"
    if count > rules.max_words:
        yield "max_words"
    if not rules.placeholder and LOREM in text.lower():
        yield "placeholder"
    lengths = np.fromiter(map(len, words), np.int64, count)
    if count:
        yield from _failed_word_rules(text, words, lengths, rules)
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    if lines:
        yield from _failed_line_rules(lines, rules)
    hashes = word_hashes(words)
    total = max(1, int(lengths.sum()))
    if top_bigram_chars(hashes, lengths) > rules.max_top_pair * total:
        yield "max_top_pair"
    if repeated_ngram_chars(hashes, lengths) > rules.max_repeated_runs * total:
        yield "max_repeated_runs"


def _failed_word_rules(text: str, words: list[str], lengths: np.ndarray, rules: CleaningRules) -> Iterator[str]:
    spaced = lengths
    if not text.isascii():
        spaced = lengths[np.fromiter((not "\u3040" <= word[0] <= "\u9fff" for word in words), bool, len(words))]
    if 2 * len(spaced) > len(words):  # each Chinese character is a word, so word length is meaningless there
        mean = spaced.mean()
        if mean < rules.min_word_length:
            yield "min_word_length"
        if mean > rules.max_word_length:
            yield "max_word_length"
    limit = rules.max_symbols * len(words)
    if text.count("#") > limit or text.count("...") + text.count("…") > limit:
        yield "max_symbols"
    if len(words) - sum(map(str.isdecimal, words)) < rules.min_letters * len(words):
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
    """Characters in the most frequent bigram, if it occurs at least twice."""
    if len(hashes) < 3:
        return 0
    _, first, times = np.unique(ngram_hashes(hashes, 2), return_index=True, return_counts=True)
    best = int(times.argmax())
    return int(times[best] * lengths[first[best] : first[best] + 2].sum()) if times[best] > 1 else 0


def repeated_ngram_chars(hashes: np.ndarray, lengths: np.ndarray, n: int = 5) -> int:
    """Characters of the words in repeated n-grams; each word counts once."""
    ngrams = ngram_hashes(hashes, n)
    _, first = np.unique(ngrams, return_index=True)
    repeated = np.ones(len(ngrams), bool)
    repeated[first] = False
    covered = np.zeros(len(hashes), bool)
    for offset in range(n if len(ngrams) else 0):
        covered[offset : offset + len(ngrams)] |= repeated
    return int(lengths[covered].sum())

"""ARPA files: n-gram models as text, as SRILM and KenLM read and write them.

    \\data\\
    ngram 1=3

    \\1-grams:
    -0.9031 the -0.2218         log10 probability, tokens, log10 back-off weight

    \\end\\

`<s>` is the context of a first token, `</s>` the prediction after the last one. Here both are the token that separates
documents. `<unk>` is the unknown token. A probability of -99 is zero.

A token may hold white space, which separates the tokens of a line, and it may be spelled like one of the three special
words. Such characters are written as `\\u{...}` with their hexadecimal number. No two tokens get the same spelling, so
a file is read with the spellings of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import IO

import numpy as np
from numpy.typing import NDArray

from stemma.counts.kneser_ney import NgramTables
from stemma.progress import progress_stage

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
ZERO = -99.0  # log10 of a probability of zero
LN10 = float(np.log(10))
BLOCK = 100_000  # lines that are formatted or converted at once
Logs = NDArray[np.float64]


def escape(token: str) -> str:
    """The spelling of a token in an ARPA file."""
    if token == "" or token.lower() in (BEGIN, END, UNKNOWN):
        return f"\\u{{{format(ord(token[0]), 'x') if token else ''}}}{token[1:]}"
    token = token.replace("\\u{", "\\u{5c}u{")
    return "".join(f"\\u{{{ord(letter):x}}}" if letter.isspace() or not letter.isprintable() else letter
                   for letter in token)


def write_arpa(tables: NgramTables, tokens: Sequence[str], end_id: int, unknown_id: int | None, file: IO[str]) -> None:
    """Write the model. `tokens`: the spelling of each token; `end_id`: the one that separates documents."""
    words = [escape(token) for token in tokens]
    if unknown_id is not None:
        words[unknown_id] = UNKNOWN
    first_words, last_words = [*words], [*words]
    first_words[end_id], last_words[end_id] = BEGIN, END
    sizes = tables.num_ngrams()
    sizes[0] += 1 + (unknown_id is None)
    file.write("\\data\\\n" + "".join(f"ngram {length}={size}\n" for length, size in enumerate(sizes, 1)))
    spelled: list[str] = []  # the n-grams of the table below
    with progress_stage("writing n-grams", sum(sizes), "n-grams") as stage:
        for length in range(1, tables.order + 1):
            file.write(f"\n\\{length}-grams:\n")
            logs = tables.log_probs[length - 1].astype(np.float64) / LN10
            weights = tables.backoffs[length - 1].astype(np.float64) / LN10 if length < tables.order else None
            if length == 1:
                context = 0.0 if weights is None else float(weights[end_id])
                file.write(f"-99\t{BEGIN}{_weight(context)}\n" + (f"-99\t{UNKNOWN}\n" if unknown_id is None else ""))
                if weights is not None:
                    weights[end_id] = 0.0  # nothing follows </s>
                _write_lines(file, logs, last_words, weights)
                spelled = first_words
                continue
            below, spelled = spelled, []
            for start in range(0, len(logs), BLOCK):
                stop = min(len(logs), start + BLOCK)
                rows, last = np.divmod(tables.keys[length - 2][start:stop], tables.vocab_size)
                block = [f"{below[row]} {last_words[token]}"
                         for row, token in zip(rows.tolist(), last.tolist(), strict=True)]
                _write_lines(file, logs[start:stop], block, None if weights is None else weights[start:stop])
                stage.advance(len(block))
                if weights is not None:
                    spelled += block
    file.write("\n\\end\\\n")


def _write_lines(file: IO[str], logs: Logs, words: Sequence[str], weights: Logs | None) -> None:
    ends: Iterable[str] = repeat("") if weights is None else map(_weight, weights.tolist())
    rows = zip(logs.tolist(), words, ends, strict=False)
    file.writelines(f"{_number(log)}\t{word}{end}\n" for log, word, end in rows)


def _number(value: float) -> str:
    return "-99" if value <= ZERO else f"{value:.9g}"  # nine digits give back the same 32-bit number


def _weight(value: float) -> str:
    return f"\t{value:.9g}" if value else ""  # a missing weight is 1, whose logarithm is 0

"""A tokenizer of whole words with a given vocabulary, such as the words of a vector file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from stemma.text.special_tokens import SPECIAL_TOKENS, special_token_strings
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import build_decoder, build_pipeline

WORD = "word"


def count_words(texts: Iterable[str], *, lowercase: bool, by_spaces: bool) -> Counter[str]:
    """How often each word occurs. `by_spaces`: words are what stands between spaces; otherwise punctuation marks and
    Chinese characters are words, too."""
    normalizer, splitter = _steps(lowercase, by_spaces)
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalized))
    return counts


def word_tokenizer(words: Sequence[str], *, lowercase: bool, by_spaces: bool,
                   roles: set[str] | None = None) -> Tokenizer:
    """A tokenizer whose vocabulary is the special tokens of `roles` (None: of all roles), then these words."""
    special = special_token_strings(WORD, roles)
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*special, *words]))}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[WORD]["unknown"]))
    normalizer, splitter = _steps(lowercase, by_spaces)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.decoder = build_decoder(WORD)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return Tokenizer(backend)


def _steps(lowercase: bool, by_spaces: bool) -> tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]:
    if not by_spaces:
        return build_pipeline(WORD, lowercase, True)
    return normalizers.Lowercase() if lowercase else None, pre_tokenizers.WhitespaceSplit()

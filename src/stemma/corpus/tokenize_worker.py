"""Worker side of a corpus build: turns a batch of text into arrays of tokens, word and sentence starts, and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
from tokenizers import Tokenizer as Backend

from stemma.corpus.cached_encoder import CachedEncoder, TokenizedTexts
from stemma.corpus.capitalization import starts_with_capital
from stemma.corpus.shard_writer import TokenizedBlock
from stemma.corpus.text_batches import TextBatch
from stemma.text.chinese_words import CJK_RUN, cjk_word_starts, load_user_dictionary
from stemma.text.sentences import sentence_starts


@dataclass(frozen=True, slots=True)
class TokenizeOptions:
    """Options sent to each worker process; small and picklable."""

    tokenizer_json: str
    sentences: str
    user_dictionary: str | None
    annotations: tuple[str, ...] = ()  # annotation arrays that some documents of the corpus have


class TokenizeWorker:
    def __init__(self, options: TokenizeOptions):
        self.encoder = CachedEncoder(Backend.from_str(options.tokenizer_json))
        self.lines = options.sentences
        self.annotations = options.annotations
        if options.user_dictionary:
            load_user_dictionary(options.user_dictionary)

    def __call__(self, batch: TextBatch) -> TokenizedBlock:
        passages = batch.passages
        texts = [text for text, _, _ in passages]
        encoded = self.encoder.encode(texts)
        counts = np.diff(encoded.bounds)  # tokens of each passage
        if batch.is_paired and not counts.all():
            return self._drop_incomplete_pairs(batch, counts)
        starts_document = np.array([is_start for _, is_start, _ in passages], bool)
        ends_document = np.append(starts_document[1:], True)  # the next passage belongs to another document
        raw = [text.encode() + (b"\n" if batch.is_multipart and not last else b"")
               for text, last in zip(texts, ends_document, strict=True)]
        text_bounds = _bounds(texts)
        offsets = np.array([offset for _, _, offset in passages], np.int64)
        in_document = np.repeat(offsets - text_bounds[:-1], counts)
        lengths = np.minimum(encoded.ends - encoded.starts, np.iinfo(np.uint16).max)  # one [UNK] can be a whole line
        words, chinese = _word_starts(texts, text_bounds, encoded)
        arrays = {"tokens": encoded.ids, "word_starts": words.astype(np.uint8),
                  "starts": (encoded.starts + in_document).astype(np.uint32), "lengths": lengths.astype(np.uint16)}
        arrays["capitals"] = starts_with_capital("".join(texts), encoded.starts, encoded.ends)
        for name in self.annotations:
            values = batch.values if name == batch.annotation else np.zeros(len(passages))
            arrays[name] = np.repeat(np.asarray(values, np.uint8), counts)
        sentences = np.unique(encoded.bounds[:-1][counts > 0]) if batch.is_multipart else self._sentences(
            texts, text_bounds, encoded)
        return TokenizedBlock(arrays=arrays, sentences=sentences, bounds=encoded.bounds,
                              starts_document=starts_document, text=b"".join(raw), text_bounds=_bounds(raw),
                              annotation=batch.annotation, pair_set=batch.pair_set, num_chinese_tokens=chinese,
                              held_out=batch.held_out)

    def _drop_incomplete_pairs(self, batch: TextBatch, tokens: np.ndarray) -> TokenizedBlock:
        """Tokenise only the pairs with tokens on both sides: every document must have two sentences."""
        complete = np.repeat(tokens.reshape(-1, 2).all(axis=1), 2)
        remaining = replace(batch, passages=list(compress(batch.passages, complete)),
                            values=list(compress(batch.values, complete)))
        return replace(self(remaining), num_dropped=int((~complete).sum()) // 2)

    def _sentences(self, texts: list[str], text_bounds: np.ndarray, encoded: TokenizedTexts) -> np.ndarray:
        """First token of each sentence; each passage also begins a sentence."""
        starts = np.concatenate([sentence_starts(text, self.lines) + offset
                                 for text, offset in zip(texts, text_bounds[:-1], strict=True)])
        # The first token that ends after the sentence start: it may begin with the space before the sentence.
        tokens = np.searchsorted(encoded.ends, starts, side="right")
        tokens = np.unique(np.concatenate([tokens, encoded.bounds[:-1]]))
        return tokens[tokens < len(encoded.ids)]


def _word_starts(texts: list[str], text_bounds: np.ndarray, encoded: TokenizedTexts) -> tuple[np.ndarray, int]:
    """(word starts, number of tokens in Chinese runs). The tokenizer splits words, except in Chinese runs, where the
    word segmenter does."""
    cjk = np.zeros(text_bounds[-1], bool)
    segmented = np.zeros(text_bounds[-1], bool)
    for text, offset in zip(texts, text_bounds[:-1], strict=True):
        starts = cjk_word_starts(text)
        if starts is not None:
            segmented[offset : offset + len(text)] = starts
            for run in CJK_RUN.finditer(text):
                cjk[offset + run.start() : offset + run.end()] = True
    if not cjk.any():
        return encoded.word_starts, 0
    first = np.minimum(encoded.starts, len(cjk) - 1)  # an empty token may start after the last character
    new_character = np.diff(first, prepend=-1) > 0  # of several tokens that share a character, the first
    after_run = new_character & ~cjk[first] & cjk[first - 1]
    words = np.where(cjk[first], segmented[first] & new_character, encoded.word_starts | after_run)
    return words, int(cjk[first].sum())


def _bounds(parts: Sequence[str | bytes]) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))])

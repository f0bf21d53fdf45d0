"""Trains tokenizers with the Rust trainers of `tokenizers`, reproducibly.

WordPiece (arXiv:1609.08144), BPE (arXiv:1508.07909), byte-level BPE (GPT-2), Unigram (arXiv:1804.10959), words and
characters. The trainers iterate over hash maps in random order. Where that changes the result (ids of WordPiece's
continuations, ties between Unigram scores) this module fixes the order.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from zlib import crc32

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from stemma.errors import UserError, did_you_mean
from stemma.progress import progress_stage
from stemma.text.simplify_chinese import SIMPLIFY_NOTICE, to_simplified
from stemma.text.special_tokens import SPECIAL_TOKENS, special_token_strings
from stemma.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

CJK_SPACING_KINDS = ("wordpiece", "word")  # kinds that can put spaces around Chinese characters
CONTINUATION = "##"
WORD_START = "▁"
MIN_ALPHABET = 256  # more characters than this may use at most half of the vocabulary; the rarest are dropped
MAX_WORDS = 50_000_000  # larger word counts are scaled down: only proportions matter
TRAINER_VERSION = {"unigram": 2}  # raised when a kind learns another vocabulary from the same text; part of cache keys
PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # private-use code points
MAX_DISTINCT_WORDS = 500_000  # Unigram uses the most frequent words only
SEED_PIECES = 4_000_000  # more substrings than these words have, so that none is left out
MAX_PIECE_LENGTH = 16  # characters
PENALTY_STEP = 1e-4  # between the scores that the Unigram trainer gives to required but unhelpful characters


def train_tokenizer(
    texts: Iterable[str], kind: str, vocab_size: int, *, lowercase: bool, roles: set[str] | None = None,
    cjk_spacing: bool = True, simplify: bool = False, progress: bool = False,
) -> Tokenizer:  # fmt: skip
    """Learn a vocabulary from texts, in one pass; reserves special tokens for `roles` (None: for all roles)."""
    if kind not in SPECIAL_TOKENS:
        raise UserError(f'no tokenizer kind "{kind}".{did_you_mean(kind, SPECIAL_TOKENS)} '
                        f'Choose {", ".join(SPECIAL_TOKENS)}.')
    if roles and (unknown_roles := sorted(roles - set(SPECIAL_TOKENS[kind]))):
        raise UserError(f"no token role {', '.join(unknown_roles)}; the roles are {', '.join(SPECIAL_TOKENS[kind])}.")
    special = special_token_strings(kind, roles)
    min_size = len(special) + (256 if kind == "byte_bpe" else 1)
    if vocab_size < min_size:
        raise _too_small(kind, vocab_size, min_size, len(special))

    unknown = SPECIAL_TOKENS[kind]["unknown"]
    source = _require_text(map(to_simplified, texts) if simplify else iter(texts))
    normalizer, splitter = build_pipeline(kind, lowercase, cjk_spacing)

    def learn(model: models.Model, trainer: trainers.Trainer) -> models.Model:
        trained: models.Model = _feed(model, trainer, source, normalizer, splitter).model
        return trained

    model: models.Model
    if kind == "byte_bpe":
        model = learn(models.BPE(), trainers.BpeTrainer(
            vocab_size=vocab_size, min_frequency=2, special_tokens=special, show_progress=progress,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))  # fmt: skip
    elif kind in ("word", "character"):
        model = learn(models.WordLevel(unk_token=unknown), trainers.WordLevelTrainer(
            vocab_size=vocab_size, special_tokens=special, show_progress=progress))  # fmt: skip
    else:
        counter = trainers.WordPieceTrainer(vocab_size=1, special_tokens=[], show_progress=progress)
        learn(models.WordPiece(unk_token=unknown), counter)
        words = json.loads(counter.__getstate__())["WordPieceTrainer"]["bpe_trainer"]["words"]
        make = _prune_pieces if kind == "unigram" else _merge_words
        model = make(words, kind, vocab_size, special, progress)

    backend = tokenizers.Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    backend.decoder = build_decoder(kind)
    if kind == "byte_bpe":
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    size = backend.get_vocab_size()
    if size > vocab_size:
        raise _too_small(kind, vocab_size, size, len(special))
    if size < vocab_size:
        logger.warning(f"the text has only {size:,} pieces, fewer than the {vocab_size:,} asked for.")
    if simplify:
        logger.warning(SIMPLIFY_NOTICE)
    return Tokenizer(backend, {"simplify": simplify})


def _too_small(kind: str, vocab_size: int, min_size: int, special: int) -> UserError:
    return UserError(f"a {kind} vocabulary of {vocab_size:,} is too small for this text: {special} special tokens and "
                     f"its characters need {min_size:,}; raise --vocab-size, or reserve fewer tokens with --for "
                     "RECIPE.")


def _require_text(texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        if text and not text.isspace():
            return chain([text], texts)
    raise UserError("there is no text to train a tokenizer on, only white space or nothing at all.")


def _feed(
    model: models.Model, trainer: trainers.Trainer, texts: Iterator[str],
    normalizer: normalizers.Normalizer | None, splitter: pre_tokenizers.PreTokenizer,
) -> tokenizers.Tokenizer:  # fmt: skip
    backend = tokenizers.Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter
    failures: list[Exception] = []

    def with_errors_recorded() -> Iterator[str]:
        try:
            yield from texts
        except Exception as error:  # passing through Rust, it would lose its type
            failures.append(error)

    with progress_stage("learning a vocabulary", bar="own"):  # on a terminal the trainer shows its own bar
        backend.train_from_iterator(with_errors_recorded(), trainer)
    if failures:
        raise failures[0]
    return backend


def build_pipeline(
    kind: str, lowercase: bool, cjk_spacing: bool
) -> tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]:
    """(normalizer, pre-tokenizer); a token never crosses a boundary of the pre-tokenizer."""
    lower = [normalizers.Lowercase()] if lowercase else []
    if kind in CJK_SPACING_KINDS:  # as BERT: lower-casing also strips accents, Chinese characters are separate
        accents = lowercase and kind == "wordpiece"
        normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=cjk_spacing, strip_accents=accents, lowercase=lowercase)
        return normalizer, pre_tokenizers.BertPreTokenizer()
    if kind == "byte_bpe":
        return (lower[0] if lower else None), pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "character":
        return normalizers.Sequence([normalizers.NFC(), *lower]), pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    # As SentencePiece: NFKC, each run of white space is one space, which is then an ordinary character; punctuation is
    # separate from words.
    unified = [normalizers.Nmt(), normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "),
               normalizers.Strip()]  # fmt: skip
    words = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    punctuation = pre_tokenizers.Split(Regex(WORD_START + r"?\p{P}+"), "isolated")
    return normalizers.Sequence(unified), pre_tokenizers.Sequence([words, punctuation])


def build_decoder(kind: str) -> decoders.Decoder:
    if kind in ("wordpiece", "word"):
        return decoders.WordPiece(prefix=CONTINUATION, cleanup=True)
    if kind == "byte_bpe":
        return decoders.ByteLevel()
    if kind == "character":
        return decoders.Fuse()
    return decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")


def _merge_words(words: dict[str, int], kind: str, vocab_size: int, special: list[str], progress: bool) -> models.Model:
    """BPE merges over counted words; WordPiece uses the resulting vocabulary.

    The trainer numbers continuations ("##a") in hash-map order, and these ids break ties. Passing them as special
    tokens fixes their ids.
    """
    counts: Counter[str] = Counter()
    continuing: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
        if kind == "wordpiece":
            continuing.update(dict.fromkeys(word[1:], count))
    max_alphabet = max(MIN_ALPHABET, (vocab_size - len(special)) // 2)
    alphabet = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:max_alphabet])
    continuations = [CONTINUATION + character for character in alphabet if character in continuing]

    prefix = CONTINUATION if kind == "wordpiece" else ""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=[*special, *continuations], initial_alphabet=alphabet,
        limit_alphabet=len(alphabet), show_progress=progress, continuing_subword_prefix=prefix)  # fmt: skip
    splitter = pre_tokenizers.CharDelimiterSplit("\n")
    backend = _feed(models.BPE(continuing_subword_prefix=prefix), trainer, _repeat(words), None, splitter)
    model = json.loads(backend.to_str())["model"]
    if kind == "bpe":
        merges = [tuple(pair) for pair in model["merges"]]
        return models.BPE(vocab=model["vocab"], merges=merges, unk_token=SPECIAL_TOKENS[kind]["unknown"],
                          fuse_unk=True)
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    first = [*special, *alphabet, *continuations]
    pieces = [*first, *(piece for piece in ordered if piece not in set(first))]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    return models.WordPiece(vocab=vocabulary, unk_token=SPECIAL_TOKENS[kind]["unknown"], max_input_chars_per_word=100)


def _repeat(words: dict[str, int]) -> Iterator[str]:
    """The counted words as text, each repeated by its (scaled) count."""
    divisor = -(-sum(words.values()) // MAX_WORDS)
    for word, count in words.items():
        remaining = -(-count // divisor)
        while remaining:
            repeats = min(remaining, 10_000)
            yield "\n".join([word] * repeats)
            remaining -= repeats


def _prune_pieces(words: dict[str, int], kind: str, vocab_size: int, special: list[str],
                  progress: bool) -> models.Model:
    """Unigram over counted words: starts from all substrings that occur twice and prunes them by likelihood.

    The trainer takes its seed pieces from distinct words, as substrings that are followed by different characters. A
    word that is no prefix of another word ("they", however frequent) would not become a piece. So one occurrence of
    each frequent word is followed by a unique private-use character.
    """
    alphabet = set().union(*words)
    ranked = sorted(words, key=lambda word: (-words[word], crc32(word.encode()), word))[:MAX_DISTINCT_WORDS]
    marks = (mark for mark in map(chr, chain.from_iterable(PRIVATE)) if mark not in alphabet)
    frequent = [word for word in ranked if words[word] > 1 and 1 < len(word) <= MAX_PIECE_LENGTH][:vocab_size]
    marked = dict(zip(frequent, marks, strict=False))
    counts = dict.fromkeys(alphabet.difference(*ranked), 1)  # characters that occur only in other words
    counts |= {word: words[word] - (word in marked) for word in ranked}
    counts |= {word + mark: 1 for word, mark in marked.items()}
    # 5% more pieces than requested, so that ties at the cut are broken here and not by the trainer.
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size + vocab_size // 20 + len(marked), unk_token=SPECIAL_TOKENS[kind]["unknown"],
        special_tokens=special, max_piece_length=MAX_PIECE_LENGTH, show_progress=progress,
        seed_size=SEED_PIECES)  # type: ignore[call-arg]  # missing in the type stub
    backend = _feed(models.Unigram(), trainer, _repeat(counts), None, pre_tokenizers.CharDelimiterSplit("\n"))
    return _finish_unigram(backend, special, SPECIAL_TOKENS[kind]["unknown"], vocab_size, set(marked.values()))


def _finish_unigram(backend: tokenizers.Tokenizer, special: list[str], unknown: str, vocab_size: int,
                    excluded: set[str]) -> models.Model:
    """Sort the pieces by score, then spelling. Scores are rounded: their last digits depend on the summation order."""
    scored = {piece: score for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece not in special}
    # Required but unhelpful characters have the lowest scores, one step apart, in random order.
    low = min(scored.values())
    steps: dict[int, list[str]] = {}
    for piece, score in scored.items():
        if len(piece) == 1 and abs((score - low) / PENALTY_STEP - round((score - low) / PENALTY_STEP)) < 1e-3:
            steps.setdefault(round((score - low) / PENALTY_STEP), []).append(piece)
    last = next(step for step in range(len(steps) + 1) if step not in steps)
    penalized = [piece for step in range(last) for piece in steps[step]]
    scored.update(zip(sorted(penalized), sorted((scored[piece] for piece in penalized), reverse=True), strict=True))

    ranked = sorted(((piece, round(score, 6)) for piece, score in scored.items() if piece not in excluded),
                    key=lambda pair: (-pair[1], pair[0]))
    num_longer = vocab_size - len(special) - sum(len(piece) == 1 for piece, _ in ranked)
    longer = {piece for piece, _ in [pair for pair in ranked if len(pair[0]) > 1][: max(0, num_longer)]}
    pieces = [(piece, score) for piece, score in ranked if len(piece) == 1 or piece in longer]
    return models.Unigram([*((token, 0.0) for token in special), *pieces], unk_id=special.index(unknown))

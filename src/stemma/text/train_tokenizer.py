"""Vocabularies learnt from text with the Rust trainers of `tokenizers`, made to give the same result every time.

WordPiece (arXiv:1609.08144), BPE (arXiv:1508.07909), its byte-level form (GPT-2), Unigram (arXiv:1804.10959), whole
words and characters. Those trainers walk through hash maps whose order changes from run to run; where that reaches the
result (the ids of WordPiece's continuations, ties between equal Unigram scores) the order is fixed here.
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

CJK_SPACING_KINDS = ("wordpiece", "word")  # kinds that can set Chinese characters apart by spaces
CONTINUATION = "##"
WORD_START = "▁"
MIN_ALPHABET = 256  # rare characters beyond this many give way when they would fill half of the vocabulary
MAX_WORDS = 50_000_000  # counts of more running words are scaled down: only their proportions matter
TRAINER_VERSION = {"unigram": 2}  # raised when a kind learns another vocabulary from the same text; caches and labs go
#                                   by it
PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # no text's own characters
MAX_DISTINCT_WORDS = 500_000  # different words, the most frequent, are enough for Unigram
SEED_PIECES = 4_000_000  # more parts than those have, so that none is left out
MAX_PIECE_LENGTH = 16  # characters
PENALTY_STEP = 1e-4  # between the scores that the Unigram trainer gives to characters it would rather have dropped


def train_tokenizer(
    texts: Iterable[str], kind: str, vocab_size: int, *, lowercase: bool, roles: set[str] | None = None,
    cjk_spacing: bool = True, simplify: bool = False, progress: bool = False,
) -> Tokenizer:  # fmt: skip
    """Learn a vocabulary from texts, read once; every special role is reserved unless `roles` narrows them."""
    if kind not in SPECIAL_TOKENS:
        raise UserError(f'no tokenizer kind "{kind}".{did_you_mean(kind, SPECIAL_TOKENS)} Choose {", ".join(SPECIAL_TOKENS)}.')
    if roles and (strange := sorted(roles - set(SPECIAL_TOKENS[kind]))):
        raise UserError(f"no token role {', '.join(strange)}; the roles are {', '.join(SPECIAL_TOKENS[kind])}.")
    special = special_token_strings(kind, roles)
    least = len(special) + (256 if kind == "byte_bpe" else 1)
    if vocab_size < least:
        raise _too_small(kind, vocab_size, least, len(special))

    unknown = SPECIAL_TOKENS[kind]["unknown"]
    source = _require_text(map(to_simplified, texts) if simplify else iter(texts))
    normalizer, splitter = _pipeline(kind, lowercase, cjk_spacing)

    def learn(model: models.Model, trainer: trainers.Trainer) -> models.Model:
        learnt: models.Model = _feed(model, trainer, source, normalizer, splitter).model
        return learnt

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
    backend.decoder = _decoder(kind)
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


def _too_small(kind: str, vocab_size: int, least: int, special: int) -> UserError:
    return UserError(f"a {kind} vocabulary of {vocab_size:,} is too small for this text: {special} special tokens and "
                     f"its characters need {least:,}; raise --vocab-size, or reserve fewer tokens with --for RECIPE.")


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

    def watched() -> Iterator[str]:
        try:
            yield from texts
        except Exception as error:  # on its way through Rust it would lose its type
            failures.append(error)

    with progress_stage("learning a vocabulary", bar="own"):  # on a terminal the trainer has a bar of its own
        backend.train_from_iterator(watched(), trainer)
    if failures:
        raise failures[0]
    return backend


def _pipeline(
    kind: str, lowercase: bool, cjk_spacing: bool
) -> tuple[normalizers.Normalizer | None, pre_tokenizers.PreTokenizer]:
    """How text is cleaned, and how it is split into what pieces never cross."""
    lower = [normalizers.Lowercase()] if lowercase else []
    if kind in CJK_SPACING_KINDS:  # BERT's: accents go with the capitals, each Chinese character stands alone
        accents = lowercase and kind == "wordpiece"
        cleaned = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=cjk_spacing, strip_accents=accents, lowercase=lowercase)
        return cleaned, pre_tokenizers.BertPreTokenizer()
    if kind == "byte_bpe":
        return (lower[0] if lower else None), pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "character":
        return normalizers.Sequence([normalizers.NFC(), *lower]), pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    # SentencePiece's: compatible characters unified, every run of white space one space, which is then a character like
    # any other; punctuation stays apart from words.
    unified = [normalizers.Nmt(), normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "),
               normalizers.Strip()]  # fmt: skip
    words = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme="always")
    punctuation = pre_tokenizers.Split(Regex(WORD_START + r"?\p{P}+"), "isolated")
    return normalizers.Sequence(unified), pre_tokenizers.Sequence([words, punctuation])


def _decoder(kind: str) -> decoders.Decoder:
    if kind in ("wordpiece", "word"):
        return decoders.WordPiece(prefix=CONTINUATION, cleanup=True)
    if kind == "byte_bpe":
        return decoders.ByteLevel()
    if kind == "character":
        return decoders.Fuse()
    return decoders.Metaspace(replacement=WORD_START, prepend_scheme="always")


def _merge_words(words: dict[str, int], kind: str, vocab_size: int, special: list[str], progress: bool) -> models.Model:
    """Merge the most frequent pair, again and again, over counted words: BPE, or WordPiece as its vocabulary.

    The trainer numbers continuations ("##a") in the order of its hash map, and those numbers break ties. Handed over as
    special tokens they have their numbers beforehand.
    """
    counts: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
        if kind == "wordpiece":
            inside.update(dict.fromkeys(word[1:], count))
    room = max(MIN_ALPHABET, (vocab_size - len(special)) // 2)
    kept = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:room])
    continuations = [CONTINUATION + character for character in kept if character in inside]

    prefix = CONTINUATION if kind == "wordpiece" else ""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, special_tokens=[*special, *continuations], initial_alphabet=kept,
        limit_alphabet=len(kept), show_progress=progress, continuing_subword_prefix=prefix)  # fmt: skip
    splitter = pre_tokenizers.CharDelimiterSplit("\n")
    backend = _feed(models.BPE(continuing_subword_prefix=prefix), trainer, _repeat(words), None, splitter)
    learnt = json.loads(backend.to_str())["model"]
    if kind == "bpe":
        merges = [tuple(pair) for pair in learnt["merges"]]
        return models.BPE(vocab=learnt["vocab"], merges=merges, unk_token=SPECIAL_TOKENS[kind]["unknown"],
                          fuse_unk=True)
    ordered = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    first = [*special, *kept, *continuations]
    pieces = [*first, *(piece for piece in ordered if piece not in set(first))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return models.WordPiece(vocab=vocabulary, unk_token=SPECIAL_TOKENS[kind]["unknown"], max_input_chars_per_word=100)


def _repeat(words: dict[str, int]) -> Iterator[str]:
    """The counted words as text again, each as often as it was counted."""
    divisor = -(-sum(words.values()) // MAX_WORDS)
    for word, count in words.items():
        left = -(-count // divisor)
        while left:
            now = min(left, 10_000)
            yield "\n".join([word] * now)
            left -= now


def _prune_pieces(words: dict[str, int], kind: str, vocab_size: int, special: list[str],
                  progress: bool) -> models.Model:
    """From all pieces that occur twice down to the wanted number, by what each is worth: Unigram over counted words.

    The trainer looks for its first pieces among different words, each once, and finds what is followed by different
    characters. A word that begins no longer one ("they", however frequent) would have no piece of its own. So one
    occurrence of each frequent word is followed by a character that nothing else has.
    """
    alphabet = set().union(*words)
    ranked = sorted(words, key=lambda word: (-words[word], crc32(word.encode()), word))[:MAX_DISTINCT_WORDS]
    marks = (mark for mark in map(chr, chain.from_iterable(PRIVATE)) if mark not in alphabet)
    whole = [word for word in ranked if words[word] > 1 and 1 < len(word) <= MAX_PIECE_LENGTH][:vocab_size]
    echoes = dict(zip(whole, marks, strict=False))
    counted = dict.fromkeys(alphabet.difference(*ranked), 1)  # what only other words have
    counted |= {word: words[word] - (word in echoes) for word in ranked}
    counted |= {word + mark: 1 for word, mark in echoes.items()}
    # A few more pieces than wanted, so that it is we who choose among equals at the edge.
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size + vocab_size // 20 + len(echoes), unk_token=SPECIAL_TOKENS[kind]["unknown"],
        special_tokens=special, max_piece_length=MAX_PIECE_LENGTH, show_progress=progress,
        seed_size=SEED_PIECES)  # type: ignore[call-arg]  # the stub leaves it out
    backend = _feed(models.Unigram(), trainer, _repeat(counted), None, pre_tokenizers.CharDelimiterSplit("\n"))
    return _finish_unigram(backend, special, SPECIAL_TOKENS[kind]["unknown"], vocab_size, set(echoes.values()))


def _finish_unigram(backend: tokenizers.Tokenizer, special: list[str], unknown: str, vocab_size: int,
                    without: set[str]) -> models.Model:
    """The pieces by score, equals by spelling; the last digits of a score are noise from the order of summation."""
    scored = {piece: score for piece, score in json.loads(backend.to_str())["model"]["vocab"] if piece not in special}
    # Characters that occur but earned no place get the lowest scores, one step apart, in an order that is chance.
    low = min(scored.values())
    steps: dict[int, list[str]] = {}
    for piece, score in scored.items():
        if len(piece) == 1 and abs((score - low) / PENALTY_STEP - round((score - low) / PENALTY_STEP)) < 1e-3:
            steps.setdefault(round((score - low) / PENALTY_STEP), []).append(piece)
    last = next(step for step in range(len(steps) + 1) if step not in steps)
    tail = [piece for step in range(last) for piece in steps[step]]
    scored.update(zip(sorted(tail), sorted((scored[piece] for piece in tail), reverse=True), strict=True))

    ranked = sorted(((piece, round(score, 6)) for piece, score in scored.items() if piece not in without),
                    key=lambda pair: (-pair[1], pair[0]))
    room = vocab_size - len(special) - sum(len(piece) == 1 for piece, _ in ranked)
    longer = {piece for piece, _ in [pair for pair in ranked if len(pair[0]) > 1][: max(0, room)]}
    pieces = [(piece, score) for piece, score in ranked if len(piece) == 1 or piece in longer]
    return models.Unigram([*((token, 0.0) for token in special), *pieces], unk_id=special.index(unknown))

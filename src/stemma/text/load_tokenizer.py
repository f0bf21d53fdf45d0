"""Loads tokenizers as `tokenizers` pipelines: tokenizer.json and three older file layouts.

The older layouts have only a vocabulary; the family determines normalization and pre-tokenization: BERT's WordPiece,
GPT-2's byte-level BPE, GPT's BPE, and SentencePiece, whose file has its own normalization table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from stemma.atomic_files import CHECKSUMS, read_checksums, sha256
from stemma.errors import CorruptFileError, UserError
from stemma.json_files import parse, read_object
from stemma.text.special_tokens import ANGLES, HF_TOKEN_KEYS, SENTINELS, find_special_tokens, register_special_tokens

# Vocabulary file and its merges file; names may have a prefix ("gpt2_encoder.json").
MERGES = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}
CONFIGURATION, ADDED = ("special_tokens_map.json", "tokenizer_config.json"), "added_tokens.json"
WORD_END = "</w>"
LoadedTokenizer = tuple[tokenizers.Tokenizer, dict[str, Any]]


def load_backend(path: Path) -> LoadedTokenizer:
    """The pipeline, and the configuration from the files next to it."""
    if not path.exists():
        raise UserError(f"no tokenizer at {path}: there is no such file or folder.")
    file = _find_vocabulary(path) if path.is_dir() else path
    _verify(file)
    config = _config(file.parent)
    try:
        backend = _read(file, config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is no readable tokenizer ({_first_line(error)}); fetch or train it again.") from error
    backend.no_truncation()  # some published files truncate or pad; here the packer does that
    backend.no_padding()
    return backend, config


def _find_vocabulary(folder: Path) -> Path:
    names = ["tokenizer.json", "vocab.txt", *MERGES]
    for name in names:
        if (folder / name).is_file() and (name not in MERGES or (folder / MERGES[name]).is_file()):
            return folder / name
    if pieces := sorted(folder.glob("*.model")):
        return pieces[0]
    raise UserError(f"no tokenizer in {folder}: it has no tokenizer.json, vocab.txt, vocab.json with merges.txt, "
                    "or SentencePiece .model.")


def _verify(file: Path) -> None:
    """Compare the files with their checksums, if there are any."""
    if not file.with_name(CHECKSUMS).is_file():
        return
    checksums = read_checksums(file.parent, "train or copy the tokenizer again.")
    for name in (file.name, *MERGES.values(), *CONFIGURATION, ADDED):
        part = file.with_name(name)
        if name in checksums and not part.is_file():
            raise CorruptFileError(f"{part} is missing; copy or train the tokenizer again.")
        if name in checksums and sha256(part) not in checksums[name]:
            raise CorruptFileError(f"{part} is damaged (its checksum is not the one written); copy or train it again.")


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in CONFIGURATION:
        if (folder / name).is_file():
            config |= read_object(folder / name, "copy or train the tokenizer again.")
    for key in HF_TOKEN_KEYS.values():
        token = config.get(key)
        if not isinstance(token.get("content") if isinstance(token, dict) else token, str | None):
            raise UserError(f"{folder} names a token that is no text ({key} in {' or '.join(CONFIGURATION)}); copy or "
                            "train the tokenizer again.")
    return config


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def _read(file: Path, config: Mapping[str, object]) -> tokenizers.Tokenizer:
    if file.suffix == ".model":
        from stemma.text.sentencepiece import read_sentencepiece

        backend = read_sentencepiece(file)
        _add_sentinels(backend, config)
    elif file.suffix == ".txt":
        backend = _read_wordpiece(file, config)
    elif file.suffix == ".json":
        content = parse(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and isinstance(content.get("model"), dict):
            return _tokenizer_json(file)
        if not (isinstance(content, dict) and all(isinstance(token_id, int) for token_id in content.values())):
            raise ValueError("neither a tokenizer.json nor a vocabulary")
        backend = _read_bpe(file, content, config)
    else:
        raise ValueError("known are tokenizer.json, vocab.txt, vocab.json with merges.txt, and SentencePiece .model")
    _add_tokens(backend, file.with_name(ADDED))
    register_special_tokens(backend, config)
    _add_post_processor(backend, config)
    return backend


def _tokenizer_json(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust backend raises nothing more precise
        raise ValueError(_first_line(error)) from error


def _read_wordpiece(file: Path, config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    pieces = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    if "[UNK]" not in vocabulary:
        raise ValueError("a BERT vocabulary has a piece a line, [UNK] among them")
    # ASCII only: lower-cased vocabularies do have capitals of rarer scripts. The pattern excludes [PAD] and the like.
    capitals = any(re.match(r"(?:##)?[A-Z]", piece) for piece in vocabulary)
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"), lowercase=config.get("do_lower_case", not capitals))  # fmt: skip
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return backend


def _read_bpe(file: Path, vocabulary: dict[str, int], config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    ending = next((name for name in MERGES if file.name.endswith(name)), None)
    merges_file = file.with_name(file.name.removesuffix(ending) + MERGES[ending]) if ending else None
    if merges_file is None or not merges_file.is_file():
        raise ValueError("its merges are missing: vocab.json needs merges.txt beside it, encoder.json vocab.bpe")
    lines = merges_file.read_text(encoding="utf-8").split("\n")
    lines = [line for line in lines if line.strip() and not line.startswith("#version")]
    if broken := next((line for line in lines if line.count(" ") != 1), None):
        raise ValueError(f"{merges_file.name} has a line that is no pair: {broken[:40]}")
    merges = [(left, right) for left, right in (line.split(" ") for line in lines)]
    if any(piece.endswith(WORD_END) for piece in vocabulary):  # GPT
        backend = tokenizers.Tokenizer(models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", end_of_word_suffix=WORD_END))  # fmt: skip
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.BPEDecoder(suffix=WORD_END)
        return backend
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=config.get("add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, file: Path) -> None:
    if file.is_file():
        added = parse(file.read_text(encoding="utf-8"))
        backend.add_tokens([AddedToken(token, normalized=False) for token in sorted(added, key=added.__getitem__)])


def _add_sentinels(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add T5's sentinels after the other tokens, in reverse order (the SentencePiece file does not have them), and an
    end token after every text."""
    is_t5 = str(config.get("tokenizer_class")).startswith("T5Tokenizer")
    count, vocabulary = config.get("extra_ids", SENTINELS if is_t5 else 0), backend.get_vocab()
    if not count or ANGLES["sentinel"].format(0) in vocabulary:
        return
    backend.add_special_tokens([AddedToken(ANGLES["sentinel"].format(sentinel), normalized=False, special=True)
                                for sentinel in reversed(range(count))])
    end = ANGLES["end"]
    backend.post_processor = processors.TemplateProcessing(single=f"$A {end}", pair=f"$A {end} $B {end}",
                                                           special_tokens=[(end, vocabulary[end])])


def _add_post_processor(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add the special tokens of BERT and RoBERTa around texts; other families add none."""
    vocabulary = backend.get_vocab()
    roles, _ = find_special_tokens(vocabulary, config)
    if not {"start", "separator", "mask"} <= roles.keys():
        return
    spelling = {token_id: token for token, token_id in vocabulary.items()}
    separator, start = ((spelling[roles[name]], roles[name]) for name in ("separator", "start"))
    if isinstance(backend.model, models.WordPiece):
        backend.post_processor = processors.BertProcessing(separator, start)
    elif isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        add_prefix = config.get("add_prefix_space", False)
        backend.post_processor = processors.RobertaProcessing(separator, start, add_prefix_space=add_prefix)

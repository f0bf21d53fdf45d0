"""Reads SentencePiece models (arXiv:1808.06226), Unigram and BPE, as a `tokenizers` pipeline.

Spaces are characters (▁) at the start of a word. The model file contains its own normalization table.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from stemma.errors import UserError

UNIGRAM, BPE = 1, 2
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
WORD_START = "▁"


def read_sentencepiece(file: Path) -> tokenizers.Tokenizer:
    proto = _parse(file)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    model: models.Model
    if trainer.model_type == UNIGRAM:
        model = models.Unigram(pieces, unk_id=trainer.unk_id, byte_fallback=trainer.byte_fallback)
    elif trainer.model_type == BPE:
        vocabulary = {piece: index for index, (piece, _) in enumerate(pieces)}
        normal = [piece.piece for piece in sorted(proto.pieces, key=lambda p: -p.score) if piece.type == NORMAL]
        model = models.BPE(
            vocab=vocabulary, merges=list(_merges(normal)), unk_token=proto.pieces[trainer.unk_id].piece,
            fuse_unk=True, byte_fallback=trainer.byte_fallback)  # fmt: skip
    else:
        raise ValueError("its model is neither Unigram nor BPE")
    backend = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = []
    if normalizer.precompiled_charsmap:
        steps.append(normalizers.Precompiled(normalizer.precompiled_charsmap))
    if normalizer.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    prepend = "always" if normalizer.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme=prepend)
    spaces = decoders.Metaspace(replacement=WORD_START, prepend_scheme=prepend)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if trainer.byte_fallback else spaces
    for piece in proto.pieces:
        if piece.type in (CONTROL, USER_DEFINED):
            backend.add_tokens([AddedToken(piece.piece, normalized=False, special=piece.type == CONTROL)])
    return backend


def _parse(file: Path) -> Any:
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError as error:
        raise UserError(f'reading {file} needs sentencepiece: pip install "stemma-lm[spm]".') from error
    proto = vars(messages)["ModelProto"]()  # protobuf creates the class at run time
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError("not a SentencePiece model") from error
    if not proto.pieces:
        raise ValueError("a SentencePiece model without pieces")
    return proto


def _merges(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """Merges of a BPE model. The file lists only the merged pieces, best first; every pair of pieces that concatenates
    to one is a merge of that rank."""
    vocabulary = set(pieces)
    for piece in pieces:
        for cut in range(1, len(piece)):
            if piece[:cut] in vocabulary and piece[cut:] in vocabulary:
                yield piece[:cut], piece[cut:]

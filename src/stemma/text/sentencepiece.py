"""SentencePiece models (arXiv:1808.06226), Unigram and BPE, as a `tokenizers` pipeline.

Spaces are characters (▁), a word starts with one, and text is cleaned by a table that the model file itself carries.
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
    trained, cleaning = proto.trainer_spec, proto.normalizer_spec
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    model: models.Model
    if trained.model_type == UNIGRAM:
        model = models.Unigram(pieces, unk_id=trained.unk_id, byte_fallback=trained.byte_fallback)
    elif trained.model_type == BPE:
        vocabulary = {piece: number for number, (piece, _) in enumerate(pieces)}
        normal = [piece.piece for piece in sorted(proto.pieces,
                                                           key=lambda p: -p.score) if piece.type == NORMAL]
        model = models.BPE(
            vocab=vocabulary, merges=list(_merges(normal)), unk_token=proto.pieces[trained.unk_id].piece,
            fuse_unk=True, byte_fallback=trained.byte_fallback)  # fmt: skip
    else:
        raise ValueError("its model is neither Unigram nor BPE")
    backend = tokenizers.Tokenizer(model)
    steps: list[normalizers.Normalizer] = []
    if cleaning.precompiled_charsmap:
        steps.append(normalizers.Precompiled(cleaning.precompiled_charsmap))
    if cleaning.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if steps:
        backend.normalizer = normalizers.Sequence(steps)
    prepend = "always" if cleaning.add_dummy_prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=WORD_START, prepend_scheme=prepend)
    spaces = decoders.Metaspace(replacement=WORD_START, prepend_scheme=prepend)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), spaces]) if trained.byte_fallback else spaces
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
    proto = vars(messages)["ModelProto"]()  # protobuf makes the class at run time
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError as error:
        raise ValueError("not a SentencePiece model") from error
    if not proto.pieces:
        raise ValueError("a SentencePiece model without pieces")
    return proto


def _merges(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """The file names only the results, best first; every pair of pieces that gives one is a merge of that rank."""
    known = set(pieces)
    for piece in pieces:
        for cut in range(1, len(piece)):
            if piece[:cut] in known and piece[cut:] in known:
                yield piece[:cut], piece[cut:]

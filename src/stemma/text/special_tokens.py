"""Special tokens by role: objectives use the mask or the separator token, never a spelling.

Two roles may share one token: RoBERTa's `<s>` is both the classification token and the begin-of-sequence token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

SENTINELS = 100
BRACKETS = {"padding": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "separator": "[SEP]", "mask": "[MASK]",
            "begin": "[BOS]", "end": "[EOS]", "sentinel": "[S{}]"}  # fmt: skip
ANGLES = {"start": "<s>", "begin": "<s>", "padding": "<pad>", "separator": "</s>", "end": "</s>", "unknown": "<unk>",
          "mask": "<mask>", "sentinel": "<extra_id_{}>"}  # fmt: skip
# Spelling of each role for each kind of tokenizer, in the order of ids.
SPECIAL_TOKENS: dict[str, dict[str, str]] = {
    "wordpiece": BRACKETS, "word": BRACKETS, "character": BRACKETS,
    "byte_bpe": ANGLES, "bpe": ANGLES, "unigram": ANGLES,
}  # fmt: skip
REQUIRED = {"padding", "unknown"}  # every batch needs padding, every vocabulary an unknown token
HF_TOKEN_KEYS = {"padding": "pad_token", "unknown": "unk_token", "start": "cls_token", "separator": "sep_token",
                 "mask": "mask_token", "begin": "bos_token", "end": "eos_token"}  # fmt: skip
# Common spellings of each role, best first, for tokenizers without a configuration.
COMMON_SPELLINGS = {
    "padding": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>", "<|endoftext|>"),
    "start": ("[CLS]", "<cls>", "<s>"),
    "separator": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "begin": ("[BOS]", "<bos>", "<s>", "<|endoftext|>"),
    "end": ("[EOS]", "<eos>", "</s>", "<|endoftext|>"),
}
SENTINEL = re.compile(r"\[S(\d{1,3})\]|<extra_id_(\d{1,3})>")


def special_token_strings(kind: str, roles: Iterable[str] | None = None) -> list[str]:
    """The special tokens that a new vocabulary reserves for these roles (None: for all), without duplicates."""
    table = SPECIAL_TOKENS[kind]
    roles = set(table) if roles is None else set(roles) | REQUIRED
    single = [spelling for role, spelling in table.items() if role in roles and role != "sentinel"]
    sentinels = [table["sentinel"].format(index) for index in range(SENTINELS)] if "sentinel" in roles else []
    return list(dict.fromkeys([*single, *sentinels]))


def find_special_tokens(vocabulary: Mapping[str, int], config: Mapping[str, Any]) -> tuple[dict[str, int], list[int]]:
    """(role -> id, sentinel ids in order), from the configuration, else by common spellings."""
    roles = {}
    for role, key in HF_TOKEN_KEYS.items():
        configured = config.get(key)
        configured = configured.get("content") if isinstance(configured, dict) else configured
        token = next((token for token in (configured, *COMMON_SPELLINGS[role]) if token in vocabulary), None)
        if token is not None:
            roles[role] = vocabulary[token]
    by_index = {int(match[1] or match[2]): token for token in vocabulary if (match := SENTINEL.fullmatch(token))}
    sentinels = [vocabulary[by_index[index]] for index in sorted(by_index)]
    if sentinels:
        roles["sentinel"] = sentinels[0]
    return roles, sentinels


def register_special_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, object]) -> None:
    """Register the special tokens with the backend, so that text is never split inside one."""
    vocabulary = backend.get_vocab()
    roles, sentinels = find_special_tokens(vocabulary, config)
    spelling = {token_id: token for token, token_id in vocabulary.items()}
    for token_id in sorted({*roles.values(), *sentinels}):
        backend.add_special_tokens([tokenizers.AddedToken(spelling[token_id], normalized=False, special=True)])

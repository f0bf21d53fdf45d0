"""Special tokens by what they are for: objectives ask for the mask or the separator, never for a spelling.

Two roles may share one token: in RoBERTa's spelling `<s>` both starts a sequence and begins a generated text.
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
# How each kind of tokenizer spells the roles, in the order of their ids.
SPECIAL_TOKENS: dict[str, dict[str, str]] = {
    "wordpiece": BRACKETS, "word": BRACKETS, "character": BRACKETS,
    "byte_bpe": ANGLES, "bpe": ANGLES, "unigram": ANGLES,
}  # fmt: skip
REQUIRED = {"padding", "unknown"}  # no batch can do without the one, no vocabulary without the other
HF_TOKEN_KEYS = {"padding": "pad_token", "unknown": "unk_token", "start": "cls_token", "separator": "sep_token",
                "mask": "mask_token", "begin": "bos_token", "end": "eos_token"}  # fmt: skip
# What a token is for when no configuration says so, best first.
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
    """The special tokens that a new vocabulary reserves for these roles (None: for all of them), without repetition."""
    table = SPECIAL_TOKENS[kind]
    wanted = set(table) if roles is None else set(roles) | REQUIRED
    single = [spelling for role, spelling in table.items() if role in wanted and role != "sentinel"]
    numbered = [table["sentinel"].format(number) for number in range(SENTINELS)] if "sentinel" in wanted else []
    return list(dict.fromkeys([*single, *numbered]))


def find_special_tokens(vocabulary: Mapping[str, int], config: Mapping[str, Any]) -> tuple[dict[str, int], list[int]]:
    """Role to id, and the sentinels' ids in their order: as configured, else by well-known spellings."""
    roles = {}
    for role, key in HF_TOKEN_KEYS.items():
        named = config.get(key)
        named = named.get("content") if isinstance(named, dict) else named
        token = next((token for token in (named, *COMMON_SPELLINGS[role]) if token in vocabulary), None)
        if token is not None:
            roles[role] = vocabulary[token]
    numbered = {int(found[1] or found[2]): token for token in vocabulary if (found := SENTINEL.fullmatch(token))}
    sentinels = [vocabulary[numbered[number]] for number in sorted(numbered)]
    if sentinels:
        roles["sentinel"] = sentinels[0]
    return roles, sentinels


def register_special_tokens(backend: tokenizers.Tokenizer, config: Mapping[str, object]) -> None:
    """Tell the backend which pieces of its vocabulary are special, so that text is never split inside one."""
    vocabulary = backend.get_vocab()
    roles, sentinels = find_special_tokens(vocabulary, config)
    spelling = {number: token for token, number in vocabulary.items()}
    for number in sorted({*roles.values(), *sentinels}):
        backend.add_special_tokens([tokenizers.AddedToken(spelling[number], normalized=False, special=True)])

"""Tokenizer: a `tokenizers` pipeline with the roles of its special tokens.

Its kind, lower-casing and special tokens are derived from the pipeline and from tokenizer_config.json, so a tokenizer
is the same after training, and after saving and loading. The configuration also says whether traditional Chinese is
converted to simplified first, a step that the pipeline cannot have.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import processors

from stemma.atomic_files import atomic_write
from stemma.errors import UserError, did_you_mean
from stemma.text.backend_errors import catch_panics, has_foreign_regex
from stemma.text.load_tokenizer import load_backend
from stemma.text.simplify_chinese import to_simplified
from stemma.text.special_tokens import HF_TOKEN_KEYS, SENTINELS, SPECIAL_TOKENS, find_special_tokens

__all__ = ["SPECIAL_TOKENS", "SENTINELS", "Tokenizer"]


class Tokenizer:
    """Converts text to token ids and back; knows the ids of special tokens by role."""

    backend: tokenizers.Tokenizer
    kind: str  # wordpiece, bpe, byte_bpe, unigram, word or character
    lowercase: bool
    cjk_spacing: bool | None  # whether CJK characters are separate words; None if no step of the pipeline decides it
    simplify: bool  # converts traditional Chinese to simplified before the pipeline
    vocab_size: int
    special_token_ids: dict[str, int]  # role -> id, only roles that the vocabulary has; "sentinel" is the first one
    sentinels: list[int]
    special_ids: np.ndarray  # sorted ids of every special token
    regular_ids: np.ndarray  # all other ids
    fingerprint: str  # hash of the vocabulary

    def __init__(self, backend: tokenizers.Tokenizer, config: Mapping[str, object] | None = None):
        vocabulary = backend.get_vocab()
        description = json.loads(backend.to_str())
        self.backend = backend
        self._foreign = has_foreign_regex(backend)
        self.kind = _kind(description)
        steps = _parts(description, "normalizer")
        self.lowercase = any(step.get("lowercase", step["type"] == "Lowercase") for step in steps)
        spacing = [step["handle_chinese_chars"] for step in steps if "handle_chinese_chars" in step]
        self.cjk_spacing = any(spacing) if spacing else None
        self.simplify = bool((config or {}).get("simplify"))
        self.special_token_ids, self.sentinels = find_special_tokens(vocabulary, config or {})
        self.vocab_size = max(vocabulary.values()) + 1
        added = [token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special]
        self.special_ids = np.array(sorted({*added, *self.special_token_ids.values(), *self.sentinels}), dtype=np.int64)
        self.regular_ids = np.setdiff1d(np.arange(self.vocab_size), self.special_ids)
        pairs = sorted((token_id, token) for token, token_id in vocabulary.items())
        self.fingerprint = hashlib.sha256(json.dumps(pairs).encode()).hexdigest()

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load from a folder or a file: tokenizer.json, vocab.txt, vocab.json with merges.txt, or SentencePiece."""
        return cls(*load_backend(Path(path)))

    def save(
        self, folder: str | Path, single: str | None = None, pair: str | None = None, max_length: int | None = None
    ) -> None:
        """Write tokenizer.json and tokenizer_config.json, so that AutoTokenizer gives the same ids."""
        if single is not None:
            return self.with_template(single, pair or single).save(folder, max_length=max_length)
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= {key: self.id_to_token(self.special_token_ids[role]) for role, key in HF_TOKEN_KEYS.items()
                   if role in self.special_token_ids}
        config |= {"extra_special_tokens": self.ids_to_tokens(self.sentinels)} if self.sentinels else {}
        config |= {"model_max_length": max_length} if max_length is not None else {}
        config |= {"simplify": True} if self.simplify else {}  # only Stemma's `load` uses it
        if self._ends_with("start"):  # XLNet classifies at the last position, so padding must be on the left
            config["padding_side"] = "left"
        segments = ["token_type_ids"] if self._has_segments() else []
        config["model_input_names"] = ["input_ids", *segments, "attention_mask"]
        atomic_write(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        atomic_write(folder / "tokenizer_config.json", json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        return None

    def settings(self) -> dict[str, Any]:
        """This tokenizer as the [tokenizer] section of a recipe."""
        spacing = {} if self.cjk_spacing is None else {"cjk_spacing": self.cjk_spacing}
        return {"kind": self.kind, "vocab_size": self.vocab_size, "lowercase": self.lowercase, **spacing,
                "simplify": self.simplify}

    def special_id(self, name: str) -> int:
        """Id of the special token with this role."""
        if name not in self.special_token_ids:
            hint = did_you_mean(name, [*HF_TOKEN_KEYS, "sentinel"]) if name not in (*HF_TOKEN_KEYS, "sentinel") else ""
            raise UserError(f'the tokenizer has no token for the role "{name}".{hint} Train one with '
                            "`stemma tokenizer train --for RECIPE`, or add the token to its vocabulary.")
        return self.special_token_ids[name]

    def document_separator_id(self, preferred: str = "separator") -> int | None:
        """Id of the token between two documents: the separator or the end token, the preferred one first; None if the
        vocabulary has neither."""
        other = "end" if preferred == "separator" else "separator"
        return self.special_token_ids.get(preferred, self.special_token_ids.get(other))

    def with_template(self, single: str, pair: str) -> Tokenizer:
        """A copy that adds special tokens by role: "start A separator", "start A separator B:1 separator:1"."""
        special_tokens: dict[str, int] = {}

        def parse(template: str) -> list[str]:
            words = []
            for word in template.split():
                name, _, segment = word.partition(":")
                if name not in ("A", "B"):
                    token_id = self.special_id(name)
                    name = self.id_to_token(token_id)
                    special_tokens[name] = token_id
                words.append(f"{'$' if name in ('A', 'B') else ''}{name}:{segment or 0}")
            return words

        templates = {"single": parse(single), "pair": parse(pair)}
        processor = processors.TemplateProcessing(**templates, special_tokens=list(special_tokens.items()))
        tokenizer = copy.copy(self)
        tokenizer.backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        if self.kind == "byte_bpe":  # tokens include the space before them; offsets should not
            byte_level = processors.ByteLevel(trim_offsets=True)
            tokenizer.backend.post_processor = processors.Sequence([byte_level, processor])
        else:
            tokenizer.backend.post_processor = processor
        return tokenizer

    def pre_normalize(self, text: str) -> str:
        """Steps before the pipeline. Callers that pass text to `backend` directly must call this first."""
        return to_simplified(text) if self.simplify else text

    def encode(self, text: str, pair: str | None = None, special: bool = True) -> tokenizers.Encoding:
        with catch_panics(self._foreign):
            return self.backend.encode(self.pre_normalize(text), None if pair is None else self.pre_normalize(pair),
                                       add_special_tokens=special)

    def encode_batch(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, special: bool = True
    ) -> list[tokenizers.Encoding]:
        sides = [list(map(self.pre_normalize, side)) for side in ([texts] if pairs is None else [texts, pairs])]
        inputs = sides[0] if pairs is None else list(zip(*sides, strict=True))
        with catch_panics(self._foreign):
            return self.backend.encode_batch(inputs, add_special_tokens=special)

    def decode(self, ids: Sequence[int] | np.ndarray, skip_special: bool = True) -> str:
        return self.backend.decode([int(token_id) for token_id in ids], skip_special_tokens=skip_special)

    def id_to_token(self, token_id: int) -> str:
        token = self.backend.id_to_token(int(token_id))
        if token is None:
            raise UserError(f"no token has the id {token_id}; the vocabulary ends at {self.vocab_size - 1}.")
        return token

    def ids_to_tokens(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        return [self.id_to_token(token_id) for token_id in ids]

    def token_to_id(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def _ends_with(self, role: str) -> bool:
        """Whether the post-processor puts this special token after the text."""
        last = self.backend.encode("a").ids[-1:]
        return role in self.special_token_ids and last == [self.special_token_ids[role]]

    def _has_segments(self) -> bool:
        """Whether the second text has token type 1 (as in BERT, not in RoBERTa)."""
        processor = json.loads(self.backend.to_str())["post_processor"]
        return '"type_id": 1' in json.dumps(processor) or (processor or {}).get("type") == "BertProcessing"


def _parts(description: dict[str, Any], section: str) -> list[dict[str, Any]]:
    """The steps of one section of tokenizer.json, with sequences flattened."""
    stack = [description.get(section) or {}]
    parts = []
    while stack:
        part = stack.pop()
        inner = [step for key in ("normalizers", "pretokenizers") for step in part.get(key, [])]
        stack.extend(inner)
        if part and not inner:
            parts.append(part)
    return parts


def _kind(description: dict[str, Any]) -> str:
    steps = _parts(description, "pre_tokenizer") + _parts(description, "normalizer")
    model = description["model"]["type"]
    if model == "BPE":
        return "byte_bpe" if any(step["type"] == "ByteLevel" for step in steps) else "bpe"
    if model == "WordLevel":
        return "character" if any(step["type"] == "Split" for step in steps) else "word"
    return {"WordPiece": "wordpiece", "Unigram": "unigram"}[model]

"""Incremental decoding: encode prompts, and turn generated tokens into text while it grows.

A token is not always readable alone: a character may need several byte-level tokens, and whether a piece begins with a
space depends on the token before it. So tokens are decoded together with those before them. Bytes of an incomplete
character, and text that may become a stop string, are held back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from stemma.errors import UserError
from stemma.generation.decoding_mode import DecodingSpec, is_right_to_left
from stemma.generation.options import GenerationOptions
from stemma.model import Model
from stemma.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

FinishReason = Literal["end", "stop", "length"]
REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what decode() gives for an incomplete character
MAX_CHARACTER_TOKENS = 4  # a character has at most 4 bytes in UTF-8, so at most 4 byte-level tokens


class PartialCompletion:
    """One completion during generation: its tokens, and the text that is already certain."""

    def __init__(self, tokenizer: Tokenizer | None, prompt: Sequence[int], stop_strings: Sequence[str],
                 eos_token_ids: Sequence[int]):
        self.tokenizer, self.stop_strings, self.eos_token_ids = tokenizer, stop_strings, eos_token_ids
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.log_probability = 0.0
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._ids = list(prompt)
        self._first, self._num_emitted = 0, len(self._ids)  # decode from _first; text up to _num_emitted is emitted
        self._pending = ""  # decoded text that may be the beginning of a stop string

    def append(self, token: int, log_probability: float, last: bool = False) -> str:
        """Add a token; returns the newly certain text, which may be empty."""
        self.tokens.append(token)
        self.log_probability += log_probability
        if token in self.eos_token_ids:
            self.finish_reason = "end"
        else:
            self._ids.append(token)
            self.finish_reason = "length" if last else None
        piece = self._new_text()
        self.text += piece
        return piece

    def _new_text(self) -> str:
        if self.tokenizer is None:
            return ""
        self._pending += self._decode_pending(self.tokenizer)
        stops = [index for text in self.stop_strings if (index := self._pending.find(text)) >= 0]
        if stops:
            self.finish_reason = "stop"
            return self._pending[:min(stops)]
        held_back = 0 if self.finish_reason else max(map(self._stop_prefix_length, self.stop_strings), default=0)
        end = len(self._pending) - held_back
        piece, self._pending = self._pending[:end], self._pending[end:]
        return piece

    def _decode_pending(self, tokenizer: Tokenizer) -> str:
        """The newly decodable text."""
        emitted = tokenizer.decode(self._ids[self._first:self._num_emitted])
        decoded = tokenizer.decode(self._ids[self._first:])
        incomplete = decoded.endswith(REPLACEMENT_CHARACTER) \
            and len(self._ids) - self._num_emitted < MAX_CHARACTER_TOKENS
        if len(decoded) <= len(emitted) or incomplete and not self.finish_reason:
            return ""
        self._first, self._num_emitted = self._num_emitted, len(self._ids)
        return decoded[len(emitted):]

    def _stop_prefix_length(self, stop: str) -> int:
        """The length of the longest suffix of the pending text that is a prefix of the stop string."""
        return next((length for length in range(min(len(stop) - 1, len(self._pending)), 0, -1)
                     if stop.startswith(self._pending[-length:])), 0)


class BackwardCompletion(PartialCompletion):
    """A completion before the prompt (right-to-left models). It grows at its front, so no text is certain before the
    end."""

    def _new_text(self) -> str:
        if self.tokenizer is None or not (self.stop_strings or self.finish_reason):
            return ""
        output = self._ids[len(self.prompt):][::-1]
        prompt = self.prompt[::-1]  # self.prompt is right-to-left, as the model reads it
        full_text = self.tokenizer.decode([*output, *prompt])
        text = full_text[:len(full_text) - len(self.tokenizer.decode(prompt))]
        start = max((index + len(stop) for stop in self.stop_strings if (index := text.rfind(stop)) >= 0), default=None)
        if start is not None:
            self.finish_reason, text = "stop", text[start:]
        return text if self.finish_reason else ""


def new_completion(model: Model, spec: DecodingSpec, prompt: Sequence[int],
                   options: GenerationOptions) -> PartialCompletion:
    completion_class = BackwardCompletion if is_right_to_left(model) else PartialCompletion
    context = () if spec.mode == "decoder" else prompt  # a decoder's output does not continue the source
    return completion_class(model.tokenizer, context, options.stop, spec.eos_token_ids)


def encode_prompts(model: Model, spec: DecodingSpec, prompts: Sequence[str | Sequence[int]],
                   options: GenerationOptions) -> list[list[int]]:
    """The token ids of each prompt, in the model's reading direction and with its template."""
    if not len(prompts):
        raise UserError("there is no prompt; give at least one" + ("." if spec.is_seq2seq else
                                                                   " (an empty one will do)."))
    if options.stop:
        model.require_tokenizer()
    if spec.is_seq2seq and any(isinstance(prompt, str) and not prompt.strip() for prompt in prompts):
        raise UserError(f"a prompt is empty, and {model.recipe.label} writes from a source; give it some text.")
    rows = [encode(model, prompt) if isinstance(prompt, str) else _validate_token_ids(model, prompt, index)
            for index, prompt in enumerate(prompts)]
    if is_right_to_left(model):
        rows = [row[::-1] for row in rows]
    limit = spec.max_prompt_tokens
    if limit is not None and max(map(len, rows)) > limit:
        if not options.crop:
            _check_prompt_length(model, rows, limit, spec)
        rows = [row[:limit] if spec.is_seq2seq else row[-limit:] for row in rows]
    return [spec.format_prompt(row) for row in rows]


def _check_prompt_length(model: Model, rows: Sequence[Sequence[int]], max_tokens: int, spec: DecodingSpec) -> None:
    too_long = [(f"prompt {index + 1}", f"{len(row):,} tokens") for index, row in enumerate(rows)
                if len(row) > max_tokens]
    end = "first" if spec.is_seq2seq else "last"
    advice = f"{model.recipe.label} reads at most {max_tokens:,}; cut it, or crop it (--crop) to its {end} " \
             f"{max_tokens:,}"
    if len(rows) == 1:
        raise UserError(f"the prompt is {len(rows[0]):,} tokens long and {advice}.")
    raise UserError(f"{len(too_long)} of {len(rows)} prompts are too long: {advice}", too_long)


def encode(model: Model, text: str) -> list[int]:
    """The token ids of a text; an empty text is a document separator. Warns of unknown characters."""
    tokenizer = model.require_tokenizer()
    encoding = tokenizer.encode(text, special=False)
    unknown_id = tokenizer.special_token_ids.get("unknown")
    unknown_token = tokenizer.id_to_token(unknown_id or 0)
    unknown = [text[slice(*offsets)] for token, offsets in zip(encoding.ids, encoding.offsets, strict=True)
               if token == unknown_id]
    missing = [part for part in dict.fromkeys(unknown) if part != unknown_token]
    if missing:
        logger.warning(
            f"the vocabulary lacks {', '.join(map(repr, missing[:10]))}{', ...' if len(missing) > 10 else ''}; the "
            f"model reads {unknown_token} there.")
    if encoding.ids:
        return encoding.ids
    if model.document_separator_id is None:
        raise UserError("the prompt is empty, and this vocabulary has no token that a text could begin with; write at "
                        "least one word.")
    return [model.document_separator_id]


def _validate_token_ids(model: Model, prompt: Sequence[int], index: int) -> list[int]:
    row = [int(token) for token in prompt]
    if not row:
        raise UserError(f"prompt {index + 1} has no tokens; give at least one.")
    if min(row) < 0 or max(row) >= model.network.vocab_size:
        raise UserError(f"prompt {index + 1} has ids from {min(row)} to {max(row)}, and this network knows those from "
                        f"0 to {model.network.vocab_size - 1}.")
    return row

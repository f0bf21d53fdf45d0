"""Between text and tokens: prompts on the way in, and on the way out what can be read of a text that still grows.

A token need not be a readable piece: a character may be spread over several byte-level tokens, and whether a piece
begins with a space depends on what stands before it. So a few tokens are always decoded together with those before
them, bytes of an unfinished character are held back, and so is whatever may become a stop string.
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
REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # what a decoder makes of bytes that are no character (yet)
MAX_CHARACTER_TOKENS = 4  # bytes, and so tokens, that UTF-8 takes at most


class PartialCompletion:
    """One completion while it is written: its tokens, and its text as far as it is certain."""

    def __init__(self, tokenizer: Tokenizer | None, prompt: Sequence[int], stop_strings: Sequence[str],
                 eos_token_ids: Sequence[int]):
        self.tokenizer, self.stop_strings, self.eos_token_ids = tokenizer, stop_strings, eos_token_ids
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.log_probability = 0.0
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._ids = list(prompt)
        self._first, self._num_emitted = 0, len(self._ids)  # decode from the one on; up to the other it was readable
        self._pending = ""  # may be the beginning of a stop string

    def append(self, token: int, log_probability: float, last: bool = False) -> str:
        """One more token; returns what can be read now, which is often nothing."""
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
        found = [(place, text) for text in self.stop_strings if (place := self._pending.find(text)) >= 0]
        if found:
            self.finish_reason = "stop"
            return self._pending[:min(found)[0]]
        free = len(self._pending) if self.finish_reason else len(self._pending) - max(map(self._stop_prefix_length,
                                                                                          self.stop_strings), default=0)
        piece, self._pending = self._pending[:free], self._pending[free:]
        return piece

    def _decode_pending(self, tokenizer: Tokenizer) -> str:
        """The newly readable text."""
        before = tokenizer.decode(self._ids[self._first:self._num_emitted])
        now = tokenizer.decode(self._ids[self._first:])
        unfinished = now.endswith(REPLACEMENT_CHARACTER) and len(self._ids) - self._num_emitted < MAX_CHARACTER_TOKENS
        if len(now) <= len(before) or unfinished and not self.finish_reason:
            return ""
        self._first, self._num_emitted = self._num_emitted, len(self._ids)
        return now[len(before):]

    def _stop_prefix_length(self, stop: str) -> int:
        """How many characters at the end of what is held are a beginning of the stop string."""
        return next((length for length in range(min(len(stop) - 1, len(self._pending)), 0, -1)
                     if stop.startswith(self._pending[-length:])), 0)


class BackwardCompletion(PartialCompletion):
    """The text before the prompt, which grows at its front: nothing of it is certain until it has ended."""

    def _new_text(self) -> str:
        if self.tokenizer is None or not (self.stop_strings or self.finish_reason):
            return ""
        written = self._ids[len(self.prompt):][::-1]
        asked = self.prompt[::-1]  # the prompt as it was read, from its end
        whole = self.tokenizer.decode([*written, *asked])
        text = whole[:len(whole) - len(self.tokenizer.decode(asked))]
        found = max((place + len(stop) for stop in self.stop_strings if (place := text.rfind(stop)) >= 0), default=None)
        if found is not None:
            self.finish_reason, text = "stop", text[found:]
        return text if self.finish_reason else ""


def new_completion(model: Model, spec: DecodingSpec, prompt: Sequence[int],
                   options: GenerationOptions) -> PartialCompletion:
    kind = BackwardCompletion if is_right_to_left(model) else PartialCompletion
    before = () if spec.mode == "decoder" else prompt  # a decoder's text is one of its own
    return kind(model.tokenizer, before, options.stop, spec.eos_token_ids)


def encode_prompts(model: Model, spec: DecodingSpec, prompts: Sequence[str | Sequence[int]],
                 options: GenerationOptions) -> list[list[int]]:
    """The tokens of each prompt in the order in which the model reads them, laid out as it learned to."""
    if not len(prompts):
        raise UserError("there is no prompt; give at least one" + ("." if spec.is_seq2seq else
                                                                   " (an empty one will do)."))
    if options.stop:
        model.require_tokenizer()
    if spec.is_seq2seq and any(isinstance(prompt, str) and not prompt.strip() for prompt in prompts):
        raise UserError(f"a prompt is empty, and {model.recipe.label} writes from a source; give it some text.")
    rows = [encode(model, prompt) if isinstance(prompt, str) else _validate_token_ids(model, prompt, number)
            for number, prompt in enumerate(prompts)]
    if is_right_to_left(model):
        rows = [row[::-1] for row in rows]
    most = spec.max_prompt_tokens
    if most is not None and max(map(len, rows)) > most:
        if not options.crop:
            _check_prompt_length(model, rows, most, spec)
        rows = [row[:most] if spec.is_seq2seq else row[-most:] for row in rows]
    return [spec.format_prompt(row) for row in rows]


def _check_prompt_length(model: Model, rows: Sequence[Sequence[int]], max_tokens: int, spec: DecodingSpec) -> None:
    too_long = [(f"prompt {number + 1}", f"{len(row):,} tokens") for number, row in enumerate(rows)
                if len(row) > max_tokens]
    part = "first" if spec.is_seq2seq else "last"
    advice = f"{model.recipe.label} reads at most {max_tokens:,}; cut it, or crop it (--crop) to its {part} {max_tokens:,}"
    if len(rows) == 1:
        raise UserError(f"the prompt is {len(rows[0]):,} tokens long and {advice}.")
    raise UserError(f"{len(too_long)} of {len(rows)} prompts are too long: {advice}", too_long)


def encode(model: Model, text: str) -> list[int]:
    tokenizer = model.require_tokenizer()
    encoding = tokenizer.encode(text, special=False)
    unknown = tokenizer.special_token_ids.get("unknown")
    places = [text[slice(*place)] for number, place in zip(encoding.ids, encoding.offsets, strict=True)
              if number == unknown]
    lacking = [part for part in dict.fromkeys(places) if part != tokenizer.id_to_token(unknown or 0)]
    if lacking:
        logger.warning(
            f"the vocabulary lacks {', '.join(map(repr, lacking[:10]))}{', ...' if len(lacking) > 10 else ''}; the "
            f"model reads {tokenizer.id_to_token(unknown or 0)} there.")
    if encoding.ids:
        return encoding.ids
    if model.document_separator_id is None:
        raise UserError("the prompt is empty, and this vocabulary has no token that a text could begin with; write at "
                        "least one word.")
    return [model.document_separator_id]


def _validate_token_ids(model: Model, prompt: Sequence[int], number: int) -> list[int]:
    row = [int(token) for token in prompt]
    if not row:
        raise UserError(f"prompt {number + 1} has no tokens; give at least one.")
    if min(row) < 0 or max(row) >= model.network.vocab_size:
        raise UserError(f"prompt {number + 1} has ids from {min(row)} to {max(row)}, and this network knows those from "
                        f"0 to {model.network.vocab_size - 1}.")
    return row

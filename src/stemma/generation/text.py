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
from stemma.exchange.model import Model
from stemma.generation.options import Options
from stemma.generation.ways import Scheme, reads_backward
from stemma.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Ended = Literal["end", "stop", "length"]
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder makes of bytes that are no character (yet)
LONGEST_CHARACTER = 4  # bytes, and so tokens, that UTF-8 takes at most


class Writing:
    """One completion while it is written: its tokens, and its text as far as it is certain."""

    def __init__(self, tokenizer: Tokenizer | None, prompt: Sequence[int], stop: Sequence[str], ends: Sequence[int]):
        self.tokenizer, self.stop, self.ends = tokenizer, stop, ends
        self.prompt = list(prompt)
        self.tokens: list[int] = []
        self.log_probability = 0.0
        self.text = ""
        self.ended: Ended | None = None
        self._ids = list(prompt)
        self._first, self._shown = 0, len(self._ids)  # decode from the one on; up to the other it was readable
        self._held = ""  # may be the beginning of a stop string

    def add(self, token: int, chance: float, last: bool = False) -> str:
        """One more token; returns what can be read now, which is often nothing."""
        self.tokens.append(token)
        self.log_probability += chance
        if token in self.ends:
            self.ended = "end"
        else:
            self._ids.append(token)
            self.ended = "length" if last else None
        piece = self._readable()
        self.text += piece
        return piece

    def _readable(self) -> str:
        if self.tokenizer is None:
            return ""
        self._held += self._decoded(self.tokenizer)
        found = [(place, text) for text in self.stop if (place := self._held.find(text)) >= 0]
        if found:
            self.ended = "stop"
            return self._held[:min(found)[0]]
        free = len(self._held) if self.ended else len(self._held) - max(map(self._begun, self.stop), default=0)
        piece, self._held = self._held[:free], self._held[free:]
        return piece

    def _decoded(self, tokenizer: Tokenizer) -> str:
        """The newly readable text."""
        before = tokenizer.decode(self._ids[self._first:self._shown])
        now = tokenizer.decode(self._ids[self._first:])
        unfinished = now.endswith(UNFINISHED) and len(self._ids) - self._shown < LONGEST_CHARACTER
        if len(now) <= len(before) or unfinished and not self.ended:
            return ""
        self._first, self._shown = self._shown, len(self._ids)
        return now[len(before):]

    def _begun(self, stop: str) -> int:
        """How many characters at the end of what is held are a beginning of the stop string."""
        return next((length for length in range(min(len(stop) - 1, len(self._held)), 0, -1)
                     if stop.startswith(self._held[-length:])), 0)


class BackwardWriting(Writing):
    """The text before the prompt, which grows at its front: nothing of it is certain until it has ended."""

    def _readable(self) -> str:
        if self.tokenizer is None or not (self.stop or self.ended):
            return ""
        written = self._ids[len(self.prompt):][::-1]
        asked = self.prompt[::-1]  # the prompt as it was read, from its end
        whole = self.tokenizer.decode([*written, *asked])
        text = whole[:len(whole) - len(self.tokenizer.decode(asked))]
        found = max((place + len(stop) for stop in self.stop if (place := text.rfind(stop)) >= 0), default=None)
        if found is not None:
            self.ended, text = "stop", text[found:]
        return text if self.ended else ""


def begin_writing(model: Model, scheme: Scheme, prompt: Sequence[int], options: Options) -> Writing:
    kind = BackwardWriting if reads_backward(model) else Writing
    before = () if scheme.way == "decoder" else prompt  # a decoder's text is one of its own
    return kind(model.tokenizer, before, options.stop, scheme.ends)


def read_prompts(model: Model, scheme: Scheme, prompts: Sequence[str | Sequence[int]],
                 options: Options) -> list[list[int]]:
    """The tokens of each prompt in the order in which the model reads them, laid out as it learned to."""
    if not len(prompts):
        raise UserError("there is no prompt; give at least one" + ("." if scheme.from_source else
                                                                   " (an empty one will do)."))
    if options.stop:
        model.needs_tokenizer()
    if scheme.from_source and any(isinstance(prompt, str) and not prompt.strip() for prompt in prompts):
        raise UserError(f"a prompt is empty, and {model.recipe.label} writes from a source; give it some text.")
    rows = [encode(model, prompt) if isinstance(prompt, str) else _checked(model, prompt, number)
            for number, prompt in enumerate(prompts)]
    if reads_backward(model):
        rows = [row[::-1] for row in rows]
    most = scheme.room
    if most is not None and max(map(len, rows)) > most:
        if not options.crop:
            _refuse_long(model, rows, most, scheme)
        rows = [row[:most] if scheme.from_source else row[-most:] for row in rows]
    return [scheme.lay(row) for row in rows]


def _refuse_long(model: Model, rows: Sequence[Sequence[int]], most: int, scheme: Scheme) -> None:
    too_long = [(f"prompt {number + 1}", f"{len(row):,} tokens") for number, row in enumerate(rows)
                if len(row) > most]
    part = "first" if scheme.from_source else "last"
    advice = f"{model.recipe.label} reads at most {most:,}; cut it, or crop it (--crop) to its {part} {most:,}"
    if len(rows) == 1:
        raise UserError(f"the prompt is {len(rows[0]):,} tokens long and {advice}.")
    raise UserError(f"{len(too_long)} of {len(rows)} prompts are too long: {advice}", too_long)


def encode(model: Model, text: str) -> list[int]:
    tokenizer = model.needs_tokenizer()
    encoding = tokenizer.encode(text, special=False)
    unknown = tokenizer.roles.get("unknown")
    places = [text[slice(*place)] for number, place in zip(encoding.ids, encoding.offsets, strict=True)
              if number == unknown]
    lacking = [part for part in dict.fromkeys(places) if part != tokenizer.token(unknown or 0)]
    if lacking:
        logger.warning(
            f"the vocabulary lacks {', '.join(map(repr, lacking[:10]))}{', ...' if len(lacking) > 10 else ''}; the "
            f"model reads {tokenizer.token(unknown or 0)} there.")
    if encoding.ids:
        return encoding.ids
    if model.boundary is None:
        raise UserError("the prompt is empty, and this vocabulary has no token that a text could begin with; write at "
                        "least one word.")
    return [model.boundary]


def _checked(model: Model, prompt: Sequence[int], number: int) -> list[int]:
    row = [int(token) for token in prompt]
    if not row:
        raise UserError(f"prompt {number + 1} has no tokens; give at least one.")
    if min(row) < 0 or max(row) >= model.network.vocabulary:
        raise UserError(f"prompt {number + 1} has ids from {min(row)} to {max(row)}, and this network knows those from "
                        f"0 to {model.network.vocabulary - 1}.")
    return row

"""How a language model reads a text: from which side, how much at a time, and what it still knows of what came before.

A model with places for so many tokens reads through a window that slides: each step forward reads the window's text
again. A model with a memory (Transformer-XL, arXiv:1901.02860) goes on from the state it was in and reads nothing
twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stemma.errors import UserError
from stemma.exchange.model import Model
from stemma.generation.ways import reads_backward, way_of, writes_from_source
from stemma.network.state import Cache
from stemma.network.streams import QUERY, Stream
from stemma.visibility import Causal, Permuted


@dataclass(frozen=True)
class Piece:
    """Tokens to be read at one go, and how many of them, counted from the last, are to be guessed."""

    tokens: np.ndarray
    guessed: int


class TextReader:
    """A model, and how it is to read. `length` is the window or segment, `stride` how far a window moves on."""

    def __init__(self, model: Model, length: int | None = None, stride: int | None = None, memory: int | None = None):
        model.token_head()
        way = way_of(model.recipe)
        if way not in ("next", "permuted") or writes_from_source(model.recipe):
            how = "writes a text from a source" if writes_from_source(model.recipe) else "fills gaps"
            raise UserError(f"{model.recipe.label} {how} and does not read from one end, so a text has no "
                            "probability under it; use a causal or permuted model (such as gpt2 or xlnet).")
        self.model = model.in_eval_mode()
        self.network = self.model.network
        self.permuted = way == "permuted"
        self.backward = reads_backward(model)
        settings = model.recipe.settings
        kept = model.network.settings.memory
        self.remembers = kept is not None
        usual = None if kept is None else kept.evaluation or kept.length
        self.memory = usual if memory is None else memory
        most = settings.network.longest
        # places beyond the sequence length may exist, and were never trained
        self.length = length if length is not None else min(settings.corpus.sequence_length, most or 2**31)
        self.stride = stride if stride is not None else max(1, self.length // 2)
        if problems := list(self._problems(stride, memory, most)):
            raise UserError(f"{model.recipe.label} cannot read like this", problems)
        self.start = model.boundary

    def _problems(self, stride: int | None, memory: int | None, most: int | None) -> Iterator[tuple[str, str]]:
        if self.length < 1 or (most is not None and self.length > most):
            yield f"--length {self.length}", f"must lie between 1 and {most}" if most else "must be 1 or more"
        if self.remembers and stride is not None:
            yield f"--stride {stride}", "has no meaning with a memory: nothing is read twice; leave it out"
        elif stride is not None and not 1 <= stride <= self.length:
            yield f"--stride {stride}", f"must lie between 1 and the window's length ({self.length})"
        if memory is not None and not self.remembers:
            yield f"--memory {memory}", "this network has none; --length and --stride say how far it looks back"
        elif memory is not None and memory < 1:
            yield f"--memory {memory}", "must be 1 or more"

    def lay(self, tokens: np.ndarray) -> np.ndarray:
        """In reading order, behind the token that parts texts where the vocabulary has one."""
        ordered = tokens[::-1] if self.backward else tokens
        return ordered if self.start is None else np.concatenate([[self.start], ordered])

    def windows(self, laid: np.ndarray) -> list[Piece]:
        """A text as windows: the first is guessed whole, of the others only what no window before held. All but a
        short text's are full, so that each guess looks back over `length - stride` tokens at least."""
        last = len(laid) - 1
        pieces, done = [], 0
        while done < last:
            end = min(last, done + self.stride if done else self.length)
            pieces.append(Piece(laid[max(0, end - self.length):end + 1], end - done))
            done = end
        return pieces

    def new_cache(self, keep: bool = False) -> Cache | None:
        """What was read is kept where the model lives on it, or where somebody will come back to it."""
        return self.network.new_cache(self.memory) if keep or self.permuted or self.remembers else None

    def begin(self, ids: Tensor, cache: Cache | None) -> None:
        """Read (B, L) tokens, so that what follows them can be guessed; see `guesses` for who reads the last one."""
        text = ids if self.permuted else ids[:, :-1]
        for segment in torch.split(text, self.length, 1):
            if segment.shape[1]:
                self._read(segment, cache)

    def guesses(self, ids: Tensor, wanted: Tensor, cache: Cache | None = None) -> Tensor:
        """(B, 1 + n) tokens, (B, n) which of all but the first are wanted -> (N, width) from which they are guessed.

        A causal model guesses a token where it reads the one before it, so the first is read here and the last is not.
        A permuted model guesses it at its own place, unseen: it has read the first already, and reads the last too.
        """
        if self.permuted:
            return self._read(ids[:, 1:], cache, ask=True)[wanted]
        chosen = wanted.flatten().nonzero()[:, 0]
        return self._read(ids[:, :-1], cache, wanted=chosen).flatten(0, 1)[chosen]

    def _read(self, ids: Tensor, cache: Cache | None, ask: bool = False, wanted: Tensor | None = None) -> Tensor:
        batch, length = ids.shape
        places = torch.arange(length, device=ids.device).expand(batch, length)
        back = torch.ones(batch, dtype=torch.bool, device=ids.device) if self.backward else None
        stream = Stream(ids, Permuted(places) if self.permuted else Causal(), backward=back, wanted=wanted,
                        query=places if ask else None)
        return self.network({"encoder": stream}, cache)[QUERY if ask else "encoder"]

    def tensor(self, rows: Sequence[np.ndarray]) -> Tensor:
        """(B, longest); filling stands behind the text, where no reader from one end sees it."""
        filled = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for number, row in enumerate(rows):
            filled[number, : len(row)] = row
        return torch.from_numpy(filled).to(self.model.device)

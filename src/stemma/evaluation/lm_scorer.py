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
from stemma.generation.decoding_mode import decoding_mode, is_right_to_left, is_seq2seq
from stemma.model import Model
from stemma.network.cache import KVCache
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.visibility import Causal, Permutation


@dataclass(frozen=True)
class ScoringWindow:
    """Tokens to be read at one go, and how many of them, counted from the last, are to be guessed."""

    tokens: np.ndarray
    num_targets: int


class LMScorer:
    """A model, and how it is to read. `length` is the window or segment, `stride` how far a window moves on."""

    def __init__(self, model: Model, length: int | None = None, stride: int | None = None, memory: int | None = None):
        model.lm_head()
        mode = decoding_mode(model.recipe)
        if mode not in ("next", "permuted") or is_seq2seq(model.recipe):
            how = "writes a text from a source" if is_seq2seq(model.recipe) else "fills gaps"
            raise UserError(f"{model.recipe.label} {how} and does not read from one end, so a text has no "
                            "probability under it; use a causal or permuted model (such as gpt2 or xlnet).")
        self.model = model.in_eval_mode()
        self.network = self.model.network
        self.permuted = mode == "permuted"
        self.right_to_left = is_right_to_left(model)
        settings = model.recipe.settings
        memory_settings = model.network.settings.memory
        self.has_memory = memory_settings is not None
        default_memory = None if memory_settings is None else memory_settings.evaluation or memory_settings.length
        self.memory = default_memory if memory is None else memory
        max_length = settings.network.max_length
        # places beyond the sequence length may exist, and were never trained
        self.length = length if length is not None else min(settings.corpus.sequence_length, max_length or 2**31)
        self.stride = stride if stride is not None else max(1, self.length // 2)
        if problems := list(self._problems(stride, memory, max_length)):
            raise UserError(f"{model.recipe.label} cannot read like this", problems)
        self.bos_id = model.document_separator_id

    def _problems(self, stride: int | None, memory: int | None, max_length: int | None) -> Iterator[tuple[str, str]]:
        if self.length < 1 or (max_length is not None and self.length > max_length):
            yield f"--length {self.length}", f"must lie between 1 and {max_length}" if max_length else "must be 1 or more"
        if self.has_memory and stride is not None:
            yield f"--stride {stride}", "has no meaning with a memory: nothing is read twice; leave it out"
        elif stride is not None and not 1 <= stride <= self.length:
            yield f"--stride {stride}", f"must lie between 1 and the window's length ({self.length})"
        if memory is not None and not self.has_memory:
            yield f"--memory {memory}", "this network has none; --length and --stride say how far it looks back"
        elif memory is not None and memory < 1:
            yield f"--memory {memory}", "must be 1 or more"

    def with_bos(self, tokens: np.ndarray) -> np.ndarray:
        """In reading order, behind the token that parts texts where the vocabulary has one."""
        ordered = tokens[::-1] if self.right_to_left else tokens
        return ordered if self.bos_id is None else np.concatenate([[self.bos_id], ordered])

    def split_windows(self, tokens: np.ndarray) -> list[ScoringWindow]:
        """A text as windows: the first is guessed whole, of the others only what no window before held. All but a
        short text's are full, so that each guess looks back over `length - stride` tokens at least."""
        last = len(tokens) - 1
        pieces, done = [], 0
        while done < last:
            end = min(last, done + self.stride if done else self.length)
            pieces.append(ScoringWindow(tokens[max(0, end - self.length):end + 1], end - done))
            done = end
        return pieces

    def new_cache(self, keep: bool = False) -> KVCache | None:
        """What was read is kept where the model lives on it, or where somebody will come back to it."""
        return self.network.new_cache(self.memory) if keep or self.permuted or self.has_memory else None

    def prefill(self, ids: Tensor, cache: KVCache | None) -> None:
        """Read (B, L) tokens, so that what follows them can be guessed; see `guesses` for who reads the last one."""
        text = ids if self.permuted else ids[:, :-1]
        for segment in torch.split(text, self.length, 1):
            if segment.shape[1]:
                self._forward(segment, cache)

    def target_states(self, ids: Tensor, target_mask: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, 1 + n) tokens, (B, n) which of all but the first are wanted -> (N, width) from which they are guessed.

        A causal model guesses a token where it reads the one before it, so the first is read here and the last is not.
        A permuted model guesses it at its own place, unseen: it has read the first already, and reads the last too.
        """
        if self.permuted:
            return self._forward(ids[:, 1:], cache, query=True)[target_mask]
        chosen = target_mask.flatten().nonzero()[:, 0]
        return self._forward(ids[:, :-1], cache, output_positions=chosen).flatten(0, 1)[chosen]

    def _forward(self, ids: Tensor, cache: KVCache | None, query: bool = False,
                 output_positions: Tensor | None = None) -> Tensor:
        batch, length = ids.shape
        places = torch.arange(length, device=ids.device).expand(batch, length)
        back = torch.ones(batch, dtype=torch.bool, device=ids.device) if self.right_to_left else None
        stream = Stream(ids, Permutation(places) if self.permuted else Causal(), reversed_rows=back,
                        output_positions=output_positions,
                        query_positions=places if query else None)
        return self.network({"encoder": stream}, cache)[QUERY if query else "encoder"]

    def pad(self, rows: Sequence[np.ndarray]) -> Tensor:
        """(B, longest); filling stands behind the text, where no reader from one end sees it."""
        filled = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for number, row in enumerate(rows):
            filled[number, : len(row)] = row
        return torch.from_numpy(filled).to(self.model.device)

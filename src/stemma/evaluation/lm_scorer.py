"""Forward passes for scoring text with a language model: windows, memory and reading direction.

A model with a bounded context scores a long text in sliding windows, and each window is computed anew. A model with a
memory (Transformer-XL, arXiv:1901.02860) continues from its state and computes every token once.
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
    """The tokens of one forward pass; the last `num_targets` of them are scored."""

    tokens: np.ndarray
    num_targets: int


class LMScorer:
    """A language model that scores text. `length` is the window or segment length, `stride` the step between
    windows."""

    def __init__(self, model: Model, length: int | None = None, stride: int | None = None, memory: int | None = None):
        model.lm_head()
        mode = decoding_mode(model.recipe)
        if mode not in ("next", "permuted") or is_seq2seq(model.recipe):
            if mode == "diffusion":
                raise UserError(f"{model.recipe.label} generates tokens in any order, so a text has an upper bound on "
                                "its negative log-likelihood (`stemma perplexity`), but no probability token by token; "
                                "use a causal or permuted model (such as gpt2 or xlnet).")
            capability = "generates a text from a source" if is_seq2seq(model.recipe) else "fills gaps"
            raise UserError(f"{model.recipe.label} {capability} and does not read from one end, so a text has no "
                            "probability under it; use a causal or permuted model (such as gpt2 or xlnet).")
        self.model = model.in_eval_mode()
        self.network = self.model.network
        self.permuted = mode == "permuted"
        self.right_to_left = is_right_to_left(model)
        settings = model.recipe.settings
        memory_settings = model.network.settings.memory
        self.has_memory = settings.network.continues
        default_memory = None if memory_settings is None else memory_settings.eval_length or memory_settings.length
        self.memory = default_memory if memory is None else memory
        max_length = settings.network.max_length
        # positions beyond the training sequence length may exist, untrained
        self.length = length if length is not None else min(settings.corpus.sequence_length, max_length or 2**31)
        self.stride = stride if stride is not None else max(1, self.length // 2)
        if problems := list(self._problems(stride, memory, max_length)):
            raise UserError(f"{model.recipe.label} cannot read like this", problems)
        self.bos_id = model.document_separator_id

    def _problems(self, stride: int | None, memory: int | None, max_length: int | None) -> Iterator[tuple[str, str]]:
        if self.length < 1 or (max_length is not None and self.length > max_length):
            yield (f"--length {self.length}",
                   f"must lie between 1 and {max_length}" if max_length else "must be 1 or more")
        if self.has_memory and stride is not None:
            yield f"--stride {stride}", "has no meaning with a memory: nothing is read twice; leave it out"
        elif stride is not None and not 1 <= stride <= self.length:
            yield f"--stride {stride}", f"must lie between 1 and the window's length ({self.length})"
        if memory is not None and self.model.network.settings.memory is None:
            yield (f"--memory {memory}", "its state has a fixed size and reaches back to the first token; leave it out"
                   if self.has_memory else
                   "this network has none; --length and --stride say how far it looks back")
        elif memory is not None and memory < 1:
            yield f"--memory {memory}", "must be 1 or more"

    def with_bos(self, tokens: np.ndarray) -> np.ndarray:
        """The tokens in reading order, after the document separator if the vocabulary has one."""
        ordered = tokens[::-1] if self.right_to_left else tokens
        return ordered if self.bos_id is None else np.concatenate([[self.bos_id], ordered])

    def split_windows(self, tokens: np.ndarray) -> list[ScoringWindow]:
        """Sliding windows over a text. The first is scored whole, the others only at their new tokens. Windows are as
        long as possible, so that every later token has at least `length - stride` tokens of context."""
        last = len(tokens) - 1
        windows, scored = [], 0
        while scored < last:
            end = min(last, scored + self.stride if scored else self.length)
            windows.append(ScoringWindow(tokens[max(0, end - self.length):end + 1], end - scored))
            scored = end
        return windows

    def new_cache(self, keep: bool = False) -> KVCache | None:
        """A cache if the model needs one (memory, second stream), or with `keep` to continue from this state."""
        return self.network.new_cache(self.memory) if keep or self.permuted or self.has_memory else None

    def prefill(self, ids: Tensor, cache: KVCache | None) -> None:
        """Compute the context (B, L), so that the tokens after it can be scored. `target_states` computes the last
        token of a causal model."""
        text = ids if self.permuted else ids[:, :-1]
        for segment in torch.split(text, self.length, 1):
            if segment.shape[1]:
                self._forward(segment, cache)

    def target_states(self, ids: Tensor, target_mask: Tensor, cache: KVCache | None = None) -> Tensor:
        """(B, 1 + n) tokens, (B, n) mask of the targets among all but the first -> (N, width) hidden states that
        predict the targets.

        A causal model predicts a token at the position before it: the first token is an input here, the last is not.
        A permuted model predicts a token at its own position, in the query stream: the first token is already in the
        cache, and the last is an input.
        """
        if self.permuted:
            return self._forward(ids[:, 1:], cache, query=True)[target_mask]
        targets = target_mask.flatten().nonzero()[:, 0]
        return self._forward(ids[:, :-1], cache, output_positions=targets).flatten(0, 1)[targets]

    def _forward(self, ids: Tensor, cache: KVCache | None, query: bool = False,
                 output_positions: Tensor | None = None) -> Tensor:
        batch, length = ids.shape
        positions = torch.arange(length, device=ids.device).expand(batch, length)
        reversed_rows = torch.ones(batch, dtype=torch.bool, device=ids.device) if self.right_to_left else None
        stream = Stream(ids, Permutation(positions) if self.permuted else Causal(), reversed_rows=reversed_rows,
                        output_positions=output_positions, query_positions=positions if query else None)
        return self.network({"encoder": stream}, cache)[QUERY if query else "encoder"]

    def pad(self, rows: Sequence[np.ndarray]) -> Tensor:
        """(B, longest), right-padded. With a causal mask no token attends to the padding."""
        padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for index, row in enumerate(rows):
            padded[index, : len(row)] = row
        return torch.from_numpy(padded).to(self.model.device)

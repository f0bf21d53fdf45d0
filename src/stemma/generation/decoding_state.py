"""The state of decoding: a batch of rows that grow by one token per step, and the logits of the next token.

With a KV cache every token is computed once; without it the whole text is computed again at each step. The logits are
the same, because the attention mask does not depend on how the text is split into forward passes:

- Causal networks: rows of unequal length are left-padded. If a row exceeds the context length, its last half is
  computed again as if the text began there.
- Networks with a memory attend at most as far back as the memory is long, so the length is unbounded.
- Networks that predict at an extra position after the text (a query) never cache that position. XLNet's query is in
  the second stream: prompt positions attend to each other, segment by segment, and a generated token attends to all
  before it. UniLM's query is a mask token.
- Encoders run once. Rows of unequal length are right-padded, and the decoder does not attend to the padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from stemma.generation.decoding_mode import DecodingSpec, decoding_spec, is_right_to_left
from stemma.model import Model
from stemma.network.cache import KVCache
from stemma.network.inputs_outputs import QUERY, Stream
from stemma.visibility import Bidirectional, Causal, PaddingRule, Permutation, Prefix, SlidingWindow, Visibility


class DecodingState(ABC):
    """A batch of growing rows, as the sampling loop and beam search use it."""

    input_ids: Tensor  # (R, T) tokens so far
    context_truncated = False  # whether a row has exceeded the context length

    def __init__(self, model: Model, spec: DecodingSpec, use_cache: bool):
        self.network, self.lm_head, self.device = model.network, model.lm_head(), model.device
        self.spec, self.max_length, self.use_cache = spec, spec.max_length, use_cache
        self.cache = self.network.new_cache()

    @abstractmethod
    def next_logits(self) -> Tensor:
        """(R, vocabulary): logits of the next token."""

    def append(self, tokens: Tensor) -> None:
        """Add one token (R,) to every row."""
        self.input_ids = torch.cat([self.input_ids, tokens[:, None]], 1)

    def select_rows(self, rows: Sequence[int] | Tensor) -> None:
        """Keep these rows, in this order; a row may occur several times."""
        index = torch.as_tensor(rows, device=self.device)
        if torch.equal(index, torch.arange(len(self.input_ids), device=self.device)):
            return
        self.input_ids = self.input_ids[index]
        self._select_extra(index)
        if self.use_cache:
            self.cache.reorder(index)

    @abstractmethod
    def _select_extra(self, index: Tensor) -> None:
        """Select the same rows in the other tensors of the state."""


def start_decoding(model: Model, prompts: Sequence[Sequence[int]], use_cache: bool = True) -> DecodingState:
    """The state that decodes after these prompts, which are already formatted."""
    spec = decoding_spec(model)
    assert spec is not None
    return (EncoderDecoderState if spec.mode == "decoder" else DecoderOnlyState)(model, spec, prompts, use_cache)


class DecoderOnlyState(DecodingState):
    """One stack; prompt and output are one sequence."""

    def __init__(self, model: Model, spec: DecodingSpec, prompts: Sequence[Sequence[int]], use_cache: bool):
        super().__init__(model, spec, use_cache)
        settings = model.recipe.settings
        self.permuted = spec.mode == "permuted"
        self.uses_query = spec.mode in ("permuted", "cloze")
        self.right_to_left = is_right_to_left(model)
        self.has_sliding_window = any(settings.network.attention.windows)
        self.memory_segment = settings.corpus.sequence_length if settings.network.continues or self.permuted else None
        longest = max(map(len, prompts))
        assert self.memory_segment is None or longest == min(map(len, prompts)), "a memory cannot skip padding"
        # Pad with the row's own first token: it is masked in attention, and the repetition penalty gets no new token.
        self.input_ids = torch.tensor([[row[0]] * (longest - len(row)) + list(row) for row in prompts],
                                      device=self.device)
        segments = [spec.prompt_segments(len(row)) for row in prompts]
        self.segment_ids = None if segments[0] is None else torch.tensor(
            [[0] * (longest - len(row or ())) + (row or []) for row in segments], device=self.device)
        self.row_starts = [longest - len(row) for row in prompts]  # column of each row's first token
        self.prompt_length = longest  # columns of the prompts, padding included; generated tokens follow
        self._reset()

    def next_logits(self) -> Tensor:
        width = self.input_ids.shape[1]
        if self.max_length is not None and width - min(self.row_starts) > self.max_length:
            assert not self.spec.is_seq2seq, "truncation would drop the source"
            self.row_starts = [width - self.max_length // 2 if width - start > self.max_length else start
                               for start in self.row_starts]
            self.context_truncated = True
            self._reset()
        elif not self.use_cache:
            self._reset()
        if self.memory_segment is not None and self.use_cache:
            while self.input_ids.shape[1] - self.num_read > self.memory_segment:  # a long prompt, by segments
                self._hidden(self.num_read + self.memory_segment, with_query=False)
        return self.lm_head(self._hidden(width, self.uses_query))

    def _select_extra(self, index: Tensor) -> None:
        self.row_starts = [self.row_starts[row] for row in index.tolist()]
        if self.segment_ids is not None:
            self.segment_ids = self.segment_ids[index]

    def _reset(self) -> None:
        """Empty the cache and start again at the first column in use."""
        self.cache = self.network.new_cache()
        self.first_column = self.num_read = min(self.row_starts)

    def _hidden(self, stop: int, with_query: bool) -> Tensor:
        """(R, width): the hidden state of the last position, or of the query after it, computed up to column `stop`."""
        ids = self.input_ids[:, self.num_read:stop]
        rows, num_new = ids.shape
        past = self.num_read - self.first_column
        position_ids, query_positions, output_positions = None, None, None
        visibility = self._visibility(stop, with_query)
        if with_query:  # in the second stream the query's own token is never attended to, so any token is fine
            last, mask = ids[:, -1:], self.spec.mask_token_id
            ids = torch.cat([ids, last if mask is None else torch.full_like(last, mask)], 1)
        if max(self.row_starts) > self.first_column:
            start = torch.tensor(self.row_starts, device=self.device)[:, None]
            columns = torch.arange(self.first_column, self.num_read + ids.shape[1], device=self.device)
            visibility = visibility & PaddingRule(columns >= start, past)
            position_ids = (columns[past:] - start).clamp(min=0)
        if with_query and self.permuted:
            query_positions = torch.full((rows, 1), num_new, device=self.device)
        elif not self.use_cache:
            output_positions = torch.arange(1, rows + 1, device=self.device) * ids.shape[1] - 1
        reversed_rows = torch.ones(rows, dtype=torch.bool, device=self.device) if self.right_to_left else None
        stream = Stream(ids, visibility, position_ids, self._segments(ids.shape[1]), output_positions=output_positions,
                        query_positions=query_positions, reversed_rows=reversed_rows,
                        reuse_length=num_new if with_query else None)
        hidden = self.network({"encoder": stream}, self._state())
        self.num_read = stop
        return hidden["encoder" if query_positions is None else QUERY][:, -1]

    def _state(self) -> KVCache | None:
        """The cache to use. Without a KV cache a memory still exists; it starts empty at each step."""
        return self.cache if self.use_cache or self.memory_segment is not None else None

    def _segments(self, length: int) -> Tensor | None:
        """The segment ids of the next `length` columns."""
        if self.segment_ids is None:
            return None
        output = self.segment_ids.new_full((len(self.segment_ids), length), self.spec.output_segment)
        return torch.cat([self.segment_ids[:, self.num_read:], output], 1)[:, :length]

    def _visibility(self, stop: int, with_query: bool) -> Visibility:
        num_new = stop - self.num_read
        visibility: Visibility = Causal()
        if self.permuted:
            order = [self._permutation_rank(column) for column in range(self.num_read, stop)]
            order += [order[-1] + 1] if with_query else []
            visibility = Permutation(torch.tensor([order], device=self.device).expand(len(self.input_ids), -1))
        elif self.spec.is_seq2seq and self.spec.bidirectional_prompt and (self.num_read < self.prompt_length
                                                                          or self.has_sliding_window):
            # such a network has a two-sided sliding window, for output positions too
            visibility = Prefix(torch.full((len(self.input_ids),), max(0, self.prompt_length - self.num_read),
                                           device=self.device))
        if self.cache.max_length is not None and (num_new > 1 or with_query):  # a single position attends to all of it
            visibility = visibility & SlidingWindow(self.cache.max_length, num_new)
        return visibility

    def _permutation_rank(self, column: int) -> int:
        """The rank of a column in the factorization order: prompt segments first, then each generated token."""
        assert self.memory_segment is not None
        column -= self.first_column
        segments = -(-self.prompt_length // self.memory_segment)
        return column // self.memory_segment if column < self.prompt_length else segments + column - self.prompt_length


class EncoderDecoderState(DecodingState):
    """An encoder runs on the prompts; the rows are the decoder's."""

    def __init__(self, model: Model, spec: DecodingSpec, prompts: Sequence[Sequence[int]], use_cache: bool):
        super().__init__(model, spec, use_cache)
        longest = max(map(len, prompts))
        self.encoder_ids = torch.tensor([list(row) + [row[-1]] * (longest - len(row)) for row in prompts],
                                        device=self.device)
        lengths = torch.tensor([len(row) for row in prompts], device=self.device)
        self.encoder_mask = torch.arange(longest, device=self.device) < lengths[:, None]
        self.input_ids = torch.tensor([spec.decoder_prefix] * len(prompts), device=self.device)
        self.num_read = 0  # decoder columns in the cache

    def next_logits(self) -> Tensor:
        start = self.num_read if self.use_cache else 0
        streams = {"decoder": Stream(self.input_ids[:, start:], Causal())}
        if not start:
            streams["encoder"] = Stream(self.encoder_ids, Bidirectional() if bool(self.encoder_mask.all())
                                        else PaddingRule(self.encoder_mask))
        hidden = self.network(streams, self.cache if self.use_cache else None)["decoder"]
        self.num_read = self.input_ids.shape[1]
        return self.lm_head(hidden[:, -1])

    def _select_extra(self, index: Tensor) -> None:
        if not self.use_cache:  # otherwise the cache holds the encoder output
            self.encoder_ids, self.encoder_mask = self.encoder_ids[index], self.encoder_mask[index]

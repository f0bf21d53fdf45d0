"""Rows of text that grow by a token at a time, and what the model expects to come next in each of them.

With a cache every token is read once; without one the whole text is read again for each new token. Both give the same
answer, because who sees whom never depends on how the text was cut into calls:

- A causal network's places see what stands before them. Rows of unequal length are filled up on the left. Where a row
  has outgrown the places that the network knows, its last half is read again as if the text began there.
- A network with a memory sees at most as many places back as its memory keeps, so it can write without end.
- Where a network asks at a place behind the text, that place is read and never kept. XLNet's asks through a second
  stream: a prompt's places see each other, segment by segment; a written token sees what stands before it, whether or
  not more has been written since. UniLM's is a mask.
- An encoder reads its text once; rows of unequal length are filled up on the right, and the decoder does not see that.
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
    """What the loop and the beam search ask of rows that are written."""

    input_ids: Tensor  # (R, T) the rows so far
    context_truncated = False  # whether a row has outgrown the network

    def __init__(self, model: Model, spec: DecodingSpec, use_cache: bool):
        self.network, self.lm_head, self.device = model.network, model.lm_head(), model.device
        self.spec, self.max_length, self.use_cache = spec, spec.max_length, use_cache
        self.cache = self.network.new_cache()

    @abstractmethod
    def next_logits(self) -> Tensor:
        """(R, vocabulary): scores of the next token."""

    def append(self, tokens: Tensor) -> None:
        """One more token in every row."""
        self.input_ids = torch.cat([self.input_ids, tokens[:, None]], 1)

    def select_rows(self, rows: Sequence[int] | Tensor) -> None:
        """Go on with these rows, in this order and as often as they are named."""
        index = torch.as_tensor(rows, device=self.device)
        if torch.equal(index, torch.arange(len(self.input_ids), device=self.device)):
            return
        self.input_ids = self.input_ids[index]
        self._select_extra(index)
        if self.use_cache:
            self.cache.reorder(index)

    @abstractmethod
    def _select_extra(self, index: Tensor) -> None:
        """The same for what is kept beside the tokens."""


def start_decoding(model: Model, prompts: Sequence[Sequence[int]], use_cache: bool = True) -> DecodingState:
    """Prompts, laid out as the model's scheme says."""
    scheme = decoding_spec(model)
    assert scheme is not None
    return (EncoderDecoderState if scheme.mode == "decoder" else DecoderOnlyState)(model, scheme, prompts, use_cache)


class DecoderOnlyState(DecodingState):
    """One stack reads prompt and writing as one row."""

    def __init__(self, model: Model, spec: DecodingSpec, prompts: Sequence[Sequence[int]], use_cache: bool):
        super().__init__(model, spec, use_cache)
        settings = model.recipe.settings
        self.permuted = spec.mode == "permuted"
        self.uses_query = spec.mode in ("permuted", "cloze")
        self.right_to_left = is_right_to_left(model)
        self.has_sliding_window = any(settings.network.attention.windows)
        self.memory_segment = settings.corpus.sequence_length if settings.network.memory or self.permuted else None
        longest = max(map(len, prompts))
        assert self.memory_segment is None or longest == min(map(len, prompts)), "a memory cannot skip filling"
        # filled up with the row's own first token: nobody sees it, and as a token of the text it is nothing new
        self.input_ids = torch.tensor([[row[0]] * (longest - len(row)) + list(row) for row in prompts],
                                      device=self.device)
        segments = [spec.prompt_segments(len(row)) for row in prompts]
        self.segment_ids = None if segments[0] is None else torch.tensor(
            [[0] * (longest - len(row or ())) + (row or []) for row in segments], device=self.device)
        self.row_starts = [longest - len(row) for row in prompts]  # each row's first column
        self.prompt_length = longest  # columns of the prompts; behind them stands what was written
        self._reset()

    def next_logits(self) -> Tensor:
        width = self.input_ids.shape[1]
        if self.max_length is not None and width - min(self.row_starts) > self.max_length:
            assert not self.spec.is_seq2seq, "it would forget what it writes from"
            self.row_starts = [width - self.max_length // 2 if width - start > self.max_length else start
                               for start in self.row_starts]
            self.context_truncated = True
            self._reset()
        elif not self.use_cache:
            self._reset()
        if self.memory_segment is not None and self.use_cache:
            while self.input_ids.shape[1] - self.num_read > self.memory_segment:  # a long prompt, a bounded piece at a
            #                                                                       time
                self._hidden(self.num_read + self.memory_segment, with_query=False)
        return self.lm_head(self._hidden(width, self.uses_query))

    def _select_extra(self, index: Tensor) -> None:
        self.row_starts = [self.row_starts[row] for row in index.tolist()]
        if self.segment_ids is not None:
            self.segment_ids = self.segment_ids[index]

    def _reset(self) -> None:
        """Begin to read anew, at the first row's first column."""
        self.cache = self.network.new_cache()
        self.first_column = self.num_read = min(self.row_starts)

    def _hidden(self, stop: int, with_query: bool) -> Tensor:
        """(R, width) of the last place, or of one behind it that asks; reads on up to the column `stop`."""
        ids = self.input_ids[:, self.num_read:stop]
        rows, new = ids.shape
        past = self.num_read - self.first_column
        positions, query, output_positions = None, None, None
        visibility = self._visibility(stop, with_query)
        if with_query:  # in a second stream any token will do: it is never looked at
            query_token = ids[:, -1:] if self.spec.mask_token_id is None else torch.full_like(ids[:, -1:],
                                                                                              self.spec.mask_token_id)
            ids = torch.cat([ids, query_token], 1)
        if max(self.row_starts) > self.first_column:
            start = torch.tensor(self.row_starts, device=self.device)[:, None]
            columns = torch.arange(self.first_column, self.num_read + ids.shape[1], device=self.device)
            visibility = visibility & PaddingRule(columns >= start, past)
            positions = (columns[past:] - start).clamp(min=0)
        if with_query and self.permuted:
            query = torch.full((rows, 1), new, device=self.device)
        elif not self.use_cache:
            output_positions = torch.arange(1, rows + 1, device=self.device) * ids.shape[1] - 1
        backward = torch.ones(rows, dtype=torch.bool, device=self.device) if self.right_to_left else None
        stream = Stream(ids, visibility, positions, self._segments(ids.shape[1]), output_positions=output_positions,
                        query_positions=query,
                        reversed_rows=backward, reuse_length=new if with_query else None)
        hidden = self.network({"encoder": stream}, self._state())
        self.num_read = stop
        return hidden["encoder" if query is None else QUERY][:, -1]

    def _state(self) -> KVCache | None:
        """Without a cache there is still a memory, which begins empty each time."""
        return self.cache if self.use_cache or self.memory_segment is not None else None

    def _segments(self, length: int) -> Tensor | None:
        """Those of the next so many columns."""
        if self.segment_ids is None:
            return None
        written = self.segment_ids.new_full((len(self.segment_ids), length), self.spec.output_segment)
        return torch.cat([self.segment_ids[:, self.num_read:], written], 1)[:, :length]

    def _visibility(self, stop: int, with_query: bool) -> Visibility:
        new = stop - self.num_read
        sees: Visibility = Causal()
        if self.permuted:
            order = [self._permutation_rank(column) for column in range(self.num_read, stop)]
            order += [order[-1] + 1] if with_query else []
            sees = Permutation(torch.tensor([order], device=self.device).expand(len(self.input_ids), -1))
        elif self.spec.is_seq2seq and self.spec.bidirectional_prompt and (self.num_read < self.prompt_length
                                                                          or self.has_sliding_window):
            # a window lies on both sides of a position in such a network, behind the prompt too
            sees = Prefix(torch.full((len(self.input_ids),), max(0, self.prompt_length - self.num_read),
                                     device=self.device))
        if self.cache.max_length is not None and (new > 1 or with_query):  # a single place sees all that is kept
            sees = sees & SlidingWindow(self.cache.max_length, new)
        return sees

    def _permutation_rank(self, column: int) -> int:
        """When a column was written: a segment of the prompt at a time, then token by token."""
        assert self.memory_segment is not None
        column -= self.first_column
        segments = -(-self.prompt_length // self.memory_segment)
        return column // self.memory_segment if column < self.prompt_length else segments + column - self.prompt_length


class EncoderDecoderState(DecodingState):
    """An encoder reads the prompts, and the rows are a decoder's."""

    def __init__(self, model: Model, spec: DecodingSpec, prompts: Sequence[Sequence[int]], use_cache: bool):
        super().__init__(model, spec, use_cache)
        longest = max(map(len, prompts))
        self.encoder_ids = torch.tensor([list(row) + [row[-1]] * (longest - len(row)) for row in prompts],
                                   device=self.device)
        lengths = torch.tensor([len(row) for row in prompts], device=self.device)
        self.encoder_mask = torch.arange(longest, device=self.device) < lengths[:, None]
        self.input_ids = torch.tensor([spec.decoder_prefix] * len(prompts), device=self.device)
        self.num_read = 0  # columns that the cache has taken up

    def next_logits(self) -> Tensor:
        read = self.num_read if self.use_cache else 0
        streams = {"decoder": Stream(self.input_ids[:, read:], Causal())}
        if not read:
            streams["encoder"] = Stream(self.encoder_ids, Bidirectional() if bool(self.encoder_mask.all())
                                        else PaddingRule(self.encoder_mask))
        hidden = self.network(streams, self.cache if self.use_cache else None)["decoder"]
        self.num_read = self.input_ids.shape[1]
        return self.lm_head(hidden[:, -1])

    def _select_extra(self, index: Tensor) -> None:
        if not self.use_cache:  # otherwise the cache keeps what became of it
            self.encoder_ids, self.encoder_mask = self.encoder_ids[index], self.encoder_mask[index]

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

from stemma.exchange.model import Model
from stemma.generation.ways import Scheme, reads_backward, scheme_of
from stemma.network.state import Cache
from stemma.network.streams import QUERY, Stream
from stemma.visibility import Causal, Full, Padded, Permuted, Prefix, Visibility, Window


class Reader(ABC):
    """What the loop and the beam search ask of rows that are written."""

    ids: Tensor  # (R, T) the rows so far
    slid = False  # whether a row has outgrown the network

    def __init__(self, model: Model, scheme: Scheme, cache: bool):
        self.network, self.head, self.device = model.network, model.token_head(), model.device
        self.scheme, self.maximum, self.caches = scheme, scheme.longest, cache
        self.cache = self.network.new_cache()

    @abstractmethod
    def expect(self) -> Tensor:
        """(R, vocabulary): scores of the next token."""

    def add(self, tokens: Tensor) -> None:
        """One more token in every row."""
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)

    def choose(self, rows: Sequence[int] | Tensor) -> None:
        """Go on with these rows, in this order and as often as they are named."""
        index = torch.as_tensor(rows, device=self.device)
        if torch.equal(index, torch.arange(len(self.ids), device=self.device)):
            return
        self.ids = self.ids[index]
        self._choose(index)
        if self.caches:
            self.cache.choose(index)

    @abstractmethod
    def _choose(self, index: Tensor) -> None:
        """The same for what is kept beside the tokens."""


def read_rows(model: Model, prompts: Sequence[Sequence[int]], cache: bool = True) -> Reader:
    """Prompts, laid out as the model's scheme says."""
    scheme = scheme_of(model)
    assert scheme is not None
    return (DecoderReader if scheme.way == "decoder" else TextRows)(model, scheme, prompts, cache)


class TextRows(Reader):
    """One stack reads prompt and writing as one row."""

    def __init__(self, model: Model, scheme: Scheme, prompts: Sequence[Sequence[int]], cache: bool):
        super().__init__(model, scheme, cache)
        settings = model.recipe.settings
        self.permuted = scheme.way == "permuted"
        self.asks = scheme.way in ("permuted", "cloze")
        self.backward = reads_backward(model)
        self.windowed = any(settings.network.attention.windows)
        self.segment = settings.corpus.sequence_length if settings.network.memory or self.permuted else None
        longest = max(map(len, prompts))
        assert self.segment is None or longest == min(map(len, prompts)), "a memory cannot skip filling"
        # filled up with the row's own first token: nobody sees it, and as a token of the text it is nothing new
        self.ids = torch.tensor([[row[0]] * (longest - len(row)) + list(row) for row in prompts], device=self.device)
        segments = [scheme.segments(len(row)) for row in prompts]
        self.segments = None if segments[0] is None else torch.tensor(
            [[0] * (longest - len(row or ())) + (row or []) for row in segments], device=self.device)
        self.start = [longest - len(row) for row in prompts]  # each row's first column
        self.prompt = longest  # columns of the prompts; behind them stands what was written
        self._forget()

    def expect(self) -> Tensor:
        width = self.ids.shape[1]
        if self.maximum is not None and width - min(self.start) > self.maximum:
            assert not self.scheme.from_source, "it would forget what it writes from"
            self.start = [width - self.maximum // 2 if width - start > self.maximum else start for start in self.start]
            self.slid = True
            self._forget()
        elif not self.caches:
            self._forget()
        if self.segment is not None and self.caches:
            while self.ids.shape[1] - self.read > self.segment:  # a long prompt, a bounded piece at a time
                self._hidden(self.read + self.segment, asks=False)
        return self.head(self._hidden(width, self.asks))

    def _choose(self, index: Tensor) -> None:
        self.start = [self.start[row] for row in index.tolist()]
        if self.segments is not None:
            self.segments = self.segments[index]

    def _forget(self) -> None:
        """Begin to read anew, at the first row's first column."""
        self.cache = self.network.new_cache()
        self.base = self.read = min(self.start)

    def _hidden(self, stop: int, asks: bool) -> Tensor:
        """(R, width) of the last place, or of one behind it that asks; reads on up to the column `stop`."""
        ids = self.ids[:, self.read:stop]
        rows, new = ids.shape
        past = self.read - self.base
        positions, query, wanted = None, None, None
        sees = self._sees(stop, asks)
        if asks:  # in a second stream any token will do: it is never looked at
            behind = ids[:, -1:] if self.scheme.mask is None else torch.full_like(ids[:, -1:], self.scheme.mask)
            ids = torch.cat([ids, behind], 1)
        if max(self.start) > self.base:
            start = torch.tensor(self.start, device=self.device)[:, None]
            columns = torch.arange(self.base, self.read + ids.shape[1], device=self.device)
            sees = sees & Padded(columns >= start, past)
            positions = (columns[past:] - start).clamp(min=0)
        if asks and self.permuted:
            query = torch.full((rows, 1), new, device=self.device)
        elif not self.caches:
            wanted = torch.arange(1, rows + 1, device=self.device) * ids.shape[1] - 1
        backward = torch.ones(rows, dtype=torch.bool, device=self.device) if self.backward else None
        stream = Stream(ids, sees, positions, self._segments(ids.shape[1]), wanted=wanted, query=query,
                        backward=backward, keep=new if asks else None)
        hidden = self.network({"encoder": stream}, self._state())
        self.read = stop
        return hidden["encoder" if query is None else QUERY][:, -1]

    def _state(self) -> Cache | None:
        """Without a cache there is still a memory, which begins empty each time."""
        return self.cache if self.caches or self.segment is not None else None

    def _segments(self, length: int) -> Tensor | None:
        """Those of the next so many columns."""
        if self.segments is None:
            return None
        written = self.segments.new_full((len(self.segments), length), self.scheme.written)
        return torch.cat([self.segments[:, self.read:], written], 1)[:, :length]

    def _sees(self, stop: int, asks: bool) -> Visibility:
        new = stop - self.read
        sees: Visibility = Causal()
        if self.permuted:
            order = [self._order(column) for column in range(self.read, stop)]
            order += [order[-1] + 1] if asks else []
            sees = Permuted(torch.tensor([order], device=self.device).expand(len(self.ids), -1))
        elif self.scheme.from_source and self.scheme.full and (self.read < self.prompt or self.windowed):
            # a window lies on both sides of a position in such a network, behind the prompt too
            sees = Prefix(torch.full((len(self.ids),), max(0, self.prompt - self.read), device=self.device))
        if self.cache.limit is not None and (new > 1 or asks):  # a single place sees all that is kept
            sees = sees & Window(self.cache.limit, new)
        return sees

    def _order(self, column: int) -> int:
        """When a column was written: a segment of the prompt at a time, then token by token."""
        assert self.segment is not None
        column -= self.base
        segments = -(-self.prompt // self.segment)
        return column // self.segment if column < self.prompt else segments + column - self.prompt


class DecoderReader(Reader):
    """An encoder reads the prompts, and the rows are a decoder's."""

    def __init__(self, model: Model, scheme: Scheme, prompts: Sequence[Sequence[int]], cache: bool):
        super().__init__(model, scheme, cache)
        longest = max(map(len, prompts))
        self.source = torch.tensor([list(row) + [row[-1]] * (longest - len(row)) for row in prompts],
                                   device=self.device)
        lengths = torch.tensor([len(row) for row in prompts], device=self.device)
        self.real = torch.arange(longest, device=self.device) < lengths[:, None]
        self.ids = torch.tensor([scheme.begin] * len(prompts), device=self.device)
        self.read = 0  # columns that the cache has taken up

    def expect(self) -> Tensor:
        read = self.read if self.caches else 0
        streams = {"decoder": Stream(self.ids[:, read:], Causal())}
        if not read:
            streams["encoder"] = Stream(self.source, Full() if bool(self.real.all()) else Padded(self.real))
        hidden = self.network(streams, self.cache if self.caches else None)["decoder"]
        self.read = self.ids.shape[1]
        return self.head(hidden[:, -1])

    def _choose(self, index: Tensor) -> None:
        if not self.caches:  # otherwise the cache keeps what became of it
            self.source, self.real = self.source[index], self.real[index]

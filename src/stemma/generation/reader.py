"""Rows of text that grow by a token at a time, and what the model expects to come next in each of them.

With a cache every token is read once; without one the whole text is read again for each new token. Both give the same
answer, because who sees whom never depends on how the text was cut into calls:

- A causal network's places see what stands before them. Rows of unequal length are filled up on the left. Where a row
  has outgrown the places that the network knows, its last half is read again as if the text began there.
- A network with a memory sees at most as many places back as its memory keeps, so it can write without end.
- A network that learned random orders (XLNet, arXiv:1906.08237) guesses through its second stream: a place behind the
  text asks, and nobody sees it. A prompt's places see each other, segment by segment; a written token sees what stands
  before it, whether or not more has been written since.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stemma.exchange.model import Model
from stemma.network.state import Cache
from stemma.network.streams import QUERY, Stream
from stemma.visibility import Causal, Padded, Permuted, Visibility, Window


class Reader:
    def __init__(self, model: Model, prompts: Sequence[Sequence[int]], cache: bool = True):
        settings = model.recipe.settings
        objectives = settings.objective.values()
        self.network, self.head, self.device = model.network, model.token_head(), model.device
        self.permuted = any(task.sees == "permuted" for task in objectives)
        self.backward = reads_backward(model)
        self.maximum = longest_text(model)
        self.segment = settings.corpus.sequence_length if settings.network.memory or self.permuted else None
        self.caches = cache
        longest = max(map(len, prompts))
        assert self.segment is None or longest == min(map(len, prompts)), "a memory cannot skip filling"
        # filled up with the row's own first token: nobody sees it, and as a token of the text it is nothing new
        self.ids = torch.tensor([[row[0]] * (longest - len(row)) + list(row) for row in prompts], device=self.device)
        self.start = [longest - len(row) for row in prompts]  # each row's first column
        self.prompt = longest  # columns of the prompts; behind them stands what was written
        self.slid = False  # whether a row has outgrown the network
        self._forget()

    def expect(self) -> Tensor:
        """(R, vocabulary): scores of the next token."""
        width = self.ids.shape[1]
        if self.maximum is not None and width - min(self.start) > self.maximum:
            self.start = [width - self.maximum // 2 if width - start > self.maximum else start for start in self.start]
            self.slid = True
            self._forget()
        elif not self.caches:
            self._forget()
        if self.segment is not None and self.caches:
            while self.ids.shape[1] - self.read > self.segment:  # a long prompt, a bounded piece at a time
                self._hidden(self.read + self.segment, asks=False)
        return self.head(self._hidden(width, asks=self.permuted))

    def add(self, tokens: Tensor) -> None:
        """One more token in every row."""
        self.ids = torch.cat([self.ids, tokens[:, None]], 1)

    def choose(self, rows: Sequence[int]) -> None:
        """Go on with these rows, in this order and as often as they are named."""
        if list(rows) == list(range(len(self.ids))):
            return
        index = torch.tensor(rows, device=self.device)
        self.ids = self.ids[index]
        self.start = [self.start[row] for row in rows]
        if self.caches:
            self.cache.choose(index)

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
        if max(self.start) > self.base:
            start = torch.tensor(self.start, device=self.device)[:, None]
            columns = torch.arange(self.base, stop, device=self.device)
            sees = sees & Padded(columns >= start, past)
            positions = (columns[past:] - start).clamp(min=0)
        if asks:
            ids = torch.cat([ids, ids[:, -1:]], 1)  # any token will do at a place that nobody sees
            query = torch.full((rows, 1), new, device=self.device)
        elif not self.caches:
            wanted = torch.arange(1, rows + 1, device=self.device) * new - 1
        backward = torch.ones(rows, dtype=torch.bool, device=self.device) if self.backward else None
        stream = Stream(ids, sees, positions, wanted=wanted, query=query, backward=backward, keep=new if asks else None)
        hidden = self.network({"encoder": stream}, self._state())
        self.read = stop
        return hidden[QUERY if asks else "encoder"][:, -1]

    def _state(self) -> Cache | None:
        """Without a cache there is still a memory, which begins empty each time."""
        return self.cache if self.caches or self.segment is not None else None

    def _sees(self, stop: int, asks: bool) -> Visibility:
        new = stop - self.read
        sees: Visibility = Causal()
        if self.permuted:
            order = [self._order(column) for column in range(self.read, stop)]
            order += [order[-1] + 1] if asks else []
            sees = Permuted(torch.tensor([order], device=self.device).expand(len(self.ids), -1))
        if self.cache.limit is not None and (new > 1 or asks):  # a single place sees all that is kept
            sees = sees & Window(self.cache.limit, new)
        return sees

    def _order(self, column: int) -> int:
        """When a column was written: a segment of the prompt at a time, then token by token."""
        assert self.segment is not None
        column -= self.base
        segments = -(-self.prompt // self.segment)
        return column // self.segment if column < self.prompt else segments + column - self.prompt


def longest_text(model: Model) -> int | None:
    """How many tokens the network reads at once; None: any number. Further places may exist, and were not trained."""
    most = getattr(model.recipe.settings.network.position, "maximum", None)
    return None if most is None else min(most, model.recipe.settings.corpus.sequence_length)


def reads_backward(model: Model) -> bool:
    """Whether the model writes what stands before the prompt."""
    return any(getattr(task, "direction", None) == "backward" for task in model.recipe.settings.objective.values())


def needs_equal_lengths(model: Model) -> bool:
    """Whether rows must begin together: a memory takes up what was read, filling too."""
    return model.recipe.settings.network.memory is not None or any(
        task.sees == "permuted" for task in model.recipe.settings.objective.values())

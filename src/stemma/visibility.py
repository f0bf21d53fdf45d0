"""Who may see whom, as values that can be compared, combined with `&`, drawn as a grid and compiled to a fast kernel.

A visibility is a rule over places: does the query at place q see the key at place k? Places count from 0 in the
sequence being read; what a memory or a cache has kept from earlier stands at negative places. A network part never
builds a mask by hand: it asks the rule to compile itself, and the rule answers with the cheapest form that torch has
a kernel for (nothing at all, a causal flag, a band, or a dense boolean mask).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class CompiledMask:
    """A compiled visibility: `dense` is True where the key is seen, broadcastable to (B, 1, Q, K)."""

    causal: bool = False
    dense: Tensor | None = None
    band: tuple[int, int] | None = None  # only so many places behind and so many in front; queries are the last keys
    token_mask: Tensor | None = None  # (B, K), with a band: False at padding

    def rows(self, rows: Tensor) -> CompiledMask:
        """The same mask for some rows of the batch: (R,) their numbers."""
        return replace(self, dense=self.dense if self.dense is None or len(self.dense) == 1 else self.dense[rows],
                       token_mask=self.token_mask if self.token_mask is None or len(self.token_mask) == 1
                       else self.token_mask[rows])

    def costs_less_than(self, num_queries: int) -> bool:
        """Whether all positions in blocks of a band are fewer scores than so many queries that see every key."""
        if self.band is None:
            return False
        back, ahead = self.band
        return back + max(back, ahead) + 1 + ahead < num_queries

    def for_queries(self, positions: Tensor, num_keys: int) -> CompiledMask:
        """The same mask for queries at some places only: (B, Q), of `keys` places."""
        if self.causal or self.band:
            back, ahead = self.band or (num_keys, 0)
            behind = positions[:, :, None] - torch.arange(num_keys, device=positions.device)  # (B, Q, K)
            seen = (behind >= -ahead) & (behind <= back)
            return CompiledMask(dense=(seen if self.token_mask is None else seen & (self.token_mask[:,
                None] | (behind == 0)))[:, None])
        if self.dense is None or self.dense.shape[2] == 1:  # the same line for every query
            return self
        return CompiledMask(dense=self.dense.expand(len(positions), -1, -1, -1).gather(
            2, positions[:, None, :, None].expand(-1, self.dense.shape[1], -1, num_keys)))


@dataclass(frozen=True, eq=False)
class Visibility(ABC):
    """The base rule; a subclass says what it allows."""

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Boolean, broadcastable to (B, Q, K), for query places (Q,) and key places (K,)."""

    def rules(self) -> tuple[Visibility, ...]:
        return (self,)

    def __and__(self, other: Visibility) -> Visibility:
        combined: list[Visibility] = []
        for rule in (*self.rules(), *other.rules()):
            if not isinstance(rule, Bidirectional) and rule not in combined:
                combined.append(rule)
        if len(combined) > 1:
            return Intersection(tuple(combined))
        return combined[0] if combined else Bidirectional()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return False
        pairs = ((getattr(self, field.name), getattr(other, field.name)) for field in fields(self))
        return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)

    def __hash__(self) -> int:
        return hash(type(self))

    def to(self, device: torch.device | str) -> Visibility:
        moved = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in moved.items()})

    def rows(self, rows: slice) -> Visibility:
        """The same rule for some examples of the batch."""
        cut = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: v[rows] if isinstance(v, Tensor) else v for k, v in cut.items()})

    def grid(self, length: int, row: int = 0) -> Tensor:
        """(length, length) boolean picture of one example, for people."""
        places = torch.arange(length)
        seen = self.allows(places, places)
        seen = seen[row if seen.shape[0] > 1 else 0] if seen.dim() == 3 else seen
        return seen.expand(length, length)

    @property
    def causal(self) -> bool:
        """Whether no place ever sees what stands after it."""
        return any(isinstance(rule, Causal) for rule in self.rules())

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        """The cheapest kernel form for the last `queries` of `keys` places (the first ones are memory or cache)."""
        key = torch.arange(num_keys, device=device) - (num_keys - num_queries)
        seen = self.allows(key[num_keys - num_queries:], key)
        dense = seen if seen.dim() == 3 else seen[None]
        return CompiledMask(dense=dense[:, None])


class Bidirectional(Visibility):
    """Everybody sees everybody (auto-encoders)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(len(query), len(key), dtype=torch.bool, device=key.device)

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        return CompiledMask()


class Causal(Visibility):
    """Each place sees itself and what stands before it (left-to-right models)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None, :] <= query[:, None]

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        if num_queries == 1:
            return CompiledMask()  # the newest place sees all that was kept
        # torch's flag aligns the triangle at the first key, which is right only where nothing stands before it
        return CompiledMask(causal=True) if num_queries == num_keys else super().compile(num_queries, num_keys, device)


@dataclass(frozen=True, eq=False)
class SlidingWindow(Visibility):
    """A band: at most `back` places behind and `ahead` places in front (local attention)."""

    before: int
    after: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        distance = key[None, :] - query[:, None]
        return (distance >= -self.before) & (distance <= self.after)

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        band = self.band(num_queries, num_keys, causal=False)
        return CompiledMask() if band == (num_keys,
                                          num_keys) else CompiledMask(band=band) if band else super().compile(num_queries, num_keys, device)

    def band(self, num_queries: int, num_keys: int, causal: bool) -> tuple[int, int] | None:
        """How far a position sees on either side, where computing that in blocks pays, or where a cache holds positions
        that none of the queries sees; (keys, keys) or (keys, 0) if the window is no limit for so many positions."""
        back, ahead = self.before, 0 if causal else self.after
        if self.before < 0 or self.after < 0:
            return None
        if back >= num_keys - 1 and (causal or ahead >= num_queries - 1):
            return num_keys, 0 if causal else num_keys
        saves_work = num_queries < num_keys and back + num_queries < num_keys or back + ahead + max(back,
            ahead) + 1 < num_queries
        return (back, ahead) if saves_work else None


@dataclass(frozen=True, eq=False)
class Prefix(Visibility):
    """The first `lengths` places see each other in full; the rest is causal (UniLM, prefix LM)."""

    lengths: Tensor  # (B,)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (key[None, None, :] < self.lengths[:, None, None]) | (key[None, :] <= query[:, None])[None]


@dataclass(frozen=True, eq=False)
class ReverseCausal(Visibility):
    """Each place sees itself and what stands after it, up to its row's end (right-to-left models: UniLM). Filling
    sees itself, so that it sees something."""

    lengths: Tensor  # (B,)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        after = (key[None, :] > query[:, None])[None] & (key[None, None, :] < self.lengths[:, None, None])
        return after | (key[None, :] == query[:, None])[None]


@dataclass(frozen=True, eq=False)
class Permutation(Visibility):
    """A factorisation order (XLNet, arXiv:1906.08237): a place sees those that come no later in the order, wherever
    they stand. Places of one number see each other; what a memory kept comes before all."""

    order: Tensor  # (B, L) whole numbers

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        earlier = self.order[:, key.clamp(min=0)][:, None, :] <= self.order[:, query][:, :, None]
        return earlier | (key < 0)


class ExcludeSelf(Visibility):
    """Nobody sees himself: the token at a place that is to be guessed (XLNet's query stream)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None, :] != query[:, None]


@dataclass(frozen=True, eq=False)
class PaddingRule(Visibility):
    """Nobody sees the places that are only filling, on whichever side they stand; combined with other rules by `&`."""

    token_mask: Tensor  # (B, past + L) True where a token stands
    cached_length: int = 0  # how many of these are places that a cache has kept

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return self._is_token(key)[:, None, :].expand(-1, len(query), -1)

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        # one line serves every query
        return CompiledMask(dense=self.key_token_mask(num_queries, num_keys, device)[:, None, None, :])

    def key_token_mask(self, num_queries: int, num_keys: int, device: torch.device | str) -> Tensor:
        """(B, K) False at padding, the queries being the last keys."""
        return self._is_token(torch.arange(num_keys, device=device) - (num_keys - num_queries))

    def _is_token(self, key: Tensor) -> Tensor:
        place = key + self.cached_length
        return self.token_mask[:, place.clamp(min=0)] | (place < 0)  # what a memory kept is never filling


@dataclass(frozen=True, eq=False)
class Intersection(Visibility):
    """Several rules at once: a key is seen if each of them allows it."""

    members: tuple[Visibility, ...]

    def __eq__(self, other: object) -> bool:  # in whatever order they were combined
        return (isinstance(other, Intersection) and len(self.members) == len(other.members)
                and all(rule in other.members for rule in self.members))

    __hash__ = Visibility.__hash__

    def rules(self) -> tuple[Visibility, ...]:
        return self.members

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        seen = self.members[0].allows(query, key)
        for rule in self.members[1:]:
            seen = seen & rule.allows(query, key)
        return seen

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        """A band has a kernel of its own where it is much narrower than the text, with padding too."""
        window = next((rule for rule in self.members if isinstance(rule, SlidingWindow)), None)
        if window is None:
            return super().compile(num_queries, num_keys, device)
        others = [rule for rule in self.members if rule is not window]
        padding = next((rule for rule in others if isinstance(rule, PaddingRule)), None)
        if all(isinstance(rule, Causal | PaddingRule) for rule in others):
            band = window.band(num_queries, num_keys, self.causal)
            if band == (num_keys, 0 if self.causal else num_keys):
                rest: Visibility = Bidirectional()
                for rule in others:
                    rest = rest & rule
                return rest.compile(num_queries, num_keys, device)
            if band is not None:
                return CompiledMask(band=band, token_mask=None if padding is None
                                    else padding.key_token_mask(num_queries, num_keys, device))
        mask = super().compile(num_queries, num_keys, device)
        if padding is not None and not any(isinstance(rule, ExcludeSelf) for rule in others):
            # padding may have nothing but padding within its window: it sees itself, so that it sees something
            own = torch.arange(num_queries, device=device)[:, None] + (num_keys
                - num_queries) == torch.arange(num_keys, device=device)
            assert mask.dense is not None
            return CompiledMask(dense=mask.dense | own)
        return mask

    def to(self, device: torch.device | str) -> Visibility:
        return Intersection(tuple(rule.to(device) for rule in self.members))

    def rows(self, rows: slice) -> Visibility:
        return Intersection(tuple(rule.rows(rows) for rule in self.members))

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
class Mask:
    """A compiled visibility: `dense` is True where the key is seen, broadcastable to (B, 1, Q, K)."""

    causal: bool = False
    dense: Tensor | None = None
    band: tuple[int, int] | None = None  # only so many places behind and so many in front; queries are the last keys
    real: Tensor | None = None  # (B, K), with a band: False at padding

    def rows(self, rows: Tensor) -> Mask:
        """The same mask for some rows of the batch: (R,) their numbers."""
        return replace(self, dense=self.dense if self.dense is None or len(self.dense) == 1 else self.dense[rows],
                       real=self.real if self.real is None or len(self.real) == 1 else self.real[rows])

    def costs_less_than(self, queries: int) -> bool:
        """Whether all positions in blocks of a band are fewer scores than so many queries that see every key."""
        if self.band is None:
            return False
        back, ahead = self.band
        return back + max(back, ahead) + 1 + ahead < queries

    def at(self, places: Tensor, keys: int) -> Mask:
        """The same mask for queries at some places only: (B, Q), of `keys` places."""
        if self.causal or self.band:
            back, ahead = self.band or (keys, 0)
            behind = places[:, :, None] - torch.arange(keys, device=places.device)  # (B, Q, K)
            seen = (behind >= -ahead) & (behind <= back)
            return Mask(dense=(seen if self.real is None else seen & (self.real[:, None] | (behind == 0)))[:, None])
        if self.dense is None or self.dense.shape[2] == 1:  # the same line for every query
            return self
        return Mask(dense=self.dense.expand(len(places), -1, -1, -1).gather(
            2, places[:, None, :, None].expand(-1, self.dense.shape[1], -1, keys)))


@dataclass(frozen=True, eq=False)
class Visibility(ABC):
    """The base rule; a subclass says what it allows."""

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Boolean, broadcastable to (B, Q, K), for query places (Q,) and key places (K,)."""

    def rules(self) -> tuple[Visibility, ...]:
        return (self,)

    def __and__(self, other: Visibility) -> Visibility:
        kept: list[Visibility] = []
        for rule in (*self.rules(), *other.rules()):
            if not isinstance(rule, Full) and rule not in kept:
                kept.append(rule)
        if len(kept) > 1:
            return Every(tuple(kept))
        return kept[0] if kept else Full()

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

    def rows(self, chosen: slice) -> Visibility:
        """The same rule for some examples of the batch."""
        cut = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: v[chosen] if isinstance(v, Tensor) else v for k, v in cut.items()})

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

    def compile(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Mask:
        """The cheapest kernel form for the last `queries` of `keys` places (the first ones are memory or cache)."""
        key = torch.arange(keys, device=device) - (keys - queries)
        seen = self.allows(key[keys - queries:], key)
        dense = seen if seen.dim() == 3 else seen[None]
        return Mask(dense=dense[:, None])


class Full(Visibility):
    """Everybody sees everybody (auto-encoders)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(len(query), len(key), dtype=torch.bool, device=key.device)

    def compile(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Mask:
        return Mask()


class Causal(Visibility):
    """Each place sees itself and what stands before it (left-to-right models)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None, :] <= query[:, None]

    def compile(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Mask:
        if queries == 1:
            return Mask()  # the newest place sees all that was kept
        # torch's flag aligns the triangle at the first key, which is right only where nothing stands before it
        return Mask(causal=True) if queries == keys else super().compile(queries, keys, device)


@dataclass(frozen=True, eq=False)
class Window(Visibility):
    """A band: at most `back` places behind and `ahead` places in front (local attention)."""

    back: int
    ahead: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        distance = key[None, :] - query[:, None]
        return (distance >= -self.back) & (distance <= self.ahead)

    def compile(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Mask:
        band = self.band(queries, keys, causal=False)
        return Mask() if band == (keys, keys) else Mask(band=band) if band else super().compile(queries, keys, device)

    def band(self, queries: int, keys: int, causal: bool) -> tuple[int, int] | None:
        """How far a position sees on either side, where computing that in blocks pays, or where a cache holds positions
        that none of the queries sees; (keys, keys) or (keys, 0) if the window is no limit for so many positions."""
        back, ahead = self.back, 0 if causal else self.ahead
        if self.back < 0 or self.ahead < 0:
            return None
        if back >= keys - 1 and (causal or ahead >= queries - 1):
            return keys, 0 if causal else keys
        pays = queries < keys and back + queries < keys or back + ahead + max(back, ahead) + 1 < queries
        return (back, ahead) if pays else None


@dataclass(frozen=True, eq=False)
class Prefix(Visibility):
    """The first `lengths` places see each other in full; the rest is causal (UniLM, prefix LM)."""

    lengths: Tensor  # (B,)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (key[None, None, :] < self.lengths[:, None, None]) | (key[None, :] <= query[:, None])[None]


@dataclass(frozen=True, eq=False)
class Later(Visibility):
    """Each place sees itself and what stands after it, up to its row's end (right-to-left models: UniLM). Filling
    sees itself, so that it sees something."""

    lengths: Tensor  # (B,)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        after = (key[None, :] > query[:, None])[None] & (key[None, None, :] < self.lengths[:, None, None])
        return after | (key[None, :] == query[:, None])[None]


@dataclass(frozen=True, eq=False)
class Permuted(Visibility):
    """A factorisation order (XLNet, arXiv:1906.08237): a place sees those that come no later in the order, wherever
    they stand. Places of one number see each other; what a memory kept comes before all."""

    order: Tensor  # (B, L) whole numbers

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        earlier = self.order[:, key.clamp(min=0)][:, None, :] <= self.order[:, query][:, :, None]
        return earlier | (key < 0)


class Others(Visibility):
    """Nobody sees himself: the token at a place that is to be guessed (XLNet's query stream)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None, :] != query[:, None]


@dataclass(frozen=True, eq=False)
class Padded(Visibility):
    """Nobody sees the places that are only filling, on whichever side they stand; combined with other rules by `&`."""

    real: Tensor  # (B, past + L) True where a token stands
    past: int = 0  # how many of these are places that a cache has kept

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return self._seen(key)[:, None, :].expand(-1, len(query), -1)

    def compile(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Mask:
        return Mask(dense=self.real_keys(queries, keys, device)[:, None, None, :])  # one line serves every query

    def real_keys(self, queries: int, keys: int, device: torch.device | str) -> Tensor:
        """(B, K) False at padding, the queries being the last keys."""
        return self._seen(torch.arange(keys, device=device) - (keys - queries))

    def _seen(self, key: Tensor) -> Tensor:
        place = key + self.past
        return self.real[:, place.clamp(min=0)] | (place < 0)  # what a memory kept is never filling


@dataclass(frozen=True, eq=False)
class Every(Visibility):
    """Several rules at once: a key is seen if each of them allows it."""

    parts: tuple[Visibility, ...]

    def __eq__(self, other: object) -> bool:  # in whatever order they were combined
        return (isinstance(other, Every) and len(self.parts) == len(other.parts)
                and all(rule in other.parts for rule in self.parts))

    __hash__ = Visibility.__hash__

    def rules(self) -> tuple[Visibility, ...]:
        return self.parts

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        seen = self.parts[0].allows(query, key)
        for rule in self.parts[1:]:
            seen = seen & rule.allows(query, key)
        return seen

    def compile(self, queries: int, keys: int, device: torch.device | str = "cpu") -> Mask:
        """A band has a kernel of its own where it is much narrower than the text, with padding too."""
        window = next((rule for rule in self.parts if isinstance(rule, Window)), None)
        if window is None:
            return super().compile(queries, keys, device)
        others = [rule for rule in self.parts if rule is not window]
        padded = next((rule for rule in others if isinstance(rule, Padded)), None)
        if all(isinstance(rule, Causal | Padded) for rule in others):
            band = window.band(queries, keys, self.causal)
            if band == (keys, 0 if self.causal else keys):
                rest: Visibility = Full()
                for rule in others:
                    rest = rest & rule
                return rest.compile(queries, keys, device)
            if band is not None:
                return Mask(band=band, real=None if padded is None else padded.real_keys(queries, keys, device))
        mask = super().compile(queries, keys, device)
        if padded is not None and not any(isinstance(rule, Others) for rule in others):
            # padding may have nothing but padding within its window: it sees itself, so that it sees something
            own = torch.arange(queries, device=device)[:, None] + (keys - queries) == torch.arange(keys, device=device)
            assert mask.dense is not None
            return Mask(dense=mask.dense | own)
        return mask

    def to(self, device: torch.device | str) -> Visibility:
        return Every(tuple(rule.to(device) for rule in self.parts))

    def rows(self, chosen: slice) -> Visibility:
        return Every(tuple(rule.rows(chosen) for rule in self.parts))

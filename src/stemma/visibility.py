"""Attention-mask rules: values that can be compared, combined with `&`, shown as a grid and compiled for the kernel.

A rule answers one question: may the query at position q attend to the key at position k? Positions count from 0 in the
current input; positions in a memory or a cache are negative. Network modules never build masks by hand. They compile
the rule, which gives the cheapest form that torch has a kernel for: no mask, a causal flag, a band, or a dense boolean
mask.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class CompiledMask:
    """The compiled form of a rule. `dense` is True where a query attends to a key, broadcastable to (B, 1, Q, K)."""

    causal: bool = False
    dense: Tensor | None = None
    band: tuple[int, int] | None = None  # positions before and after a query; the queries are the last keys
    token_mask: Tensor | None = None  # (B, K), with a band: False at padding

    def rows(self, rows: Tensor) -> CompiledMask:
        """The same mask for some rows of the batch, given by their indices (R,)."""
        return replace(self, dense=self.dense if self.dense is None or len(self.dense) == 1 else self.dense[rows],
                       token_mask=self.token_mask if self.token_mask is None or len(self.token_mask) == 1
                       else self.token_mask[rows])

    def costs_less_than(self, num_queries: int) -> bool:
        """Whether block-wise banded attention over all positions computes fewer scores than dense attention of this
        many queries per row."""
        if self.band is None:
            return False
        before, after = self.band
        return before + max(before, after) + 1 + after < num_queries

    def for_queries(self, positions: Tensor, num_keys: int) -> CompiledMask:
        """The same mask for queries at these positions only: (B, Q), over `num_keys` keys."""
        if self.causal or self.band:
            before, after = self.band or (num_keys, 0)
            distance = positions[:, :, None] - torch.arange(num_keys, device=positions.device)  # (B, Q, K)
            allowed = (distance >= -after) & (distance <= before)
            if self.token_mask is not None:
                allowed = allowed & (self.token_mask[:, None] | (distance == 0))
            return CompiledMask(dense=allowed[:, None])
        if self.dense is None or self.dense.shape[2] == 1:  # one mask row serves all queries
            return self
        return CompiledMask(dense=self.dense.expand(len(positions), -1, -1, -1).gather(
            2, positions[:, None, :, None].expand(-1, self.dense.shape[1], -1, num_keys)))


@dataclass(frozen=True, eq=False)
class Visibility(ABC):
    """Base class of attention-mask rules. A subclass defines `allows`."""

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Boolean, broadcastable to (B, Q, K), for query positions (Q,) and key positions (K,)."""

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
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in values.items()})

    def rows(self, rows: slice) -> Visibility:
        """The same rule for some rows of the batch."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: v[rows] if isinstance(v, Tensor) else v for k, v in values.items()})

    def grid(self, length: int, row: int = 0) -> Tensor:
        """The mask of one row as a (length, length) boolean grid, for display and tests."""
        positions = torch.arange(length)
        allowed = self.allows(positions, positions)
        allowed = allowed[row if allowed.shape[0] > 1 else 0] if allowed.dim() == 3 else allowed
        return allowed.expand(length, length)

    @property
    def causal(self) -> bool:
        """Whether no position attends to a later position."""
        return any(isinstance(rule, Causal) for rule in self.rules())

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        """The cheapest form for queries at the last `num_queries` of `num_keys` positions; the positions before them
        are memory or cache."""
        key = torch.arange(num_keys, device=device) - (num_keys - num_queries)
        allowed = self.allows(key[num_keys - num_queries:], key)
        dense = allowed if allowed.dim() == 3 else allowed[None]
        return CompiledMask(dense=dense[:, None])


class Bidirectional(Visibility):
    """Every position attends to every position (encoders)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(len(query), len(key), dtype=torch.bool, device=key.device)

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        return CompiledMask()


class Causal(Visibility):
    """Each position attends to itself and to earlier positions (left-to-right models)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None, :] <= query[:, None]

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        if num_queries == 1:
            return CompiledMask()  # the newest position attends to the whole cache
        # torch's flag aligns the triangle at the first key, which is correct only without a memory or cache
        return CompiledMask(causal=True) if num_queries == num_keys else super().compile(num_queries, num_keys, device)


@dataclass(frozen=True, eq=False)
class SlidingWindow(Visibility):
    """Local attention: at most `before` positions before a query and `after` positions after it."""

    before: int
    after: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        distance = key[None, :] - query[:, None]
        return (distance >= -self.before) & (distance <= self.after)

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        band = self.band(num_queries, num_keys, causal=False)
        if band == (num_keys, num_keys):
            return CompiledMask()
        return CompiledMask(band=band) if band else super().compile(num_queries, num_keys, device)

    def band(self, num_queries: int, num_keys: int, causal: bool) -> tuple[int, int] | None:
        """The number of positions before and after a query that it attends to, if block-wise computation saves work.

        It does if the band is much narrower than the input, or if a cache holds positions outside the window of every
        query. (num_keys, num_keys) or (num_keys, 0): the window covers all keys. None: a dense mask is cheaper."""
        before, after = self.before, 0 if causal else self.after
        if self.before < 0 or self.after < 0:
            return None
        if before >= num_keys - 1 and (causal or after >= num_queries - 1):
            return num_keys, 0 if causal else num_keys
        unused_cache = num_queries < num_keys and before + num_queries < num_keys
        narrow_band = before + after + max(before, after) + 1 < num_queries
        return (before, after) if unused_cache or narrow_band else None


@dataclass(frozen=True, eq=False)
class Prefix(Visibility):
    """Attention is bidirectional within the first `lengths` positions and causal after them (UniLM, prefix LM)."""

    lengths: Tensor  # (B,)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (key[None, None, :] < self.lengths[:, None, None]) | (key[None, :] <= query[:, None])[None]


@dataclass(frozen=True, eq=False)
class ReverseCausal(Visibility):
    """Each position attends to itself and to later positions, up to the end of its row (right-to-left models: UniLM).

    Padding attends to itself, so that its softmax is defined."""

    lengths: Tensor  # (B,)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        after = (key[None, :] > query[:, None])[None] & (key[None, None, :] < self.lengths[:, None, None])
        return after | (key[None, :] == query[:, None])[None]


@dataclass(frozen=True, eq=False)
class Permutation(Visibility):
    """A factorization order (XLNet, arXiv:1906.08237): a position attends to the positions that come no later in the
    order. Positions of equal rank attend to each other; every position attends to the memory."""

    order: Tensor  # (B, L) integer ranks

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        earlier = self.order[:, key.clamp(min=0)][:, None, :] <= self.order[:, query][:, :, None]
        return earlier | (key < 0)


class ExcludeSelf(Visibility):
    """A query does not attend to its own position, whose token it predicts (XLNet's query stream)."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key[None, :] != query[:, None]


@dataclass(frozen=True, eq=False)
class PaddingRule(Visibility):
    """No query attends to padding, on either side of a row. Combine it with other rules by `&`."""

    token_mask: Tensor  # (B, cached_length + L) True at tokens, False at padding
    cached_length: int = 0  # number of leading columns that belong to cached positions

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return self._is_token(key)[:, None, :].expand(-1, len(query), -1)

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        # one mask row serves all queries
        return CompiledMask(dense=self.key_token_mask(num_queries, num_keys, device)[:, None, None, :])

    def key_token_mask(self, num_queries: int, num_keys: int, device: torch.device | str) -> Tensor:
        """(B, K) False at padding. The queries are the last keys."""
        return self._is_token(torch.arange(num_keys, device=device) - (num_keys - num_queries))

    def _is_token(self, key: Tensor) -> Tensor:
        column = key + self.cached_length
        return self.token_mask[:, column.clamp(min=0)] | (column < 0)  # a memory holds no padding


@dataclass(frozen=True, eq=False)
class Intersection(Visibility):
    """The conjunction of several rules: a query attends to a key if every rule allows it."""

    members: tuple[Visibility, ...]

    def __eq__(self, other: object) -> bool:  # the order of combination does not matter
        return (isinstance(other, Intersection) and len(self.members) == len(other.members)
                and all(rule in other.members for rule in self.members))

    __hash__ = Visibility.__hash__

    def rules(self) -> tuple[Visibility, ...]:
        return self.members

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        allowed = self.members[0].allows(query, key)
        for rule in self.members[1:]:
            allowed = allowed & rule.allows(query, key)
        return allowed

    def compile(self, num_queries: int, num_keys: int, device: torch.device | str = "cpu") -> CompiledMask:
        """A window compiles to a band if that saves work, also with causal and padding rules."""
        window = next((rule for rule in self.members if isinstance(rule, SlidingWindow)), None)
        if window is None:
            return super().compile(num_queries, num_keys, device)
        others = [rule for rule in self.members if rule is not window]
        padding = next((rule for rule in others if isinstance(rule, PaddingRule)), None)
        if all(isinstance(rule, Causal | PaddingRule) for rule in others):
            band = window.band(num_queries, num_keys, self.causal)
            if band == (num_keys, 0 if self.causal else num_keys):
                without_window: Visibility = Bidirectional()
                for rule in others:
                    without_window = without_window & rule
                return without_window.compile(num_queries, num_keys, device)
            if band is not None:
                return CompiledMask(band=band, token_mask=None if padding is None
                                    else padding.key_token_mask(num_queries, num_keys, device))
        mask = super().compile(num_queries, num_keys, device)
        if padding is not None and not any(isinstance(rule, ExcludeSelf) for rule in others):
            # the window of a padding position may hold only padding: it attends to itself, so that softmax is defined
            query = torch.arange(num_keys - num_queries, num_keys, device=device)
            is_self = query[:, None] == torch.arange(num_keys, device=device)
            assert mask.dense is not None
            return CompiledMask(dense=mask.dense | is_self)
        return mask

    def to(self, device: torch.device | str) -> Visibility:
        return Intersection(tuple(rule.to(device) for rule in self.members))

    def rows(self, rows: slice) -> Visibility:
        return Intersection(tuple(rule.rows(rows) for rule in self.members))

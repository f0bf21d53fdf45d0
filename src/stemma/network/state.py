"""What a network carries from one call to the next.

While training, a memory is what each layer read before: its inputs, without their gradient, so that the weights which
look at them still learn (Transformer-XL, arXiv:1901.02860, section 3.2). Otherwise the weights stand still, and what
those inputs were turned into, keys and values, is kept instead: the same numbers, computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stemma.visibility import Mask

FIRST_CAPACITY = 64  # places that a new cache has room for; it doubles when they are full
SPARE = 8  # places that are left free where rows are chosen


@dataclass(frozen=True)
class Memory:
    """Each layer's inputs, (B, M, width), the newest last."""

    layers: tuple[Tensor, ...]

    @property
    def length(self) -> int:
        return self.layers[0].shape[1]

    def rows(self, chosen: slice) -> Memory:
        return Memory(tuple(layer[chosen] for layer in self.layers))

    def to(self, device: torch.device | str) -> Memory:
        return Memory(tuple(layer.to(device) for layer in self.layers))

    @staticmethod
    def join(parts: Sequence[Memory]) -> Memory:
        """One memory of the whole batch from those of its slices."""
        return parts[0] if len(parts) == 1 else Memory(tuple(map(torch.cat, zip(*(p.layers for p in parts),
                                                                                strict=True))))

    def tensors(self) -> dict[str, Tensor]:
        return {str(number): layer for number, layer in enumerate(self.layers)}

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Memory:
        return Memory(tuple(tensors[str(number)] for number in range(len(tensors))))


class Across:
    """What a decoder looks at: the encoder's output (B, S, width), and which places of it are not filling. Where text
    is written token by token, each layer's keys and values are kept."""

    def __init__(self, output: Tensor, mask: Mask, keeps: bool):
        self.output, self.mask, self.keeps = output, mask, keeps
        self._layers: dict[int, tuple[Tensor, ...]] = {}
        self._owner = torch.arange(len(output), device=output.device)  # which text each row writes about

    def kept(self, layer: int, make: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if layer in self._layers:
            return self._layers[layer]
        made = make(self.output)
        if self.keeps:
            self._layers[layer] = made
        return made

    def for_one_pass(self) -> Across:
        """The same, where what is made of it is kept at least as long as one forward pass lasts."""
        return self if self.keeps else Across(self.output, self.mask, keeps=True)

    def choose(self, rows: Tensor) -> None:
        """Beams that change places within one text look at the same thing: then nothing is moved."""
        owner = self._owner[rows]
        if torch.equal(owner, self._owner):
            return
        self._owner = owner
        self.output = self.output.index_select(0, rows)
        if self.mask.dense is not None:
            self.mask = Mask(dense=self.mask.dense.index_select(0, rows))
        self._layers = {layer: tuple(tensor.index_select(0, rows) for tensor in made)
                        for layer, made in self._layers.items()}


class Cache:
    """Keys and values of every layer, the newest last; with a `limit`, only the newest so many places. Of a network
    with several parts they are those of the part that writes, beside the output of the parts that it attends to."""

    def __init__(self, limit: int | None = None):
        self.limit = limit
        self.layers: dict[int, LayerCache] = {}
        self.across: dict[str, Across] = {}  # by the part whose output it is

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers.setdefault(layer, LayerCache(self.limit))

    @property
    def length(self) -> int:
        return self.layers[0].length if self.layers else 0

    def choose(self, rows: Tensor) -> None:
        """Go on with these rows, in this order and as often as they are named: beams that live on, texts that end."""
        for layer in self.layers.values():
            layer.choose(rows)
        for across in self.across.values():
            across.choose(rows)

    def crop(self, length: int) -> None:
        """Forget all but the first places: a window that slides reads its end again."""
        for layer in self.layers.values():
            layer.crop(length)


class LayerCache:
    """One layer's keys and values in two buffers that are filled from the left; and what else a sublayer keeps."""

    def __init__(self, limit: int | None):
        self.limit = limit
        self.start = self.stop = 0
        self.recent: dict[str, Tensor] = {}  # (B, ...) the last inputs of sublayers that look at neighbours, or a state
        self.distances: tuple[tuple[int, ...], Tensor] | None = None  # which were at hand, and what was made of them
        self._buffers: tuple[Tensor, ...] = ()

    @property
    def length(self) -> int:
        return self.stop - self.start

    def remember(self, new: int, **kept: Tensor) -> None:
        """After so many new positions, `kept` (B, ...) by name (`recent`) is all that a layer must know of the text."""
        self.stop += new
        self.recent |= kept

    def extend(self, key: Tensor, value: Tensor, keep: int | None = None) -> tuple[Tensor, Tensor]:
        """(B, heads, Q, D) new ones -> (B, heads, past + Q, D) all of them. The first `keep` of the new ones (None:
        every one) stay, and of what is then there the limit keeps the newest."""
        new = key.shape[2]
        if not self._buffers or self.stop + new > self._buffers[0].shape[2]:
            self._make_room(key, value, new)
        for buffer, added in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, self.stop:self.stop + new] = added
        first, second = (buffer[:, :, self.start:self.stop + new] for buffer in self._buffers)
        self.stop += new if keep is None else keep
        if self.limit is not None:
            self.start = max(self.start, self.stop - self.limit)
        return first, second

    def _make_room(self, key: Tensor, value: Tensor, new: int) -> None:
        """Move what is kept to the left end of buffers with as much room again."""
        capacity = max(FIRST_CAPACITY, 2 * (self.length + new))
        old, self._buffers = self._buffers, tuple(added.new_empty(*added.shape[:2], capacity, added.shape[3])
                                                  for added in (key, value))
        for source, target in zip(old, self._buffers, strict=False):
            target[:, :, :self.length] = source[:, :, self.start:self.stop]
        self.start, self.stop = 0, self.length

    def choose(self, rows: Tensor) -> None:
        stop = self.stop + SPARE  # beams are chosen at every step: what is empty need not be copied each time
        self._buffers = tuple(buffer[:, :, self.start:stop][rows] for buffer in self._buffers)
        self.start, self.stop = 0, self.length
        self.recent = {name: kept.index_select(0, rows) for name, kept in self.recent.items()}

    def crop(self, length: int) -> None:
        assert not self.recent, "neighbours were kept, and those before them are gone"
        self.stop = min(self.stop, self.start + length)


State = Memory | Cache

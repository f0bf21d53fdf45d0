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

from stemma.visibility import CompiledMask

INITIAL_CAPACITY = 64  # places that a new cache has room for; it doubles when they are full
SPARE_POSITIONS = 8  # places that are left free where rows are chosen


@dataclass(frozen=True)
class Memory:
    """Each layer's inputs, (B, M, width), the newest last."""

    hidden_states: tuple[Tensor, ...]

    @property
    def length(self) -> int:
        return self.hidden_states[0].shape[1]

    def rows(self, rows: slice) -> Memory:
        return Memory(tuple(layer[rows] for layer in self.hidden_states))

    def to(self, device: torch.device | str) -> Memory:
        return Memory(tuple(layer.to(device) for layer in self.hidden_states))

    @staticmethod
    def concatenate(memories: Sequence[Memory]) -> Memory:
        """One memory of the whole batch from those of its slices."""
        return memories[0] if len(memories) == 1 else Memory(tuple(map(torch.cat,
                                                                       zip(*(p.hidden_states for p in memories),
                                                                                strict=True))))

    def tensors(self) -> dict[str, Tensor]:
        return {str(number): layer for number, layer in enumerate(self.hidden_states)}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Memory:
        return Memory(tuple(tensors[str(number)] for number in range(len(tensors))))


class CrossAttentionCache:
    """What a decoder looks at: the encoder's output (B, S, width), and which places of it are not filling. Where text
    is written token by token, each layer's keys and values are kept."""

    def __init__(self, encoder_output: Tensor, mask: CompiledMask, enabled: bool):
        self.encoder_output, self.mask, self.enabled = encoder_output, mask, enabled
        self._keys_values: dict[int, tuple[Tensor, ...]] = {}
        # which text each row writes about
        self._source_rows = torch.arange(len(encoder_output), device=encoder_output.device)

    def keys_and_values(self, layer_index: int, project: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if layer_index in self._keys_values:
            return self._keys_values[layer_index]
        keys_values = project(self.encoder_output)
        if self.enabled:
            self._keys_values[layer_index] = keys_values
        return keys_values

    def for_one_pass(self) -> CrossAttentionCache:
        """The same, where what is made of it is kept at least as long as one forward pass lasts."""
        return self if self.enabled else CrossAttentionCache(self.encoder_output, self.mask, enabled=True)

    def reorder(self, rows: Tensor) -> None:
        """Beams that change places within one text look at the same thing: then nothing is moved."""
        owner = self._source_rows[rows]
        if torch.equal(owner, self._source_rows):
            return
        self._source_rows = owner
        self.encoder_output = self.encoder_output.index_select(0, rows)
        if self.mask.dense is not None:
            self.mask = CompiledMask(dense=self.mask.dense.index_select(0, rows))
        self._keys_values = {layer: tuple(tensor.index_select(0, rows) for tensor in made)
                        for layer, made in self._keys_values.items()}


class KVCache:
    """Keys and values of every layer, the newest last; with a `limit`, only the newest so many places. Of a network
    with several parts they are those of the part that writes, beside the output of the parts that it attends to."""

    def __init__(self, max_length: int | None = None):
        self.max_length = max_length
        self.layers: dict[int, LayerKVCache] = {}
        self.cross_caches: dict[str, CrossAttentionCache] = {}  # by the part whose output it is

    def __getitem__(self, layer: int) -> LayerKVCache:
        return self.layers.setdefault(layer, LayerKVCache(self.max_length))

    @property
    def length(self) -> int:
        return self.layers[0].length if self.layers else 0

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows, in this order and as often as they are named: beams that live on, texts that end."""
        for layer in self.layers.values():
            layer.reorder(rows)
        for across in self.cross_caches.values():
            across.reorder(rows)

    def crop(self, length: int) -> None:
        """Forget all but the first places: a window that slides reads its end again."""
        for layer in self.layers.values():
            layer.crop(length)


class LayerKVCache:
    """One layer's keys and values in two buffers that are filled from the left; and what else a sublayer keeps."""

    def __init__(self, max_length: int | None):
        self.max_length = max_length
        self.start = self.stop = 0
        self.sublayer_states: dict[str, Tensor] = {}  # (B, ...) the last inputs of sublayers that look at neighbours,
        #                                               or a state
        self.projected_positions: tuple[tuple[int, ...], Tensor] | None = None  # which were at hand, and what was made
        #                                                                         of them
        self._buffers: tuple[Tensor, ...] = ()

    @property
    def length(self) -> int:
        return self.stop - self.start

    def store_states(self, num_new: int, **states: Tensor) -> None:
        """After so many new positions, `kept` (B, ...) by name (`recent`) is all that a layer must know of the text."""
        self.stop += num_new
        self.sublayer_states |= states

    def append(self, key: Tensor, value: Tensor, reuse_length: int | None = None) -> tuple[Tensor, Tensor]:
        """(B, heads, Q, D) new ones -> (B, heads, past + Q, D) all of them. The first `keep` of the new ones (None:
        every one) stay, and of what is then there the limit keeps the newest."""
        new = key.shape[2]
        if not self._buffers or self.stop + new > self._buffers[0].shape[2]:
            self._grow(key, value, new)
        for buffer, added in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, self.stop:self.stop + new] = added
        first, second = (buffer[:, :, self.start:self.stop + new] for buffer in self._buffers)
        self.stop += new if reuse_length is None else reuse_length
        if self.max_length is not None:
            self.start = max(self.start, self.stop - self.max_length)
        return first, second

    def _grow(self, key: Tensor, value: Tensor, num_new: int) -> None:
        """Move what is kept to the left end of buffers with as much room again."""
        capacity = max(INITIAL_CAPACITY, 2 * (self.length + num_new))
        old, self._buffers = self._buffers, tuple(added.new_empty(*added.shape[:2], capacity, added.shape[3])
                                                  for added in (key, value))
        for source, target in zip(old, self._buffers, strict=False):
            target[:, :, :self.length] = source[:, :, self.start:self.stop]
        self.start, self.stop = 0, self.length

    def reorder(self, rows: Tensor) -> None:
        stop = self.stop + SPARE_POSITIONS  # beams are chosen at every step: what is empty need not be copied each time
        self._buffers = tuple(buffer[:, :, self.start:stop][rows] for buffer in self._buffers)
        self.start, self.stop = 0, self.length
        self.sublayer_states = {name: kept.index_select(0, rows) for name, kept in self.sublayer_states.items()}

    def crop(self, length: int) -> None:
        assert not self.sublayer_states, "neighbours were kept, and those before them are gone"
        self.stop = min(self.stop, self.start + length)


State = Memory | KVCache

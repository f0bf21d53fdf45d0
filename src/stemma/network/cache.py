"""State that a network carries from one call to the next.

In training it is a memory: each layer's inputs of earlier segments, detached. Their keys and values are computed anew,
so that the projections still get gradients (Transformer-XL, arXiv:1901.02860, section 3.2). In evaluation it is a
key-value cache: the same keys and values, computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stemma.visibility import CompiledMask

INITIAL_CAPACITY = 64  # positions of a new cache; the capacity doubles when it is full
SPARE_POSITIONS = 8  # free positions kept when rows are reordered


@dataclass(frozen=True)
class Memory:
    """Each layer's inputs of earlier segments, (B, M, width), the newest last."""

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
        """The memory of a batch from those of its slices."""
        if len(memories) == 1:
            return memories[0]
        by_layer = zip(*(memory.hidden_states for memory in memories), strict=True)
        return Memory(tuple(map(torch.cat, by_layer)))

    def tensors(self) -> dict[str, Tensor]:
        return {str(index): layer for index, layer in enumerate(self.hidden_states)}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> Memory:
        return Memory(tuple(tensors[str(index)] for index in range(len(tensors))))


class CrossAttentionCache:
    """The encoder output (B, S, width) that a decoder attends to, with its padding mask. In incremental decoding
    (`enabled`) each layer's keys and values are cached. `final_states`: those of a recurrent encoder, for the first
    call."""

    def __init__(self, encoder_output: Tensor, mask: CompiledMask, enabled: bool,
                 final_states: Sequence[tuple[Tensor, Tensor]] | None = None):
        self.encoder_output, self.mask, self.enabled = encoder_output, mask, enabled
        self.final_states = final_states
        self._keys_values: dict[int, tuple[Tensor, ...]] = {}
        # for each row (beam), the row of its source text in the first call
        self._source_rows = torch.arange(len(encoder_output), device=encoder_output.device)

    def keys_and_values(self, layer_index: int, project: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if layer_index in self._keys_values:
            return self._keys_values[layer_index]
        keys_values = project(self.encoder_output)
        if self.enabled:
            self._keys_values[layer_index] = keys_values
        return keys_values

    def for_one_pass(self) -> CrossAttentionCache:
        """This encoder output with caching enabled, at least for one forward pass."""
        return self if self.enabled else CrossAttentionCache(self.encoder_output, self.mask, True, self.final_states)

    def reorder(self, rows: Tensor) -> None:
        """Continue with these rows. If beams are only reordered within one source text, nothing is copied."""
        source_rows = self._source_rows[rows]
        if torch.equal(source_rows, self._source_rows):
            return
        self._source_rows = source_rows
        self.encoder_output = self.encoder_output.index_select(0, rows)
        if self.mask.dense is not None:
            self.mask = CompiledMask(dense=self.mask.dense.index_select(0, rows))
        self._keys_values = {layer: tuple(tensor.index_select(0, rows) for tensor in keys_values)
                             for layer, keys_values in self._keys_values.items()}


class KVCache:
    """Keys and values of every layer, the newest last; with `max_length`, of the newest positions only. In an
    encoder-decoder they are the decoder's, together with the encoder output that it attends to."""

    def __init__(self, max_length: int | None = None):
        self.max_length = max_length
        self.layers: dict[int, LayerKVCache] = {}
        self.cross_caches: dict[str, CrossAttentionCache] = {}  # by the part that is attended to

    def __getitem__(self, layer: int) -> LayerKVCache:
        return self.layers.setdefault(layer, LayerKVCache(self.max_length))

    @property
    def length(self) -> int:
        return self.layers[0].length if self.layers else 0

    def reorder(self, rows: Tensor) -> None:
        """Continue with these rows, in this order; a row may occur several times (beam search) or not at all."""
        for layer in self.layers.values():
            layer.reorder(rows)
        for cross_cache in self.cross_caches.values():
            cross_cache.reorder(rows)

    def crop(self, length: int) -> None:
        """Keep the first `length` positions only."""
        for layer in self.layers.values():
            layer.crop(length)


class LayerKVCache:
    """One layer's keys and values, in two buffers that grow to the right, and the states of other sublayers."""

    def __init__(self, max_length: int | None):
        self.max_length = max_length
        self.start = self.stop = 0
        self.sublayer_states: dict[str, Tensor] = {}  # (B, ...) last inputs of a convolution, or a recurrent state
        self.projected_positions: tuple[tuple[int, ...], Tensor] | None = None  # cache key, relative position keys
        self._buffers: tuple[Tensor, ...] = ()

    @property
    def length(self) -> int:
        return self.stop - self.start

    def store_states(self, num_new: int, **states: Tensor) -> None:
        """Store the states (B, ...) that a layer without keys and values needs for the next call; the layer has read
        `num_new` more positions."""
        self.stop += num_new
        self.sublayer_states |= states

    def append(self, key: Tensor, value: Tensor, reuse_length: int | None = None) -> tuple[Tensor, Tensor]:
        """New keys and values (B, heads, Q, D) -> all of them (B, heads, length + Q, D). The first `reuse_length` new
        positions are stored (None: all), and of all stored positions the newest `max_length`."""
        new = key.shape[2]
        if not self._buffers or self.stop + new > self._buffers[0].shape[2]:
            self._grow(key, value, new)
        for buffer, states in zip(self._buffers, (key, value), strict=True):
            buffer[:, :, self.stop:self.stop + new] = states
        all_keys, all_values = (buffer[:, :, self.start:self.stop + new] for buffer in self._buffers)
        self.stop += new if reuse_length is None else reuse_length
        if self.max_length is not None:
            self.start = max(self.start, self.stop - self.max_length)
        return all_keys, all_values

    def _grow(self, key: Tensor, value: Tensor, num_new: int) -> None:
        """Move the stored positions to the start of larger buffers."""
        capacity = max(INITIAL_CAPACITY, 2 * (self.length + num_new))
        old, self._buffers = self._buffers, tuple(states.new_empty(*states.shape[:2], capacity, states.shape[3])
                                                  for states in (key, value))
        for source, target in zip(old, self._buffers, strict=False):
            target[:, :, :self.length] = source[:, :, self.start:self.stop]
        self.start, self.stop = 0, self.length

    def reorder(self, rows: Tensor) -> None:
        stop = self.stop + SPARE_POSITIONS  # beam search reorders at every step: do not copy the empty capacity
        self._buffers = tuple(buffer[:, :, self.start:stop][rows] for buffer in self._buffers)
        self.start, self.stop = 0, self.length
        self.sublayer_states = {name: state.index_select(0, rows) for name, state in self.sublayer_states.items()}

    def crop(self, length: int) -> None:
        assert not self.sublayer_states, "the states of convolutions and recurrent layers cannot be cropped"
        self.stop = min(self.stop, self.start + length)


State = Memory | KVCache

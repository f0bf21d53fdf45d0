"""Builds the arguments common to all layers of a forward pass: attention masks, positions, memory and cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stemma.network.body import StackInput
from stemma.network.cache import CrossAttentionCache, KVCache, Memory, State
from stemma.network.inputs_outputs import LayerContext, Stream
from stemma.network.rotary import RotaryRotation
from stemma.schema.network import NetworkSettings
from stemma.visibility import Bidirectional, CompiledMask, ExcludeSelf, PaddingRule, SlidingWindow, Visibility

if TYPE_CHECKING:
    from stemma.network.network import Network


def build_stack_input(network: Network, stream: Stream, state: State | None,
                      cross_cache: CrossAttentionCache | None) -> StackInput:
    """The arguments of a part's body, computed once for all layers."""
    memory = state if isinstance(state, Memory) else None
    cache = state if isinstance(state, KVCache) else None
    settings, memory_settings, device = network.settings, network.settings.memory, stream.device
    batch, length = stream.batch, stream.length
    attention_mask, zero_memory_length, memory_update = stream.attention_mask, 0, None
    if memory_settings is not None:
        memory_length = cache.max_length if cache is not None and cache.max_length is not None else \
            memory_settings.length if network.training else memory_settings.eval_length or memory_settings.length
        if memory_settings.same_length:
            attention_mask = attention_mask & SlidingWindow(memory_length - 1, length)
        if memory_settings.start == "zeros":
            zero_memory_length = memory_length
        if network.training:
            if stream.reuse_length != 0:
                memory_update = memory_length, length if stream.reuse_length is None else stream.reuse_length
            if memory is None and zero_memory_length:
                zeros = torch.zeros(batch, zero_memory_length, settings.width, device=device)
                memory = Memory((zeros,) * settings.layers)
    cached_length = 0
    if memory is not None:
        cached_length = memory.length
    elif cache is not None:
        cached_length = cache.length or zero_memory_length
    num_keys = cached_length + length
    masks = [CompiledMask()]
    if settings.has_key("attention"):
        masks = [_compile_mask(rule, stream, num_keys) for rule in _layer_masks(settings, attention_mask)]
    relative_positions = None
    if network.relative_positions is not None:
        relative_positions = network.relative_positions(length, num_keys, not attention_mask.causal, device,
                                                        stream.reversed_rows, stream.query_positions)
    context = LayerContext(masks[0], relative_positions=relative_positions,
                           different_segment=_different_segment(settings, stream, cached_length),
                           reuse_length=stream.reuse_length, causal=attention_mask.causal,
                           attention_token_mask=stream.attention_token_mask())
    position_ids = stream.position_ids
    if position_ids is None and cache is not None and cache.length and memory_settings is None:
        position_ids = torch.arange(cache.length, cache.length + length, device=device)
    return StackInput(context, masks, length, num_keys, position_ids, _rotations(network, stream, position_ids),
                      stream.output_positions, memory, memory_update, cache, zero_memory_length if cache else 0,
                      skip_padding=stream.skip_padding, cross_cache=cross_cache, reversed_rows=stream.reversed_rows,
                      token_mask=stream.token_mask())


def _rotations(network: Network, stream: Stream, position_ids: Tensor | None) -> list[RotaryRotation]:
    """Rotations that the layers use in turn; empty if positions are not rotary."""
    if "rotation" not in network.settings.position.required_features:
        return []
    if position_ids is None:
        position_ids = torch.arange(stream.length, device=stream.device)
    windows = network.settings.attention.windows or [0]
    by_locality = {local: network.position.rotation(local, position_ids, stream.query_positions)
                   for local in {bool(window) for window in windows}}
    return [rotation for window in windows if (rotation := by_locality[bool(window)]) is not None]


def _layer_masks(settings: NetworkSettings, attention_mask: Visibility) -> list[Visibility]:
    """Attention masks that the layers use in turn.

    A window of a causal network ends at the query, itself included; otherwise it extends to both sides of it."""
    masks = []
    for size in settings.attention.windows:
        window = SlidingWindow(size - 1, 0) if attention_mask.causal else SlidingWindow(size, size)
        masks.append(attention_mask & window if size else attention_mask)
    return masks or [attention_mask]


def _compile_mask(attention_mask: Visibility, stream: Stream, num_keys: int) -> CompiledMask:
    length, device = stream.length, stream.device
    mask = attention_mask.compile(length, num_keys, device)
    if stream.query_positions is None:
        return mask
    query_stream_mask = (attention_mask & ExcludeSelf()).compile(length, num_keys, device)
    query_stream_mask = query_stream_mask.for_queries(stream.query_positions, num_keys)
    assert mask.dense is not None and query_stream_mask.dense is not None
    batch = len(stream.query_positions)
    return CompiledMask(dense=torch.cat([mask.dense.expand(batch, 1, length, num_keys), query_stream_mask.dense], 2))


def _different_segment(settings: NetworkSettings, stream: Stream, cached_length: int) -> Tensor | None:
    """(B, 1, Q, K) True if query and key belong to different segments; a memory counts as segment 0."""
    if not settings.attention.segments or stream.segment_ids is None:
        return None
    segments = stream.segment_ids
    key_segments = torch.nn.functional.pad(segments, (cached_length, 0))
    query_segments = segments
    if stream.query_positions is not None:
        query_segments = torch.cat([segments, segments.gather(1, stream.query_positions)], 1)
    return (query_segments[:, :, None] != key_segments[:, None, :])[:, None]


def cross_attention_mask(stream: Stream) -> CompiledMask:
    """Cross-attention mask over the output of this stream: all non-padding positions."""
    rule = next((rule for rule in stream.attention_mask.rules() if isinstance(rule, PaddingRule)), Bidirectional())
    return rule.compile(stream.length, stream.length, stream.device)

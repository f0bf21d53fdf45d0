"""What holds for all layers of a forward pass: attention masks, distances, rotations, positions, and what was kept."""

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
    """Once for all layers of a part: what each position attends to, and how far away that is."""
    memory = state if isinstance(state, Memory) else None
    cache = state if isinstance(state, KVCache) else None
    settings, memory_settings, device = network.settings, network.settings.memory, stream.device
    batch, length = stream.batch, stream.length
    attention_mask, zero_memory_length, keep = stream.attention_mask, 0, None
    if memory_settings is not None:
        memory_length = cache.max_length if cache is not None and cache.max_length is not None else \
            memory_settings.length if network.training else memory_settings.evaluation or memory_settings.length
        if memory_settings.same_length:
            attention_mask = attention_mask & SlidingWindow(memory_length - 1, length)
        if memory_settings.start == "zeros":
            zero_memory_length = memory_length
        if network.training:
            keep = None if stream.reuse_length == 0 else (memory_length,
                                                          length if stream.reuse_length is None
                                                          else stream.reuse_length)
            if memory is None and zero_memory_length:
                nothing = torch.zeros(batch, zero_memory_length, settings.width, device=device)
                memory = Memory((nothing,) * settings.layers)
    cached_length = memory.length if memory is not None else cache.length or zero_memory_length if cache is not None else 0
    num_keys = cached_length + length
    masks = [_compile_mask(rule, stream, num_keys) for rule in _layer_masks(settings, attention_mask)]
    distances = None
    if network.relative_positions is not None:
        distances = network.relative_positions(length, num_keys, not attention_mask.causal, device,
                                               stream.reversed_rows, stream.query_positions)
    context = LayerContext(masks[0], relative_positions=distances, different_segment=_different_segment(settings,
        stream, cached_length), reuse_length=stream.reuse_length,
                      causal=attention_mask.causal, attention_token_mask=stream.attention_token_mask())
    positions = stream.position_ids
    if positions is None and cache is not None and cache.length and memory_settings is None:
        positions = torch.arange(cache.length, cache.length + length, device=device)
    return StackInput(context, masks, length, num_keys, positions, _rotations(network, stream, positions),
                      stream.output_positions,
                      memory, keep, cache, zero_memory_length if cache else 0, skip_padding=stream.skip_padding,
                      cross_cache=cross_cache, token_mask=stream.token_mask())


def _rotations(network: Network, stream: Stream, positions: Tensor | None) -> list[RotaryRotation]:
    """What turns queries and keys in the layers, in turn; nothing where positions are not rotary."""
    if "rotation" not in network.settings.position.required_features:
        return []
    if positions is None:
        positions = torch.arange(stream.length, device=stream.device)
    windows = network.settings.attention.windows or [0]
    made = {local: network.position.rotation(local, positions, stream.query_positions)
            for local in {bool(window) for window in windows}}
    return [turn for window in windows if (turn := made[bool(window)]) is not None]


def _layer_masks(settings: NetworkSettings, attention_mask: Visibility) -> list[Visibility]:
    """The rules that the layers take in turn: a window lies behind a place, itself included, where text is read
    from one end, and on both sides of it otherwise."""
    windows = [Bidirectional() if not size else SlidingWindow(size - 1,
                                                              0) if attention_mask.causal else SlidingWindow(size, size)
               for size in settings.attention.windows]
    return [attention_mask & window for window in windows] or [attention_mask]


def _compile_mask(attention_mask: Visibility, stream: Stream, num_keys: int) -> CompiledMask:
    length, device = stream.length, stream.device
    mask = attention_mask.compile(length, num_keys, device)
    if stream.query_positions is None:
        return mask
    query_stream_mask = (attention_mask & ExcludeSelf()).compile(length, num_keys,
                                                                 device).for_queries(stream.query_positions, num_keys)
    assert mask.dense is not None and query_stream_mask.dense is not None
    batch = len(stream.query_positions)
    return CompiledMask(dense=torch.cat([mask.dense.expand(batch, 1, length, num_keys), query_stream_mask.dense], 2))


def _different_segment(settings: NetworkSettings, stream: Stream, cached_length: int) -> Tensor | None:
    """(B, 1, Q, K) whether query and key belong to different segments; what was kept counts as segment 0."""
    if not settings.attention.segments or stream.segment_ids is None:
        return None
    segments = stream.segment_ids
    keys = torch.nn.functional.pad(segments, (cached_length, 0))
    asking = segments if stream.query_positions is None else torch.cat([segments,
                                                                        segments.gather(1, stream.query_positions)], 1)
    return (asking[:, :, None] != keys[:, None, :])[:, None]


def cross_attention_mask(stream: Stream) -> CompiledMask:
    """Which positions of a text another part may attend to: all but padding."""
    padding_rule = next((rule for rule in stream.attention_mask.rules() if isinstance(rule, PaddingRule)),
                        Bidirectional())
    return padding_rule.compile(stream.length, stream.length, stream.device)

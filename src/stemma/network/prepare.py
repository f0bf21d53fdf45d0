"""What holds for all layers of a forward pass: attention masks, distances, rotations, positions, and what was kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stemma.network.body import StackInput
from stemma.network.rotary import Rotation
from stemma.network.state import Across, Cache, Memory, State
from stemma.network.streams import Context, Stream
from stemma.schema.network import NetworkSettings
from stemma.visibility import Full, Mask, Others, Padded, Visibility, Window

if TYPE_CHECKING:
    from stemma.network.network import Network


def prepare(network: Network, stream: Stream, state: State | None, across: Across | None) -> StackInput:
    """Once for all layers of a part: what each position attends to, and how far away that is."""
    memory = state if isinstance(state, Memory) else None
    cache = state if isinstance(state, Cache) else None
    settings, chosen, device = network.settings, network.settings.memory, stream.device
    batch, length = stream.batch, stream.length
    sees, blank, keep = stream.sees, 0, None
    if chosen is not None:
        reach = cache.limit if cache is not None and cache.limit is not None else \
            chosen.length if network.training else chosen.evaluation or chosen.length
        if chosen.same_length:
            sees = sees & Window(reach - 1, length)
        if chosen.start == "zeros":
            blank = reach
        if network.training:
            keep = None if stream.keep == 0 else (reach, length if stream.keep is None else stream.keep)
            if memory is None and blank:
                nothing = torch.zeros(batch, blank, settings.width, device=device)
                memory = Memory((nothing,) * settings.layers)
    kept = memory.length if memory is not None else cache.length or blank if cache is not None else 0
    keys = kept + length
    masks = [_mask(rule, stream, keys) for rule in _windows(settings, sees)]
    distances = None
    if network.distances is not None:
        distances = network.distances(length, keys, not sees.causal, device, stream.backward, stream.query)
    context = Context(masks[0], distances=distances, apart=_apart(settings, stream, kept), keep=stream.keep,
                      causal=sees.causal, real=stream.real())
    positions = stream.positions
    if positions is None and cache is not None and cache.length and chosen is None:
        positions = torch.arange(cache.length, cache.length + length, device=device)
    return StackInput(context, masks, length, keys, positions, _rotations(network, stream, positions), stream.wanted,
                      memory, keep, cache, blank if cache else 0, skips_filling=stream.skips_filling,
                      across=across, counted=stream.counted())


def _rotations(network: Network, stream: Stream, positions: Tensor | None) -> list[Rotation]:
    """What turns queries and keys in the layers, in turn; nothing where positions are not rotary."""
    if "rotation" not in network.settings.position.needs:
        return []
    if positions is None:
        positions = torch.arange(stream.length, device=stream.device)
    windows = network.settings.attention.windows or [0]
    made = {local: network.position.rotation(local, positions, stream.query)
            for local in {bool(window) for window in windows}}
    return [turn for window in windows if (turn := made[bool(window)]) is not None]


def _windows(settings: NetworkSettings, sees: Visibility) -> list[Visibility]:
    """The rules that the layers take in turn: a window lies behind a place, itself included, where text is read
    from one end, and on both sides of it otherwise."""
    windows = [Full() if not size else Window(size - 1, 0) if sees.causal else Window(size, size)
               for size in settings.attention.windows]
    return [sees & window for window in windows] or [sees]


def _mask(sees: Visibility, stream: Stream, keys: int) -> Mask:
    length, device = stream.length, stream.device
    mask = sees.compile(length, keys, device)
    if stream.query is None:
        return mask
    unseen = (sees & Others()).compile(length, keys, device).at(stream.query, keys)
    assert mask.dense is not None and unseen.dense is not None
    batch = len(stream.query)
    return Mask(dense=torch.cat([mask.dense.expand(batch, 1, length, keys), unseen.dense], 2))


def _apart(settings: NetworkSettings, stream: Stream, kept: int) -> Tensor | None:
    """(B, 1, Q, K) whether query and key belong to different segments; what was kept counts as segment 0."""
    if not settings.attention.segments or stream.segments is None:
        return None
    segments = stream.segments
    keys = torch.nn.functional.pad(segments, (kept, 0))
    asking = segments if stream.query is None else torch.cat([segments, segments.gather(1, stream.query)], 1)
    return (asking[:, :, None] != keys[:, None, :])[:, None]


def attended_from_outside(stream: Stream) -> Mask:
    """Which positions of a text another part may attend to: all but padding."""
    real = next((rule for rule in stream.sees.rules() if isinstance(rule, Padded)), Full())
    return real.compile(stream.length, stream.length, stream.device)

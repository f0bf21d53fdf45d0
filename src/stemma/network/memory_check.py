"""Whether a network fits into this machine at all, asked before anything is allocated."""

from __future__ import annotations

import os

import torch

from stemma import registry
from stemma.errors import UserError
from stemma.schema.network import NetworkSettings

BYTES_PER_PARAMETER = 4  # of a parameter


def min_parameters(settings: NetworkSettings, vocab_size: int) -> int:
    """At least so many: the embedding matrices, and the two maps of the feed-forward layers with attention's output."""
    embedding = vocab_size * min(settings.embedding.width or settings.width, settings.width)
    if settings.embedding.cutoffs:  # rare tokens have shorter vectors
        embedding = min(vocab_size, settings.embedding.cutoffs[0]) * settings.width
    positions = settings.position.num_parameters(settings.width)
    shared = settings.sharing in ("all", "feedforward") or settings.one_block is not None
    matrices: int = registry.get("feedforward", settings.transition).settings.matrices
    layer = matrices * settings.width * settings.feedforward
    layers = 1 if shared else settings.total_layers
    inputs = sum(one.parameters(settings.width, vocab_size) for one in settings.inputs.values())
    return embedding + positions + inputs + layers * layer


def check_memory(settings: NetworkSettings, vocab_size: int) -> None:
    """Refuse a network whose parameters alone are more than the machine's memory: it would be killed, not told."""
    if torch.empty(0).device.type != "cpu":  # a network that is only counted (meta), or one for another memory
        return
    needed, there = BYTES_PER_PARAMETER * min_parameters(settings, vocab_size), total_memory()
    if there and needed > there:
        raise UserError(f"the network's parameters alone take {needed / 1e9:,.0f} GB, and this machine has "
                        f"{there / 1e9:,.0f} GB of memory; make it smaller: network.width is {settings.width:,}, "
                        f"network.layers {settings.layers:,}, network.feedforward {settings.feedforward:,}, the "
                        f"vocabulary {vocab_size:,}.")


def total_memory() -> int:
    """Of this machine, in bytes; 0 where it is not known."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0

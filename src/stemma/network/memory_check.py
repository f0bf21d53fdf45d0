"""Checks that a network fits into memory, before anything is allocated."""

from __future__ import annotations

import os

import torch

from stemma import registry
from stemma.errors import UserError
from stemma.schema.network import NetworkSettings

BYTES_PER_PARAMETER = 4  # fp32


def min_parameters(settings: NetworkSettings, vocab_size: int) -> int:
    """A lower bound of the number of parameters: embeddings, inputs and feed-forward layers."""
    embedding = vocab_size * min(settings.embedding.width or settings.width, settings.width)
    if settings.embedding.cutoffs:  # rare tokens have smaller embeddings
        embedding = min(vocab_size, settings.embedding.cutoffs[0]) * settings.width
    positions = settings.position.num_parameters(settings.width)
    shared = settings.sharing in ("all", "feedforward") or settings.one_block is not None
    matrices: int = registry.get("feedforward", settings.transition).settings.matrices
    layer = matrices * settings.width * settings.feedforward
    layers = 1 if shared else settings.total_layers
    inputs = sum(input_settings.num_parameters(settings.width, vocab_size)
                 for input_settings in settings.inputs.values())
    bodies = sum(part.body.num_parameters(settings, part.layers) for part in settings.parts().values())
    return embedding + positions + inputs + layers * layer + bodies


def check_memory(settings: NetworkSettings, vocab_size: int) -> None:
    """Refuse a network whose parameters alone exceed the memory: the system would kill the process."""
    if torch.empty(0).device.type != "cpu":  # meta tensors, or another device
        return
    needed, available = BYTES_PER_PARAMETER * min_parameters(settings, vocab_size), total_memory()
    if available and needed > available:
        raise UserError(f"the network's parameters alone take {needed / 1e9:,.0f} GB, and this machine has "
                        f"{available / 1e9:,.0f} GB of memory; make it smaller: network.width is {settings.width:,}, "
                        f"network.layers {settings.layers:,}, network.feedforward {settings.feedforward:,}, the "
                        f"vocabulary {vocab_size:,}.")


def total_memory() -> int:
    """Memory of this machine in bytes; 0 if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0

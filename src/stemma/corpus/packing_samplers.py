"""Selects the sampler of a packing: shuffled rows, batches of rows of similar length, or the packing's own sampler."""

from __future__ import annotations

from stemma import registry
from stemma.corpus.bucket_sampler import BucketSampler
from stemma.corpus.sampler import RowSampler, RowSamplerProtocol
from stemma.schema.corpus import packing_settings


def sampler_class(kind: str) -> type[RowSamplerProtocol]:
    """A packing whose rows continue from batch to batch is registered as a sampler class; the others are registered as
    functions that cut documents into rows."""
    settings = packing_settings(kind)
    if settings.contiguous:
        sampler: type[RowSamplerProtocol] = registry.get("packing", kind).build
        return sampler
    return BucketSampler if settings.bucketed else RowSampler

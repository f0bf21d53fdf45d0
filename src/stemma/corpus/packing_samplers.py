"""The feed of a packing: rows in random order, batches of rows of similar length, or the packing's own."""

from __future__ import annotations

from stemma import registry
from stemma.corpus.bucket_sampler import BucketSampler
from stemma.corpus.sampler import RowSampler, RowSamplerProtocol
from stemma.schema.corpus import packing_settings


def sampler_class(kind: str) -> type[RowSamplerProtocol]:
    """A packing whose rows go on from batch to batch is registered as the class of its feed; the others as a function
    that cuts documents into rows."""
    facts = packing_settings(kind)
    if facts.contiguous:
        own: type[RowSamplerProtocol] = registry.get("packing", kind).build
        return own
    return BucketSampler if facts.bucketed else RowSampler

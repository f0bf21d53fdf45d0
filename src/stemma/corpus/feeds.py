"""The feed of a packing: rows in random order, batches of rows of similar length, or the packing's own."""

from __future__ import annotations

from stemma import registry
from stemma.corpus.buckets import BucketFeed
from stemma.corpus.feed import AnyFeed, Feed
from stemma.schema.corpus import packing_of


def feed_of(kind: str) -> type[AnyFeed]:
    """A packing whose rows go on from batch to batch is registered as the class of its feed; the others as a function
    that cuts documents into rows."""
    facts = packing_of(kind)
    if facts.contiguous:
        own: type[AnyFeed] = registry.get("packing", kind).build
        return own
    return BucketFeed if facts.bucketed else Feed

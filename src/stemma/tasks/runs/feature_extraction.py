"""Fine-tuning that leaves the network as it is and learns to read its layers (`network/feature_head.py`)."""

from __future__ import annotations

from typing import Any

from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import UserError, did_you_mean
from stemma.network.feature_head import FeatureHead
from stemma.schema.network import NetworkSettings
from stemma.tasks.kinds import example_kinds, head_task

LAYERS = ("all", "last4", "concat4", "last", "before-last", "embedding")  # those of BERT's table 7
# What reads the features starts from nothing, and bears a higher rate than a network that is only to be adapted.
FROZEN_RECIPE: dict[str, Any] = {"training.frozen": "all", "training.learning_rate": 1e-3}


def feature_head(network: NetworkSettings, kind: str, classes: int, layers: str, stack: str = ENCODER) -> FeatureHead:
    """The head for a task of this kind; refuses what cannot be."""
    read = head_task(kind).feature_level
    if read is None:
        able = [name for name in example_kinds() if head_task(name).feature_level]
        raise UserError(f"--features is for {', '.join(able)}, not for {kind}; leave it out.")
    if layers not in LAYERS:
        raise UserError(f'--layers is "{layers}"; choose {", ".join(LAYERS[:-1])} or {LAYERS[-1]}.'
                        f'{did_you_mean(layers, LAYERS)}')
    if network.depth.shares_one_block:
        raise UserError("--features mixes layers, and a network of recurrent depth has a single one; leave it out.")
    height = network.decoder.layers if stack == DECODER and network.decoder is not None else network.layers
    few = min(4, height)
    counts = {"all": height + 1, "last4": few, "concat4": few}
    above = {"before-last": 1, "embedding": height}
    return FeatureHead(classes, counts.get(layers, 1), each=read == "token", above=above.get(layers, 0),
                       joined=layers == "concat4")

"""Training with a BiLSTM on a mix of the network's layers (`network/feature_head.py`). Feature-based training freezes
the network; otherwise it learns too."""

from __future__ import annotations

import logging
from typing import Any

from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import UserError, did_you_mean
from stemma.network.feature_head import FeatureHead, bottom_width
from stemma.schema.network import NetworkSettings
from stemma.tasks.kinds import example_kinds, head_task

logger = logging.getLogger(__name__)

LAYERS = ("all", "last4", "concat4", "last", "before-last", "embedding", "embedding+last")  # BERT's table 7; CoVe
# The head starts from random weights, so it needs a higher learning rate than a pre-trained network.
FROZEN_RECIPE: dict[str, Any] = {"training.frozen": "all", "training.learning_rate": 1e-3}


def feature_head(network: NetworkSettings, kind: str, classes: int, layers: str, stack: str = ENCODER) -> FeatureHead:
    """The feature head for a task kind; raises an error if unsupported."""
    level = head_task(kind).feature_level
    if level is None:
        supported = [name for name in example_kinds() if head_task(name).feature_level]
        raise UserError(f"--features and --layers are for {', '.join(supported)}, not for {kind}; leave it out.")
    if layers not in LAYERS:
        raise UserError(f'--layers is "{layers}"; choose {", ".join(LAYERS[:-1])} or {LAYERS[-1]}.'
                        f'{did_you_mean(layers, LAYERS)}')
    if network.depth.shares_one_block:
        raise UserError("--features and --layers mix layers, and a network of recurrent depth has a single one; leave "
                        "them out.")
    if layers == "embedding+last":
        return FeatureHead(classes, 2, each=level == "token", ends=True)
    num_layers = network.decoder.layers if stack == DECODER and network.decoder is not None else network.layers
    bottom = bottom_width(network)
    if layers in ("all", "embedding") and bottom != network.width:
        if layers == "all":
            logger.info(f"the embedding is {bottom} wide and the layers are {network.width}: there is no sum of both, "
                        "so the embedding and the last layer are concatenated (--layers embedding+last).")
            return feature_head(network, kind, classes, "embedding+last", stack)
        raise UserError(f"--layers embedding: the head is as wide as the layers ({network.width}) and the embedding is "
                        f"{bottom} wide; choose --layers embedding+last.")
    top = min(4, num_layers)
    counts = {"all": num_layers + 1, "last4": top, "concat4": top}
    above = {"before-last": 1, "embedding": num_layers}
    return FeatureHead(classes, counts.get(layers, 1), each=level == "token", above=above.get(layers, 0),
                       joined=layers == "concat4")

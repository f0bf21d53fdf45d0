"""Whether rows are mostly padding, as they are where documents are short and each begins a row of its own; and which
key fills them."""

from __future__ import annotations

import numpy as np

from stemma.training.pretrain_loader import PretrainLoader


def padding_warning(loader: PretrainLoader) -> str | None:
    """What to tell where rows are less than half full, judged by a batch of each kind."""
    length = loader.settings.sequence_length
    for group in loader.groups:
        if group.is_seq2seq or not group.packing_settings.filled or not loader.has_text(group):
            continue
        lengths = loader.sample_draft(group, length).lengths
        if 2 * lengths.mean() >= length:
            continue
        own = next((objective.name for objective in group.objectives if objective.settings.packing), None)
        paired = any(objective.labels_rows for objective in group.objectives)
        ways = [] if paired or group.packing == "full_sentences" else \
            [f"{'corpus' if own is None else f'objective.{own}'}.packing=full_sentences, which fills rows with "
             "sentences of several documents"]
        shorter = -(-int(np.quantile(lengths, 0.95)) // 8) * 8
        ways += [f"corpus.sequence_length={shorter}"] if shorter < length else []
        if ways:
            return (f"rows are mostly padding: {lengths.mean():.0f} tokens on average where "
                    f"corpus.sequence_length = {length}, about {loader.batch_rows_at(length) * lengths.mean():,.0f} tokens a "
                    f"step. Set {', or '.join(ways)}.")
    return None

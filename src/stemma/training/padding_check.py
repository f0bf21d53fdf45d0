"""Warn if rows are mostly padding, as with short documents that each start a new row."""

from __future__ import annotations

import numpy as np

from stemma.training.pretrain_loader import PretrainLoader


def padding_warning(loader: PretrainLoader) -> str | None:
    """A warning with advice if rows are less than half full in a sample batch of some group; otherwise None."""
    length = loader.settings.sequence_length
    for group in loader.groups:
        if group.is_seq2seq or not group.packing_settings.filled or not loader.has_text(group):
            continue
        lengths = loader.sample_draft(group, length).lengths
        if 2 * lengths.mean() >= length:
            continue
        name = next((objective.name for objective in group.objectives if objective.settings.packing), None)
        paired = any(objective.labels_rows for objective in group.objectives)
        advice = [] if paired or group.packing == "full_sentences" else \
            [f"{'corpus' if name is None else f'objective.{name}'}.packing=full_sentences, which fills rows with "
             "sentences of several documents"]
        shorter = -(-int(np.quantile(lengths, 0.95)) // 8) * 8
        advice += [f"corpus.sequence_length={shorter}"] if shorter < length else []
        if advice:
            return (f"rows are mostly padding: {lengths.mean():.0f} tokens on average where "
                    f"corpus.sequence_length = {length}, about "
                    f"{loader.batch_rows_at(length) * lengths.mean():,.0f} tokens a step. Set {', or '.join(advice)}.")
    return None

"""Fine-tuning settings, independent of the pre-training settings.

A fine-tuning run turns these values into its `[training]` section; `training.KEY=VALUE` on the command line overrides
them. The defaults are BERT's (arXiv:1810.04805, appendix A.3, and its released code).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stemma import registry
from stemma.schema.base import BelowOne, Count, Natural, Positive, Settings, integer_or
from stemma.schema.training import AnyOptimizer, AnySchedule, Decay


def _default_kind(slot: str, **keys: Any) -> Any:
    """Default of a slot, looked up when needed."""
    return Field(default_factory=lambda: registry.parse_settings(slot, keys))


class FinetuningSettings(Settings):
    size_keys = ("learning_rate", "width", "epochs", "warmup", "layer_decay")
    later_keys = ("style", "crf")

    optimizer: AnyOptimizer = _default_kind("optimizer", kind="adamw", epsilon=1e-6)
    learning_rate: Positive = 5e-5  # for a network of this `width`;
    width: Count = 768  # the learning rate is inversely proportional to the width
    schedule: AnySchedule = _default_kind("schedule", kind="linear")
    epochs: Positive = 3.0
    warmup: BelowOne = 0.1  # fraction of the steps
    clip_norm: Positive | None = None
    layer_decay: Decay | None = None  # as in [training]
    layer_decay_top: Count | None = None
    style: Literal["plain", "gpt"] = "plain"  # format of a task's inputs; gpt: as in the GPT paper (2018)
    # Gradual unfreezing, as in [training]: epoch unfreezes one more layer every epoch.
    unfreeze: Annotated[int | Literal["epoch"], integer_or("epoch", 1)] | None = None
    # Hidden state for sequence classification, the mean of all, or ULMFiT's head over the last, the maximum and the
    # mean (concat); None: as the family's own class.
    pooling: Literal["first", "last", "mean", "concat"] | None = None
    crf: bool = False  # `tag` predicts the tags of a sentence as one sequence (network/crf.py); others ignore it
    # Part of an encoder-decoder whose output the head uses: the decoder, which gets the same text again (BART,
    # arXiv:1910.13461, section 3), or the encoder alone; None: as the family's own class, otherwise the decoder.
    stack: Literal["encoder", "decoder"] | None = None
    # Question answering splits a context that is too long into windows:
    stride: Count = 128  # tokens from the start of one window to the next (BERT's doc_stride)
    overlap: Natural | None = None  # or tokens shared by two windows (the `stride` of Hugging Face tokenizers)

    def learning_rate_for(self, width: int) -> float:
        """Learning rate for a network of this width."""
        return float(f"{self.learning_rate * self.width / width:.3g}")


def default_finetuning() -> FinetuningSettings:
    """Settings of a recipe without a [finetuning] section."""
    return FinetuningSettings(clip_norm=1.0)

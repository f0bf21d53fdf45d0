"""How a pre-trained network is fine-tuned, whatever it was pre-trained with.

A fine-tune turns these values into its `[training]` section; what is typed as `training.KEY=VALUE` wins. The defaults
are BERT's (arXiv:1810.04805, appendix A.3, and its released code).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from stemma import registry
from stemma.schema.base import BelowOne, Count, Natural, Positive, Settings
from stemma.schema.training import AnyOptimizer, AnySchedule, Decay


def _default_kind(slot: str, **keys: Any) -> Any:
    """A default of a slot: looked up when it is needed."""
    return Field(default_factory=lambda: registry.parse_settings(slot, keys))


class FinetuningSettings(Settings):
    size_keys = ("learning_rate", "width", "epochs", "warmup", "layer_decay")
    later_keys = ("style",)

    optimizer: AnyOptimizer = _default_kind("optimizer", kind="adamw", epsilon=1e-6)
    learning_rate: Positive = 5e-5  # of a network of this `width`:
    width: Count = 768  # narrower networks take more, wider ones less, in proportion
    schedule: AnySchedule = _default_kind("schedule", kind="linear")
    epochs: Positive = 3.0
    warmup: BelowOne = 0.1  # share of the steps
    clip_norm: Positive | None = None
    layer_decay: Decay | None = None  # as in [training]
    layer_decay_top: Count | None = None
    style: Literal["plain", "gpt"] = "plain"  # how a task is put to the model: gpt as the paper of 2018 does it
    pooling: Literal["first", "last", "mean"] | None = None  # which hidden state judges a whole text, or the mean of
    #                                                          all; None: the one that the family's own class takes
    # which stack of an encoder-decoder answers: a decoder that reads the same text again (BART, arXiv:1910.13461,
    # section 3), or the encoder alone; None: as the family's own classes have it, and otherwise the decoder
    stack: Literal["encoder", "decoder"] | None = None
    # a text that is too long for a question's row is read in windows:
    stride: Count = 128  # tokens from the start of one to the start of the next (BERT's doc_stride)
    overlap: Natural | None = None  # or tokens that two of them share (the `stride` of Hugging Face tokenizers)

    def learning_rate_for(self, width: int) -> float:
        """The learning rate of a network of this width."""
        return float(f"{self.learning_rate * self.width / width:.3g}")


def default_finetuning() -> FinetuningSettings:
    """Of a recipe that has no such section."""
    return FinetuningSettings(clip_norm=1.0)

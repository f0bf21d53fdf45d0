"""All that the author of a plug-in needs, under one roof:

    from stemma.extend import Objective, Settings, register

docs/extending.md shows a plug-in of each kind. A name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "VOCABULARY", "AttentionSettings", "Batch", "Body", "BodySettings", "ClassHead", "Context", "Count", "DecoderTask",
    "DecoderTaskSettings", "Draft", "Draw", "Family", "FeedForwardKind", "FullAttention", "FusionKind", "Hidden",
    "InputSettings", "Linear", "LookupEmbedding", "Natural", "Needs", "Network", "NetworkSettings", "NextToken",
    "NormKind", "Objective", "ObjectiveSettings", "OptimizerSettings", "PackingSettings", "Passage", "Pieces",
    "PlaceClassifier", "Point", "Pooler", "Position", "PositionSettings", "Positive", "Probability", "Randomness",
    "ReaderKind", "ReaderOptions", "RowClassifier", "ScheduleSettings", "Scored", "Settings", "Share", "Stack",
    "StackInput", "StackOutput", "TokenHead", "UserError", "Writing", "choose_tokens", "choose_units", "draw_of",
    "output_draw", "register", "replaced", "whole_document"]

_HOMES = {
    "register": "stemma.registry", "UserError": "stemma.errors",
    **dict.fromkeys(("Settings", "Count", "Natural", "Positive", "Probability", "Share"), "stemma.schema.base"),
    **dict.fromkeys(("ObjectiveSettings", "Writing"), "stemma.schema.task"),
    **dict.fromkeys(("OptimizerSettings", "ScheduleSettings"), "stemma.schema.training"),
    **dict.fromkeys(("Objective", "Needs", "Scored", "VOCABULARY"), "stemma.objectives.base"),
    **dict.fromkeys(("AttentionSettings", "BodySettings", "FeedForwardKind", "FusionKind", "InputSettings", "NormKind",
                     "PositionSettings"), "stemma.schema.parts"),
    "NetworkSettings": "stemma.schema.network", "Position": "stemma.network.positions",
    "FullAttention": "stemma.network.attention.full",
    **dict.fromkeys(("Draw", "Linear", "LookupEmbedding", "draw_of", "output_draw"), "stemma.network.initialization"),
    **dict.fromkeys(("Body", "StackInput", "StackOutput"), "stemma.network.body"), "Stack": "stemma.network.stack",
    "NextToken": "stemma.objectives.causal_lm",
    **dict.fromkeys(("RowClassifier", "PlaceClassifier"), "stemma.objectives.classifiers"),
    **dict.fromkeys(("DecoderTask", "DecoderTaskSettings"), "stemma.objectives.seq2seq"),
    **dict.fromkeys(("choose_tokens", "choose_units", "replaced"), "stemma.objectives.masking"),
    "Batch": "stemma.objectives.batch", "Draft": "stemma.corpus.draft", "Randomness": "stemma.corpus.randomness",
    **dict.fromkeys(("TokenHead", "ClassHead", "Pooler"), "stemma.network.heads"),
    "Network": "stemma.network.network", **dict.fromkeys(("Context", "Hidden"), "stemma.network.streams"),
    "Point": "stemma.training.schedules", "PackingSettings": "stemma.schema.corpus", "Pieces": "stemma.corpus.pieces",
    "Family": "stemma.exchange.table", "ReaderKind": "stemma.schema.corpus",
    **dict.fromkeys(("Passage", "ReaderOptions", "whole_document"), "stemma.text.readers"),
}

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.pieces import Pieces
    from stemma.corpus.randomness import Randomness
    from stemma.errors import UserError
    from stemma.exchange.table import Family
    from stemma.network.attention.full import FullAttention
    from stemma.network.body import Body, StackInput, StackOutput
    from stemma.network.heads import ClassHead, Pooler, TokenHead
    from stemma.network.initialization import Draw, Linear, LookupEmbedding, draw_of, output_draw
    from stemma.network.network import Network
    from stemma.network.positions import Position
    from stemma.network.stack import Stack
    from stemma.network.streams import Context, Hidden
    from stemma.objectives.base import VOCABULARY, Needs, Objective, Scored
    from stemma.objectives.batch import Batch
    from stemma.objectives.causal_lm import NextToken
    from stemma.objectives.classifiers import PlaceClassifier, RowClassifier
    from stemma.objectives.masking import choose_tokens, choose_units, replaced
    from stemma.objectives.seq2seq import DecoderTask, DecoderTaskSettings
    from stemma.registry import register
    from stemma.schema.base import Count, Natural, Positive, Probability, Settings, Share
    from stemma.schema.corpus import PackingSettings, ReaderKind
    from stemma.schema.network import NetworkSettings
    from stemma.schema.parts import (
        AttentionSettings,
        BodySettings,
        FeedForwardKind,
        FusionKind,
        InputSettings,
        NormKind,
        PositionSettings,
    )
    from stemma.schema.task import ObjectiveSettings, Writing
    from stemma.schema.training import OptimizerSettings, ScheduleSettings
    from stemma.text.readers import Passage, ReaderOptions, whole_document
    from stemma.training.schedules import Point


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from stemma.errors import did_you_mean

        raise AttributeError(f"module 'stemma.extend' has no attribute {name!r}.{did_you_mean(name, __all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

"""All that the author of a plug-in needs, under one roof:

    from stemma.extend import Objective, Settings, register

docs/how-to/extending.md shows a plug-in of each kind. A name is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "VOCABULARY", "AttentionSettings", "Batch", "Body", "BodySettings", "Callback", "CallbackSettings", "Card",
    "ClassHead", "ClassTask", "Context", "Count", "DecoderTask", "DecoderTaskSettings", "Draft", "Draw", "Example",
    "Family", "FeedForwardKind", "FullAttention", "FusionKind", "HeadTask", "Hidden", "InputSettings", "Item",
    "Learner", "Learnt", "Linear", "LookupEmbedding", "Method", "MethodSettings", "MethodSetup", "Metric",
    "Natural", "Needs", "Network", "NetworkSettings", "NextToken", "NormKind", "Objective", "ObjectiveSettings",
    "OptimizerSettings", "PackingSettings", "Passage", "Pieces", "PlaceClassifier", "Point", "Pooler", "Position",
    "PositionSettings", "Positive", "Probability", "Problems", "Randomness", "ReaderKind", "ReaderOptions",
    "Reading", "ReportTable", "Row", "RowClassifier", "RowLayout", "ScheduleSettings", "Scored", "Settings",
    "Share", "Stack", "StackInput", "StackOutput", "Target", "TaskKind", "TaskValues", "TextExample", "TextTask",
    "TokenHead", "UserError", "Writing", "averaged", "choose_tokens", "choose_units", "draw_of", "output_draw",
    "register", "replaced", "share", "summed", "whole_document", "windows"]

_HOMES = {
    "register": "stemma.registry", "UserError": "stemma.errors",
    **dict.fromkeys(("Settings", "Count", "Natural", "Positive", "Probability", "Share"), "stemma.schema.base"),
    **dict.fromkeys(("ObjectiveSettings", "Writing"), "stemma.schema.task"),
    **dict.fromkeys(("CallbackSettings", "MethodSettings", "OptimizerSettings", "ScheduleSettings"),
                    "stemma.schema.training"),
    "Callback": "stemma.training.callbacks",
    **dict.fromkeys(("Learnt", "Method", "MethodSetup"), "stemma.training.method"),
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
    **dict.fromkeys(("HeadTask", "ReportTable", "TaskKind"), "stemma.tasks.kinds.base"),
    **dict.fromkeys(("ClassTask", "TextTask"), "stemma.tasks.kinds.texts"),
    **dict.fromkeys(("Example", "TextExample"), "stemma.tasks.data.examples"),
    **dict.fromkeys(("Item", "Learner"), "stemma.tasks.learner"),
    **dict.fromkeys(("Row", "RowLayout"), "stemma.tasks.layout"),
    **dict.fromkeys(("Problems", "Reading"), "stemma.tasks.data.reading"),
    **dict.fromkeys(("Metric", "averaged", "share", "summed"), "stemma.tasks.metrics.metric"),
    "TaskValues": "stemma.schema.task_values", "Card": "stemma.exchange.cards", "windows": "stemma.tasks.windows",
    **dict.fromkeys(("Batch", "Target"), "stemma.objectives.batch"),
    "Draft": "stemma.corpus.draft", "Randomness": "stemma.corpus.randomness",
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
    from stemma.exchange.cards import Card
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
    from stemma.objectives.batch import Batch, Target
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
    from stemma.schema.task_values import TaskValues
    from stemma.schema.training import CallbackSettings, MethodSettings, OptimizerSettings, ScheduleSettings
    from stemma.tasks.data.examples import Example, TextExample
    from stemma.tasks.data.reading import Problems, Reading
    from stemma.tasks.kinds.base import HeadTask, ReportTable, TaskKind
    from stemma.tasks.kinds.texts import ClassTask, TextTask
    from stemma.tasks.layout import Row, RowLayout
    from stemma.tasks.learner import Item, Learner
    from stemma.tasks.metrics.metric import Metric, averaged, share, summed
    from stemma.tasks.windows import windows
    from stemma.text.readers import Passage, ReaderOptions, whole_document
    from stemma.training.callbacks import Callback
    from stemma.training.method import Learnt, Method, MethodSetup
    from stemma.training.schedules import Point


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        from stemma.errors import did_you_mean

        raise AttributeError(f"module 'stemma.extend' has no attribute {name!r}.{did_you_mean(name, __all__)}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)

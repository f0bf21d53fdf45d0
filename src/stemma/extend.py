"""Everything that a plug-in imports:

    from stemma.extend import Objective, Settings, register

docs/how-to/extending.md has a plug-in of each kind. A name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "LM_HEAD", "RNG", "AttentionSettings", "Batch", "Body", "BodySettings", "Callback", "CallbackSettings",
    "ClassHead", "ClassificationTask", "Count", "Draft", "EncodedExample", "EncodedSequence", "ErrorCollector",
    "Example", "Family", "FeedForwardKind", "FileReader", "FusionKind", "GenerationCapability", "HeadTask",
    "Initializer", "InputEncoder", "InputSettings", "LMHeadSpec", "LayerContext", "Linear", "LookupEmbedding",
    "LossOutput", "Method", "MethodSettings", "MethodSetup", "Metric", "Natural", "Network", "NetworkOutput",
    "NetworkSettings", "NextTokenObjective", "NormKind", "Objective", "ObjectiveSettings", "OpenFraction",
    "OptimizerSettings", "PackingSettings", "Passage", "Pooler", "PositionScheme", "PositionSettings", "Positive",
    "Probability", "ReaderKind", "ReaderOptions", "ReportTable", "Requirements", "RowClassification", "RowSpans",
    "SchedulePoint", "ScheduleSettings", "SelfAttention", "Seq2SeqObjective", "Seq2SeqObjectiveSettings", "Settings",
    "Stack", "StackInput", "StackOutput", "StepMetrics", "Target", "TaskConfig", "TaskKind", "TaskObjective",
    "TaskOptions", "TextExample", "TextTask", "TokenClassification", "UserError", "choose_tokens", "choose_units",
    "default_initializer", "mean_metric", "output_initializer", "ratio_metric", "register", "replace_tokens",
    "safe_divide", "split_windows", "whole_document",
]

_MODULES = {
    "register": "stemma.registry", "UserError": "stemma.errors",
    **dict.fromkeys(("Settings", "Count", "Natural", "Positive", "Probability", "OpenFraction"), "stemma.schema.base"),
    **dict.fromkeys(("ObjectiveSettings", "GenerationCapability"), "stemma.schema.objective"),
    **dict.fromkeys(("CallbackSettings", "MethodSettings", "OptimizerSettings", "ScheduleSettings"),
                    "stemma.schema.training"),
    "Callback": "stemma.training.callbacks",
    **dict.fromkeys(("StepMetrics", "Method", "MethodSetup"), "stemma.training.method"),
    **dict.fromkeys(("Objective", "Requirements", "LossOutput", "LM_HEAD"), "stemma.objectives.base"),
    **dict.fromkeys(("AttentionSettings", "BodySettings", "FeedForwardKind", "FusionKind", "InputSettings", "NormKind",
                     "PositionSettings"), "stemma.schema.parts"),
    "NetworkSettings": "stemma.schema.network", "PositionScheme": "stemma.network.position_kinds",
    "SelfAttention": "stemma.network.attention.self_attention",
    **dict.fromkeys(("Initializer", "Linear", "LookupEmbedding", "default_initializer", "output_initializer"),
                    "stemma.network.initialization"),
    **dict.fromkeys(("Body", "StackInput", "StackOutput"), "stemma.network.body"), "Stack": "stemma.network.stack",
    "NextTokenObjective": "stemma.objectives.causal_lm",
    **dict.fromkeys(("RowClassification", "TokenClassification"), "stemma.objectives.classifiers"),
    **dict.fromkeys(("Seq2SeqObjective", "Seq2SeqObjectiveSettings"), "stemma.objectives.seq2seq"),
    **dict.fromkeys(("choose_tokens", "choose_units", "replace_tokens"), "stemma.objectives.masking"),
    **dict.fromkeys(("HeadTask", "ReportTable", "TaskKind"), "stemma.tasks.kinds.base"),
    **dict.fromkeys(("ClassificationTask", "TextTask"), "stemma.tasks.kinds.texts"),
    **dict.fromkeys(("Example", "TextExample"), "stemma.tasks.data.examples"),
    **dict.fromkeys(("EncodedExample", "TaskObjective"), "stemma.tasks.objectives.base"),
    **dict.fromkeys(("EncodedSequence", "InputEncoder"), "stemma.tasks.objectives.input_encoder"),
    **dict.fromkeys(("ErrorCollector", "FileReader"), "stemma.tasks.data.file_reader"),
    **dict.fromkeys(("Metric", "mean_metric", "safe_divide", "ratio_metric"), "stemma.tasks.metrics.metric"),
    "TaskOptions": "stemma.schema.task_options", "TaskConfig": "stemma.task_config",
    "split_windows": "stemma.tasks.objectives.sliding_windows",
    **dict.fromkeys(("Batch", "Target"), "stemma.objectives.batch"),
    "Draft": "stemma.corpus.draft", "RNG": "stemma.corpus.rng",
    **dict.fromkeys(("LMHeadSpec", "ClassHead", "Pooler"), "stemma.network.heads"),
    "Network": "stemma.network.network", **dict.fromkeys(("LayerContext", "NetworkOutput"),
                                                         "stemma.network.inputs_outputs"),
    "SchedulePoint": "stemma.training.schedules", "PackingSettings": "stemma.schema.corpus",
    "RowSpans": "stemma.corpus.row_spans",
    "Family": "stemma.exchange.family", "ReaderKind": "stemma.schema.corpus",
    **dict.fromkeys(("Passage", "ReaderOptions", "whole_document"), "stemma.text.readers"),
}

if TYPE_CHECKING:
    from stemma.corpus.draft import Draft
    from stemma.corpus.rng import RNG
    from stemma.corpus.row_spans import RowSpans
    from stemma.errors import UserError
    from stemma.exchange.family import Family
    from stemma.network.attention.self_attention import SelfAttention
    from stemma.network.body import Body, StackInput, StackOutput
    from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
    from stemma.network.initialization import (
        Initializer,
        Linear,
        LookupEmbedding,
        default_initializer,
        output_initializer,
    )
    from stemma.network.inputs_outputs import LayerContext, NetworkOutput
    from stemma.network.network import Network
    from stemma.network.position_kinds import PositionScheme
    from stemma.network.stack import Stack
    from stemma.objectives.base import LM_HEAD, LossOutput, Objective, Requirements
    from stemma.objectives.batch import Batch, Target
    from stemma.objectives.causal_lm import NextTokenObjective
    from stemma.objectives.classifiers import RowClassification, TokenClassification
    from stemma.objectives.masking import choose_tokens, choose_units, replace_tokens
    from stemma.objectives.seq2seq import Seq2SeqObjective, Seq2SeqObjectiveSettings
    from stemma.registry import register
    from stemma.schema.base import Count, Natural, OpenFraction, Positive, Probability, Settings
    from stemma.schema.corpus import PackingSettings, ReaderKind
    from stemma.schema.network import NetworkSettings
    from stemma.schema.objective import GenerationCapability, ObjectiveSettings
    from stemma.schema.parts import (
        AttentionSettings,
        BodySettings,
        FeedForwardKind,
        FusionKind,
        InputSettings,
        NormKind,
        PositionSettings,
    )
    from stemma.schema.task_options import TaskOptions
    from stemma.schema.training import CallbackSettings, MethodSettings, OptimizerSettings, ScheduleSettings
    from stemma.task_config import TaskConfig
    from stemma.tasks.data.examples import Example, TextExample
    from stemma.tasks.data.file_reader import ErrorCollector, FileReader
    from stemma.tasks.kinds.base import HeadTask, ReportTable, TaskKind
    from stemma.tasks.kinds.texts import ClassificationTask, TextTask
    from stemma.tasks.metrics.metric import Metric, mean_metric, ratio_metric, safe_divide
    from stemma.tasks.objectives.base import EncodedExample, TaskObjective
    from stemma.tasks.objectives.input_encoder import EncodedSequence, InputEncoder
    from stemma.tasks.objectives.sliding_windows import split_windows
    from stemma.text.readers import Passage, ReaderOptions, whole_document
    from stemma.training.callbacks import Callback
    from stemma.training.method import Method, MethodSetup, StepMetrics
    from stemma.training.schedules import SchedulePoint


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        from stemma.errors import did_you_mean

        raise AttributeError(f"module 'stemma.extend' has no attribute {name!r}.{did_you_mean(name, __all__)}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)

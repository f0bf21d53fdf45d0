"""Registry of exchangeable parts, both built-in parts and parts from plug-ins.

A part is registered with its settings class, which also has the properties that other modules need (limits, supported
features, keys that a size may set):

    @register("attention", "full", FullAttentionSettings)
    def full_attention(network: NetworkSettings) -> nn.Module: ...

A registered part is a class, or a function that builds the part, so that reading a recipe does not import torch.
BUILT_IN lists the modules of built-in parts; they are imported on first use. Other kinds come from installed packages
(entry-point group `stemma.plugins`) or from files that the user names (`plugins.py`).
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from stemma.errors import UserError, did_you_mean

ENTRY_POINTS = "stemma.plugins"
RegisteredPart = TypeVar("RegisteredPart", bound=Callable[..., Any])

# slot -> base class of the settings of its kinds; slots that are not listed have no settings
SETTINGS_BASES = {
    "position": "stemma.schema.parts:PositionSettings",
    "attention": "stemma.schema.parts:AttentionSettings",
    "feedforward": "stemma.schema.parts:FeedForwardKind",
    "norm": "stemma.schema.parts:NormKind",
    "body": "stemma.schema.parts:BodySettings",
    "input": "stemma.schema.parts:InputSettings",
    "fusion": "stemma.schema.parts:FusionKind",
    "optimizer": "stemma.schema.training:OptimizerSettings",
    "schedule": "stemma.schema.training:ScheduleSettings",
    "method": "stemma.schema.training:MethodSettings",
    "callback": "stemma.schema.training:CallbackSettings",
    "objective": "stemma.schema.objective:ObjectiveSettings",
    "packing": "stemma.schema.corpus:PackingSettings",
    "reader": "stemma.schema.corpus:ReaderKind",
    "task": "stemma.schema.task_options:TaskOptions",
}
_PACKERS = "stemma.corpus.packers"
_SENTENCE_SCORES = "stemma.evaluation.sentence_scores"
# slot -> kind -> module that registers it; kinds are listed in this order
BUILT_IN: dict[str, dict[str, str]] = {
    "position": dict.fromkeys(("learned", "sinusoidal", "relative_xl", "bucketed", "disentangled", "rotary", "none"),
                              "stemma.network.position_kinds"),
    "attention": {"full": "stemma.network.attention.kinds"},
    "feedforward": dict.fromkeys(("feedforward", "gated", "gated_norm", "convolution"), "stemma.network.kinds"),
    "norm": dict.fromkeys(("layer", "rms", "scale"), "stemma.network.kinds"),
    "body": {**dict.fromkeys(("stacked", "recurrent", "ngram", "neighbors", "static"), "stemma.network.kinds"),
             **dict.fromkeys(("lstm", "bilstm"), "stemma.network.lstm_kinds"), "window": "stemma.network.window_kinds",
             "attentional_lstm": "stemma.network.translator_kinds",
             **dict.fromkeys(("opposite_lstms", "context2vec"), "stemma.network.opposite_kinds")},
    "head": {"Pooler": "stemma.network.heads", "ClassHead": "stemma.network.heads",
             "SentenceHead": "stemma.network.task_heads", "SpanHead": "stemma.network.task_heads",
             "SanHead": "stemma.network.san_head", "FeatureHead": "stemma.network.feature_head",
             "ConcatPoolHead": "stemma.network.concat_pool_head",
             "TagTransitions": "stemma.network.crf"},
    "objective": {kind: f"stemma.objectives.{kind}" for kind in (
        "masked_lm", "next_sentence", "span_boundary", "word_structure", "replaced_token", "sentence_order",
        "sentence_reordering", "sentence_distance", "discourse_relation", "ir_relevance", "dialogue_lm",
        "capitalisation", "token_document_relation", "causal_lm", "prefix_lm", "permutation_lm", "translation",
        "monolingual_lm", "masked_span_to_span", "denoise", "span_corruption", "masked_diffusion", "bidirectional_lm",
        "context2vec", "word_context")},
    "input": {**dict.fromkeys(("tokens", "segments", "tasks"), "stemma.network.inputs.text"),
              **{kind: f"stemma.network.inputs.{kind}" for kind in ("vectors", "boxes", "characters", "entities")}},
    "fusion": dict.fromkeys(("sum", "gate"), "stemma.network.inputs.fusions"),
    "packing": {"segment_pair": _PACKERS, "sentence_pair": _PACKERS, "full_sentences": _PACKERS,
                "doc_sentences": _PACKERS, "stream": _PACKERS, "contiguous": "stemma.corpus.contiguous_sampler",
                "contiguous_both": "stemma.corpus.contiguous_sampler",
                "contiguous_pair": "stemma.corpus.contiguous_sampler", "sentence": _PACKERS, "parallel": _PACKERS,
                "dialogue": _PACKERS},
    "reader": dict.fromkeys((".txt", ".text", ".md", ".jsonl", ".ndjson", ".parquet"), "stemma.text.readers"),
    "task": {kind: f"stemma.tasks.kinds.{kind}" for kind in (
        "classify", "pair", "regress", "choice", "qa", "tag", "rank", "seq2seq")},
    "family": {"bert": "stemma.exchange.bert", "openai-gpt": "stemma.exchange.gpt", "gpt2": "stemma.exchange.gpt2",
               "transfo-xl": "stemma.exchange.transformer_xl", "xlnet": "stemma.exchange.xlnet",
               "t5": "stemma.exchange.t5", "bart": "stemma.exchange.bart", "roberta": "stemma.exchange.roberta",
               "albert": "stemma.exchange.albert", "distilbert": "stemma.exchange.distilbert",
               "electra": "stemma.exchange.electra", "ernie": "stemma.exchange.ernie",
               "modernbert": "stemma.exchange.modernbert", "modernbert-decoder": "stemma.exchange.modernbert",
               "nanochat": "stemma.exchange.nanochat"},
    "optimizer": dict.fromkeys(("adamw", "adam", "lamb", "adamax", "adafactor", "stable_adamw", "muon", "sgd",
                                "adagrad"),
                               "stemma.training.optimizers"),
    "schedule": dict.fromkeys(("linear", "noam", "cosine", "inverse_sqrt", "constant", "slanted_triangular",
                               "warmup_stable_decay", "exponential"), "stemma.training.schedules"),
    "method": {**dict.fromkeys(("gradient_descent", "kneser_ney", "neighbor_counts"), "stemma.training.method_kinds"),
               **dict.fromkeys(("word2vec", "glove"), "stemma.training.vector_method_kinds")},
    "callback": {},
    "sentence_score": {**dict.fromkeys(("causal", "after_first", "prefix"), f"{_SENTENCE_SCORES}.left_to_right"),
                       **dict.fromkeys(("masked", "permuted"), f"{_SENTENCE_SCORES}.pseudo_likelihood"),
                       "bound": f"{_SENTENCE_SCORES}.diffusion",
                       **dict.fromkeys(("infilling", "masked_span"), f"{_SENTENCE_SCORES}.encoder_decoder")},
}


@dataclass(frozen=True)
class RegistryEntry:
    """A registered part."""

    slot: str
    kind: str
    settings: Any  # settings class; None: the part has no settings
    build: Any  # class, or function that builds the part
    module: str  # module that registered it


_entries: dict[tuple[str, str], RegistryEntry] = {}
_lock = threading.RLock()
_entry_points_loaded = False
plugin_packages: dict[str, tuple[str, str]] = {}  # module -> name and version of its installed package


def register(slot: str, kind: str, settings: type[object] | None = None) -> Callable[[RegisteredPart], RegisteredPart]:
    """Register a part under a kind, which recipes can then name. The kind must be unused in its slot."""
    if slot not in BUILT_IN:
        raise UserError(f'there is no slot "{slot}" to register "{kind}" in.{did_you_mean(slot, BUILT_IN)} '
                        f"The slots are {', '.join(BUILT_IN)}.")

    def add(part: RegisteredPart) -> RegisteredPart:
        module = part.__module__
        owner = BUILT_IN[slot].get(kind, module)
        previous = _entries.get((slot, kind))
        if owner != module or previous is not None and previous.module != module:
            raise UserError(f'the {slot} "{kind}" is registered already, by '
                            f"{owner if previous is None else previous.module}; give the one in {module} another name.")
        _entries[slot, kind] = RegistryEntry(slot, kind, _with_kind(slot, kind, settings), part, module)
        return part

    return add


def settings_base(slot: str) -> type[Any] | None:
    """Base class of the settings of all kinds of a slot."""
    module, _, name = SETTINGS_BASES.get(slot, "").partition(":")
    return getattr(importlib.import_module(module), name) if name else None


def _with_kind(slot: str, kind: str, settings: type[Any] | None) -> type[Any] | None:
    """The settings class with the key `kind` and the keys of the slot's base class, added if they are missing. (Task
    options have no key `kind`.)"""
    base = settings_base(slot)
    if base is None:
        return settings
    if "kind" not in base.model_fields and (settings is None or issubclass(settings, base)):
        return base if settings is None else settings
    bases = (base,) if settings is None else (settings,) if issubclass(settings, base) else (settings, base)
    if settings is not None and bases == (settings,) and settings.model_fields["kind"].annotation == Literal[kind]:
        return settings
    original: Any = base if settings is None else settings
    keys = {"kind": Literal[kind]} if "kind" in base.model_fields else {}
    namespace = {"__module__": original.__module__, "__doc__": original.__doc__, "__annotations__": keys}
    with_kind: type[Any] = type(original)(original.__name__, bases, namespace)
    return with_kind


def find(slot: str, kind: str) -> RegistryEntry | None:
    """The part of this kind; None if there is none."""
    with _lock:
        if (slot, kind) not in _entries and kind in BUILT_IN[slot]:
            importlib.import_module(BUILT_IN[slot][kind])
        if (slot, kind) not in _entries:
            load_entry_points()
        return _entries.get((slot, kind))


def get(slot: str, kind: str) -> RegistryEntry:
    """The part of this kind; raises a UserError if there is none."""
    entry = find(slot, kind)
    if entry is None:
        raise UserError(f'there is no {slot} "{kind}".{did_you_mean(kind, kinds(slot))} There are '
                        f"{', '.join(kinds(slot))}.")
    return entry


def parse_settings(slot: str, values: Mapping[str, Any]) -> Any:
    """Validated settings of the kind in `values`."""
    settings = get(slot, values["kind"]).settings
    assert settings is not None
    return settings.model_validate(values)


def kinds(slot: str) -> list[str]:
    """The kinds of a slot, built-in kinds first."""
    with _lock:
        load_entry_points()
        return list(dict.fromkeys([*BUILT_IN[slot], *(kind for entry_slot, kind in _entries if entry_slot == slot)]))


def entries(slot: str) -> list[RegistryEntry]:
    """All parts of a slot."""
    return [get(slot, kind) for kind in kinds(slot)]


def entries_of_module(module: str) -> list[RegistryEntry]:
    """All parts that one module registered."""
    return [entry for entry in _entries.values() if entry.module == module]


def unregister(module: str) -> list[RegistryEntry]:
    """Remove the parts of one module; returns them."""
    removed = entries_of_module(module)
    for entry in removed:
        del _entries[entry.slot, entry.kind]
    return removed


def restore(entries: list[RegistryEntry]) -> None:
    """Undo `unregister`."""
    _entries.update({(entry.slot, entry.kind): entry for entry in entries})


def load_entry_points() -> None:
    """Import the plug-ins of installed packages, once, when a kind is not built-in."""
    global _entry_points_loaded
    if _entry_points_loaded:
        return
    _entry_points_loaded = True
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        name, version = (point.dist.name, point.dist.version) if point.dist is not None else (point.name, "")
        keys_before = set(_entries)
        try:
            point.load()
        except Exception as error:
            reason = error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise UserError(f"the parts of the package {name} ({point.value}) cannot be loaded: {reason.rstrip('.')}; "
                            f"update it, or uninstall it: pip uninstall {name}.") from error
        plugin_packages.update({_entries[key].module: (name, version) for key in set(_entries) - keys_before
                                if _entries[key].module not in BUILT_IN[key[0]].values()})

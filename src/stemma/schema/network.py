"""Network settings: sizes, and one kind for each exchangeable part."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticKnownError

from stemma import registry
from stemma.schema.base import BelowOne, Conflict, ConflictKey, Depth, KindField, KindName, Settings, Width
from stemma.schema.network_tables import (
    Activation,
    DecoderSettings,
    EmbeddingSettings,
    GeneratorSettings,
    HeadSettings,
    InitializationSettings,
    MemorySettings,
    NormSettings,
)
from stemma.schema.parts import (
    BODY_KEYS,
    FEATURES,
    AttentionSettings,
    BodySettings,
    InputSettings,
    NetworkPart,
    NoAttention,
    PositionSettings,
)

MISSING: Any = object()
TOKENS, SEGMENTS, TASKS = "tokens", "segments", "tasks"  # names of the inputs of every text, as in streams
TEXT_INPUTS = (TOKENS, SEGMENTS, TASKS)


def _refuse_missing(value: object) -> Any:
    if value is MISSING:
        raise PydanticKnownError("missing")
    return value


# Marks a key of [network] that is required only if a body needs it. Otherwise it has its default, which is unused and
# not part of the recipe (BODY_KEYS), or suits most bodies (the other keys).
IfNeeded = BeforeValidator(_refuse_missing)


class NetworkSettings(Settings):
    size_keys = ("layers", "width", "heads", "feedforward", "dropout", "inner_dropout", "output_dropout")
    laptop_keys = ("initialization",)
    structural_keys = ("transition", "mix")
    adjustable_keys = ("dropout", "inner_dropout", "output_dropout")
    one_decision = (("dropout", "attention.dropout", "attention.output_dropout", "inner_dropout", "output_dropout"),
                    ("bias", "attention.bias"),
                    ("initialization.*", "embedding.scale", "embedding.scale_logits", "attention.scale"))

    layers: Annotated[Depth, IfNeeded] = 1
    width: Width
    heads: Annotated[Width, IfNeeded] = 1
    feedforward: Annotated[Width, IfNeeded] = 1
    dropout: BelowOne
    inner_dropout: BelowOne = 0.0  # after the activation of the feed-forward layer
    output_dropout: BelowOne = 0.0  # of a stack's output, after the final norm (T5, Transformer-XL, XLNet)
    activation: Activation
    bias: bool = True  # bias terms of the feed-forward layers and of a head's hidden layer
    embedding: EmbeddingSettings = EmbeddingSettings()
    inputs: dict[str, Annotated[InputSettings, KindField("input")]] = {}  # inputs besides tokens, by name
    position: Annotated[PositionSettings, KindField("position"), IfNeeded] = Field(
        default_factory=lambda: registry.parse_settings("position", {"kind": "none"}))
    attention: Annotated[AttentionSettings, KindField("attention"), IfNeeded] = Field(default_factory=NoAttention)
    norm: NormSettings
    initialization: InitializationSettings
    memory: MemorySettings | None = None
    depth: Annotated[BodySettings, KindField("body")] = Field(
        default_factory=lambda: registry.parse_settings("body", {"kind": "stacked"}))
    # The layer after attention in a block; gated: GeGLU or SwiGLU, by the activation (arXiv:2002.05202).
    transition: Annotated[str, KindName("feedforward")] = "feedforward"
    decoder: DecoderSettings | None = None
    mix: bool | None = None  # each sublayer's input is a learned mix of all earlier outputs (GPT-BERT); None = no
    head: HeadSettings | None = None  # of the language-modeling head; None = as the rest of the network
    sharing: Literal["none", "all", "attention", "feedforward"] = "none"  # cross-layer parameter sharing (ALBERT)
    generator: GeneratorSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _mark_missing_keys(cls, values: object) -> Any:
        """Mark every required key that is missing."""
        if not isinstance(values, Mapping):
            return values
        return {**values, **{key: MISSING for key in needed_keys(values) if key not in values}}

    @model_serializer(mode="wrap")
    def _without_unneeded_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that no body needs, and empty inputs."""
        return {key: value for key, value in dump(self).items() if self.has_key(key) and (key != "inputs" or value)}

    def has_key(self, key: str) -> bool:
        return super().has_key(key) and (
            key not in BODY_KEYS or any(key in part.body.required_keys for part in self.parts().values()))

    def parts(self) -> dict[str, NetworkPart]:
        """The parts by name, each after the one it attends to. The last one generates."""
        parts = {"encoder": NetworkPart("encoder", self.depth, self.layers)}
        if self.decoder is not None:
            body = self.decoder.depth
            parts["decoder"] = NetworkPart("decoder", self.depth if body is None else body, self.decoder.layers,
                                           attends_to="encoder", key="depth" if body is None else "decoder.depth")
        return parts

    def inputs_of(self, part: NetworkPart) -> dict[str, InputSettings]:
        """All inputs of a part, by name."""
        counts = {SEGMENTS: self.embedding.segments, TASKS: self.embedding.tasks}
        tokens: dict[str, dict[str, Any]] = {} if self.embedding.tokens is False else {TOKENS: {}}
        values: dict[str, dict[str, Any]] = {**tokens, **{name: {"count": n} for name, n in counts.items() if n}}
        inputs = {name: registry.parse_settings("input", {"kind": name, **keys}) for name, keys in values.items()}
        return inputs | {name: settings for name, settings in self.inputs.items()
                         if part.attends_to is None or settings.decoder}

    @property
    def one_block(self) -> NetworkPart | None:
        """The first part whose layers share one block; None if there is none."""
        return next((part for part in self.parts().values() if part.body.shares_one_block), None)

    @property
    def total_layers(self) -> int:
        """Number of layers of all parts, without the embedding."""
        return sum(part.layers for part in self.parts().values())

    @property
    def continues(self) -> bool:
        """Whether a call continues from the state of the previous one (a memory or a recurrent state), so that no token
        is read twice."""
        return self.memory is not None or [*self.parts().values()][-1].body.carries_state

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length; None: unlimited."""
        return self.position.max_length

    def generator_network(self) -> NetworkSettings:
        """Settings of the generator: this network scaled by the multiplier, with the same embedding size. The number of
        heads is scaled too, and reduced until it divides the width."""
        assert self.generator is not None
        scale = self.generator.multiplier
        width, max_heads = max(1, round(self.width * scale)), max(1, round(self.heads * scale))
        heads = max_heads if self.attention.head_width else max(
            n for n in range(1, max_heads + 1) if width % n == 0)
        embedding = self.embedding.model_copy(update={"width": self.embedding.width or self.width})
        return self.model_copy(update={"layers": self.generator.layers or self.layers, "width": width, "heads": heads,
                                       "feedforward": max(1, round(self.feedforward * scale)), "embedding": embedding,
                                       "generator": None})

    def conflicts(self) -> Iterator[Conflict]:
        if self.has_key("heads") and self.attention.head_width is None and self.width % self.heads:
            divisors = [n for n in range(1, self.width + 1) if self.width % n == 0]
            heads = min(divisors, key=lambda n: (abs(n - self.heads), -n))
            width = max(round(self.width / self.heads), 1) * self.heads
            yield (ConflictKey("heads", f"width {self.width} is not divisible by {self.heads} (try {heads})"),
                   ConflictKey("width", f"is not divisible by {self.heads} heads (try {width})"))
        relative, one_block = self.position.relative, self.one_block
        yield from self._unread_key_conflicts()
        yield from self._feature_conflicts()
        if self.memory is not None and not relative:
            yield (ConflictKey("memory", "needs network.position.kind=relative_xl: the past has no absolute position"),
                   ConflictKey("position.kind",
                               "with network.memory only relative_xl will do (or remove=network.memory)"))
        if self.attention.segments and not relative:
            yield (ConflictKey("attention.segments", "needs network.position.kind=relative_xl"),
                   ConflictKey("position.kind", "with network.attention.segments only relative_xl will do"))
        adding = next((part for part in self.parts().values() if part.body.adds_positions), None)
        if adding is not None and not self.position.addable_per_step:
            yield (ConflictKey(f"{adding.key}.kind",
                               "recurrent depth adds positions at every step: it needs sinusoidal ones"),
                   ConflictKey("position.kind", "with recurrent depth only sinusoidal will do"))
        if self.position.disentangled and self.embedding.query:
            yield (ConflictKey("position.kind", "disentangled positions have no query stream: set relative_xl"),
                   ConflictKey("embedding.query", "needs network.position.kind=relative_xl"))
        if self.mix:
            yield from self._mix_conflicts()
        for part in self.parts().values():
            yield from part.body.network_conflicts(self)
        if "rotation" in self.position.required_features:
            yield from self._rotary_conflicts()
        if not self.norm.first and self.sharing in ("attention", "all"):
            yield (ConflictKey("norm.first", f"network.sharing = {self.sharing} gives all layers one norm"),
                   ConflictKey("sharing", "the first layer has no norm to share (network.norm.first=false)"))
        if self.decoder is not None:
            yield from self._decoder_conflicts()
        if self.generator is not None:
            yield from self._generator_conflicts()
        if one_block and self.sharing != "none":
            yield (ConflictKey("sharing", "recurrent depth has one block for all its steps already"),
                   ConflictKey(f"{one_block.key}.kind",
                               "recurrent depth shares all there is; leave network.sharing out"))
        if one_block and any(self.attention.windows):
            yield (ConflictKey("attention.windows", "alternate between layers, and recurrent depth has one layer"),)
        if one_block and self.embedding.query:
            yield (ConflictKey("embedding.query", "a second stream is not supported with recurrent depth"),
                   ConflictKey(f"{one_block.key}.kind",
                               "recurrent depth does not support a second stream (network.embedding.query)"))
        if self.embedding.tokens is False:
            if not any(settings.from_ids and settings.fused for settings in self.inputs.values()):
                yield (ConflictKey("embedding.tokens", "another input must be made from the token ids then, such as "
                                                       "one of the kind characters: add [network.inputs.NAME]"),)
            for key in ("decoder", "generator"):
                if getattr(self, key) is not None:
                    yield (ConflictKey("embedding.tokens", f"network.{key} shares the token embedding: leave it out"),
                           ConflictKey(key, "shares the token embedding, and network.embedding.tokens is false"))
        if self.embedding.fusion is not None and not self.inputs:
            yield (ConflictKey("embedding.fusion",
                               "there is nothing to combine tokens with: add [network.inputs.NAME]"),)
        for name, settings in self.inputs.items():
            yield from self._input_conflicts(name, settings)
        if self.embedding.cutoffs and self.embedding.width is not None:
            yield (ConflictKey("embedding.cutoffs",
                               "already say how wide each part is; leave network.embedding.width out"),
                   ConflictKey("embedding.width", "does not combine with network.embedding.cutoffs"))

    def _input_conflicts(self, name: str, settings: InputSettings) -> Iterator[Conflict]:
        """Conflicts of one input of [network.inputs]."""
        if not name.isidentifier() or name in TEXT_INPUTS:
            yield (ConflictKey(f"inputs.{name}",
                               f"an input is named by letters, digits and _, and not {', '.join(TEXT_INPUTS[:-1])} or "
                               f"{TEXT_INPUTS[-1]}"),)
        elif settings.enabled_by is not None:
            yield (ConflictKey(f"inputs.{name}.kind",
                               f"{settings.kind} are read where {settings.enabled_by} says so: set that instead"),)
        if settings.decoder and self.decoder is None:
            yield (ConflictKey(f"inputs.{name}.decoder", "there is no decoder to read it: leave it out"),)
        elif settings.decoder and not settings.from_ids:
            yield (ConflictKey(f"inputs.{name}.decoder",
                               f"a decoder's text is tokens alone, and {settings.kind} are not made from token ids: "
                               "leave it out, and the encoder alone reads them"),)

    def _unread_key_conflicts(self) -> Iterator[Conflict]:
        """Keys that are set although no body of this network uses them."""
        for key in (key for key in BODY_KEYS if key in self.model_fields_set and not self.has_key(key)):
            yield (ConflictKey(key, f"means nothing to a body of kind {self.depth.kind}: remove=network.{key}"),)

    def _feature_conflicts(self) -> Iterator[Conflict]:
        """Features that other keys need and the attention, or a body without attention, does not support."""
        required = {"position.kind": self.position.required_features,
                    "memory": {"memory"} if self.memory is not None else set(),
                    "attention.windows": {"windows"} if any(self.attention.windows) else set(),
                    "attention.segments": {"relative"} if self.attention.segments else set(),
                    "embedding.query": {"masks"} if self.embedding.query else set()}
        for key, features in required.items():
            yield from self.missing_features(features, f"network.{key}", key)
        if self.decoder is not None:
            yield from self.missing_features({"causal", "cache"}, "network.decoder", "decoder", "decoder")
        for part in self.parts().values():
            if part.attends_to is not None and not part.body.cross_attends:
                what = f"a body of kind {part.body.kind} cannot attend to the {part.attends_to}'s output"
                yield (ConflictKey(f"{part.key}.kind", f"{what}: set network.{part.name}.depth.kind=stacked"),
                       ConflictKey(part.name, f"{what}: set network.{part.name}.depth.kind=stacked"))

    def missing_features(self, features: Collection[str], required_by: str, key: str = "",
                         part: str = "encoder") -> Iterator[Conflict]:
        """A conflict for each of the features that `required_by` needs and the part does not support."""
        network_part = self.parts()[part]
        if network_part.body.uses_attention:
            owner, kind = "attention.kind", f"attention of kind {self.attention.kind}"
        else:
            owner, kind = f"{network_part.key}.kind", f"a body of kind {network_part.body.kind}"
        for feature in sorted(set(features) - self.supported_features(part)):
            what = f"{kind} {FEATURES[feature]}"
            yield (ConflictKey(owner, f"{what}, which {required_by} needs"),
                   *((ConflictKey(key, f"{what}: choose another network.{owner}"),) if key else ()))

    def supported_features(self, part: str = "encoder") -> frozenset[str]:
        """The FEATURES that a part supports."""
        body = self.parts()[part].body
        return self.attention.supports if body.uses_attention else body.supports

    def _rotary_conflicts(self) -> Iterator[Conflict]:
        """Rotary positions rotate pairs of dimensions, so the head width must be even."""
        networks = {"": self}
        if self.generator is not None:
            networks["the generator's "] = self.generator_network()
        for whose, network in networks.items():
            width = network.attention.head_width or network.width // network.heads
            if width % 2:
                what = f"rotary positions rotate pairs of numbers, and {whose}heads are {width} wide: an even width " \
                       "is needed"
                keys = ["attention.head_width"] if self.attention.head_width else ["heads", "width"]
                keys += ["position.kind", *(["generator"] if whose else [])]
                yield tuple(ConflictKey(key, what) for key in keys)

    def _mix_conflicts(self) -> Iterator[Conflict]:
        """Keys that a learned mix of earlier sublayers does not support."""
        present = {"norm.placement": self.norm.placement == "post", "embedding.query": self.embedding.query,
                   "depth.kind": self.one_block is not None or not self.depth.has_blocks}
        reasons = {"norm.placement": "the sum of earlier sublayers needs norms inside the residual branches: set "
                                     "network.norm.placement=pre",
                   "embedding.query": "its query stream has no earlier sublayers: leave it out",
                   "depth.kind": "needs a layer of its own at each depth: set network.depth.kind=stacked"}
        for key, there in present.items():
            if there:
                yield (ConflictKey(key, f"with network.mix: {reasons[key]}"),
                       ConflictKey("mix", f"does not combine with this network.{key}: {reasons[key]}"))

    def _generator_conflicts(self) -> Iterator[Conflict]:
        """Keys that a network with a generator does not support."""
        present = {"memory": self.memory is not None, "decoder": self.decoder is not None,
                   "embedding.query": self.embedding.query, "embedding.cutoffs": bool(self.embedding.cutoffs)}
        for key, there in present.items():
            if there:
                yield (ConflictKey(key, "is not supported beside a generator (or remove=network.generator)"),
                       ConflictKey("generator", f"is not supported beside network.{key}"))

    def _decoder_conflicts(self) -> Iterator[Conflict]:
        """Keys that a network with a decoder does not support."""
        present = {"memory": self.memory is not None,
                   "position.kind": self.position.relative or self.position.disentangled,
                   "embedding.query": self.embedding.query,
                   "embedding.tasks": self.embedding.tasks > 0,
                   "embedding.cutoffs": bool(self.embedding.cutoffs), "attention.windows": any(self.attention.windows),
                   "embedding.width": self.embedding.width is not None and not all(
                       part.body.reads_embedding for part in self.parts().values())}
        for key, there in present.items():
            if there:
                yield (ConflictKey(key, "is not supported beside a decoder (or remove=network.decoder)"),
                       ConflictKey("decoder", f"is not supported beside network.{key}"))


def needed_keys(values: Mapping[str, object]) -> set[str]:
    """Keys that the bodies of an unvalidated [network] need; for an unknown kind, those of most kinds."""
    decoder = values.get("decoder")
    stated = [values.get("depth", {"kind": "stacked"}), decoder.get("depth") if isinstance(decoder, Mapping) else None]
    needed: set[str] = set()
    for body in (body for body in stated if body is not None):
        kind = body.get("kind") if isinstance(body, Mapping) else None
        entry = registry.find("body", kind) if isinstance(kind, str) else None
        needed |= body.required_keys if isinstance(body, BodySettings) else \
            BodySettings.required_keys if entry is None else entry.settings.required_keys
    return needed


def unread_keys(values: Mapping[str, object]) -> set[str]:
    """Keys that the bodies of an unvalidated [network] do not use."""
    return set(BODY_KEYS) - needed_keys(values)

"""Corpus settings: packing of documents into rows, templates, and mixtures."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator

from stemma import registry
from stemma.errors import did_you_mean
from stemma.schema.base import Count, KindName, Natural, OpenFraction, Positive, Probability, Settings

PackingKind = Annotated[str, KindName("packing")]
TEXTS = "ABCDEFGH"  # names of the texts of a row, in order
TEMPLATE_TOKENS = ("start", "separator", "begin", "end", "mask")


class TemplateSlot(NamedTuple):
    """One position of a template: a text ("A", "B", ...) or the role of a special token, and its segment."""

    name: str
    segment: int

    @property
    def is_text(self) -> bool:
        return self.name in TEXTS


def extend_template(pair: str, num_texts: int, num_segments: int | None = None) -> str:
    """Extends the template of a pair to more texts: the tokens between A and B are repeated between any two texts, and
    each text has the next segment id, up to `num_segments` (None: unlimited)."""
    slots = parse_template(pair)
    names = [slot.name for slot in slots]
    first, second = names.index("A"), names.index("B")
    between, after = slots[first + 1:second], slots[second + 1:]
    step = slots[second].segment - slots[first].segment
    extended = list(slots[:second + 1])
    for index in range(2, num_texts):
        extended += [TemplateSlot(slot.name, slot.segment + step * (index - 1)) for slot in between]
        extended.append(TemplateSlot(TEXTS[index], slots[second].segment + step * (index - 1)))
    shift = step * (num_texts - 2)  # for slots in the last text's segment or a later one
    second_segment = slots[second].segment
    extended += [TemplateSlot(slot.name, slot.segment + (shift if slot.segment >= second_segment else 0))
                 for slot in after]
    last = max(slot.segment for slot in extended) if num_segments is None else max(0, num_segments - 1)
    return " ".join(f"{slot.name}:{segment}" if (segment := min(slot.segment, last)) else slot.name
                    for slot in extended)


def parse_template(template: str) -> list[TemplateSlot]:
    """Parse "start A separator B:1 separator:1"; raises ValueError with a message for the user."""
    slots = []
    for word in template.split():
        match = re.fullmatch(r"([A-Za-z_]+)(?::(\d+))?", word)
        if not match:
            raise ValueError(f'cannot be read at "{word}" (write a role or A or B, with ":1" for segment 1)')
        name, segment = match[1], int(match[2] or 0)
        if name not in (*TEXTS, *TEMPLATE_TOKENS):
            raise ValueError(f'has no role "{name}"; known: A, B, {", ".join(TEMPLATE_TOKENS)}.'
                             f"{did_you_mean(name, TEMPLATE_TOKENS)}")
        slots.append(TemplateSlot(name, segment))
    return slots


def _must_hold(*texts: str) -> AfterValidator:
    def check(template: str) -> str:
        names = [slot.name for slot in parse_template(template) if slot.is_text]
        if names != list(texts):
            raise ValueError(f"must hold {' and then '.join(texts)} once each" if len(texts) > 1 else
                             f"must hold {texts[0]} once" + (" and no B" if "B" in names else ""))
        return template

    return AfterValidator(check)


SingleTemplate = Annotated[str, _must_hold("A")]
PairTemplate = Annotated[str, _must_hold("A", "B")]


class PackingSettings(Settings):
    """Properties of a packing (`corpus/packers.py`). It has no keys: a recipe only names it."""

    kind: str

    reads: ClassVar[Literal["text", "pairs", "dialogues"]] = "text"  # kind of documents that it uses
    paired: ClassVar[bool] = False  # a row has segments A and B, packed by the template `pair`
    one_document: ClassVar[bool] = False  # a row is one contiguous span of one document
    filled: ClassVar[bool] = False  # rows fill the window if the text allows it
    shortens: ClassVar[bool] = False  # some rows are shorter, by corpus.short_probability
    bucketed: ClassVar[bool] = False  # rows of a batch have similar lengths
    contiguous: ClassVar[bool] = False  # each row continues in the same row of the next batch
    both_directions: ClassVar[bool] = False  # two rows read each contiguous text, in opposite directions
    past: ClassVar[float] = 0.0  # fraction of a contiguous row that is text for the memory


def packing_settings(kind: str) -> type[PackingSettings]:
    """Properties of a packing."""
    settings: type[PackingSettings] = registry.get("packing", kind).settings
    return settings


def packing_names(**facts: object) -> tuple[str, ...]:
    """Names of all packings with these properties."""
    return tuple(kind for kind in registry.kinds("packing")
                 if all(getattr(packing_settings(kind), fact) == value for fact, value in facts.items()))


def pair_packings() -> tuple[str, ...]:
    """Packings with independent rows of A and B."""
    return packing_names(paired=True, contiguous=False)


def neighboring_pair_packings() -> tuple[str, ...]:
    """Packings with independent rows of A and B that are consecutive text."""
    return packing_names(paired=True, contiguous=False, reads="text")


def single_text_packings() -> tuple[str, ...]:
    """Packings with independent rows of one text."""
    return packing_names(paired=False, contiguous=False, reads="text")


class ReaderKind(Settings):
    """Properties of a reader; its kind is the suffix of its files."""

    kind: str

    compressible: ClassVar[bool] = True  # also reads files compressed by gzip, xz or zstd (a further suffix)


class FirstPhaseSettings(Settings):
    """A first phase of short sequences, since attention is quadratic in the length (BERT)."""

    size_keys = ("batch_size", "warmup_steps")

    fraction: OpenFraction  # fraction of the budget
    sequence_length: Count
    batch_size: Count | None = None  # sequences per step in this phase; None = training.batch_size
    # Warm-up of this phase; the schedule then runs once in each phase, and training.warmup_steps is for the second.
    # None = one schedule over the whole budget.
    warmup_steps: Natural | None = None


class MixtureSettings(Settings):
    """Sampling of pair sets: proportional to min(pairs, limit) ^ (1 / temperature), so that small tasks are not
    underrepresented (arXiv:1910.10683, section 3.5.2)."""

    temperature: Positive = 1.0
    limit: Count | None = None
    weights: dict[str, Positive] | None = None  # set name -> multiplier; None: 1 each


class CorpusSettings(Settings):
    size_keys = ("sequence_length",)

    packing: PackingKind
    sequence_length: Count
    short_probability: Probability = 0.0  # probability of a shorter row
    single: SingleTemplate = "start A separator"  # with a decoder: of source and target, each
    pair: PairTemplate = "start A separator B:1 separator:1"
    decoder_start: Literal["begin", "end", "padding", "mask"] = "begin"  # first input token of the decoder
    boundary: Literal["separator", "end", "none"] = "separator"  # token between two documents of one row
    first_phase: FirstPhaseSettings | None = None  # no effect unless sequence_length is longer
    validation: OpenFraction = 0.02  # fraction of the documents held out, if the corpus has no held-out documents
    mixture: MixtureSettings | None = None  # of the sets of a corpus of pairs; None = all pairs equally often

"""How a stream of documents becomes examples of one length."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator

from stemma import registry
from stemma.errors import did_you_mean
from stemma.schema.base import Count, KindName, Natural, OpenFraction, Positive, Probability, Settings

PackingKind = Annotated[str, KindName("packing")]
TEXTS = "ABCDEFGH"  # the texts of a row, in their order
TEMPLATE_TOKENS = ("start", "separator", "begin", "end", "mask")


class TemplateSlot(NamedTuple):
    """One position of a template: a text ("A", "B", ...) or the role of a special token, and its segment."""

    name: str
    segment: int

    @property
    def is_text(self) -> bool:
        return self.name in TEXTS


def extend_template(pair: str, num_texts: int, num_segments: int | None = None) -> str:
    """The template of more texts than two, made from that of two: what stands between A and B stands between any two,
    and each text has a segment of its own, 0, 1, 2, ..., as far as the network has `segments` (None: any number)."""
    slots = parse_template(pair)
    names = [slot.name for slot in slots]
    first, second = names.index("A"), names.index("B")
    between, behind = slots[first + 1:second], slots[second + 1:]
    step = slots[second].segment - slots[first].segment
    made = list(slots[:second + 1])
    for number in range(2, num_texts):
        made += [TemplateSlot(slot.name, slot.segment + step * (number - 1)) for slot in between]
        made.append(TemplateSlot(TEXTS[number], slots[second].segment + step * (number - 1)))
    later = step * (num_texts - 2)  # what belongs to the last text, or stands behind it in a segment of its own
    made += [TemplateSlot(slot.name, slot.segment + later if slot.segment >= slots[second].segment else slot.segment)
             for slot in behind]
    most = max(slot.segment for slot in made) if num_segments is None else max(0, num_segments - 1)
    return " ".join(f"{slot.name}:{found}" if (found := min(slot.segment, most)) else slot.name for slot in made)


def parse_template(template: str) -> list[TemplateSlot]:
    """Read "start A separator B:1 separator:1"; raise ValueError with a sentence where it cannot be read."""
    slots = []
    for word in template.split():
        found = re.fullmatch(r"([A-Za-z_]+)(?::(\d+))?", word)
        if not found:
            raise ValueError(f'cannot be read at "{word}" (write a role or A or B, with ":1" for segment 1)')
        name, segment = found[1], int(found[2] or 0)
        if name not in (*TEXTS, *TEMPLATE_TOKENS):
            raise ValueError(f'has no role "{name}"; known: A, B, {", ".join(TEMPLATE_TOKENS)}.'
                             f"{did_you_mean(name, TEMPLATE_TOKENS)}")
        slots.append(TemplateSlot(name, segment))
    return slots


def _must_hold(*texts: str) -> AfterValidator:
    def check(template: str) -> str:
        held = [slot.name for slot in parse_template(template) if slot.is_text]
        if held != list(texts):
            raise ValueError(f"must hold {' and then '.join(texts)} once each" if len(texts) > 1 else
                             f"must hold {texts[0]} once" + (" and no B" if "B" in held else ""))
        return template

    return AfterValidator(check)


SingleTemplate = Annotated[str, _must_hold("A")]
PairTemplate = Annotated[str, _must_hold("A", "B")]


class PackingSettings(Settings):
    """What packings of every kind say of themselves (`corpus/packers.py`). They have no keys: a recipe names one."""

    kind: str

    reads: ClassVar[Literal["text", "pairs", "dialogues"]] = "text"  # which documents of a corpus
    paired: ClassVar[bool] = False  # a row has an A and a B, laid out by the template `pair`
    one_document: ClassVar[bool] = False  # a row is one stretch of one document
    filled: ClassVar[bool] = False  # rows are as long as the window, where the text allows it
    shortens: ClassVar[bool] = False  # some rows are made shorter, by corpus.short_probability
    bucketed: ClassVar[bool] = False  # a batch's rows are of similar length
    contiguous: ClassVar[bool] = False  # each row goes on in the same row of the next batch
    past: ClassVar[float] = 0.0  # of a contiguous row, the share that is only read, and goes into memory


def packing_settings(kind: str) -> type[PackingSettings]:
    """What a packing says of itself."""
    found: type[PackingSettings] = registry.get("packing", kind).settings
    return found


def packing_names(**facts: object) -> tuple[str, ...]:
    """The names of all packings of which this is so."""
    return tuple(kind for kind in registry.kinds("packing")
                 if all(getattr(packing_settings(kind), fact) == value for fact, value in facts.items()))


def pair_packings() -> tuple[str, ...]:
    """Rows of an A and a B that stand alone."""
    return packing_names(paired=True, contiguous=False)


def neighboring_pair_packings() -> tuple[str, ...]:
    """The same, where A and B follow one another in running text."""
    return packing_names(paired=True, contiguous=False, reads="text")


def single_text_packings() -> tuple[str, ...]:
    """Rows of one text that stand alone."""
    return packing_names(paired=False, contiguous=False, reads="text")


class ReaderKind(Settings):
    """What is known of a reader; its kind is the suffix of the files it reads."""

    kind: str

    compressible: ClassVar[bool] = True  # it also reads files packed by gzip, xz or zstd (a further suffix)


class FirstPhaseSettings(Settings):
    """Attention costs the square of the length, so BERT sees short examples first."""

    size_keys = ("batch_size", "warmup_steps")

    share: OpenFraction  # of the budget
    sequence_length: Count
    batch_size: Count | None = None  # sequences a step in this phase; None = training.batch_size
    warmup_steps: Natural | None = None  # of this phase, and training.warmup_steps is that of the second: the schedule
    #                                      then runs once in each phase; None = one schedule over the whole budget


class MixtureSettings(Settings):
    """How often pairs of each group are drawn: in proportion to min(pairs, limit) ^ (1 / temperature), so that small
    tasks are not lost beside large ones (arXiv:1910.10683, section 3.5.2)."""

    temperature: Positive = 1.0
    limit: Count | None = None
    weights: dict[str, Positive] | None = None  # by the name of a group, what its rate is multiplied by; None: 1 each


class CorpusSettings(Settings):
    size_keys = ("sequence_length",)

    packing: PackingKind
    sequence_length: Count
    short_probability: Probability = 0.0  # how often an example is made shorter than it could be
    single: SingleTemplate = "start A separator"  # with a decoder: source and target, each by itself
    pair: PairTemplate = "start A separator B:1 separator:1"
    decoder_start: Literal["begin", "end", "padding", "mask"] = "begin"  # what a decoder reads before its first token
    boundary: Literal["separator", "end", "none"] = "separator"  # what parts two documents that share a row
    first_phase: FirstPhaseSettings | None = None  # without effect where sequence_length is not longer
    validation: OpenFraction = 0.02  # share of the documents held out, where the corpus does not say which
    mixture: MixtureSettings | None = None  # of the groups of a corpus of pairs; None = every pair as often as any
    #                                         other

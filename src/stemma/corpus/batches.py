"""What a worker is handed at a time: a stretch of running text, or some documents that come in parts of their own.

Parted documents are pairs of source and target, dialogues turn by turn, and a query with a title. Their parts are never
split further, and none is cut between two batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from stemma.errors import UserError
from stemma.text.dialogue import Dialogue
from stemma.text.parallel import Pair
from stemma.text.readers import Passage
from stemma.text.relevance import Judged

BATCH_CHARACTERS = 1_000_000
LONGEST_DOCUMENT = (1 << 32) - 1  # characters that `starts` can count
ROLES, RELEVANCE = "roles", "relevance"  # side arrays: 0 where there is none, else 1 + the speaker, 1 + the label
Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Parted:
    """A document in parts: each is one sentence, and has one value in the side array that is named, if one is."""

    texts: list[str]
    values: list[int] = field(default_factory=list)
    side: str | None = None
    group: Group | None = None  # of pairs: the name and prefix of where they are from

    @classmethod
    def pair(cls, pair: Pair) -> Parted:
        return cls([pair.source, pair.target], group=pair.group)

    @classmethod
    def dialogue(cls, dialogue: Dialogue) -> Parted:
        return cls(dialogue.texts, [1 + speaker for speaker in dialogue.speakers], ROLES)

    @classmethod
    def judged(cls, row: Judged) -> Parted:
        return cls([row.query, row.title], [1 + row.label] * 2, RELEVANCE)


@dataclass(frozen=True, slots=True)
class Batch:
    """Passages: text, whether it begins a document, how many characters of the document came before."""

    passages: list[tuple[str, bool, int]]
    values: list[int] = field(default_factory=list)  # of parted documents, as in `Parted`, a value a passage
    side: str | None = None
    group: Group | None = None
    held_out: bool = False  # by a split that was made before the tokenizer was trained

    @property
    def parted(self) -> bool:
        return self.side is not None or self.group is not None

    @property
    def in_twos(self) -> bool:
        """Every document is two passages, of which neither may be missing."""
        return self.side == RELEVANCE or self.group is not None


def running_batches(passages: Iterable[Passage]) -> Iterator[Batch]:
    batch: list[tuple[str, bool, int]] = []
    size = before = 0
    for passage in passages:
        before = 0 if passage.begins else before
        batch.append((passage.text, passage.begins, before))
        before += len(passage.text)
        size += len(passage.text)
        if before > LONGEST_DOCUMENT:
            raise UserError(f"a document of {passage.source} has more than {LONGEST_DOCUMENT:,} characters; "
                            "cut it with --documents blank or line.")
        if size >= BATCH_CHARACTERS:
            yield Batch(batch)
            batch, size = [], 0
    if batch:
        yield Batch(batch)


def parted_batches(documents: Iterable[Parted]) -> Iterator[Batch]:
    """A batch has documents of one kind and group. A line end, which is not tokenised, stands between two parts."""
    for (side, group), alike in groupby(documents, key=lambda document: (document.side, document.group)):
        batch, size = Batch([], [], side, group), 0
        for document in alike:
            before = 0
            for number, text in enumerate(document.texts):
                batch.passages.append((text, number == 0, before))
                before += len(text) + 1
            batch.values.extend(document.values)
            size += before
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = Batch([], [], side, group), 0
        if batch.passages:
            yield batch

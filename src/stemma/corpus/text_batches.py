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
from stemma.text.parallel import TextPair
from stemma.text.readers import Passage
from stemma.text.relevance import RelevanceExample

BATCH_CHARACTERS = 1_000_000
MAX_DOCUMENT_CHARACTERS = (1 << 32) - 1  # characters that `starts` can count
ROLES, RELEVANCE = "roles", "relevance"  # side arrays: 0 where there is none, else 1 + the speaker, 1 + the label
PairSet = tuple[str, str]


@dataclass(frozen=True, slots=True)
class MultiPartDocument:
    """A document in parts: each is one sentence, and has one value in the side array that is named, if one is."""

    texts: list[str]
    values: list[int] = field(default_factory=list)
    annotation: str | None = None
    pair_set: PairSet | None = None  # of pairs: the name and prefix of where they are from

    @classmethod
    def from_pair(cls, pair: TextPair) -> MultiPartDocument:
        return cls([pair.source, pair.target], pair_set=pair.group)

    @classmethod
    def from_dialogue(cls, dialogue: Dialogue) -> MultiPartDocument:
        return cls(dialogue.texts, [1 + speaker for speaker in dialogue.speakers], ROLES)

    @classmethod
    def from_relevance(cls, row: RelevanceExample) -> MultiPartDocument:
        return cls([row.query, row.title], [1 + row.label] * 2, RELEVANCE)


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Passages: text, whether it begins a document, how many characters of the document came before."""

    passages: list[tuple[str, bool, int]]
    values: list[int] = field(default_factory=list)  # of parted documents, as in `MultiPartDocument`, a value a passage
    annotation: str | None = None
    pair_set: PairSet | None = None
    held_out: bool = False  # by a split that was made before the tokenizer was trained

    @property
    def is_multipart(self) -> bool:
        return self.annotation is not None or self.pair_set is not None

    @property
    def is_paired(self) -> bool:
        """Every document is two passages, of which neither may be missing."""
        return self.annotation == RELEVANCE or self.pair_set is not None


def plain_text_batches(passages: Iterable[Passage]) -> Iterator[TextBatch]:
    batch: list[tuple[str, bool, int]] = []
    size = before = 0
    for passage in passages:
        before = 0 if passage.starts_document else before
        batch.append((passage.text, passage.starts_document, before))
        before += len(passage.text)
        size += len(passage.text)
        if before > MAX_DOCUMENT_CHARACTERS:
            raise UserError(f"a document of {passage.source} has more than {MAX_DOCUMENT_CHARACTERS:,} characters; "
                            "cut it with --documents blank or line.")
        if size >= BATCH_CHARACTERS:
            yield TextBatch(batch)
            batch, size = [], 0
    if batch:
        yield TextBatch(batch)


def multipart_batches(documents: Iterable[MultiPartDocument]) -> Iterator[TextBatch]:
    """A batch has documents of one kind and group. A line end, which is not tokenised, stands between two parts."""
    for (side, group), alike in groupby(documents, key=lambda document: (document.annotation, document.pair_set)):
        batch, size = TextBatch([], [], side, group), 0
        for document in alike:
            before = 0
            for number, text in enumerate(document.texts):
                batch.passages.append((text, number == 0, before))
                before += len(text) + 1
            batch.values.extend(document.values)
            size += before
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = TextBatch([], [], side, group), 0
        if batch.passages:
            yield batch

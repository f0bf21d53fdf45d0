"""Batches of text for the tokenisation workers: plain text, or documents with given parts.

Multi-part documents are pairs of source and target, dialogues (a part is a turn), and queries with titles. Their parts
are never split, and a document is always in one batch.
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
MAX_DOCUMENT_CHARACTERS = (1 << 32) - 1  # the array `starts` has 32 bits
ROLES, RELEVANCE = "roles", "relevance"  # annotations: 0 for none, else 1 + speaker index, 1 + label index
PairSet = tuple[str, str]


@dataclass(frozen=True, slots=True)
class MultiPartDocument:
    """A document with given parts. Each part is one sentence, and has one value if the document has an annotation."""

    texts: list[str]
    values: list[int] = field(default_factory=list)
    annotation: str | None = None
    pair_set: PairSet | None = None  # for pairs: name and prefix of their set

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
    """Passages: text, whether it starts a document, and the number of preceding characters of its document."""

    passages: list[tuple[str, bool, int]]
    values: list[int] = field(default_factory=list)  # a value per passage, for documents with an annotation
    annotation: str | None = None
    pair_set: PairSet | None = None
    held_out: bool = False  # held out by a split that precedes the tokenizer's training

    @property
    def characters(self) -> int:
        return sum(len(text) for text, _, _ in self.passages)

    @property
    def is_multipart(self) -> bool:
        return self.annotation is not None or self.pair_set is not None

    @property
    def is_paired(self) -> bool:
        """Whether every document must have exactly two passages."""
        return self.annotation == RELEVANCE or self.pair_set is not None


def plain_text_batches(passages: Iterable[Passage]) -> Iterator[TextBatch]:
    batch: list[tuple[str, bool, int]] = []
    size = offset = 0
    for passage in passages:
        offset = 0 if passage.starts_document else offset
        batch.append((passage.text, passage.starts_document, offset))
        offset += len(passage.text)
        size += len(passage.text)
        if offset > MAX_DOCUMENT_CHARACTERS:
            raise UserError(f"a document of {passage.source} has more than {MAX_DOCUMENT_CHARACTERS:,} characters; "
                            "cut it with --documents blank or line.")
        if size >= BATCH_CHARACTERS:
            yield TextBatch(batch)
            batch, size = [], 0
    if batch:
        yield TextBatch(batch)


def multipart_batches(documents: Iterable[MultiPartDocument]) -> Iterator[TextBatch]:
    """Batches of documents of one kind and one pair set. The stored text has a line end, which is not tokenised,
    between two parts."""
    for (annotation, pair_set), members in groupby(documents, key=lambda doc: (doc.annotation, doc.pair_set)):
        batch, size = TextBatch([], [], annotation, pair_set), 0
        for document in members:
            offset = 0
            for index, text in enumerate(document.texts):
                batch.passages.append((text, index == 0, offset))
                offset += len(text) + 1
            batch.values.extend(document.values)
            size += offset
            if size >= BATCH_CHARACTERS:
                yield batch
                batch, size = TextBatch([], [], annotation, pair_set), 0
        if batch.passages:
            yield batch

"""Quality filters of datatrove by name, unchanged, for results that are comparable with other corpora.

They need the extra `cluster`. All of them use spaCy's English words, at about 0.4 MB per second. Not used: its language
filter and its list of bad words, which are downloaded, and its MinHash, which is for clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stemma.errors import UserError, did_you_mean

CLASSES = {"gopher-quality": "GopherQualityFilter", "gopher-repetition": "GopherRepetitionFilter",
           "c4": "C4QualityFilter", "fineweb": "FineWebQualityFilter"}
Filter = Callable[[str], tuple[str | None, str]]
SAMPLE_TEXT = "All of this is only written down to see whether every library is there.\n" * 9


def datatrove_filters(names: Sequence[str]) -> dict[str, Filter]:
    """Name -> function from a text to (remaining text or None, reason)."""
    unknown = [name for name in names if name not in CLASSES]
    if unknown:
        raise UserError(f'--also {unknown[0]}: no such filter; choose {", ".join(CLASSES)}.'
                        f"{did_you_mean(unknown[0], CLASSES)}")
    functions = {}
    for name in names:
        try:
            from datatrove.pipeline import filters

            functions[name] = _as_filter(getattr(filters, CLASSES[name])())
            functions[name](SAMPLE_TEXT)  # datatrove imports its libraries only on use
        except ImportError as error:
            raise UserError(f'--also {name} needs datatrove and spaCy: pip install "stemma-lm[cluster]".') from error
    return functions


def _as_filter(datatrove_filter: object) -> Filter:
    from datatrove.data import Document

    def apply(text: str) -> tuple[str | None, str]:
        document = Document(text=text, id="")
        result = datatrove_filter.filter(document)  # type: ignore[attr-defined]
        passed, reason = result if isinstance(result, tuple) else (result, "")
        return (document.text if passed else None), reason

    return apply

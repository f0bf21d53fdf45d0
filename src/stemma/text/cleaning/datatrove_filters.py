"""The filters of datatrove by name, exactly as published there: for results that must be comparable with other corpora.

They need the extra `cluster`. All of them count English words with spaCy, at about 0.4 MB a second. Not used: its
language filter and its list of bad words, which are downloaded, and its MinHash, which is made for clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stemma.errors import UserError, did_you_mean

CLASSES = {"gopher-quality": "GopherQualityFilter", "gopher-repetition": "GopherRepetitionFilter",
           "c4": "C4QualityFilter", "fineweb": "FineWebQualityFilter"}
Filter = Callable[[str], tuple[str | None, str]]
SAMPLE_TEXT = "All of this is only written down to see whether every library is there.\n" * 9


def datatrove_filters(names: Sequence[str]) -> dict[str, Filter]:
    """For each name a function from a text to what is left of it, or None and the reason."""
    unknown = [name for name in names if name not in CLASSES]
    if unknown:
        raise UserError(f'--also {unknown[0]}: no such filter; choose {", ".join(CLASSES)}.'
                        f"{did_you_mean(unknown[0], CLASSES)}")
    made = {}
    for name in names:
        try:
            from datatrove.pipeline import filters

            made[name] = _as_filter(getattr(filters, CLASSES[name])())
            made[name](SAMPLE_TEXT)  # datatrove looks for its libraries only when it needs them
        except ImportError as error:
            raise UserError(f'--also {name} needs datatrove and spaCy: pip install "stemma-lm[cluster]".') from error
    return made


def _as_filter(chosen: object) -> Filter:
    from datatrove.data import Document

    def judge(text: str) -> tuple[str | None, str]:
        document = Document(text=text, id="")
        verdict = chosen.filter(document)  # type: ignore[attr-defined]
        kept, reason = verdict if isinstance(verdict, tuple) else (verdict, "")
        return (document.text if kept else None), reason

    return judge

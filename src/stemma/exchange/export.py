"""Formats for other programs, in both directions: `stemma export` and `stemma convert`.

A new format is a line of EXPORTS: a function that writes the model to a path, with the sentence that --help shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stemma.atomic_files import check_output_path
from stemma.errors import UserError, did_you_mean
from stemma.exchange.arpa_model import convert_arpa, export_arpa, ngram_counts
from stemma.exchange.save import save
from stemma.exchange.vectors import export_fasttext, export_glove, export_word2vec, export_word2vec_binary
from stemma.model import Model


@dataclass(frozen=True)
class ExportFormat:
    write: Callable[[Model, Path], None]
    is_folder: bool = False  # whether --out is a folder


EXPORTS = {"arpa": ExportFormat(export_arpa), "word2vec": ExportFormat(export_word2vec),
           "word2vec-binary": ExportFormat(export_word2vec_binary), "glove": ExportFormat(export_glove),
           "fasttext": ExportFormat(export_fasttext)}


def export(model: Model, kind: str, out: str | Path, overwrite: bool = False) -> dict[str, Any]:
    """Write a model in this format."""
    chosen = EXPORTS.get(kind)
    if chosen is None:
        raise UserError(f'no format "{kind}"; there is {", ".join(EXPORTS)}.{did_you_mean(kind, EXPORTS)}')
    path = Path(out)
    check_output_path(path, overwrite)
    if path.is_dir() and not chosen.is_folder:
        raise UserError(f"{path} is a folder, and the format {kind} is one file; choose another --out.")
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen.write(model, path)
    result: dict[str, Any] = {"format": kind, "out": str(path), "recipe": model.recipe.label}
    return result if path.is_dir() else {**result, "bytes": path.stat().st_size}


def convert(path: str | Path, tokenizer: str | Path, out: str | Path, overwrite: bool = False) -> dict[str, Any]:
    """Make a model folder of an ARPA file and the tokenizer that its text was split with."""
    check_output_path(Path(out), overwrite)
    model = convert_arpa(Path(path), Path(tokenizer))
    save(model, out, overwrite)
    return {"model": str(out), "recipe": model.recipe.label, "ngrams": ngram_counts(model)}

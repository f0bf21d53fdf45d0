"""Nearest contexts of an ambiguous word: a static vector against contextual ones (ELMo, arXiv:1802.05365, section 5.3).

A contextual model has a vector for every occurrence of the word, the mean of the hidden states of its tokens, so an
occurrence has nearest neighbours among the other ones. A static model has one vector for all occurrences: all contexts
tie. If the senses are known, the share of nearest neighbours with the same sense says how well the vectors separate
them. Neighbours that tie share a vote, so one vector for all is at the chance level exactly.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stemma.device import choose_device
from stemma.errors import UserError, pluralize
from stemma.evaluation.word_occurrences import Occurrence, aligned_tokens, find_occurrences
from stemma.exchange.load import open_model
from stemma.model import Model
from stemma.notes import silenced
from stemma.tasks.embed import TokenVectors, embed_tokens
from stemma.tasks.layer_states import ALL, STATIC, Layer, parse_layer
from stemma.vectors.files import read_vectors

logger = logging.getLogger(__name__)

TIE = 1e-5  # difference of two cosines that fp32 does not resolve
DEFAULT_LAYERS: tuple[Layer, ...] = (STATIC, None)  # static and the last one


@dataclass(frozen=True)
class OccurrenceVectors:
    """The vectors of all occurrences by one layer of one model."""

    model: str
    layer: str  # a number, "static" or "mean"
    vectors: np.ndarray  # (occurrences, width); rows of NaN: the model cannot see the word there

    @property
    def found(self) -> np.ndarray:
        """(occurrences,) whether the model has a vector."""
        found: np.ndarray = np.isfinite(self.vectors).all(1)
        return found


def senses(models: Sequence[Model | str | Path], word: str, path: str | Path, *,
           layers: Sequence[str | int] | None = None, neighbours: int = 3, limit: int = 1000, match_case: bool = False,
           encoding: str = "utf-8", errors: str = "strict") -> dict[str, Any]:
    """The nearest other contexts of each occurrence of a word, by each model and layer. Layers: `layer_states.py`; by
    default static and the last one. Only occurrences that all models have a vector of are compared."""
    chosen = DEFAULT_LAYERS if not layers else tuple(map(parse_layer, layers))
    occurrences = find_occurrences(word, path, match_case, encoding, errors)
    if len(occurrences) > limit:
        logger.info(f"{len(occurrences):,} occurrences; the first {limit:,} are compared (--limit).")
    occurrences = occurrences[:limit]
    rows = [row for model in models for row in word_vectors(model, occurrences, chosen, word)]
    shared = np.logical_and.reduce([row.found for row in rows])
    kept = [occurrence for occurrence, found in zip(occurrences, shared, strict=True) if found]
    missing = {row.model: int((~row.found).sum()) for row in rows}
    if len({occurrence.sentence for occurrence in kept}) < 2:
        raise UserError(f'fewer than two sentences are left in which all models see "{word}" as tokens of its own',
                        [(name, f"misses {count} of {len(occurrences)}") for name, count in missing.items() if count])
    for name, count in missing.items():
        if count:
            logger.warning(f"{name}: {count} of {pluralize(len(occurrences), 'occurrence')} left out: there the word "
                           "is part of a longer token, or beyond the length of the model.")
    vectors = [OccurrenceVectors(row.model, row.layer, row.vectors[shared]) for row in rows]
    return {"word": word, "file": str(path), "missing": missing, **compare_vectors(vectors, kept, neighbours)}


def word_vectors(model: Model | str | Path, occurrences: Sequence[Occurrence], layers: Sequence[Layer],
                 word: str) -> Iterator[OccurrenceVectors]:
    """The vectors of the occurrences by each of the layers; a vector file has one vector for each spelling."""
    if not isinstance(model, Model) and Path(model).is_file():
        yield OccurrenceVectors(str(model), STATIC, _from_file(model, occurrences, word))
        return
    loaded = model if isinstance(model, Model) else open_model(model, choose_device())
    name = loaded.recipe.label if isinstance(model, Model) else str(model)
    sentences = list(dict.fromkeys(occurrence.sentence for occurrence in occurrences))
    for layer in layers:
        with silenced():  # `senses` itself says which occurrences are beyond the length of the model
            texts = dict(zip(sentences, embed_tokens(loaded, sentences, layer), strict=True))
        stacked = _mean_over_tokens(loaded, texts, occurrences, word)
        labels = [str(number) for number in range(len(stacked))] if layer == ALL else [_layer_name(loaded, layer)]
        for label, vectors in zip(labels, stacked, strict=True):
            yield OccurrenceVectors(name, label, vectors)


def _from_file(path: str | Path, occurrences: Sequence[Occurrence], word: str) -> np.ndarray:
    """(occurrences, width): the vector of each spelling (Bank, bank); NaN if only other spellings have one."""
    spellings = [occurrence.sentence[occurrence.start:occurrence.end] for occurrence in occurrences]
    file = read_vectors(path, only={word, *spellings})
    vectors, known = file.for_words(spellings)
    if not known.any():
        file.require_vector(word)
    return np.where(known[:, None], vectors, np.nan)


def _mean_over_tokens(model: Model, texts: dict[str, TokenVectors], occurrences: Sequence[Occurrence],
                      word: str) -> np.ndarray:
    """(layers, occurrences, width): the mean over the tokens of each occurrence; NaN if the word has none there."""
    tokenizer = model.require_tokenizer()
    unknown_id = tokenizer.special_token_ids.get("unknown")
    unknown = None if unknown_id is None else tokenizer.id_to_token(unknown_id)
    first = next(iter(texts.values())).vectors
    layers, width = (first.shape[0] if first.ndim == 3 else 1), first.shape[-1]
    result = np.full((layers, len(occurrences), width), np.nan, dtype=np.float32)
    num_unknown = 0
    for index, occurrence in enumerate(occurrences):
        text = texts[occurrence.sentence]
        at = aligned_tokens(occurrence, text.offsets, tokenizer.pre_normalize(occurrence.sentence))
        if at is not None:
            result[:, index] = text.vectors.reshape(layers, -1, width)[:, at].mean(1)
            num_unknown += all(text.tokens[position] == unknown for position in at)
    if num_unknown == len(occurrences):
        raise UserError(f'the tokenizer of {model.recipe.label} does not know "{word}": every occurrence is {unknown}; '
                        "take a model whose vocabulary can spell it.")
    return result


def _layer_name(model: Model, layer: Layer) -> str:
    last = model.network.parts["encoder"].layers
    if layer is None:
        return str(last)
    return str(last + 1 + layer) if isinstance(layer, int) and layer < 0 else str(layer)


def compare_vectors(models: Sequence[OccurrenceVectors], occurrences: Sequence[Occurrence],
                    neighbours: int = 3) -> dict[str, Any]:
    """Neighbours, ties and two coordinates of each occurrence by each model; with known senses also the share of
    nearest neighbours with the same sense, the chance level, and the share by the words of the sentences."""
    sentence_ids = np.unique([occurrence.sentence for occurrence in occurrences], return_inverse=True)[1]
    candidates = sentence_ids[:, None] != sentence_ids  # other contexts: not those of the same sentence
    counts = Counter(occurrence.sense for occurrence in occurrences if occurrence.sense is not None)
    result: dict[str, Any] = {"occurrences": [asdict(occurrence) for occurrence in occurrences], "models": [],
                              "senses": dict(counts)}
    same = _SameSense(occurrences, candidates)
    for model in models:
        similarities = _cosines(model.vectors)
        masked = np.where(candidates, similarities, -np.inf)
        order = np.argsort(-masked, axis=1, kind="stable")[:, :neighbours]
        ties = (masked >= masked.max(1, keepdims=True) - TIE).sum(1)
        result["models"].append({
            "model": model.model, "layer": model.layer, "tied": bool((similarities >= 1 - TIE).all()),
            "neighbours": [[{"occurrence": int(other), "similarity": float(masked[index, other])} for other in row
                            if candidates[index, other]] for index, row in enumerate(order)],
            "ties": ties.tolist(), "same_sense": same.share(similarities),
            "coordinates": principal_coordinates(model.vectors).tolist()})
    result["chance"] = same.share(np.zeros_like(candidates, dtype=np.float32))
    result["words"] = same.share(_word_overlap(occurrences)) if same.known else None
    return result


class _SameSense:
    """Counts how often the nearest neighbour has the same sense."""

    def __init__(self, occurrences: Sequence[Occurrence], candidates: np.ndarray):
        senses = np.array([occurrence.sense or "" for occurrence in occurrences])
        self.candidates = candidates & (senses != "")
        self.equal = senses[:, None] == senses
        self.rows = (senses != "") & self.candidates.any(1)

    @property
    def known(self) -> bool:
        return bool(self.rows.any())

    def share(self, similarities: np.ndarray) -> float | None:
        """The share of nearest neighbours with the same sense, of the occurrences whose sense is known. If several are
        nearest, their share counts, so equal similarities give the chance level."""
        if not self.known:
            return None
        masked = np.where(self.candidates, similarities, -np.inf)[self.rows]
        nearest = masked >= masked.max(1, keepdims=True) - TIE
        return float(((nearest & self.equal[self.rows]).sum(1) / nearest.sum(1)).mean())


def _cosines(vectors: np.ndarray) -> np.ndarray:
    doubled = vectors.astype(np.float64)
    unit = doubled / np.maximum(np.linalg.norm(doubled, axis=1, keepdims=True), 1e-12)
    cosines: np.ndarray = unit @ unit.T
    return cosines


def _word_overlap(occurrences: Sequence[Occurrence]) -> np.ndarray:
    """Cosines of the words (and pairs of characters) of the sentences without the word itself, by TF-IDF: what a count
    of common words knows."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [occurrence.sentence[:occurrence.start] + " " + occurrence.sentence[occurrence.end:]
             for occurrence in occurrences]
    groups = ({"token_pattern": r"\w+|[^\w\s]"}, {"analyzer": "char", "ngram_range": (1, 2)})
    features = hstack([TfidfVectorizer(sublinear_tf=True, **group).fit_transform(texts) for group in groups])
    return _cosines(features.toarray())


def principal_coordinates(vectors: np.ndarray) -> np.ndarray:
    """(N, 2): the coordinates along the two directions of largest variance."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    coordinates = np.zeros((len(vectors), 2))
    rank = min(2, len(scale))
    coordinates[:, :rank] = left[:, :rank] * scale[:rank]
    # the sign of a direction is arbitrary: the occurrence that is farthest out is on the positive side
    farthest = np.abs(coordinates).argmax(0)
    coordinates *= np.where(coordinates[farthest, [0, 1]] < 0, -1.0, 1.0)
    spread = float(np.abs(vectors).max(initial=0.0))
    return np.where(np.abs(coordinates) < 1e-6 * max(spread, 1e-12), 0.0, coordinates)

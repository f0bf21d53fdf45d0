"""The word vectors of a model, and vector files of them (`stemma export`).

The vectors of a model are the rows of its input embedding. Models of words are written in the order of their counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from stemma.errors import UserError
from stemma.exchange.load import open_model
from stemma.model import Model
from stemma.network.context_head import ContextHead
from stemma.network.ngram_tables import CountingTable
from stemma.objectives.word_context import CONTEXT_HEAD, WordContextSettings
from stemma.text.tokenizer import Tokenizer
from stemma.vectors.fasttext_file import ARGS, LOSSES, MODELS, FastTextFile, write_fasttext
from stemma.vectors.files import read_vectors, write_binary, write_text
from stemma.vectors.subwords import Subwords
from stemma.vectors.word_vectors import WordVectors

WORD_STARTS = {"byte_bpe": "Ġ", "bpe": "▁", "unigram": "▁"}  # of pieces that begin a word


def open_vectors(path: str | Path) -> WordVectors:
    """The vectors of a file, or of the input embedding of a model: a run folder, its model/, or a Hugging Face
    folder."""
    path = Path(path)
    if path.is_file():
        return read_vectors(path)
    if not path.exists():
        raise UserError(f"there is no vector file and no model {path}.")
    return model_vectors(open_model(path), str(path))


@torch.no_grad()
def model_vectors(model: Model, name: str | None = None) -> WordVectors:
    """The rows of the input embedding as words. Pieces inside words are written with ## before them."""
    name = name or model.recipe.label
    embedding = model.network.embedding.tokens
    if isinstance(embedding, CountingTable):
        raise UserError(f"{name} is a table of counts: it has no vectors of words.")
    tokenizer = model.require_tokenizer()
    head = _context_head(model)
    if head is None:
        ids = tokenizer.regular_ids[tokenizer.regular_ids < model.network.vocab_size]
        words = [_spelling(tokenizer, int(token_id)) for token_id in ids]
        first = {word: row for row, word in reversed(list(enumerate(words)))}
        rows = np.array(sorted(first.values()), np.int64)
        ids, words = ids[rows], [words[row] for row in rows]
    else:
        ids = _by_count(head)
        words = tokenizer.ids_to_tokens(ids)
    matrix = embedding(torch.from_numpy(ids).to(model.device)).float().cpu().numpy()
    return WordVectors(words, matrix, None if head is None else _subwords(model, head), name)


def _context_head(model: Model) -> ContextHead | None:
    """What only word vectors have, while they are not fine-tuned."""
    return next((head for name, head in model.network.heads.items() if name == CONTEXT_HEAD
                 and isinstance(head, ContextHead)), None)


def _by_count(head: ContextHead) -> np.ndarray:
    """The ids of all trained words, the most frequent first."""
    counts = head.counts.cpu().numpy()
    order = np.argsort(-counts, kind="stable")
    return order[:int((counts > 0).sum())]


def _settings(model: Model) -> WordContextSettings:
    settings = next(iter(model.recipe.settings.objective.values()))
    assert isinstance(settings, WordContextSettings)
    return settings


def _subwords(model: Model, head: ContextHead) -> Subwords | None:
    settings = _settings(model)
    if not head.spec.buckets:
        return None
    return Subwords(head.buckets.detach().cpu().numpy(), settings.min_n, settings.max_n)


def _spelling(tokenizer: Tokenizer, token_id: int) -> str:
    token, mark = tokenizer.id_to_token(token_id), WORD_STARTS.get(tokenizer.kind)
    if mark is None:
        return token
    text = tokenizer.decode([token_id], skip_special=False).strip() or token
    return text if token.startswith(mark) else f"##{text}"


# ---- export ----

def export_word2vec(model: Model, path: Path) -> None:
    write_text(model_vectors(model), path)


def export_word2vec_binary(model: Model, path: Path) -> None:
    write_binary(model_vectors(model), path)


def export_glove(model: Model, path: Path) -> None:
    write_text(model_vectors(model), path, header=False)


@torch.no_grad()
def export_fasttext(model: Model, path: Path) -> None:
    """fastText's .bin, from which fastText and gensim can go on training."""
    head = _context_head(model)
    if head is None or not head.spec.buckets or head.weight is None:
        raise UserError(f"a .bin of fastText holds vectors of character n-grams trained with negatives, which "
                        f"{model.recipe.label} does not have; export with --format word2vec.")
    settings, ids = _settings(model), _by_count(head)
    training = model.recipe.settings.training
    method = training.method_settings.model_dump()
    values = {"width": model.recipe.settings.network.width, "window": settings.window,
              "epochs": method.get("epochs", 5), "min_count": method.get("min_count", 5),
              "negatives": settings.negatives, "word_ngrams": 1, "loss": LOSSES["negative_sampling"],
              "model": MODELS[settings.architecture], "buckets": settings.buckets, "min_n": settings.min_n,
              "max_n": settings.max_n, "rate_updates": 100}
    assert set(values) == set(ARGS)
    rows = torch.cat([head.own[torch.from_numpy(ids)], head.buckets]).float().cpu().numpy()
    write_fasttext(FastTextFile(values, model.require_tokenizer().ids_to_tokens(ids), head.counts.cpu().numpy()[ids],
                                rows, head.weight[torch.from_numpy(ids)].float().cpu().numpy(),
                                method.get("subsample", 1e-4)), path)

"""Start the embedding of a new model from static word vectors."""

from __future__ import annotations

import logging

from stemma.errors import UserError
from stemma.network.embedding import InputEmbedding
from stemma.network.word_vector_embedding import fill_embedding
from stemma.text.tokenizer import Tokenizer
from stemma.vectors.files import read_vectors

logger = logging.getLogger(__name__)


def start_embedding(embedding: InputEmbedding, tokenizer: Tokenizer, path: str) -> None:
    """Set the vectors of the vocabulary's words from a vector file."""
    words = tokenizer.ids_to_tokens(range(tokenizer.vocab_size))
    vectors, width = read_vectors(path, only=words), embedding.tokens.embedding_dim
    if vectors.width != width:
        raise UserError(f"the vectors of {path} have {vectors.width} numbers and the embedding {width}; start the run "
                        f"again with network.embedding.width={vectors.width}, or with other vectors.")
    known = fill_embedding(embedding, words, vectors)
    if not known.any():
        raise UserError(f"no word of the vocabulary has a vector in {path}; give vectors of the language of the text.")
    logger.info(f"{int(known.sum()):,} of the {len(words):,} words of the vocabulary have a vector.")

"""Imports of the library of the extra `vectors`, on first use."""

from __future__ import annotations

import importlib
from typing import Any

from stemma.errors import UserError


def optional_library(module: str) -> Any:
    """Import a module such as `gensim.models`, or raise an error that names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError("word2vec and fastText are trained with gensim, and gensim is not installed: pip install "
                        '"stemma-lm[vectors]".') from error

"""Imports of the libraries of the extra `vectors`, on first use."""

from __future__ import annotations

import importlib
from typing import Any

from stemma.errors import UserError

USES = {"gensim": ("word2vec and fastText are trained with gensim", "gensim"),
        "fasttext": ("fastText's classifier is trained with its own library", "fasttext-numpy2")}


def optional_library(module: str) -> Any:
    """Import a module such as `gensim.models`, or raise an error that names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        use, package = USES[module.partition(".")[0]]
        raise UserError(f'{use}, and {package} is not installed: pip install "stemma-lm[vectors]".') from error

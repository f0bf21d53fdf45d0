"""Imports of the optional metric libraries, on first use; a missing one is reported with the extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from stemma.errors import UserError

PACKAGES = {"rouge_score": "rouge-score"}  # packages whose name differs from their module


def optional_import(module: str) -> Any:
    """Import a module such as `seqeval.scheme`, or raise an error that names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        raise UserError(f'this metric needs {PACKAGES.get(root, root)}: pip install "stemma-lm[metrics]".') from error

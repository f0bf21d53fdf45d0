"""The libraries whose numbers the field compares: loaded on first use, and named with their extra where missing."""

from __future__ import annotations

import importlib
from typing import Any

from stemma.errors import UserError

PACKAGES = {"sklearn": "scikit-learn", "rouge_score": "rouge-score"}  # where a package is called other than its module


def optional_import(module: str) -> Any:
    """The module `sklearn.metrics`, say."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = module.partition(".")[0]
        raise UserError(f'this metric needs {PACKAGES.get(root, root)}: pip install "stemma-lm[metrics]".') from error

"""The version of Stemma and the environment it runs in: `stemma --version`, `stemma.__version__`, results.json.

The version is made from the last tag when the package is built or installed (pyproject.toml), so it is read from the
installation. No run and no model folder carries it: their bytes do not change with it.
"""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGE = "stemma-lm"
UNKNOWN = "0+unknown"  # the sources are on the path, and nothing is installed


def _of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


VERSION = _of(PACKAGE) or UNKNOWN


def described() -> str:
    """One line for a bug report. Packages are not imported for it."""
    packages = [f"{name} {package_version}" for name in ("torch", "tokenizers", "transformers")
                if (package_version := _of(name)) is not None]
    around = [f"Python {platform.python_version()}", *packages, f"{platform.system()} {platform.machine()}"]
    return f"stemma {VERSION} ({', '.join(around)})"

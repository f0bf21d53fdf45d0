"""`quickstart`: the whole story in one command."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    pass

"""Reading and validating TOML plans; all problems are reported together."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from stemma.errors import UserError, did_you_mean
from stemma.schema.base import Settings
from stemma.schema.recipe_checks import explain

Problems = list[tuple[str, str]]  # (where, what)
TableT = TypeVar("TableT", bound=Settings)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the plan {path}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid TOML: {error}.") from error


def validate_table(kind: type[TableT], values: dict[str, object], where: str, problems: Problems) -> TableT | None:
    """Validate a table; returns None and adds to `problems` if it is invalid."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        keys = list(kind.model_fields)
        for problem in explain(error, values, kind):
            unknown = problem.key.partition(".")[0] not in keys
            hint = did_you_mean(problem.key, keys) or f" It has {', '.join(keys)}."
            problems.append((f"{where}{problem.location}", f"no such key.{hint}" if unknown else problem.message))
        return None


def raise_problems(path: Path, problems: Problems) -> NoReturn:
    raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in the plan {path}", problems)

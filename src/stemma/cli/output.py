"""Output of every verb: one JSON object for programs, tables for people, notes on stderr.

This module is fast to import: rich is imported only when a table is printed.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stemma.cli.stdio import escape_control
from stemma.device import request_device
from stemma.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _requested_device(device: str | None) -> str | None:
    request_device(device)
    return device


# The callback sets the device for the whole verb, so verbs do not pass it on.
DeviceOption = Annotated[str | None, typer.Option("--device", metavar="cpu|cuda|mps|auto", callback=_requested_device,
                                                  show_default="auto: cuda if there is one, else cpu",
                                                  help="Device; cuda:1 is the second GPU.")]


def at_least(low: int, help: str, **more: Any) -> Any:
    """An integer option with a lower limit; its help and its error say "1 or more". (typer's own limits print
    0<=x<=9223372036854775807.)"""
    def check(parameter: typer.CallbackParam, value: int | None) -> int | None:
        if value is not None and not low <= value < 2**63:
            rule = f"{low} or more" if value < low else "below 2^63"
            raise UserError(f"{parameter.opts[0]} must be {rule}, not {value}.")
        return value

    return typer.Option(callback=check, help=f"{help.removesuffix('.')}; {low} or more.", **more)


def emit(result: Mapping[str, Any], as_json: bool, human: Callable[[], None] | None = None) -> None:
    """Print the result of a verb: exactly one JSON object, or what `human` prints (by default one line per key)."""
    if as_json:
        unicode_output = "utf" in (sys.stdout.encoding or "").lower()
        print(json.dumps(_to_json_value(result), ensure_ascii=not unicode_output, allow_nan=False), flush=True)
    elif human is not None:
        human()
    else:
        width = max(map(len, result), default=0)
        for key, value in result.items():
            print(f"{key:<{width}}  {format_value(value)}")


def _to_json_value(value: Any) -> Any:
    """The value as JSON can hold it: no NaN or infinity, no paths, no arrays."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy's and torch's numbers and arrays, without importing either
        return _to_json_value(value.tolist())
    return [_to_json_value(inner) for inner in value] if isinstance(value, Iterable) else str(value)


class Notes(logging.Handler):
    """Print the log messages of the package as notes on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        # escaped here: while a progress bar is shown, rich replaces stderr and would interpret the sequences
        print(f"note: {escape_control(record.getMessage())}", file=sys.stderr, flush=True)


@contextmanager
def notes_printed() -> Iterator[None]:
    """Print log messages of the package as notes inside the block."""
    logger = logging.getLogger("stemma")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [Notes()], False  # a handler of a plug-in would print them twice
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def format_value(value: Any) -> str:
    """A value for people: 30,522, true, 1e-12, segment_pair."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}".replace("e-0", "e-")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(inner)}" for key, inner in value.items())
    return ", ".join(map(format_value, value)) if isinstance(value, list | tuple) else str(value)


def align_columns(rows: Sequence[Sequence[str]], gap: int = 3) -> list[str]:
    """Rows of text as lines, each column as wide as its widest cell."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)] if rows else []
    return [(" " * gap).join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows]


def console(stderr: bool = False) -> Console:
    """A rich console. Text in a pipe is not wrapped to the width of a terminal. Its styles reach the terminal; control
    characters in the printed text are escaped."""
    from rich.console import Console, ConsoleOptions, RenderHook
    from rich.segment import Segment

    class EscapedRenderable:
        def __init__(self, inner: Any):
            self.inner = inner

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
            for text, style, control in console.render(self.inner, options):
                yield Segment(text if control else escape_control(text), style, control)

    class EscapeHook(RenderHook):
        def process_renderables(self, renderables: list[Any]) -> list[Any]:
            return [EscapedRenderable(renderable) for renderable in renderables]

    stream = sys.stderr if stderr else sys.stdout
    result = Console(file=getattr(stream, "unescaped", stream), highlight=False)
    result.push_render_hook(EscapeHook())
    if not result.is_terminal:
        result.width = 240
    return result

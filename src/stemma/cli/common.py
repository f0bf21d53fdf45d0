"""Options that every verb has, added in one place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

PluginOption = Annotated[list[str] | None, typer.Option("--plugin", metavar="FILE.py", show_default=False, help="Load "
                                                        "this file of yours, which registers parts of its own (may be "
                                                        "repeated).")]
RecipesOption = Annotated[str | None, typer.Option("--recipes", metavar="DIR", show_default=False, help="Where recipes "
                                                   "of your own are found by name, else in recipes/.")]
OPTIONS = {"plugin": PluginOption, "own_recipes": RecipesOption}  # `compare` has recipes


# What `stemma --help` lists its verbs under, in this order.
TEXT, TRAIN, USE, TASKS, LAB = PANELS = "Text", "Train", "Use", "Tasks", "Lab"


def add_common_options(app: typer.Typer) -> None:
    """To every verb of the app, and of the groups below it."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _extended(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_common_options(group.typer_instance)


def _extended(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with the options of all verbs before the last two, `--json` and `--debug`."""
    @functools.wraps(verb)
    def extended(*args: Any, plugin: list[str] | None = None, own_recipes: str | None = None, **given: Any) -> Any:
        if plugin:
            from stemma.plugins import use_plugin

            for path in plugin:
                use_plugin(path)
        if own_recipes is None:
            return verb(*args, **given)
        from stemma.recipe_files import own_folder

        with own_folder(own_recipes):
            return verb(*args, **given)

    signature = inspect.signature(verb)
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
             for name, kind in OPTIONS.items()]
    hints = get_type_hints(verb, include_extras=True)  # a signature made here is not looked up in the verb's module
    own = [one.replace(annotation=hints[one.name]) for one in signature.parameters.values()]
    where = next((number for number, one in enumerate(own) if one.name == "json"), len(own))
    own = [*own[:where], *added, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own[where:])]
    extended.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    extended.__annotations__ = {**hints, **OPTIONS}
    return extended

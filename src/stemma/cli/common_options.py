"""Options that every verb has, added in one place; and the groups of `options.py`, spelled out for typer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from stemma.cli.output import DebugOption, DeviceOption

PluginOption = Annotated[list[str] | None, typer.Option("--plugin", metavar="FILE.py", show_default=False, help="Load "
                                                        "this file of yours, which registers parts of its own (may be "
                                                        "repeated).")]
RecipesOption = Annotated[str | None, typer.Option("--recipes", metavar="DIR", show_default=False, help="Where recipes "
                                                   "of your own are found by name, else in recipes/.")]
OPTIONS = {"plugin": PluginOption, "own_recipes": RecipesOption}  # `compare` has recipes

# What `stemma --help` lists its verbs under, in this order.
TEXT, TRAIN, USE, TASKS, LAB = PANELS = "Text", "Train", "Use", "Tasks", "Lab"


_computing: set[Callable[..., Any]] = set()
Verb = TypeVar("Verb", bound=Callable[..., Any])


def computes(verb: Verb) -> Verb:
    """Of a verb that has `--device`; what it says holds for all that the verb does."""
    _computing.add(verb)
    return verb


def add_common_options(app: typer.Typer) -> None:
    """To every verb of the app, and of the groups below it."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = _with_common_options(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_common_options(group.typer_instance)


def _with_common_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The verb with its groups of options spelled out, and with the options of all verbs around the last, `--json`."""
    hints = get_type_hints(verb, include_extras=True)  # a signature made here is not looked up in the verb's module
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(verb).parameters.values():
        if one.name in groups:
            parameters += _spelled_out(groups[one.name])
        else:
            parameters.append(_option(one.name, hints[one.name], one.default))
    where = next((number for number, one in enumerate(parameters) if one.name == "json"), len(parameters))
    added = {**({"device": DeviceOption} if verb in _computing else {}), **OPTIONS}
    parameters[where:where] = [_option(name, kind, None) for name, kind in added.items()]
    parameters.append(_option("debug", DebugOption, False))

    @functools.wraps(verb)
    def extended(*, plugin: list[str] | None = None, own_recipes: str | None = None, **given: Any) -> Any:
        for name in ("device", "debug"):  # whoever parses the command line has obeyed them
            given.pop(name, None)
        if plugin:
            from stemma.plugins import use_plugin

            for path in plugin:
                use_plugin(path)
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        if own_recipes is None:
            return verb(**given)
        from stemma.recipe_files import user_recipe_folder

        with user_recipe_folder(own_recipes):
            return verb(**given)

    extended.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    extended.__annotations__ = {one.name: one.annotation for one in parameters}
    return extended


def _spelled_out(group: Any) -> list[inspect.Parameter]:
    """An option for each field of a group."""
    hints = get_type_hints(group, include_extras=True)
    return [_option(one.name, hints[one.name], inspect.Parameter.empty if one.default is MISSING else one.default)
            for one in fields(group)]


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)

"""`tree`, `show` and `diff`: print recipes without building a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import TRAIN
from stemma.cli.completion import recipe_names
from stemma.cli.output import JsonOption, align_columns, console, emit, format_value

RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", autocompletion=recipe_names,
                                                 help="name, name@size, or the path of a .toml file.")]
ChangesArgument = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes to the recipe.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=TRAIN)(tree)
    app.command(rich_help_panel=TRAIN)(show)
    app.command(rich_help_panel=TRAIN)(diff)


def tree(html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a web page instead, with "
                                                   "the changes of each recipe.")] = None,
         overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --html.")] = False,
         json: JsonOption = False) -> None:
    """List all recipes as a tree, each under its parent.

    Example: stemma tree --html family.html
    """
    from stemma import recipe_loading

    if html is not None:
        from stemma.errors import UserError
        from stemma.lab.report.tree_html import write_tree

        if html.is_dir() or (html.exists() and not overwrite):
            raise UserError(f"{html} {'is a folder' if html.is_dir() else 'exists'}; choose another file for --html"
                            + ("." if html.is_dir() else ", or add --overwrite."))
        write_tree(html)
    family = recipe_loading.list_recipes()

    def human() -> None:
        from rich.text import Text
        from rich.tree import Tree

        names = {info.name for info in family}

        def grow(branch: Tree, parent: str | None) -> None:
            for info in family:
                if (info.parent if info.parent in names else None) == parent:
                    label = Text.assemble((info.name, "bold"), f"  {info.year or ''}  ", (info.summary, "dim"))
                    grow(branch.add(label), info.name)

        if html is not None:
            print(f"wrote {html}")
            return
        root = Tree("", hide_root=True)
        grow(root, None)
        console().print(root)

    emit({"recipes": [info.to_json() for info in family], **({"html": str(html)} if html else {})}, json, human)


def show(recipe: RecipeArgument, changes: ChangesArgument = None, json: JsonOption = False) -> None:
    """Print all values of a recipe, each with the ancestor that set it.

    Example: stemma show bert@tiny network.layers=4
    """
    from stemma import recipe_loading
    from stemma.schema.overrides import flatten

    resolved = recipe_loading.recipe(recipe, changes or ())

    def human() -> None:
        from rich.text import Text

        title = f"{resolved.title} ({resolved.year})" if resolved.year else resolved.title
        heading = [resolved.label, title, resolved.paper]
        console().print(Text(" · ".join(part for part in heading if part), style="bold"))
        if resolved.summary:
            console().print(Text(resolved.summary))
        if resolved.sizes:
            console().print(Text(f"sizes: {', '.join(resolved.sizes)}", style="dim"))
        flat = flatten(resolved.values)
        lines = align_columns([(key, format_value(value), resolved.origin[key]) for key, value in flat.items()])
        section = ""
        for key, line in zip(flat, lines, strict=True):
            if section != (section := key.split(".")[0]):
                console().print()
            console().print(Text("  " + line, style="dim" if resolved.origin[key] == recipe_loading.DEFAULT else ""))

    emit({"recipe": resolved.label, "parent": resolved.parent, "title": resolved.title, "year": resolved.year,
          "paper": resolved.paper, "summary": resolved.summary, "sizes": resolved.sizes, "values": resolved.values,
          "origin": resolved.origin}, json, human)


def diff(a: Annotated[str, typer.Argument(metavar="A", autocompletion=recipe_names, help="A recipe.")],
         b: Annotated[str, typer.Argument(metavar="B", autocompletion=recipe_names, help="Another recipe.")],
         json: JsonOption = False) -> None:
    """List the changes from one recipe to another.

    Example: stemma diff transformer bert
    """
    from stemma import recipe_loading

    changes = recipe_loading.diff(a, b)

    def human() -> None:
        from rich.text import Text

        count = f"{len(changes)} change{'' if len(changes) == 1 else 's'}" if changes else "no difference"
        console().print(Text(f"{a} -> {b} · {count}", style="bold"))
        for change, lines in zip(changes, wrap_rows([_diff_row(change) for change in changes], console().width),
                                 strict=True):
            style = "red" if change.after is None else "green" if change.before is None else ""
            console().print(Text("\n".join(lines), style=style))

    emit({"a": a, "b": b, "changes": [{"key": change.key, "from": change.before, "to": change.after}
                                      for change in changes]}, json, human)


def wrap_rows(rows: list[tuple[str, str, str]], width: int) -> list[list[str]]:
    """The lines of each row, none wider than the terminal. Values that do not fit after their key are printed
    below it, and their row does not count for the alignment of the others."""
    from textwrap import wrap

    indent = " " * 7
    fitting = rows
    while fitting and max(map(len, align_columns(fitting))) + 2 > width:
        widest = max(range(len(fitting)), key=lambda index: max(map(len, fitting[index][1:])))
        fitting = fitting[:widest] + fitting[widest + 1:]
    aligned = dict(zip(fitting, align_columns(fitting), strict=True))
    return [[f"  {aligned[row]}"] if row in aligned else
            [f"  {row[0]}", *wrap(" ".join(filter(None, row[1:])), width, initial_indent=indent,
                                  subsequent_indent=indent, break_long_words=True, break_on_hyphens=False)]
            for row in rows]


def _diff_row(change: Any) -> tuple[str, str, str]:
    """Sign and key, old value, new value."""
    if change.after is None:
        return f"-  {change.key}", "", ""
    if change.before is None:
        return f"+  {change.key}", format_value(change.after), ""
    return f"~  {change.key}", format_value(change.before), f"->  {format_value(change.after)}"

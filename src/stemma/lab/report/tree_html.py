"""The family tree of recipes as one page: each recipe below its parent, with a summary and its changes."""

from __future__ import annotations

import html
from collections.abc import Collection
from pathlib import Path

from stemma import recipe_loading
from stemma.errors import pluralize
from stemma.lab.report.html_report import HtmlReport, html_table
from stemma.lab.report.lab_phrases import format_setting


def write_tree(path: Path, highlighted: Collection[str] = ()) -> Path:
    """Write the page. It needs no script: the browser expands `<details>`."""
    family = recipe_loading.list_recipes()
    years = [info.year for info in family if info.year]
    page = HtmlReport("The family of recipes").intro(
        f"{len(family)} recipes, {min(years)} to {max(years)}. A recipe is a set of changes to its parent and is shown "
        "below it. Open one to see its changes.")
    page.tree([info.to_json() | {"lit": info.name in highlighted} for info in family],
              {info.name: _recipe_details(info) for info in family})
    page.section("In the terminal").code("stemma tree\nstemma show bert\nstemma diff bert roberta")
    return page.write(path)


def _recipe_details(info: recipe_loading.RecipeInfo) -> str:
    """Title and paper, then the changes."""
    if info.file is not None:  # it may name plug-ins, and this page loads no code
        return f"<p>{html.escape(info.title)}, your own recipe: <code>{html.escape(info.file)}</code></p>"
    recipe = recipe_loading.recipe(info.name)
    title = html.escape(", ".join(filter(None, [info.title, recipe.paper])))
    if info.parent is None:
        return f"<p>{title}. A root: it has no parent. <code>stemma show {info.name}</code> prints it in full.</p>"
    changes = recipe_loading.diff(info.parent, recipe)
    rows = [[f"`{change.key}`", "\u2013" if change.before is None else format_setting(change.before),
             "removed" if change.after is None else format_setting(change.after)] for change in changes]
    return (f"<p>{title}. {pluralize(len(changes), 'change')} from {html.escape(info.parent)}:</p>"
            + html_table(["key", info.parent, info.name], rows))

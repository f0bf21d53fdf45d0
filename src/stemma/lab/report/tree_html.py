"""The family of recipes as one page: each below its parent, with its idea, and what it changed to be unfolded."""

from __future__ import annotations

import html
from collections.abc import Collection
from pathlib import Path

from stemma import recipe_loading
from stemma.errors import pluralize
from stemma.lab.report.html_report import HtmlReport, html_table
from stemma.lab.report.lab_phrases import format_setting


def write_tree(path: Path, highlighted: Collection[str] = ()) -> Path:
    """Needs no script: unfolding is the browser's own."""
    family = recipe_loading.list_recipes()
    years = [info.year for info in family if info.year]
    page = HtmlReport("The family of recipes").intro(
        f"{len(family)} recipes, {min(years)} to {max(years)}. A recipe is what it changed from its parent: each "
        "stands below the one that it changes. Open one to see what it changed.")
    page.tree([info.to_json() | {"lit": info.name in highlighted} for info in family],
              {info.name: _recipe_details(info) for info in family})
    page.section("In the terminal").code("stemma tree\nstemma show bert\nstemma diff bert roberta")
    return page.write(path)


def _recipe_details(info: recipe_loading.RecipeInfo) -> str:
    """Title and paper, then the changes."""
    if info.file is not None:  # it may name plug-ins, and a page of the family loads no code
        return f"<p>{html.escape(info.title)}, of your own: <code>{html.escape(info.file)}</code></p>"
    found = recipe_loading.recipe(info.name)
    about = html.escape(", ".join(filter(None, [info.title, found.paper])))
    if info.parent is None:
        return f"<p>{about}. A root: it has no parent. <code>stemma show {info.name}</code> prints it in full.</p>"
    changes = recipe_loading.diff(info.parent, found)
    rows = [[f"`{change.key}`", "\u2013" if change.before is None else format_setting(change.before),
             "removed" if change.after is None else format_setting(change.after)] for change in changes]
    return (f"<p>{about}. {pluralize(len(changes), 'change')} from {html.escape(info.parent)}:</p>"
            + html_table(["key", info.parent, info.name], rows))

"""The other sections of a lab report: learning curves, recipes, cost, scaling laws, and commands to reproduce it."""

from __future__ import annotations

from collections.abc import Mapping

from stemma.errors import pluralize
from stemma.lab.report import lab_phrases as phrases
from stemma.lab.report.html_report import EMPTY, Cell, NumberCell, ReportWriter
from stemma.lab.results_data import Results

AXES = {"tokens": ("training tokens", 0), "flops": ("training FLOPs", 1), "minutes": ("training time, s", 2)}


def write_curves(results: Results, report: ReportWriter) -> None:
    from stemma.lab.report.lab_plots import draw_curve_panels, draw_curves

    label, column = AXES[results["budget"]["unit"]]
    runs: dict[str, list[list[tuple[float, float]]]] = {}
    for cell in phrases.finished_cells(results):
        if cell["curve"]:
            runs.setdefault(cell["variant"], []).append([(point[column], point[3]) for point in cell["curve"]])
    if not runs:
        return
    report.tab("Curves", "Validation loss of each recipe's own objective during training. Losses of different "
               "objectives or tokenizers are not comparable; the shapes of the curves are.")
    caption = "Lines: mean over the seeds; bands: minimum to maximum."
    y_label = "validation loss, nats (lower is better)"
    if results["contributions"] is None:
        ranking = phrases.variant_means(results, results["measures"][0]["key"]) if results["measures"] else {}
        order = dict.fromkeys([*ranking, *runs])
        tokenizers = {variant["name"]: variant["tokenizer"] for variant in results["variants"]}
        for index, tokenizer in enumerate(dict.fromkeys(tokenizers[name] for name in order if name in runs), 1):
            curves = {name: runs[name] for name in order if name in runs and tokenizers[name] == tokenizer}
            report.figure(draw_curves(curves, label, y_label), f"Tokenizer: {tokenizer}. {caption}", f"curves-{index}")
        return
    parent, child = phrases.parent_and_child(results)
    panels = {}
    for contribution in results["contributions"]:
        by_role = {variant["role"]: variant["name"] for variant in results["variants"]
                   if variant["change"] == contribution["change"]}
        names = {"child": child, "parent": parent, "plus": by_role.get("plus"), "minus": by_role.get("minus")}
        panels[contribution["change"]] = {role: runs.get(name or "", []) for role, name in names.items()}
    report.figure(draw_curve_panels(panels, label, y_label),
                  f"One plot per change. Thick: {child}; thin: {parent}; dashed: the parent with this change; dotted: "
                  f"the child without it. {caption}", "curves")


def write_recipes(results: Results, report: ReportWriter) -> None:
    report.tab("Recipes", "A recipe is a set of changes to its parent. The compared recipes in the family tree:")
    report.tree(results["tree"])
    report.table(["variant", "tokenizer", "parameters"],
                 [[variant["name"], variant["tokenizer"], variant["parameters"]] for variant in results["variants"]
                  if variant["role"] not in ("plus", "minus")])
    for diff in results["diffs"]:
        report.section(f"{diff['a']} \u2192 {diff['b']}")
        if diff["changes"]:
            report.table(["key", diff["a"], diff["b"]],
                         [[f"`{change['key']}`", "\u2013" if change["from"] is None
                           else phrases.format_setting(change["from"]),
                           "removed" if change["to"] is None else phrases.format_setting(change["to"])]
                          for change in diff["changes"]])
        else:
            report.text("No differences.")


def write_cost(results: Results, report: ReportWriter) -> None:
    report.tab("Cost", *filter(None, [phrases.budget_note(results), phrases.runtime_text(results)]))
    unit = {"minutes": "seconds"}.get(results["budget"]["unit"], results["budget"]["unit"])
    columns = {"parameters": "parameters", "tokens": "tokens", "flops": "FLOPs", "seconds": "training, s",
               "tokens_per_second": "tokens/s", "cell_seconds": "with evaluation, s"}
    report.table(["variant", *(f"{name}{' (held equal)' if key == unit else ''}" for key, name in columns.items())],
                 [[row["variant"], *(_cost_cell(row["cost"], key) for key in columns)] for row in results["table"]],
                 "Means over the seeds.", sortable=True)


def _cost_cell(cost: Mapping[str, float], key: str) -> Cell:
    if key not in cost:
        return EMPTY
    return NumberCell(phrases.format_short(cost[key]) if key == "flops" else f"{cost[key]:,.0f}", cost[key])


def write_minimal_pairs(results: Results, report: ReportWriter) -> None:
    """The accuracy of every variant on each field and phenomenon."""
    blimp = results.get("blimp")
    if blimp is None or not (blimp["phenomena"] or blimp["without"]):
        return
    variants = list(blimp["phenomena"])
    kinds = ", ".join(f"{name}: {kind}" for name, kind in blimp["scoring"].items())
    report.tab("Minimal pairs", f"Accuracy on the pairs of {blimp['folder']}: how often the acceptable sentence is "
               "more probable. Means over the seeds; chance level 50%, a tie counts as half."
               f"{f' Scoring: {kinds}.' if kinds else ''}")
    report.text(*(f"{name} has no score: {why}" for name, why in blimp["without"].items()))
    for title, table in (("field", blimp["fields"]), ("phenomenon", blimp["phenomena"])):
        if variants and (names := list(table[variants[0]])):
            report.table([title, *variants],
                         [[name, *(NumberCell(f"{table[variant][name]:.1%}", table[variant][name])
                                   for variant in variants)] for name in names], sortable=True)


def write_scaling(results: Results, report: ReportWriter) -> None:
    from stemma.lab.report.lab_plots import draw_scaling

    report.tab("Scaling", "Loss = floor + factor \u00d7 x^\u2212exponent, fitted to the points. The fit holds in the "
               "measured range; beyond the last point it is an extrapolation.")
    titles = {measure["key"]: f"{measure['title']} ({phrases.metric_unit(measure)})"
              for measure in results["measures"]}
    names = {"parameters": "parameters", "tokens": "training tokens", "flops": "training FLOPs"}
    fits = results["scaling"] or []
    for x in dict.fromkeys(fit["x"] for fit in fits):
        matches = [fit for fit in fits if fit["x"] == x]
        report.section(f"By {names[x]}")
        report.figure(draw_scaling(matches, names[x], titles.get(key := matches[0]["measure"], key.replace("_", " "))),
                      "Points: runs, or points of their learning curves; lines: fitted power laws; bands: 95% over the "
                      "seeds. Both axes are logarithmic.", f"scaling-{x}")
        report.table(["recipe", "exponent", "95% interval", "factor", "floor"],
                     [[fit["recipe"], NumberCell(phrases.format_number(fit["exponent"]), fit["exponent"]),
                       _format_interval(fit["exponent_low"], fit["exponent_high"]),
                       NumberCell(f"{fit['factor']:.4g}", fit["factor"]),
                       EMPTY if fit["floor"] is None else NumberCell(phrases.format_number(fit["floor"]), fit["floor"])]
                      for fit in matches], sortable=True)
        report.text(*dict.fromkeys(fit["note"] for fit in matches if fit["note"]))


def _format_interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "one seed: none"
    return f"{phrases.format_number(low)} to {phrases.format_number(high)}"


def write_reproduction(results: Results, report: ReportWriter) -> None:
    data, environment = results["data"], results["made"]
    report.tab("Reproduce", "The whole experiment:")
    report.code(results["command"])
    if results["commands"]:
        report.text("Single models, with the first seed:")
        report.code("\n".join(results["commands"].values()))
    report.table(["", "value"], [
        ["text", ", ".join(data["text"])],
        ["documents", f"{data['documents']:,} for training, {data['held_out_documents']:,} held out "
         f"({data['held_out_bytes']:,} bytes)"],
        ["seeds", ", ".join(map(str, results["seeds"]))],
        *([f"fine-tuning on {name}", pluralize(epochs, "epoch")] for name, epochs in results.get("tasks", {}).items()),
        ["machine", environment["machine"]],
        ["versions", f"stemma {environment['stemma']}, Python {environment['python']}, torch {environment['torch']}"],
        ["date", environment["date"]]])
    report.section("Cells", "Each cell is an ordinary run in `cells/`, in a folder named by the digest of its inputs. "
                   "Equal weight digests mean identical weights.")
    report.table(["variant", "seed", "state", "cell", "digest of the weights"],
                 [[cell["variant"], cell["seed"], cell["state"], f"`{cell['hash'][:12]}`",
                   f"`{cell['digest'][:16]}`" if cell["digest"] else "none"] for cell in results["cells"]],
                 sortable=True)

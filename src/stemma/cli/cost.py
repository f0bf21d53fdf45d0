"""`cost`: measured time and memory of recipes, or of single layers, as the text grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stemma.cli.common_options import LAB, computes
from stemma.cli.compare_ablate import split_recipes
from stemma.cli.completion import recipe_names
from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize

RecipesArgument = Annotated[list[str] | None, typer.Argument(metavar="RECIPE... [KEY=VALUE...]", show_default=False,
                                                             autocompletion=recipe_names, help="Recipes, and changes "
                                                             "that apply to all of them; none with --layers.")]


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=LAB)(cost)


@computes
def cost(recipes: RecipesArgument = None,
         lengths: Annotated[str, typer.Option(metavar="N,N,...", help="Lengths of the text in tokens.")] =
         "128,256,512",
         layers: Annotated[str | None, typer.Option(metavar="KIND,KIND,...", show_default=False, help="Measure single "
                                                    "layers instead of recipes: lstm, convolution, "
                                                    "separable-convolution, attention, windowed-attention, "
                                                    "core-attention (without projections), or all.")] = None,
         widths: Annotated[str | None, typer.Option(metavar="D,D,...", show_default="64,128,256,512",
                                                    help="Widths of the layers.")] = None,
         kernel: Annotated[int | None, at_least(1, "Kernel size of convolutions, odd", show_default="3")] = None,
         window: Annotated[int | None, at_least(2, "Positions that windowed attention reads",
                                                show_default="128")] = None,
         backward: Annotated[bool, typer.Option("--backward", help="Also measure forward and backward together, in "
                                                "training mode (layers: only that).")] = False,
         batch: Annotated[int, at_least(1, "Texts in a batch")] = 1,
         rounds: Annotated[int, at_least(1, "Rounds; the median counts")] = 5,
         minutes: Annotated[float, typer.Option(help="Limit of the time: passes that do not fit are left out.")] = 5.0,
         threads: Annotated[int | None, at_least(1, "Threads of the computation", show_default="torch's")] = None,
         json: JsonOption = False) -> None:
    """Measure time and memory of a forward pass as the text grows, and fit the exponent of its growth.

    The passes take turns in every round. Memory is the most that torch has allocated at one time during the pass,
    without the weights. Weights and texts are random.

    Example: stemma cost bert@tiny modernbert@tiny --lengths 128,256,512 --backward

    Example: stemma cost --layers all --widths 64,256 --lengths 64,256,1024
    """
    if not 0 < minutes < float("inf"):
        raise UserError(f"--minutes must be more than 0, not {minutes:g}.")
    common: dict[str, Any] = {"batch": batch, "backward": backward, "rounds": rounds, "minutes": minutes,
                              "threads": threads}
    sizes = _numbers(lengths, "--lengths")
    if layers is not None:
        if recipes:
            raise UserError(f"--layers measures single layers, and {recipes[0]} is given too; leave out one of them.")
        from stemma.lab.layer_cost import LAYERS, layer_cost

        names = list(LAYERS) if layers == "all" else [name.strip() for name in layers.split(",") if name.strip()]
        common |= {name: value for name, value in (("kernel", kernel), ("window", window)) if value is not None}
        result = layer_cost(names, _numbers(widths or "64,128,256,512", "--widths"), sizes, **common)
        emit(result, json, lambda: _show_layers(result))
        return
    misplaced = [name for name, value in (("--widths", widths), ("--kernel", kernel), ("--window", window))
                 if value is not None]
    if misplaced:
        raise UserError(f"{misplaced[0]} is about --layers, and none are given; a recipe has its own "
                        "(network.width=...).")
    from stemma.lab.cost import cost as measure_cost

    names, changes = split_recipes(recipes or [])
    result = measure_cost(names, sizes, changes=changes, **common)
    emit(result, json, lambda: _show_recipes(result))


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(number.strip().replace("_", "")) for number in text.split(",") if number.strip()]
    except ValueError:
        raise UserError(f'{option} is "{text}"; give whole numbers, such as 128,256,512.') from None


def _show_recipes(result: Mapping[str, Any]) -> None:
    training = any("training_seconds" in row for row in result["rows"])
    header = ["recipe", "length", "forward", "memory", *(["with backward", "memory"] if training else [])]
    table = [header]
    for row in result["rows"]:
        cells = [row["recipe"], f"{row['length']:,}", _seconds(row["seconds"]), _bytes(row["bytes"])]
        if training:
            cells += [_seconds(row.get("training_seconds")), _bytes(row.get("training_bytes"))]
        table.append(cells)
    print("\n".join(align_columns(table)))
    names = {"seconds": "time", "bytes": "memory", "training_seconds": "time with backward",
             "training_bytes": "memory with backward"}
    measured = [name for name in names if any(values.get(name) is not None
                                              for values in result["exponents"].values())]
    if measured:
        print("\ngrowth with the length n (in brackets between the last two lengths)")
        table = [["recipe", *(names[name] for name in measured)]]
        for recipe, exponents in result["exponents"].items():
            last = result["last_exponents"][recipe]
            table.append([recipe, *(_growth(exponents[name], last[name]) for name in measured)])
        print("\n".join(align_columns(table)))
    _show_left_out(result, "recipe")
    _show_conditions(result)


def _growth(exponent: float | None, last: float | None) -> str:
    return "" if exponent is None or last is None else f"n^{exponent:.2f} ({last:.2f})"


def _show_layers(result: Mapping[str, Any]) -> None:
    widths, lengths = ([*dict.fromkeys(row[key] for row in sorted(result["rows"], key=lambda row: row[key]))]
                       for key in ("width", "length"))
    times = {(row["layer"], row["width"], row["length"]): row["seconds"] for row in result["rows"]}
    table = [["layer", "d", *(f"n = {length:,}" for length in lengths)]]
    table += [[layer, f"{width:,}", *(_seconds(times.get((layer, width, length))) for length in lengths)]
              for layer in result["theory"] for width in widths]
    print("\n".join(align_columns(table)) + "\n")
    table = [["layer", "time", "FLOPs on this grid", "operations", "sequential steps", "longest path"]]
    for layer, theory in result["theory"].items():
        exponents = result["exponents"][layer]
        table.append([layer, _power(exponents["seconds"]), _power(exponents["flops"]), theory["operations"],
                      theory["sequential_steps"], theory["longest_path"]])
    print("\n".join(align_columns(table)))
    if result["crossings"]:
        print()
        table = [["slower from", "than", "d", "time", "FLOPs", "table"]]
        table += [[item["attention"], item["other"], f"{item['width']:,}", _crossing(item),
                   "n < 1" if item["flops_length"] is None else f"n = {item['flops_length']:,.0f}",
                   f"n = {item['theory_length']:,}"] for item in result["crossings"]]
        print("\n".join(align_columns(table)))
    _show_left_out(result, "layer")
    _show_conditions(result)


def _crossing(item: Mapping[str, Any]) -> str:
    if item["length"] is not None:
        return f"n = {item['length']:,.0f}"
    if item["faster"] is None:
        return "not measured"
    shortest, longest = item["measured"]
    return f"n > {longest:,}" if item["faster"] == item["attention"] else f"n < {shortest:,}"


def _power(exponents: Mapping[str, float] | None) -> str:
    return "" if exponents is None else f"n^{exponents['n']:.2f} d^{exponents['d']:.2f}"


def _show_left_out(result: Mapping[str, Any], key: str) -> None:
    for item in result["left_out"]:
        width = f", d = {item['width']:,}" if "width" in item else ""
        mode = " with backward" if item.get("mode") == "training" else ""
        print(f"left out: {item[key]}{width}, length {item['length']:,}{mode}: {item['why']}")


def _show_conditions(result: Mapping[str, Any]) -> None:
    print(f"median of {pluralize(result['rounds'], 'round')} · batch {result['batch']} · {result['device']}, "
          f"{pluralize(result['threads'], 'thread')}, fp32 · {result['clock']}")


def _seconds(value: float | None) -> str:
    if value is None:
        return "left out"
    return f"{value:,.2f} s" if value >= 1 else f"{1000 * value:,.3g} ms"


def _bytes(value: int | None) -> str:
    return "not counted" if value is None else f"{value / 1e6:,.1f} MB"


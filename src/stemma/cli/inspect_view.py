"""The examples of `inspect` for people: one line of text with its targets marked, and who sees whom as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stemma.cli.output import console
from stemma.errors import pluralize

if TYPE_CHECKING:
    from rich.text import Text

MAX_GRID = 32  # places of a random order that are drawn
LEGENDS = {
    "masked": "{hidden}  {guess<-replaced}  {kept as it was!}  · segments change at ‖",
    "causal": "every place guesses the token after it; » is what the last one guesses  · segments change at ‖",
    "permuted": "{target·turn} is guessed from all that has no turn and from earlier turns; special tokens take turns "
                "too  · segments change at ‖, ¦ ends the half that the memory keeps",
    "prefix": "what stands before ¦ sees itself in full; from there on every place guesses the token after it; » is "
              "what the last one guesses",
    "two sides": "the encoder sees all of the source; the decoder sees it too, and what it has written before",
}


def show_examples(result: dict[str, Any]) -> None:
    batch = result["batch"]
    scored = ", ".join(f"{pluralize(count, 'place')} for {head}" for head, count in batch["scored"].items())
    _print(f"{result['recipe']} · {', '.join(result['objectives'])} · {batch['rows']} x {batch['length']} "
           f"({batch['padding']:.1%} padding) · {scored}", "bold")
    told = drawn = None
    for number, example in enumerate(result["examples"], 1):
        kind = _kind(example)
        if kind != told:
            told = kind
            _print(LEGENDS[kind], "dim")
        notes = [f"{head} = {label}" for head, label in example["labels"].items()]
        notes += ["read backwards"] if example["direction"] == "backward" else []
        notes += [f"written from {example['decoder_input'][0]} on"] if kind == "two sides" else []
        _print("\n" + " · ".join([f"example {number}", *notes]), "bold")
        if kind == "two sides":
            _show_source_and_target(example, result["mask"])
            continue
        console().print(_line(example, kind, result["mask"]))
        for name, classes in example.get("classes", {}).items():
            asked = [token for token, label in zip(example["input"], classes, strict=True) if label]
            _print(f"{name}: yes for {' '.join(asked) or 'none'}", "dim")
        if kind == "permuted":
            _show_permutation(example)
        elif example["visibility"] != drawn:
            drawn = example["visibility"]
            where = "around the prefix's end" if "prefix" in example else "among the first places"
            _show_grid(f"who sees whom {where} (down: who reads; across: what is seen)", drawn)


def show_tokens(tokens: list[dict[str, Any]]) -> None:
    """How a model read a text: a line for each token."""
    width = max(len(entry["token"]) for entry in tokens)
    for entry in tokens:
        steps = f"{entry['steps']:4.0f} steps " + "▪" * round(entry["steps"]) if "steps" in entry else ""
        foreseen = f"{entry['probability']:7.1%}  expected {entry['expected']}" if "probability" in entry else ""
        _print(f"  {entry['token']:<{width}}  {foreseen:<32}{steps}".rstrip())


def _kind(example: dict[str, Any]) -> str:
    if "decoder_input" in example:
        return "two sides"
    if "order" in example:
        return "permuted"
    return "masked" if example["guesses"] == "own" else "prefix" if "prefix" in example else "causal"


def _show_source_and_target(example: dict[str, Any], mask: str | None) -> None:
    """Source and target side by side; masks, and sentinels that stand for a span on either side, stand out."""
    from rich.table import Table
    from rich.text import Text

    read, written = example["input"], example["decoder_targets"]
    marks = {mask} | ((set(read) & set(written)) - set(example["original"]))
    table = Table("source", "target", box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    for column in table.columns:
        column.ratio = 1
    table.add_row(*(Text(" ").join(Text(token, style="bold" if token in marks else "") for token in tokens)
                    for tokens in (read, written)))
    console().print(table)


def _show_permutation(example: dict[str, Any]) -> None:
    """The two streams of one example: what is read, and what is guessed unseen."""
    _show_grid(f"the first stream, places 0 to {min(MAX_GRID, len(example['order'])) - 1} (down: who reads; across: "
               "what is seen)", [line[:MAX_GRID] for line in example["visibility"][:MAX_GRID]])
    _print("the second stream: what each target there is guessed from", "dim")
    for target, line in zip(example["targets"], example["query_visibility"], strict=True):
        if target["position"] < MAX_GRID:
            _print("  " + "".join("█" if seen else "·" for seen in line[:MAX_GRID])
                   + f"  {target['token']} at {target['position']}")


def _show_grid(title: str, rows: list[list[int]]) -> None:
    """Two rows of the picture in one line of text, so that it comes out square."""
    _print(title, "dim")
    rows = rows + [[0] * len(rows[0])] if len(rows) % 2 else rows
    signs = {(1, 1): "█", (1, 0): "▀", (0, 1): "▄", (0, 0): " "}
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        _print("  " + "".join(signs[pair] for pair in zip(upper, lower, strict=True)))


def _line(example: dict[str, Any], kind: str, mask: str | None) -> Text:
    """The input as one line of text with every target marked."""
    from rich.text import Text

    line = Text()
    wanted = {target["position"]: target["token"] for target in example["targets"]}
    text = {place for start, stop in example["words"] for place in range(start, stop)}
    segment = example["segments"][0] if example["segments"] else 0
    for place, token in enumerate(example["input"]):
        if place == (example["past"] or example.get("prefix", 0)) > 0:
            line.append("¦ ", style="dim")
        if example["segments"][place] != segment:
            line.append("‖ ", style="dim")
            segment = example["segments"][place]
        if kind == "permuted" and (place in wanted or place not in text):
            marked = f"{token}·{example['order'][place]}"
            line.append(*((f"{{{marked}}} ", "bold") if place in wanted else (f"{marked} ", "dim")))
        elif kind in ("causal", "prefix") or place not in wanted:
            line.append(f"{token} ")
        elif token == example["original"][place]:
            line.append(f"{{{token}!}} ", style="green")
        elif token == mask:
            line.append(f"{{{wanted[place]}}} ", style="bold")
        else:
            line.append(f"{{{wanted[place]}<-{token}}} ", style="red")
    if kind in ("causal", "prefix") and len(example["input"]) - 1 in wanted:
        line.append(f"» {wanted[len(example['input']) - 1]}", style="bold")
    return line


def _print(text: str, style: str = "") -> None:
    from rich.text import Text

    console().print(Text(text, style=style))

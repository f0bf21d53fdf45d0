"""The printed examples of `inspect`: a line of text with its targets marked, and the attention mask as a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stemma.cli.output import console
from stemma.errors import pluralize

if TYPE_CHECKING:
    from rich.text import Text

MAX_GRID = 32  # positions that the grid of a permutation shows
LEGENDS = {
    "masked": "{masked}  {target<-replaced}  {unchanged!}  · segments change at ‖",
    "causal": "every position predicts the next token; » is the target of the last position  · segments change at ‖",
    "permuted": "{target·rank} is predicted from tokens without a rank and from lower ranks; special tokens have ranks "
                "too  · segments change at ‖, ¦ ends the half that goes into the memory",
    "prefix": "bidirectional attention before ¦; from there on every position predicts the next token; » is the target "
              "of the last position",
    "seq2seq": "the encoder attends to the whole source; the decoder attends to the source and to earlier targets",
}


def show_examples(result: dict[str, Any]) -> None:
    batch = result["batch"]
    targets = ", ".join(f"{pluralize(count, 'target')} for {head}" for head, count in batch["scored"].items())
    _print(f"{result['recipe']} · {', '.join(result['objectives'])} · {batch['rows']} x {batch['length']} "
           f"({batch['padding']:.1%} padding) · {targets}", "bold")
    last_kind = last_grid = None
    for number, example in enumerate(result["examples"], 1):
        kind = _kind(example)
        if kind != last_kind:
            last_kind = kind
            _print(LEGENDS[kind], "dim")
        notes = [f"{head} = {label}" for head, label in example["labels"].items()]
        notes += ["right to left"] if example["direction"] == "backward" else []
        notes += [f"decoder starts with {example['decoder_input'][0]}"] if kind == "seq2seq" else []
        _print("\n" + " · ".join([f"example {number}", *notes]), "bold")
        if kind == "seq2seq":
            _show_source_and_target(example, result["mask"])
            continue
        console().print(_line(example, kind, result["mask"]))
        for name, classes in example.get("classes", {}).items():
            positive = [token for token, label in zip(example["input"], classes, strict=True) if label]
            _print(f"{name}: yes for {' '.join(positive) or 'none'}", "dim")
        if kind == "permuted":
            _show_permutation(example)
        elif example["visibility"] != last_grid:
            last_grid = example["visibility"]
            where = "positions around the end of the prefix" if "prefix" in example else "first positions"
            _show_grid(f"attention mask, {where} (rows: queries; columns: keys)", last_grid)


def show_tokens(tokens: list[dict[str, Any]]) -> None:
    """The token report of a model: a line for each token."""
    width = max(len(entry["token"]) for entry in tokens)
    for entry in tokens:
        steps = f"{entry['steps']:4.0f} steps " + "▪" * round(entry["steps"]) if "steps" in entry else ""
        prediction = f"{entry['probability']:7.1%}  expected {entry['expected']}" if "probability" in entry else ""
        _print(f"  {entry['token']:<{width}}  {prediction:<32}{steps}".rstrip())


def _kind(example: dict[str, Any]) -> str:
    if "decoder_input" in example:
        return "seq2seq"
    if "order" in example:
        return "permuted"
    return "masked" if example["guesses"] == "own" else "prefix" if "prefix" in example else "causal"


def _show_source_and_target(example: dict[str, Any], mask: str | None) -> None:
    """Source and target side by side, with masks and sentinels in bold."""
    from rich.table import Table
    from rich.text import Text

    source, target = example["input"], example["decoder_targets"]
    marks = {mask} | ((set(source) & set(target)) - set(example["original"]))
    table = Table("source", "target", box=None, padding=(0, 2, 0, 0), expand=True, header_style="dim")
    for column in table.columns:
        column.ratio = 1
    table.add_row(*(Text(" ").join(Text(token, style="bold" if token in marks else "") for token in tokens)
                    for tokens in (source, target)))
    console().print(table)


def _show_permutation(example: dict[str, Any]) -> None:
    """The attention masks of both streams: content, and the query of each target."""
    _show_grid(f"attention mask of the content stream, positions 0 to {min(MAX_GRID, len(example['order'])) - 1} "
               "(rows: queries; columns: keys)", [line[:MAX_GRID] for line in example["visibility"][:MAX_GRID]])
    _print("attention mask of the query stream: what each target is predicted from", "dim")
    for target, line in zip(example["targets"], example["query_visibility"], strict=True):
        if target["position"] < MAX_GRID:
            _print("  " + "".join("█" if visible else "·" for visible in line[:MAX_GRID])
                   + f"  {target['token']} at {target['position']}")


def _show_grid(title: str, rows: list[list[int]]) -> None:
    """Print two rows of the mask per line of text, so that the grid is square."""
    _print(title, "dim")
    rows = rows + [[0] * len(rows[0])] if len(rows) % 2 else rows
    signs = {(1, 1): "█", (1, 0): "▀", (0, 1): "▄", (0, 0): " "}
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        _print("  " + "".join(signs[pair] for pair in zip(upper, lower, strict=True)))


def _line(example: dict[str, Any], kind: str, mask: str | None) -> Text:
    """The input as one line of text with every target marked."""
    from rich.text import Text

    line = Text()
    targets = {target["position"]: target["token"] for target in example["targets"]}
    words = {position for start, stop in example["words"] for position in range(start, stop)}
    segment = example["segments"][0] if example["segments"] else 0
    for position, token in enumerate(example["input"]):
        if position == (example["past"] or example.get("prefix", 0)) > 0:
            line.append("¦ ", style="dim")
        if example["segments"][position] != segment:
            line.append("‖ ", style="dim")
            segment = example["segments"][position]
        if kind == "permuted" and (position in targets or position not in words):
            marked = f"{token}·{example['order'][position]}"
            line.append(*((f"{{{marked}}} ", "bold") if position in targets else (f"{marked} ", "dim")))
        elif kind in ("causal", "prefix") or position not in targets:
            line.append(f"{token} ")
        elif token == example["original"][position]:
            line.append(f"{{{token}!}} ", style="green")
        elif token == mask:
            line.append(f"{{{targets[position]}}} ", style="bold")
        else:
            line.append(f"{{{targets[position]}<-{token}}} ", style="red")
    if kind in ("causal", "prefix") and len(example["input"]) - 1 in targets:
        line.append(f"» {targets[len(example['input']) - 1]}", style="bold")
    return line


def _print(text: str, style: str = "") -> None:
    from rich.text import Text

    console().print(Text(text, style=style))

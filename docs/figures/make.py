"""Draws the figures of the documentation from the code that they explain: python docs/figures/make.py [NAME ...]"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from examples import HERE, attention, depth_of, inspect, own_cache, visible  # noqa: E402
from svg import CELL, GAP, ROW, Column, Drawing, Mask  # noqa: E402

LENGTH = "corpus.sequence_length={}".format
FIGURES: dict[str, Callable[[], Drawing]] = {}


def figure(make: Callable[[], Drawing]) -> Callable[[], Drawing]:
    FIGURES[make.__name__.replace("_", "-")] = make
    return make


def main(names: list[str]) -> None:
    for name in names or FIGURES:
        (HERE / f"{name}.svg").write_text(draw(name), encoding="utf-8")


def draw(name: str) -> str:
    with own_cache():
        return str(FIGURES[name]())


# What is common to several figures.

def numbers(count: int, first: int = 0) -> Column:
    return Column("", [str(number + first) for number in range(count)], dict.fromkeys(range(count), "dim"))


def input_column(example: dict[str, Any], mask: str | None, title: str = "input") -> Column:
    """What the network reads. Of the targets, those that show the mask token are filled, those that show another token
    framed, those that show their own framed with dashes."""
    marks = {}
    for target in example["targets"]:
        at = target["position"]
        token, original = example["input"][at], example["original"][at]
        marks[at] = "masked" if token == mask else "kept" if token == original else "replaced"
    return Column(title, example["input"], marks)


def target_column(example: dict[str, Any], count: int, title: str = "target") -> Column:
    words = {target["position"]: target["token"] for target in example["targets"]}
    return Column(title, [words.get(number, "") for number in range(count)])


def masked_legend(drawing: Drawing) -> None:
    y = drawing.height + 12
    x = 0.0
    for kind, words in (("masked", "[MASK]"), ("replaced", "another token"), ("kept", "the token itself")):
        drawing.box(x, y, 14, 14, kind, 3)
        drawing.text(x + 20, y + 11.5, words, "dim")
        x += 20 + len(words) * 6.6 + GAP


def two_stacks(name: str, title: str, *changes: str, corpus: tuple[Path, ...] = (HERE / "text.txt",), longest: int = 1,
               seed: int = 0) -> Drawing:
    """Source and target of an encoder-decoder, with its three kinds of attention; of so many examples the longest."""
    found = inspect(f"{name}@tiny", *changes, corpus=corpus, examples=longest, seed=seed)
    example = max(found["examples"], key=lambda example: len(example["input"]))
    source, written = example["input"], example["decoder_input"]
    seen = attention(f"{name}@tiny", length=len(source), decoder_length=len(written))
    drawing = Drawing(title)
    special = {found["mask"]} | {token for token in source if re.fullmatch(r"\[S\d+\]", token)}  # sentinels
    marks = {at: "masked" for at, token in enumerate(source) if token in special}
    drawing.say("Encoder")
    columns: list[Column | Mask] = [numbers(len(source)), Column("input", source, marks)]
    if example["original"] != source:
        columns.insert(1, Column("text", example["original"]))
        columns[0] = numbers(max(len(source), len(example["original"])))
    drawing.table([*columns, Mask("attends to", seen["encoder"][0])])
    drawing.say("Decoder")
    positions = example.get("decoder_positions")
    counted = numbers(len(written)) if positions is None else Column("", [str(at) for at in positions],
                                                                     dict.fromkeys(range(len(written)), "dim"))
    drawing.table([counted, Column("input", written, {at: "masked" for at, token in enumerate(written)
                                                      if token in special}),
                   Column("target", example["decoder_targets"], {at: "masked" for at, token
                                                                 in enumerate(example["decoder_targets"])
                                                                 if token in special}),
                   Mask("itself", seen["decoder"][0]), Mask("encoder output", seen["cross"][0])])
    return drawing


# One figure each.

@figure
def tree() -> Drawing:
    """The recipes, each below the one that it changes."""
    from stemma.recipe_loading import list_recipes

    known = list_recipes()
    drawing = Drawing("The recipes as a tree: each is a child of the recipe that it changes")
    rows: list[tuple[int, Any]] = []

    def descend(parent: str | None, depth: int) -> None:
        for info in known:
            if info.parent == parent:
                rows.append((depth, info))
                descend(info.name, depth + 1)

    descend(None, 0)
    last: dict[int, int] = {}  # the row of the newest recipe at each depth
    for number, (depth, info) in enumerate(rows):
        x, y = depth * 24, number * ROW + 15
        if depth:  # from the sister above, or from the parent
            above = last[depth] * ROW + 11 if last.get(depth, -1) > last[depth - 1] else last[depth - 1] * ROW + 20
            drawing.line((x - 18, above), (x - 18, y - 4), (x - 4, y - 4))
        drawing.text(x, y, info.name)
        drawing.text(290, y, str(info.year), "dim")
        last[depth] = number
    return drawing


@figure
def transformer() -> Drawing:
    return two_stacks("transformer", "A sentence and its translation: the encoder attends to the whole source, the "
                      "decoder to the source and to earlier target tokens", LENGTH(16),
                      corpus=(HERE / "source.txt", HERE / "target.txt"))


@figure
def bert() -> Drawing:
    found = inspect("bert@tiny", LENGTH(16), seed=13)
    example = found["examples"][0]
    count = len(example["input"])
    drawing = Drawing("BERT: masked tokens are predicted from both sides")
    drawing.table([numbers(count), Column("text", example["original"]), input_column(example, found["mask"]),
                   target_column(example, count),
                   Mask("attends to", attention("bert@tiny", length=count)["encoder"][0])])
    masked_legend(drawing)
    return drawing


@figure
def gpt3() -> Drawing:
    found = inspect("gpt3@tiny", LENGTH(12))
    example = found["examples"][0]
    layers = attention("gpt3@tiny", "network.attention.windows=[0,4]", length=12)["encoder"]
    drawing = Drawing("GPT: every position predicts the next token from those before it; in GPT-3 every other layer "
                      "attends to a window only")
    drawing.table([numbers(12), Column("input", example["input"]), target_column(example, 12),
                   Mask("GPT, GPT-2", layers[0]), Mask("GPT-3, every other layer", layers[1])])
    return drawing


@figure
def modernbert() -> Drawing:
    found = inspect("modernbert@tiny", LENGTH(12), seed=7)
    example = found["examples"][0]
    layers = attention("modernbert@tiny", "network.attention.windows=[0,2]", length=12)["encoder"]
    drawing = Drawing("ModernBERT: 30% of the tokens are masked; every third layer is global, the others attend to a "
                      "window on both sides")
    drawing.table([numbers(12), input_column(example, found["mask"]), target_column(example, 12),
                   Mask("global layers", layers[0]), Mask("local layers", layers[1])])
    masked_legend(drawing)
    return drawing


@figure
def xlnet() -> Drawing:
    found = inspect("xlnet@tiny", LENGTH(16), seed=0)
    example = found["examples"][0]
    order, targets = example["order"], [target["position"] for target in example["targets"]]
    count = len(order)
    text = {at for start, stop in example["words"] for at in range(start, stop)}
    drawing = Drawing("XLNet: targets are predicted in a random order; the query stream attends to what is earlier in "
                      "it")
    shown = [str(order[at]) if at in targets or at not in text else "" for at in range(count)]
    queries: list[list[int] | None] = [None] * count
    for at, row in zip(targets, example["query_visibility"], strict=True):
        queries[at] = row
    drawing.table([numbers(count), Column("input", example["input"], dict.fromkeys(targets, "masked")),
                   Column("order", shown), Mask("content stream", example["visibility"]),
                   Mask("query stream", queries)])
    drawing.say(f"Positions 0 to {example['past'] - 1} go into the memory. Filled: targets of the query stream. A "
                "position", "dim")
    drawing.say("without a number comes first in its part.", "dim")
    return drawing


@figure
def transformer_xl() -> Drawing:
    found = inspect("transformer-xl@tiny", LENGTH(6), "training.batch_size=1", examples=3)
    segments = [example["input"] for example in found["examples"]]
    drawing = Drawing("Transformer-XL: each segment attends to itself and to the memory of the segment before")
    for number, (words, seen) in enumerate(zip(segments, visible(3, 6), strict=True)):
        memory = segments[number - 1] if number else ["(zeros)"] * 6
        drawing.say(f"Segment {number + 1}")
        drawing.table([Column("memory", memory, dict.fromkeys(range(6), "dim")), numbers(6),
                       Column("input", words), target_column(found["examples"][number], 6),
                       Mask("attends to (memory: below 0)", seen, first=-6)])
    return drawing


@figure
def mass() -> Drawing:
    return two_stacks("mass", "MASS: half of a sentence is masked in the encoder's input, and the decoder writes it",
                      LENGTH(16), longest=9)


@figure
def bart() -> Drawing:
    return two_stacks("bart", "BART: the encoder reads corrupted text, the decoder writes the original", LENGTH(16))


@figure
def t5() -> Drawing:
    return two_stacks("t5", "T5: sentinels stand for masked spans, and the decoder writes what each stands for",
                      LENGTH(16), "objective.span_corruption.mean_span=1.5", seed=1)


@figure
def prefix_lm() -> Drawing:
    found = inspect("prefix-lm@tiny", LENGTH(12), seed=3)
    example = found["examples"][0]
    drawing = Drawing("Prefix LM: bidirectional attention over the prefix, causal attention after it")
    drawing.table([numbers(12), Column("input", example["input"],
                                       dict.fromkeys(range(example["prefix"]), "kept")),
                   target_column(example, 12), Mask("attends to", example["visibility"])])
    drawing.say("Dashed: the prefix.", "dim")
    return drawing


@figure
def unilm() -> Drawing:
    """The four cloze tasks, each from the first step at which it has its turn."""
    names = {"masked_lm": "both sides", "left_to_right": "left to right", "right_to_left": "right to left",
             "sequence_to_sequence": "source to target"}
    found: dict[str, tuple[dict[str, Any], str | None]] = {}
    for step in range(30):
        result = inspect("unilm@tiny", LENGTH(10), step=step, examples=12)
        pair = (example for example in result["examples"] if len(set(example["segments"])) > 1)  # a source and a target
        found.setdefault(result["objectives"][-1], (next(pair, result["examples"][0]), result["mask"]))
        if len(found) == len(names):
            break
    drawing = Drawing("UniLM: one network and one cloze task under four attention masks")
    for pair in (("masked_lm", "sequence_to_sequence"), ("left_to_right", "right_to_left")):
        x, top = 0.0, drawing.height + 8
        for name in pair:
            example, mask = found[name]
            x = drawing.table([input_column(example, mask), Mask(names[name], example["visibility"])], x, top) + GAP
    masked_legend(drawing)
    return drawing


@figure
def electra() -> Drawing:
    found = inspect("electra@tiny", LENGTH(14), seed=4)
    example = found["examples"][0]
    count = len(example["input"])
    hidden = {target["position"] for target in example["targets"]}
    drawing = Drawing("ELECTRA: a generator fills in the masks, and the discriminator classifies every token as "
                      "original or replaced")
    sampled = ["(sample)" if at in hidden else word for at, word in enumerate(example["original"])]
    drawing.table([numbers(count), input_column(example, found["mask"], "generator input"),
                   Column("discriminator input", sampled, dict.fromkeys(hidden, "replaced")),
                   Column("discriminator target", ["replaced?" if at in hidden else "original" for at in range(count)],
                          {at: "dim" for at in range(count) if at not in hidden})])
    return drawing


@figure
def units() -> Drawing:
    """The same text, masked in different units."""
    drawing = Drawing("What is masked together: the same text with four values of objective.masked_lm.unit")
    columns: list[Column | Mask] = []
    for title, unit in (("token", "token"), ("word", "word"), ("word_ngram", "word_ngram"), ("span", "span")):
        changes = ["corpus.packing=doc_sentences", "remove=objective.next_sentence", LENGTH(24),
                   "tokenizer.vocab_size=200", f"objective.masked_lm.unit={unit}", "objective.masked_lm.rate=0.25",
                   "objective.masked_lm.mask=1.0", "objective.masked_lm.random=0.0"]
        if unit == "word_ngram":
            changes.append("objective.masked_lm.ngrams=[0.3,0.3,0.4]")
        example = inspect("bert@tiny", *changes, words=False, seed=4)["examples"][0]
        hidden = [target["position"] for target in example["targets"]]
        columns.append(Column(title, example["original"], dict.fromkeys(hidden, "masked")))
    drawing.table([numbers(len(columns[0].words)), *columns])
    return drawing


@figure
def packings() -> Drawing:
    """One row of each packing, as text."""
    drawing = Drawing("The first row that each packing makes of the same text")
    columns: list[Column | Mask] = []
    for packing in ("segment_pair", "sentence_pair", "doc_sentences", "full_sentences", "stream"):
        changes = [f"corpus.packing={packing}", LENGTH(20), "corpus.short_probability=0.0"]
        if not packing.endswith("pair"):
            changes.append("remove=objective.next_sentence")
        words = inspect("bert@tiny", *changes, seed=7)["examples"][0]["original"]
        marks = {at: "kept" for at, word in enumerate(words) if word.startswith("[")}
        columns.append(Column(packing, words, marks))
    drawing.table([numbers(20), *columns])
    return drawing


@figure
def attention_masks() -> Drawing:
    """Every attention-mask rule as the grid that it compiles to."""
    import torch

    from stemma.visibility import (
        Bidirectional,
        Causal,
        ExcludeSelf,
        PaddingRule,
        Permutation,
        Prefix,
        ReverseCausal,
        SlidingWindow,
    )

    size, order = 8, torch.tensor([[0, 3, 0, 1, 0, 2, 0, 0]])
    token_mask = torch.tensor([[True] * 6 + [False] * 2])
    rules = {"Bidirectional()": Bidirectional(), "Causal()": Causal(),
             "ReverseCausal(lengths)": ReverseCausal(torch.tensor([size])),
             "SlidingWindow(2, 2)": SlidingWindow(2, 2), "Causal & SlidingWindow(2)": Causal() & SlidingWindow(2, 0),
             "Prefix(lengths)": Prefix(torch.tensor([4])), "Permutation(order)": Permutation(order),
             "Permutation & ExcludeSelf": Permutation(order) & ExcludeSelf(),
             "PaddingRule(mask)": Bidirectional() & PaddingRule(token_mask)}
    drawing, shown = Drawing("Attention masks: each rule as a grid, queries down and keys across"), list(rules.items())
    for first in range(0, len(shown), 3):
        x, top = 0.0, drawing.height + 8
        for title, rule in shown[first:first + 3]:
            drawing.table([Mask(title, rule.grid(size).int().tolist())], x, top)
            x += 13 * CELL
    return drawing


@figure
def universal_transformer() -> Drawing:
    """How often the block is applied to each position, by a network with random weights."""
    words = inspect("universal-transformer@tiny", LENGTH(10))["examples"][0]["input"]
    steps = depth_of(len(words))
    drawing = Drawing("Universal Transformer: one block, applied to each position until it halts")
    drawing.table([numbers(len(words)), Column("input", words),
                   Mask("steps of the one block", [[int(step < taken) for step in range(6)] for taken in steps],
                        first=1)])
    return drawing


if __name__ == "__main__":
    main(sys.argv[1:])

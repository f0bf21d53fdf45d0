"""Draws the figures of the documentation from the code that they explain: python docs/figures/make.py [NAME ...]"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from examples import HERE, act_steps, attention_masks_of, inspect, memory_attention_masks, temporary_cache  # noqa: E402
from svg import GAP, ROW, Column, Drawing, Mask, text_width  # noqa: E402

LENGTH = "corpus.sequence_length={}".format
FIGURES: dict[str, Callable[[], Drawing]] = {}


def figure(make: Callable[[], Drawing]) -> Callable[[], Drawing]:
    FIGURES[make.__name__.replace("_", "-")] = make
    return make


def main(names: list[str]) -> None:
    for name in names or FIGURES:
        (HERE / f"{name}.svg").write_text(draw(name), encoding="utf-8")


def draw(name: str) -> str:
    with temporary_cache():
        return str(FIGURES[name]())


# Helpers of several figures.

def index_column(indices: Sequence[int]) -> Column:
    return Column("", [str(index) for index in indices], dict.fromkeys(range(len(indices)), "dim"))


def highlighted_column(title: str, tokens: Sequence[str], highlighted: Collection[str]) -> Column:
    """Tokens of which some are filled."""
    return Column(title, tokens, {index: "masked" for index, token in enumerate(tokens) if token in highlighted})


def input_column(example: dict[str, Any], mask_token: str | None, title: str = "input") -> Column:
    """The input tokens. A target is filled if its input is the mask token, framed if it is another token, and framed
    with dashes if it is unchanged."""
    marks = {}
    for target in example["targets"]:
        position = target["position"]
        token, original = example["input"][position], example["original"][position]
        marks[position] = "masked" if token == mask_token else "unchanged" if token == original else "replaced"
    return Column(title, example["input"], marks)


def target_column(example: dict[str, Any], length: int) -> Column:
    tokens = {target["position"]: target["token"] for target in example["targets"]}
    return Column("target", [tokens.get(position, "") for position in range(length)])


def masking_legend(drawing: Drawing) -> None:
    x, y = 0.0, drawing.height + 12
    for mark, label in (("masked", "[MASK]"), ("replaced", "another token"), ("unchanged", "unchanged")):
        drawing.box(x, y, 14, 14, mark, 3)
        drawing.text(x + 20, y + 11.5, label, "dim")
        x += 20 + len(label) * 6.6 + GAP


def encoder_decoder(recipe: str, title: str, *changes: str, corpus: tuple[Path, ...] = (HERE / "text.txt",),
                    num_examples: int = 1, seed: int = 0) -> Drawing:
    """Encoder and decoder rows of the longest of `num_examples` examples, with the three attention masks."""
    inspected = inspect(f"{recipe}@tiny", *changes, corpus=corpus, examples=num_examples, seed=seed)
    example = max(inspected["examples"], key=lambda example: len(example["input"]))
    source, decoder_input, original = example["input"], example["decoder_input"], example["original"]
    masks = attention_masks_of(f"{recipe}@tiny", length=len(source), decoder_length=len(decoder_input))
    sentinels = {token for token in source if re.fullmatch(r"\[S\d+\]", token)}
    highlighted = {inspected["mask"]} | sentinels
    is_corrupted = original != source
    drawing = Drawing(title)
    drawing.line_of_text("Encoder")
    drawing.table([index_column(range(max(len(source), len(original)) if is_corrupted else len(source))),
                   *([Column("text", original)] if is_corrupted else []),
                   highlighted_column("input", source, highlighted), Mask("attends to", masks["encoder"][0])])
    drawing.line_of_text("Decoder")
    drawing.table([index_column(example.get("decoder_positions") or range(len(decoder_input))),
                   highlighted_column("input", decoder_input, highlighted),
                   highlighted_column("target", example["decoder_targets"], highlighted),
                   Mask("itself", masks["decoder"][0]), Mask("encoder output", masks["cross"][0])])
    return drawing


# The figures.

@figure
def tree() -> Drawing:
    """The recipes, each below its parent."""
    from stemma.recipe_loading import list_recipes

    recipes = list_recipes()
    drawing = Drawing("The recipes as a tree: each is a child of the recipe that it changes")
    rows: list[tuple[int, Any]] = []

    def add_children(parent: str | None, depth: int) -> None:
        for info in recipes:
            if info.parent == parent:
                rows.append((depth, info))
                add_children(info.name, depth + 1)

    add_children(None, 0)
    last_row: dict[int, int] = {}  # row of the last recipe at each depth
    for row, (depth, info) in enumerate(rows):
        x, y = depth * 24, row * ROW + 15
        if depth:  # a line from the previous sibling, or from the parent
            parent_row, sibling_row = last_row[depth - 1], last_row.get(depth, -1)
            start = sibling_row * ROW + 11 if sibling_row > parent_row else parent_row * ROW + 20
            drawing.line((x - 18, start), (x - 18, y - 4), (x - 4, y - 4))
        drawing.text(x, y, info.name)
        drawing.text(290, y, str(info.year), "dim")
        last_row[depth] = row
    return drawing


@figure
def transformer() -> Drawing:
    return encoder_decoder("transformer", "A sentence and its translation: the encoder attends to the whole source, "
                           "the decoder to the source and to earlier target tokens", LENGTH(16),
                           corpus=(HERE / "source.txt", HERE / "target.txt"))


@figure
def bert() -> Drawing:
    inspected = inspect("bert@tiny", LENGTH(16), seed=13)
    example = inspected["examples"][0]
    length = len(example["input"])
    drawing = Drawing("BERT: masked tokens are predicted from both sides")
    drawing.table([index_column(range(length)), Column("text", example["original"]),
                   input_column(example, inspected["mask"]), target_column(example, length),
                   Mask("attends to", attention_masks_of("bert@tiny", length=length)["encoder"][0])])
    masking_legend(drawing)
    return drawing


@figure
def gpt3() -> Drawing:
    example = inspect("gpt3@tiny", LENGTH(12))["examples"][0]
    full, windowed = attention_masks_of("gpt3@tiny", "network.attention.windows=[0,4]", length=12)["encoder"][:2]
    drawing = Drawing("GPT: every position predicts the next token from those before it; in GPT-3 every other layer "
                      "attends to a window only")
    drawing.table([index_column(range(12)), Column("input", example["input"]), target_column(example, 12),
                   Mask("GPT, GPT-2", full), Mask("GPT-3, every other layer", windowed)])
    return drawing


@figure
def modernbert() -> Drawing:
    inspected = inspect("modernbert@tiny", LENGTH(12), seed=7)
    example = inspected["examples"][0]
    full, local = attention_masks_of("modernbert@tiny", "network.attention.windows=[0,2]", length=12)["encoder"][:2]
    drawing = Drawing("ModernBERT: 30% of the tokens are masked; every third layer is global, the others attend to a "
                      "window on both sides")
    drawing.table([index_column(range(12)), input_column(example, inspected["mask"]), target_column(example, 12),
                   Mask("global layers", full), Mask("local layers", local)])
    masking_legend(drawing)
    return drawing


@figure
def xlnet() -> Drawing:
    example = inspect("xlnet@tiny", LENGTH(16), seed=0)["examples"][0]
    order, targets = example["order"], [target["position"] for target in example["targets"]]
    length = len(order)
    text_positions = {position for start, stop in example["words"] for position in range(start, stop)}
    drawing = Drawing("XLNet: targets are predicted in a random order; the query stream attends to positions that come "
                      "earlier in it")
    ranks = [str(order[position]) if position in targets or position not in text_positions else ""
             for position in range(length)]
    query_rows: list[list[int] | None] = [None] * length
    for position, row in zip(targets, example["query_visibility"], strict=True):
        query_rows[position] = row
    drawing.table([index_column(range(length)), Column("input", example["input"], dict.fromkeys(targets, "masked")),
                   Column("order", ranks), Mask("content stream", example["visibility"]),
                   Mask("query stream", query_rows)])
    drawing.line_of_text(f"Positions 0 to {example['past'] - 1} go into the memory. Filled: targets of the query "
                         "stream. A position", "dim")
    drawing.line_of_text("without a number comes first in its part.", "dim")
    return drawing


@figure
def transformer_xl() -> Drawing:
    examples = inspect("transformer-xl@tiny", LENGTH(6), "training.batch_size=1", examples=3)["examples"]
    drawing = Drawing("Transformer-XL: each segment attends to itself and to the memory of the segment before")
    memory = ["(zeros)"] * 6
    for number, (example, mask) in enumerate(zip(examples, memory_attention_masks(3, 6), strict=True), 1):
        drawing.line_of_text(f"Segment {number}")
        drawing.table([Column("memory", memory, dict.fromkeys(range(6), "dim")), index_column(range(6)),
                       Column("input", example["input"]), target_column(example, 6),
                       Mask("attends to (memory: below 0)", mask, first_key=-6)])
        memory = example["input"]
    return drawing


@figure
def mass() -> Drawing:
    return encoder_decoder("mass", "MASS: half of a sentence is masked in the encoder input, and the decoder predicts "
                           "it", LENGTH(16), num_examples=9)


@figure
def bart() -> Drawing:
    return encoder_decoder("bart", "BART: the encoder reads corrupted text, the decoder predicts the original",
                           LENGTH(16))


@figure
def t5() -> Drawing:
    return encoder_decoder("t5", "T5: sentinels replace masked spans, and the decoder predicts each sentinel with its "
                           "span", LENGTH(16), "objective.span_corruption.mean_span=1.5", seed=1)


@figure
def prefix_lm() -> Drawing:
    example = inspect("prefix-lm@tiny", LENGTH(12), seed=3)["examples"][0]
    prefix = dict.fromkeys(range(example["prefix"]), "unchanged")
    drawing = Drawing("Prefix LM: bidirectional attention over the prefix, causal attention after it")
    drawing.table([index_column(range(12)), Column("input", example["input"], prefix), target_column(example, 12),
                   Mask("attends to", example["visibility"])])
    drawing.line_of_text("Dashed: the prefix.", "dim")
    return drawing


@figure
def unilm() -> Drawing:
    """The four cloze objectives, each from the first step that trains it."""
    titles = {"masked_lm": "both sides", "sequence_to_sequence": "source to target", "left_to_right": "left to right",
              "right_to_left": "right to left"}
    columns: dict[str, list[Column | Mask]] = {}
    for step in range(30):
        inspected = inspect("unilm@tiny", LENGTH(10), step=step, examples=12)
        objective = inspected["objectives"][-1]
        pairs = (example for example in inspected["examples"] if len(set(example["segments"])) > 1)
        example = next(pairs, inspected["examples"][0])
        columns.setdefault(objective, [input_column(example, inspected["mask"]),
                                       Mask(titles[objective], example["visibility"])])
        if len(columns) == len(titles):
            break
    drawing = Drawing("UniLM: one network and one cloze task under four attention masks")
    names = list(titles)
    for row in (names[:2], names[2:]):
        x, top = 0.0, drawing.height + 8
        for name in row:
            x = drawing.table(columns[name], x, top) + GAP
    masking_legend(drawing)
    return drawing


@figure
def electra() -> Drawing:
    inspected = inspect("electra@tiny", LENGTH(14), seed=4)
    example = inspected["examples"][0]
    positions = range(len(example["input"]))
    masked = {target["position"] for target in example["targets"]}
    drawing = Drawing("ELECTRA: a generator fills in the masks, and the discriminator classifies every token as "
                      "original or replaced")
    sampled = ["(sample)" if position in masked else token for position, token in enumerate(example["original"])]
    labels = ["replaced?" if position in masked else "original" for position in positions]
    drawing.table([index_column(positions), input_column(example, inspected["mask"], "generator input"),
                   Column("discriminator input", sampled, dict.fromkeys(masked, "replaced")),
                   Column("discriminator target", labels, dict.fromkeys(set(positions) - masked, "dim"))])
    return drawing


@figure
def units() -> Drawing:
    """The same text, masked in different units."""
    drawing = Drawing("What is masked together: the same text with four values of objective.masked_lm.unit")
    columns = []
    for unit in ("token", "word", "word_ngram", "span"):
        changes = ["corpus.packing=doc_sentences", "remove=objective.next_sentence", LENGTH(24),
                   "tokenizer.vocab_size=200", f"objective.masked_lm.unit={unit}", "objective.masked_lm.rate=0.25",
                   "objective.masked_lm.mask=1.0", "objective.masked_lm.random=0.0"]
        if unit == "word_ngram":
            changes.append("objective.masked_lm.ngrams=[0.3,0.3,0.4]")
        example = inspect("bert@tiny", *changes, word_tokens=False, seed=4)["examples"][0]
        masked = [target["position"] for target in example["targets"]]
        columns.append(Column(unit, example["original"], dict.fromkeys(masked, "masked")))
    drawing.table([index_column(range(len(columns[0].tokens))), *columns])
    return drawing


@figure
def packings() -> Drawing:
    """One row of each packing, as text."""
    drawing = Drawing("The first row that each packing makes of the same text")
    columns = []
    for packing in ("segment_pair", "sentence_pair", "doc_sentences", "full_sentences", "stream"):
        changes = [f"corpus.packing={packing}", LENGTH(20), "corpus.short_probability=0.0"]
        if not packing.endswith("pair"):
            changes.append("remove=objective.next_sentence")
        tokens = inspect("bert@tiny", *changes, seed=7)["examples"][0]["original"]
        special = {position: "unchanged" for position, token in enumerate(tokens) if token.startswith("[")}
        columns.append(Column(packing, tokens, special))
    drawing.table([index_column(range(20)), *columns])
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
    drawing = Drawing("Attention masks: each rule as a grid, queries down and keys across")
    masks = [Mask(title, rule.grid(size).int().tolist()) for title, rule in rules.items()]
    pitch = GAP + 1.15 * max(text_width(title) for title in rules)  # bold text is wider
    for start in range(0, len(masks), 3):
        top = drawing.height + 8
        for column, mask in enumerate(masks[start:start + 3]):
            drawing.table([mask], column * pitch, top)
    return drawing


@figure
def universal_transformer() -> Drawing:
    """How often the block is applied to each position, by a network with random weights."""
    tokens = inspect("universal-transformer@tiny", LENGTH(10))["examples"][0]["input"]
    grid = [[int(step < num_steps) for step in range(6)] for num_steps in act_steps(len(tokens))]
    drawing = Drawing("Universal Transformer: one block, applied to each position until it halts")
    drawing.table([index_column(range(len(tokens))), Column("input", tokens),
                   Mask("steps of the one block", grid, first_key=1)])
    return drawing


if __name__ == "__main__":
    main(sys.argv[1:])

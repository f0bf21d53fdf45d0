"""The quickstart's `report.html`: every number in it was measured in the run that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stemma.errors import pluralize
from stemma.lab.quickstart.finetune_comparison import CLASSIFIERS
from stemma.lab.quickstart.masked_accuracy import sample_std
from stemma.lab.quickstart.recipe_changes import ANCESTOR
from stemma.lab.quickstart.usage import TITLES
from stemma.lab.report.html_report import HtmlReport
from stemma.lab.report.run_html import draw_curve, value_text
from stemma.training.run_folder import read_run

PREDICTORS = {"unigram": "always the most frequent token", "bigram": "counts what follows the left neighbour",
           "two-sided": "counts what stands between both neighbours", "model": "the pre-trained model"}


def write_quickstart_report(result: Mapping[str, Any], folder: Path) -> Path:
    from stemma.lab.report.plots import bars

    masked, probe, run = result["masked"], result["probe"], result["pretraining"]
    chosen, _ = read_run(Path(run["run"]))
    page = HtmlReport("A language model from your own Python").intro(
        f"{result['text']['words']:,} words of documentation, {run['seconds']:.0f} seconds of pre-training on "
        f"{thread_note(run)}, and then two questions about text the model never saw.", headline(result))
    page.points(verdict["said"] for verdict in result["verdicts"].values())

    text, corpus = result["text"], result["corpus"]
    page.section("What it read", "The docstrings, block comments and language reference inside this Python, read "
                 f"without running any of it: {text['documents']:,} documents to learn from, "
                 f"{text['held_out_documents']} whole modules and topics ({text['held_out_words']:,} words) held out. "
                 f"A vocabulary of {corpus['vocabulary']:,} pieces turns the training text into "
                 f"{corpus['tokens']:,} tokens, a sentence a line.")

    page.section("How it learned", f"{result['speed']['said'].capitalize()}.").figure(
        draw_curve(Path(run["run"]), result["curve_baselines"]),
        f"Loss over {run['steps']:,} steps ({run['tokens']:,} tokens). Held-out: documents that the run itself put "
        "aside. Dashed: what counting loses at the very same hidden places.")

    page.section("Guessing hidden words", f"{result['places']:,} tokens of the held-out modules were hidden. The "
                 "counters count the whole training text; where a neighbour is hidden or new they back off.")
    page.table(["who guesses", "right", "loss (nats)"],
               [[PREDICTORS[name], f"{masked[name]['accuracy']:.1%}", f"{masked[name]['loss']:.2f}"]
                for name in PREDICTORS],
               "All four at the same places; the model sees a mask token there.")
    page.table(["held-out sentence", "was", "guesses"],
               [[row["text"], row["truth"], format_fills(row, "`")] for row in result["filled"]],
               "Drawn at random from the held-out text, not chosen.")

    page.section("Learning from few labels",
                 f"{probe_question(probe)} {result['labels']} labelled sentences to learn from, "
                 f"{result['tests']:,} to be tested on, all from held-out modules. Random and pre-trained weights are "
                 "two starts of the same network, fine-tuned by the same code with the same settings: all weights but "
                 "the embedding, so that words in none of the examples keep their relation to the rest. The third "
                 "learner is logistic regression over word and character n-grams, its penalty chosen by "
                 "cross-validation on the same labels. Every seed draws its own sentences, its own random weights and "
                 "its own order.")
    page.code(f"as written  {probe['example']['intact']}\ndamaged     {probe['example']['damaged']}")
    learners = [(title, probe[name]["test"]) for name, title in CLASSIFIERS.items()]
    page.figure(bars(learners, "test accuracy", ("guessing", 0.5)),
                f"Bars: means of {result['seeds']} seeds; points: the seeds.")
    page.table(["learner", "test accuracy", "spread", "on its own training sentences"],
               [[title, f"{np.mean(probe[name]['test']):.3f}", f"{sample_std(probe[name]['test']):.3f}",
                 f"{np.mean(probe[name]['train']):.3f}"] for name, title in CLASSIFIERS.items()],
               "Means over the seeds and their standard deviation. Fine-tuning takes "
               f"{probe['settings']['epochs']} epochs at a peak learning rate of "
               f"{probe['settings']['learning_rate']:g}. The last column says whether the training sentences "
               "themselves were learnt.")

    changed = f" with {pluralize(len(result['changes']), 'change')} for this run" if result["changes"] else ""
    page.section("The recipe", f"`{chosen.label}` is {chosen.title} ({chosen.paper}) at the size of a laptop{changed}. "
                 f"What it changes from `{ANCESTOR}`, and why:")
    page.table(["key", ANCESTOR, "this run", "why"],
               [[f"`{change['key']}`", value_text(change["from"]),
                 "removed" if change["to"] is None else value_text(change["to"]), change["why"]]
                for change in result["diff"]],
               f"As `stemma diff {ANCESTOR} {chosen.label}` lists it, with the vocabulary of this text. The reasons "
               "are why each change was made; `stemma ablate` measures what one is worth.")
    page.section("Use it")
    for place, lines in result["usage"].items():
        page.text(f"{TITLES[place]}:".capitalize()).code("\n".join(lines))
    page.section("Do it yourself", "The same by hand, on this text or on yours:").code("\n".join(result["commands"]))
    return page.write(folder / "report.html")


def headline(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    masked, probe = result["masked"], result["probe"]
    before, linear, after = (np.mean(probe[name]["test"]) for name in CLASSIFIERS)
    return [(f"{masked['model']['accuracy']:.1%}", "of hidden tokens guessed; always naming the most frequent one gets "
             f"{masked['unigram']['accuracy']:.1%}, the left neighbour {masked['bigram']['accuracy']:.1%}, both "
             f"{masked['two-sided']['accuracy']:.1%}"),
            (f"{after:.1%}", f"right after {result['labels']} labels; random weights reach {before:.1%}, "
             f"n-grams {linear:.1%}"),
            (f"{masked['model']['loss']:.2f}", f"nats a hidden token; unigram {masked['unigram']['loss']:.2f}, "
             f"two-sided counts {masked['two-sided']['loss']:.2f}")]


def probe_question(probe: Mapping[str, Any]) -> str:
    number = probe["strength"]
    damage = {"replaced_words": f"were {number} of its words replaced by others?",
              "swapped_words": f"did two neighbouring spans of {number} words change places?"}[probe["kind"]]
    return f"Is this sentence as it was written, or {damage}"


def format_fills(row: Mapping[str, Sequence[Mapping[str, object]]], quote: str = '"') -> str:
    """Tokens between quotes, for some of them are commas."""
    return ", ".join(f"{quote}{guess['token']}{quote} {guess['probability']:.0%}" for guess in row["guesses"])


def thread_note(run: Mapping[str, Any]) -> str:
    return f"{run['threads']} thread{'' if run['threads'] == 1 else 's'}"

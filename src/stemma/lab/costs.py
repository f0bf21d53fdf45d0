"""The corpus and the price of each variant, found once and kept: what a step costs decides how many there are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.files import make_folder, only_here
from stemma.json_files import damage
from stemma.lab.cells import digest, recipe_number
from stemma.lab.experiment import Allowance, Variant
from stemma.lab.flops import StepCost, step_cost
from stemma.lab.shared_text import SharedText
from stemma.lineage import Recipe
from stemma.objectives import check_needs, without_data
from stemma.stored import store_object
from stemma.training.graph import read_if_there
from stemma.training.source import adopt_tokenizer, corpus_from_text, reads_pairs

COSTS = "costs"


class Costs:
    def __init__(self, shared: SharedText, allowance: Allowance, folder: Path):
        self.shared, self.allowance, self.folder = shared, allowance, folder / COSTS
        self._corpora: dict[str, Corpus] = {}
        self._known: dict[str, StepCost] = {}

    def check(self, variants: tuple[Variant, ...]) -> None:
        """Everything that would only come up in the middle of the night: a recipe that the text does not suit, and a
        budget that ends before the warm-up does."""
        problems: list[tuple[str, str]] = []
        for variant in variants:
            try:
                if reads_pairs(variant.recipe):
                    raise UserError("reads pairs of texts; the lab compares recipes that read running text")
                check_needs(self.fitted(variant), self.corpus(variant))
                problems += [(variant.name, told) for told in self._vain(variant)]
            except UserError as error:
                told = [error.message, *(f"{where}: {why}" for where, why in error.problems)]
                problems.append((variant.name, "; ".join(told)))
        if problems:
            raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} before anything is trained",
                            problems)

    def _vain(self, variant: Variant) -> list[str]:
        steps, stated = self.steps(variant.recipe), variant.recipe.settings.training.warmup_steps
        if steps is None or stated <= steps / 2:
            return []
        return [f"{self.allowance.describe()} are {steps:,} steps, and its warm-up alone is {stated:,}: the rate would "
                f"hardly come to its height; give at least twice that, or add training.warmup_steps={steps // 10}"]

    def corpus(self, variant: Variant) -> Corpus:
        """The shared text through the variant's own tokenizer, or the corpus that all share."""
        key = digest(variant.recipe.values["tokenizer"], sorted(variant.recipe.settings.roles()))
        if key not in self._corpora:
            self._corpora[key] = Corpus.open(self.shared.corpus) if self.shared.corpus else corpus_from_text(
                list(self.shared.text), variant.recipe, self.shared.reading)
        return self._corpora[key]

    def fitted(self, variant: Variant) -> Recipe:
        """The recipe as it will run on its corpus."""
        corpus = self.corpus(variant)
        return without_data(adopt_tokenizer(variant.recipe, corpus), corpus)[0]

    def of(self, variant: Variant) -> StepCost:
        number = digest(recipe_number(variant), self.shared.digest)
        if number not in self._known:
            file = self.folder / f"{number}.json"
            advice = "delete it: it is counted again."
            stored = read_if_there(file, advice)
            if stored is None:
                stored = asdict(step_cost(self.fitted(variant), self.corpus(variant)))
                make_folder(self.folder)
                with only_here(self.folder):  # others may count, too
                    store_object(file, stored, indent=None)
            with damage(file, advice):
                self._known[number] = StepCost(**stored)
        return self._known[number]

    def steps(self, recipe: Recipe) -> int | None:
        """How many there will be; None where the clock decides."""
        if self.allowance.unit == "minutes":
            return None
        cost = self.of(Variant("", recipe))
        return max(1, round(self.allowance.amount / (cost.flops if self.allowance.unit == "flops" else cost.tokens)))

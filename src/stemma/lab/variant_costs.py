"""The corpus and the price of each variant, found once and kept: what a step costs decides how many there are."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stemma.atomic_files import lock_folder, make_folder
from stemma.checksummed_files import write_object
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.json_files import explain_damage
from stemma.lab.cells import recipe_digest, short_digest
from stemma.lab.experiment import ComputeBudget, Variant
from stemma.lab.flops import StepCost, step_cost
from stemma.lab.text_split import TextSplit
from stemma.objectives import check_requirements, drop_unsupported
from stemma.recipe_loading import Recipe
from stemma.training.corpus_cache import adopt_tokenizer, build_or_load_corpus, is_parallel
from stemma.training.run_graph import read_object_if_exists

COSTS = "costs"


class VariantCosts:
    def __init__(self, shared: TextSplit, budget: ComputeBudget, folder: Path):
        self.shared, self.budget, self.folder = shared, budget, folder / COSTS
        self._corpora: dict[str, Corpus] = {}
        self._known: dict[str, StepCost] = {}

    def check(self, variants: tuple[Variant, ...]) -> None:
        """Everything that would only come up in the middle of the night: a recipe that the text does not suit, and a
        budget that ends before the warm-up does."""
        problems: list[tuple[str, str]] = []
        for variant in variants:
            try:
                if is_parallel(variant.recipe):
                    raise UserError("reads pairs of texts; the lab compares recipes that read running text")
                check_requirements(self.resolved_recipe(variant), self.corpus(variant))
                problems += [(variant.name, told) for told in self._warmup_problem(variant)]
            except UserError as error:
                told = [error.message, *(f"{where}: {why}" for where, why in error.problems)]
                problems.append((variant.name, "; ".join(told)))
        if problems:
            raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} before anything is trained",
                            problems)

    def _warmup_problem(self, variant: Variant) -> list[str]:
        steps, stated = self.steps(variant.recipe), variant.recipe.settings.training.warmup_steps
        if steps is None or stated <= steps / 2:
            return []
        return [f"{self.budget.describe()} are {steps:,} steps, and its warm-up alone is {stated:,}: the rate would "
                f"hardly come to its height; give at least twice that, or add training.warmup_steps={steps // 10}"]

    def corpus(self, variant: Variant) -> Corpus:
        """The shared text through the variant's own tokenizer, or the corpus that all share."""
        key = short_digest(variant.recipe.values["tokenizer"], sorted(variant.recipe.settings.special_tokens()))
        if key not in self._corpora:
            self._corpora[key] = Corpus.open(self.shared.corpus) if self.shared.corpus else build_or_load_corpus(
                list(self.shared.text), variant.recipe, self.shared.reading_options)
        return self._corpora[key]

    def resolved_recipe(self, variant: Variant) -> Recipe:
        """The recipe as it will run on its corpus."""
        corpus = self.corpus(variant)
        return drop_unsupported(adopt_tokenizer(variant.recipe, corpus), corpus)[0]

    def step_cost(self, variant: Variant) -> StepCost:
        number = short_digest(recipe_digest(variant), self.shared.digest)
        if number not in self._known:
            file = self.folder / f"{number}.json"
            advice = "delete it: it is counted again."
            stored = read_object_if_exists(file, advice)
            if stored is None:
                stored = asdict(step_cost(self.resolved_recipe(variant), self.corpus(variant)))
                make_folder(self.folder)
                with lock_folder(self.folder):  # others may count, too
                    write_object(file, stored, indent=None)
            with explain_damage(file, advice):
                self._known[number] = StepCost(**stored)
        return self._known[number]

    def steps(self, recipe: Recipe) -> int | None:
        """How many there will be; None where the clock decides."""
        if self.budget.unit == "minutes":
            return None
        cost = self.step_cost(Variant("", recipe))
        return max(1, round(self.budget.amount / (cost.flops if self.budget.unit == "flops" else cost.tokens)))

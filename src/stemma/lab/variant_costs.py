"""Corpus and step cost of each variant, computed once: the cost of a step determines the number of steps."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

from stemma.atomic_files import lock_folder, make_folder
from stemma.checksummed_files import write_object
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.json_files import explain_damage
from stemma.lab.cells import recipe_digest, short_digest
from stemma.lab.experiment import ComputeBudget, Variant
from stemma.lab.flops import StepCost, step_cost, training_tokens
from stemma.lab.text_split import TextSplit
from stemma.objectives import check_requirements, drop_unsupported
from stemma.recipe_loading import Recipe
from stemma.training.corpus_cache import adopt_tokenizer, build_or_load_corpus, is_parallel
from stemma.training.run_graph import read_object_if_exists

COSTS = "costs"


class VariantCosts:
    def __init__(self, text_split: TextSplit, budget: ComputeBudget, folder: Path):
        self.text_split, self.budget, self.folder = text_split, budget, folder / COSTS
        self._corpora: dict[str, Corpus] = {}
        self._step_costs: dict[str, StepCost] = {}

    def check(self, variants: tuple[Variant, ...]) -> None:
        """Check all variants before training: recipes must fit the text, and budgets must exceed the warm-up."""
        problems: list[tuple[str, str]] = []
        for variant in variants:
            try:
                if is_parallel(variant.recipe):
                    raise UserError("reads pairs of texts; the lab compares recipes that read running text")
                check_requirements(self.resolved_recipe(variant), self.corpus(variant))
                problems += [(variant.name, problem) for problem in self._budget_problem(variant)]
            except UserError as error:
                reasons = [error.message, *(f"{location}: {problem}" for location, problem in error.problems)]
                problems.append((variant.name, "; ".join(reasons)))
        if problems:
            raise UserError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} before anything is trained",
                            problems)

    def _budget_problem(self, variant: Variant) -> list[str]:
        if self.budget.unit == "flops" and variant.recipe.settings.network.depth.counts:
            return ["counts and has no FLOPs to spend; give a budget in tokens or minutes"]
        steps, warmup_steps = self.steps(variant.recipe), variant.recipe.settings.training.warmup_steps
        if steps is None or warmup_steps <= steps / 2:
            return []
        return [f"{self.budget.describe()} are {steps:,} steps, and its warm-up alone is {warmup_steps:,}: the "
                "learning rate would hardly reach its peak; give at least twice that, or add "
                f"training.warmup_steps={steps // 10}"]

    def corpus(self, variant: Variant) -> Corpus:
        """The text tokenized with the variant's tokenizer, or the common corpus."""
        key = short_digest(variant.recipe.values["tokenizer"], sorted(variant.recipe.settings.special_tokens()))
        if key not in self._corpora:
            text_split = self.text_split
            self._corpora[key] = Corpus.open(text_split.corpus) if text_split.corpus else build_or_load_corpus(
                list(text_split.text), variant.recipe, text_split.reading_options)
        return self._corpora[key]

    def resolved_recipe(self, variant: Variant) -> Recipe:
        """The recipe as it runs on its corpus: with its tokenizer, without objectives that it has no data for."""
        corpus = self.corpus(variant)
        return drop_unsupported(adopt_tokenizer(variant.recipe, corpus), corpus)[0]

    def step_cost(self, variant: Variant) -> StepCost:
        digest = short_digest(recipe_digest(variant), self.text_split.digest)
        if digest not in self._step_costs:
            file = self.folder / f"{digest}.json"
            advice = "delete it: it is counted again."
            stored = read_object_if_exists(file, advice)
            if stored is None:
                stored = asdict(step_cost(self.resolved_recipe(variant), self.corpus(variant)))
                make_folder(self.folder)
                with lock_folder(self.folder):  # other processes may write too
                    write_object(file, stored, indent=None)
            with explain_damage(file, advice):
                self._step_costs[digest] = StepCost(**stored)
        return self._step_costs[digest]

    def counted_tokens(self, recipe: Recipe) -> float | None:
        """The tokens that a table of counts is made from, as it reads the text once; None for a network."""
        if not recipe.settings.network.depth.counts:
            return None
        variant = Variant("", recipe)
        tokens = float(training_tokens(self.resolved_recipe(variant), self.corpus(variant)))
        return min(tokens, self.budget.amount) if self.budget.unit == "tokens" else tokens

    def steps(self, recipe: Recipe) -> int | None:
        """The number of steps; None if the budget is in minutes."""
        if (tokens := self.counted_tokens(recipe)) is not None:
            return max(1, math.ceil(tokens / self.step_cost(Variant("", recipe)).tokens))
        if self.budget.unit == "minutes":
            return None
        cost = self.step_cost(Variant("", recipe))
        return max(1, round(self.budget.amount / (cost.flops if self.budget.unit == "flops" else cost.tokens)))

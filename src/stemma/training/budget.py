"""Training budget: a number of steps, tokens or minutes. Without torch: a budget is part of the run configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stemma.errors import UserError, pluralize


@dataclass(frozen=True)
class Budget:
    unit: str  # steps, tokens or minutes
    amount: float

    @classmethod
    def from_options(cls, steps: int | None, tokens: int | None, minutes: float | None, default_steps: int) -> Budget:
        amounts = [(unit, amount) for unit, amount in (("steps", steps), ("tokens", tokens), ("minutes", minutes))
                   if amount is not None]
        if len(amounts) > 1:
            raise UserError(f"{' and '.join('--' + unit for unit, _ in amounts)} exclude each other; give one of them.")
        unit, amount = amounts[0] if amounts else ("steps", default_steps)
        if not 0 < amount < math.inf:
            raise UserError(f"--{unit} must be a number greater than 0, not {amount:g}.")
        return cls(unit, amount)

    def progress(self, step: int, tokens: int, seconds: float) -> float:
        """Fraction of the budget used so far; training ends at 1."""
        return {"steps": step, "tokens": tokens, "minutes": seconds / 60}[self.unit] / self.amount

    def describe(self) -> str:
        return pluralize(self.amount if self.unit == "minutes" else int(self.amount), self.unit.removesuffix("s"))

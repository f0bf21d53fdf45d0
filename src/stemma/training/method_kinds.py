"""The built-in training methods. Their modules are imported when a run begins: recipes are checked without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stemma.registry import register
from stemma.schema.training import MethodSettings

if TYPE_CHECKING:
    from stemma.training.method import Method, MethodSetup


@register("method", "gradient_descent", MethodSettings)
def gradient_descent(settings: MethodSettings, setup: MethodSetup) -> Method:
    from stemma.training.gradient_descent import GradientDescent

    return GradientDescent(setup)

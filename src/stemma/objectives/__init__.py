"""Pre-training objectives: one file each, registered with its settings. What is common to them is imported when it is
first asked for, since a recipe that is only read needs neither text nor torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Batch", "Group", "Kind", "Needs", "Objective", "Target", "build_network", "build_objectives", "check_needs",
           "finish", "group_objectives", "heads_of", "without_data"]

_HOMES = {"Batch": "batch", "Target": "batch", "finish": "batch", "Needs": "base", "Objective": "base",
          "Group": "groups", "Kind": "groups", "group_objectives": "groups", "build_network": "build",
          "build_objectives": "build", "heads_of": "build", "check_needs": "needs", "without_data": "needs"}

if TYPE_CHECKING:
    from stemma.objectives.base import Needs, Objective
    from stemma.objectives.batch import Batch, Target, finish
    from stemma.objectives.build import build_network, build_objectives, heads_of
    from stemma.objectives.groups import Group, Kind, group_objectives
    from stemma.objectives.needs import check_needs, without_data


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stemma.objectives' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"stemma.objectives.{_HOMES[name]}"), name)

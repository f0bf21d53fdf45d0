"""Pre-training objectives: one file per objective, registered with its settings.

The shared names below are imported lazily: loading a recipe needs neither torch nor a corpus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Batch", "ObjectiveGroup", "GroupKey", "Requirements", "Objective", "Target", "build_network",
           "build_objectives", "check_requirements", "collate", "drop_unsupported", "group_objectives", "head_specs"]

_MODULES = {"Batch": "batch", "Target": "batch", "collate": "batch", "Requirements": "base", "Objective": "base",
          "ObjectiveGroup": "groups", "GroupKey": "groups", "group_objectives": "groups", "build_network": "build",
          "build_objectives": "build", "head_specs": "build", "check_requirements": "requirements",
          "drop_unsupported": "requirements"}

if TYPE_CHECKING:
    from stemma.objectives.base import Objective, Requirements
    from stemma.objectives.batch import Batch, Target, collate
    from stemma.objectives.build import build_network, build_objectives, head_specs
    from stemma.objectives.groups import GroupKey, ObjectiveGroup, group_objectives
    from stemma.objectives.requirements import check_requirements, drop_unsupported


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'stemma.objectives' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"stemma.objectives.{_MODULES[name]}"), name)

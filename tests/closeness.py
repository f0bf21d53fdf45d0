"""Equal within a tolerance: for outputs after a reload, in another batch or on another processor, where bits are not
promised (docs/project/architecture.md, "What is equal, and how nearly")."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

TOLERANCE = 1e-4  # absolute below 1, relative above; a weight in the wrong place shows a hundred times as much


def assert_close(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Tensors, arrays, numbers, and whatever holds them; everything else must be equal."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=tolerance, rel=tolerance)
    elif dataclasses.is_dataclass(expected):
        assert type(found) is type(expected)
        assert_close(vars(found), vars(expected), tolerance)
    elif isinstance(expected, Mapping):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value, tolerance)
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other, tolerance)
    else:
        assert found == expected

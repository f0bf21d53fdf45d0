"""Equal within a tolerance: for outputs after reloading, in another batch or on another processor, which need not be
equal bit for bit (docs/project/architecture.md, "What is equal, and how nearly")."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

TOLERANCE = 1e-4  # absolute below 1, relative above; a misplaced weight differs a hundred times as much


def assert_close(result: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Compare tensors, arrays, floats and containers of them with a tolerance; other values must be equal."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result, expected, atol=tolerance, rtol=tolerance)
    elif isinstance(expected, np.ndarray):
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, atol=tolerance, rtol=tolerance)
    elif isinstance(expected, float):
        assert result == pytest.approx(expected, abs=tolerance, rel=tolerance)
    elif dataclasses.is_dataclass(expected):
        assert type(result) is type(expected)
        assert_close(vars(result), vars(expected), tolerance)
    elif isinstance(expected, Mapping):
        assert result.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(result[key], value, tolerance)
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
        assert len(result) == len(expected)
        for item, expected_item in zip(result, expected, strict=True):
            assert_close(item, expected_item, tolerance)
    else:
        assert result == expected

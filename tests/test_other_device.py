"""Training and inference on another device than the CPU: tests/pretended.py stands in for one, in a process of its own.

torch fixes its devices at the first backward pass, and a device that is only pretended would be known to every test
after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(("file", "marks"), [
    ("training/other_device.py", "not slow"), ("generation/elsewhere.py", "not slow"),
    pytest.param("training/other_device.py", "slow", marks=pytest.mark.slow)])
def test_on_another_device(file, marks):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks, str(TESTS / file)]
    run = subprocess.run(command, cwd=TESTS.parent, env=clean, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]

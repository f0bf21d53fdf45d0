"""Training and inference on another device than the CPU, with tests/fake_device.py in a separate process.

torch fixes its devices at the first backward pass, so the fake device would stay registered in every test
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
    ("training/training_on_fake_device.py", "not slow"), ("generation/inference_on_fake_device.py", "not slow"),
    pytest.param("training/training_on_fake_device.py", "slow", marks=pytest.mark.slow)])
def test_on_another_device(file, marks):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", marks, str(TESTS / file)]
    run = subprocess.run(command, cwd=TESTS.parent, env=clean, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]

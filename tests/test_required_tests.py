"""Skipped tests are listed at the end of a test run, and fail it if STEMMA_MUST_RUN names them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BROWSER = "tests/lab/test_browser.py"


@pytest.mark.parametrize(("required", "code"), [("other.py", 0), (f"other.py {BROWSER}", 1)])
def test_tests_skipped_without_a_browser_are_listed_and_fail_if_required(tmp_path, required, code):
    """PATH is an empty folder, so there is no chromium."""
    environment = {**os.environ, "PATH": str(tmp_path), "STEMMA_MUST_RUN": required}
    done = subprocess.run([sys.executable, "-m", "pytest", BROWSER, "-p", "no:cacheprovider"], env=environment,
                          cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    *_, skipped, summary = done.stdout.splitlines()
    assert skipped.endswith(f"in {BROWSER}: no chromium on PATH (apt-get install chromium)")
    assert skipped.split()[:2] == ["SKIPPED", summary.split()[0]] and summary.split()[1] == "skipped"

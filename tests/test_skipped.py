"""Tests that are skipped are named at the end, and fail where they must run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BROWSER = "tests/lab/test_browser.py"


@pytest.mark.parametrize(("needed", "code"), [("elsewhere.py", 0), (f"elsewhere.py {BROWSER}", 1)])
def test_a_browser_that_is_missing_is_named_and_fails_where_it_must_be_there(tmp_path, needed, code):
    """Run as it is where no chromium is on the PATH."""
    nowhere = {**os.environ, "PATH": str(tmp_path), "STEMMA_MUST_RUN": needed}
    done = subprocess.run([sys.executable, "-m", "pytest", BROWSER, "-p", "no:cacheprovider"], env=nowhere,
                          cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    *_, told, counted = done.stdout.splitlines()
    assert told.endswith(f"in {BROWSER}: no chromium on PATH (apt-get install chromium)")
    assert told.split()[:2] == ["SKIPPED", counted.split()[0]] and counted.split()[1] == "skipped"

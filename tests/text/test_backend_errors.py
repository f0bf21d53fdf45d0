"""Threads that run untrusted tokenizer pipelines concurrently restore stderr."""

import os
import threading
from pathlib import Path

from stemma.text.backend_errors import catch_panics


def test_stderr_is_restored_when_the_last_thread_is_done():
    before = os.fstat(2)
    inside, release = threading.Event(), threading.Event()

    def other() -> None:
        with catch_panics(foreign=True):
            inside.set()
            release.wait(10)

    with catch_panics(foreign=True):
        thread = threading.Thread(target=other)
        thread.start()
        assert inside.wait(10)
    assert os.path.samestat(os.fstat(2), Path(os.devnull).stat())  # the other thread still runs
    release.set()
    thread.join()
    after = os.fstat(2)
    assert (after.st_dev, after.st_ino) == (before.st_dev, before.st_ino)

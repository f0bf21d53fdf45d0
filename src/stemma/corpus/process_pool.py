"""Helper processes that answer one question at a time, through pipes.

Python's own process pool imports the user's script again in every worker, which fails in a script without a main
guard, and in some versions it hangs for ever when a worker dies. Here a worker is a bare interpreter that imports one
function of ours; one thread of the parent talks to each, so a death is an end of file, and is said at once. A worker
whose parent is gone reads an end of file too, and ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

SERVE = "from stemma.corpus.process_pool import worker_main; worker_main()"


class WorkerDiedError(Exception):
    """A worker ended without an answer (killed, or out of memory)."""


def parallel_map(make: Callable[[Any], Callable[[Any], Any]], setting: object, items: Iterable[object],
                workers: int) -> Generator[Any]:
    """`make(setting)` in each worker gives a function; its answers for the items come back in order. At most two items
    a worker are under way. `make` must be importable: a class or function of a module."""
    started: list[subprocess.Popen[bytes]] = []
    own = threading.local()

    def ask(item: object) -> Any:
        if not hasattr(own, "process"):
            own.process = _start()
            started.append(own.process)
            _send(own.process.stdin, (make, setting))
        try:
            _send(own.process.stdin, item)
            kind, answer = pickle.load(own.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerDiedError from error
        if kind == "error":
            raise answer
        return answer

    pool = ThreadPoolExecutor(workers)
    try:
        waiting: deque[Future[Any]] = deque()
        for item in items:
            waiting.append(pool.submit(ask, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.kill()
            process.wait()
        pool.shutdown()


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                   "TOKENIZERS_PARALLELISM": "false"}  # the processes are the parallelism
    return subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            env=environment, start_new_session=True)  # Ctrl-C is for the parent


def _send(pipe: IO[bytes] | None, message: object) -> None:
    assert pipe is not None
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def worker_main() -> None:
    """The worker's side: read, answer, until the pipe ends. What the function prints goes to stderr."""
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        make, setting = pickle.load(questions)
        function, broken = None, None
        try:
            function = make(setting)
        except Exception as error:
            broken = error
        while True:
            item = pickle.load(questions)
            try:
                if broken is not None:
                    raise broken
                assert function is not None
                _send(answers, ("answer", function(item)))
            except BrokenPipeError:
                return
            except Exception as error:
                _send(answers, ("error", error))
    except (EOFError, BrokenPipeError):
        return

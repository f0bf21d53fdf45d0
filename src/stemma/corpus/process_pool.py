"""A process pool: worker processes that map a function over items, through pipes.

Python's process pool imports the user's script again in every worker, which fails in a script without a main guard, and
some versions hang forever when a worker dies. Here a worker is a bare interpreter that imports one function of this
module. Each worker has a thread in the parent. If a worker dies, its thread reads an end of file and reports it at
once. If the parent dies, its workers read an end of file and exit.
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

WORKER_CODE = "from stemma.corpus.process_pool import worker_main; worker_main()"


class WorkerDiedError(Exception):
    """A worker exited without a result (killed, or out of memory)."""


def parallel_map(make: Callable[[Any], Callable[[Any], Any]], setting: object, items: Iterable[object],
                 workers: int) -> Generator[Any]:
    """Apply the function `make(setting)`, created in each worker, to the items; results come in order. At most two
    items per worker are in flight. `make` must be importable: a class or function of a module."""
    processes: list[subprocess.Popen[bytes]] = []
    local = threading.local()

    def call(item: object) -> Any:
        if not hasattr(local, "process"):
            local.process = _start()
            processes.append(local.process)
            _send(local.process.stdin, (make, setting))
        try:
            _send(local.process.stdin, item)
            kind, result = pickle.load(local.process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerDiedError from error
        if kind == "error":
            raise result
        return result

    pool = ThreadPoolExecutor(workers)
    try:
        pending: deque[Future[Any]] = deque()
        for item in items:
            pending.append(pool.submit(call, item))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
            process.wait()
        pool.shutdown()


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                   "TOKENIZERS_PARALLELISM": "false"}  # the processes are the parallelism
    return subprocess.Popen([sys.executable, "-c", WORKER_CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            env=environment, start_new_session=True)  # Ctrl-C is for the parent


def _send(pipe: IO[bytes] | None, message: object) -> None:
    assert pipe is not None
    pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def worker_main() -> None:
    """Main loop of a worker: read an item, send its result, until the pipe closes. Printed output goes to stderr."""
    requests, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        make, setting = pickle.load(requests)
        function, setup_error = None, None
        try:
            function = make(setting)
        except Exception as error:
            setup_error = error
        while True:
            item = pickle.load(requests)
            try:
                if setup_error is not None:
                    raise setup_error
                assert function is not None
                _send(results, ("result", function(item)))
            except BrokenPipeError:
                return
            except Exception as error:
                _send(results, ("error", error))
    except (EOFError, BrokenPipeError):
        return

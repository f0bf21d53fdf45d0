"""Log messages of the package: prefixes, silencing and repeated messages. They use standard logging."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from stemma.notes import about, each_once, quietly, silenced

logger = logging.getLogger("stemma.some.module")


@pytest.fixture(autouse=True)
def unchanged_logger():
    root = logging.getLogger("stemma")
    before = list(root.handlers), root.propagate
    yield
    assert (root.handlers, root.propagate) == before


def test_about_prefixes_every_message_of_its_block(caplog):
    with about("outer"), about("inner"):
        logger.warning("%d%% is text", 5)
    logger.warning("after")
    assert caplog.messages == ["outer: inner: 5% is text", "after"]
    assert {record.name for record in caplog.records} == {"stemma.some.module"}


def test_each_once_drops_repeated_messages(caplog):
    logged: set[str] = set()
    for _ in range(2):
        with each_once(logged):
            logger.warning("the same")
            logger.info("the same")
        logger.warning("outside")
    assert caplog.messages == ["the same", "outside", "outside"]


def test_silenced_ends_with_its_block_also_after_an_error(caplog):
    with pytest.raises(ValueError), silenced():
        logger.warning("inside")
        raise ValueError
    logger.warning("outside")
    assert caplog.messages == ["outside"]


def test_quietly_silences_a_generator_and_not_its_consumer(caplog):
    def read():
        for index in range(2):
            logger.warning("line %d", index)
            yield index

    for index in quietly(read()):
        logger.warning("took %d", index)
    for _ in quietly(read()):
        break  # an unfinished generator must not leave the logger silenced
    assert caplog.messages == ["took 0", "took 1"]


def test_silenced_does_not_affect_other_threads(caplog):
    with silenced():
        other = threading.Thread(target=lambda: logger.warning("from another thread"))
        other.start()
        other.join()
    assert caplog.messages == ["from another thread"]


def test_a_handler_added_inside_about_is_not_removed():
    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    messages: list[str] = []
    root, recorder = logging.getLogger("stemma"), Recorder()
    with about("stage"):
        root.addHandler(recorder)
    try:
        logger.warning("recorded")
    finally:
        root.removeHandler(recorder)
    assert messages == ["recorded"]


def test_python_prints_warnings_by_default_and_follows_logging_settings():
    code = ("import logging, stemma.text.train_tokenizer as module\n{}"
            "module.logger.warning('the text is short')\nmodule.logger.info('training')")
    for setup, expected in [("", "the text is short\n"),
                        ("logging.basicConfig(level='INFO')\n",
                         "WARNING:stemma.text.train_tokenizer:the text is short\n"
                         "INFO:stemma.text.train_tokenizer:training\n"),
                        ("logging.getLogger('stemma').setLevel('ERROR')\n", "")]:
        result = subprocess.run([sys.executable, "-c", code.format(setup)], capture_output=True, text=True, timeout=60,
                                check=True)
        assert result.stderr == expected

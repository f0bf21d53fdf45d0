"""What the package logs, and how callers change it; from Python it is standard logging."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from stemma.notes import about, each_once, quietly, silenced

logger = logging.getLogger("stemma.some.module")


@pytest.fixture(autouse=True)
def untouched():
    root = logging.getLogger("stemma")
    before = list(root.handlers), root.propagate
    yield
    assert (root.handlers, root.propagate) == before


def test_a_name_comes_before_every_note_from_inside(caplog):
    with about("outer"), about("inner"):
        logger.warning("%d%% is text", 5)
    logger.warning("after")
    assert caplog.messages == ["outer: inner: 5% is text", "after"]
    assert {record.name for record in caplog.records} == {"stemma.some.module"}


def test_each_note_is_given_once(caplog):
    told: set[str] = set()
    for _ in range(2):
        with each_once(told):
            logger.warning("the same")
            logger.info("the same")
        logger.warning("outside")
    assert caplog.messages == ["the same", "outside", "outside"]


def test_silence_ends_even_with_an_error(caplog):
    with pytest.raises(ValueError), silenced():
        logger.warning("inside")
        raise ValueError
    logger.warning("outside")
    assert caplog.messages == ["outside"]


def test_what_is_read_again_is_quiet_and_its_reader_is_not(caplog):
    def read():
        for number in range(2):
            logger.warning("line %d", number)
            yield number

    for number in quietly(read()):
        logger.warning("took %d", number)
    for _ in quietly(read()):
        break  # whoever does not read to the end leaves nothing behind
    assert caplog.messages == ["took 0", "took 1"]


def test_another_thread_is_heard_as_it_is(caplog):
    with silenced():
        other = threading.Thread(target=lambda: logger.warning("from elsewhere"))
        other.start()
        other.join()
    assert caplog.messages == ["from elsewhere"]


def test_a_handler_that_comes_in_between_stays():
    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    said: list[str] = []
    root, kept = logging.getLogger("stemma"), Kept()
    with about("stage"):
        root.addHandler(kept)
    try:
        logger.warning("heard")
    finally:
        root.removeHandler(kept)
    assert said == ["heard"]


def test_in_python_warnings_are_printed_and_the_rest_is_asked_for():
    code = ("import logging, stemma.text.train_tokenizer as one\n{}"
            "one.logger.warning('the text is short')\none.logger.info('training')")
    for setup, said in [("", "the text is short\n"),
                        ("logging.basicConfig(level='INFO')\n",
                         "WARNING:stemma.text.train_tokenizer:the text is short\n"
                         "INFO:stemma.text.train_tokenizer:training\n"),
                        ("logging.getLogger('stemma').setLevel('ERROR')\n", "")]:
        found = subprocess.run([sys.executable, "-c", code.format(setup)], capture_output=True, text=True, timeout=60,
                               check=True)
        assert found.stderr == said

import builtins
import errno
import json
import sys

import pytest

from stemma.errors import UserError
from stemma.training.run_log import RunLog


def entries(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_each_line_is_readable_at_once(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"step": 1, "loss": 6.5, "note": "naïve"})
        assert entries(tmp_path) == [{"step": 1, "loss": 6.5, "note": "naïve"}]
        log.write({"step": 2, "loss": float("nan"), "parts": {"masked_lm": [float("inf"), 1.0]}})
    assert entries(tmp_path)[1] == {"step": 2, "loss": None, "parts": {"masked_lm": [None, 1.0]}}
    with RunLog(tmp_path) as log:
        log.write({"step": 3})
    assert len(entries(tmp_path)) == 3


def test_truncating_removes_later_steps_and_a_torn_line(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"event": "start"})
        for step in range(1, 6):
            log.write({"step": step})
        log.write({"event": "validated"})  # belongs to step 5
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 6, "lo')
    with RunLog(tmp_path) as log:
        log.truncate_after(3)
        log.write({"step": 4, "again": True})
    assert entries(tmp_path) == [{"event": "start"}, {"step": 1}, {"step": 2}, {"step": 3}, {"step": 4, "again": True}]


@pytest.mark.parametrize("torn", ['{"step": 2', '{"step": 2}', "", '{"step": 2}\n\x00\x00'])
def test_a_last_line_without_a_newline_is_removed(tmp_path, torn):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + torn)
    with RunLog(tmp_path) as log:
        log.truncate_after(9)
        log.write({"step": 3})
    steps = [entry["step"] for entry in entries(tmp_path)]
    assert steps == ([1, 2, 3] if "\x00" in torn else [1, 3])


def test_a_log_without_later_steps_is_not_rewritten(tmp_path):
    with RunLog(tmp_path) as log:
        log.write({"step": 1})
        before = log.path.stat().st_ino
        log.truncate_after(1)
        assert log.path.stat().st_ino == before
        log.truncate_after(0)
        assert entries(tmp_path) == []


def test_a_full_disk_gives_an_error(tmp_path):
    log = RunLog(tmp_path)

    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

    log._file.close()
    log._file = Full()
    with pytest.raises(UserError, match="the disk is full while writing .*log.jsonl"):
        log.write({"step": 1})


def test_scalars_are_written_to_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunLog(tmp_path, tensorboard=True) as log:
        for step in (1, 2, 3):
            log.write({"step": step, "loss": 7.0 - step, "kind": "text"})
    with RunLog(tmp_path, tensorboard=True) as log:
        log.truncate_after(1)
        log.write({"step": 2, "loss": 0.5})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 6.0), (2, 0.5)]


def test_missing_tensorboard_gives_an_error_with_the_install_command(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith("torch.utils.tensorboard") or name == "tensorboard":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "stemma-lm\[track\]"'):
        RunLog(tmp_path, tensorboard=True)
    assert not (tmp_path / "log.jsonl").exists()

import io

import pytest
from rich.console import Console

from stemma.progress import ProgressLines, report_to
from stemma.training.progress_bar import ProgressBar, format_progress


def show(terminal, enabled=True):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with ProgressBar("bert@mini · 11.2 M parameters", "10 minutes", enabled, console) as progress:
        progress.update(2310, 0.38, 4.81, 6.02, 6912.3, 370)
    return stream.getvalue()


def test_the_bar_shows_progress_loss_baseline_speed_and_time_left():
    shown = show(terminal=True)
    assert shown.startswith("bert@mini · 11.2 M parameters · 10 minutes\n")
    assert " 38% ━━━━━━━━━" in shown
    assert "step 2,310 · loss 4.81 (unigram 6.02) · 6,900 tokens/s · 6:10 left" in shown


@pytest.mark.parametrize(("terminal", "enabled"), [(False, True), (True, False)])
def test_there_is_no_bar_without_a_terminal_or_when_switched_off(terminal, enabled):
    assert show(terminal, enabled) == ""


def test_unknown_values_are_omitted():
    assert format_progress(1, 10.0) == "step 1 · loss 10.00"
    assert format_progress(1, 10.0, tokens_per_second=412.4) == "step 1 · loss 10.00 · 412 tokens/s"
    assert format_progress(7, float("nan"), 6.1, 412.4) == "step 7 · 412 tokens/s"  # word vectors before a validation


def test_without_a_terminal_progress_is_a_plain_line():
    lines = ProgressLines(io.StringIO(), lambda: 0.0)
    with report_to(lines), ProgressBar("bert@mini", "10 minutes") as progress:
        progress.update(2310, 0.38, 4.81, 6.02, 6912.3, 370)
        lines._due = 0
        lines.print_if_due()
    assert lines.stream.getvalue() == ("progress: training bert@mini · 38% · step 2,310 · loss 4.81 (unigram 6.02) · "
                                       "6,900 tokens/s · 6:10 left\n")

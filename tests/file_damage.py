"""Functions that damage a file of a run or a lab, and an assertion that a command refuses it and changes no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stemma.cli import main

Damage = Callable[[Path], object]
CHECKSUM_DIFFERS = "is damaged or was edited (its checksum differs from the one written)"


def read_tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


def refusal(capsys, *words: object) -> str:
    """Run a command that must fail with exit code 2 and an error, and must change no file; return the error."""
    before = read_tree(Path())
    capsys.readouterr()
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("note: ")]
    assert code == 2 and lines[0].startswith("error: ") and "Traceback" not in captured.err, captured.err
    assert read_tree(Path()) == before
    return "\n".join(lines)


def first_match(pattern: str) -> Path:
    return sorted(Path().glob(pattern))[0]


def overwrite_with(text: str) -> Damage:
    return lambda file: file.write_text(text)


def replace_text(before: str, after: str) -> Damage:
    def change(file: Path) -> None:
        content = file.read_text()
        assert before in content, content[:300]
        file.write_text(content.replace(before, after, 1))
    return change


def flip_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def drop_last_line(file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def change_a_number(file: Path) -> None:
    content = file.read_text()
    position = content.index("0.", len(content) // 3)
    file.write_text(content[:position] + "1." + content[position + 2:])

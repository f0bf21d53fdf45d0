"""Ways to damage a file of a run or a lab, and a command that must refuse it in a sentence and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stemma.cli import main

Damage = Callable[[Path], object]
FOUND = "is damaged or was edited (its checksum differs from the one written)"


def listing(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*"))}


def refused(capsys, *words: object) -> str:
    before = listing(Path())
    capsys.readouterr()
    code = main([str(word) for word in words])
    told = capsys.readouterr()
    lines = [line for line in told.err.splitlines() if not line.startswith("note: ")]
    assert code == 2 and lines[0].startswith("error: ") and "Traceback" not in told.err, told.err
    assert listing(Path()) == before
    return "\n".join(lines)


def one(pattern: str) -> Path:
    return sorted(Path().glob(pattern))[0]


def written(text: str) -> Damage:
    return lambda file: file.write_text(text)


def replaced(before: str, after: str) -> Damage:
    def change(file: Path) -> None:
        content = file.read_text()
        assert before in content, content[:300]
        file.write_text(content.replace(before, after, 1))
    return change


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def shorter(file: Path) -> None:
    """Without its last line."""
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def another_number(file: Path) -> None:
    content = file.read_text()
    where = content.index("0.", len(content) // 3)
    file.write_text(content[:where] + "1." + content[where + 2:])

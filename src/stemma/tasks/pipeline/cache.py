"""Runs of a pipeline by their number: what is unchanged stays, what changed is put aside, and comes back if it is asked
for again.

`lineage.json` says which number each place has. It is written after stale runs have left and before anything new comes,
so that a kill at any moment leaves no run under a number that is not its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stemma.files import make_folder, remove_leftovers
from stemma.json_files import damage
from stemma.stored import read_object, store_object

LINEAGE, PAST = "lineage.json", "past"


def known_hashes(run: Path) -> dict[str, str]:
    """The number of each place of a pipeline, as it was written last."""
    file = run / LINEAGE
    if not file.is_file():
        return {}
    advice = f"delete it, and `stemma pipeline {run / 'pipeline.toml'} --out {run}` makes all stages anew."
    with damage(file, advice):
        return dict(read_object(file, advice)["places"])


def settle(run: Path, places: Mapping[str, str], lineage: list[dict[str, Any]]) -> dict[str, str]:
    """Make room for these numbers; says of each place whether it is kept, changed or new."""
    before = known_hashes(run)
    told = {}
    for place, number in sorted(before.items(), key=lambda item: -len(item[0])):  # what lies inside leaves first
        if places.get(place) != number and (run / place).exists():
            _move(run / place, _aside(run, place, number))
    store_object(run / LINEAGE, {"stages": lineage, "places": dict(places)})
    for place, number in sorted(places.items(), key=lambda item: len(item[0])):
        inside = str(Path(place).parent) in places  # of another run, without which it is nothing
        homeless = inside and not (run / place).parent.exists()
        if not homeless and not (run / place).exists() and (past := _aside(run, place, number)).exists():
            _move(past, run / place)
        told[place] = "kept" if (run / place).exists() else "changed" if place in before else "new"
    return told


def _aside(run: Path, place: str, number: str) -> Path:
    return run / PAST / f"{place.replace('/', '.')}-{number[:12]}"


def _move(source: Path, target: Path) -> None:
    make_folder(target.parent)
    remove_leftovers(source.parent)
    if target.exists():
        shutil.rmtree(target)
    source.rename(target)

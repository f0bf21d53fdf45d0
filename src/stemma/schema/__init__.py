"""Everything a recipe can say, as types: one file per section, no behaviour, no torch."""

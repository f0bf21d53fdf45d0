"""Attention, one kind a file; a recipe names the kind (`kinds.py`)."""

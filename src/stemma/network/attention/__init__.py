"""Attention modules. A recipe names the kind (`kinds.py`)."""

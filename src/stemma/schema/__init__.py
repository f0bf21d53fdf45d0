"""Types of all recipe settings: one file per section, no behaviour, no torch."""

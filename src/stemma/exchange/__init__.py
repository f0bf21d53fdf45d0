"""The Hugging Face layout, read and written: one declarative key table per family."""

from __future__ import annotations

from stemma.exchange.bert import BERT
from stemma.exchange.table import Family

FAMILIES: dict[str, Family] = {BERT.model_type: BERT}

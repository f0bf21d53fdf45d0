"""The Hugging Face layout, read and written: one declarative table per family."""

from __future__ import annotations

from stemma.exchange.albert import ALBERT
from stemma.exchange.bart import BART
from stemma.exchange.bert import BERT
from stemma.exchange.distilbert import DISTILBERT
from stemma.exchange.electra import ELECTRA
from stemma.exchange.ernie import ERNIE
from stemma.exchange.gpt import GPT
from stemma.exchange.gpt2 import GPT2
from stemma.exchange.modernbert import MODERNBERT, MODERNBERT_DECODER
from stemma.exchange.roberta import ROBERTA
from stemma.exchange.t5 import T5
from stemma.exchange.table import Family
from stemma.exchange.transformer_xl import TRANSFORMER_XL
from stemma.exchange.xlnet import XLNET

KNOWN = (BERT, GPT, GPT2, TRANSFORMER_XL, XLNET, T5, BART, ROBERTA, ALBERT, DISTILBERT, ELECTRA, ERNIE,
         MODERNBERT, MODERNBERT_DECODER)
FAMILIES: dict[str, Family] = {family.model_type: family for family in KNOWN}

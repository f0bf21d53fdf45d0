"""Discourse connectives, English and Chinese: our own selection."""

from __future__ import annotations

ENGLISH = (
    "but", "and", "or", "so", "yet", "however", "nevertheless", "nonetheless", "still", "instead", "rather",
    "otherwise", "by contrast", "in contrast", "on the contrary", "on the other hand", "although", "though", "while",
    "whereas", "despite this", "therefore", "thus", "hence", "consequently", "accordingly", "as a result",
    "for this reason", "because", "since", "if", "unless", "moreover", "furthermore", "besides", "also",
    "in addition", "similarly", "likewise", "indeed", "in fact", "in particular", "for example", "for instance",
    "in other words", "in short", "in general", "of course", "after all", "then", "next", "finally", "later",
    "afterwards", "meanwhile", "at the same time", "until then", "first", "second", "third",
)
CHINESE = (
    "但是", "但", "然而", "不过", "可是", "却", "相反", "反之", "否则", "虽然", "尽管", "即使", "因此", "所以",
    "因而", "于是", "从而", "可见", "因为", "由于", "如果", "只要", "只有", "除非", "而且", "并且", "此外", "另外",
    "同时", "同样", "甚至", "尤其", "其实", "事实上", "实际上", "例如", "比如", "也就是说", "换句话说", "总之",
    "总的来说", "当然", "毕竟", "首先", "其次", "再次", "然后", "接着", "随后", "后来", "最后", "与此同时", "一方面",
    "另一方面",
)
CONNECTIVES = (*ENGLISH, *CHINESE)

"""Normalizes web text: NFC, single spaces, no HTML remnants and no control characters."""

from __future__ import annotations

import html
import re
import unicodedata
from html.entities import html5

# Only real HTML tags: "<unk>" and "a < b" are text.
BLOCKS = "p|br|div|h[1-6]|li|ul|ol|tr|table|tbody|thead|hr|blockquote|pre|section|article|header|footer|nav|form|title"
INLINE = "a|abbr|b|big|body|button|center|code|em|font|head|html|i|iframe|img|input|label|link|meta|option|s|select|" \
         "small|span|strike|strong|sub|sup|td|th|tt|u|video"
INVISIBLE_HTML = re.compile(r"<!--.*?-->|<(script|style|noscript)\b[^<>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
BLOCK_TAG = re.compile(rf"</?(?:{BLOCKS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
INLINE_TAG = re.compile(rf"</?(?:{INLINE})(?:\s[^<>]*)?/?>", re.IGNORECASE)
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
LINE_END = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
# Controls, direction marks, soft hyphens and zero-width spaces; not the joiners, which Persian and emoji need.
INVISIBLE = re.compile("[\0-\b\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff"
                       "\ufff9-\ufffc]")
SPACES = re.compile(r"[^\S\n]+")
AROUND_LINE_END = re.compile(r" ?\n ?")
BLANK_LINES = re.compile(r"\n{3,}")


def normalize_text(text: str) -> str:
    """Remove HTML remnants, controls and superfluous space; compose characters (NFC keeps full-width characters)."""
    if "<" in text:
        text = INVISIBLE_HTML.sub(" ", text)
        text = INLINE_TAG.sub("", BLOCK_TAG.sub("\n", text))
    if "&" in text:
        text = ENTITY.sub(_unescape, text)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    text = INVISIBLE.sub("", LINE_END.sub("\n", text))
    text = AROUND_LINE_END.sub("\n", SPACES.sub(" ", text))
    return BLANK_LINES.sub("\n\n", text).strip()


def _unescape(match: re.Match[str]) -> str:
    entity = match.group()
    if entity[1] == "#":
        return html.unescape(entity)
    return html5.get(entity[1:], entity)  # `html.unescape` would also replace the "&not" in "&nothing;"

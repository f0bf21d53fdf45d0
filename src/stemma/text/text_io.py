"""Reads text block by block: decompress, decode, normalize line ends; errors name the exact byte.

Only one block is in memory, so a file of any size, even with a single line, needs the same memory.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import logging
import lzma
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stemma.errors import UserError, did_you_mean
from stemma.text.guess_encoding import likely_encoding

logger = logging.getLogger(__name__)

BLOCK = 1 << 18
COMPRESSED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
STDIN = Path("-")
COMMON_ENCODINGS = ("utf-8", "utf-16", "utf-32", "latin-1", "cp1252", "gb18030", "gbk", "big5", "shift_jis", "euc-jp",
                    "euc-kr", "cp1251", "koi8-r")
# Byte order marks, longest first: the mark of UTF-32 begins with the mark of UTF-16.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip


def display_name(path: Path) -> str:
    return "stdin" if path == STDIN else str(path)


def format_suffix(path: Path) -> str:
    """The suffix that names the format of a file, without that of its compression: .tsv of notes.tsv.gz."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()


def check_encoding(encoding: str, errors: str) -> str:
    """Python's canonical name of the encoding; raises a UserError if it is unknown."""
    if errors not in ("strict", "replace", "ignore"):
        raise UserError(f'--errors is "{errors}"; choose strict, replace or ignore.')
    try:
        codec = codecs.lookup(encoding)
        "".encode(encoding)  # refuses what is no text encoding, such as base64
    except LookupError as error:
        hint = did_you_mean(encoding, COMMON_ENCODINGS)
        raise UserError(f'no text encoding "{encoding}".{hint} Common ones: {", ".join(COMMON_ENCODINGS)}.') from error
    return {"utf-8-sig": "utf-8", "utf_8_sig": "utf-8"}.get(codec.name, codec.name)


def read_text(path: Path, encoding: str = "utf-8", errors: str = "strict", choice: bool = True) -> Iterator[str]:
    """Blocks of decoded text: LF line ends, no NUL, no byte order mark. `choice`: whether the user can choose the
    encoding and what happens to errors; otherwise messages name no options."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    reported = False
    for text, final in _decode(path, encoding, errors, choice):
        text = newlines.decode(text, final=final)
        if newlines.newlines not in (None, "\n") and not reported:
            reported = True
            logger.info(f"{display_name(path)}: CR or CRLF line ends are read as plain line ends.")
        if text:
            yield text


def read_bytes(path: Path) -> Iterator[bytes]:
    """Blocks of the file's content, decompressed by its suffix."""
    kind = COMPRESSED.get(path.suffix.lower())
    with _explain_damage(path, kind):
        if path == STDIN:
            if sys.stdin is None:
                raise UserError("standard input is closed, so that - has nothing to read; name a file, or send text "
                                "into it with a pipe.")
            yield from _blocks(sys.stdin.buffer)
        elif kind == "zstd":
            yield from _zstd_blocks(path)
        else:
            with _open(path, kind) as file:
                yield from _blocks(file)


@contextmanager
def _explain_damage(path: Path, kind: str | None) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise UserError(f"{path} ends too early (a truncated {kind} file); fetch or copy it again.") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path} is no intact {kind} file ({error}); fetch it again or correct its suffix.") from error
    except OSError as error:
        more = "; raise the limit (ulimit -n 1024)" if error.errno == errno.EMFILE else ""
        raise UserError(f"cannot read {display_name(path)}: {error.strerror or error}{more}.") from error


def _open(path: Path, kind: str | None) -> gzip.GzipFile | lzma.LZMAFile | IO[bytes]:
    if kind == "gzip":
        return gzip.open(path, "rb")
    return lzma.open(path, "rb") if kind == "xz" else path.open("rb")


def _blocks(file: gzip.GzipFile | lzma.LZMAFile | IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def _zstd_blocks(path: Path) -> Iterator[bytes]:
    # zstandard's stream reader accepts a truncated file, so the frames are tracked here. Small reads keep memory
    # bounded: 4 KiB can expand to 128 MiB at worst.
    import zstandard

    frame = None
    with path.open("rb") as file:
        while packed := file.read(4096):
            while packed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    if block := frame.decompress(packed):
                        yield block
                except zstandard.ZstdError as error:
                    raise lzma.LZMAError(str(error)) from error
                packed = frame.unused_data
                if frame.eof:
                    frame = None
    if frame is not None:
        raise EOFError


def _decode(path: Path, encoding: str, errors: str, choice: bool) -> Iterator[tuple[str, bool]]:
    """(decoded block, whether it is the last); byte offsets in messages refer to the decompressed content."""
    decoder: codecs.IncrementalDecoder | None = None
    offset = 0  # of the decoder's next byte
    dropped = False
    for block in _with_end(read_bytes(path)):
        if decoder is None:
            encoding, mark = _resolve_byte_order(encoding, block)
            decoder = codecs.getincrementaldecoder(encoding)(errors)
            wide = encoding.startswith(("utf-16", "utf-32"))
            block, offset = block[mark:], mark
        pending = len(decoder.getstate()[0])  # bytes of a character that the previous block cut
        nul = -1 if wide else block.find(b"\0")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            bad = offset - pending + error.start
            if 0 <= nul < bad - offset:
                raise UserError(_binary(path, offset + nul, block, choice)) from error
            raise UserError(_wrongly_encoded(path, encoding, bad, error.object, error.start, choice)) from error
        if "\0" in text:
            if errors == "strict":
                nul_index = len(text[: text.index("\0")].encode(encoding)) - pending if wide else nul
                raise UserError(_binary(path, offset + nul_index, block, choice))
            text = text.replace("\0", "")
            if not dropped:
                dropped = True
                logger.warning(f"{display_name(path)}: NUL bytes are dropped.")
        offset += len(block)
        yield text, not block


def _with_end(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, the first with at least four bytes for a byte order mark, then an empty block that ends the decoding.
    """
    start = b""
    for block in blocks:
        start += block
        if len(start) >= 4:
            break
    if start:
        yield start
    yield from blocks
    yield b""


def _resolve_byte_order(encoding: str, start: bytes) -> tuple[str, int]:
    """The encoding with the byte order of the text's mark, and the length of the mark."""
    for mark, announced in BYTE_ORDER_MARKS:
        if start.startswith(mark) and announced.startswith(encoding):
            return announced, len(mark)
    return {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}.get(encoding, encoding), 0


def _wrongly_encoded(path: Path, encoding: str, offset: int, data: bytes, start: int, choice: bool) -> str:
    value = f"0x{data[start]:02x}"
    likely = _encoding_of_mark(data) or likely_encoding(data, start, encoding)
    if choice:
        advice = f"try --encoding {likely}, or --errors replace" if likely else "use --errors replace"
    else:
        advice = f"save it as UTF-8{f' (it looks like {likely})' if likely else ''}"
    return f"{display_name(path)} is not {encoding} at byte {offset} ({value}); {advice}."


def _binary(path: Path, offset: int, block: bytes, choice: bool) -> str:
    sample, likely = block[:4096], None
    if len(sample) > 3 and sample.count(0) * 3 > len(sample):
        likely = f"utf-16-{'be' if sample[0::2].count(0) > sample[1::2].count(0) else 'le'}"
    if choice:
        advice = "if it is text, --errors replace drops such bytes"
        advice = f"try --encoding {likely}; or {advice}" if likely else advice
    else:
        advice = f"if it is text, save it as UTF-8{f' (it looks like {likely})' if likely else ''}"
    return f"{display_name(path)} has a NUL byte at byte {offset} and looks binary; {advice}."


def _encoding_of_mark(data: bytes) -> str | None:
    """The encoding of a byte order mark; None without a mark."""
    for mark, announced in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return announced.rsplit("-", 1)[0] if announced != "utf-8" else announced
    return None

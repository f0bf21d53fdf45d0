"""Readers: every format gives the same documents, in bounded memory, and errors name the invalid byte."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
import tracemalloc

import pytest
import zstandard

from stemma.errors import UserError
from stemma.text import readers
from stemma.text.readers import PASSAGE_LIMIT, list_files, read_passages

DOCUMENTS = ["One line.\nAnother line.", "Second document: naïve 中文。", "Third."]


def documents(paths, **options):
    """The documents, joined from their passages."""
    results = []
    for passage in read_passages(paths, **options):
        assert len(passage.text) <= PASSAGE_LIMIT
        if passage.starts_document:
            results.append("")
        results[-1] += passage.text
    return [text.strip("\n") for text in results]


def compress(suffix, data):
    compressors = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.ZstdCompressor().compress}
    return compressors[suffix](data)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_all_formats_and_compressions_give_the_same_documents(tmp_path, kind, suffix):
    plain = "\n \t\n\n".join(DOCUMENTS) if kind == "txt" else "\n".join(json.dumps({"text": d}) for d in DOCUMENTS)
    file = tmp_path / f"a.{kind}{suffix}"
    file.write_bytes(compress(suffix, plain.encode()))
    assert documents([file]) == DOCUMENTS
    assert {passage.source for passage in read_passages([file])} == {str(file)}


def test_parquet_is_read_in_batches(tmp_path, caplog):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    many = [f"Document {i}\r\nhere." for i in range(600)]
    parquet.write_table(arrow.table({"body": [*many, None], "n": list(range(601))}), tmp_path / "a.parquet")
    result = documents([tmp_path / "a.parquet"], field="body")
    assert result == [text.replace("\r", "") for text in many] and "null in 1 row" in caplog.messages[0]
    with pytest.raises(UserError, match=r'no field "text" \(it has: body, n\)'):
        documents([tmp_path / "a.parquet"])
    with pytest.raises(UserError, match='"n" holds int64'):
        documents([tmp_path / "a.parquet"], field="n")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-50])
    with pytest.raises(UserError, match="b.parquet is no intact Parquet file"):
        documents([tmp_path / "b.parquet"])


def test_missing_pyarrow_is_reported_with_the_install_command(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r'pip install "stemma-lm\[parquet\]"'):
        documents([tmp_path / "a.parquet"])


@pytest.mark.parametrize(("mode", "expected"), [
    ("blank", ["a\nb", "c"]), ("line", ["a", "b", "c"]), ("file", ["a\nb\n\n\nc"])])  # fmt: skip
def test_blank_lines_lines_or_files_end_a_document(tmp_path, mode, expected):
    (tmp_path / "a.txt").write_text("\na\nb\n\n\nc\n")
    assert documents([tmp_path / "a.txt"], documents=mode) == expected


@pytest.mark.parametrize("block", [1, 2, 3, 7])
@pytest.mark.parametrize("mode", ["blank", "line", "file"])
def test_the_block_size_does_not_change_the_text(tmp_path, monkeypatch, mode, block):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffnaïve 中文\r\nb\r\n \r\n\r\nc d\re 😀\n\n  f\n".encode())
    expected = documents([file], documents=mode)
    monkeypatch.setattr("stemma.text.text_io.BLOCK", block)
    assert documents([file], documents=mode) == expected
    assert expected[0].startswith("naïve") and "\r" not in "".join(expected)
    assert "d\ne" in "|".join(expected).replace("|", "\n")


@pytest.mark.parametrize("limit", [5, 8, 50])
def test_long_documents_are_split_at_newlines_then_spaces_then_anywhere(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(readers, "PASSAGE_LIMIT", limit)
    monkeypatch.setitem(globals(), "PASSAGE_LIMIT", limit)
    monkeypatch.setattr("stemma.text.text_io.BLOCK", 4)
    text = "one two\nthree\nfourfivesixseven eight\n\nnine ten\n   \neleven"
    (tmp_path / "a.txt").write_text(text)
    expected = ["onetwothreefourfivesixseveneight", "nineten", "eleven"]
    assert ["".join(document.split()) for document in documents([tmp_path / "a.txt"])] == expected
    if limit == 8:
        passages = [passage.text for passage in read_passages([tmp_path / "a.txt"])]
        assert passages[:4] == ["one two\n", "three\n", "fourfive", "sixseven"]


def test_a_huge_line_is_read_in_bounded_memory(tmp_path, caplog):
    file = tmp_path / "text8.txt"
    with file.open("wb") as out:
        for _ in range(30):
            out.write(b"anarchism originated as a term " * 33_000)  # 30 MB in one line
    tracemalloc.start()
    total = num_documents = 0
    for passage in read_passages([file]):
        total += len(passage.text)
        num_documents += passage.starts_document
        assert passage.text[-1] == " " or total > 30_600_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_documents == 1 and total >= file.stat().st_size - 1
    assert len(caplog.messages) == 1 and "read in pieces" in caplog.messages[0]
    assert peak < 8 << 20


def test_long_white_space_is_shortened_and_still_separates(tmp_path):
    (tmp_path / "a.txt").write_text("a\n" + " " * 3_000_000 + "\nb" + " " * 3_000_000 + "c")
    assert [text.split() for text in documents([tmp_path / "a.txt"])] == [["a"], ["b", "c"]]


def test_line_ends_and_nul_are_reported_once(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\rc\x00d\n" * 5)
    assert documents([tmp_path / "a.txt"], errors="replace") == ["\n".join(["a", "b", "cd"] * 5)]
    notes = caplog.messages
    assert len(notes) == 2 and any("NUL" in note for note in notes) and any("CRLF" in note for note in notes)


@pytest.mark.parametrize("block", [1, 2, 64, 1 << 18])
def test_invalid_bytes_are_reported_with_their_position(tmp_path, monkeypatch, block):
    monkeypatch.setattr("stemma.text.text_io.BLOCK", block)
    file = tmp_path / "bad.txt"
    start = b"\xef\xbb\xbf" + "naïve 中文 ".encode() * 20

    def message(data, **options):
        file.write_bytes(data)
        with pytest.raises(UserError) as caught:
            documents([file], **options)
        return str(caught.value)

    expected = message(start + b"caf\xe9 au lait")
    assert f"{file} is not utf-8 at byte {len(start) + 3} (0xe9)" in expected and "--errors replace" in expected
    assert f"at byte {len(start)} " in message(start + "中".encode()[:2])
    assert f"NUL byte at byte {len(start) + 1}" in message(start + b"x\x00\xff")
    assert f"is not utf-8 at byte {len(start) + 1}" in message(start + b"x\xff\x00")
    wide = "ab中".encode("utf-16")
    assert "NUL byte at byte 8" in message(wide + b"\0\0", encoding="utf-16")
    assert f"at byte {len(start)} " in message(start.replace(b"\xef\xbb\xbf", b"abc") + b"\xff\xff", encoding="utf-8")


@pytest.mark.parametrize(("encoding", "advice"), [("gb18030", "gb18030"), ("utf-16", "utf-16"), ("latin-1", "latin-1")])
def test_the_suggested_encoding_reads_the_file(tmp_path, encoding, advice):
    text = {"gb18030": "今天天气很好，我们去公园。", "utf-16": "Hello naïve", "latin-1": "café über naïve"}[encoding]
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match=f"--encoding {advice}"):
        documents([tmp_path / "a.txt"])
    assert documents([tmp_path / "a.txt"], encoding=advice) == [text]
    assert "\ufffd" in documents([tmp_path / "a.txt"], errors="replace")[0]


@pytest.mark.parametrize(("line", "message"), [
    ('{"text": "x"', "line 2 is not JSON"), ("[1]", "line 2 is not a JSON object"),
    ('{"body": "x", "id": 1}', r'line 2 has no field "text" \(it has: body, id\)'), ('{"text": 5}', "holds a int"),
    (r'{"text": "\ud800"}', "lone surrogate"), (r'{"text": "a\u0000b"}', "NUL character")])  # fmt: skip
def test_invalid_json_lines_are_refused(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        documents([tmp_path / "a.jsonl"])


def test_json_lines_with_null_or_replaced_characters_are_read(tmp_path, caplog):
    (tmp_path / "a.jsonl").write_text('{"text": "a\\u0000b\\r\\nc \\ud800"}\n\n{"text": null}\n')
    assert documents([tmp_path / "a.jsonl"], errors="replace") == ["ab\nc ?"]
    assert "null in 1 line" in caplog.messages[0]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_truncated_and_invalid_archives_are_refused(tmp_path, suffix):
    archive = compress(suffix, "".join(f"line {i * 7919 % 1000}\n" for i in range(20_000)).encode())
    file = tmp_path / f"a.txt{suffix}"
    file.write_bytes(archive[: len(archive) * 2 // 3])
    with pytest.raises(UserError, match=rf"a\.txt\{suffix} ends too early"):
        documents([file])
    file.write_bytes(b"this is plain text, not an archive at all")
    with pytest.raises(UserError, match=rf"a\.txt\{suffix} is no intact"):
        documents([file])


def test_several_zstd_frames_are_read(tmp_path):
    compress = zstandard.ZstdCompressor().compress
    (tmp_path / "a.txt.zst").write_bytes(compress(b"one ") + compress(b"two"))
    assert documents([tmp_path / "a.txt.zst"]) == ["one two"]


def test_empty_and_missing_inputs_are_refused(tmp_path, caplog):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text(" \n\n\t\n")
    (tmp_path / "folder").mkdir()
    for paths in (["empty.txt"], ["blank.txt"], ["empty.txt", "blank.txt"]):
        with pytest.raises(UserError, match="no text in"):
            documents([tmp_path / name for name in paths])
    with pytest.raises(UserError) as caught:
        list_files([tmp_path / "folder", tmp_path / "emty.txt", tmp_path / "*.csv"])
    messages = [text.split(";")[0] for _, text in caught.value.problems]
    assert messages[1:] == ["no such file or folder", "no file matches"]
    assert "empty.txt" in str(caught.value) and "has no text files" in str(caught.value)
    (tmp_path / "full.txt").write_text("text")
    caplog.clear()
    assert documents([tmp_path / "empty.txt", tmp_path / "full.txt"]) == ["text"]
    assert len(caplog.messages) == 1 and "empty.txt" in caplog.messages[0]


def test_files_folders_globs_and_stdin_are_listed(tmp_path, monkeypatch):
    for name in ("b.txt", "a.md", "deep/c.jsonl.gz", "deep/skip.png", ".hidden.txt", "odd.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    names = [file.relative_to(tmp_path).as_posix() for file in list_files([tmp_path, tmp_path / "b.txt"])]
    assert names == ["a.md", "b.txt", "deep/c.jsonl.gz"]
    assert list_files([str(tmp_path / "*.log")]) == [tmp_path / "odd.log"]
    assert len(list_files([str(tmp_path / "**" / "*.gz")])) == 1
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert [(p.text, p.source) for p in read_passages(["-"])] == [("from a pipe", "stdin")]


@pytest.mark.parametrize(("options", "message"), [
    ({"documents": "lines"}, 'Did you mean "line"'), ({"encoding": "utf8x"}, 'no text encoding "utf8x"'),
    ({"encoding": "base64"}, "no text encoding"), ({"errors": "loud"}, "choose strict, replace")])  # fmt: skip
def test_invalid_options_are_refused_before_reading(tmp_path, options, message):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match=message):
        read_passages([tmp_path / "a.txt"], **options)

"""The encoding that an error suggests: one in which the file decodes and looks like text."""

from __future__ import annotations

import pytest

from stemma.errors import UserError
from stemma.text.text_io import read_text

FRENCH = "Le café fermé est à côté de la forêt, où l'été dernier un élève a été blessé. Ça n'était pas prévu."
GERMAN = "Über den Wolken müßte die Größe der Äpfel schön gewöhnlich für große Mädchen wären, natürlich."
SPANISH = "El niño pequeño comió una manzana en la montaña; ¿dónde está el corazón de mañana?"
SWEDISH = "Räksmörgås är gott på våren, säger åtta små gråa möss från Göteborg och Malmö."
QUOTED = "He said “it’s fine” – and left… The café’s owner agreed."
CHINESE = "今天的天气很好，我们一起去公园散步吧。这本书讲的是中国历史，作者写得非常清楚。"
TAIWAN = "今天天氣很好，我們一起去公園散步吧。這本書講的是中國歷史，作者寫得非常清楚。"
JAPANESE = "今日は天気がいいので、公園へ散歩に行きましょう。この本は日本の歴史について書かれています。"
KOREAN = "오늘은 날씨가 좋아서 공원에 산책하러 갑시다. 이 책은 한국의 역사에 대해 쓰여 있습니다."
KATAKANA = "コンピュータのアイデアをテストするプログラムとデータベース。"
RUSSIAN = "Сегодня хорошая погода, давайте пойдём гулять в парк. Эта книга рассказывает об истории России."


@pytest.mark.parametrize(("text", "encoding", "suggested"), [
    (FRENCH, "latin-1", "latin-1"), (GERMAN, "latin-1", "latin-1"), (SPANISH, "latin-1", "latin-1"),
    (SWEDISH, "latin-1", "latin-1"), (GERMAN, "cp1252", "latin-1"), (QUOTED, "cp1252", "cp1252"),
    ("caf\u00e9", "latin-1", "latin-1"), ("na\u00efve r\u00e9sum\u00e9s", "latin-1", "latin-1"),
    (CHINESE, "gb18030", "gb18030"), (CHINESE, "gb2312", "gb18030"), (f"Title: {CHINESE} (2019)", "gbk", "gb18030"),
    (TAIWAN, "big5", "big5"), (JAPANESE, "shift_jis", "shift_jis"), (JAPANESE, "euc-jp", "euc-jp"),
    (KATAKANA, "shift_jis", "shift_jis"), (KOREAN, "euc-kr", "euc-kr"),
    (RUSSIAN, "cp1251", "cp1251"), (RUSSIAN, "koi8-r", "koi8-r"),
])
@pytest.mark.parametrize("times", [1, 400])
def test_the_right_encoding_is_suggested(text, encoding, suggested, times, tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\n".join([text] * times).encode(encoding))
    with pytest.raises(UserError, match=f"is not utf-8 at byte .*; try --encoding {suggested}, or --errors replace"):
        list(read_text(path, "utf-8", "strict"))


@pytest.mark.parametrize("content", [b"plain words \xff\xfe\xfd\x81\x8d then", bytes(range(128, 256)) * 4])
def test_binary_data_gets_no_suggestion(content, tmp_path):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(UserError, match="; use --errors replace"):
        list(read_text(tmp_path / "text.txt", "utf-8", "strict"))


@pytest.mark.parametrize(("content", "advice"), [
    (FRENCH.encode("latin-1"), r"is not utf-8 at byte .*; save it as UTF-8 \(it looks like latin-1\)\."),
    (b"plain words \xff\xfe\xfd\x81\x8d then", r"is not utf-8 at byte .*; save it as UTF-8\."),
    ("plain words".encode("utf-16-le"), r"looks binary; if it is text, save it as UTF-8 \(it looks like utf-16-le\)\."),
    (b"a word\0", r"looks binary; if it is text, save it as UTF-8\.")])
def test_a_file_that_must_be_utf_8_gets_no_advice_about_options(content, advice, tmp_path):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(UserError, match=advice) as error:
        list(read_text(tmp_path / "text.txt", choice=False))
    assert "--" not in error.value.message


@pytest.mark.parametrize("wrong_encoding", ["ascii", "utf-32-le", "gb18030"])
def test_utf_8_is_suggested_for_utf_8_text(wrong_encoding, tmp_path):
    (tmp_path / "text.txt").write_bytes(f"odd {FRENCH}€ {KOREAN}".encode())
    with pytest.raises(UserError, match="; try --encoding utf-8, or"):
        list(read_text(tmp_path / "text.txt", wrong_encoding, "strict"))

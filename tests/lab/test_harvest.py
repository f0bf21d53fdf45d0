import re
from textwrap import dedent

import pytest

from stemma.errors import UserError
from stemma.lab.quickstart import python_docs
from stemma.lab.quickstart.docstring_prose import paragraphs
from stemma.lab.quickstart.python_docs import DocPage, collect_pages, split_pages, write_pages


def prose(text: str, **options) -> list[str]:
    return [sentence for paragraph in paragraphs(dedent(text), **options) for sentence in paragraph]


@pytest.fixture
def library(tmp_path):
    """A small standard library; importing any of it would raise."""
    def put(name, text):
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")

    put("alpha.py", '''
        """Alpha reads the letters of a file. It closes the file at the end."""
        # The reader keeps one line in memory,
        # so that a long file costs nothing.
        raise SystemExit("imported")
        # a lone remark about the code
        class Reader:
            """A reader of lines that are separated by commas.

            >>> Reader("a,b").read()
            ['a', 'b']

            # The first line of an example is here,
            # and it is not a comment at all.
            """
            if True:
                async def read(self):
                    """Return the next line as a list of words."""
                    # this is a comment inside a body
                    def inner():
                        """This function lies deep inside of another one."""
        ''')
    put("beta/__init__.py", '"""Beta is a package with one module in it."""')
    put("beta/gamma.py", '"""Return the next line as a list of words.\n\nGamma says something of its own here."""')
    for excluded in ("test/test_x.py", "idlelib/x.py", "lib2to3/x.py", "site-packages/x.py", "encodings/x.py",
                     "_sysconfigdata_linux.py", "config-3.11/x.py", "beta/tests/x.py"):
        put(excluded, '"""This must not be in the corpus at all."""')
    put("broken.py", "def f(:")
    put("binary.py", "x = '\0'")
    put("pydoc_data/topics.py", '''
        # generated
        topics = {'with': 'The "with" statement\\n********************\\n\\n'
                          'The "with" statement wraps a block of code.\\n',
                  'assert': 'An assertion is a way to insert a check.\\n'}
        ''')
    return tmp_path / "lib"


def test_collect_pages_reads_docstrings_comments_and_topics(library):
    pages = collect_pages(library)
    assert [(page.name, page.kind) for page in pages] == [
        ("alpha", "module"), ("beta", "module"), ("beta.gamma", "module"), ("assert", "topic"), ("with", "topic")]
    assert pages[0].sentences == [
        "Alpha reads the letters of a file.", "It closes the file at the end.",
        "The reader keeps one line in memory, so that a long file costs nothing.",
        "A reader of lines that are separated by commas.",
        "Return the next line as a list of words.",
        "This function lies deep inside of another one."]
    assert pages[2].text == "Gamma says something of its own here."  # the other paragraph occurs in alpha already
    assert pages[4].text == "The with statement wraps a block of code."
    assert collect_pages(library) == pages


def test_a_folder_without_source_is_rejected(tmp_path):
    with pytest.raises(UserError, match="no Python source"):
        collect_pages(tmp_path)


def test_code_tables_and_fields_are_dropped():
    assert prose('''
        Heading of the page is here
        ===========================

        The text before the example::

            this is code that the reader must not see

        The text after the example.
        >>> print("it is a doctest")
        it is a doctest output

        ==========  =====================
        name        what it is for a user
        ==========  =====================

        | a cell of | a table of the page |

        :param name: the name of the file
            that is to be opened

        filename -- a string that is used as the name
                    of the file

        .. code-block:: python

           the code is in here

        .. note:: The note is kept for the reader.

        * The first item of a list
          that goes on.
        * The second item of the list.

        foo(bar, baz) -> list
        ''') == ["The text before the example:", "The text after the example.", "The note is kept for the reader.",
                 "The first item of a list that goes on.", "The second item of the list."]


def test_markup_is_stripped():
    assert prose("""
        See :class:`~email.Message` or :ref:`the guide <guide-label>` for ``more`` of *this* and **that** [1]_.
        The `mapping' and `other` ones, by `a link <there>`_, use f(*args, **kwargs) as they are.""") == [
            "See Message or the guide for more of this and that.",
            "The mapping and other ones, by a link, use f(*args, **kwargs) as they are."]
    assert prose('The \u201cwith\u201d keyword is "code" here.', quoted_code=True) == ["The with keyword is code here."]
    assert prose("More is said at https://example.org today. The rest is kept here.") == ["The rest is kept here."]


def test_paragraphs_are_split_into_sentences():
    assert prose("""
        Use it when it is needed, e.g. When nothing
        else -- or nearly nothing -- will do. Is it fast? It is! (See the notes.)""") == [
            "Use it when it is needed, e.g. When nothing else -- or nearly nothing -- will do.", "Is it fast?",
            "It is!", "(See the notes.)"]


def pages_of(sizes: dict[str, int]) -> list[DocPage]:
    return [DocPage(name, "module", " ".join(["word"] * size)) for name, size in sizes.items()]


def test_split_keeps_packages_together():
    pages = pages_of({f"p{i}.{part}": 10 + i for i in range(40) for part in "abc"})
    train, held_out = split_pages(pages, seed=0)
    assert sorted([*train, *held_out], key=lambda page: page.name) == sorted(pages, key=lambda page: page.name)
    assert not {page.group for page in train} & {page.group for page in held_out}
    fraction = sum(page.words for page in held_out) / sum(page.words for page in pages)
    assert 0.08 <= fraction <= 0.1
    assert split_pages(pages, seed=0) == (train, held_out) != split_pages(pages, seed=1)


def test_split_prefers_many_small_packages():
    pages = pages_of({f"huge{i}": 500 for i in range(9)} | {f"small{i}": 10 for i in range(550)})
    for seed in range(5):
        _, held_out = split_pages(pages, seed)
        assert {page.words for page in held_out} == {10}


def test_a_topic_is_not_a_package_of_the_same_name():
    assert DocPage("with", "topic", "x").group != DocPage("with", "module", "x").group


def test_write_pages_separates_documents_by_an_empty_line(tmp_path):
    write_pages([DocPage("a", "module", "One.\nTwo."), DocPage("b", "topic", "Three.")], tmp_path / "corpus.txt")
    assert (tmp_path / "corpus.txt").read_text() == "One.\nTwo.\n\nThree.\n"


def test_the_running_python_has_200_000_words_of_prose(python_pages):
    sentences = [sentence for page in python_pages for sentence in page.sentences]
    assert len(sentences) > 15_000
    assert sum(page.words for page in python_pages) > 200_000
    assert {"json.decoder", "argparse"} <= {page.name for page in python_pages if page.kind == "module"}
    assert not any(python_docs.EXCLUDED & set(page.name.split(".")) for page in python_pages if page.kind == "module")
    assert not [sentence for sentence in sentences if ">>>" in sentence or "``" in sentence or ":class:`" in sentence
                or re.search(r"[=*~-]{5,}", sentence) or not sentence.strip()]
    words = " ".join(sentences).split()
    assert sum(word.strip("\"'(),.;:").isalpha() for word in words) / len(words) > 0.85


def test_less_than_2_percent_of_held_out_sentences_occur_in_training(python_pages):
    train, held_out = split_pages(python_pages, seed=0)
    fraction = sum(page.words for page in held_out) / sum(page.words for page in python_pages)
    assert 0.09 < fraction <= 0.1
    training = {sentence for page in train for sentence in page.sentences}
    held_out_sentences = [sentence for page in held_out for sentence in page.sentences]
    assert sum(sentence in training for sentence in held_out_sentences) / len(held_out_sentences) < 0.02

"""`neighbours`, `analogy` and `similarity`: what word vectors know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stemma.cli.common_options import USE
from stemma.cli.output import JsonOption, align_columns, at_least, emit
from stemma.errors import UserError, pluralize

VectorsArgument = Annotated[str, typer.Argument(metavar="VECTORS", help="A vector file of word2vec, GloVe or fastText, "
                                                "or a model (run folder, its model/, Hugging Face folder): its input "
                                                "embedding.")]


def register(app: typer.Typer) -> None:
    for verb in (neighbours, analogy, similarity):
        app.command(rich_help_panel=USE)(verb)


def neighbours(vectors: VectorsArgument,
               words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Words to look up.")],
               top: Annotated[int, at_least(1, "Number of neighbours of each word")] = 10,
               json: JsonOption = False) -> None:
    """Show the words whose vectors are nearest, by cosine.

    Example: stemma neighbours run king queen
    """
    from stemma.exchange.vectors import open_vectors

    opened = open_vectors(vectors)
    found = {word: [neighbor._asdict() for neighbor in opened.neighbors(word, top)] for word in words}

    def human() -> None:
        for word, rows in found.items():
            if len(found) > 1:
                print(f"{word}:")
            print("\n".join(align_columns([(row["word"], f"{row['similarity']:.3f}") for row in rows])))

    emit({"vectors": vectors, "neighbours": found}, json, human)


def analogy(vectors: VectorsArgument,
            questions: Annotated[list[str], typer.Argument(metavar="FILE", help="Google's format: four words a line, "
                                                           "sections begin with `: name`. Or three words A B C: what "
                                                           "is to C as B is to A?")],
            limit: Annotated[int | None, at_least(1, "Use only the first N words of the vectors, the most frequent "
                                                     "ones", metavar="N")] = None,
            top: Annotated[int, at_least(1, "Number of answers to three words")] = 5,
            json: JsonOption = False) -> None:
    """Solve analogies: accuracy by section. The answer is the word nearest to b - a + c (3CosAdd).

    Questions with a word that has no vector are counted as unknown, and not as wrong.

    Example: stemma analogy run questions-words.txt
    """
    from stemma.exchange.vectors import open_vectors
    from stemma.vectors.questions import analogy_accuracy, read_questions, solve

    if len(questions) not in (1, 3):
        raise UserError(f"`stemma analogy` takes a file, or three words A B C, and not {len(questions)} arguments.")
    sections = read_questions(questions[0]) if len(questions) == 1 else []
    opened = open_vectors(vectors)
    if len(questions) == 3:
        answers = [answer._asdict() for answer in solve(opened if limit is None else opened.first(limit),
                                                        questions[0], questions[1], questions[2], top)]
        emit({"vectors": vectors, "question": questions, "answers": answers}, json, lambda: print("\n".join(
            align_columns([(answer["word"], f"{answer['similarity']:.3f}") for answer in answers]))))
        return
    result = analogy_accuracy(opened, sections, limit)
    emit({"vectors": vectors, "data": questions[0], **result}, json, lambda: _show_sections(result))


def similarity(vectors: VectorsArgument,
               pairs: Annotated[Path, typer.Argument(metavar="FILE", help="Two words and a score on each line, such as "
                                                     "WordSim-353 and SimLex-999.")],
               json: JsonOption = False) -> None:
    """Compare cosines of word pairs with similarity judgements: Spearman's correlation.

    Pairs with a word that has no vector are left out and counted as unknown.

    Example: stemma similarity run wordsim353.tsv
    """
    from stemma.exchange.vectors import open_vectors
    from stemma.vectors.questions import read_pairs, similarity_scores

    read = read_pairs(pairs)
    result = similarity_scores(open_vectors(vectors), read)
    emit({"vectors": vectors, "data": str(pairs), **result}, json, lambda: print(
        f"Spearman {_number(result['spearman'])} · Pearson {_number(result['pearson'])} · "
        f"{pluralize(result['pairs'], 'pair')}, {result['unknown']:,} unknown"))


def _show_sections(result: dict[str, Any]) -> None:
    rows: list[tuple[str, ...]] = [("section", "accuracy", "questions", "unknown")]
    for name, section in (*result["sections"].items(), ("all", result)):
        accuracy = "none" if section["accuracy"] is None else f"{section['accuracy']:.1%}"
        rows.append((name, accuracy, f"{section['questions']:,}", f"{section['unknown']:,}"))
    print("\n".join(align_columns(rows)))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"

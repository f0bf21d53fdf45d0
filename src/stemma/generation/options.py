"""How to write: every choice in one place, checked all at once before a model is asked anything.

Without a word from the user the next token is drawn from the nucleus, the likeliest tokens that hold 95% of the
probability (arXiv:1904.09751): taking the likeliest one each time soon runs in circles, and the long tail derails.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stemma.errors import UserError

NUCLEUS = 0.95  # the paper's value, where neither top_k nor top_p is given
LENGTH_PENALTY = 0.6  # of the Transformer (arXiv:1706.03762) and GNMT before it


@dataclass(frozen=True)
class GenerationOptions:
    tokens: int = 64  # at most so many new ones
    min_tokens: int = 0  # and at least so many, if the text would otherwise end
    greedy: bool = False  # the likeliest token each time, instead of drawing one
    temperature: float | None = None  # below 1 sharpens the distribution, above flattens it
    top_k: int | None = None  # draw among so many
    top_p: float | None = None  # draw among the likeliest that together are so probable
    repetition_penalty: float = 1.0  # scores of tokens that the text has already are lowered by this factor
    beams: int = 1  # keep so many texts and give back the best
    length_penalty: float | None = None  # 0 compares beams by probability alone; more favours longer ones
    stop: tuple[str, ...] = ()  # end where one of these appears; it is cut off
    completions: int = 1  # of each prompt
    seed: int | None = None  # None: another text each time
    batch: int = 8  # rows that are written at the same time
    places: int | None = None  # instead: as many as have so many tokens to read, each as long as the longest
    cache: bool = True  # keep keys and values instead of reading the text again for every token
    crop: bool = False  # read what fits of a prompt that is too long: its end, of a source to write from its beginning

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        problems = list(self._conflicts())
        if problems:
            raise UserError("these options cannot be followed" if len(problems) > 1 else
                            "this option cannot be followed", problems)

    @property
    def do_sample(self) -> bool:
        """Whether chance has a part in it."""
        return not self.greedy and self.beams == 1

    @property
    def nucleus(self) -> float | None:
        return NUCLEUS if self.top_p is None and self.top_k is None else self.top_p

    @property
    def length_alpha(self) -> float:
        return LENGTH_PENALTY if self.length_penalty is None else self.length_penalty

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        yield from self._out_of_range()
        sampling = [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
        if self.greedy and sampling:
            yield "greedy", f"takes the likeliest token, so {_join_names(sampling)} would do nothing; leave out either"
        if self.beams > 1 and sampling:
            yield "beams", f"searches and draws nothing, so {_join_names(sampling)} would do nothing; leave out either"
        if self.beams > 1 and self.greedy:
            yield "beams", f"{self.beams} beams and greedy search exclude each other (greedy is 1 beam)"
        if self.greedy and self.completions > 1:
            yield "completions", f"{self.completions} completions of one greedy search would be the same text; " \
                                 "leave out greedy"
        if self.beams > 1 and self.completions > self.beams:
            yield "completions", f"{self.beams} beams cannot give {self.completions} completions; ask for more beams"
        if self.beams == 1 and self.length_penalty is not None:
            yield "length_penalty", "compares beams, and there is only one; add beams, such as 4"
        if self.min_tokens > self.tokens >= 1:
            yield "min_tokens", f"is {self.min_tokens}, more than tokens ({self.tokens})"

    def _out_of_range(self) -> Iterator[tuple[str, str]]:
        for name, least in (("tokens", 1), ("min_tokens", 0), ("top_k", 1), ("beams", 1), ("completions", 1),
                            ("batch", 1), ("places", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                yield name, f"must be {least} or more, not {value}"
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            hint = "; for the likeliest token each time use greedy" if self.temperature == 0 else ""
            yield "temperature", f"must be a number above 0, not {self.temperature:g}{hint}"
        if self.top_p is not None and not 0 < self.top_p <= 1:
            yield "top_p", f"must be above 0 and at most 1, not {self.top_p:g}"
        if not 0 < self.repetition_penalty < math.inf:
            yield "repetition_penalty", f"must be a number above 0 (1 does nothing), not {self.repetition_penalty:g}"
        if self.length_penalty is not None and not math.isfinite(self.length_penalty):
            yield "length_penalty", f"must be a number, not {self.length_penalty:g}"
        if "" in self.stop:
            yield "stop", "is an empty string, which every text contains; give some text"


@dataclass(frozen=True)
class TranslationOptions:
    """How to translate, checked all at once before a model is asked anything."""

    beams: int = 4
    length_penalty: float | None = None  # 0.6; of beams only
    greedy: bool = False  # the likeliest token each time, instead of beams
    max_length_ratio: float = 1.0  # a translation is at most so many times as long as its source, in tokens,
    max_extra: int = 50  # and so many tokens
    n_best: int = 1
    prefix: str = ""  # put before every line: T5's name of the task
    batch: int = 8192  # places that are written at the same time: lines x beams x the longest source
    cache: bool = True
    crop: bool = False  # of a source that is too long read the beginning, instead of refusing it
    force: bool = False  # translate also what looks like the target language

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise UserError("this cannot be followed" if len(problems) == 1 else "these cannot be followed", problems)

    def _problems(self) -> Iterator[tuple[str, str]]:
        for name, least in (("beams", 1), ("n_best", 1), ("batch", 1), ("max_extra", 0), ("max_length_ratio", 0)):
            if getattr(self, name) < least:
                yield f"--{name.replace('_', '-')}", f"must be {least} or more, not {getattr(self, name):g}"
        if self.max_extra == 0 == self.max_length_ratio:
            yield "--max-extra", "0 and --max-length-ratio 0 leave no room for a translation; raise either"
        if self.n_best > (1 if self.greedy else self.beams):
            yield "--n-best", (f"{self.n_best} translations of one greedy search would be the same; leave out --greedy"
                               if self.greedy else f"{self.beams} beams cannot give {self.n_best}; raise --beams")
        if self.length_penalty is not None and (self.greedy or self.beams == 1):
            yield "--length-penalty", "compares beams, and there is only one; leave it out, or ask for more beams"

    def generation_options(self, max_new_tokens: Sequence[int]) -> GenerationOptions:
        alone = self.greedy or self.beams == 1
        return GenerationOptions(tokens=max(max_new_tokens), greedy=alone, beams=1 if alone else self.beams,
                                 places=self.batch,
                       length_penalty=self.length_penalty, completions=self.n_best, cache=self.cache)

    def max_new_tokens(self, source_length: int) -> int:
        return max(1, int(self.max_length_ratio * source_length) + self.max_extra)


def _join_names(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

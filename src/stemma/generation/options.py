"""Generation options, validated all at once before a model runs.

The default is nucleus sampling with top_p 0.95 (arXiv:1904.09751): greedy decoding soon repeats itself, and the long
tail of the distribution derails a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stemma.errors import UserError, join_names

NUCLEUS = 0.95  # the paper's value, used if neither top_k nor top_p is set
LENGTH_PENALTY = 0.6  # as in the Transformer (arXiv:1706.03762) and in GNMT


@dataclass(frozen=True)
class GenerationOptions:
    tokens: int = 64  # maximum number of new tokens
    min_tokens: int = 0  # minimum number of new tokens: no end token before
    greedy: bool = False  # take the most probable token instead of sampling
    temperature: float | None = None  # softmax temperature; below 1 is sharper, above 1 is flatter
    top_k: int | None = None  # sample among the k most probable tokens
    top_p: float | None = None  # sample among the most probable tokens that reach this probability together
    repetition_penalty: float = 1.0  # logits of tokens that are already in the text are lowered by this factor
    steps: int | None = None  # diffusion models: number of steps in which the text is unmasked; None: 128
    beams: int = 1  # beam size
    length_penalty: float | None = None  # exponent: 0 ranks beams by probability alone; more favours longer ones
    stop: tuple[str, ...] = ()  # stop strings; the text ends before the first one
    completions: int = 1  # completions per prompt
    seed: int | None = None  # None: a new random seed for each call
    batch: int = 8  # rows per batch
    places: int | None = None  # maximum tokens per batch (rows x the longest prompt); replaces `batch`
    cache: bool = True  # use a KV cache; without it the whole text is computed again for every token
    crop: bool = False  # truncate prompts that are too long: keep the end, or of a source text the beginning

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
        """Whether tokens are sampled: neither greedy nor beam search."""
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
            yield "greedy", f"takes the likeliest token, so {join_names(sampling)} would do nothing; leave out either"
        if self.beams > 1 and sampling:
            yield "beams", f"does not sample, so {join_names(sampling)} would do nothing; leave out either"
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
        for name, minimum in (("tokens", 1), ("min_tokens", 0), ("steps", 1), ("top_k", 1), ("beams", 1),
                              ("completions", 1), ("batch", 1), ("places", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < minimum:
                yield name, f"must be {minimum} or more, not {value}"
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
    """Options of `translate`, validated all at once before a model runs."""

    beams: int = 4
    length_penalty: float | None = None  # exponent for ranking beams; 0.6 if not set
    greedy: bool = False  # take the most probable token instead of beam search
    max_length_ratio: float = 1.0  # maximum length in tokens = max_length_ratio x source length + max_extra
    max_extra: int = 50
    n_best: int = 1
    prefix: str = ""  # put before every line, such as T5's task name
    batch: int = 8192  # tokens per batch: lines x beams x the longest source
    cache: bool = True
    crop: bool = False  # truncate a source that is too long instead of refusing it
    force: bool = False  # also translate lines that look like the target language

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise UserError("this cannot be followed" if len(problems) == 1 else "these cannot be followed", problems)

    def _problems(self) -> Iterator[tuple[str, str]]:
        for name, minimum in (("beams", 1), ("n_best", 1), ("batch", 1), ("max_extra", 0), ("max_length_ratio", 0)):
            if getattr(self, name) < minimum:
                yield f"--{name.replace('_', '-')}", f"must be {minimum} or more, not {getattr(self, name):g}"
        if self.max_extra == 0 == self.max_length_ratio:
            yield "--max-extra", "0 and --max-length-ratio 0 leave no room for a translation; raise either"
        if self.n_best > (1 if self.greedy else self.beams):
            yield "--n-best", (f"{self.n_best} translations of one greedy search would be the same; leave out --greedy"
                               if self.greedy else f"{self.beams} beams cannot give {self.n_best}; raise --beams")
        if self.length_penalty is not None and (self.greedy or self.beams == 1):
            yield "--length-penalty", "compares beams, and there is only one; leave it out, or ask for more beams"

    def generation_options(self, max_new_tokens: Sequence[int]) -> GenerationOptions:
        greedy = self.greedy or self.beams == 1
        return GenerationOptions(tokens=max(max_new_tokens), greedy=greedy, beams=1 if greedy else self.beams,
                                 places=self.batch, length_penalty=self.length_penalty, completions=self.n_best,
                                 cache=self.cache)

    def max_new_tokens(self, source_length: int) -> int:
        return max(1, int(self.max_length_ratio * source_length) + self.max_extra)

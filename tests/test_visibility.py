import itertools

import pytest
import torch

from stemma.visibility import (
    Bidirectional,
    Causal,
    CompiledMask,
    ExcludeSelf,
    Intersection,
    PaddingRule,
    Permutation,
    Prefix,
    SlidingWindow,
    Visibility,
)

BATCH, LENGTH = 3, 6
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]).bool()  # right and left padding
PREFIX = torch.tensor([0, 3, 6])
ORDER = torch.tensor([[3, 0, 5, 1, 4, 2], [0, 0, 2, 0, 1, 3], [5, 4, 3, 2, 1, 0]])

# A rule, and the same as a function: does the query at position q of row b attend to the key at position k?
RULES = {
    "full": (Bidirectional(), lambda b, q, k: True),
    "causal": (Causal(), lambda b, q, k: k <= q),
    "window": (SlidingWindow(2, 1), lambda b, q, k: q - 2 <= k <= q + 1),
    "prefix": (Prefix(PREFIX), lambda b, q, k: k <= q or k < PREFIX[b]),
    "permuted": (Permutation(ORDER), lambda b, q, k: k < 0 or bool(ORDER[b, k] <= ORDER[b, q])),
    "others": (ExcludeSelf(), lambda b, q, k: k != q),
    "padded": (PaddingRule(REAL), lambda b, q, k: k < 0 or bool(REAL[b, k])),
}
COMBINATIONS = [names for count in (1, 2, 3) for names in itertools.combinations(RULES, count)]


def combined(names: tuple[str, ...]) -> Visibility:
    rule: Visibility = Bidirectional()
    for name in names:
        rule = rule & RULES[name][0]
    return rule


def loop_mask(names: tuple[str, ...], queries: int, keys: int) -> torch.Tensor:
    """(B, Q, K), computed pair by pair; cached keys have negative positions."""
    memory = keys - queries
    return torch.tensor([[[all(RULES[name][1](b, q, k) for name in names) for k in range(-memory, queries)]
                          for q in range(queries)] for b in range(BATCH)])


def dense_mask(mask: CompiledMask, queries: int, keys: int) -> torch.Tensor:
    """(B, Q, K), the pairs that a kernel attends to with the compiled mask."""
    assert [mask.causal, mask.dense is not None, mask.band is not None].count(True) <= 1
    if mask.band is not None:
        allowed = torch.ones(keys, keys).triu(-mask.band[0]).tril(mask.band[1]).bool()[-queries:]
        allowed = allowed.expand(BATCH, queries, keys)
        if mask.token_mask is None:
            return allowed
        return allowed & (mask.token_mask[:, None] | torch.eye(keys).bool()[-queries:])
    if mask.causal:  # torch's flag: a triangle from the first key on
        return torch.ones(queries, keys).tril().bool().expand(BATCH, queries, keys)
    if mask.dense is None:
        return torch.ones(BATCH, queries, keys).bool()
    assert mask.dense.dtype == torch.bool and mask.dense.dim() == 4
    return mask.dense.expand(BATCH, 1, queries, keys)[:, 0]


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
@pytest.mark.parametrize("memory", [0, 1, 4])
def test_compiled_masks_and_rules_agree_with_plain_loops(names, memory):
    rule, expected = combined(names), loop_mask(names, LENGTH, LENGTH + memory)
    compiled = expected
    if {"window", "padded"} <= set(names) and "others" not in names:  # a padding position attends at least to itself
        compiled = expected | torch.ones(LENGTH, LENGTH + memory).triu(memory).tril(memory).bool()
    assert torch.equal(dense_mask(rule.compile(LENGTH, LENGTH + memory), LENGTH, LENGTH + memory), compiled)
    positions = torch.arange(-memory, LENGTH)
    allowed = rule.allows(positions[memory:], positions)
    assert torch.equal(allowed.expand(BATCH, LENGTH, LENGTH + memory), expected)


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_the_grid_agrees_with_plain_loops(names):
    rule, expected = combined(names), loop_mask(names, LENGTH, LENGTH)
    for row in range(BATCH):
        assert torch.equal(rule.grid(LENGTH, row), expected[row])
        assert torch.equal(rule.grid(4, row), expected[row, :4, :4])


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_selecting_rows_of_a_rule_selects_rows_of_its_mask(names):
    rule, expected = combined(names).rows(slice(1, 3)), loop_mask(names, LENGTH, LENGTH)[1:]
    allowed = rule.allows(torch.arange(LENGTH), torch.arange(LENGTH)).expand(2, LENGTH, LENGTH)
    assert torch.equal(allowed, expected)


def test_rules_compile_to_the_cheapest_form():
    assert Bidirectional().compile(4, 9) == CompiledMask()
    assert Causal().compile(4, 4) == CompiledMask(causal=True)
    assert Causal().compile(4, 9).dense is not None  # torch's causal flag aligns the first query and key, not the last
    assert PaddingRule(REAL).compile(LENGTH, LENGTH).dense.shape == (BATCH, 1, 1, LENGTH)


def test_bidirectional_adds_nothing_and_equal_rules_are_combined_once():
    assert Bidirectional() & Bidirectional() == Bidirectional()
    assert Bidirectional() & Causal() == Causal() == Causal() & Bidirectional() == Causal() & Causal()
    assert isinstance(Causal() & PaddingRule(REAL), Intersection)
    assert (Causal() & PaddingRule(REAL) & Causal()).rules() == (Causal(), PaddingRule(REAL))


def test_equal_rules_are_equal_and_others_are_not():
    equal_pairs = [(Causal(), Causal()), (SlidingWindow(2, 1), SlidingWindow(2, 1)),
                   (PaddingRule(REAL), PaddingRule(REAL.clone())),
                   (Prefix(PREFIX), Prefix(PREFIX.clone())),
                   (Causal() & PaddingRule(REAL), PaddingRule(REAL.clone()) & Causal())]
    for first, second in equal_pairs:
        assert first == second and hash(first) == hash(second)
    different = [Bidirectional(), Causal(), SlidingWindow(2, 1), SlidingWindow(1, 2), PaddingRule(REAL),
                 PaddingRule(~REAL), PaddingRule(REAL[:1]),
                 Prefix(PREFIX), Causal() & PaddingRule(REAL), Causal() & PaddingRule(~REAL),
                 Causal() & PaddingRule(REAL) & SlidingWindow(2, 1)]
    for first, second in itertools.combinations(different, 2):
        assert first != second
    assert Causal() != "causal"


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_moving_to_a_device_keeps_the_rule(names):
    moved = combined(names).to("cpu")
    assert moved == combined(names)
    on_meta = combined(names).to("meta").compile(LENGTH, LENGTH, "meta")
    assert on_meta.dense is None or on_meta.dense.device.type == "meta"


@pytest.mark.parametrize(("back", "kind"), [(0, "band"), (1, "band"), (2, "band"), (3, "dense"), (4, "dense"),
                                            (5, "causal"), (9, "causal")])
def test_a_causal_band_compiles_to_the_cheapest_form(back, kind):
    """Attention in blocks is faster only if a band is narrower than the text; a band as wide as the text is causal."""
    mask = (Causal() & SlidingWindow(back, 0)).compile(LENGTH, LENGTH)
    compiled = "band" if mask.band else "causal" if mask.causal else "dense"
    assert compiled == kind
    assert torch.equal(dense_mask(mask, LENGTH, LENGTH)[0], (Causal() & SlidingWindow(back, 3)).grid(LENGTH))


@pytest.mark.parametrize(("back", "ahead", "kind"), [(0, 0, "band"), (1, 1, "band"), (2, 0, "band"), (0, 2, "band"),
                                                     (2, 1, "dense"), (5, 4, "dense"), (5, 5, "none"), (9, 9, "none")])
@pytest.mark.parametrize("padded", [False, True])
def test_a_band_on_both_sides_compiles_to_the_cheapest_form(back, ahead, kind, padded):
    rule = SlidingWindow(back, ahead) & PaddingRule(REAL) if padded else SlidingWindow(back, ahead)
    mask = rule.compile(LENGTH, LENGTH)
    is_padding_mask = mask.dense is not None and mask.dense.shape[2] == 1
    assert ("band" if mask.band else "none" if mask.dense is None or is_padding_mask else "dense") == kind
    expected = rule.grid(LENGTH) if not padded else torch.stack([rule.grid(LENGTH, row) for row in range(BATCH)])
    if padded and kind != "none":
        expected = expected | torch.eye(LENGTH).bool()
    assert torch.equal(dense_mask(mask, LENGTH, LENGTH), expected.expand(BATCH, -1, -1))


def test_a_band_with_padding_needs_no_dense_mask():
    """Memory is linear in the length."""
    length = 1 << 14
    mask = (SlidingWindow(64, 64) & PaddingRule(torch.ones(2, length).bool())).compile(length, length)
    assert mask.dense is None and mask.token_mask.shape == (2, length)


def test_a_band_with_a_cache_compiles_to_a_band():
    """Of the cached keys, only those within the window are used."""
    length = 1 << 14
    for queries in (1, 3, LENGTH, length):
        real = torch.ones(2, length + queries).bool()
        mask = (Causal() & SlidingWindow(1, 0) & PaddingRule(real, cached_length=length)).compile(queries,
                                                                                                  length + queries)
        assert mask.band == (1, 0) and mask.dense is None and mask.token_mask.shape == real.shape
        assert SlidingWindow(2, 1).compile(queries, length + queries).band == (2, 1)
    assert (Causal() & SlidingWindow(LENGTH + 1, 0)).compile(LENGTH, LENGTH + 2).band is None  # as wide as the text
    assert SlidingWindow(LENGTH + 1, LENGTH).compile(LENGTH, LENGTH + 2) == CompiledMask()
    assert (Causal() & SlidingWindow(1, -1)).compile(LENGTH, LENGTH).dense is not None  # it excludes the query itself


def test_the_newest_position_attends_to_the_whole_cache():
    assert Causal().compile(1, 7) == CompiledMask()
    assert (Causal() & SlidingWindow(2, 0)).compile(1, 7) == CompiledMask(band=(2, 0))


def test_a_cache_may_contain_padding():
    """The first two positions are cached; one row begins with padding."""
    real = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]]).bool()
    dense = PaddingRule(real, cached_length=2).compile(2, 4).dense
    assert torch.equal(dense[:, 0, 0], real)
    dense = PaddingRule(real, cached_length=2).compile(2, 6).dense  # a memory before the cache, which has no padding
    assert dense[:, 0, 0].tolist() == [[True] * 6, [True, True, False, True, True, True]]


def test_rules_report_whether_they_are_causal():
    assert Causal().causal and (Causal() & SlidingWindow(2, 2)).causal and (PaddingRule(REAL) & Causal()).causal
    assert not Bidirectional().causal and not SlidingWindow(2, 0).causal and not Permutation(ORDER).causal

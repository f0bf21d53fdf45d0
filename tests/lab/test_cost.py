"""`stemma cost`: rows and exponents of recipes and of layers, FLOPs against torch's counter, crossings, errors."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import stemma
from stemma.cli import main
from stemma.errors import UserError
from stemma.lab.layer_cost import LAYERS, LayerSizes, crossing, layer_cost
from stemma.network.attention.flops import CPU_ATTENTION

SMALL = ["network.width=16", "network.heads=2", "network.layers=2", "network.feedforward=32",
         "tokenizer.vocab_size=300"]
QUICK = {"rounds": 2, "minutes": 2.0}


def run(capsys, *words: object) -> dict:
    assert main(["cost", *map(str, words), "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_rows_and_exponents_of_recipes(capsys):
    result = run(capsys, "bert@tiny", "gpt2@tiny", *SMALL, "--lengths", "96,32,64", "--rounds", 2, "--backward",
                 "--threads", 1)
    assert [(row["recipe"], row["length"]) for row in result["rows"]] == \
        [(name, length) for name in ("bert@tiny", "gpt2@tiny") for length in (32, 64, 96)]
    for row in result["rows"]:
        assert 0 < row["seconds"] < row["training_seconds"] and 0 < row["bytes"] < row["training_bytes"]
        assert row["range"][0] <= row["seconds"] <= row["range"][1]
    by_key = {(row["recipe"], row["length"]): row for row in result["rows"]}
    assert by_key["bert@tiny", 96]["bytes"] > 1.5 * by_key["bert@tiny", 32]["bytes"]
    assert result["exponents"].keys() == {"bert@tiny", "gpt2@tiny"} == result["parameters"].keys()
    for kind in ("exponents", "last_exponents"):
        assert all(result[kind]["bert@tiny"][name] is not None for name in
                   ("seconds", "bytes", "training_seconds", "training_bytes"))
    assert (result["rounds"], result["threads"], result["batch"], result["left_out"]) == (2, 1, 1, [])
    assert result["clock"] == "processor time" and result["device"] == "cpu"


def test_memory_grows_as_the_arithmetic_says():
    """Relative positions keep scores of n x n for each head."""
    result = stemma.cost(["xlnet@tiny"], [128, 512], changes=SMALL, **QUICK)
    assert result["exponents"]["xlnet@tiny"]["bytes"] > 1.2
    first, second = result["rows"]
    assert second["bytes"] > 512 * 512 * 2 * 4 > first["bytes"]  # the scores of one layer, 2 heads in fp32


@pytest.mark.parametrize("name", ["t5@tiny", "electra@tiny", "universal-transformer@tiny", "transformer-xl@tiny",
                                  "modernbert@tiny"])
def test_every_structure_is_measured(name):
    changes = [change for change in SMALL if name != "modernbert@tiny" or "heads" not in change]
    result = stemma.cost([name], [16, 40], changes=changes, backward=True, batch=2, rounds=1)
    assert len(result["rows"]) == 2 and all(row["training_seconds"] > 0 for row in result["rows"])


def test_more_positions_are_a_change_of_the_recipe():
    result = stemma.cost(["bert@tiny"], [32, 600], changes=[*SMALL, "network.position.maximum=600"], **QUICK)
    assert [row["length"] for row in result["rows"]] == [32, 600]


def test_a_single_length_has_no_exponent(capsys):
    result = run(capsys, "bert@tiny", *SMALL, "--lengths", 32, "--rounds", 1)
    assert result["exponents"] == {"bert@tiny": {"seconds": None, "bytes": None}}
    assert main(["cost", "bert@tiny", *SMALL, "--lengths", "32", "--rounds", "1"]) == 0
    assert "growth with" not in capsys.readouterr().out


def test_the_tables(capsys):
    assert main(["cost", "bert@tiny", *SMALL, "--lengths", "32,64", "--rounds", "1", "--backward"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["recipe", "length", "forward", "memory", "with", "backward", "memory"]
    assert lines[1].split()[:2] == ["bert@tiny", "32"] and lines[1].split()[-1] == "MB"
    assert any(line.startswith("bert@tiny") and "n^" in line for line in lines)
    assert "median of 1 round · batch 1 · cpu" in lines[-1] and "fp32" in lines[-1]
    assert main(["cost", "--layers", "lstm,attention", "--widths", "8,16", "--lengths", "8,16", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "n = 16" in out and "n d^2" in out and "n^2 d" in out and "slower from" in out


def test_layers_have_rows_theory_exponents_and_crossings(capsys):
    result = run(capsys, "--layers", "all", "--widths", "8,16", "--lengths", "16,32", "--rounds", 1, "--threads", 1)
    assert result["exponents"].keys() == LAYERS.keys() == result["theory"].keys()
    assert len(result["rows"]) == len(LAYERS) * 4 and all(row["seconds"] > 0 for row in result["rows"])
    assert result["theory"]["lstm"] == {"operations": "n d^2", "sequential_steps": "n", "longest_path": "n"}
    assert result["theory"]["attention"] == {"operations": "n^2 d", "sequential_steps": "1", "longest_path": "1"}
    assert result["exponents"]["lstm"]["flops"] == pytest.approx({"n": 1.0, "d": 2.0})
    assert result["exponents"]["core-attention"]["flops"] == pytest.approx({"n": 2.0, "d": 1.0})
    assert {(item["attention"], item["other"], item["width"]) for item in result["crossings"]} == \
        {(a, b, d) for a in ("attention", "core-attention") for b in ("lstm", "convolution", "separable-convolution")
         for d in (8, 16)}
    backward = layer_cost(["lstm"], [8], [16], backward=True, rounds=1)
    assert backward["rows"][0]["flops"] == 3 * LAYERS["lstm"].flops(16, 8, LayerSizes())
    assert backward["exponents"]["lstm"] == {"seconds": None, "bytes": None, "flops": None}


@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("lstm", "windowed-attention")])
@pytest.mark.parametrize(("length", "width"), [(12, 64), (40, 128), (7, 24)])
def test_flops_are_those_that_torch_counts(name, length, width):
    sizes = LayerSizes(kernel=5)
    module, x = LAYERS[name].build(width, sizes), torch.randn(1, length, width)
    with FlopCounterMode(display=False, custom_mapping=dict(CPU_ATTENTION)) as counter, torch.no_grad():
        assert module(x).shape == x.shape
    assert counter.get_total_flops() == LAYERS[name].flops(length, width, sizes)


def test_flops_of_the_layers_that_torch_does_not_count():
    """An LSTM: every step multiplies the input and the state with a matrix of four gates. Windowed attention: four
    projections, then a product with each position of the window, twice."""
    d, n, sizes = 24, 40, LayerSizes(window=8)
    lstm = LAYERS["lstm"].build(d, sizes).lstm
    steps = sum(2 * matrix.numel() for _ in range(n) for matrix in (lstm.weight_ih_l0, lstm.weight_hh_l0))
    assert LAYERS["lstm"].flops(n, d, sizes) == steps
    pairs = sum(9 for query in range(n))  # 4 on either side and the position itself; fewer at the ends
    assert LAYERS["windowed-attention"].flops(n, d, sizes) == 4 * 2 * n * d * d + 2 * 2 * pairs * d
    full = LAYERS["attention"].flops(6, d, sizes)
    assert LAYERS["windowed-attention"].flops(6, d, sizes) == full  # a window longer than the text


def test_windowed_attention_reads_its_window_and_full_attention_all():
    torch.manual_seed(0)
    x = torch.randn(1, 40, 64)
    changed = x.clone()
    changed[0, 30] += 10.0
    for name, reaches in (("windowed-attention", {26, 34}), ("attention", {0, 39}), ("convolution", {29, 31}),
                          ("lstm", {30, 39})):
        module = LAYERS[name].build(64, LayerSizes(window=8))
        with torch.no_grad():
            moved = (module(x) - module(changed)).abs().amax(-1)[0] > 1e-6
        at = moved.nonzero().flatten().tolist()
        assert {at[0], at[-1]} == reaches, name


def rows_of(seconds) -> list[dict]:
    return [{"layer": layer, "width": width, "length": length, "seconds": law(length, width)}
            for layer, law in seconds.items() for width in (100, 400) for length in (50, 150, 700)]


@pytest.mark.parametrize("width", [100, 400])
def test_crossings(width):
    rows = rows_of({"core-attention": lambda n, d: n * n * d, "lstm": lambda n, d: n * d * d,
                    "attention": lambda n, d: n * n * d + 10**9, "convolution": lambda n, d: 1e-3 * n})
    found = crossing(rows, "core-attention", "lstm", width, LayerSizes())
    assert found["length"] == pytest.approx(width) and found["faster"] is None and found["theory_length"] == width
    assert found["flops_length"] == 4 * width  # 16 n d^2 against 4 n^2 d
    slower = crossing(rows, "attention", "convolution", width, LayerSizes())
    assert slower["length"] is None and slower["faster"] == "convolution"
    assert slower["measured"] == [50, 700]
    assert slower["flops_length"] is None  # with its projections attention has more FLOPs at every length
    assert crossing(rows, "core-attention", "convolution", width, LayerSizes())["faster"] == "convolution"
    assert crossing(rows, "attention", "lstm", 77, LayerSizes())["faster"] is None  # not measured
    faster = crossing(rows_of({"attention": lambda n, d: n, "lstm": lambda n, d: 2 * n}), "attention", "lstm", width,
                      LayerSizes())
    assert faster["length"] is None and faster["faster"] == "attention"
    assert faster["flops_length"] == 2 * width  # 16 n d^2 against 8 n d^2 + 4 n^2 d


def error_message(capsys, *words: object) -> str:
    assert main(["cost", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ")
    return captured.err


def test_errors_say_what_where_and_what_to_do(capsys):
    message = error_message(capsys, "bert@tiny", "ngram", "gpt2@tiny", "--lengths", "128,4096")
    assert "bert@tiny" in message and "positions, fewer than --lengths 4,096" in message
    assert "or set network.position.maximum=4096" in message
    assert "ngram" in message and "is a table of counts and has no forward pass" in message
    assert '--lengths is "a,b"; give whole numbers' in error_message(capsys, "bert@tiny", "--lengths", "a,b")
    assert "1 or more" in error_message(capsys, "bert@tiny", "--lengths", "0,8")
    assert "no recipe is given" in error_message(capsys)
    assert 'no recipe "brt' in error_message(capsys, "brt@tiny")
    assert "leave out one of them" in error_message(capsys, "bert@tiny", "--layers", "lstm")
    assert "--widths is about --layers" in error_message(capsys, "bert@tiny", "--widths", "8")
    assert 'no layer "lsmt". Did you mean "lstm"? Layers are lstm' in error_message(capsys, "--layers", "lsmt")
    assert "--kernel must be odd" in error_message(capsys, "--layers", "lstm", "--kernel", 4)
    assert "--minutes must be more than 0" in error_message(capsys, "bert@tiny", "--minutes", 0)
    assert "--rounds must be 1 or more" in error_message(capsys, "bert@tiny", "--rounds", 0)
    with pytest.raises(UserError, match="--widths must be numbers of 1 or more"):
        layer_cost(["lstm"], [], [8])

"""The literal references are correct: XLNet's agrees with transformers, the others with torch and with known values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close
from literal import universal_transformer, xlnet, xlnet_data
from literal.transformer import sinusoid
from parity.reference import perturb
from torch import Tensor

LENGTH, REUSE, ROWS = 7, 4, 2


def hf_model_and_weights(seed: int, **settings) -> tuple[transformers.XLNetLMHeadModel, xlnet.Weights]:
    torch.manual_seed(seed)
    config = transformers.XLNetConfig(vocab_size=31, d_model=18, n_layer=2, n_head=3, d_inner=17,
                                      ff_activation="gelu_new", **settings)
    model = transformers.XLNetLMHeadModel(config).eval()
    perturb(model, seed)
    state = {name: value.double() for name, value in model.state_dict().items()}
    weights = {"table": state["transformer.word_embedding.weight"], "bias": state["lm_loss.bias"],
               "mask": state["transformer.mask_emb"][0, 0]}
    for layer in range(config.n_layer):
        attention, feedforward = f"transformer.layer.{layer}.rel_attn", f"transformer.layer.{layer}.ff"
        for literal_name, name in {"query": "q", "key": "k", "value": "v", "relative": "r"}.items():
            weights[f"{layer}.{literal_name}"] = state[f"{attention}.{name}"].flatten(1).T
        same, different = state[f"{attention}.seg_embed"]
        weights |= {f"{layer}.{name}": tensor for name, tensor in {
            "output": state[f"{attention}.o"].flatten(1), "u": state[f"{attention}.r_w_bias"],
            "v": state[f"{attention}.r_r_bias"], "segment_bias": state[f"{attention}.r_s_bias"],
            "same": same, "different": different,
            "attention_norm": state[f"{attention}.layer_norm.weight"],
            "attention_norm_bias": state[f"{attention}.layer_norm.bias"],
            "inner": state[f"{feedforward}.layer_1.weight"], "inner_bias": state[f"{feedforward}.layer_1.bias"],
            "outer": state[f"{feedforward}.layer_2.weight"], "outer_bias": state[f"{feedforward}.layer_2.bias"],
            "feedforward_norm": state[f"{feedforward}.layer_norm.weight"],
            "feedforward_norm_bias": state[f"{feedforward}.layer_norm.bias"]}.items()}
    return model, weights


def assert_near(result: Tensor, expected: Tensor) -> None:
    assert expected.std() > 1e-3
    torch.testing.assert_close(result, expected.double(), atol=1e-5, rtol=0)


def empty_memory(model) -> list[Tensor]:
    return [torch.zeros(0, model.config.d_model, dtype=torch.float64)] * model.config.n_layer


def random_row(rng: np.random.Generator) -> tuple[list[int], list[int], list[list[bool]]]:
    """The order of a row, its targets, and the permutation mask of the released code; the last token is functional."""
    halves = []
    for length in (REUSE, LENGTH - REUSE):
        candidates = [position > 0 and rng.random() < 0.6 for position in range(length)]
        functional = [position == LENGTH - REUSE - 1 and length != REUSE for position in range(length)]
        halves.append(xlnet_data.half_order(candidates, functional, rng))
    targets = [position for position, target in enumerate(halves[0][1] + halves[1][1]) if target]
    return xlnet_data.row_order(halves[0][0], halves[1][0]), targets, xlnet_data.row_blocked(*halves)


SETTINGS = {"plain": {}, "backwards": {"bi_data": True}, "clamped": {"clamp_len": 3}}


@torch.no_grad()
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("segmented", [False, True], ids=["without-segments", "segments"])
def test_xlnet_two_streams_agree_with_transformers(settings, segmented):
    """Several segments with memory, as in pre-training; the lists of targets are padded."""
    rng = np.random.default_rng(3)
    model, weights = hf_model_and_weights(1, mem_len=6, reuse_len=REUSE, **settings)
    memory, memories = None, [empty_memory(model) for _ in range(ROWS)]
    for _ in range(3):
        ids, types = rng.integers(31, size=(ROWS, LENGTH)), rng.integers(3, size=(ROWS, LENGTH))
        orders, targets, blocked = zip(*[random_row(rng) for _ in range(ROWS)], strict=True)
        mapping = torch.zeros(ROWS, LENGTH, LENGTH)
        for row in range(ROWS):
            for index, position in enumerate(targets[row]):
                mapping[row, index, position] = 1
        outputs = model(torch.tensor(ids), mems=memory, use_mems=True, target_mapping=mapping,
                        output_hidden_states=True, perm_mask=torch.tensor(blocked).float(),
                        token_type_ids=torch.tensor(types) if segmented else None)
        memory = outputs.mems
        for row in range(ROWS):
            h, g, memories[row] = xlnet.two_streams(
                ids[row].tolist(), memories[row], weights, model.config.n_head, orders[row], targets[row],
                types[row].tolist() if segmented else None, backward=model.config.bi_data and row >= ROWS // 2,
                clamp=settings.get("clamp_len"), memory_length=6, reuse=REUSE, epsilon=model.config.layer_norm_eps)
            assert_near(h, outputs.hidden_states[-2][row])
            assert_near(torch.stack(memories[row]), torch.stack(memory)[:, :, row])
            assert_near(xlnet.logits(g, weights), outputs.logits[row, :len(targets[row])])


@torch.no_grad()
def test_xlnet_content_stream_agrees_with_transformers():
    """Fine-tuning: bidirectional attention, padding on either side, with and without memory of an earlier segment."""
    rng = np.random.default_rng(5)
    model, weights = hf_model_and_weights(2, mem_len=3, clamp_len=2)
    previous_ids = rng.integers(31, size=(ROWS, LENGTH))
    memory = model(torch.tensor(previous_ids), use_mems=True).mems
    ids, types = rng.integers(31, size=(ROWS, LENGTH)), rng.integers(2, size=(ROWS, LENGTH))
    present = [[position < 5 for position in range(LENGTH)], [position >= 3 for position in range(LENGTH)]]
    for mems in (None, memory):
        outputs = model(torch.tensor(ids), mems=mems, token_type_ids=torch.tensor(types),
                        attention_mask=torch.tensor(present).float())
        for row in range(ROWS):
            start = empty_memory(model)
            if mems is not None:
                start = xlnet.two_streams(previous_ids[row].tolist(), start, weights, 3, memory_length=3, clamp=2)[2]
            h, g, _ = xlnet.two_streams(ids[row].tolist(), start, weights, 3, segments=types[row].tolist(),
                                        present=present[row], clamp=2)
            assert g is None
            assert_near(xlnet.logits(h, weights), outputs.logits[row])


def test_a_query_without_any_key_is_an_error():
    model, weights = hf_model_and_weights(0)
    with pytest.raises(ValueError, match="the query at position 1 attends to nothing"):
        xlnet.two_streams([3, 4, 5], empty_memory(model), weights, 3, order=[1, 0, 2], targets=[0, 1])


def test_positions_of_equal_rank_attend_to_each_other_but_queries_do_not():
    model, weights = hf_model_and_weights(0)
    (h, g), (other_h, other_g) = (xlnet.two_streams([3, 4, word], empty_memory(model), weights, 3, order=[0, 1, 1],
                                                    targets=[1])[:2] for word in (5, 6))
    assert_close(g, other_g)
    assert_close(h[0], other_h[0])
    assert not torch.allclose(h[1], other_h[1])


def test_the_order_and_the_permutation_mask_agree():
    rng = np.random.default_rng(0)
    for _ in range(50):
        order, targets, blocked = random_row(rng)
        for i in range(LENGTH):
            assert blocked[i][i] == (i in targets)
            for j in range(LENGTH):
                assert (not blocked[i][j] or i == j) == (order[j] <= order[i])
                assert i not in targets or (not blocked[i][j]) == (order[j] < order[i])


class Scripted:
    """A random generator with known draws; `draws` holds those that are left."""
    def __init__(self, *draws: int):
        self.draws = list(draws)

    def choice(self, limit: int, p: list[float]) -> int:
        assert len(p) == limit
        assert p[0] == pytest.approx(5 * p[4])
        return self.integers(limit)

    def integers(self, limit: int) -> int:
        assert self.draws[0] < limit
        return self.draws.pop(0)


def test_spans_from_known_draws():
    starts = [position % 2 == 0 for position in range(30)]  # words of two tokens
    # n = 3: window 18, left 3, word start at 4, tokens 4 5 6, right 15 -> 22; n = 1: window 6, left 1, start at 24.
    rng = Scripted(2, 3, 0, 1)
    masked = xlnet_data.spans(starts, 4, rng)
    assert [position for position, is_masked in enumerate(masked) if is_masked] == [4, 5, 6, 24]
    assert not rng.draws
    # Whole words: 4 5 | 6 7 | 8 9; the next span would touch the end and is dropped; 4 and 11 are drawn instead.
    rng = Scripted(2, 3, 0, 4, 4, 11)
    masked = xlnet_data.spans(starts, 7, rng, whole_words=True)
    assert [position for position, is_masked in enumerate(masked) if is_masked] == [4, 5, 6, 7, 8, 9, 11]
    assert not rng.draws
    # n = 2, left 11: word start at 12 of 14 positions, so the span would touch the end; 0 and 5 are drawn instead.
    masked = xlnet_data.spans(starts[:14], 2, Scripted(1, 11, 0, 0, 5))
    assert [position for position, is_masked in enumerate(masked) if is_masked] == [0, 5]
    # A row read backwards is searched from its other end.
    masked = xlnet_data.spans(starts[::-1], 4, Scripted(2, 3, 0, 1), backward=True)
    assert [position for position, is_masked in enumerate(masked) if is_masked] == [5, 23, 24, 25]


def test_word_starts_are_recognized():
    assert [piece for piece in ["\u2581a", "<sep>", "<", ",", "a", "'", "=", ">", ",,", "]"]
            if xlnet_data.begins_word(piece)] == ["\u2581a", "<sep>", "<", ",", "]"]


WIDTH, INNER = 12, 17


def universal_weights(seed: int, convolution: bool) -> universal_transformer.Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("query", "key", "value", "output"), (WIDTH, WIDTH))
    if convolution:
        shapes |= {"point1": (INNER, WIDTH), "point2": (WIDTH, INNER)}
    else:
        shapes |= {"inner": (INNER, WIDTH), "outer": (WIDTH, INNER)}
    shapes |= dict.fromkeys(("attention_norm", "transition_norm", "final_norm"), (WIDTH,))
    shapes |= {f"{name}_bias": shape[:1] for name, shape in shapes.items()}
    shapes |= {"halt": (WIDTH,), "halt_bias": (), "depth1": (WIDTH, 3), "depth2": (INNER, 5)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.4 for name, shape in shapes.items()}


def torch_block(x: Tensor, weights: universal_transformer.Weights, causal: bool, pre: bool) -> Tensor:
    """The same block with the layers of torch; x is (L, width)."""
    attention = torch.nn.MultiheadAttention(WIDTH, 3, dtype=torch.float64)
    names = ("query", "key", "value")
    attention.load_state_dict({"in_proj_weight": torch.cat([weights[name] for name in names]),
                               "in_proj_bias": torch.cat([weights[f"{name}_bias"] for name in names]),
                               "out_proj.weight": weights["output"], "out_proj.bias": weights["output_bias"]})
    mask = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), 1) if causal else None

    def convolution(y: Tensor, index: int) -> Tensor:
        kernel = weights[f"depth{index}"][:, None]
        context = kernel.shape[2] - 1
        padded = torch.nn.functional.pad(y.T, (context, 0) if causal else (context // 2, context // 2))
        depthwise = torch.nn.functional.conv1d(padded[None], kernel, groups=len(kernel))[0].T
        return torch.nn.functional.linear(depthwise, weights[f"point{index}"], weights[f"point{index}_bias"])

    def transition(y: Tensor) -> Tensor:
        if "inner" not in weights:
            return convolution(convolution(y, 1).relu(), 2)
        inner = torch.nn.functional.linear(y, weights["inner"], weights["inner_bias"]).relu()
        return torch.nn.functional.linear(inner, weights["outer"], weights["outer_bias"])

    for name, function in {"attention_norm": lambda y: attention(y, y, y, attn_mask=mask)[0],
                           "transition_norm": transition}.items():
        norm = (WIDTH,), weights[name], weights[f"{name}_bias"]
        if pre:
            x = x + function(torch.nn.functional.layer_norm(x, *norm))
        else:
            x = torch.nn.functional.layer_norm(x + function(x), *norm)
    return x


def test_timing_signals_are_the_sinusoids_of_position_and_step():
    expected = [position + step for position, step in zip(sinusoid(5, WIDTH), sinusoid(3, WIDTH), strict=True)]
    assert universal_transformer.signal(5, 3, WIDTH, torch.float64).tolist() == pytest.approx(expected)


def signals(step: int) -> Tensor:
    return torch.stack([universal_transformer.signal(position, step, WIDTH, torch.float64)
                        for position in range(LENGTH)])


@torch.no_grad()
@pytest.mark.parametrize("convolution", [False, True], ids=["feedforward", "convolution"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("pre", [False, True], ids=["post-norm", "pre-norm"])
def test_universal_transformer_agrees_with_torch(convolution, causal, pre):
    """Steps with the layers of torch; then halting, position by position, along the same states."""
    weights = universal_weights(4, convolution)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def attends(i: int, j: int) -> bool:
        return j <= i or not causal

    entering, leaving, state = [], [], x
    for step in range(4):
        entering.append(state + signals(step))
        state = torch_block(entering[-1], weights, causal, pre)
        leaving.append(state)
    # scaled so that some positions halt early and others not at all
    halting_logits = torch.cat(entering) @ weights["halt"]
    weights["halt"] = weights["halt"] * 3 / halting_logits.std()
    weights["halt_bias"] = -(halting_logits.median() / halting_logits.std() * 3 + 1.5)

    def final_output(y: Tensor) -> Tensor:
        normalized = torch.nn.functional.layer_norm(y, (WIDTH,), weights["final_norm"], weights["final_norm_bias"])
        return normalized if pre else y

    torch.testing.assert_close(universal_transformer.fixed(x, weights, 3, 4, attends, causal, pre), final_output(state))
    output, updates, remainders = universal_transformer.adaptive(x, weights, 3, 4, 0.9, attends, causal, pre)
    expected = torch.zeros_like(x)
    for position in range(LENGTH):
        total = 0.0
        for step in range(4):
            p = float(torch.sigmoid(weights["halt"] @ entering[step][position] + weights["halt_bias"]))
            halts = total + p > 0.9
            weight = 1 - total if halts else p
            expected[position] = weight * leaving[step][position] + (1 - weight) * expected[position]
            total += p
            if halts:
                break
        assert updates[position] == step + 1
        assert float(remainders[position]) == pytest.approx(weight if halts else 0)
    torch.testing.assert_close(output, final_output(expected))
    assert min(updates) < max(updates) == 4, "all positions halt at the same step, so the comparison shows little"


def test_halting_with_a_constant_probability():
    """p = 0.4: the weights are 0.4, 0.4 and the remainder 0.2; with at most two steps there is no remainder."""
    weights = universal_weights(4, False) | {"halt": torch.zeros(WIDTH, dtype=torch.float64),
                                             "halt_bias": torch.tensor(0.4, dtype=torch.float64).logit()}
    x = torch.randn(3, WIDTH, dtype=torch.float64)
    after_one, after_two, after_three = (universal_transformer.fixed(x, weights, 3, steps, lambda i, j: True)
                                         for steps in (1, 2, 3))
    output, updates, remainders = universal_transformer.adaptive(x, weights, 3, 9, 0.99, lambda i, j: True)
    assert updates == [3, 3, 3]
    assert [float(remainder) for remainder in remainders] == pytest.approx([0.2] * 3)
    torch.testing.assert_close(output, ((after_one * 0.4) * 0.6 + after_two * 0.4) * 0.8 + after_three * 0.2)
    output, updates, remainders = universal_transformer.adaptive(x, weights, 3, 2, 0.99, lambda i, j: True)
    assert (updates, [float(remainder) for remainder in remainders]) == ([2, 2, 2], [0, 0, 0])
    torch.testing.assert_close(output, (after_one * 0.4) * 0.6 + after_two * 0.4)

"""Text generation: caches, batches and memories never change the text."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from closeness import assert_close
from parity.reference import perturb, random_reference

import stemma
from stemma.errors import UserError
from stemma.generation.decoding_state import start_decoding
from stemma.generation.generate import generate
from stemma.network.prepacked_linear import PrepackedLinear, PrepackedLMHead, prepacked_view
from stemma.text.tokenizer import Tokenizer

VOCABULARY = 60
SMALL = ["network.layers=2", "network.width=32", "network.heads=2", "network.feedforward=48"]
SHORT = ["corpus.sequence_length=24"]
MEMORY = ["network.attention.head_width=16", "network.memory.length=8", "corpus.sequence_length=8"]
KINDS = {
    "gpt": SHORT,  # post-norm; generates beyond its 24 positions
    "gpt2": SHORT,
    "gpt3": ["network.attention.windows=[0,6]"],  # prompt and text are longer than the window
    "transformer-xl": [*MEMORY, "network.memory.eval_length=12"],
    "transformer-xl, growing memory": [*MEMORY, "network.memory.same_length=false", "network.memory.start=empty"],
    "universal-transformer": SHORT,
    "universal-transformer, convolution": ["network.transition=convolution"],
    "xlnet": MEMORY,
    "gpt2, backward": ["objective.causal_lm.direction=backward"],
    "transformer-xl, backward": [*MEMORY, "objective.causal_lm.direction=backward"],
}
DECODING = {"greedy": {"greedy": True, "repetition_penalty": 1.5}, "sampled": {"seed": 7},
            "cut": {"seed": 7, "temperature": 2.0, "top_k": 30, "top_p": 0.9, "repetition_penalty": 1.2},
            "beams": {"beams": 3, "completions": 2, "repetition_penalty": 1.5}}


def model_of(kind: str, seed: int = 0) -> stemma.Model:
    torch.manual_seed(seed)
    model = stemma.build(f"{kind.split(',')[0]}@tiny", VOCABULARY, [*SMALL, *KINDS[kind]])
    perturb(model.network, seed)
    return model


def random_prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def tokens_of(completions):
    return [completion.tokens for completion in completions]


@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("kind", KINDS)
def test_cache_and_batch_do_not_change_the_text(kind, decoding):
    model, prompts = model_of(kind), random_prompts(3, 20, 1)
    result = generate(model, prompts, tokens=26, **DECODING[decoding])
    again = generate(model, prompts, tokens=26, cache=False, **DECODING[decoding])
    alone = [c for prompt in prompts for c in generate(model, [prompt], tokens=26, **DECODING[decoding])]
    assert tokens_of(result) == tokens_of(again) == tokens_of(alone)
    log_probabilities = [completion.log_probability for completion in result]
    assert log_probabilities == pytest.approx([completion.log_probability for completion in again], abs=1e-3)
    assert all(len(c.tokens) == 26 for c in result) and len({token for c in result for token in c.tokens}) > 5


@pytest.mark.parametrize("kind", ["gpt2", "transformer-xl", "universal-transformer"])
def test_the_log_probability_is_the_sum_over_the_generated_tokens(kind):
    model = model_of(kind)
    (prompt,) = random_prompts(5)
    (result,) = generate(model, [prompt], tokens=9, seed=1, temperature=1.7)
    logits = model.logits(torch.tensor([[*prompt, *result.tokens]]))[0].log_softmax(-1)
    expected = sum(float(logits[4 + index, token]) for index, token in enumerate(result.tokens))
    assert result.log_probability == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("seed", range(2))
def test_gpt2_generates_the_same_tokens_as_transformers(tmp_path, seed):
    reference = random_reference("gpt2", seed, "GPT2LMHeadModel", bos_token_id=1, eos_token_id=None)
    reference.save_pretrained(tmp_path)
    vocabulary, positions = reference.config.vocab_size, reference.config.n_positions
    ids = torch.randint(vocabulary, (3, 4), generator=torch.Generator().manual_seed(seed))
    for penalty in (1.0, 1.4):
        expected = reference.generate(ids, max_new_tokens=positions - 4, do_sample=False, repetition_penalty=penalty,
                                      pad_token_id=0)
        result = generate(stemma.load(tmp_path), ids.tolist(), greedy=True, tokens=positions - 4,
                          repetition_penalty=penalty)
        assert [list(completion.tokens) for completion in result] == expected[:, 4:].tolist()


def test_xlnet_next_token_logits_match_transformers(tmp_path):
    """The query is a position after the text, which the text does not attend to."""
    reference = random_reference("xlnet", 0, "XLNetLMHeadModel")
    reference.save_pretrained(tmp_path)
    ids = torch.randint(reference.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
    longer = torch.cat([ids, torch.zeros(2, 1, dtype=torch.long)], 1)
    perm_mask = torch.zeros(2, 8, 8)
    perm_mask[:, :, -1] = 1
    target_mapping = torch.zeros(2, 1, 8)
    target_mapping[:, 0, -1] = 1
    with torch.no_grad():
        expected = reference(longer, perm_mask=perm_mask, target_mapping=target_mapping).logits[:, 0]
        result = start_decoding(stemma.load(tmp_path), ids.tolist()).next_logits()
    assert torch.allclose(result, expected, atol=1e-4)


def test_only_models_without_memory_warn_beyond_the_context_length(caplog):
    for kind, expected_warning in (("transformer-xl", False), ("gpt2", True)):
        model = model_of(kind)
        (result,) = generate(model, random_prompts(4), seed=0, tokens=70)
        assert len(result.tokens) == 70
        assert bool(caplog.messages) == expected_warning
    assert caplog.messages == ["the text exceeded the context length of gpt2@tiny (24 tokens); later tokens were "
                               "generated from its last part alone."]


def test_beyond_the_context_length_the_last_half_is_the_new_context():
    model = model_of("gpt2")
    reader = start_decoding(model, random_prompts(24))
    with torch.no_grad():
        reader.next_logits()
        reader.append(torch.tensor([5]))
        result = reader.next_logits()
        expected = model.logits(reader.input_ids[:, -12:])[:, -1]
    assert torch.allclose(result, expected, atol=1e-4)


def test_the_seed_determines_the_text_and_completions_of_one_prompt_differ():
    model, prompts = model_of("gpt2"), random_prompts(5, 6)
    first = generate(model, prompts, seed=1, tokens=20, completions=3)
    assert [completion.prompt_index for completion in first] == [0, 0, 0, 1, 1, 1]
    again = generate(model, prompts, seed=1, tokens=20, completions=3, batch=2)
    assert tokens_of(first) == tokens_of(again)
    assert first == generate(model, prompts, seed=1, tokens=20, completions=3)
    assert tokens_of(first) != tokens_of(generate(model, prompts, seed=2, tokens=20, completions=3))
    assert len(set(tokens_of(first))) == 6
    repeated = generate(model, [prompts[0]] * 3, seed=1, tokens=20)
    assert tokens_of(repeated) == tokens_of(first[:3])
    assert tokens_of(generate(model, prompts, tokens=20)) != tokens_of(generate(model, prompts, tokens=20))


def test_generation_uses_eval_mode_and_restores_training_mode():
    model = model_of("gpt2")
    model.network.train()
    torch.manual_seed(0)
    first, second = (generate(model, random_prompts(5), greedy=True, tokens=8) for _ in range(2))
    assert first == second and model.network.training


def test_prepacked_weights_give_the_same_logits_and_leave_the_model_unchanged():
    model = model_of("gpt2")
    ids = torch.tensor(random_prompts(6, 6, 6))
    expected = model.logits(ids)
    before = [dict(vars(module)) for module in model.network.modules()]
    packed = prepacked_view(model.network, 3)
    assert sum(isinstance(module, PrepackedLinear | PrepackedLMHead) for module in packed.modules()) >= 5
    assert torch.allclose(replace(model, network=packed).logits(ids), expected, atol=1e-4)
    assert [vars(module) for module in model.network.modules()] == before
    assert_close(model.logits(ids), expected)
    for (name, ours), (other, theirs) in zip(model.network.named_parameters(), packed.named_parameters(), strict=True):
        assert name == other and ours is theirs


def test_few_rows_are_not_prepacked():
    network = model_of("gpt2").network
    assert prepacked_view(network, 2) is network


def test_prepacked_weights_are_freed_after_generation(monkeypatch):
    views = []

    def recording_view(network, rows):
        view = prepacked_view(network, rows)
        views.append(weakref.ref(view))
        return view

    monkeypatch.setattr("stemma.generation.generate.prepacked_view", recording_view)
    model = model_of("gpt2")
    assert len(generate(model, random_prompts(5, 5, 5, 5, 5, 5), greedy=True, tokens=18, batch=3)) == 6
    gc.collect()
    assert len(views) == 1 and views[0]() is None  # both batches have three rows


@pytest.mark.parametrize("kind", ["gpt2", "xlnet"])
def test_a_long_prompt_is_refused_or_cropped(kind):
    model, prompts = model_of(kind), random_prompts(4, 30, 40)
    if kind == "xlnet":  # any length is allowed
        assert len(generate(model, prompts, greedy=True, tokens=3)) == 3
        return
    with pytest.raises(UserError, match="2 of 3 prompts are too long: gpt2@tiny reads at most 24") as error:
        generate(model, prompts, greedy=True, tokens=3)
    assert error.value.problems == [("prompt 2", "30 tokens"), ("prompt 3", "40 tokens")]
    with pytest.raises(UserError, match="prompt is 30 tokens long and gpt2@tiny reads at most 24; cut it, or crop"):
        generate(model, prompts[1:2], greedy=True, tokens=3)
    cropped = generate(model, prompts, greedy=True, tokens=3, crop=True)
    assert tokens_of(cropped[1:2]) == tokens_of(generate(model, [prompts[1][-24:]], greedy=True, tokens=3))


def test_models_and_prompts_that_cannot_generate_are_refused(tokenizer_folder):
    bert = stemma.build("bert@tiny", 320, ["network.width=16"])
    bert.tokenizer = Tokenizer.load(tokenizer_folder)
    with pytest.raises(UserError, match=r"\(bert@tiny\) reads a text from both sides and cannot .*stemma fill"):
        generate(bert, "the old clerk")
    model = model_of("gpt2")
    for prompts, wrong in (([], "there is no prompt"), ([[]], "prompt 1 has no tokens"),
                           ([[1], [60]], "prompt 2 has ids from 60 to 60"), ("words", "no tokenizer")):
        with pytest.raises(UserError, match=wrong):
            generate(model, prompts)
    with pytest.raises(UserError, match="no tokenizer"):
        generate(model, [[1]], stop="x")



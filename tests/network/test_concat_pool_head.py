"""ULMFiT's head against a literal transcription, and as an option of fine-tuning."""

import numpy as np
import pytest
import torch

import stemma
from stemma.network.concat_pool_head import ConcatPoolHead
from stemma.text.tokenizer import Tokenizer
from tests.literal import ulmfit

LENGTHS = torch.tensor([5, 1, 3, 7])


@pytest.fixture
def head():
    torch.manual_seed(4)
    network = stemma.build("gpt2@tiny", 300, ["network.width=16", "network.heads=2"]).network
    head = ConcatPoolHead(3, hidden=6, dropout=0.0, output_dropout=0.0).build(network.settings, network.embedding)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    for norm in (head.norm, head.output_norm):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return head


@pytest.mark.parametrize("training", [False, True])
def test_the_head_equals_the_paper(head, training):
    hidden = torch.randn(4, 7, 16)
    weights = {name: value.double().numpy().copy() for name, value in head.state_dict().items()}
    texts = [hidden[row, :length].double().numpy() for row, length in enumerate(LENGTHS)]
    computed = head.train(training)(hidden, LENGTHS)
    np.testing.assert_allclose(computed.detach().numpy(), ulmfit.logits(texts, weights, training), atol=1e-4)


def test_gradients_equal_the_numerical_ones_of_the_paper(head):
    hidden = torch.randn(4, 7, 16, requires_grad=True)
    weights = {name: value.double().numpy().copy() for name, value in head.state_dict().items()}
    head.train()(hidden, LENGTHS).square().sum().backward()
    rng, step = np.random.default_rng(0), 1e-6
    for row, position, unit in [(0, 4, 3), (0, 1, 5), (1, 0, 2), (3, *rng.integers(0, [7, 16]))]:
        sums = []
        for sign in (1, -1):
            texts = [hidden[i, :length].detach().double().numpy().copy() for i, length in enumerate(LENGTHS)]
            texts[row][position, unit] += sign * step
            sums.append(np.square(ulmfit.logits(texts, weights, True)).sum())
        assert float(hidden.grad[row, position, unit]) == pytest.approx((sums[0] - sums[1]) / (2 * step), abs=2e-3)
    assert not hidden.grad[1, 1:].any()  # padding


def test_a_single_row_trains_with_the_running_statistics(head):
    hidden = torch.randn(1, 7, 16)
    assert torch.equal(head.train()(hidden, LENGTHS[:1]), head.eval()(hidden, LENGTHS[:1]))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_fine_tuning_with_concat_pooling(tmp_path, tokenizer_folder, name):
    small = ["network.width=16", "network.heads=2", "network.layers=2", "network.feedforward=32"]
    tokenizer = Tokenizer.load(tokenizer_folder)
    model = stemma.build(f"{name}@tiny", tokenizer.vocab_size, small)
    model.tokenizer = tokenizer
    stemma.save(model, tmp_path / "start")
    words = ["ship", "river"]
    rows = tmp_path / "rows.tsv"
    rows.write_text("\n".join(["text\tlabel", *(f"the old {words[n % 2]} {n}\t{n % 2}" for n in range(33))]))
    changes = ["finetuning.pooling=concat", "finetuning.style=plain", "finetuning.unfreeze=epoch",
               "training.batch_size=8", "training.threads=1"]
    # 33 rows in batches of 8: the last batch of an epoch has one row
    stemma.finetune("classify", tmp_path / "start", rows, rows, tmp_path / "run", epochs=3, changes=changes)
    tuned = stemma.load(tmp_path / "run")
    assert isinstance(tuned.task_config().heads["task"], ConcatPoolHead)
    assert stemma.recipe(tmp_path / "run/recipe.toml").settings.training.unfreeze == 5
    texts = ["the old ship", "a river of the north"]
    together, alone = tuned.predict(texts), [tuned.predict([text])[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)
    running = {key: value for key, value in tuned.network.state_dict().items() if "running_mean" in key}
    assert len(running) == 2 and all(value.any() for value in running.values())

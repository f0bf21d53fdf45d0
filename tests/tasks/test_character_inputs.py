"""Models with character inputs need no extra inputs: characters are computed from token ids."""

from __future__ import annotations

import torch

import stemma
from stemma.network.inputs.characters import CharacterSettings, token_symbols
from stemma.training.pretrain import pretrain

SMALL = ["network.width=16", "network.heads=2", "network.layers=1", "network.feedforward=24",
         "corpus.sequence_length=24", "training.batch_size=4", "training.warmup_steps=1"]
LETTERS = ["network.inputs.letters.kind=characters", "network.inputs.letters.filters=[4, 4]",
           "network.inputs.letters.widths=[1, 3]"]


def test_character_models_need_no_extra_inputs(corpus_folder, tmp_path):
    """Generation, mask filling, scoring and fine-tuning compute the characters of all tokens, also of new ones."""
    decoder = ["network.decoder.layers=1", "network.inputs.letters.decoder=true"]
    more = {"bert@tiny": [], "gpt@tiny": [], "t5@tiny": decoder}
    for name, changes in more.items():
        pretrain(name, corpus_folder, tmp_path / name, steps=2, changes=[*SMALL, *LETTERS, *changes])
    bert, gpt = (stemma.load(tmp_path / name) for name in ("bert@tiny", "gpt@tiny"))
    assert bert.fill("the [MASK] of the list")[0]
    assert gpt.generate("the old", tokens=3, greedy=True)[0].tokens and gpt.score("river", "the old ")
    (tmp_path / "held.txt").write_text("the old river\n")
    before = stemma.perplexity(gpt, tmp_path / "held.txt")["perplexity"]
    gpt.network.embedding.inputs["letters"].spelling.zero_()
    assert abs(stemma.perplexity(gpt, tmp_path / "held.txt")["perplexity"] - before) > 1e-9  # spelling is used
    rows = "text\tlabel\n" + "".join(f"the {word} river\t{label}\n" for word, label in [("old", 0), ("new", 1)] * 4)
    (tmp_path / "rows.tsv").write_text(rows)
    for name in ("bert@tiny", "gpt@tiny"):  # GPT brings a delimiter and an extraction token of its own
        stemma.finetune("classify", tmp_path / name, tmp_path / "rows.tsv", tmp_path / "rows.tsv",
                        tmp_path / f"tuned-{name}", epochs=1)
        tuned = stemma.load(tmp_path / f"tuned-{name}")
        assert tuned.predict(["the old river"])[0]["label"] in ("0", "1")
        spelling = tuned.network.embedding.inputs["letters"].spelling
        expected = token_symbols(tuned.tokenizer, CharacterSettings(kind="characters"))
        assert torch.equal(spelling, torch.from_numpy(expected)) and spelling[:, 0].all()
    assert stemma.load(tmp_path / "t5@tiny").generate("the old", tokens=2)[0].tokens

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.training.preview import inspect


def test_token_labels_are_shown_with_the_targets(corpus_folder):
    """`targets` lists tokens to predict. `classes` has one label per position, and None where nothing is scored."""
    corpus = Corpus.open(corpus_folder)
    recipe = recipe_loading.recipe("structbert@tiny", ["objective.capitalisation.weight=1.0"])
    result = inspect(recipe, corpus, examples=3)
    assert result["batch"]["scored"].keys() == {"vocabulary", "word_structure", "capitalisation"}
    for example in result["examples"]:
        assert {target["head"] for target in example["targets"]} <= {"vocabulary", "word_structure"}
        classes = example["classes"]["capitalisation"]
        assert len(classes) == len(example["input"])
        in_words = {position for start, stop in example["words"] for position in range(start, stop)}
        for position, label in enumerate(classes):
            unscored = position not in in_words or example["input"][position] != example["original"][position]
            assert (label is None) == unscored
        assert 1 in classes and 0 in classes
        assert example["labels"].keys() == {"sentence_order"}


def test_without_token_classification_no_classes_are_shown(corpus_folder):
    examples = inspect(recipe_loading.recipe("bert@tiny"), Corpus.open(corpus_folder), examples=1)["examples"]
    assert "classes" not in examples[0]

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.training.preview import inspect


def test_token_labels_are_shown_with_the_targets(corpus_folder):
    """A target is a token to be guessed; a class stands at its place, and None where nothing is asked."""
    corpus = Corpus.open(corpus_folder)
    recipe = recipe_loading.recipe("structbert@tiny", ["objective.capitalisation.weight=1.0"])
    found = inspect(recipe, corpus, examples=3)
    assert found["batch"]["scored"].keys() == {"vocabulary", "word_structure", "capitalisation"}
    for example in found["examples"]:
        assert {target["head"] for target in example["targets"]} <= {"vocabulary", "word_structure"}
        classes = example["classes"]["capitalisation"]
        assert len(classes) == len(example["input"])
        in_words = {place for start, stop in example["words"] for place in range(start, stop)}
        for place, label in enumerate(classes):
            hidden = place not in in_words or example["input"][place] != example["original"][place]
            assert (label is None) == hidden
        assert 1 in classes and 0 in classes
        assert example["labels"].keys() == {"sentence_order"}


def test_without_token_classification_no_classes_are_shown(corpus_folder):
    shown = inspect(recipe_loading.recipe("bert@tiny"), Corpus.open(corpus_folder), examples=1)["examples"]
    assert "classes" not in shown[0]

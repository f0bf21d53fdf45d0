import pytest
from small_corpora import corpus_of

from stemma import recipe_loading
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.network.heads import ClassHead, LMHeadSpec, Pooler
from stemma.objectives import build_network, build_objectives, check_requirements, group_objectives, head_specs
from stemma.text.train_tokenizer import train_tokenizer

SECOND = ["objective.words.kind=masked_lm", "objective.words.rate=0.3", "objective.words.unit=word",
          "objective.words.dynamic=true"]


def groups(*changes: str):
    recipe = recipe_loading.recipe("bert@tiny", list(changes))
    return group_objectives(recipe, build_objectives(recipe))


def names(result) -> list[tuple[str, tuple[str, ...]]]:
    return [(group.packing, tuple(objective.name for objective in group.objectives)) for group in result]


def test_objectives_of_one_packing_share_a_group_with_the_sentence_objective_first():
    assert names(groups()) == [("segment_pair", ("next_sentence", "masked_lm"))]


def test_an_objective_with_its_own_packing_has_its_own_group():
    assert names(groups("objective.masked_lm.packing=full_sentences")) == [
        ("segment_pair", ("next_sentence",)), ("full_sentences", ("masked_lm",))]


def test_two_masking_objectives_are_in_separate_groups():
    """In one draft the second would overwrite the targets of the first but keep its masks."""
    assert names(groups(*SECOND)) == [("segment_pair", ("next_sentence", "masked_lm")), ("segment_pair", ("words",))]


def test_only_groups_of_static_objectives_have_static_copies():
    first, second = groups(*SECOND, "objective.masked_lm.duplicates=4")
    assert (first.num_static_copies, second.num_static_copies) == (4, None)
    assert groups("objective.masked_lm.dynamic=true")[0].num_static_copies is None


def test_the_network_has_the_heads_of_its_objectives():
    objectives = build_objectives(recipe_loading.recipe("bert@tiny"))
    assert head_specs(objectives) == {"pooler": Pooler(), "next_sentence": ClassHead(2), "vocabulary": LMHeadSpec()}
    assert set(build_network(recipe_loading.recipe("bert@tiny"), 50).heads) == {"pooler", "next_sentence", "vocabulary"}


def test_two_kinds_of_head_under_one_name_are_refused():
    objectives = build_objectives(recipe_loading.recipe("bert@tiny", SECOND))
    other = type(objectives[0].requirements())(heads={"vocabulary": LMHeadSpec(transform=False)})
    objectives[-1].requirements = lambda: other
    with pytest.raises(UserError, match='"words" needs another kind of head "vocabulary"'):
        head_specs(objectives)


def test_a_suitable_corpus_is_accepted(corpus_folder):
    check_requirements(recipe_loading.recipe("bert@tiny"), Corpus.open(corpus_folder))


def test_a_recipe_without_an_objective_is_refused(corpus_folder):
    with pytest.raises(UserError, match="no objective"):
        check_requirements(recipe_loading.recipe("transformer", ["remove=objective.translation"]),
                           Corpus.open(corpus_folder))


def test_a_recipe_without_an_objective_at_step_0_is_refused(corpus_folder):
    late = ["objective.masked_lm.start_step=5", "objective.next_sentence.start_step=9"]
    with pytest.raises(UserError, match="starts at step 0"):
        check_requirements(recipe_loading.recipe("bert@tiny", late), Corpus.open(corpus_folder))
    check_requirements(recipe_loading.recipe("bert@tiny", late[1:]), Corpus.open(corpus_folder))


def corpus_with_special_tokens(folder, text_file, roles: set[str]) -> Corpus:
    train_tokenizer(iter([text_file.read_text()]), "wordpiece", 200, lowercase=True, roles=roles).save(folder / "t")
    return corpus_of(folder, [["the clerk reads"]], folder / "t")


def test_all_missing_special_tokens_are_named_at_once(tmp_path, text_file):
    with pytest.raises(UserError) as caught:
        check_requirements(recipe_loading.recipe("bert@tiny"), corpus_with_special_tokens(tmp_path, text_file, set()))
    keys = [key for key, _ in caught.value.problems]
    assert keys.count("objective.masked_lm") == 1
    assert keys.count("corpus.single") == keys.count("corpus.pair") == 2  # start and separator
    assert "--for bert" in caught.value.message


def test_only_special_tokens_of_used_templates_are_required(tmp_path, text_file):
    """`tokenizer train --for RECIPE` adds exactly the special tokens that the recipe needs."""
    recipe = recipe_loading.recipe("bert@tiny", ["remove=objective.next_sentence", "corpus.packing=full_sentences",
                                          "corpus.single=begin A end"])
    corpus = corpus_with_special_tokens(tmp_path, text_file, recipe_loading.required_special_tokens(recipe))
    assert "separator" not in corpus.tokenizer.special_token_ids
    check_requirements(recipe, corpus)

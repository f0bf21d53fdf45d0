"""The recipe of every stage, known before anything is trained: a stage goes on with that of the stage before it."""

from __future__ import annotations

from stemma.errors import UserError
from stemma.exchange.load import load
from stemma.objectives import build_objectives
from stemma.recipe_loading import Recipe, recipe
from stemma.schema.corpus import neighboring_pair_packings
from stemma.tasks.pipeline.plan import PipelinePlan, PipelineStage
from stemma.tasks.runs.common import finetune_overrides
from stemma.tasks.runs.finetune import BATCH_SIZE
from stemma.training.corpus_cache import is_parallel

PACKING = "full_sentences"  # rows filled with text, across documents
ORIGIN = "pipeline"  # who set the values that a further stage brings


def stage_recipes(plan: PipelinePlan) -> dict[str, Recipe]:
    """By stage, for those that read text and for models that are given; or all that is wrong with them."""
    found: dict[str, Recipe] = {}
    problems: list[tuple[str, str]] = []
    for name, stage in plan.stages.items():
        if stage.kind == "task" or stage.after is not None and stage.after not in found:
            continue
        try:
            found[name] = _stage_recipe(stage, found)
        except UserError as error:
            problems += [(f"stages.{name}", error.message), *((f"  {key}", why) for key, why in error.problems)]
            continue
        if stage.kind == "text" and is_parallel(found[name]):
            problems.append((f"stages.{name}", f"{found[name].label} reads pairs of texts, and a stage reads running "
                                               "text; choose another recipe"))
        if stage.entry.interpolate and found[name].settings.network.generator is not None:
            problems.append((f"stages.{name}.interpolate", f"{found[name].label} learns with a generator, whose "
                                                           "weights cannot be mixed alone; leave it out"))
    if problems:
        raise UserError("the plan has stages that cannot be built", problems)
    return found


def _stage_recipe(stage: PipelineStage, before: dict[str, Recipe]) -> Recipe:
    entry = stage.entry
    if entry.model is not None:
        model = load(entry.model)
        return model.recipe.with_changes({"tokenizer.vocab_size": model.network.vocab_size}, ORIGIN)
    if entry.recipe is not None:
        return recipe(entry.recipe, entry.changes, stored=True)
    assert stage.after is not None
    return continued_pretraining_recipe(before[stage.after], entry.steps).with_overrides(entry.changes)


def continued_pretraining_recipe(recipe: Recipe, steps: int | None = None) -> Recipe:
    """A recipe to go on with: gently, and only with tasks that a text by itself can serve. How sentences hang together
    is left out (arXiv:2004.10964 adapts by masked tokens alone): the text of a task is often a sentence."""
    settings, tasks = recipe.settings, build_objectives(recipe)
    asking = [task.name for task in tasks if task.needs_several_sentences or task.labels_rows]
    left = [task for task in tasks if task.name not in asking]
    if not any(task.predicts_tokens for task in left):
        asking, left = [], tasks
    changes = {"training.batch_size": min(BATCH_SIZE, settings.training.batch_size),
               **finetune_overrides(settings, [f"objective.{name}" for name in asking])}
    needed = [task.settings.allowed_packings for task in left if task.settings.packing is None]
    if asking and settings.corpus.packing in neighboring_pair_packings() and all(not any_of or PACKING in any_of
                                                                                 for any_of in needed):
        changes["corpus.packing"] = PACKING
    if steps is not None:
        changes |= {"training.warmup_steps": int(settings.finetuning.warmup * steps),
                    "training.checkpoint_every": min(settings.training.checkpoint_every, max(1, steps // 10))}
    return recipe.with_changes(changes, ORIGIN)

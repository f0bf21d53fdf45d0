"""The recipe of every stage, built before training; a stage continues with the recipe of its parent."""

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

PACKING = "full_sentences"  # fills rows across documents
ORIGIN = "pipeline"  # origin of the recipe values that a stage sets


def stage_recipes(plan: PipelinePlan) -> dict[str, Recipe]:
    """The recipes of text and model stages by name; reports all problems together."""
    recipes: dict[str, Recipe] = {}
    problems: list[tuple[str, str]] = []
    for name, stage in plan.stages.items():
        start = recipes.get(stage.after or "")
        if start is not None and start.settings.network.depth.counts:
            problems.append((f"stages.{name}", f"{start.label} is a table of counts, which has no weights, so no stage "
                                               "can start from it; use a network, such as gpt2@tiny or bert@tiny"))
            continue
        if stage.kind == "task" or stage.after is not None and stage.after not in recipes:
            continue
        try:
            recipes[name] = _stage_recipe(stage, recipes)
        except UserError as error:
            problems += [(f"stages.{name}", error.message), *((f"  {key}", why) for key, why in error.problems)]
            continue
        if stage.kind == "text" and is_parallel(recipes[name]):
            problems.append((f"stages.{name}", f"{recipes[name].label} reads pairs of texts, and a stage reads running "
                                               "text; choose another recipe"))
        if stage.entry.interpolate and recipes[name].settings.network.generator is not None:
            problems.append((f"stages.{name}.interpolate", f"{recipes[name].label} learns with a generator, whose "
                                                           "weights cannot be mixed alone; leave it out"))
    if problems:
        raise UserError("the plan has stages that cannot be built", problems)
    return recipes


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
    """The recipe for continued pre-training, with the overrides of [finetuning]. Drops sentence-level objectives
    such as NSP (arXiv:2004.10964 adapts with masked LM only), because texts of a task are often single sentences."""
    settings, objectives = recipe.settings, build_objectives(recipe)
    dropped = [objective.name for objective in objectives if objective.needs_several_sentences or objective.labels_rows]
    remaining = [objective for objective in objectives if objective.name not in dropped]
    if not any(objective.predicts_tokens for objective in remaining):
        dropped, remaining = [], objectives
    changes = {"training.batch_size": min(BATCH_SIZE, settings.training.batch_size),
               **finetune_overrides(settings, [f"objective.{name}" for name in dropped])}
    needed = [objective.settings.allowed_packings for objective in remaining if objective.settings.packing is None]
    allowed = all(not packings or PACKING in packings for packings in needed)
    if dropped and allowed and settings.corpus.packing in neighboring_pair_packings():
        changes["corpus.packing"] = PACKING
    if steps is not None:
        changes |= {"training.warmup_steps": int(settings.finetuning.warmup * steps),
                    "training.checkpoint_every": min(settings.training.checkpoint_every, max(1, steps // 10))}
    return recipe.with_changes(changes, ORIGIN)

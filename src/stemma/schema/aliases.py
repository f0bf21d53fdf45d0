"""Names of options and settings in Hugging Face's scripts and in UER, with their names here, for hints in errors.

A name has one or more aliases, the best first: an option (`--out`), an argument (`RECIPE`), a recipe key
(`training.learning_rate`), or, with an empty name, only a sentence that says why there is none. Each command and recipe
uses the first alias that it has.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Alias(NamedTuple):
    """A name here, and a note for the hint."""

    name: str
    note: str = ""

    @property
    def is_option(self) -> bool:
        return self.name.startswith("--")

    @property
    def is_key(self) -> bool:
        return "." in self.name


_SEQUENCES = "it counts the sequences of a whole step, on all devices and in all slices"
_RATIO = "it counts steps: your fraction times the number of steps"
_PRECISION = "auto, bf16 or fp32; there is no fp16"
_EPOCHS = (Alias("--epochs"),
           Alias("--tokens", "one epoch is as many tokens as `stemma corpus info DIR` counts"))
_STEPS = (Alias("--steps"), Alias("--tokens", "compared models train on equally many tokens"))
_MODEL = (Alias("--model"), Alias("MODEL"), Alias("--from"))
_RECIPE = (Alias("RECIPE"), Alias("RECIPE|MODEL"), Alias("--model", "its config.json says the rest"))
_TRAIN = (Alias("--train"), Alias("--corpus"), Alias("PATH"))
_DEV = (Alias("--dev"), Alias("--data"), Alias("corpus.validation", "a fraction of the corpus is held out"))
_TEST = (Alias("--test"), Alias("--data"), Alias("PATH"))
_OUT = (Alias("--out"),)
_VOCABULARY = (Alias("--tokenizer", "a folder, which `stemma tokenizer train` makes"),
               Alias("--corpus", "a corpus folder brings its own tokenizer; `stemma corpus build` makes one"))
_MASKED = (Alias("objective.masked_lm.rate"), Alias("objective.span_corruption.rate"))
_DEVICES = (Alias("", "`--device` says where to compute; there is no distributed training yet"),)

ALIAS_GROUPS: dict[tuple[str, ...], tuple[Alias, ...]] = {
    # how long, how much
    ("num_train_epochs", "epochs", "epochs_num", "num_epochs"): _EPOCHS,
    ("max_steps", "total_steps", "num_training_steps", "train_steps"): _STEPS,
    ("per_device_train_batch_size", "train_batch_size", "batch_size", "per_gpu_train_batch_size"):
        (Alias("training.batch_size", _SEQUENCES), Alias("--batch")),
    ("gradient_accumulation_steps", "accumulation_steps"):
        (Alias("training.micro_batch_size", "sequences computed at once; training.batch_size stays the whole step"),),
    ("max_seq_length", "seq_length", "block_size", "max_length", "max_source_length", "model_max_length"):
        (Alias("corpus.sequence_length"), Alias("--length")),
    ("per_device_eval_batch_size", "eval_batch_size"): (Alias("", "the batch size of an evaluation is automatic"),),
    ("instances_buffer_size", "dataloader_num_workers"):
        (Alias("", "a corpus is memory-mapped, so there is nothing to set"),),
    # optimization
    ("learning_rate", "lr"): (Alias("training.learning_rate"),),
    ("warmup_steps", "num_warmup_steps"): (Alias("training.warmup_steps"),),
    ("warmup_ratio", "warmup", "warmup_proportion"): (Alias("training.warmup_steps", _RATIO),),
    ("weight_decay", "decay", "wd"): (Alias("training.optimizer.weight_decay"),),
    ("adam_beta1", "beta1"): (Alias("training.optimizer.beta1"),),
    ("adam_beta2", "beta2"): (Alias("training.optimizer.beta2"),),
    ("adam_epsilon",): (Alias("training.optimizer.epsilon"),),
    ("muon_lr", "matrix_lr"): (Alias("training.learning_rate", "with training.optimizer.kind=muon, that of Muon"),),
    ("adam_lr", "adamw_lr", "embed_lr", "embedding_lr", "scalar_lr"):
        (Alias("training.optimizer.adamw_learning_rate", "of all that Muon does not train"),),
    ("ns_steps",): (Alias("training.optimizer.iterations"),),
    ("adjust_lr_fn",): (Alias("training.optimizer.scale"),),
    ("max_grad_norm", "clip_grad", "gradient_clip_val"): (Alias("training.clip_norm"),),
    ("optim", "optimizer"): (Alias("training.optimizer.kind"),),
    ("lr_scheduler_type", "scheduler", "lr_scheduler"): (Alias("training.schedule.kind"),),
    ("num_decay_steps", "decay_steps", "cooldown_steps", "cooldown_frac", "cooldown"):
        (Alias("training.schedule.decay",
               "a fraction of the budget; with training.schedule.kind=warmup_stable_decay"),),
    ("min_lr_ratio",): (Alias("training.schedule.floor"),),
    ("label_smoothing_factor", "label_smoothing"):
        (Alias("objective.translation.smoothing"), Alias("objective.span_corruption.smoothing")),
    ("fp16", "bf16", "tf32", "mixed_precision", "fp16_opt_level"): (Alias("training.precision", _PRECISION),),
    ("load_best_model_at_end",): (Alias("training.keep_best"),),
    ("early_stopping_patience", "early_stop"): (Alias("training.patience"),),
    # saving, logging, looking
    ("save_steps", "save_checkpoint_steps", "checkpoint_steps"): (Alias("training.checkpoint_every"),),
    ("save_total_limit",): (Alias("training.keep_checkpoints"),),
    ("logging_steps", "report_steps", "log_interval"): (Alias("training.log_every"),),
    ("eval_steps", "validation_steps"): (Alias("training.validate_every"),),
    ("eval_strategy", "evaluation_strategy"):
        (Alias("training.validate_every", "it counts steps; a run also validates at its end"),),
    ("save_strategy",): (Alias("training.checkpoint_every", "it counts steps; a run is also saved at its end"),),
    ("report_to",): (Alias("--tensorboard"),),
    ("resume_from_checkpoint",): (Alias("", "`stemma resume RUN` continues an interrupted run"),),
    ("do_train", "do_eval", "do_predict"):
        (Alias("", "`stemma finetune` trains and evaluates; `stemma evaluate` and `stemma predict` do the rest"),),
    # files
    ("output_dir", "output_model_path", "output", "save_path"): _OUT,
    ("prediction_path", "prediction_file", "output_file"): (Alias("--predictions"), Alias("--out")),
    ("overwrite_output_dir", "overwrite_cache"): (Alias("--overwrite"),),
    ("model_name_or_path", "pretrained_model_path", "load_model_path", "pretrained_model_name_or_path", "model_path"):
        _MODEL,
    ("config_name", "config_path", "model_type", "data_processor", "encoder", "config_overrides"): _RECIPE,
    ("train_file", "train_path", "dataset_path", "corpus_path", "train_data_file", "dataset_name"): _TRAIN,
    ("validation_file", "dev_path", "eval_file", "eval_data_file", "dev_file"): _DEV,
    ("test_file", "test_path", "predict_file"): _TEST,
    ("validation_split_percentage",): (Alias("corpus.validation", "a fraction: 0.05 is 5 percent"),),
    ("tokenizer_name", "vocab_path", "vocab_file", "spm_model_path", "merges_path"): _VOCABULARY,
    ("preprocessing_num_workers", "processes_num", "num_proc"): (Alias("--workers"), Alias("--processes")),
    ("line_by_line",): (Alias("--documents", "with the value line"),),
    ("text_column_name", "text_column"): (Alias("--columns"), Alias("--field")),
    ("max_train_samples", "max_eval_samples", "max_predict_samples"): (Alias("--limit"),),
    ("random_seed", "data_seed", "manual_seed"): (Alias("--seed"), Alias("--seeds")),
    ("seed",): (Alias("--seed"), Alias("--seeds")),
    # the network
    ("hidden_size", "d_model", "n_embd", "dim", "embed_dim"): (Alias("network.width"),),
    ("emb_size", "embedding_size"): (Alias("network.embedding.width"),),
    ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers_num", "encoder_layers"):
        (Alias("network.layers"),),
    ("decoder_layers", "num_decoder_layers", "decoder_layers_num"): (Alias("network.decoder.layers"),),
    ("num_attention_heads", "num_heads", "n_head", "n_heads", "heads_num", "encoder_attention_heads"):
        (Alias("network.heads"),),
    ("intermediate_size", "d_ff", "ffn_dim", "feedforward_size", "n_inner", "encoder_ffn_dim"):
        (Alias("network.feedforward"),),
    ("hidden_act", "activation_function", "hidden_activation"): (Alias("network.activation"),),
    ("hidden_dropout_prob", "dropout", "resid_pdrop", "dropout_rate", "dropout_prob"): (Alias("network.dropout"),),
    ("attention_probs_dropout_prob", "attn_pdrop", "attention_dropout"): (Alias("network.attention.dropout"),),
    ("max_position_embeddings", "n_positions", "n_ctx", "max_len"): (Alias("network.position.maximum"),),
    ("layer_norm_eps", "layer_norm_epsilon"): (Alias("network.norm.epsilon"),),
    ("layernorm_positioning",): (Alias("network.norm.placement"),),
    ("type_vocab_size",): (Alias("network.embedding.segments"),),
    ("initializer_range",): (Alias("network.initialization.std"),),
    ("vocab_size",): (Alias("--vocab-size"), Alias("tokenizer.vocab_size")),
    ("do_lower_case", "lowercase"): (Alias("--lowercase"), Alias("tokenizer.lowercase")),
    # the pre-training task
    ("mlm_probability", "masked_lm_prob", "mask_prob", "noise_density"): _MASKED,
    ("whole_word_masking", "wwm"): (Alias("objective.masked_lm.unit", "with the value word"),),
    ("span_masking",): (Alias("objective.masked_lm.unit", "with the value span"),),
    ("span_geo_prob",): (Alias("objective.masked_lm.geometric_p"),),
    ("span_max_length",): (Alias("objective.masked_lm.max_span_words"),),
    ("mean_noise_span_length",): (Alias("objective.span_corruption.mean_span"),),
    ("dup_factor", "dupe_factor"): (Alias("objective.masked_lm.duplicates"),),
    ("dynamic_masking",): (Alias("objective.masked_lm.dynamic"),),
    ("short_seq_prob",): (Alias("corpus.short_probability"),),
    ("mlm",): (Alias("", "the recipe has the objective: bert a masked LM, gpt2 a causal LM"),),
    # writing
    ("max_new_tokens", "max_target_length"): (Alias("--tokens"), Alias("--max-extra")),
    ("min_new_tokens", "min_length"): (Alias("--min-tokens"),),
    ("num_beams", "beam_size", "beam_width"): (Alias("--beams"),),
    ("num_return_sequences",): (Alias("--completions"), Alias("--n-best")),
    ("do_sample",): (Alias("", "sampling is what `generate` does; --greedy or --beams turn it off"),),
    ("source_prefix",): (Alias("--prefix"),),
    # machines
    ("device", "no_cuda", "use_cpu", "gpu_ranks", "world_size", "local_rank", "deepspeed", "fsdp"): _DEVICES,
}
ALIASES = {word: answers for words, answers in ALIAS_GROUPS.items() for word in words}


def aliases_of(word: str) -> tuple[Alias, ...]:
    """Aliases of an option, or of a key by its last part, the best first."""
    return ALIASES.get(word.lstrip("-").replace("-", "_").rsplit(".", 1)[-1].casefold(), ())


def option_hint(word: str, options: Collection[str], arguments: Collection[str]) -> str:
    """A hint for an option that a command does not have, if the command has it under another name."""
    changes = any("KEY=VALUE" in argument for argument in arguments)
    for alias in aliases_of(word):
        if alias.is_option and alias.name in options:
            return _alias_sentence(alias, f"`{alias.name}`")
        if alias.is_key and changes:
            return _alias_sentence(alias, f"`{alias.name}=VALUE`, without dashes")
        if alias.name in arguments:
            return _alias_sentence(alias, f"{alias.name}, an argument without dashes")
        if not alias.name:
            return f" {alias.note[:1].upper()}{alias.note[1:]}."
    return ""


def key_hint(key: str, known: Collection[str]) -> str | None:
    """The problem with a foreign key: which of the `known` keys it is, or which option; None if it has no alias."""
    aliases = aliases_of(key)
    if not aliases or key in known:
        return None
    for alias in aliases:
        if alias.name in known:
            return f'no such key. Did you mean "{alias.name}"?' + (f" ({alias.note})" if alias.note else "")
    if options := [alias for alias in aliases if alias.is_option]:
        listed = " or ".join(alias.name + (f" ({alias.note})" if alias.note else "") for alias in options)
        return f"no such key; it is an option here: {listed}"
    return next((f"no such key; {alias.note}" for alias in aliases if not alias.name), None)


def _alias_sentence(alias: Alias, name: str) -> str:
    return f" Here it is {name}{f' ({alias.note})' if alias.note else ''}."

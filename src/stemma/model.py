"""A model: its recipe, its tokenizer and its network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from stemma.corpus.seq2seq_rows import DECODER, ENCODER
from stemma.errors import UserError, did_you_mean
from stemma.network.heads import ScoringHead
from stemma.network.input_checks import Inputs, checked_inputs
from stemma.network.inputs_outputs import Stream
from stemma.network.network import Network
from stemma.network.views import eval_view
from stemma.pretraining_record import PretrainingRecord
from stemma.recipe_loading import Recipe
from stemma.schema.parts import FEATURES
from stemma.task_config import TaskConfig
from stemma.text.tokenizer import Tokenizer
from stemma.visibility import Bidirectional, Causal, PaddingRule, Visibility

DISCRIMINATOR_HEAD = "replaced_token"  # ELECTRA's head: is a token original or replaced?


@dataclass(repr=False)
class Model:
    recipe: Recipe
    tokenizer: Tokenizer | None
    network: Network
    load_warnings: list[str] = field(default_factory=list)  # about the files of its folder, for the user
    task_configs: dict[str, TaskConfig] = field(default_factory=dict)  # of the tasks it is fine-tuned for
    pretraining: PretrainingRecord | None = None  # None: unknown, as of a published checkpoint

    def __repr__(self) -> str:
        vocabulary = f"{self.network.vocab_size:,} tokens" + ("" if self.tokenizer is not None else ", no tokenizer")
        tasks = f", tasks {', '.join(self.task_configs)}" if self.task_configs else ""
        return f"<Model {self.recipe.label}: {self.parameter_count() / 1e6:.1f} M parameters, {vocabulary}{tasks}>"

    @property
    def device(self) -> torch.device:
        return next(chain(self.network.parameters(), self.network.buffers())).device

    def in_eval_mode(self) -> Model:
        """This model with its network in eval mode. The mode of the original network does not change; both share their
        parameters."""
        network = eval_view(self.network)
        return self if network is self.network else replace(self, network=network)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it has an encoder and a decoder."""
        return "decoder" in self.network.parts

    @property
    def visibility(self) -> Visibility:
        """The attention mask of its inputs: causal if every objective is causal, otherwise bidirectional."""
        kinds = {task.attention_mask_kind for task in self.recipe.settings.objective.values()}
        return Causal() if kinds == {"causal"} else Bidirectional()

    @property
    def document_separator_id(self) -> int | None:
        """The token between two texts: a new text begins after it, and it ends a text."""
        if self.tokenizer is None:
            return None
        separator = self.tokenizer.document_separator_id(self.recipe.settings.corpus.boundary)
        return self.tokenizer.special_token_ids.get("begin") if separator is None else separator

    @property
    def mask_shift(self) -> int:
        """How many positions before a masked token the model predicts it: 0, or 1 (GPT-BERT)."""
        return max((task.target_shift for task in self.recipe.settings.objective.values()), default=0)

    def encoder_stream(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                       token_type_ids: Tensor | None = None, inputs: Inputs | None = None) -> Stream:
        """The encoder input: token ids with attention mask and positions, on the model's device. `inputs`: the other
        inputs of the network, (B, L, ...) by the name of [network.inputs.NAME]."""
        visibility = self.visibility
        if attention_mask is not None and not bool(attention_mask.all()):
            visibility = visibility & PaddingRule(attention_mask.bool())
        self._check_input_ids(input_ids, token_type_ids)
        position, position_ids = self.recipe.settings.network.position, None
        if attention_mask is not None and position.skips_padding:
            non_pad = attention_mask.long()  # padding has position -1, if the embedding has a row for it (RoBERTa)
            position_ids = (non_pad.cumsum(1) * non_pad - 1).clamp(min=-getattr(position, "offset", 0))
        rows, length = input_ids.shape
        extra_inputs = checked_inputs(inputs, self.recipe.settings.network.inputs, rows, length, self.recipe.label)
        return Stream(input_ids=input_ids, attention_mask=visibility, position_ids=position_ids,
                      segment_ids=token_type_ids, inputs=extra_inputs).to(self.device)

    def require_hidden_states(self, purpose: str) -> None:
        """Refuse a model of counts, which has no vectors and no weights that gradients could change."""
        if self.recipe.settings.network.depth.counts:
            raise UserError(f"{self.recipe.label} is a table of counts: it has no vectors and no weights, so it cannot "
                            f"{purpose}. Use a network, such as gpt2@tiny or bert@tiny.")

    def _check_input_ids(self, input_ids: Tensor, token_type_ids: Tensor | None) -> None:
        """Refuse ids that would be an index error inside the network."""
        settings = self.recipe.settings.network
        limit = settings.max_length
        if limit is not None and input_ids.shape[1] > limit:
            raise UserError(f"the input is {input_ids.shape[1]} tokens long and {self.recipe.label} reads at most "
                            f"{limit}; cut the text shorter.")
        if input_ids.numel() and not 0 <= int(input_ids.min()) <= int(input_ids.max()) < self.network.vocab_size:
            raise UserError(f"the ids lie between {int(input_ids.min())} and {int(input_ids.max())}, and this network "
                            f"knows those below {self.network.vocab_size}; use the tokenizer it was trained with.")
        segments = settings.embedding.segments
        if token_type_ids is not None and segments and int(token_type_ids.max()) >= segments:
            raise UserError(f"token_type_ids go up to {int(token_type_ids.max())}, and this network has {segments} "
                            f"segment{'s' if segments > 1 else ''}, counted from 0.")

    def streams(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> dict[str, Stream]:
        """The input of each part of the network; `inputs` go to the encoder."""
        streams = {"encoder": self.encoder_stream(input_ids, attention_mask, token_type_ids, inputs)}
        if not self.is_encoder_decoder:
            if decoder_input_ids is not None:
                raise UserError(f"{self.recipe.label} has no decoder, so decoder_input_ids have no place in it; leave "
                                "them out.")
            return streams
        if decoder_input_ids is None:
            raise UserError(f"{self.recipe.label} has a decoder, which needs decoder_input_ids: the target tokens so "
                            f"far, after {self.recipe.settings.corpus.decoder_start}.")
        self._check_input_ids(decoder_input_ids, None)
        return {**streams, "decoder": Stream(decoder_input_ids, Causal()).to(self.device)}

    def task_streams(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                     token_type_ids: Tensor | None = None, stack: str = ENCODER) -> dict[str, Stream]:
        """The inputs for a task whose head reads this stack. A decoder gets the same text, shifted right by one after
        its start token, so that its last hidden state depends on the whole text."""
        streams = {ENCODER: self.encoder_stream(input_ids, attention_mask, token_type_ids)}
        if stack == DECODER:
            shifted = input_ids.roll(1, dims=1)
            shifted[:, 0] = self.require_tokenizer().special_id(self.recipe.settings.corpus.decoder_start)
            streams[DECODER] = Stream(shifted, Causal()).to(self.device)  # no padding mask: padding comes last
        return streams

    @torch.no_grad()
    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
               decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> Tensor:
        """The last hidden state (B, L, width), of the decoder if there is one. `inputs`: arrays (B, L, ...) for the
        other inputs of the network, by name."""
        streams = self.streams(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        return self.network(streams)["decoder" if self.is_encoder_decoder else "encoder"]

    @torch.no_grad()
    def attention_scores(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                         token_type_ids: Tensor | None = None, decoder_input_ids: Tensor | None = None,
                         inputs: Inputs | None = None) -> dict[str, list[Tensor]]:
        """Attention scores before the softmax: (B, heads, Q, K) of every layer, -inf where masked. Keys: "encoder", and
        with a decoder "decoder" (self-attention) and "cross"."""
        network = self.recipe.settings.network
        if "scores" not in network.supported_features(self.network.last_part):
            kind = f"attention of kind {network.attention.kind}" if network.depth.uses_attention else \
                f"a body of kind {network.depth.kind}"
            raise UserError(f"{kind} {FEATURES['scores']}; {self.recipe.label} is built with it.")
        streams = self.streams(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        scores = self.network(streams, keep_attention_scores=True).attention_scores
        return {part: [layer.masked_fill(layer <= torch.finfo(layer.dtype).min / 2, -torch.inf) for layer in layers]
                for part, layers in scores.items()}

    def attentions(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                   decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> dict[str, list[Tensor]]:
        """Attention probabilities: (B, heads, Q, K) of every layer, by part as in `attention_scores`. They are 0 at
        positions that attend to nothing (padding)."""
        scores = self.attention_scores(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        return {part: [layer.softmax(-1).nan_to_num(0.0) for layer in layers] for part, layers in scores.items()}

    @torch.no_grad()
    def logits(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
               decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> Tensor:
        """Logits of the language-model head, (B, L, vocabulary); of a discriminator (B, L), above 0 where it takes a
        token for a replacement."""
        hidden = self.hidden(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        return self.network.heads[DISCRIMINATOR_HEAD](hidden) if self.is_discriminator else self.lm_head()(hidden)

    @property
    def is_discriminator(self) -> bool:
        """Whether it detects replaced tokens and has no language-model head."""
        return DISCRIMINATOR_HEAD in self.network.heads and "vocabulary" not in self.network.heads

    def lm_head(self) -> ScoringHead:
        if self.is_discriminator:
            raise UserError(f"this {self.recipe.title} model judges tokens and does not predict them; its generator "
                            "does: give the folder generator/ below the model's.")
        if "vocabulary" not in self.network.heads:
            if self.recipe.settings.network.depth.static:
                raise UserError(f"{self.recipe.label} has one vector for each word and predicts no token of a text; "
                                "ask it with `stemma neighbours`, `analogy` or `similarity`, or fine-tune it.")
            raise UserError(f"this {self.recipe.title} model has no language-model head, so it cannot predict tokens; "
                            "load a checkpoint that kept it (such as ...ForMaskedLM or ...LMHeadModel).")
        return self.network.head("vocabulary")

    @property
    def usable_tasks(self) -> dict[str, TaskConfig]:
        """The tasks whose heads have weights: config.json may name a class whose head was never saved."""
        return {name: task_config for name, task_config in self.task_configs.items()
                if task_config.heads.keys() <= self.network.head_specs.keys()}

    def task_config(self, name: str | None = None) -> TaskConfig:
        """The task of this name, or the only one."""
        if not self.task_configs:
            self.require_hidden_states("be fine-tuned to answer a task")
            raise UserError(f"this {self.recipe.title} model answers no task; teach it one with `stemma finetune`.")
        if name is None and len(self.task_configs) > 1:
            raise UserError(f"this model answers {len(self.task_configs)} tasks; say which with --task: "
                            f"{', '.join(self.task_configs)}.")
        task = next(iter(self.task_configs)) if name is None else name
        if task not in self.task_configs:
            raise UserError(f'this model has no task "{task}"; it answers {", ".join(self.task_configs)}.'
                            f"{did_you_mean(task, self.task_configs)}")
        if task not in self.usable_tasks:
            raise UserError(f"the weights of the head that answers (kind {self.task_configs[task].kind}) are not in "
                            "this model's folder; take a checkpoint that has them, or teach it with `stemma finetune`.")
        return self.task_configs[task]

    def parameter_count(self, heads: bool = True) -> int:
        return self.network.parameter_count(heads)

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("this model folder has no tokenizer; put its tokenizer.json (or vocab.txt) beside "
                            "config.json.")
        return self.tokenizer

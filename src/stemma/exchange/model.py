"""A model in the hand: its recipe, its tokenizer and its network, ready to be asked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stemma.corpus.sides import DECODER, ENCODER
from stemma.errors import UserError, did_you_mean
from stemma.exchange.cards import Card
from stemma.exchange.given import Inputs, checked_inputs
from stemma.lineage import Recipe
from stemma.network.heads import Head
from stemma.network.network import Network
from stemma.network.streams import Stream
from stemma.network.views import eval_view
from stemma.schema.parts import FEATURES
from stemma.text.tokenizer import Tokenizer
from stemma.visibility import Causal, Full, Padded, Visibility

JUDGE = "replaced_token"  # the head that tells originals from replacements


@dataclass(repr=False)
class Model:
    recipe: Recipe
    tokenizer: Tokenizer | None
    network: Network
    notices: list[str] = field(default_factory=list)  # what a reader of the folder should know
    cards: dict[str, Card] = field(default_factory=dict)  # the tasks it was fine-tuned for

    def __repr__(self) -> str:
        vocabulary = f"{self.network.vocabulary:,} tokens" + ("" if self.tokenizer is not None else ", no tokenizer")
        tasks = f", tasks {', '.join(self.cards)}" if self.cards else ""
        return f"<Model {self.recipe.label}: {self.parameter_count() / 1e6:.1f} M parameters, {vocabulary}{tasks}>"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def in_eval_mode(self) -> Model:
        """This model over its network in eval mode. A network in training stays in training: what is given back reads
        the same parameters."""
        network = eval_view(self.network)
        return self if network is self.network else replace(self, network=network)

    @property
    def decodes(self) -> bool:
        """Whether it reads one text with an encoder and writes another with a decoder."""
        return "decoder" in self.network.parts

    @property
    def sees(self) -> Visibility:
        """How the model reads: up to each place, if it never learned anything else; otherwise all of the text."""
        learned = {task.visibility for task in self.recipe.settings.objective.values()}
        return Causal() if learned == {"causal"} else Full()

    @property
    def boundary(self) -> int | None:
        """The token that stands between two texts: what a new one begins after, and what ends one."""
        if self.tokenizer is None:
            return None
        parting = self.tokenizer.boundary(self.recipe.settings.corpus.boundary)
        return self.tokenizer.roles.get("begin") if parting is None else parting

    def inputs_of(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                  token_type_ids: Tensor | None = None, inputs: Inputs | None = None) -> Stream:
        """What the network reads: the ids with their mask and positions, on the model's device. `inputs`: what it reads
        besides, (B, L, ...) by the name of [network.inputs.NAME]."""
        sees = self.sees
        if attention_mask is not None and not bool(attention_mask.all()):
            sees = sees & Padded(attention_mask.bool())
        self._check(input_ids, token_type_ids)
        chosen, positions = self.recipe.settings.network.position, None
        if attention_mask is not None and chosen.skips_padding:
            real = attention_mask.long()  # padding stands right before the first position, if there is a row for it
            positions = (real.cumsum(1) * real - 1).clamp(min=-getattr(chosen, "offset", 0))
        rows, length = input_ids.shape
        beside = checked_inputs(inputs, self.recipe.settings.network.inputs, rows, length, self.recipe.label)
        return Stream(ids=input_ids, sees=sees, positions=positions, segments=token_type_ids,
                      inputs=beside).to(self.device)

    def _check(self, input_ids: Tensor, token_type_ids: Tensor | None) -> None:
        """What would only be an index out of range further down."""
        settings = self.recipe.settings.network
        limit = settings.longest
        if limit is not None and input_ids.shape[1] > limit:
            raise UserError(f"the input is {input_ids.shape[1]} tokens long and {self.recipe.label} reads at most "
                            f"{limit}; cut the text shorter.")
        if input_ids.numel() and not 0 <= int(input_ids.min()) <= int(input_ids.max()) < self.network.vocabulary:
            raise UserError(f"the ids lie between {int(input_ids.min())} and {int(input_ids.max())}, and this network "
                            f"knows those below {self.network.vocabulary}; use the tokenizer it was trained with.")
        segments = settings.embedding.segments
        if token_type_ids is not None and segments and int(token_type_ids.max()) >= segments:
            raise UserError(f"token_type_ids go up to {int(token_type_ids.max())}, and this network has {segments} "
                            f"segment{'s' if segments > 1 else ''}, counted from 0.")

    def streams_of(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                   decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> dict[str, Stream]:
        """What each part of the network reads; `inputs` are the encoder's."""
        streams = {"encoder": self.inputs_of(input_ids, attention_mask, token_type_ids, inputs)}
        if not self.decodes:
            if decoder_input_ids is not None:
                raise UserError(f"{self.recipe.label} has no decoder, so decoder_input_ids have no place in it; leave "
                                "them out.")
            return streams
        if decoder_input_ids is None:
            raise UserError(f"{self.recipe.label} writes with its decoder, which needs decoder_input_ids: what it has "
                            f"written so far, after {self.recipe.settings.corpus.decoder_start}.")
        self._check(decoder_input_ids, None)
        return {**streams, "decoder": Stream(decoder_input_ids, Causal()).to(self.device)}

    def answering_streams(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                          token_type_ids: Tensor | None = None, stack: str = ENCODER) -> dict[str, Stream]:
        """What each part reads where this stack answers a task: a decoder the same text, shifted right by one position
        behind its start token, so that its last hidden state has seen all of the text."""
        streams = {ENCODER: self.inputs_of(input_ids, attention_mask, token_type_ids)}
        if stack == DECODER:
            shifted = input_ids.roll(1, dims=1)
            shifted[:, 0] = self.needs_tokenizer().role(self.recipe.settings.corpus.decoder_start)
            streams[DECODER] = Stream(shifted, Causal()).to(self.device)  # padding comes last, where nobody sees it
        return streams

    @torch.no_grad()
    def hidden(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
               decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> Tensor:
        """(B, L, width) of the last layer; of the decoder's, if there is one. `inputs`: an array for each of the
        network's inputs that the text has, (B, L, ...) by name."""
        streams = self.streams_of(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        return self.network(streams)["decoder" if self.decodes else "encoder"]

    @torch.no_grad()
    def attention_scores(self, input_ids: Tensor, attention_mask: Tensor | None = None,
                         token_type_ids: Tensor | None = None, decoder_input_ids: Tensor | None = None,
                         inputs: Inputs | None = None) -> dict[str, list[Tensor]]:
        """The scores before the softmax, (B, heads, Q, K) of every layer, -inf where a position is not seen: of the
        "encoder", and with a decoder of the "decoder" to its own text and "cross" to the encoder's output."""
        network = self.recipe.settings.network
        if "scores" not in network.supported(self.network.last):
            kind = f"attention of kind {network.attention.kind}" if network.depth.attends else \
                f"a body of kind {network.depth.kind}"
            raise UserError(f"{kind} {FEATURES['scores']}; {self.recipe.label} is built with it.")
        streams = self.streams_of(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        found = self.network(streams, observe=True).attentions
        return {part: [layer.masked_fill(layer <= torch.finfo(layer.dtype).min / 2, -torch.inf) for layer in layers]
                for part, layers in found.items()}

    def attentions(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
                   decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> dict[str, list[Tensor]]:
        """What every head attends to: the probabilities, (B, heads, Q, K) of every layer, by part as in
        `attention_scores`. A position that sees nothing (padding) has none."""
        scores = self.attention_scores(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        return {part: [layer.softmax(-1).nan_to_num(0.0) for layer in layers] for part, layers in scores.items()}

    @torch.no_grad()
    def logits(self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None,
               decoder_input_ids: Tensor | None = None, inputs: Inputs | None = None) -> Tensor:
        """(B, L, vocabulary): the pre-training head's guess at every place; (B, L) of a head that judges tokens: above
        0 where it takes one for a replacement."""
        hidden = self.hidden(input_ids, attention_mask, token_type_ids, decoder_input_ids, inputs)
        return self.network.heads[JUDGE](hidden) if self.judges else self.token_head()(hidden)

    @property
    def judges(self) -> bool:
        """Whether it says of tokens if they are the original, and does not guess them."""
        return JUDGE in self.network.heads and "vocabulary" not in self.network.heads

    def token_head(self) -> Head:
        if self.judges:
            raise UserError(f"this {self.recipe.title} model judges tokens and does not guess them; its generator "
                            "does: give the folder generator/ below the model's.")
        if "vocabulary" not in self.network.heads:
            raise UserError(f"this {self.recipe.title} model has no language-model head, so it cannot guess tokens; "
                            "load a checkpoint that kept it (such as ...ForMaskedLM or ...LMHeadModel).")
        return self.network.head("vocabulary")

    @property
    def answerable(self) -> dict[str, Card]:
        """The tasks whose heads are there: config.json may name a class whose own weights were never saved."""
        return {name: card for name, card in self.cards.items() if card.heads.keys() <= self.network.specs.keys()}

    def card(self, name: str | None = None) -> Card:
        """The task to be answered: the one of this name, or the only one."""
        if not self.cards:
            raise UserError(f"this {self.recipe.title} model answers no task; teach it one with `stemma finetune`.")
        if name is None and len(self.cards) > 1:
            raise UserError(f"this model answers {len(self.cards)} tasks; say which with --task: "
                            f"{', '.join(self.cards)}.")
        chosen = next(iter(self.cards)) if name is None else name
        if chosen not in self.cards:
            raise UserError(f'this model has no task "{chosen}"; it answers {", ".join(self.cards)}.'
                            f"{did_you_mean(chosen, self.cards)}")
        if chosen not in self.answerable:
            raise UserError(f"the weights of the head that answers (kind {self.cards[chosen].kind}) are not in this "
                            "model's folder; take a checkpoint that has them, or teach it with `stemma finetune`.")
        return self.cards[chosen]

    def parameter_count(self, heads: bool = True) -> int:
        return self.network.parameter_count(heads)

    def needs_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("this model folder has no tokenizer; put its tokenizer.json (or vocab.txt) beside "
                            "config.json.")
        return self.tokenizer

"""Models that read: states, masked words, classes, and answers, also by transformers' BERT."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForQuestionAnswering, modeling_outputs
from transformers.utils import can_return_tuple

from fairseq_clusterformer.answers import TYPES, best_spans
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.families import ACTIVATIONS, FAMILIES
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader

from .base import ClusterformerPreTrainedModel, batch_first, share_of
from .configuration import ClusterformerConfig
from .tokenizer import has_titles


class ClusterformerModel(ClusterformerPreTrainedModel):
    """The last layer's states: of the encoder, or of a language model's decoder. It is the whole
    model, whose head is not used: each of our folders loads."""

    families = tuple(f"clusterformer{kind}" for kind in ("_lm", "", "_masked_lm", "_classifier"))
    auto = "AutoModel"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> modeling_outputs.BaseModelOutput | tuple:
        """States [B, N, D] of the tokens."""
        self._begin(position_ids=position_ids, **kwargs)
        wanted = self._wants_states(output_hidden_states)
        tokens, documents = self._tokens(input_ids, attention_mask, position_ids)
        if self.config.family == "clusterformer_lm":
            x, states, _ = self._decoded(tokens, None, wanted, documents)
        else:
            encoded = self.model.encoder(tokens, return_all_hiddens=wanted)
            x = encoded["encoder_out"][0].transpose(0, 1)
            states = batch_first(encoded["encoder_states"], wanted)
        return modeling_outputs.BaseModelOutput(last_hidden_state=x, hidden_states=states)


class _EncoderWithHead(ClusterformerPreTrainedModel):
    output: type

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> modeling_outputs.MaskedLMOutput | modeling_outputs.SequenceClassifierOutput | tuple:
        """Logits: [B, N, vocabulary], or a classifier's [B, classes]. Its ``labels`` are [B], of a
        regression floating point; ``token_type_ids`` are 1 at the second text of a joined pair,
        which the model finds itself."""
        self._begin(position_ids=position_ids, **kwargs)
        tokens, _ = self._tokens(input_ids, attention_mask, position_ids)
        if token_type_ids is not None:
            own = self.model.second(tokens) if self.config.form == "joined" else tokens * 0
            real = tokens.ne(self.config.pad_token_id)
            if not torch.equal(token_type_ids[real], own[real]):
                raise ValueError("token_type_ids are others than the model's own; allowed: None")
        wanted, loss = self._wants_states(output_hidden_states), None
        logits, extra = self._run(tokens, wanted)
        if labels is not None:
            loss = self._loss(logits, labels, extra["reports"], **kwargs)
        states = batch_first(extra["encoder_states"], wanted)
        return self.output(loss=loss, logits=logits, hidden_states=states)


class ClusterformerForMaskedLM(_EncoderWithHead):
    """A clustered encoder that guesses masked words."""

    families = ("clusterformer_masked_lm",)
    auto, form, hub_task = "AutoModelForMaskedLM", "masked", "fill-mask"
    output = modeling_outputs.MaskedLMOutput

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """As transformers'; the head's weight is the embeddings, its bias grows with them."""
        found = super().resize_token_embeddings(*args, **kwargs)
        head = self.model.lm_head
        if more := self.config.vocab_size - len(head.bias):
            head.bias = nn.Parameter(nn.functional.pad(head.bias.detach(), (0, more)))
        head.weight = self.model.encoder.embed_tokens.weight
        return found

    def _run(self, tokens: Tensor, wanted: bool) -> tuple[Tensor, dict[str, Any]]:
        found = self.model.encode(tokens, return_all_hiddens=wanted)
        logits = self.model.lm_head(found["encoder_out"][0].transpose(0, 1))
        return logits, found | {"reports": {"encoder": found["reports"]}}

    _loss = ClusterformerPreTrainedModel._token_loss


class ClusterformerForSequenceClassification(_EncoderWithHead):
    """A clustered encoder, a pooling and a classifier; from a masked language model, the
    classifier starts anew."""

    families = ("clusterformer_classifier",)
    auto, form, hub_task = "AutoModelForSequenceClassification", "sentence", "text-classification"
    output = modeling_outputs.SequenceClassifierOutput
    _keys_to_ignore_on_load_unexpected = [r"model\.lm_head\."]

    def __init__(self, config: ClusterformerConfig):
        if config.family == "clusterformer_masked_lm":
            config.architecture = "clusterformer_classifier"
        super().__init__(config)

    def _run(self, tokens: Tensor, wanted: bool) -> tuple[Tensor, dict[str, Any]]:
        return self.model(tokens, return_all_hiddens=wanted)

    def _loss(
        self, logits: Tensor, labels: Tensor, reports: dict, num_items_in_batch=None, **_
    ) -> Tensor:
        share = share_of(labels, num_items_in_batch)
        loss = self.loss_function(pooled_logits=logits, labels=labels, config=self.config)
        return self._with_clustering(share * loss, reports, share)


@dataclass
class ReaderOutput(modeling_outputs.QuestionAnsweringModelOutput):
    """As of transformers, and logits of each of `fairseq_clusterformer.answers.TYPES`, [B, 5];
    the last type is that there is no answer."""

    type_logits: Tensor | None = None


class ClusterformerForQuestionAnswering(ClusterformerPreTrainedModel):
    """The reader over windows and clusters (CF20).

    A row is ``<s> question </s>`` and behind it a document, each paragraph led by ``<s>``; the
    tokenizer makes it of a question and a document, with ``token_type_ids`` 0 and 1.
    """

    families = ("clusterformer_reader",)
    auto, form, hub_task = "AutoModelForQuestionAnswering", "reader", "question-answering"

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> ReaderOutput | tuple:
        """Logits [B, N] of where the answer starts and ends: the lowest number there is outside of
        the document. ``token_type_ids`` [B, N] are needed: 0 at the question, 1 at the document.
        ``start_positions`` and ``end_positions`` are the answer's first token (0: there is none)
        and its last one, int64 [B]; ``output_hidden_states`` is refused."""
        self._begin(position_ids=position_ids, **kwargs)
        if self._wants_states(output_hidden_states):
            problem = "the layers read windows of a document, not rows"
            raise ValueError(f"output_hidden_states is True: {problem}; allowed: False")
        if token_type_ids is None:
            raise ValueError("token_type_ids is None; allowed: 0 at the question, 1 behind it")
        tokens, _ = self._tokens(input_ids, attention_mask, position_ids)
        real = tokens.ne(self.config.pad_token_id)
        in_question, in_document = (real & token_type_ids.eq(part) for part in (0, 1))
        question, document = self._picked(tokens, in_question), self._picked(tokens, in_document)
        found, extra = self.model(question, document)
        # back from places in the document to places in the row
        places = (in_document.long().cumsum(1) - 1).clamp(min=0)
        start, end = (
            logits.gather(1, places)
            .masked_fill(~in_document, -torch.inf)
            .clamp(min=torch.finfo(logits.dtype).min)
            for logits in (found.start, found.end)
        )
        loss = None
        if start_positions is not None and end_positions is not None:
            none = start_positions.eq(0)
            loss = cross_entropy(found.type, none.long() * TYPES.index("none"))
            for logits, right in ((start, start_positions), (end, end_positions)):
                if not bool(none.all()):
                    loss = loss + cross_entropy(logits[~none], right[~none]) / 2
            loss = self._with_clustering(loss, extra["reports"])
        return ReaderOutput(loss=loss, start_logits=start, end_logits=end, type_logits=found.type)

    def _picked(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        """Some tokens of each row, moved to its beginning."""
        rows = [row[own] for row, own in zip(tokens, wanted, strict=True)]
        return pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)

    @torch.no_grad()
    def spans(self, max_length: int = 30, **inputs: Tensor) -> Tensor:
        """The best answer of each row: its first token and the one behind its last, int64 [B, 2];
        `max_length` in tokens, `inputs` of the tokenizer."""
        out = self(**inputs)
        lowest = torch.finfo(out.start_logits.dtype).min
        found = (out.start_logits, out.end_logits)
        start, end = (each.masked_fill(each == lowest, -torch.inf) for each in found)
        paragraph = inputs["input_ids"].eq(self.config.bos_token_id).cumsum(1)
        _, first, last = best_spans(start, end, paragraph, max_length=max_length)
        return torch.cat([first, last], dim=1)


def as_bert(loaded: Loaded) -> BertForQuestionAnswering | None:
    """A reader by transformers' class, if it reads another library's text, its layers are all
    alike, and its "no answer" is a span, as BERT has it; None: another model. Up to
    ``--window-size`` tokens of the document, its logits are the reader's. "No answer" starts and
    ends at the row's first token; "yes", "no" and whole paragraphs as answers are left out."""
    model, folder = loaded.model, loaded.folder
    is_reader = isinstance(model, ClusterformerReader) and (folder / TOKENIZER).is_file()
    if not is_reader or has_titles(folder) or model.encoder.cluster_layers:
        return None
    args, family = model.args, FAMILIES["bert"]
    if args.embedding_scale != 1 or args.encoder_normalize_before or not args.shared_softmax:
        return None
    named = {name: ours for ours, name in family.options.items() if isinstance(name, str)}
    sizes = {name: getattr(args, ours) for name, ours in named.items()}
    theirs = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    sizes["hidden_act"] = theirs.get(sizes["hidden_act"], sizes["hidden_act"])
    found = BertForQuestionAnswering(
        BertConfig(
            **sizes,
            vocab_size=len(model.encoder.dictionary),
            hidden_dropout_prob=args.dropout,
            attention_probs_dropout_prob=args.attention_dropout,
            pad_token_id=model.encoder.padding_idx,
        )
    )
    own, state = model.state_dict(), found.state_dict()
    words = {"word": own["encoder.embed_tokens.weight"]}
    words["position"] = own["encoder.embed_positions.weight"][2:]  # fairseq's padding is in front
    types = own.get("encoder.embed_types.weight")
    words["token_type"] = words["word"].new_zeros(2, 1) if types is None else types
    new = {f"bert.embeddings.{name}_embeddings.weight": table for name, table in words.items()}
    new |= {name: own[ours] for name in state if (ours := family.named(name))}
    found.load_state_dict({name: t.expand_as(state[name]) for name, t in new.items()})
    return found.eval()

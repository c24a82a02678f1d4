"""``AutoModel``, ``AutoModelForMaskedLM`` and ``AutoModelForSequenceClassification``."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .base import ClusterformerPreTrainedModel, batch_first, share_of
from .configuration import ClusterformerConfig


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
    ) -> BaseModelOutput | tuple:
        """States [B, N, D] of the tokens."""
        self._begin(position_ids=position_ids, **kwargs)
        wanted = self._wants_states(output_hidden_states)
        if self.config.family == "clusterformer_lm":
            tokens = self._masked(input_ids, attention_mask)
            documents = self._documents(position_ids, tokens)
            x, states, _ = self._decoded(tokens, None, wanted, documents=documents)
        else:
            tokens = self._one_text_a_row(input_ids, attention_mask, position_ids)
            encoded = self.model.encoder(tokens, return_all_hiddens=wanted)
            x = encoded["encoder_out"][0].transpose(0, 1)
            states = batch_first(encoded["encoder_states"], wanted)
        return BaseModelOutput(last_hidden_state=x, hidden_states=states)


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
    ) -> MaskedLMOutput | SequenceClassifierOutput | tuple:
        """Logits: [B, N, vocabulary], or a classifier's [B, classes].

        Args:
            token_type_ids: 1 at the second text of a joined pair; the model finds it itself.
            labels: a classifier's are [B], of a regression floating point.
        """
        self._begin(position_ids=position_ids, **kwargs)
        tokens = self._one_text_a_row(input_ids, attention_mask, position_ids)
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
    output = MaskedLMOutput

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """As transformers'; the head's weight is the embeddings, its bias grows with them."""
        found = super().resize_token_embeddings(*args, **kwargs)
        head, size = self.model.lm_head, self.config.vocab_size
        if len(head.bias) != size:
            bias = head.bias.detach()[:size]
            head.bias = nn.Parameter(nn.functional.pad(bias, (0, size - len(bias))))
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
    output = SequenceClassifierOutput
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

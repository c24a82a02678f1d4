"""``AutoModel``, ``AutoModelForMaskedLM`` and ``AutoModelForSequenceClassification``."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from .base import ClusterformerPreTrainedModel, as_asked, batch_first, share_of
from .configuration import ClusterformerConfig


class ClusterformerModel(ClusterformerPreTrainedModel):
    """The last layer's states: of the encoder, or of a language model's decoder.

    It is the whole model, whose head is not used: each of our folders loads.
    """

    families = (
        "clusterformer_lm",
        "clusterformer",
        "clusterformer_masked_lm",
        "clusterformer_classifier",
    )

    @classmethod
    def can_generate(cls) -> bool:
        """False."""
        return False

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> BaseModelOutput | tuple:
        """States [B, N, D] of the tokens, int64 [B, N].

        Args:
            attention_mask: 1 at real tokens, [B, N]; None: all but the padding symbol are real.
            position_ids: of a language model as :class:`ClusterformerForCausalLM` has them; of
                others, from 0 in each row.
            inputs_embeds, output_attentions: refused.
            output_hidden_states: also return the input and each layer's output.
            return_dict: False: a tuple.

        Raises:
            ValueError: what is refused.
        """
        self._begin(output_attentions, inputs_embeds, position_ids=position_ids, **kwargs)
        wanted = self._wants_states(output_hidden_states)
        if self.config.family == "clusterformer_lm":
            tokens = self._masked(input_ids, attention_mask)
            documents = self._documents(position_ids, tokens)
            x, extra = self.model.decoder.extract_features_scriptable(
                tokens, None, documents=documents
            )
            states = extra["inner_states"]
        else:
            tokens = self._masked(input_ids, attention_mask, position_ids)
            encoded = self.model.encoder(tokens, return_all_hiddens=wanted)
            x, states = encoded["encoder_out"][0].transpose(0, 1), encoded["encoder_states"]
        states = batch_first(states if wanted else None)
        out = BaseModelOutput(last_hidden_state=x, hidden_states=states)
        return as_asked(out, return_dict)


class ClusterformerForMaskedLM(ClusterformerPreTrainedModel):
    """A clustered encoder that guesses masked words."""

    families = ("clusterformer_masked_lm",)

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """As transformers'; the head's weight is the embeddings, its bias grows with them."""
        found = super().resize_token_embeddings(*args, **kwargs)
        head, size = self.model.lm_head, self.config.vocab_size
        if len(head.bias) != size:
            bias = head.bias.detach()[:size]
            head.bias = nn.Parameter(nn.functional.pad(bias, (0, size - len(bias))))
        head.weight = self.model.encoder.embed_tokens.weight
        return found

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> MaskedLMOutput | tuple:
        """Logits [B, N, vocabulary]; see :class:`ClusterformerModel`.

        Args:
            labels: int64 [B, N], -100 where there is no loss.
        """
        self._begin(output_attentions, inputs_embeds, position_ids=position_ids, **kwargs)
        wanted = self._wants_states(output_hidden_states)
        tokens = self._masked(input_ids, attention_mask, position_ids)
        encoded = self.model.encoder(tokens, return_all_hiddens=wanted)
        logits = self.model.lm_head(encoded["encoder_out"][0].transpose(0, 1))
        states, loss = batch_first(encoded["encoder_states"] if wanted else None), None
        if labels is not None:
            share = share_of(labels, **kwargs)
            loss = share * cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
            loss = self._with_clustering(loss, {"encoder": encoded["reports"]}, share)
        out = MaskedLMOutput(loss=loss, logits=logits, hidden_states=states)
        return as_asked(out, return_dict)


class ClusterformerForSequenceClassification(ClusterformerPreTrainedModel):
    """A clustered encoder, a pooling and a classifier; from a masked language model, the
    classifier starts anew."""

    families = ("clusterformer_classifier",)
    _keys_to_ignore_on_load_unexpected = [r"model\.lm_head\."]

    def __init__(self, config: ClusterformerConfig):
        if config.family == "clusterformer_masked_lm":
            config.architecture = "clusterformer_classifier"
        super().__init__(config)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput | tuple:
        """Logits [B, classes]; see :class:`ClusterformerModel`.

        Args:
            token_type_ids: 1 at the second text of a joined pair, 0 elsewhere; the model knows.
            labels: int64 [B]; of a regression, floating point.
        """
        self._begin(output_attentions, inputs_embeds, position_ids=position_ids, **kwargs)
        wanted = self._wants_states(output_hidden_states)
        tokens = self._masked(input_ids, attention_mask, position_ids)
        if token_type_ids is not None:
            self._check_types(token_type_ids, tokens)
        logits, extra = self.model(tokens, return_all_hiddens=wanted)
        loss = None
        if labels is not None:
            share = share_of(labels, **kwargs)
            loss = self.loss_function(pooled_logits=logits, labels=labels, config=self.config)
            loss = self._with_clustering(share * loss, extra["reports"], share)
        states = batch_first(extra["encoder_states"] if wanted else None)
        out = SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=states)
        return as_asked(out, return_dict)

    def _check_types(self, types: Tensor, tokens: Tensor) -> None:
        """Refuse other types than the model's own."""
        own = self.model.second(tokens) if self.config.form == "joined" else tokens * 0
        real = tokens.ne(self.config.pad_token_id)
        if not torch.equal(types[real], own[real]):
            raise ValueError(
                "token_type_ids are others than the model's own; allowed: None, or 0 up to the "
                "first text's end and, of joined pairs, 1 behind it"
            )

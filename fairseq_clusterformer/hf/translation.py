"""``AutoModelForSeq2SeqLM``: a translation model with clustered attention on both sides."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg

from .base import GeneratingModel
from .cache import ClusterformerCache


@dataclass
class EncoderOutput(BaseModelOutput):
    """As of transformers, and which tokens are real, bool [B, S]."""

    attention_mask: Tensor | None = None


@dataclass(eq=False, repr=False)
class Encoder:
    """fairseq's encoder as transformers' generation calls it, which reads its signature."""

    model: "ClusterformerForConditionalGeneration"

    def __call__(self, *args, **kwargs) -> EncoderOutput:
        return self.forward(*args, **kwargs)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> EncoderOutput:
        """States [B, N, D] of source sentences, int64 [B, N]."""
        self.model._begin(output_attentions)
        source, hidden, _ = self.model._encode(input_ids, attention_mask)
        return EncoderOutput(source, attention_mask=~hidden)


class ClusterformerForConditionalGeneration(GeneratingModel):
    """fairseq's Transformer over a clustered encoder and decoder."""

    families = ("clusterformer",)
    auto, form, hub_task = "AutoModelForSeq2SeqLM", "translation", "translation"

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Of both sides if they are one."""
        if self.model.decoder.embed_tokens is self.model.encoder.embed_tokens:
            self.model.decoder.embed_tokens = value
        self.model.encoder.embed_tokens = value

    def get_encoder(self, modality: str | None = None) -> Encoder:
        return Encoder(self)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """What the decoder reads to write the labels, int64 [B, N]: they, shifted by one."""
        first = labels.new_full((len(labels), 1), self.config.eos_token_id)
        shifted = torch.cat([first, labels[:, :-1]], dim=1)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        cache: ClusterformerCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> Seq2SeqLMOutput | tuple:
        """Logits of the target's next token [B, N, vocabulary].

        Args:
            input_ids: source sentences, int64 [B, S]; not needed with ``encoder_outputs``.
            decoder_input_ids: int64 [B, N], beginning with ``</s>``; None: made of the labels.
            decoder_attention_mask: 1 at real tokens, the last N of which count.
            encoder_outputs: of an earlier call.
            labels: ending in ``</s>``.
            output_hidden_states: the decoder's.
        """
        self._begin(position_ids=position_ids, **kwargs)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids is None; allowed: with labels")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        reports: list = []
        if encoder_outputs is None:
            source, hidden, reports = self._encode(input_ids, attention_mask, position_ids)
        else:
            source = encoder_outputs[0]
            real = getattr(encoder_outputs, "attention_mask", attention_mask)
            if real is None and input_ids is not None:
                real = input_ids.ne(self.config.pad_token_id)
            hidden = source.new_zeros(source.shape[:2]).bool() if real is None else real == 0
        encoded = {"encoder_out": [source.transpose(0, 1)], "encoder_padding_mask": [hidden]}
        if decoder_attention_mask is not None:
            decoder_attention_mask = decoder_attention_mask[:, -decoder_input_ids.size(1) :]
        tokens = self._masked(decoder_input_ids, decoder_attention_mask)
        cache = self._cache(cache, use_cache, output_hidden_states)
        x, states, of_decoder = self._decoded(tokens, cache, output_hidden_states, encoded)
        logits, loss = self.model.decoder.output_layer(x), None
        if labels is not None:
            loss = self._token_loss(logits, labels, of_decoder | {"encoder": reports}, **kwargs)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            cache=cache,
            decoder_hidden_states=states,
            encoder_last_hidden_state=source,
        )

    def _encode(
        self, input_ids: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor, list]:
        """States [B, S, D], the padding mask, bool [B, S], and the layers' reports."""
        out = self.model.encoder(self._one_text_a_row(input_ids, attention_mask, position_ids))
        states = out["encoder_out"][0].transpose(0, 1)
        return states, out["encoder_padding_mask"][0], out["reports"]

"""``AutoModelForCausalLM`` and ``AutoModelForSeq2SeqLM``: models that write."""

from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import signature
from os.path import commonprefix

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput
from transformers.utils import can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg

from .base import ClusterformerCache, ClusterformerPreTrainedModel

#: read by generate, which passes some on to every forward
_STEERING = {*vars(GenerationConfig()), *signature(GenerationMixin.generate).parameters}
_STEERING |= {*signature(GenerationMixin._assisted_decoding).parameters}
_STEERING -= {"output_attentions", "inputs_embeds"}


class GeneratingModel(ClusterformerPreTrainedModel, GenerationMixin):
    """With a decoder that writes, and a cache of bounded size.

    Also of every ``forward``: ``cache``, what an earlier call returned, which is used up;
    ``use_cache`` to return one. With a cache there are no gradients and no hidden states, and
    training has none; what asks for both raises ValueError.
    """

    _is_stateful = True  # a ring cannot be turned back: no assisted generation

    def _cache(self, cache: object, use_cache: bool | None, states: bool | None) -> object:
        """The cache that a forward reads and returns; None: it was not asked for."""
        if cache is None and not use_cache:
            return None
        if not isinstance(cache, ClusterformerCache | None):
            problem = "the model has one of its own, of bounded size"
            allowed = "ClusterformerCache, or use_cache=True"
            raise ValueError(f"cache is {type(cache).__name__}: {problem}; allowed: {allowed}")
        what = "use_cache is True" if cache is None else "cache is given"
        if self.training:
            raise ValueError(f"{what}, in training; allowed: in evaluation")
        if self._wants_states(states):
            raise ValueError(f"{what}, with output_hidden_states; allowed: one of both")
        return ClusterformerCache() if cache is None else cache

    def init_continuous_batching(self, *args, **kwargs):
        """Always raises ValueError."""
        raise ValueError("continuous batching: the cache has no pages; allowed: generate")

    generate_batch = init_continuous_batching

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs) -> dict:
        """As transformers', without what steers generation and was read before."""
        read = signature(self.forward).parameters
        given = {k: v for k, v in kwargs.items() if k in read or k not in _STEERING}
        return super().prepare_inputs_for_generation(input_ids, **given)

    def _get_stopping_criteria(
        self, generation_config, stopping_criteria, tokenizer=None, **kwargs
    ) -> StoppingCriteriaList:
        """As transformers', which can stop at a text only by tokenizers that spell every text."""
        stops, config = generation_config.stop_strings, copy(generation_config)
        if stops is not None and tokenizer is not None:
            config.stop_strings = None
        found = super()._get_stopping_criteria(config, stopping_criteria, tokenizer, **kwargs)
        if stops != config.stop_strings:
            found.append(StopsAtText([stops] if isinstance(stops, str) else stops, tokenizer))
        return found

    def get_output_embeddings(self) -> nn.Module | None:
        """The projection to the vocabulary; None of an adaptive softmax."""
        return self.model.decoder.output_projection

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.decoder.output_projection = new_embeddings

    def get_decoder(self) -> nn.Module:
        return self.model.decoder

    def _prepare_cache_for_generation(
        self, generation_config, model_kwargs: dict, *args, **kwargs
    ) -> None:
        """Give generation a cache of ours; raises ValueError for another, or an assistant's."""
        for name in ("cache_implementation", "cache_config", "is_assistant"):
            if value := getattr(generation_config, name, None):
                problem = "the model has a cache of its own, which cannot be turned back"
                raise ValueError(f"{name} is {value}: {problem}; allowed: None")
        if model_kwargs.get("cache") is not None:
            model_kwargs["cache"]._is_user_defined = True
        elif generation_config.use_cache:
            model_kwargs["cache"] = ClusterformerCache()

    def _prepare_position_ids_for_generation(self, *args, **kwargs) -> None:
        """None: each row counts its own real tokens."""


class StopsAtText(StoppingCriteria):
    """Ends a row whose newest token ends one of some texts, or lies behind its beginning."""

    def __init__(self, stops: list[str], tokenizer: PreTrainedTokenizerBase):
        self.stops, self._decode = stops, partial(tokenizer.decode, skip_special_tokens=True)
        self._length = 4 * max(map(len, stops), default=0) + 8  # tokens that hold such a text

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs) -> Tensor:
        rows = input_ids[:, -self._length :].tolist()
        return torch.tensor(list(map(self._stops, rows)), device=input_ids.device)

    def _stops(self, row: list[int]) -> bool:
        text = self._decode(row)
        new = len(commonprefix([self._decode(row[:-1]), text]))
        places = ((text.rfind(stop), len(stop)) for stop in self.stops)
        return any(place >= 0 and place + length > new for place, length in places)


class ClusterformerForCausalLM(GeneratingModel):
    """fairseq's language model over a clustered decoder; rows may be padded on either side."""

    families = ("clusterformer_lm",)
    auto, form, hub_task = "AutoModelForCausalLM", "text", "text-generation"

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: ClusterformerCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits of the next token [B, N, vocabulary], of an adaptive softmax log-probabilities;
        labels are shifted here by one.

        Args:
            attention_mask: with ``cache``, which ``input_ids`` follow, of all tokens so far.
            position_ids: [1 or B, N]; those of packed documents begin again at each, which is
                then read as a row of its own.
            logits_to_keep: logits of the last so many tokens, or at these indices; 0: of all.
        """
        self._begin(position_ids=position_ids, **kwargs)
        cache = self._cache(cache, use_cache, output_hidden_states)
        if cache is not None and attention_mask is not None:
            if attention_mask.size(1) != (right := cache.tokens + input_ids.size(1)):
                given, allowed = attention_mask.size(1), "those in the cache and the new ones"
                raise ValueError(f"attention_mask has {given} tokens; allowed: {right}, {allowed}")
            attention_mask = attention_mask[:, -input_ids.size(1) :]
        tokens, documents = self._tokens(input_ids, attention_mask, position_ids, cache)
        x, states, reports = self._decoded(tokens, cache, output_hidden_states, documents)
        if isinstance(logits_to_keep, int):
            if logits_to_keep:  # generation reads the end, also of rows that are padded there
                padding = tokens.eq(self.config.pad_token_id)
                places = torch.arange(x.size(1), device=x.device).masked_fill(padding, 0)
                x = x.take_along_dim(places.cummax(1).values.unsqueeze(-1), 1)
            logits_to_keep = slice(-logits_to_keep, None)
        decoder, x, loss = self.model.decoder, x[:, logits_to_keep], None
        if decoder.adaptive_softmax is None:
            logits = decoder.output_layer(x)
        else:
            logits = decoder.adaptive_softmax.get_log_prob(x, None)
        if labels is not None:
            loss = self._token_loss(logits[:, :-1], labels[:, 1:], reports, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache, hidden_states=states)


@dataclass
class EncoderOutput(BaseModelOutput):
    """As of transformers, and which tokens are real, bool [B, S]."""

    attention_mask: Tensor | None = None


class ClusterformerForConditionalGeneration(GeneratingModel):
    """fairseq's Transformer over a clustered encoder and decoder."""

    families = ("clusterformer",)
    auto, form, hub_task = "AutoModelForSeq2SeqLM", "translation", "translation"

    def _prepare_text_encoder_decoder_kwargs_for_generation(
        self, inputs_tensor: Tensor, model_kwargs: dict, **kwargs
    ) -> dict:
        source, hidden, _ = self._encode(inputs_tensor, model_kwargs.get("attention_mask"))
        return model_kwargs | {"encoder_outputs": EncoderOutput(source, attention_mask=~hidden)}

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
        tokens, _ = self._tokens(decoder_input_ids, decoder_attention_mask)
        cache = self._cache(cache, use_cache, output_hidden_states)
        x, states, found = self._decoded(tokens, cache, output_hidden_states, encoded=encoded)
        logits, loss = self.model.decoder.output_layer(x), None
        if labels is not None:
            loss = self._token_loss(logits, labels, found | {"encoder": reports}, **kwargs)
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
        out = self.model.encoder(self._tokens(input_ids, attention_mask, position_ids)[0])
        states = out["encoder_out"][0].transpose(0, 1)
        return states, out["encoder_padding_mask"][0], out["reports"]

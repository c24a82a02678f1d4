"""``AutoModelForCausalLM``: a language model with clustered attention and a bounded cache."""

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple
from transformers.utils.deprecation import deprecate_kwarg

from .base import GeneratingModel
from .cache import ClusterformerCache


class ClusterformerForCausalLM(GeneratingModel):
    """fairseq's language model over a clustered decoder. Rows of a batch are those rows alone,
    whichever side they are padded on."""

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
        if cache is not None:
            attention_mask = _newest(attention_mask, input_ids, cache)
        tokens = self._masked(input_ids, attention_mask)
        documents = self._documents(position_ids, tokens, cache)
        x, states, reports = self._decoded(
            tokens, cache, output_hidden_states, documents=documents
        )
        if isinstance(logits_to_keep, int):
            if logits_to_keep:
                x = _carried(x, tokens.eq(self.config.pad_token_id))
            logits_to_keep = slice(-logits_to_keep, None)
        decoder, x, loss = self.model.decoder, x[:, logits_to_keep], None
        if decoder.adaptive_softmax is None:
            logits = decoder.output_layer(x)
        else:
            logits = decoder.adaptive_softmax.get_log_prob(x, None)
        if labels is not None:
            loss = self._token_loss(logits[:, :-1], labels[:, 1:], reports, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, cache=cache, hidden_states=states)


def _carried(x: Tensor, padding: Tensor) -> Tensor:
    """Features, at padding those before it: of rows padded right, generation reads the end."""
    places = torch.arange(x.size(1), device=x.device).masked_fill(padding, 0).cummax(1).values
    return x.gather(1, places.unsqueeze(-1).expand_as(x))


def _newest(mask: Tensor | None, tokens: Tensor, cache: ClusterformerCache) -> Tensor | None:
    """The part of a mask over all tokens so far that is of the tokens."""
    if mask is None:
        return None
    if mask.size(1) != (right := cache.tokens + tokens.size(1)):
        allowed = f"{right}, which are those in the cache and the new ones"
        raise ValueError(f"attention_mask has {mask.size(1)} tokens; allowed: {allowed}")
    return mask[:, -tokens.size(1) :]

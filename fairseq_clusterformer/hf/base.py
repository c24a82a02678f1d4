"""What all our models share with ``transformers``: building, loading, tying, a cache."""

from collections.abc import Iterable, Iterator
from functools import partial
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel

from fairseq_clusterformer.attention import Batch
from fairseq_clusterformer.attention.past import each, tensors
from fairseq_clusterformer.checkpoints.bundle import distinct
from fairseq_clusterformer.criterions.clustering_losses import ClusteringLossConfig, weighted
from fairseq_clusterformer.metrics.clusters import summary
from fairseq_clusterformer.models.decoder import decode
from fairseq_clusterformer.models.stack import State

from .configuration import ClusterformerConfig, build_model

#: read by forward, besides its named arguments
_READ = {"num_items_in_batch", "position_ids"}
#: says again how rows are packed, which position_ids say
_PACKED = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
_REFUSED = {
    "output_attentions": "True: clustered attention never makes a matrix of weights; allowed: "
    "False (fairseq_clusterformer.visual draws which tokens cluster)",
    "inputs_embeds": "given; allowed: input_ids, which are embedded here",
}


class ClusterformerCache(Cache):
    """What a decoder keeps from token to token: rings of W keys and values for each cluster. Its
    size is bounded however long the text, except for the kind full and an index."""

    is_linear = (False,)  # of one layer, as if all were: what the cache has not seen is read
    is_croppable = False  # what a ring has dropped is gone

    def __init__(self):
        super().__init__(layers=[])
        self.reset()

    def reset(self) -> None:
        #: a past, or what fairseq's modules keep, by their names
        self.state: State = {}
        self.tokens = 0  # how many were seen, padding included

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in tensors(self.state))

    @property
    def real(self) -> Tensor | int:
        """How many tokens of each row were seen without padding, int64 [B, 1], or of all."""
        return self.state.get("seen", {}).get("real", self.tokens)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that were seen, whether or not their keys are still kept."""
        return self.tokens

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow a beam search's choice of hypotheses, int64 [B]."""
        self.state = each(self.state, lambda t: t.index_select(0, beam_idx.to(t.device)))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.state = each(self.state, lambda t: t.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Always raises ValueError."""
        problem = f"crop({tokens_to_remove}): a ring has dropped its oldest keys and"
        raise ValueError(f"{problem} cannot be turned back; allowed: no assistant")

    def __repr__(self) -> str:
        return f"ClusterformerCache({self.tokens} tokens, {self.num_bytes:,} bytes)"


class ClusterformerPreTrainedModel(PreTrainedModel):
    """A fairseq model in ``model``, whose parameters have fairseq's names behind ``model.``.

    Arguments that every ``forward`` takes, documented here alone: ``input_ids`` int64 [B, N];
    ``attention_mask`` [B, N], 1 at real tokens (None: all but the padding symbol);
    ``position_ids``, from 0 in each row; ``output_hidden_states`` to return the input and each
    layer's output too, [B, N, D] each; ``labels`` int64 [B, N], -100 where there is no loss;
    ``return_dict=False`` for a tuple. An argument that says something and is not read raises
    ValueError.
    """

    config: ClusterformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ClusterformerDecoderLayer", "ClusterformerEncoderLayer"]
    families: tuple[str, ...] = ()  # of architectures that the class is for
    auto: str  # the Auto class that loads it
    form: str  # what its tokenizer reads, of `fairseq_clusterformer.data.tokenizer_json.FORMS`
    hub_task: str  # the hub's word for what it does

    def __init__(self, config: ClusterformerConfig):
        if config.family not in self.families:
            what = f"architecture is {config.architecture}, of {config.family}"
            allowed = " or ".join(f"one of {family}" for family in self.families)
            raise ValueError(f"{what}; allowed in {type(self).__name__}: {allowed}")
        super().__init__(config)
        self.model = build_model(config)
        self._steps = 0  # of an optimizer; what batches observed is applied between them
        tied = distinct(dict(self.named_parameters(remove_duplicate=False)))[1]
        self._tied_weights_keys, config.tie_word_embeddings = tied or None, bool(tied)
        self.post_init()
        if self.can_generate():  # as in fairseq: padding is no word
            self.generation_config.suppress_tokens = [config.pad_token_id]

    def _init_weights(self, *_: object) -> None:
        """fairseq's constructors did it, on the CPU: what a checkpoint lacks keeps its values."""

    _move_missing_keys_from_meta_to_device = _init_weights

    def state_dict(self, *args, **kwargs):
        """As of every module, without what is no tensor: fairseq's training alone needs it."""
        state = super().state_dict(*args, **kwargs)
        for name in [name for name, value in state.items() if not isinstance(value, Tensor)]:
            del state[name]
        return state

    def _stacks(self) -> Iterator[nn.Module]:
        """The encoder and the decoder, as far as there are any."""
        stacks = (getattr(self.model, name, None) for name in ("encoder", "decoder"))
        return (stack for stack in stacks if stack is not None)

    def get_input_embeddings(self) -> nn.Embedding:
        """The encoder's table, or the decoder's where there is no encoder."""
        return next(self._stacks()).embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Of both sides if they are one."""
        old = self.get_input_embeddings()
        for stack in self._stacks():
            if stack.embed_tokens is old:
                stack.embed_tokens = value

    def resize_token_embeddings(self, *args, **kwargs):
        """As transformers', of one table of embeddings; others raise ValueError."""
        one = self.config.source_vocab_size is None
        if not (one and isinstance(self.get_input_embeddings(), nn.Embedding)):
            problem = "the embeddings are adaptive, or source and target have their own"
            raise ValueError(f"resize_token_embeddings: {problem}; allowed: one table")
        return super().resize_token_embeddings(*args, **kwargs)

    def _set_gradient_checkpointing(
        self, enable=True, gradient_checkpointing_func=checkpoint, every_n_layers=1
    ) -> None:
        layers = [layer for stack in self._stacks() for layer in stack.layers.children()]
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = enable and number % every_n_layers == 0
            vars(layer).pop("forward", None)
            if layer.gradient_checkpointing:
                layer.forward = partial(gradient_checkpointing_func, type(layer).forward, layer)

    def _begin(self, output_attentions: bool | None = None, **others: object) -> None:
        """Refuse arguments that say something and are not read; begin an update in training."""
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        given = others | {"output_attentions": output_attentions or None}
        for name, value in sorted(given.items()):
            if value is None or name in _READ or (name == "use_cache" and value is False):
                continue
            if name in _REFUSED:
                raise ValueError(f"{name} is {_REFUSED[name]}")
            says_nothing = torch.is_tensor(value) and (
                (name == "token_type_ids" and not value.any())
                or (name.endswith("head_mask") and bool((value == 1).all()))
            )
            if not says_nothing and (name not in _PACKED or given.get("position_ids") is None):
                allowed = "with position_ids" if name in _PACKED else "None"
                raise ValueError(f"{name} is given, which is not read; allowed: {allowed}")
        if self.training and torch.is_grad_enabled():
            self._begin_update()

    @torch.compiler.disable
    def _begin_update(self) -> None:
        """Apply what was observed before the last step of an optimizer, if it was not yet."""
        _TRAINED.add(self)
        self.model.set_num_updates(self.config.updates + self._steps + 1)

    def _tokens(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        cache: ClusterformerCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Tokens with fairseq's padding where the mask is 0, and numbers of documents packed in
        rows behind the cache, int64 [B, N]; None: none are. Encoders cannot keep them apart."""
        tokens = input_ids
        if attention_mask is not None:
            tokens = tokens.masked_fill(attention_mask == 0, self.config.pad_token_id)
        if position_ids is None:
            return tokens, None
        real = tokens.ne(self.config.pad_token_id)
        if position_ids.dim() == 2 and position_ids.size(1) == tokens.size(1):
            found = position_ids.expand_as(tokens)
            in_row = real.cumsum(1) - 1 + (0 if cache is None else cache.real)
            if torch.equal(in_row[real], found[real]):
                return tokens, None
            documents = (found.eq(0) & real).cumsum(1)  # each begins at position 0
            in_document = Batch(~real, documents).positions(tokens)
            if cache is None and torch.equal(in_document[real], found[real]):
                if self.config.family == "clusterformer_lm":
                    return tokens, documents
                what = "position_ids say that rows hold several documents, which this model cannot"
                raise ValueError(f"{what} keep apart; allowed: one a row")
        raise ValueError(
            "position_ids count neither each row's tokens from 0 nor, without a cache, those "
            "of each document in it; allowed: None, or one of these"
        )

    def _wants_states(self, output_hidden_states: bool | None) -> bool:
        return bool(output_hidden_states or self.config.output_hidden_states)

    def _decoded(
        self,
        tokens: Tensor,
        cache: ClusterformerCache | None,
        output_hidden_states: bool | None,
        documents: Tensor | None = None,
        encoded: dict[str, list[Tensor]] | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, dict[str, list]]:
        """The decoder's features [B, N, D]; without a cache also wanted states, and reports."""
        decoder = self.model.decoder
        if cache is not None:
            return decode(decoder, tokens, cache, encoded), None, {}
        x, extra = decoder.extract_features_scriptable(tokens, encoded, documents=documents)
        wanted = self._wants_states(output_hidden_states)
        return x, batch_first(extra["inner_states"], wanted), extra["reports"]

    def _token_loss(
        self,
        logits: Tensor,
        labels: Tensor,
        reports: dict[str, list],
        num_items_in_batch: Tensor | int | None = None,
        **_: object,
    ) -> Tensor:
        """Cross-entropy of logits [B, N, V] at labels [B, N] but -100, and the clusters'."""
        items = labels.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch
        loss = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        return self._with_clustering(loss / items, reports, share_of(labels, num_items_in_batch))

    def _with_clustering(
        self, loss: Tensor, reports: dict[str, list], share: Tensor | float = 1.0
    ) -> Tensor:
        """The task's loss; in training with the gradient of the clusters' too (CF22 eq. 17)."""
        clustering = summary(reports) if self.training else None
        if clustering is None:
            return loss
        weights = ClusteringLossConfig()
        vars(weights).update(self.config.criterion)
        total = weights.task_loss_weight * loss + share * weighted(clustering, weights)
        # the value of one, the gradient of all: those may be below 0, which no log is to show
        return loss.detach() + (total - total.detach())


_TRAINED: WeakSet[ClusterformerPreTrainedModel] = WeakSet()


def _count(optimizer: Optimizer, *_: object) -> None:
    """Called after each step of any optimizer of torch: count those of our models."""
    moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model in _TRAINED:
        model._steps += any(id(parameter) in moved for parameter in model.parameters())


register_optimizer_step_post_hook(_count)


def share_of(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor | float:
    """The part of an update that a batch is, by its labels. The Trainer adds up the losses of an
    update where it says how many labels all batches have; None: it averages them."""
    return 1.0 if num_items_in_batch is None else labels.ne(-100).sum() / num_items_in_batch


def batch_first(states: Iterable[Tensor], wanted: bool) -> tuple[Tensor, ...] | None:
    """States [B, N, D] of fairseq's [N, B, D], if they are wanted."""
    return tuple(state.transpose(0, 1) for state in states) if wanted else None

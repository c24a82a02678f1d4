"""fairseq's criterions plus the clustering losses, by the names ``clusterformer_*``."""

import math
from dataclasses import dataclass

import torch
from fairseq.criterions import label_smoothed_cross_entropy as smoothed
from fairseq.criterions import register_criterion
from fairseq.criterions.adaptive_loss import AdaptiveLoss, AdaptiveLossConfig
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, nll_loss

from fairseq_clusterformer.precision import at_least_float32

from .clustering_losses import ClusteringLossConfig, ClusteringLosses, SummedLogs, weight

LOGITS, TOKENS = 1 << 20, 512  # of a chunk: about so many logits, and no fewer tokens


def cross_entropy_in_chunks(
    features: Tensor, output: nn.Linear, target: Tensor, *, ignore_index: int, smoothing: float = 0
) -> tuple[Tensor, Tensor]:
    """Sums over tokens of the loss and, without a gradient, of the negative log-likelihood: those
    of fairseq's ``label_smoothed_nll_loss``, in float32 at least; of features [..., D], of any
    floating dtype, and targets int64 [...]. ``smoothing`` is the share of a token's target that is
    divided among all words.

    Logits of all tokens never exist: the forward pass makes of a chunk's the gradients of features
    and weights, which the backward pass scales. torch's own ``linear_cross_entropy`` sums in half
    precision, where sums overflow, and smooths no labels.
    """
    learns, given = torch.is_grad_enabled(), (features.flatten(0, -2), output.weight, output.bias)
    return _Sums.apply(learns, target.flatten(), ignore_index, smoothing, *given)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, learns, target, ignore_index, smoothing, features, weight, bias):
        words = len(weight)
        each = smoothing / (words - 1)  # of the target, for each word
        right = 1 - smoothing - each
        wanted = [learns and needed for needed in ctx.needs_input_grad[4:]]
        d_features = torch.empty_like(features) if wanted[0] else None
        d_weight, d_bias = (
            torch.zeros_like(at_least_float32(x)) if needed else None
            for x, needed in zip((weight, bias), wanted[1:], strict=True)
        )
        nll = of_all = at_least_float32(features.new_zeros(()))
        size = max(LOGITS // words, TOKENS)
        for at, (x, own) in enumerate(zip(features.split(size), target.split(size), strict=True)):
            log_probs = at_least_float32(linear(x, weight, bias)).log_softmax(-1)
            nll = nll + nll_loss(log_probs, own, ignore_index=ignore_index, reduction="sum")
            ignored = (own == ignore_index).unsqueeze(-1)
            own = own.unsqueeze(-1).masked_fill(ignored, 0)
            if smoothing:
                of_all = of_all + log_probs.sum(-1, True).masked_fill_(ignored, 0.0).sum()
            if not any(wanted):
                continue
            d_logits = log_probs.exp_()
            d_logits.scatter_add_(-1, own, d_logits.new_full((), -right).expand_as(own))
            d_logits = d_logits.sub_(each).masked_fill_(ignored, 0.0).to(x.dtype)
            if d_features is not None:
                torch.mm(d_logits, weight, out=d_features[at * size :][: len(x)])
            if d_weight is not None:
                d_weight += d_logits.T @ x
            if d_bias is not None:
                d_bias += d_logits.sum(0, dtype=d_bias.dtype)
        ctx.save_for_backward(d_features, d_weight, d_bias)
        ctx.dtypes = [None if x is None else x.dtype for x in (features, weight, bias)]
        ctx.mark_non_differentiable(nll)
        return right * nll - each * of_all, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_loss, _):
        found = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        scaled = (None if d is None else (d * d_loss).to(dtype) for d, dtype in found)
        return None, None, None, None, *scaled


class OutputInChunks:
    """Mixin before fairseq's cross-entropies: it reads features, and makes the logits itself."""

    def forward(self, model, sample, reduce=True):
        output = getattr(getattr(model, "decoder", None), "output_projection", None)
        if (
            reduce
            and type(output) is nn.Linear
            and not getattr(self, "report_accuracy", False)
            # DistributedDataParallel takes weights that are read from here for unused ones
            and not getattr(model, "find_unused_parameters", False)
        ):
            sample = {**sample, "net_input": {**sample["net_input"], "features_only": True}}
        return super().forward(model, sample, reduce=reduce)

    def compute_loss(self, model, net_output, sample, reduce=True):
        """As fairseq's: (loss, negative log-likelihood), of logits or of features."""
        if not sample["net_input"].get("features_only"):
            return super().compute_loss(model, net_output, sample, reduce=reduce)
        first = getattr(self, "ignore_prefix_size", 0)
        return cross_entropy_in_chunks(
            net_output[0][:, first:],
            model.decoder.output_projection,
            model.get_targets(sample, net_output)[:, first:],
            ignore_index=self.padding_idx,
            smoothing=getattr(self, "eps", 0.0),
        )


@dataclass
class ClusterformerCrossEntropyConfig(ClusteringLossConfig, CrossEntropyCriterionConfig):
    """Options of fairseq's ``cross_entropy``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_cross_entropy", dataclass=ClusterformerCrossEntropyConfig)
class ClusterformerCrossEntropy(ClusteringLosses, OutputInChunks, CrossEntropyCriterion):
    """Cross-entropy plus the clustering losses."""


@dataclass
class ClusterformerAdaptiveLossConfig(ClusteringLossConfig, AdaptiveLossConfig):
    """Options of fairseq's ``adaptive_loss``, and the weights of CF22 eq. 17."""


@register_criterion("clusterformer_adaptive_loss", dataclass=ClusterformerAdaptiveLossConfig)
class ClusterformerAdaptiveLoss(ClusteringLosses, AdaptiveLoss):
    """The loss of the adaptive softmax plus the clustering losses."""


@dataclass
class ClusterformerMaskedLMLossConfig(ClusteringLossConfig, MaskedLmConfig):
    """Options of fairseq's ``masked_lm``, and the weights of CF22 eq. 17."""


class _NextSentenceLoss(MaskedLmLoss):
    """Cross-entropy of masked words and, of pairs, of whether the second text follows: the sum of
    both means (Devlin et al. 2019). ``loss`` in the log is that of the words."""

    def forward(self, model, sample, reduce=True):
        loss, sample_size, log = super().forward(model, sample, reduce=reduce)
        if "follows" in sample:
            # `model` is the stand-in of ClusteringLosses, which keeps what it returned
            logits = at_least_float32(model.net_output[1]["next_sentence"])
            follows = sample["follows"]
            ours = cross_entropy(logits, follows, reduction="sum")
            loss = loss + sample_size * ours / len(follows)
            log |= {
                "pairs": len(follows),
                "next_sentence_loss": ours.detach(),
                "next_sentence_right": (logits.argmax(-1) == follows).sum(),
            }
        return loss, sample_size, log

    @staticmethod
    def reduce_metrics(logging_outputs) -> None:
        MaskedLmLoss.reduce_metrics(logging_outputs)
        total = SummedLogs.totals(logging_outputs)
        if pairs := total["pairs"]:
            loss, right = total["next_sentence_loss"] / math.log(2), total["next_sentence_right"]
            metrics.log_scalar("next_sentence_loss", loss / pairs, pairs, round=3)
            metrics.log_scalar("next_sentence_accuracy", right / pairs, pairs, round=3)


@register_criterion("clusterformer_masked_lm", dataclass=ClusterformerMaskedLMLossConfig)
class ClusterformerMaskedLMLoss(ClusteringLosses, _NextSentenceLoss):
    """Cross-entropy of masked words, and of pairs that of the next sentence, plus the clustering
    losses."""


@dataclass
class ClusterformerLabelSmoothedCrossEntropyConfig(
    ClusteringLossConfig, smoothed.LabelSmoothedCrossEntropyCriterionConfig
):
    """Options of fairseq's ``label_smoothed_cross_entropy``, and the weights of CF22 eq. 17.

    mu and nu are smaller than elsewhere: they also pull the tokens of a sentence together, which
    at 0.1 costs 2 to 3 BLEU on Multi30k (examples/translation).
    """

    clustering_loss_weight: float = weight(0.01, "mu: weight of the clustering loss (eq. 6)")
    centroid_sorting_loss_weight: float = weight(0.01, "nu: weight of centroid sorting (eq. 11)")


@register_criterion(
    "clusterformer_label_smoothed_cross_entropy",
    dataclass=ClusterformerLabelSmoothedCrossEntropyConfig,
)
class ClusterformerLabelSmoothedCrossEntropy(
    ClusteringLosses, OutputInChunks, smoothed.LabelSmoothedCrossEntropyCriterion
):
    """Label smoothing plus the clustering losses of encoder and decoder."""

    side_statistics = ("encoder_cluster_effective", "decoder_cluster_effective")

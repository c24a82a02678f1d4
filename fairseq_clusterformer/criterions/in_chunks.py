"""Cross-entropy of a linear map's outputs, chunk by chunk: logits of all tokens never exist.

The gradient of a chunk's logits is known as soon as its loss is. So the forward pass makes of it
the gradients of features and weights, and the backward pass scales these: nothing is computed
twice. torch's own ``linear_cross_entropy`` does the same, but it sums in half precision, where
sums overflow, and smooths no labels.

Shape letters: D width, V words.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, nll_loss

from fairseq_clusterformer.precision import at_least_float32

LOGITS, TOKENS = 1 << 20, 512  # of a chunk: about so many logits, and no fewer tokens


def cross_entropy_in_chunks(
    features: Tensor,
    output: nn.Linear,
    target: Tensor,
    *,
    ignore_index: int,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Sums over tokens of the loss and, without a gradient, of the negative log-likelihood: those
    of fairseq's ``label_smoothed_nll_loss``, in float32 at least; of features [..., D], of any
    floating dtype, and targets int64 [...]. ``smoothing`` is the share of a token's target that is
    divided among all words."""
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
        loss = nll = at_least_float32(features.new_zeros(()))
        size = max(LOGITS // words, TOKENS)
        for at, (x, own) in enumerate(zip(features.split(size), target.split(size), strict=True)):
            log_probs = at_least_float32(linear(x, weight, bias)).log_softmax(-1)
            of_own = nll_loss(log_probs, own, ignore_index=ignore_index, reduction="sum")
            ignored = (own == ignore_index).unsqueeze(-1)
            own = own.unsqueeze(-1).masked_fill(ignored, 0)
            nll, loss = nll + of_own, loss + right * of_own
            if smoothing:
                loss = loss - each * log_probs.sum(-1, True).masked_fill_(ignored, 0.0).sum()
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
        return loss, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_loss, _):
        found = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        scaled = (None if d is None else (d * d_loss).to(dtype) for d, dtype in found)
        return None, None, None, None, *scaled


class OutputInChunks:
    """Mixin before fairseq's cross-entropies: it reads features, and makes the logits itself."""

    def forward(self, model, sample, reduce=True):
        if reduce and not getattr(self, "report_accuracy", False) and _is_linear(model):
            inputs = {**sample["net_input"], "features_only": True}
            sample = {**sample, "net_input": inputs}
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


def _is_linear(model) -> bool:
    """Whether all that follows a model's features is a linear map, which may be read from here:
    DistributedDataParallel takes it for unused where it looks for what is."""
    output = getattr(getattr(model, "decoder", None), "output_projection", None)
    return type(output) is nn.Linear and not getattr(model, "find_unused_parameters", False)

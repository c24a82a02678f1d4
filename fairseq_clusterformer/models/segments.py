"""``--truncated-bptt``: training on rows that are longer than memory allows.

A row is read in segments. Each sees what decoding would have kept of those before, and gradients
end where it begins (truncated backpropagation through time). An update sums the gradients of all
segments, and holds the activations of one.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import nn

from fairseq_clusterformer.compat.wrapping import mends
from fairseq_clusterformer.errors import refused

from .attention import SegmentState
from .options import flag

Result = tuple[Any, int, dict[str, Any]]  # loss, sample size, what to log
_WITHOUT = ("separate_documents", "checkpoint_activations", "offload_activations")
_WITHOUT += ("decoder_layerdrop",)


def check(args: Namespace, decoder: nn.Module) -> None:
    """Raises ValueError: options that do not go with segments."""
    size = args.truncated_bptt
    if size == 1:
        raise refused("--truncated-bptt", 1, "0, or 2 tokens or more")
    for layer in decoder.all_layers():
        for router in layer.self_attn.routers:
            if not router.rule.can_step:
                raise ValueError(f"--truncated-bptt is {size}, and {router.why_no_steps}")
    for name in _WITHOUT:
        if given := getattr(args, name, None):
            raise refused(flag(name), f"{given}, --truncated-bptt {size}", "one of them")


def segments(sample: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """Batches of so many tokens of each row; a last one of a single token joins the one before."""
    inputs, state = sample["net_input"], SegmentState()
    length = inputs["src_tokens"].size(1)
    for first, end in pairwise([*range(0, length - 1, size), length]):
        lengths = (inputs["src_lengths"] - first).clamp(0, end - first)
        yield {
            **sample,
            "net_input": {
                "src_tokens": inputs["src_tokens"][:, first:end],
                "src_lengths": lengths,
                "incremental_state": state,
            },
            "target": sample["target"][:, first:end].contiguous(),
            "ntokens": int(lengths.sum()),
        }


def _by_segments(step: Callable, self, sample, model, criterion, *args, **kwargs) -> Result:
    """As fairseq's step; if the model says so by segments, with sums of what each returns."""

    def result(part: dict) -> Result:
        loss, *others = step(self, part, model, criterion, *args, **kwargs)
        return loss.detach(), *others  # a graph keeps activations

    size = getattr(model, "truncated_bptt", 0)
    if not size or not sample or sample["net_input"]["src_tokens"].size(1) <= size:
        return step(self, sample, model, criterion, *args, **kwargs)
    *earlier, last = segments(sample, size)
    with getattr(model, "no_sync", nullcontext)():  # workers exchange gradients once
        results = [result(part) for part in earlier]
    losses, sizes, logged = zip(*results, result(last), strict=True)
    total = {name: sum(log[name] for log in logged) for name in logged[0]}
    total["nsentences"] = logged[0]["nsentences"]  # of the same rows
    if getattr(criterion, "sentence_avg", False):  # a loss counts by rows: each segment has all
        total["sample_size"] = logged[0]["sample_size"]
        return sum(losses), sizes[0], total
    return sum(losses), sum(sizes), total


for _step in ("train_step", "valid_step"):
    mends(LanguageModelingTask, _step)(_by_segments)

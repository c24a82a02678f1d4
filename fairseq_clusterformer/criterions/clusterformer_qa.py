"""``--criterion clusterformer_qa``."""

import math
from dataclasses import dataclass

import torch
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fairseq_clusterformer.answers import AnswerLogits, ranked_answers, ranking_options
from fairseq_clusterformer.errors import refused
from fairseq_clusterformer.metrics.answers import score_facts, score_hotpotqa, score_v2
from fairseq_clusterformer.models.options import option

from .clustering_losses import ClusteringLossConfig, ClusteringLosses, SummedLogs

PARTS = ("span", "long", "type", "support", "candidate")
LONG = ("long_gold", "long_found", "long_right")
ANSWERS = ("em", "f1", "answerable_accuracy")
FACTS = ("sp_em", "sp_f1", "joint_em", "joint_f1")
SUMS = ("scored", *ANSWERS, *LONG, "facts_scored", *FACTS)
MARGINALS = ("joint", "apart")


@dataclass
class ClusterformerQAConfig(ClusteringLossConfig, FairseqDataclass):
    """Options of the answers, and the weights of CF22 eq. 17."""

    span_marginal: str = option(
        "joint",
        "what is summed over gold spans: joint (their probabilities) or apart (starts, and ends)",
        choices=MARGINALS,
    )


def marginal_nll(logits: Tensor, gold: Tensor) -> Tensor:
    """- log of the probability of all that is right together, in nats, [B]; 0 where nothing is.
    Of logits [B, N], -inf where nothing can be right, and what is right, bool [B, N]."""
    right = logits.masked_fill(~gold, -torch.inf).logsumexp(-1)
    return torch.where(gold.any(-1), logits.logsumexp(-1) - right, 0.0)


def span_nll(start: Tensor, end: Tensor, spans: Tensor, marginal: str) -> Tensor:
    """- log of the probability that gold spans have together, in nats, [B]; 0 where none is. Of
    logits [B, N], -inf where no span can start or end, and first and last tokens, each pair once,
    int64 [B, A, 2]; -1: no more. By "joint", a span's is that of its start times that of its end;
    by "apart", starts and ends are summed each by themselves (Clark and Gardner, 2018)."""
    some = spans[..., 0] >= 0
    places = spans.clamp(min=0).unbind(-1)
    if marginal == "apart":
        # tokens, for two spans may share one
        gold = (
            torch.zeros_like(start).scatter_add(-1, place, some.to(start)) > 0 for place in places
        )
        return sum(map(marginal_nll, (start, end), gold))
    pairs = zip((start, end), places, strict=True)
    right = sum(logits.log_softmax(-1).gather(-1, place) for logits, place in pairs)
    right = right.masked_fill(~some, -torch.inf).logsumexp(-1)
    return torch.where(some.any(-1), -right, 0.0)


def whole_words(spans: Tensor, bounds: Tensor) -> Tensor:
    """Spans of tokens, int64 [B, A, 2], as spans of whole words, each pair once, by the first and
    the last token of each token's word, int64 [B, N, 2]."""
    if not bounds.size(1):
        return spans
    places = spans.clamp(min=0)
    found = torch.stack([bounds[..., i].gather(1, places[..., i]) for i in range(2)], dim=-1)
    same = (found.unsqueeze(2) == found.unsqueeze(1)).all(-1) & (spans[..., 0] >= 0).unsqueeze(1)
    again = same.tril(-1).any(-1)  # as one before
    return torch.where((spans >= 0) & ~again.unsqueeze(-1), found, -1)


def with_slots(logits: AnswerLogits, spans: Tensor, types: Tensor) -> tuple[Tensor, ...]:
    """Logits of starts and ends [B, 4 + N] behind those of the slots, and the right spans, int64
    [B, A + 4, 2], of which those of slots are last; ``types`` as a reader's targets have them."""
    number = logits.slots.size(-1)
    start = torch.cat([logits.slots[:, 0], logits.start], dim=1)
    end = torch.cat([logits.slots[:, 1], logits.end], dim=1)
    right = types[:, 1:] & ~types.all(-1, keepdim=True)
    slots = torch.where(right, torch.arange(number, device=types.device), -1)
    spans = torch.where(spans >= 0, spans + number, -1)
    return start, end, torch.cat([spans, slots.unsqueeze(-1).expand(-1, -1, 2)], dim=1)


def answer_parts(
    logits: AnswerLogits, spans: Tensor, types: Tensor, marginal: str = "joint"
) -> dict[str, tuple[Tensor, Tensor]]:
    """Losses of the short answer and of its type in nats, [B], and which questions have a target
    for each, bool [B], by ``spans`` and ``types`` of a reader's targets. Both together are - log
    of the probability of the right answer. Of logits that share softmaxes, the types are among the
    spans."""
    start, end = logits.start, logits.end
    if logits.slots is not None:
        spans = spans if logits.bounds is None else whole_words(spans, logits.bounds)
        start, end, spans = with_slots(logits, spans, types)
        types = torch.ones_like(types)
    some = (spans >= 0).flatten(1).any(-1)
    return {
        "span": (span_nll(start, end, spans, marginal), some),
        "type": (marginal_nll(logits.type, types), ~types.all(-1)),
    }


class QACriterion(SummedLogs, FairseqCriterion):
    """Loss of a short answer's start and end, of the long answer's paragraph, and of the type.

    Each part is the cross-entropy of all right choices together. Where types share the spans'
    softmaxes, it also logs ``nll`` of all gold answers together, and in validation ``nll_one`` of
    the last one listed alone, XLQA's NLL. Of a model that says which sentences support the answer,
    the loss is the mean of five parts: start, end, paragraph, type and sentences. Validation logs
    scores over the questions whose answers are known: of SQuAD 2.0, of long answers, XLQA's AvNA,
    and HotpotQA's of sentences. Raises ValueError: a task that is not ``clusterformer_qa``.
    """

    def __init__(self, task, span_marginal: str):
        super().__init__(task)
        if not hasattr(task.cfg, "max_answer_length"):
            raise refused("--task", task.cfg._name, "clusterformer_qa with its criterion")
        self.span_marginal = span_marginal

    def forward(self, model, sample, reduce=True):
        logits, _ = model(**sample["net_input"])
        target = sample["target"]
        types, shared, facts = target["types"], logits.slots is not None, logits.sentences
        long = marginal_nll(logits.paragraph, target["paragraphs"])
        # of each part: its loss [B], and whether the question has a target for it, bool [B]
        parts = dict.fromkeys(PARTS, (torch.zeros_like(long), torch.zeros_like(long).bool()))
        parts["long"] = long, target["paragraphs"].any(-1)
        parts |= answer_parts(logits, target["spans"], types, self.span_marginal)
        if (candidates := logits.candidates) is not None:
            # the right candidate is the answer, wherever it stands
            right = target["candidate"] >= 0
            for name, (loss, known) in parts.items():
                parts[name] = loss.masked_fill(right, 0.0), known & ~right
            place = torch.arange(candidates.size(1), device=candidates.device)
            gold = place == target["candidate"].unsqueeze(1)
            parts["candidate"] = marginal_nll(candidates, gold), right
        if facts is not None:
            known = target["supporting"] >= 0  # of other sentences logits are -inf
            given = facts.masked_fill(~known, 0.0), target["supporting"].to(facts)
            of_each = binary_cross_entropy_with_logits(*given, reduction="none")
            parts["support"] = of_each.masked_fill(~known, 0.0).sum(-1), known.any(-1)
        loss = sum(loss for loss, _ in parts.values()) / (1 if facts is None else len(PARTS))
        size = len(loss)
        log = {"loss": loss.detach().sum(), "ntokens": sample["ntokens"]}
        log |= {"nsentences": size, "sample_size": size}
        for name, (of_part, known) in parts.items():
            log |= {f"{name}_loss": of_part.detach().sum(), f"{name}_size": known.sum()}
        if shared:
            log["nll"] = log["span_loss"]
        if not model.training:
            log |= self._scores(logits, sample)
            if shared:
                one, _ = answer_parts(logits, target["last_span"], types)["span"]
                log["nll_one"] = one.sum()
        return loss.sum() if reduce else loss, size, log

    def _scores(self, logits: AnswerLogits, sample) -> dict[str, float]:
        """Sums over the questions of a batch whose answers are known."""
        data, numbers = self.task.dataset(sample["split"]).data, sample["id"].tolist()
        whole = data.whole
        documents = [data.document(number) for number in numbers]
        found = ranked_answers(logits, documents, **ranking_options(self.task.cfg))
        sums = dict.fromkeys(SUMS, 0.0)
        for number, answers in data.questions(numbers, found):
            example = whole[number]
            if example.answerable is None:
                continue
            texts = whole.texts(number)["texts"]
            exact, f1 = score_v2(answers.text, texts)
            long = answers.long[0][0] if answers.long and answers.type != "none" else None
            sums["scored"] += 1
            sums["em"] += 100 * exact
            sums["f1"] += 100 * f1
            sums["answerable_accuracy"] += 100 * ((answers.type != "none") is example.answerable)
            sums["long_gold"] += len(example.long_answers) > 0
            sums["long_found"] += long is not None
            sums["long_right"] += long in example.long_answers.tolist()
            gold = example.outline.supporting
            if answers.supporting is None or gold is None or not texts:
                continue
            found = [number for number, _ in answers.supporting]
            scores = score_facts(score_hotpotqa(answers.text, texts), found, gold.tolist())
            sums["facts_scored"] += 1
            for name in FACTS:
                sums[name] += 100 * scores[name]
        return sums

    @classmethod
    def reduce_metrics(cls, logging_outputs) -> None:
        total = cls.totals(logging_outputs)
        size = total["sample_size"]
        metrics.log_scalar("loss", total["loss"] / size / math.log(2), size, round=3)
        for part in PARTS:
            if number := total[f"{part}_size"]:
                mean = total[f"{part}_loss"] / number / math.log(2)
                metrics.log_scalar(f"{part}_loss", mean, number, round=3)
        for name in ("nll", "nll_one"):
            if (number := total["span_size"]) and name in total:
                metrics.log_scalar(name, total[name] / number, number, round=3)
        for names, number in ((ANSWERS, total["scored"]), (FACTS, total["facts_scored"])):
            for name in names if number else ():
                metrics.log_scalar(name, total[name] / number, number, round=2)
        for name in LONG if total["scored"] else ():
            metrics.log_scalar_sum(f"_{name}", total[name])
        if total["long_gold"]:
            metrics.log_derived("long_f1", _long_f1)


def _long_f1(meters) -> float:
    """Over all batches: 2 P R / (P + R) = 2 right / (found + gold)."""
    gold, found, right = (meters[f"_{name}"].sum for name in LONG)
    return round(float(200 * right / (found + gold)), 2)


@register_criterion("clusterformer_qa", dataclass=ClusterformerQAConfig)
class ClusterformerQA(ClusteringLosses, QACriterion):
    """The losses of answers plus the clustering losses."""

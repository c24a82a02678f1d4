"""What each kind computes, one token at a time: the specification that kernels, training and
decoding are compared with. Of one text, in evaluation, without rotary or relative positions."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from .heads import Convolved
from .kind import Kind
from .multihead import MultiheadAttention
from .tokens import Batch, Round, Tokens


class Head(NamedTuple):
    """One head of a kind, and its tokens."""

    kind: str
    router: Kind
    number: int
    q: Tensor  # [N, E], as k and v
    k: Tensor
    v: Tensor
    looks: list[list[list[int]]]  # of each round: the P clusters that each query looks into
    of_keys: list[list[int]]  # the cluster of each key
    bias: list[float]  # of keys that are seen by their cluster


@torch.no_grad()
def naive(layer: MultiheadAttention, x: Tensor, centroids: Tensor | None = None) -> Tensor:
    """A layer's output [N, D] of x [N, D] by its clusters; ``centroids``: handed on, [K, D]."""
    outputs, size = [], layer.num_heads // len(layer.kinds)
    heads = layer.project(x.unsqueeze(0), Convolved(Batch()))
    of_all = [t[0].repeat_interleave(layer.num_heads // t.size(1), 0) for t in heads[1:4]]
    for place, (kind, router) in enumerate(zip(layer.kinds, layer.routers, strict=True)):
        q, k, v = (t[place * size : (place + 1) * size] for t in of_all)
        q, k = router.project(q, k)
        given = None if centroids is None else centroids[None]
        tokens = Tokens(x[None], (q[None], k[None]), Batch(), centroids=given)
        found = router.assign(tokens, {})[0]
        one = torch.zeros(1, 1, len(x), dtype=torch.long)
        rounds = found.rounds or (Round((one,)),)
        bias = q.new_zeros(1, size, len(x)) if found.key_bias is None else found.key_bias
        for h in range(size):
            looks = [torch.stack([t[0, h % t.size(1)] for t in r.queries], -1) for r in rounds]
            of_keys = [r.of_keys[0, h * r.of_keys.size(1) // size].tolist() for r in rounds]
            vectors = q[h], k[h], v[h], [t.tolist() for t in looks], of_keys, bias[0, h].tolist()
            head = Head(kind.kind, router, h, *vectors)
            outputs.append(torch.stack([_attended(head, i) for i in range(len(x))]))
    return layer.merge([torch.stack(outputs).unsqueeze(0)])[0]


def _attended(head: Head, i: int) -> Tensor:
    """The value [E] that query i attends to, by one softmax over all that it sees."""
    (q, k, v), rule = head[3:6], head.router.rule
    plain = k @ q[i] / math.sqrt(q.size(1))
    logit = plain + q.new_tensor(head.bias)  # of keys that are seen by their cluster
    far, near = [], [*range(min(rule.sinks, i))]
    if i >= rule.sinks:  # a sink sees sinks alone
        see = SIGHT.get((head.kind, rule.name), recent if rule.name == "recent" else chunk)
        for looks, of_keys in zip(head.looks, head.of_keys, strict=True):
            far += see(head, looks[i], of_keys, i)
        if rule.index:
            far = sorted(far, key=lambda j: -logit[j])[: rule.index]
        back = [i - j if rule.causal else abs(i - j) for j in range(len(k))]
        near += [j for j in range(rule.sinks, len(k)) if 0 < back[j] < rule.gap]
    if i not in far and not (rule.own == "fallback" and far + near):
        near.append(i)  # its own key
    entries = [(logit[j], v[j]) for j in far] + [(plain[j], v[j]) for j in near]
    for some, rest in means(head, i, far):
        of_mean = plain[some].mean() + math.log(len(some))
        entries.append((of_mean if rest is None else logit[rest].logsumexp(0), v[some].mean(0)))
    logits, values = map(torch.stack, zip(*entries, strict=True))
    return logits.softmax(0) @ values


def recent(head: Head, looks: list[int], of_keys: list[int], i: int) -> list[int]:
    """The W latest keys of each cluster that query i looks into, its own included; not causal: W
    on either side, and what stands at its place. None is nearer than the gap."""
    rule, found = head.router.rule, []
    window = len(of_keys) if rule.window is None else rule.window
    window += 1 if not rule.causal and rule.gap == 0 else -1 if rule.causal and rule.gap else 0
    for cluster in looks:
        members = [j for j in range(rule.sinks, len(of_keys)) if of_keys[j] == cluster]
        before = [j for j in members if j <= i - rule.gap]
        found += before[max(0, len(before) - window) :]
        if not rule.causal:
            after = [j for j in members if j >= i + max(rule.gap, 1)]
            found += after[: rule.window]
    return found


def chunk(head: Head, looks: list[int], of_keys: list[int], i: int) -> list[int]:
    """CF22 eq. 5 and 8 to 10: of the tokens sorted by cluster, cut into K chunks, the query's own
    chunk and the one before; kmeans (CF20 eq. 6): its own, of W. A leaking one: eq. 13 on top."""
    rule, alone = head.router.rule, head.kind == "kmeans"
    tokens = sorted(range(len(of_keys)), key=lambda j: of_keys[j])
    size = rule.window if alone else -(-len(tokens) // rule.clusters)
    chunks = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    own = next(number for number, some in enumerate(chunks) if i in some)
    seen = {*chunks[own]} if alone else {*chunks[own], *chunks[own - 1]}
    seen = {j for j in seen if j <= i} if rule.causal else seen
    return [j for j in seen if j != i or rule.own != "fallback"]


def top(head: Head, looks: list[int], of_keys: list[int], i: int) -> list[int]:
    """Routing Transformer: the 2 N / K keys nearest to the centroid of the query's cluster."""
    centroid, number = head.router.means.centroids[head.number, looks[0]], len(of_keys)
    near = cosine_similarity(head.k, centroid.to(head.k), dim=-1)
    size = -(-number // head.router.rule.clusters)
    return sorted(range(number), key=lambda j: -near[j])[: 2 * size]


def segment(head: Head, looks: list[int], of_keys: list[int], i: int) -> list[int]:
    """Transformer-XL: the query's segment, causal: up to itself, and the memory before it."""
    (size, memory), rule = head.router.options.sizes, head.router.rule
    begin = i - i % size
    end = i + 1 if rule.causal else min(begin + size, len(of_keys))
    return [*range(max(rule.sinks, begin - memory), end)]


def means(head: Head, i: int, far: list[int]) -> list[tuple[list[int], list[int] | None]]:
    """Keys that query i sees as one, their mean: in taught heads with summaries those of each
    cluster that it looks not into, causal: ``gap`` or more before its chunk of the text; with an
    index those of all. Returns the keys of each mean, and those whose logits its logit sums, which
    are not ``far`` ones; None: it has its own."""
    rule, every = head.router.rule, head.kind == "taught" and head.router.options.summaries
    if not every or i < rule.sinks:
        return []
    last = i - (i - rule.sinks) % every - rule.gap if rule.causal else len(head.k)
    seen: dict[int, list[int]] = {}
    for j, cluster in enumerate(head.of_keys[0]):
        if rule.sinks <= j <= last and (rule.causal or j != i):
            seen.setdefault(cluster, []).append(j)
    found: list[tuple[list[int], list[int] | None]] = []
    for cluster, some in seen.items():
        rest = None
        if cluster in head.looks[0][i]:
            listed = recent(head, [cluster], head.of_keys[0], i) if rule.index else []
            rest = [j for j in listed if j not in far]
        if rest != []:
            found.append((some, rest))
    return found


SIGHT = {("routing", "chunk"): top, ("xl", "recent"): segment}

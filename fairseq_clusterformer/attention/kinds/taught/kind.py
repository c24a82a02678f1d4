"""Taught clustering: clusters that attention teaches.

Each head has routing projections of its own, which read the layer's input, or the head's queries
and keys, detached, and learn by the loss of scouts alone (see ``scouts.py``). The task trains what
is attended, and never what routes: its gradient would have to pass an argmax. (The indexer of
DeepSeek-V3.2, 2025, is taught alike.) J heads of keys have clusters; R: width of what routes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....clustering import AverageNormalizer, Report, State
from ....clustering.fuzzy import TIE, Similarity
from ....clustering.shares import Scores, assign_both
from ....precision import ExactLinear, at_least_float32, full_float32
from ...kind import Kind, Other, Seen, Sight, Text, Traits
from ...layout import blinded
from ...options import FuzzyOptions, OptionError, option, register_attention
from ...projections import QKV, ShortConvolution
from ...tokens import Assignment, Round, Shape, Tokens, for_each
from . import scouts as of_scouts
from .means import MeansOfOthers, MeansSoFar
from .scouts import Scouts, routing_loss


@dataclass(frozen=True)
class TaughtOptions(FuzzyOptions):
    scouts: int = option(
        64, "queries of each row and taught head that see every key in training", at_least=0
    )
    scout_share: float = option(
        1.0,
        "scouts of a row are at most this share of its tokens, but one at least; not in dense "
        "updates",
        above=0.0,
        at_most=1.0,
    )
    dense_updates: int = option(
        0, "updates in which all queries of taught heads are scouts", at_least=0
    )
    teach_every: int = option(
        1,
        "scouts teach in every so-many-th update; the others are as fast as without scouts, and "
        "count as 0 in the log's routing_loss (pytorch_ddp: with --find-unused-parameters)",
        at_least=1,
    )
    probes: int = option(
        1, "clusters whose latest keys a query of a taught head sees, W - 1 of each", at_least=1
    )
    summaries: int = option(
        0,
        "taught heads also see the mean of each other cluster, as one key; renewed after that "
        "many tokens (in an encoder, whatever the number, of all); 0: not at all",
        at_least=0,
    )
    routes_by: str = option(
        "input",
        "what taught heads route by: the layer's input, or their own queries and keys",
        choices=("input", "heads"),
    )
    drop_keys: float = option(
        0.0,
        "about this share of the keys of taught heads is kept out of all clusters: those that "
        "attention asks for least",
        at_least=0.0,
        below=1.0,
    )
    clusters_per: str = option(
        "head",
        "what has clusters of its own in taught heads: each head, or each head of keys and values "
        "(--encoder-kv-heads, --decoder-kv-heads), whose queries look into the same clusters, "
        "each by its own choice; where the kinds of a layer divide these heads",
        choices=("head", "kv-head"),
    )
    routing_width: int = option(32, "width of what taught heads route by", at_least=1)
    routing_convolution: int = option(
        4,
        "width of the convolution over the layer's input, from which taught heads route; 0: none",
        at_least=0,
    )


@dataclass(frozen=True)
class Teaching(Assignment):
    """Also names the queries that see every key, in training."""

    scouts: Scouts | None = None


@register_attention("taught", TaughtOptions)
class Taught(Kind):
    """Each head clusters its queries and its keys, apart, around the same centroids."""

    @staticmethod
    def declare(options: TaughtOptions, shape: Shape) -> Traits:
        reads_qk, drops_keys = options.routes_by == "heads", options.drop_keys > 0
        convolved = options.routing_convolution > 0 and (drops_keys or not reads_qk)
        return Traits(
            own="always",
            least_gap=1,  # it is seen besides those of its cluster, in an encoder, too
            drops_keys=drops_keys,
            per_token=not convolved and options.summaries == 0,
            per_token_with="routing_convolution=0 and summaries=0",
            reads_qk=reads_qk,
        )

    def __init__(self, options: TaughtOptions, shape: Shape):
        super().__init__(options, shape)
        if options.probes > options.clusters:
            allowed = f"up to the number of clusters, {options.clusters}"
            raise OptionError("probes", options.probes, allowed)
        if options.summaries and not shape.causal and self.rule.gap > 1:
            raise OptionError("summaries", options.summaries, "0 in an encoder with a gap")
        self.similarity = Similarity(options.similarity)
        self.temperature = options.temperature or 0.2
        queries, width = shape.num_heads, options.routing_width
        heads = queries if options.clusters_per == "head" else shape.kv_heads or queries
        self.sharing = queries // heads  # queries that look into the same clusters
        self.by_heads, drops_keys = self.rule.reads_qk, self.rule.drops_keys
        if self.by_heads:
            # The same for both: a query and a key that match begin in the same cluster.
            weight = torch.randn(heads, width, shape.head_dim) * shape.head_dim**-0.5
            of_queries = weight.repeat_interleave(self.sharing, dim=0)  # [H, R, E]
            self.query_proj = nn.ParameterDict({"weight": of_queries})
            self.key_proj = nn.ParameterDict({"weight": weight})
        else:
            self.query_proj = ExactLinear(shape.embed_dim, queries * width, bias=False)
            self.key_proj = ExactLinear(shape.embed_dim, heads * width, bias=False)
        self.gate = _Gate(shape.embed_dim, heads) if drops_keys else None
        self.centroids = nn.Parameter(torch.randn(heads, options.clusters, width) * width**-0.5)
        self.convolution = None
        if options.routing_convolution and (drops_keys or not self.by_heads):
            given = shape.embed_dim, options.routing_convolution
            self.convolution = ShortConvolution(*given, causal=shape.causal)
        # Of keys: the mass of each cluster, and the least gate of one that is held.
        self.normalizer = AverageNormalizer((heads, options.clusters), others=heads * drops_keys)
        self.begins, self.teaches = options.dense_updates > 0, True

    def commit(self) -> None:
        super().commit()
        dense, every = self.options.dense_updates, self.options.teach_every
        if dense or every > 1:  # else no device is waited for
            updates = int(self.normalizer.updates)
            self.begins = updates < dense
            self.teaches = self.begins or updates % every == 0

    @full_float32()
    def assign(self, tokens: Tokens, state: State) -> tuple[Assignment, State]:
        x = tokens.x.detach()
        if self.convolution is not None:
            x, before = self.convolution.following(x, state.get("before"), tokens.batch, wide=True)
            state = {"before": before}
        q, k = self.routing(x, tokens)
        gates = log_held = least = None
        if self.gate is not None:
            gates = self.gate(x) / self.temperature
            if self.training:  # by the batch's own least gate
                of_batch, real, mask = gates.detach(), gates[:, 0].numel(), tokens.padding_mask
                if mask is not None:
                    of_batch, real = of_batch.masked_fill(mask[:, None], torch.inf), (~mask).sum()
                place = torch.as_tensor(self.options.drop_keys * real, device=x.device).long()
                ordered = of_batch.transpose(0, 1).flatten(1).sort(-1).values
                place = place.clamp(max=ordered.size(-1) - 1).expand(len(ordered), 1)
                least = ordered.gather(1, place)
                log_held, least = nn.functional.logsigmoid(gates - least), least.squeeze(-1)
        how = {"similarity": self.similarity, "temperature": self.temperature}
        how |= {"log_normalizer": self.normalizer.log_normalizer, "impl": tokens.impl}
        how |= {"probes": self.options.probes, "log_weights": log_held}
        how |= {"padding_mask": tokens.padding_mask, "counted": not tokens.decoding}
        found = assign_both(q, k, self.centroids, **how)
        keys = found.keys
        if gates is not None:
            held_from = self.normalizer.average.to(gates.dtype)
            # Keys that are alike may be at the least gate: then rounding must not decide.
            drop = gates.detach() < (held_from - TIE / self.temperature).unsqueeze(-1)
            keys = keys.masked_fill(drop, self.options.clusters)
        rounds = (Round((found.queries, *found.probes), keys),)
        if tokens.decoding:
            return Teaching(rounds), state
        if gates is not None:
            least = held_from if least is None else least
            least = torch.where(found.tokens > 0, least * found.tokens, 0.0)
        observation = self.normalizer.observation(found.log_mass, found.tokens, least)
        report = Report(cluster_sizes=found.sizes, clusters=found.queries, observation=observation)
        scouts = self._scouts(tokens, x, q, k, log_held, found.log_mass)
        return Teaching(rounds, report=report, scouts=scouts), state

    def others(self, tokens: Tokens, assignment: Teaching) -> tuple[Other, ...]:
        if not self.options.summaries:
            return ()
        ((looked_into, keys),), scouts = assignment.rounds, assignment.scouts
        blind = None if scouts is None else scouts.queries
        count = self.rule.clusters + self.rule.drops_keys  # dropped keys have a mean, too
        given = looked_into, keys, count, tokens.behind(self.rule.sinks), blind
        if not self.rule.causal:
            return (MeansOfOthers(*given),)
        return (MeansSoFar(*given, self.options.summaries, self.rule.gap),)

    def sight(self, text: Text, assignment: Teaching) -> Sight:
        sight, scouts = super().sight(text, assignment), assignment.scouts
        if scouts is None:
            return sight
        queries, empty = pad(scouts.queries, (text.past, 0)), None
        if text.past:  # they see all that is kept
            kept = text.rings[:, :, 0, : text.past] == self.rule.clusters
            empty = pad(for_each(queries, kept), (0, scouts.queries.size(-1)))
        how = {"causal": self.rule.causal, "gap": self.rule.gap, "batch": text.batch}
        everything = of_scouts.scout_layouts(queries, hidden=empty, **how)
        if (lists := sight.lists) is not None:
            blind, nowhere = scouts.queries.unsqueeze(-1), self.rule.clusters + 1
            lists = lists._replace(queries=lists.queries.masked_fill(blind, nowhere))
        ranges = tuple(blinded(sight.ranges, queries))
        return replace(sight, ranges=ranges, near=(*sight.near, *everything), lists=lists)

    def attended(self, out: Tensor, heads: QKV, seen: Seen) -> tuple[Tensor, Report]:
        report, scouts = seen.assignment.report, seen.assignment.scouts
        if scouts is None or seen.text is None:
            return out, report
        how = {"causal": self.rule.causal, "gap": self.rule.gap, "batch": seen.text.tokens.batch}
        layouts = of_scouts.scout_layouts(scouts.queries, **how)
        q, k = heads.repeated()[:2]
        gain = of_scouts.routing_gain(q, k, layouts, scouts, impl=seen.tokens.impl)
        out, nats = of_scouts.Weighed.apply(out, *gain)
        return out, report._replace(routing_loss=routing_loss(gain._replace(nats=nats)))

    def routing(self, x: Tensor, tokens: Tokens | None) -> tuple[Tensor, Tensor]:
        """What routes queries [B, H, N, R] and keys [B, J, N, R], by x or by heads of tokens."""
        if self.by_heads:
            given = (tokens.q, self.query_proj), (tokens.k[:, :: self.sharing], self.key_proj)
            return tuple([x.detach() @ by.weight.to(x.dtype).mT for x, by in given])
        shape = *x.shape[:2], -1, self.options.routing_width
        both = self.query_proj(x), self.key_proj(x)
        return tuple([found.view(shape).transpose(1, 2) for found in both])

    def _scouts(
        self, tokens: Tokens, x: Tensor, q: Tensor, k: Tensor, held: Tensor | None, mass: Tensor
    ) -> Scouts | None:
        number, share = self.options.scouts, self.options.scout_share
        if self.begins:
            number, share = tokens.x.size(1), 1.0
        if number == 0 or not (self.training and self.teaches):
            return None
        heads, mask = self.shape.num_heads, tokens.padding_mask
        queries, places = of_scouts.draw_scouts(number, heads, tokens.x, mask, share)
        if self.by_heads or places[0].numel() > x.size(1):
            q = of_scouts.gather_tokens(q, places)
        else:  # of few it is computed again: its gradient then is that of few queries, not of all
            rows = places + x.size(1) * torch.arange(len(x), device=x.device).view(-1, 1, 1)
            by_head = rows.transpose(0, 1).flatten()
            x = x.flatten(0, 1).index_select(0, by_head)
            x = at_least_float32(x).unflatten(0, (heads, -1))
            weight = self.query_proj.weight.to(x.dtype).unflatten(0, (heads, -1))
            q = (x @ weight.transpose(-1, -2)).unflatten(1, (len(places), -1)).transpose(0, 1)
        shares, keys = self.shares(q, k, mask, held)
        return Scouts(queries, places, shares, keys._replace(offsets=mass))

    def shares(
        self, q: Tensor, k: Tensor, padding_mask: Tensor | None, log_held: Tensor | None = None
    ) -> tuple[Tensor, Scores]:
        """The share p(c) of each cluster in queries [B, H, S, K], differentiable, and what that of
        all keys is made of: q and k route some queries [B, H, S, R] and all keys [B, J, N, R],
        each held with a probability of ``log_held.exp()`` [B, J, N]; None: all are.

        Keys are normalised by those of the batch that are held. By the average, which is a
        constant, the loss would draw keys to a cluster that the average then pushes away again."""
        vectors = self.similarity.vectors(self.centroids.to(q.dtype)) / self.temperature
        of_heads = vectors.repeat_interleave(self.sharing, dim=0).transpose(-1, -2)
        of_queries = (self.similarity.vectors(q) @ of_heads).softmax(-1)
        return of_queries, Scores(k, vectors, None, padding_mask, self.similarity, log_held)


class _Gate(nn.Module):
    """How much the keys of each head are worth holding, [B, N, D] to cosines [B, J, N]: a gate
    without bounds would grow early in training, until its sigmoid has no gradient."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.hidden = ExactLinear(width, width)
        self.wanted = nn.Parameter(torch.randn(heads, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        found = nn.functional.gelu(self.hidden(x))
        both = found, self.wanted.to(found.dtype)
        found, wanted = (nn.functional.normalize(t, dim=-1) for t in both)
        return (found @ wanted.T).transpose(1, 2)

"""Neural clustering (CF22 section 3.1): fuzzy centroids that are learned with the task.

Shape letters: B batch, N tokens, D width, K clusters.
"""

import math

import torch
from torch import Tensor, nn

from ..precision import HALF, at_least_float32
from .fuzzy import Similarity, cluster_sums, exponents, fuzzy_clusters, lowest_argmax
from .report import Report, State


class NeuralClustering(nn.Module):
    """Assigns tokens to K centroids, and returns the losses that teach them.

    Equation numbers are CF22's. Everything is computed in float32 (float64 for a float64 model)
    whatever the model's precision.

    Args:
        embed_dim: D.
        num_clusters: K.
        similarity: phi: "dot" (the paper's), "scaled-dot" (divided by sqrt(D)) or "cosine".
        temperature: divides phi inside the exponent of eq. 2.
        normalizer: the denominator of eq. 2 when tokens are assigned. "sentence": over all tokens
            of the row, as in the paper; needs the whole row. "running": over the tokens so far.
            "average": an exponential moving average of the mean over training batches, a constant
            for each cluster. The last two keep an assignment independent of later tokens.
        momentum: of that average.
        own_centroids: False: the centroids are given to each ``forward``.

    Parameters learn through the two losses alone: the argmax of eq. 4 carries no gradient.
    """

    def __init__(
        self,
        embed_dim: int,
        num_clusters: int,
        *,
        similarity: str = "cosine",
        temperature: float = 0.1,
        normalizer: str = "sentence",
        momentum: float = 0.9,
        own_centroids: bool = True,
    ):
        super().__init__()
        self.num_clusters = num_clusters
        self.similarity = Similarity(similarity)
        self.temperature = temperature
        self.normalizer = normalizer
        self.momentum = momentum
        self.centroids = initial_centroids(num_clusters, embed_dim) if own_centroids else None
        self.w_c = nn.Linear(embed_dim, embed_dim, bias=False)
        nn.init.xavier_uniform_(self.w_c.weight)
        if normalizer == "average":
            self._register_average()

    def _register_average(self) -> None:
        # Log of the average of exp(s_i) over tokens; what was seen since the last update, as a
        # log-sum-exp, and of how many tokens.
        self.register_buffer("log_normalizer", torch.zeros(self.num_clusters))
        self.register_buffer("pending_log_mass", torch.full((self.num_clusters,), -math.inf))
        self.register_buffer("pending_tokens", torch.zeros(()))
        self.register_buffer("updates", torch.zeros(()))  # floating point for averages of models

    def _apply(self, fn, recurse=True):
        before = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, value in before.items():
            moved = getattr(self, name)
            if moved.dtype in HALF:  # an average needs the bits that half precision drops
                setattr(self, name, value.to(moved.device))
        return self

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        centroids: Tensor | None = None,
    ) -> tuple[Tensor, Report]:
        """Assign the tokens of a batch.

        Args:
            x: [B, N, D].
            padding_mask: bool [B, N], True where a token is padding.
            centroids: [B, K, D] used instead of this module's own; needed if it owns none.

        Returns:
            The cluster of each token, int64 [B, N] (0 at padding), and a report: both losses, the
            cluster sizes, the updated centroids, and the observation for :meth:`observe`, if the
            normalizer is an average.

        Raises:
            ValueError: no centroids, owned or given.
        """
        if centroids is None and self.centroids is None:
            raise ValueError("this clustering owns no centroids, and was given none")
        with torch.autocast(x.device.type, enabled=False):
            x = at_least_float32(x)
            if padding_mask is not None:
                x = x.masked_fill(padding_mask.unsqueeze(-1), 0.0)
            centroids = self.centroids if centroids is None else centroids
            normalizer = self.normalizer
            if normalizer == "average":
                normalizer = self.log_normalizer
            clusters, log_mass, updated = fuzzy_clusters(
                self._keys(x),
                centroids.to(x.dtype),
                similarity=self.similarity,
                temperature=self.temperature,
                normalizer=normalizer,
                padding_mask=padding_mask,
            )
            return clusters, self._report(x, clusters, log_mass, updated, padding_mask)

    def step(
        self, x: Tensor, state: State, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Assign one more token: x [B, 1, D] to clusters int64 [B, 1], as ``forward`` would."""
        with torch.autocast(x.device.type, enabled=False), torch.no_grad():
            x = at_least_float32(x)
            vectors = self.similarity.vectors(self.centroids.to(x.dtype))
            scores = exponents(self.similarity.vectors(self._keys(x)), vectors, self.temperature)
            if self.normalizer == "average":
                return lowest_argmax(scores - self.log_normalizer.to(x.dtype)), state
            log_sum = scores.double()
            if "log_sum" in state:
                log_sum = torch.logaddexp(state["log_sum"], log_sum)
            clusters = lowest_argmax(scores - log_sum)
            if padding_mask is not None:
                before = state.get("log_sum", torch.full_like(log_sum, -math.inf))
                log_sum = torch.where(padding_mask.unsqueeze(-1), before, log_sum)
            return clusters, {"log_sum": log_sum}

    def _keys(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.w_c.weight.to(x.dtype))

    def _report(
        self,
        x: Tensor,
        clusters: Tensor,
        log_mass: Tensor,
        updated: Tensor,
        padding_mask: Tensor | None,
    ) -> Report:
        batch, length, _ = x.shape
        real = x.new_ones(batch, length)
        if padding_mask is not None:
            real = real.masked_fill(padding_mask, 0.0)
        tokens = real.sum()
        vectors = self.similarity.vectors(updated)

        # CF22 eq. 6: the sum over tokens of phi(x_j, c_{I_j}), cluster by cluster.
        sums = cluster_sums(
            x, clusters, self.num_clusters, similarity=self.similarity, weight=real
        )
        clustering_loss = -(sums * vectors).sum() / tokens.clamp(min=1.0)

        neighbours = (vectors * vectors.roll(1, dims=1)).sum(-1).mean(-1)  # the ring of eq. 11
        weight = real.sum(-1) / tokens.clamp(min=1.0)
        sorting_loss = -(neighbours * weight).sum()  # CF22 eq. 11

        with torch.no_grad():
            sizes = torch.zeros(self.num_clusters, device=x.device, dtype=x.dtype)
            sizes.index_add_(0, clusters.flatten(), real.flatten())
            observation = None
            if self.normalizer == "average":
                observation = torch.cat([torch.logsumexp(log_mass, dim=0), tokens.view(1)])
        return Report(clustering_loss, sorting_loss, sizes, updated, observation)

    @torch.no_grad()
    def observe(self, observation: Tensor) -> None:
        """Remember a training batch's observation for the moving average; may be repeated."""
        log_mass = observation[:-1].to(self.pending_log_mass.dtype)
        self.pending_log_mass.copy_(torch.logaddexp(self.pending_log_mass, log_mass))
        self.pending_tokens += observation[-1]

    def nothing_observed(self) -> Tensor | None:
        """The observation of a batch without tokens; None if the normalizer is no average."""
        if self.normalizer != "average":
            return None
        log_mass = torch.full_like(self.log_normalizer, -math.inf)
        return torch.cat([log_mass, log_mass.new_zeros(1)])

    @torch.no_grad()
    def commit(self) -> None:
        """Move the average by what was observed since the last update, if anything was.

        What is not finite (an overflow that a loss scaler skips) is dropped.
        """
        if self.normalizer != "average":
            return
        seen = self.pending_log_mass - self.pending_tokens.log()
        usable = torch.isfinite(seen).all() & (self.pending_tokens > 0)
        # The first observation is taken as it is.
        share = torch.where(self.updates > 0, 1.0 - self.momentum, 1.0).to(seen.dtype)
        moved = torch.lerp(self.log_normalizer, seen, share)
        self.log_normalizer.copy_(torch.where(usable, moved, self.log_normalizer))
        self.updates += usable
        self.pending_log_mass.fill_(-math.inf)
        self.pending_tokens.zero_()


def initial_centroids(num_clusters: int, embed_dim: int) -> nn.Parameter:
    """Random centroids [K, D] of length about 1."""
    return nn.Parameter(torch.randn(num_clusters, embed_dim) * embed_dim**-0.5)

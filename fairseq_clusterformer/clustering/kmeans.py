"""K-Means of hidden states from time to time (CF20 section 3.2). M: states of the memory bank."""

import logging
from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from ..precision import at_least_float32
from .fuzzy import nearest_by_cosine
from .learner import Learner

logger = logging.getLogger(__name__)
logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it logs which of its builds is used

ITERATIONS = 10  # of 100,000 states about 512 directions; the tenth moves the objective by nothing


class MemoryBank:
    """The latest M = ``size`` states, first in, first out; on the CPU and in half precision."""

    def __init__(self, size: int):
        self.size, self.batches = size, deque[Tensor]()

    def add(self, states: Tensor) -> None:
        """Keep states [n, D], of which the last ones are the latest."""
        if len(states):
            self.batches.append(states[-self.size :].detach().to("cpu", torch.float16))
        while sum(map(len, [*self.batches][1:])) >= self.size:
            self.batches.popleft()

    def latest(self, number: int) -> Tensor:
        """The latest states, the oldest of them first: float16 [min(number, kept), D]."""
        nothing = torch.empty(0, 0, dtype=torch.float16, device="cpu")
        return torch.cat([*self.batches] or [nothing])[-min(number, self.size) :]


class KMeansClustering(Learner):
    """Assigns tokens to the nearest of K centroids, which K-Means finds from time to time:
    ``interval`` is updates between two clusterings; 0: an epoch. Centroids are random until the
    first time; later ones start from those before, so that groups stay together while the model
    learns. The bank keeps the latest M states of length 1, which never overflow half precision.

    Each of several workers has a bank. The first clusters the latest M states of all, equally many
    of each, and sends the centroids. A checkpoint holds the banks of all, if ``consolidate`` was
    called; another number of workers divides them.
    """

    exchanges = False

    def __init__(self, embed_dim: int, num_clusters: int, *, bank_size: int, interval: int):
        super().__init__()
        self.num_clusters = num_clusters
        centroids = normalize(torch.randn(num_clusters, embed_dim), dim=-1)
        self.register_buffer("centroids", centroids[nearest_neighbour_order(centroids)])
        self.bank, self.interval = MemoryBank(bank_size), interval
        self.age = -1  # updates since the last clustering; -1 before the first update
        self.epoch = 0  # 0 before the first one
        self.found = False  # whether centroids are K-Means's, and not random
        self._banks: list[Tensor] | None = None  # of all workers, until the next batch

    def forward(self, x: Tensor) -> Tensor:
        """The cluster of each token [B, N, D] (CF20 eq. 5), int64 [B, N]."""
        return nearest_by_cosine(x, self.centroids)

    def observation(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Of a training batch, what the bank may keep, NaN at padding: float32 or more, [n, D]."""
        x = at_least_float32(x.detach())
        if padding_mask is not None:
            x = x.masked_fill(padding_mask.unsqueeze(-1), torch.nan)
        return x.flatten(0, 1)

    @torch.no_grad()
    def observe(self, states: Tensor) -> None:
        """Remember states [n, D]; what is not finite (padding, an overflow) is left out."""
        self.bank.add(normalize(states[torch.isfinite(states).all(-1)], dim=-1))
        self._banks = None

    def commit(self) -> None:
        """Called by every worker before each update."""
        self.age += 1
        if 0 < self.interval <= self.age:
            self.age = 0
            self.update()

    def set_epoch(self, epoch: int) -> None:
        """Called by every worker before each epoch, or what is left of one."""
        due = self.interval == 0 and self.epoch not in (0, epoch)
        self.epoch = epoch
        if due:
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """New centroids from what all workers remember; called by all of them at once. Fewer
        states than clusters leave the centroids as they are."""
        banks = self._all_banks()
        states = torch.empty(0) if banks is None else torch.cat(banks).float()
        number = self.num_clusters
        if len(states) >= number:
            logger.info(f"K-Means of {len(states):,} states in {number} clusters ...")
            start = self.centroids.float().cpu() if self.found else None
            centroids = kmeans(states, number, start=start)
            centroids = centroids[nearest_neighbour_order(centroids)]
            empty = number - len(nearest_by_cosine(states, centroids).unique())
            logger.info(f"K-Means: {empty / number:.1%} of the clusters are empty")
            self.centroids.copy_(centroids)
            self.found = True
        elif banks is not None:
            problem = f"{len(states)} states for {number} clusters are too few"
            logger.info(f"K-Means: {problem}; the centroids stay as they are")
        if workers() > 1:
            dist.broadcast(self.centroids, 0)

    def consolidate(self) -> None:
        """Called by every worker at once, before the first saves the model."""
        self._banks = self._all_banks()

    def get_extra_state(self) -> dict:
        banks = [self.bank.latest(self.bank.size)] if self._banks is None else self._banks
        # As bytes: fairseq writes what is in half precision in twice as many.
        banks = [bank.view(torch.uint8) for bank in banks]
        return {"banks": banks, "found": self.found, "age": self.age, "epoch": self.epoch}

    def set_extra_state(self, state: dict) -> None:
        banks, number = [bank.view(torch.float16) for bank in state["banks"]], workers()
        if len(banks) != number:
            banks = torch.cat(banks).tensor_split(number)
        self.bank.batches.clear()
        self.bank.add(banks[dist.get_rank() if number > 1 else 0])
        self.age, self.epoch, self.found = state["age"], state["epoch"], state["found"]
        self._banks = None

    def _all_banks(self) -> list[Tensor] | None:
        """What each worker adds to M states, on the first; None on the others."""
        states = self.bank.latest(self.bank.size // workers()).view(-1, self.centroids.size(1))
        if workers() == 1:
            return [states]
        banks = [states] * workers() if dist.get_rank() == 0 else None
        dist.gather_object(states.clone(), banks, dst=0)  # a slice would bring its whole memory
        return banks


def kmeans(
    vectors: Tensor,
    num_clusters: int,
    *,
    spherical: bool = True,
    iterations: int = ITERATIONS,
    redos: int = 1,
    start: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Centroids, float32 [K, D], on the CPU; the same in every run. Every vector takes part. A
    centroid that is nearest to nothing is split off the largest cluster.

    Args:
        vectors: float32 [n, D], n >= K, on the CPU; of length 1 if ``spherical``, by cosine.
        iterations: of each of ``redos`` runs, of which the best by its loss is kept.
        start: centroids to begin with, float32 [K, D]; None: vectors drawn by the seed.
    """
    import faiss

    how = {"niter": iterations, "nredo": redos, "spherical": spherical, "seed": seed}
    how |= {"min_points_per_centroid": 1, "max_points_per_centroid": len(vectors)}
    found = faiss.Kmeans(vectors.size(1), num_clusters, **how)
    start = None if start is None else start.contiguous().numpy()
    found.train(vectors.contiguous().numpy(), init_centroids=start)
    return torch.from_numpy(found.centroids)


def nearest_neighbour_order(centroids: Tensor) -> Tensor:
    """Indices of centroids [K, D]: the first, then always the nearest by cosine that is left
    (CF20, Algorithm 1), int64 [K]. Adjacent ids then mean similar clusters."""
    unit = normalize(at_least_float32(centroids), dim=-1)
    cosines = unit @ unit.t()
    order = [torch.zeros(1, dtype=torch.long, device=cosines.device)]
    for _ in range(1, len(centroids)):
        cosines.index_fill_(1, order[-1], -torch.inf)  # the last one is taken
        order.append(cosines.index_select(0, order[-1]).argmax(-1))
    return torch.cat(order)


def workers() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

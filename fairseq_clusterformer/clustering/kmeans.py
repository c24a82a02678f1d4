"""K-Means of hidden states from time to time (CF20 section 3.2).

Shape letters: B batch, N tokens, D width, K clusters, M states of the memory bank.
"""

import logging
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from ..precision import Float32Buffers, at_least_float32
from .bank import Interval, MemoryBank
from .fuzzy import nearest_by_cosine
from .statistics import cluster_use

logger = logging.getLogger(__name__)
logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it logs which of its builds is used

ITERATIONS = 10  # of 100,000 states about 512 directions; the tenth moves the objective by nothing
_BLOCK = 8192  # states that are assigned at once


class KMeansClustering(Float32Buffers):
    """Assigns tokens to the nearest of K centroids, which K-Means finds from time to time.

    Centroids are random until the first time; later ones start from those before, so that what
    is together stays so while the model learns. No gradient reaches them; they are fixed while a
    batch runs. What the bank keeps are directions: states enter by their cosines alone, and of
    length 1 they never overflow half precision.

    With several workers each keeps a bank of its own; the first clusters the latest M states of
    all, equally many of each, and sends the centroids. What a checkpoint holds are the banks of
    all, if ``consolidate`` was called; where there are fewer or more workers now, they divide
    them.

    Args:
        embed_dim: D.
        num_clusters: K.
        bank_size: M.
        interval: updates between two clusterings; 0: an epoch.
    """

    def __init__(self, embed_dim: int, num_clusters: int, *, bank_size: int, interval: int):
        super().__init__()
        self.num_clusters = num_clusters
        centroids = normalize(torch.randn(num_clusters, embed_dim), dim=-1)
        self.register_buffer("centroids", centroids[nearest_neighbour_order(centroids)])
        self.bank = MemoryBank(bank_size)
        self.interval = Interval(interval)
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
        if self.interval.begin_update():
            self.update()

    def set_epoch(self, epoch: int) -> None:
        """Called by every worker before each epoch, or what is left of one."""
        if self.interval.begin_epoch(epoch):
            self.update()

    @torch.no_grad()
    def update(self) -> None:
        """New centroids from what all workers remember; called by all of them at once.

        Fewer states than clusters leave the centroids as they are.
        """
        banks = self._all_banks()
        if banks is not None:
            states = torch.cat(banks)
            if len(states) < self.num_clusters:
                logger.info(
                    f"K-Means: {len(states)} states for {self.num_clusters} clusters are too few; "
                    "the centroids stay as they are"
                )
            else:
                start = self.centroids.float().cpu() if self.found else None
                self.centroids.copy_(_logged_kmeans(states.float(), self.num_clusters, start))
                self.found = True
        if _workers() > 1:
            dist.broadcast(self.centroids, 0)

    def consolidate(self) -> None:
        """Called by every worker at once, before the first saves the model."""
        self._banks = self._all_banks()

    def get_extra_state(self) -> dict:
        banks = [self.bank.latest(self.bank.size)] if self._banks is None else self._banks
        # As bytes: fairseq writes what is in half precision in twice as many.
        banks = [bank.view(torch.uint8) for bank in banks]
        interval = {"age": self.interval.age, "epoch": self.interval.epoch}
        return {"banks": banks, "found": self.found, **interval}

    def set_extra_state(self, state: dict) -> None:
        banks, workers = [bank.view(torch.float16) for bank in state["banks"]], _workers()
        if len(banks) != workers:
            banks = torch.cat(banks).tensor_split(workers)
        self.bank.fill(banks[dist.get_rank() if workers > 1 else 0])
        self.interval.age, self.interval.epoch = state["age"], state["epoch"]
        self.found = state.get("found", False)
        self._banks = None

    def _all_banks(self) -> list[Tensor] | None:
        """What each worker adds to M states, on the first; None on the others."""
        states = self.bank.latest(self.bank.size // _workers())
        return gather_on_first(states.view(-1, self.centroids.size(1)), self.centroids.device)


def spherical_kmeans(
    vectors: Tensor, num_clusters: int, *, start: Tensor | None = None, seed: int = 0
) -> Tensor:
    """Centroids of length 1, float32 [K, D], on the CPU; the same in every run.

    Every vector takes part (by default, faiss would take 256 per centroid), and a cluster may
    have a single one. A centroid that is nearest to nothing is split off the largest cluster.

    Args:
        vectors: of length 1, float32 [n, D], n >= K, on the CPU.
        num_clusters: K.
        start: centroids to begin with, float32 [K, D]; None: vectors drawn at random.
        seed: of the vectors that the centroids start from.
    """
    import faiss

    kmeans = faiss.Kmeans(
        vectors.size(1),
        num_clusters,
        niter=ITERATIONS,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    kmeans.train(
        vectors.contiguous().numpy(),
        init_centroids=None if start is None else start.contiguous().numpy(),
    )
    return torch.from_numpy(kmeans.centroids)


def nearest_neighbour_order(centroids: Tensor) -> Tensor:
    """The first, then always the nearest by cosine that is left (CF20, Algorithm 1).

    Clusters whose numbers are close are then alike, so that a chunk of the sorted tokens that
    begins in one and ends in another is of one sort all the same.

    Args:
        centroids: [K, D].

    Returns:
        Their indices, int64 [K].
    """
    unit = normalize(at_least_float32(centroids), dim=-1)
    cosines = unit @ unit.t()
    order = [torch.zeros(1, dtype=torch.long, device=cosines.device)]
    for _ in range(1, len(centroids)):
        cosines.index_fill_(1, order[-1], -torch.inf)
        order.append(cosines.index_select(0, order[-1]).argmax(-1))
    return torch.cat(order)


def gather_on_first(states: Tensor, device: torch.device) -> list[Tensor] | None:
    """Each worker's states, float16 [n, D] on the CPU, on the first; None on the others.

    Args:
        states: float16 [own n, D] on the CPU, as many as each worker has.
        device: where workers exchange tensors.
    """
    if _workers() == 1:
        return [states]
    first = dist.get_rank() == 0
    counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(_workers())]
    dist.all_gather(counts, torch.tensor([len(states)], device=device))
    longest = int(max(counts))
    # as bytes, which every backend can send
    own = states.new_zeros(longest, states.size(1))
    own[: len(states)] = states
    own = own.view(torch.uint8).to(device)
    everyone = [torch.empty_like(own) for _ in counts] if first else None
    dist.gather(own, everyone, dst=0)
    if not first:
        return None
    return [
        of_one[: int(n)].cpu().view(torch.float16)
        for of_one, n in zip(everyone, counts, strict=True)
    ]


def _workers() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _logged_kmeans(states: Tensor, num_clusters: int, before: Tensor | None) -> Tensor:
    """Ordered centroids; says how they were found and what they are like."""
    logger.info(f"K-Means of {len(states):,} states in {num_clusters} clusters ...")
    start = time.perf_counter()
    centroids = spherical_kmeans(states, num_clusters, start=before)
    centroids = centroids[nearest_neighbour_order(centroids)]
    seconds = time.perf_counter() - start
    best = [(block @ centroids.t()).max(-1) for block in states.split(_BLOCK)]
    cosine = torch.cat([b.values for b in best]).mean()
    sizes = torch.cat([b.indices for b in best]).bincount(minlength=num_clusters)
    use = cluster_use(sizes)
    logger.info(
        f"K-Means: {seconds:.1f} s, mean cosine {cosine:.3f}; clusters of {int(sizes.min())} to "
        f"{int(sizes.max())} states, effective number {use.effective:.1f}, "
        f"{use.empty / num_clusters:.1%} empty"
    )
    return centroids

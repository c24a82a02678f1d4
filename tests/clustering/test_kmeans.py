"""K-Means of a memory bank, alone and with several workers."""

import logging

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_clusterformer.clustering import KMeansClustering
from fairseq_clusterformer.clustering.kmeans import MemoryBank, kmeans, nearest_neighbour_order

WIDTH, CLUSTERS = 8, 5


def clustering(size: int = 40, interval: int = 2) -> KMeansClustering:
    torch.manual_seed(3)
    return KMeansClustering(WIDTH, CLUSTERS, bank_size=size, interval=interval)


def groups(number: int) -> Tensor:
    """States of different lengths about five directions."""
    directions = torch.eye(WIDTH)[torch.arange(number) % CLUSTERS]
    return (directions + 0.05 * torch.randn(number, WIDTH)) * torch.rand(number, 1).exp()


def test_the_bank_keeps_the_latest_states():
    bank, everything = MemoryBank(7), []
    for number in (3, 0, 2, 4, 7, 1, 20, 5):
        states = torch.randint(-100, 100, (number, 2)).float()
        bank.add(states)
        everything = [*everything, *states.tolist()]
        assert bank.latest(7).tolist() == everything[-7:]
        assert bank.latest(3).tolist() == everything[-3:]


def test_the_bank_survives_every_move_of_the_model():
    module = clustering()
    module.observe(torch.randn(9, WIDTH))
    before = module.state_dict()
    before = {**before, "centroids": before["centroids"].clone()}
    for move in (torch.nn.Module.half, torch.nn.Module.float, torch.nn.Module.bfloat16):
        torch.testing.assert_close(move(module).state_dict(), before, rtol=0, atol=0)
    (states,) = module.to("meta").state_dict()["_extra_state"]["banks"]
    assert states.device.type == "cpu"
    assert states.view(torch.float16).shape == (9, WIDTH)


def test_order_is_that_of_algorithm_1():
    centroids = torch.randn(30, WIDTH)
    outputs = [centroids[0]]
    left = list(centroids[1:])
    while left:
        cosines = [torch.cosine_similarity(outputs[-1], c, dim=0) for c in left]
        outputs.append(left.pop(int(torch.stack(cosines).argmax())))
    assert torch.equal(centroids[nearest_neighbour_order(centroids)], torch.stack(outputs))


def test_centroids_are_renewed_after_an_interval(caplog):
    module = clustering(interval=3)
    renewed = []
    with caplog.at_level(logging.INFO):
        for _ in range(8):
            before = module.centroids.clone()
            module.commit()
            renewed.append(not torch.equal(module.centroids, before))
            module.observe(groups(20))
    assert renewed == [False, False, False, True, False, False, True, False]
    assert "K-Means of 40 states in 5 clusters" in caplog.text
    assert "0.0% of the clusters are empty" in caplog.text


def test_what_was_together_stays_together():
    """Of states without groups, K-Means finds others each time that it starts at random."""
    module = clustering(size=2000)
    states = torch.randn(2000, WIDTH)
    module.observe(states)
    module.update()
    before = module.centroids.clone()
    module = restored(module)
    module.observe(states[torch.randperm(2000)])
    module.update()
    anew = kmeans(normalize(states[torch.randperm(2000)], dim=-1), CLUSTERS, seed=5)
    assert (before @ module.centroids.t()).max(1).values.min() > 0.95
    assert (before @ anew.t()).max(1).values.min() < 0.9


def restored(module: KMeansClustering) -> KMeansClustering:
    other = clustering(size=module.bank.size)
    other.load_state_dict(module.state_dict())
    return other


def test_centroids_are_renewed_at_each_epoch_but_not_where_one_is_resumed():
    module = clustering(interval=0)
    renewed = []
    for epoch in (1, 1, 2, 2, 3):
        before = module.centroids.clone()
        module.set_epoch(epoch)
        renewed.append(not torch.equal(module.centroids, before))
        for _ in range(3):
            module.commit()
            module.observe(groups(20))
    assert renewed == [False, False, True, False, True]


def test_too_few_states_leave_the_centroids(caplog):
    module = clustering()
    before = module.centroids.clone()
    module.observe(torch.randn(CLUSTERS - 1, WIDTH))
    module.observe(torch.full((30, WIDTH), torch.nan))  # an overflow counts for nothing
    with caplog.at_level(logging.INFO):
        module.update()
    assert torch.equal(module.centroids, before)
    assert "4 states for 5 clusters are too few" in caplog.text


def test_what_is_observed_after_saving_is_in_the_next_checkpoint():
    module = clustering(size=40)
    for number in (20, 30):
        module.observe(groups(number))
        module.consolidate()
        assert torch.equal(restored(module).bank.latest(40), module.bank.latest(40))
    module.observe(groups(20))  # and saved without consolidating
    assert torch.equal(restored(module).bank.latest(40), module.bank.latest(40))


def _work(rank: int, folder: str) -> None:
    """Two batches, an update after each; between them the model is saved and loaded."""
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    module = clustering()
    module.centroids.mul_(1 - rank)
    found = []
    for states in torch.load(f"{folder}/states.pt"):
        module.observe(states[rank])
        module.consolidate()
        if rank == 0:
            torch.save(module.state_dict(), f"{folder}/saved.pt")
        dist.barrier()
        module = clustering()
        module.load_state_dict(torch.load(f"{folder}/saved.pt"))
        module.update()
        found.append(module.centroids.clone())
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_workers_cluster_the_latest_states_of_both(tmp_path):
    """Each adds 20, as long as it has them; a checkpoint holds the states of both."""
    batches = [[groups(30), groups(12)], [groups(3), groups(11)]]
    torch.save(batches, tmp_path / "states.pt")
    torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=2)
    seen = [torch.empty(0, WIDTH)] * 2
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    alone = clustering()
    for batch, *of_workers in zip(batches, *found, strict=True):
        seen = [torch.cat(pair)[-20:] for pair in zip(seen, batch, strict=True)]
        alone.observe(torch.cat(seen))
        alone.update()
        for centroids in of_workers:
            assert torch.equal(centroids, alone.centroids)


def test_one_worker_takes_over_the_banks_of_several():
    states = groups(30)
    module, whole = clustering(), clustering()
    whole.observe(states)
    saved = whole.state_dict()
    saved["_extra_state"]["banks"] = list(saved["_extra_state"]["banks"][0].split(12))
    module.load_state_dict(saved)
    for clusters in (module, whole):
        clusters.update()
    assert torch.equal(module.centroids, whole.centroids)

"""From an assignment to layouts: what a kind of one's own may assign."""

import math

import pytest
import torch

from fairseq_clusterformer.attention import (
    Assignment,
    Batch,
    ClusterOptions,
    Kind,
    MultiheadAttention,
    Round,
    Shape,
    Tokens,
    Traits,
)
from fairseq_clusterformer.attention.attend import attend
from fairseq_clusterformer.attention.projections import QKV

LENGTH, CLUSTERS = 12, 4


class Given(Kind):
    """Clusters that stand in an attribute."""

    def assign(self, tokens, state):
        return self.given, state


def kind_of(given: Assignment, *, own: str = "in_cluster", causal: bool = False) -> Given:
    made = type("Given", (Given,), {"declare": lambda self, *_: Traits(own=own)})
    kind = made(ClusterOptions(window=3, clusters=CLUSTERS), Shape(8, 2, 4, causal))
    kind.given = given
    return kind


def tokens_of(padding_mask=None) -> Tokens:
    x = torch.zeros(2, LENGTH, 8)
    return Tokens(x, (x, x), Batch(padding_mask), impl="reference")


def attended(kind: Kind) -> torch.Tensor:
    q, k, v = torch.linspace(-9, 9, 3 * 2 * 2 * LENGTH * 4).cos().view(3, 2, 2, LENGTH, 4)
    return attend(QKV(q, k, v), kind(tokens_of()), kind.rule, None)[0]


def ids() -> torch.Tensor:
    return torch.arange(2 * LENGTH).view(2, 1, LENGTH) * 7 % 5 % CLUSTERS


@pytest.mark.parametrize(
    "rounds",
    [
        (Round((ids(),)),),
        (Round((ids(), (ids() + 1) % CLUSTERS)),),
        (Round((ids(),)), Round((ids().flip(-1),))),
    ],
)
def test_a_query_whose_cluster_shows_its_own_key_sees_it_so_alone(rounds):
    given = Assignment(rounds)
    found = attended(kind_of(given, own="always"))
    torch.testing.assert_close(found, attended(kind_of(given)))
    assert found.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wrong", [-1, CLUSTERS, 10**6])
@pytest.mark.parametrize("field", ["query", "round", "key", "probes"])
def test_a_cluster_that_the_kind_does_not_have_is_named(field, wrong, causal):
    bad = ids()
    bad[1, 0, 5] = wrong
    rounds = {
        "query": (Round((bad,)),),
        "round": (Round((ids(),)), Round((bad,))),
        "key": (Round((ids(),), bad),),
        "probes": (Round((ids(), bad)),),
    }
    kind = kind_of(Assignment(rounds[field]), causal=causal)
    with pytest.raises(ValueError, match=f"Given assigned cluster {wrong}; allowed: 0 to 3$"):
        kind(tokens_of())
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[1, 5] = True
    kind(tokens_of(padding))


def test_so_it_is_in_a_graph():
    """Of one piece, and without a look at what is in the tensors."""

    def run(clusters):
        kind.given = Assignment.once(clusters)
        return kind(tokens_of()).sight.ranges[0].lo + 0

    kind = kind_of(Assignment(), causal=True)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(ids()), run(ids()))
    with pytest.raises(RuntimeError, match="Given assigned clusters that it does not have; allow"):
        compiled(ids() + 1)
    assert math.isfinite(compiled(ids()).sum())
    torch._dynamo.reset()


def test_a_head_that_is_too_wide_for_the_kernel():
    pytest.importorskip("triton", reason="triton is not installed")
    module = MultiheadAttention(257, 1, kinds="window", causal=True, kernel="triton")
    with pytest.raises(ValueError, match="head is 257 wide; allowed for the kernel triton"):
        module(torch.randn(1, 1, 257))

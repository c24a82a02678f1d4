"""Clusters that attention teaches: who sees what in training, what is taught, and to whom."""

import math

import pytest
import torch

from fairseq_clusterformer.attention import Batch, MultiheadAttention, Tokens
from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.kinds.taught import kind as taught_module
from fairseq_clusterformer.attention.kinds.taught import means as means_module
from fairseq_clusterformer.attention.kinds.taught.scouts import (
    Scouts,
    draw_scouts,
    routing_gain,
    routing_loss,
    scout_layouts,
)
from fairseq_clusterformer.attention.tokens import gather_tokens
from fairseq_clusterformer.clustering import shares as shares_module
from fairseq_clusterformer.clustering.fuzzy import Similarity
from fairseq_clusterformer.clustering.shares import Scores

from ..kinds import by_steps

B, N, D, H, K = 2, 19, 16, 2, 5
E = D // H
R = 3  # width of what routes


def layer(spec: str, causal: bool = True, **options) -> MultiheadAttention:
    torch.manual_seed(1)
    return MultiheadAttention(D, H, kinds=spec, causal=causal, **options).double()


def batches() -> dict[str, Batch]:
    padding = torch.zeros(B, N, dtype=torch.bool)
    padding[0, :4] = padding[1, -3:] = True
    documents = torch.zeros(B, N, dtype=torch.long)
    documents[0, 7:] = documents[1, 12:] = 1
    documents[1, 15:] = 2
    return {"plain": Batch(), "padded": Batch(padding), "documents": Batch(documents=documents)}


@pytest.mark.parametrize("impl", ["reference", "blocks", "cpu"])
@pytest.mark.parametrize("gap", [1, 4])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["plain", "padded", "documents"])
@pytest.mark.parametrize("form", ["cosine", "held", "dot, heads share", "held, heads share"])
def test_the_loss_is_that_of_plain_loops(name, causal, gap, impl, form, monkeypatch):
    monkeypatch.setattr(shares_module, "CPP_FROM", 0)
    torch.manual_seed(2)
    batch, J = batches()[name], 1 if "share" in form else H
    mask = batch.padding_mask
    q, k = torch.randn(2, B, H, N, E).double()
    logits, x = torch.randn(B, H, N, K).double(), torch.randn(B, J, N, R).double()
    vectors, held = torch.randn(J, K, R).double(), torch.randn(B, J, N).double()
    held = held.sigmoid().log() if "held" in form else None
    leaves = [t.requires_grad_() for t in (logits, x, vectors, held) if t is not None]
    similarity = Similarity("scaled-dot" if "dot" in form else "cosine")
    keys = Scores(x, vectors, None, mask, similarity, held)
    queries, places = draw_scouts(7, H, q[:, 0], mask)
    layouts = scout_layouts(queries, causal=causal, gap=gap, batch=batch)
    scouts = Scouts(queries, places, gather_tokens(logits.softmax(-1), places), keys)
    assert (keys.shares_for_cpp(impl) is not None) == (impl == "cpu")
    found = routing_loss(routing_gain(q, k, layouts, scouts, impl=impl))

    of_queries = logits.softmax(-1)
    of_keys = shares_of_keys(x, vectors, similarity, mask, held).repeat_interleave(H // J, dim=1)
    gains = []
    for b in range(B):
        hidden = torch.zeros(N) if batch.padding_mask is None else batch.padding_mask[b]
        document = torch.zeros(N) if batch.documents is None else batch.documents[b]
        real = [n for n in range(N) if not hidden[n]]
        for h in range(H):
            for i in real:
                seen = [
                    j
                    for j in real
                    if document[i] == document[j]
                    and abs(real.index(i) - real.index(j)) >= gap
                    and (j < i or not causal)
                ]
                if not queries[b, h, i] or not seen:
                    continue
                a = (k[b, h, seen] @ q[b, h, i] / math.sqrt(E)).softmax(0)
                p, s = of_queries[b, h, i], of_keys[b, h, seen]
                gains.append(torch.log(a @ s @ p / (s @ p).mean()))
    expected = -torch.stack(gains).mean()
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(loss, leaves) for loss in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def shares_of_keys(x, vectors, similarity, padding_mask, log_held) -> torch.Tensor:
    """Shares of keys [B, J, N, K], by a loop over heads."""
    real = torch.ones(B, N, dtype=torch.bool) if padding_mask is None else ~padding_mask
    found = []
    for head, of_head in enumerate(vectors):
        scores = similarity.vectors(x[:, head]) @ of_head.T
        held = torch.ones(B, N).double() if log_held is None else log_held[:, head].exp()
        mass = (scores.exp() * held.unsqueeze(-1))[real].sum(0)
        found.append((scores.exp() / mass).div((scores.exp() / mass).sum(-1, keepdim=True)))
        found[-1] = found[-1] * held.unsqueeze(-1)
    return torch.stack(found, dim=1)


@pytest.fixture
def threads():
    """How many threads torch has, to be set."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_scouts_of_a_long_text_in_cpp(monkeypatch, threads):
    """Several strips, some of which no scout sees, in float32; whatever the number of threads."""
    monkeypatch.setattr(shares_module, "CPP_FROM", 0)
    torch.manual_seed(3)
    length, clusters = 700, 40
    x, vectors = torch.randn(1, H, length, 32), torch.randn(H, clusters, 32) / 0.2 / 32**0.5
    places = torch.tensor([[3, 70, 71, 300], [5, 90, 301, 302]]).unsqueeze(0)
    queries = torch.zeros(1, H, length, dtype=torch.bool).scatter_(-1, places, True)
    layouts = scout_layouts(queries, causal=True, gap=3, batch=Batch())
    q, k = torch.randn(2, 1, H, length, 64)
    shares = torch.randn(1, H, 4, clusters).softmax(-1)
    found = []
    for dtype, impl in ((torch.float64, "blocks"), (torch.float32, "cpu")):
        leaves = [t.to(dtype).requires_grad_() for t in (shares, x, vectors)]
        keys = Scores(*leaves[1:], None, None, Similarity("cosine"))
        scouts = Scouts(queries, places, leaves[0], keys)
        threads(1)
        gain = routing_gain(q.to(dtype), k.to(dtype), layouts, scouts, impl=impl)
        loss = gain.nats.square().sum()
        gradients = torch.autograd.grad(loss, leaves, retain_graph=True)
        found.append([gain.nats, *gradients])
    threads(2)
    gain = routing_gain(q, k, layouts, scouts, impl="cpu")
    again = [gain.nats, *torch.autograd.grad(gain.nats.square().sum(), leaves)]
    assert all(map(torch.equal, again, found[1]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.double(), one, rtol=1e-4, atol=1e-5)


def test_the_loss_is_zero_where_nobody_teaches(monkeypatch):
    module = layer(f"taught(clusters={K},scouts=0)").train()
    assert module(torch.randn(B, N, D).double())[1][0].routing_loss is None
    monkeypatch.setattr(shares_module, "CPP_FROM", 0)
    shares = torch.full((1, 1, 2, K), 1 / K).double().requires_grad_()
    x = torch.randn(1, 1, 2, R).double().requires_grad_()
    keys = Scores(x, torch.randn(1, K, R).double(), None, None, Similarity("cosine"))
    queries, places = draw_scouts(2, 1, shares[:, 0], None)
    layouts = scout_layouts(queries, causal=True, gap=2, batch=Batch())
    q = torch.randn(1, 1, 2, E).double()
    scouts = Scouts(queries, places, shares, keys)
    for impl in ("reference", "cpu"):
        loss = routing_loss(routing_gain(q, q, layouts, scouts, impl=impl))
        assert loss == 0
        for gradient in torch.autograd.grad(loss, (shares, x)):
            assert torch.equal(gradient, torch.zeros_like(gradient))


@pytest.mark.parametrize("gap", [0, 5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["plain", "padded", "documents"])
@pytest.mark.parametrize(
    ("spec", "training"),
    [
        (f"taught(window=2,clusters={K},scouts={N},gap={{}})", True),  # all are scouts
        (f"taught(window={N + 1},clusters=3,probes=3,gap={{}})", False),  # all clusters probed
    ],
)
def test_who_sees_all_attends_as_dense_attention_does(spec, training, name, causal, gap):
    taught, dense = layer(spec.format(gap), causal).train(training), layer("full", causal)
    dense.load_state_dict(taught.state_dict(), strict=False)
    x, batch = torch.randn(B, N, D).double(), batches()[name]
    real = slice(None) if batch.padding_mask is None else ~batch.padding_mask
    torch.testing.assert_close(taught(x, batch)[0][real], dense(x, batch)[0][real])
    if training:
        assert not torch.allclose(taught.eval()(x, batch)[0][real], dense(x, batch)[0][real])


def test_other_queries_see_their_cluster():
    module = layer(f"taught(window=3,clusters={K},scouts=4)")
    x = torch.randn(B, N, D).double()
    (alone,) = tokens_seen(module.eval(), x).values()
    (seen,) = tokens_seen(module.train(), x).values()
    dense = torch.ones(N, N, dtype=torch.bool).tril()
    scouts = (seen == dense).all(-1)
    changed = (seen != alone).any(-1)
    assert (scouts[..., 6:] | ~changed[..., 6:]).all()  # what is not a scout's is as before
    assert changed.any()
    assert changed.sum(-1).max() <= 4


def test_a_row_has_at_most_its_share_of_scouts():
    x, mask = torch.zeros(3, N, D), torch.zeros(3, N, dtype=torch.bool)
    mask[0, 5:], mask[2] = True, True
    for padding_mask, expected in ((None, [N // 4] * 3), (mask, [1, N // 4, 0])):
        queries, places = draw_scouts(8, H, x, padding_mask, 0.25)
        assert queries.sum(-1).tolist() == [[n] * H for n in expected]
        found = queries.gather(-1, places).sum(-1)
        assert torch.equal(found, queries.sum(-1))  # all are among the places
    few = torch.zeros(3, 3, dtype=torch.bool)
    few[0, 1:] = True
    for padding_mask in (None, few):  # one at least
        assert (draw_scouts(8, H, x[:, :3], padding_mask, 0.25)[0].sum(-1) == 1).all()
    assert draw_scouts(2, H, x, mask, 0.9)[0].sum(-1).tolist() == [[2] * H, [2] * H, [0] * H]


@pytest.mark.parametrize("more", ["", ",routes_by=heads", ",routes_by=heads,drop_keys=0.5"])
def test_the_task_teaches_no_router_and_the_router_nothing_else(more):
    module = layer(f"taught(window=3,clusters={K},scouts=6{more})").train()
    x = torch.randn(B, N, D).double().requires_grad_()
    out, (report,) = module(x)
    routers = [p for n, p in module.named_parameters() if n.startswith("routers")]
    others = [p for n, p in module.named_parameters() if not n.startswith("routers")]
    of_task = torch.autograd.grad(
        out.square().sum(), [*routers, *others], retain_graph=True, allow_unused=True
    )
    assert all(g is None or not g.any() for g in of_task[: len(routers)])
    assert all(g is not None for g in of_task[len(routers) :])
    of_loss = torch.autograd.grad(report.routing_loss, [*routers, *others, x], allow_unused=True)
    assert all(g is not None and g.any() for g in of_loss[: len(routers)])
    assert all(g is None or not g.any() for g in of_loss[len(routers) :])


def test_scouts_teach_as_much_as_the_task_needs_them(monkeypatch):
    """A task that reads one token alone: its scouts alone teach, as much as all else would."""
    module = layer(f"taught(window=3,clusters={K},scouts={N},routing_convolution=0)").train()
    x = torch.randn(B, N, D).double()
    router = list(module.routers.parameters())

    gains, original = [], taught_module.routing_loss

    def noted(gain):
        gains.append(gain)
        return original(gain)

    monkeypatch.setattr(taught_module, "routing_loss", noted)

    def taught(need: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, (report,) = module(x)
        loss = report.routing_loss + (out * need.unsqueeze(-1)).sum()
        return torch.autograd.grad(loss, router)

    def alone(of: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Of the mean over those tokens."""
        module(x)
        of = of.unsqueeze(1) & gains[-1].of
        return torch.autograd.grad(-(gains[-1].nats * of).sum() / of.sum(), router)

    everything, some = torch.ones(B, N), torch.zeros(B, N)
    some[:, 7] = 2.5  # any factor
    torch.testing.assert_close(taught(0 * everything), alone(everything > 0))
    torch.testing.assert_close(taught(some), alone(some > 0))
    assert not torch.allclose(taught(some)[0], alone(everything > 0)[0])


def test_scouts_teach_in_every_third_update():
    """And after resuming, in those that come then; dense updates teach each time."""
    spec = f"taught(window=3,clusters={K},scouts=2,teach_every=3,dense_updates=2)"
    module, x = layer(spec).train(), torch.randn(B, N, D).double()
    taught = []
    for update in range(8):
        if update == 5:
            state, module = module.state_dict(), layer(spec).train()
            module.load_state_dict(state)
        module.commit()
        (seen,) = tokens_seen(module, x).values()
        assert (seen.sum(-1) == torch.arange(N) + 1).all() == (update < 2)
        _, reports = module(x)
        taught.append(reports[0].routing_loss is not None)
        module.observe(reports)
    assert taught == [True, True, False, True, False, False, True, False]
    plain = layer(f"taught(window=3,clusters={K},scouts=0)").train()
    plain.load_state_dict(module.state_dict())
    module.commit()
    torch.testing.assert_close(module(x)[0], plain(x)[0])  # updates 7: nobody sees more


def test_queries_and_keys_that_match_begin_in_one_cluster():
    router = layer(f"taught(clusters={K},routes_by=heads)").routers[0]
    x, alike = torch.randn(B, N, D).double(), torch.randn(B, H, N, E).double()
    (((queries,), keys),) = router.assign(Tokens(x, (alike, alike), Batch()), {})[0].rounds
    assert torch.equal(queries, keys)
    assert len(queries.unique()) > 1


@pytest.mark.parametrize("padded", [False, True])
def test_that_share_of_the_keys_is_in_no_cluster(padded):
    options = f"window={N + 1},clusters={K},probes={K},drop_keys=0.4,routing_convolution=0"
    module = layer(f"taught({options})").train()
    x = torch.randn(8, N, D).double()
    mask = torch.zeros(8, N, dtype=torch.bool)
    mask[:4, 9:] = padded
    drawn = torch.randn(1, 2000, D).double()
    gates = module.routers[0].gate(drawn).amax(1).squeeze(0)
    x[mask] = drawn[0, gates.argmin()]  # the lowest gates, if they counted
    module.observe(module(x, mask)[1])
    module.commit()
    (seen,) = tokens_seen(module.eval(), x, batch=Batch(mask)).values()
    own = torch.eye(N, dtype=torch.bool)
    held = (seen & ~own).any(-2)[..., :-1]  # nobody comes after the last token
    real = ~mask[:, None, :-1].expand_as(held)
    if padded:
        real[:4, :, 8] = False
    share = held[real].double().mean()
    assert 0.5 < share < 0.7


def test_what_scouts_teach_of_a_key_counts_by_how_surely_it_is_held():
    module = layer(f"taught(clusters={K},routing_convolution=0,drop_keys=0.4)").train()
    router, x = module.routers[0], torch.randn(B, N, D).double()
    shares = router(Tokens(x, None, Batch())).assignment.scouts.keys.shares()
    gates = router.gate(x) / 0.2
    ordered = gates.transpose(0, 1).flatten(1).sort(-1).values
    least = ordered[:, int(0.4 * B * N)].view(1, H, 1)
    torch.testing.assert_close(shares.sum(-1), (gates - least).sigmoid())


def test_keys_that_are_alike_are_dropped_alike():
    """In step-by-step decoding as well, although one of them sets the least gate of all."""
    torch.manual_seed(1)
    spec = "taught(window=8,clusters=3,drop_keys=0.5,routing_convolution=0)"
    module = MultiheadAttention(256, 4, kinds=spec, causal=True).train()
    words = torch.randn(30, 256)
    generator = torch.Generator().manual_seed(1)

    def rows() -> torch.Tensor:
        drawn = torch.randint(1, 30, (4, 60), generator=generator)
        often = torch.rand(4, 60, generator=generator) < 0.7
        return words[drawn.masked_fill(often, 0)]

    for _ in range(30):
        module.observe(module(rows())[1])
        module.commit()
    x = rows()[:1]
    expected, _ = module.eval()(x)
    torch.testing.assert_close(by_steps(module, x)[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("causal", "gap"), [(True, 1), (True, 5), (False, 1)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("more", ["", ",drop_keys=0.6", ",probes=2,routes_by=heads"])
def test_each_key_counts_once_with_means_of_clusters(causal, gap, padded, more):
    """Where keys are alike a mean stands for them exactly: the output is that of dense attention,
    if rings hold all and, causal, a chunk is one token."""
    spec = f"taught(window={N + 1},clusters=4,summaries=1,gap={gap},scouts=9{more})"
    layer = MultiheadAttention(16, 2, kinds=spec, causal=causal).double()
    dense = MultiheadAttention(16, 2, kinds="full", causal=causal).double()
    torch.nn.init.zeros_(layer.k_proj.weight)
    torch.nn.init.normal_(layer.k_proj.bias)
    dense.load_state_dict(layer.state_dict(), strict=False)
    x, mask = torch.randn(B, N, 16).double(), torch.zeros(B, N, dtype=torch.bool)
    if padded:
        mask[0, :6] = mask[1, -4:] = True
    found, reports = layer.train()(x, mask)  # scouts and others side by side
    expected = dense(x, mask)[0][~mask]
    torch.testing.assert_close(found[~mask], expected)
    layer.observe(reports)
    layer.commit()
    torch.testing.assert_close(layer.eval()(x, mask)[0][~mask], expected)


@pytest.mark.parametrize("gap", [1, 9])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sees", ["index=5", "window=6"])
def test_a_prompt_without_gradients_sees_the_same_means(sees, padded, gap, monkeypatch):
    """C++ makes its means, also of a second portion, and not where all is torch's."""
    spec = f"taught({sees},clusters=9,probes=2,summaries=4,gap={gap},clusters_per=kv-head)"
    module, length = layer(spec, kv_heads=1).eval(), 70
    x, mask = torch.randn(B, length, D).double(), torch.zeros(B, length, dtype=torch.bool)
    if padded:
        mask[0, :6] = True
    expected, calls, run = module(x, mask)[0], [], means_module.cpu.means
    monkeypatch.setattr(means_module.cpu, "means", lambda *a: calls.append(1) or run(*a))
    with torch.no_grad():
        found = module(x, mask)[0]
    first, past = module.step(x[:, :33], batch=mask[:, :33])
    portions = torch.cat([first, module.step(x[:, 33:], past, batch=mask[:, 33:])[0]], dim=1)
    assert len(calls) == 3
    for out in (found, portions):
        torch.testing.assert_close(out[~mask], expected[~mask])


def test_the_rest_of_a_list_teaches_as_its_mean():
    """Its logit replaces that of the mean, and passes on the gradient; without a mean it is
    nothing, nor where the index shows all."""
    logits = torch.randn(1, 1, 3, 4).double()
    logits[..., 3] = means_module.HIDDEN  # no mean
    looked = torch.tensor([[0, 3], [2, 1], [1, 0]]).view(1, 1, 3, 2)
    rest = torch.tensor([[0.7, 5.0], [-torch.inf, -1.0], [0.1, 3.0]]).double().view(1, 1, 3, 2)
    expected = logits.clone()
    expected[0, 0, [0, 1, 1, 2, 2], [0, 2, 1, 1, 0]] = rest.flatten()[[0, 2, 3, 4, 5]]
    logits.requires_grad_()
    weights, lse = means_module.MeansOfOthers.softmax(None, logits, looked, rest)
    torch.testing.assert_close(weights, expected.softmax(-1))
    torch.testing.assert_close(lse, expected.logsumexp(-1))
    (gradient,) = torch.autograd.grad(lse.sum(), logits)
    torch.testing.assert_close(gradient, expected.softmax(-1))


@pytest.mark.parametrize("gap", [1, 4])
def test_scouts_see_every_key_without_gradients_too(gap):
    """As when an activation checkpoint runs for the first time."""
    module, x = layer(f"taught(index=2,clusters=3,gap={gap},scouts=9)").train(), []
    for grad in (True, False):
        torch.manual_seed(4)
        with torch.set_grad_enabled(grad):
            x.append(module(torch.randn(B, N, D).double())[0])
    torch.testing.assert_close(x[1], x[0])


def test_a_token_has_the_same_gradient_alone():
    """Of an index with means, whether it came in a text or one step later."""
    spec = "taught(index=2,clusters=3,probes=2,summaries=3,gap=3,routing_convolution=0)"
    module, x, found = layer(spec).eval(), torch.randn(B, N, D).double(), []
    for size in (1, 2):
        past = module.step(x[:, :-size])[1]
        out, *_ = module.following(x[:, -size:], past)
        found.append(torch.autograd.grad(out[:, -1].square().sum(), module.q_proj.weight)[0])
    assert found[0].any()
    torch.testing.assert_close(*found)


@torch.no_grad()
def test_equal_keys_are_seen_together():
    """Of an index, whoever chooses, and in steps: all that are equal to the last of its keys."""
    module = layer("taught(index=2,clusters=3,routing_convolution=0,summaries=4,gap=2)").eval()
    x, found = torch.randn(B, 3, D).double()[:, torch.arange(N) % 3], []
    for module.impl in ("cpu", "blocks"):
        found += module(x)[0], by_steps(module, x)[0]
    for out in found[1:]:
        torch.testing.assert_close(out, found[0])

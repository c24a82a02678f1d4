"""Heads that change places, positions that are repeated, kinds that suit heads, and routers that
are fitted to a dense model."""

from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention.inspect import tokens_seen
from fairseq_clusterformer.attention.options import parse_attention
from fairseq_clusterformer.conversion.batches import far_of
from fairseq_clusterformer.conversion.convert import Plan, _spec, mass_and_sinks
from fairseq_clusterformer.conversion.fit import _loss, _wanted, begin, calibrate, fit, pupils
from fairseq_clusterformer.conversion.measure import (
    Mass,
    head_mass,
    kinds_for,
    order_of_heads,
    read,
    recall,
)
from fairseq_clusterformer.conversion.model import permute_heads
from fairseq_clusterformer.models.stack import SelfAttention


def attention(kinds: str = "full", **options) -> SelfAttention:
    torch.manual_seed(1)
    options = {"causal": True, "rotary": True, "short_convolution": 3, **options}
    return SelfAttention(24, 6, kinds=kinds, **options).eval()


def test_what_is_all_near_teaches_nothing() -> None:
    short, long = ({"src_tokens": torch.zeros(2, length)} for length in (8, 9))
    pair = short | {"prev_output_tokens": torch.zeros(2, 9)}
    assert far_of([short, long, pair], 8) == [long, pair]
    assert far_of([short, short], 8) == [short, short]


def mass(far: list[float], best: list[float] | None = None) -> Mass:
    return Mass(torch.tensor(far), torch.tensor([1.0] * len(far) if best is None else best))


class TestKinds:
    @pytest.mark.parametrize(
        ("far", "expected"),
        [
            ([0.5, 0.01, 0.4, 0.02], "window cluster"),
            ([0.5, 0.01, 0.4, 0.9], "window cluster cluster cluster"),
            ([0.5, 0.01, 0.4, 0.9, 0.3], "cluster"),  # one is promoted, as 5 do not divide
            ([0.0] * 4, "window"),
            ([0.01] * 5 + [0.5] * 7, "window cluster cluster"),  # 4 and 8
        ],
    )
    def test_of_a_layer(self, far: list[float], expected: str) -> None:
        assert kinds_for(torch.tensor(far), 0.05) == expected.split()

    @pytest.mark.parametrize(
        ("spec", "far", "best", "shared", "expected"),
        [
            ("taught+window", [0.5, 0.01, 0.4, 0.02], None, 1, [2, 0, 1, 3]),
            (
                "taught+window(8)+full+window(4)",
                [0.5, 0, 0.4, 0.1],
                [0.5, 1, 1, 1],
                1,
                [2, 3, 0, 1],
            ),
            ("full+taught", [0.5, 0.2, 0.4, 0.9], [0.2, 1.0, 0.9, 0.3], 1, [3, 0, 1, 2]),
            ("taught+window", [0.5, 0.01, 0.2, 0.02], None, 2, [0, 1, 2, 3]),
            ("taught+window", [0.1, 0.01, 0.2, 0.02], None, 2, [2, 3, 0, 1]),
        ],
    )
    def test_places(self, spec: str, far, best, shared: int, expected: list[int]) -> None:
        (kinds,) = parse_attention(spec, num_layers=1, num_heads=4)
        assert order_of_heads(kinds, mass(far, best), shared) == expected

    @pytest.mark.parametrize(
        ("options", "kv_heads", "expected"),
        [
            ({}, 2, ",summaries=64,clusters_per=kv-head"),
            ({"summaries": 0, "clusters_per": "head", "rings": True}, 2, ""),
            ({"summaries": 9, "clusters_per": "kv-head"}, 6, ",summaries=9,clusters_per=kv-head"),
        ],
    )
    def test_means_and_what_has_clusters(self, options: dict, kv_heads: int, expected) -> None:
        model = Model(attention(kv_heads=kv_heads))
        model.max_positions = lambda: 256
        plan, of_layer = Plan(near=8, far=8, **options), {PLACE: mass([0.5] * 6)}
        spec = _spec("decoder", of_layer, SimpleNamespace(model=model), plan, 3)
        sees = "window=4,clusters=32,probes=2"
        if not plan.rings:
            sees = "index=8,routing_convolution=0,clusters=32,probes=8"
            many = SimpleNamespace(model=model), replace(plan, clusters=99), 3
            assert "clusters=99,probes=24," in _spec("decoder", of_layer, *many)
        assert spec == f"taught({sees},gap=8,scouts=16,sinks=3{expected})"

    def test_means_of_long_texts_are_renewed_less_often(self) -> None:
        model = SimpleNamespace(model=Model(attention(kv_heads=2)))
        for positions, every in ((8_192, 64), (32_768, 256)):
            plan = Plan(near=8, far=8, max_positions=positions)
            spec = _spec("decoder", {PLACE: mass([0.5] * 6)}, model, plan, 3)
            assert f",summaries={every}," in spec


class Layer(torch.nn.Module):
    def __init__(self, of: SelfAttention):
        super().__init__()
        self.self_attn = of


class Model(torch.nn.Module):
    """One layer of attention, which reads vectors."""

    def __init__(self, of: SelfAttention):
        super().__init__()
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList([Layer(of)])
        self.decoder.all_layers = self.decoder.layers.children

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        x = x.transpose(0, 1)
        of = self.decoder.layers[0].self_attn
        return of(x, padding_mask)[0].transpose(0, 1)


def pairs(batch: int, length: int, number: int = 8) -> Tensor:
    """Vectors of symbols that stand anywhere, with much noise in the other half, [B, N, 24]."""
    symbols = torch.randint(number, (batch, length))
    names = torch.randn(number, 12, generator=torch.Generator().manual_seed(3))
    return torch.cat([2 * names[symbols], torch.randn(batch, length, 12)], dim=-1)


def dense_of_pairs(causal: bool, kv_heads: int = 6) -> SelfAttention:
    """Heads that attend to the same symbol, but for the last one of keys, by which queries look at
    themselves alone."""
    dense = attention(causal=causal, kv_heads=kv_heads, rotary=False, short_convolution=0)
    with torch.no_grad():
        for projection in (dense.q_proj, dense.k_proj):
            weight = torch.randn(kv_heads, 4, 24, generator=torch.Generator().manual_seed(5))
            weight[:-1, :, 12:] = 0.0
            weight[-1, :, :12] = 0.0
            weight = weight.repeat_interleave(len(projection.weight) // 4 // kv_heads, dim=0)
            projection.weight.copy_(weight.flatten(0, 1))
            projection.bias.zero_()
    return dense


PLACE = ("decoder", 0)
TAUGHT = "taught(window=8,clusters=8,gap=8)"


class Models(NamedTuple):
    dense: Model
    clustered: Model
    order: list[int]
    batches: list[dict[str, Tensor]]


@pytest.fixture(params=["causal", "encoder", "shared keys"])
def models(request: pytest.FixtureRequest) -> Models:
    causal, kv_heads = request.param != "encoder", 3 if request.param == "shared keys" else 6
    dense = dense_of_pairs(causal, kv_heads)
    taught = TAUGHT.replace(")", ",clusters_per=kv-head)") if kv_heads == 3 else TAUGHT
    spec = "window(8)" + f"+{taught}" * (kv_heads - 1)
    how = {"causal": causal, "kv_heads": kv_heads, "rotary": False, "short_convolution": 0}
    clustered = attention(spec, **how)
    order = [4, 5, 0, 1, 2, 3] if kv_heads == 3 else [5, 0, 1, 2, 3, 4]
    state = dict(dense.state_dict())
    permute_heads(state, "", dense, order)
    clustered.load_state_dict(state)
    torch.manual_seed(2)
    batches = [{"x": pairs(2, 128)} for _ in range(6)]
    return Models(Model(dense), Model(clustered), order, batches)


class TestMass:
    @pytest.mark.parametrize("causal", [True, False])
    def test_far_and_best_by_hand(self, causal: bool) -> None:
        dense = Model(attention(causal=causal, rotary=False, short_convolution=0))
        x = torch.randn(1, 20, 24)
        far, best = head_mass(dense, [{"x": x}], 4, 4)[PLACE]
        of = dense.decoder.layers[0].self_attn
        q, k = (p(x).view(20, 6, 4).transpose(0, 1) for p in (of.q_proj, of.k_proj))
        distance = torch.arange(20)[:, None] - torch.arange(20)
        seen = distance >= 0 if causal else distance.abs() >= 0
        weights = (q @ k.mT / 2).masked_fill(~seen, -torch.inf).softmax(-1)
        # causal, a window of 4 has the query's own key; else 4 on either side besides
        beyond = distance >= 4 if causal else distance.abs() > 4
        theirs = (weights * beyond)[:, beyond.any(-1)]  # the first may have nothing beyond it
        number = 4 if causal else 8
        heaviest = theirs.sort(-1, descending=True).values[..., :number].sum(-1)
        torch.testing.assert_close(far.float(), theirs.sum(-1).mean(-1))
        expected = 1 - theirs.sum(-1) + heaviest
        torch.testing.assert_close(best.float(), expected.mean(-1))

    def test_sinks_are_found_and_count_as_near(self) -> None:
        dense, x = Model(attention(rotary=False, short_convolution=0)), torch.randn(2, 60, 24)
        of = dense.decoder.layers[0].self_attn
        with torch.no_grad():
            of.q_proj.bias.fill_(1.0)
            of.k_proj.weight[:, 0] = 1.0
        x[..., 0] = 0.0
        loaded = SimpleNamespace(model=dense)
        sinks, mass = mass_and_sinks(loaded, [{"x": x}], Plan(near=8, far=8))
        assert sinks == 0
        assert mass[PLACE].far.min() > 0.4
        x[:, 0, 0] = 4.0  # a bonus of 8 nats for the first key
        sinks, mass = mass_and_sinks(loaded, [{"x": x}], Plan(near=8, far=8))
        assert sinks == 4
        assert mass[PLACE].far.max() < 0.3
        asked, theirs = mass_and_sinks(loaded, [{"x": x}], Plan(near=8, far=8, sinks=0))
        assert asked == 0
        plan = Plan(specs={"decoder": "window(8,sinks=4)+window(8,sinks=3)"}, near=8, far=8)
        assert mass_and_sinks(loaded, [{"x": x}], plan)[0] == 3
        plan = Plan(specs={"decoder": "full+window(8,sinks=4)"}, near=8, far=8)
        assert mass_and_sinks(loaded, [{"x": x}], plan)[0] == 4  # full heads see them anyway
        assert theirs[PLACE].far.min() > 0.7

    def test_padding_counts_nothing(self) -> None:
        dense = Model(attention(causal=False, rotary=False, short_convolution=0))
        x, mask = torch.randn(2, 30, 24), torch.zeros(2, 30, dtype=torch.bool)
        mask[1, 20:] = True
        layer = dense.decoder.layers[0].self_attn
        layer.out_proj.register_forward_hook(lambda *_: pytest.fail("what nobody reads is run"))
        one = head_mass(dense, [{"x": x, "padding_mask": mask}], 4, 4)[PLACE]
        parts = [{"x": x[:1]}, {"x": x[1:, :20]}]
        for found, expected in zip(one, head_mass(dense, parts, 4, 4)[PLACE], strict=True):
            torch.testing.assert_close(found, expected)


class TestFit:
    def test_clusters_find_what_attention_finds(self, models: Models) -> None:
        dense, clustered, order, (held_out, *batches) = models
        routers = pupils(dense, clustered, {PLACE: order})
        heads = dense.decoder.layers[0].self_attn.kv_heads - 1  # that look far, of keys
        assert sum((pupil.heads for pupil in routers), []) == [*range(6 // (heads + 1) * heads)]
        assert sum(len(pupil.router.centroids) for pupil in routers) == heads
        before = {name: t.clone() for name, t in clustered.state_dict().items()}

        def measured() -> tuple[Tensor, Tensor]:
            seen, chance = recall(dense, clustered, [held_out], PLACE, order, 8)
            return seen[:-1].mean(), chance[:-1].mean()

        untouched, _ = measured()
        begin(dense, routers, batches[:2], seed=1)
        calibrate(dense, routers, batches[:2])
        began, chance = measured()
        losses = fit(dense, routers, batches, updates=40, lr=0.01)
        calibrate(dense, routers, batches[:2])
        fitted, _ = measured()
        assert began > max(chance, untouched) + 0.15, (untouched, began, chance)
        assert fitted > began + 0.05, (began, fitted)
        assert losses[-1] < losses[0] - 0.2
        for name, tensor in clustered.state_dict().items():
            assert ".routers." in f".{name}" or torch.equal(tensor, before[name]), name

    @pytest.mark.parametrize("sinks", [0, 2])
    def test_attention_to_sinks_teaches_nothing(self, sinks: int) -> None:
        """All queries see them, whatever their cluster."""
        dense = dense_of_pairs(causal=True)
        kinds = TAUGHT.replace(")", f",sinks={sinks})")
        clustered = attention(kinds, rotary=False, short_convolution=0)
        (pupil,) = pupils(Model(dense), Model(clustered), {PLACE: [*range(6)]})
        reading = read(Model(dense), {"x": pairs(2, 60)})(PLACE)
        drawn = reading.k.clone()
        drawn[:, :, :2] = 9 * reading.q.mean(2, keepdim=True)
        losses = [_loss(pupil, reading._replace(k=k)) for k in (reading.k, drawn)]
        assert torch.equal(*losses) == (sinks == 2), losses

    def test_an_index_shows_the_best_of_its_clusters(self) -> None:
        """Beyond the window; as those that it chooses from are found another way."""
        dense = dense_of_pairs(causal=True)
        kinds = TAUGHT.replace("taught(", "taught(index=3,probes=2,sinks=1,")
        clustered = attention(kinds, rotary=False, short_convolution=0)
        x, order = pairs(2, 60), [2, 0, 1, 5, 4, 3]
        found, _ = recall(Model(dense), Model(clustered), [{"x": x}], PLACE, order, 8, 1)
        reading = read(Model(dense), {"x": x})(PLACE)
        logits = reading.q @ reading.k.mT * dense.head_dim**-0.5
        token = torch.arange(60)
        distance = token[:, None] - token
        weights = logits.masked_fill(distance < 0, -torch.inf).softmax(-1)
        beyond = (distance >= 8) & (token >= 1)
        (seen,) = tokens_seen(clustered, x.transpose(0, 1), None).values()
        best = (weights[:, order] * (seen & beyond)).topk(3, -1).values.sum(-1)
        near = (weights[:, order] * ((distance >= 0) & ~beyond)).sum(-1)
        of_places = (best + near)[:, :, beyond.any(-1)].mean((0, 2))
        torch.testing.assert_close(found[order].float(), of_places)

    def test_queries_of_an_index_learn_where_their_attention_is(self) -> None:
        """Its lists stay as they are; padding and sinks teach nothing."""
        dense = Model(dense_of_pairs(causal=True))
        kinds = TAUGHT.replace("taught(", "taught(index=99,probes=2,sinks=2,")
        clustered = Model(attention(kinds, rotary=False, short_convolution=0))
        order, mask = [*range(6)], torch.zeros(2, 128, dtype=torch.bool)
        mask[1, 100:] = True
        (pupil,) = pupils(dense, clustered, {PLACE: order})
        batches = [{"x": pairs(2, 128), "padding_mask": mask} for _ in range(4)]
        begin(dense, [pupil], batches, seed=1)
        calibrate(dense, [pupil], batches)
        with torch.no_grad():
            pupil.router.query_proj.weight.normal_()
        before = {name: t.clone() for name, t in pupil.router.state_dict().items()}
        held_out = [{"x": pairs(2, 128)}]
        drawn, _ = recall(dense, clustered, held_out, PLACE, order, 8, 2)
        losses = fit(dense, [pupil], batches, updates=40, lr=0.1)
        seen, _ = recall(dense, clustered, held_out, PLACE, order, 8, 2)
        assert (seen - drawn)[:-1].mean() > 0.2
        assert losses[-1] < losses[0] - 0.3
        for name, tensor in pupil.router.state_dict().items():
            assert torch.equal(tensor, before[name]) == (name != "query_proj.weight"), name
        reading = read(dense, batches[0])(PLACE)
        odd = reading.k.clone()
        odd[:, :, :2], odd[1, :, 100:] = 9.0, -9.0
        found = []
        for k in (reading.k, odd):
            torch.manual_seed(7)
            found.append([*_wanted(pupil, reading._replace(k=k))][0])
        torch.testing.assert_close(*found)
        assert set(found[0].sum(-1).round().unique().tolist()) == {0.0, 1.0}

    def test_an_index_of_an_encoder_learns_from_both_sides(self) -> None:
        dense = Model(dense_of_pairs(causal=False))
        kinds = TAUGHT.replace("taught(", "taught(index=99,probes=2,")
        how = {"causal": False, "rotary": False, "short_convolution": 0}
        (pupil,) = pupils(dense, Model(attention(kinds, **how)), {PLACE: [*range(6)]})
        batches = [{"x": pairs(2, 128)}]
        begin(dense, [pupil], batches, seed=1)
        wanted, *_ = _wanted(pupil, read(dense, batches[0])(PLACE))
        assert wanted.sum(-1).min() > 0.99  # the first queries have no far keys before them

    def test_normalisers_are_of_the_batches_given_last(self, models: Models) -> None:
        routers = pupils(models.dense, models.clustered, {PLACE: models.order})
        first, *others = models.batches[:3]
        found = []
        for given in ([first], others, [first]):
            calibrate(models.dense, routers, given)
            found.append([pupil.router.normalizer.log_normalizer.clone() for pupil in routers])
        for one, other, again in zip(*found, strict=True):
            assert not torch.allclose(one, other, atol=1e-3)
            torch.testing.assert_close(again, one)

    def test_of_pruned_heads(self, models: Models) -> None:
        """Numbers stay finite, and the dense model as it is."""
        dense, clustered, order, batches = models
        with torch.no_grad():
            of = dense.decoder.layers[0].self_attn
            of.q_proj.weight[:4] = of.k_proj.weight[4:8] = 0.0
        before = {name: t.clone() for name, t in dense.state_dict().items()}
        routers = pupils(dense, clustered, {PLACE: order})
        begin(dense, routers, batches[:1], seed=1)
        fit(dense, routers, batches[:1], updates=2, lr=0.01)
        assert all(t.isfinite().all() for pupil in routers for t in pupil.router.parameters())
        assert all(torch.equal(t, before[name]) for name, t in dense.state_dict().items())

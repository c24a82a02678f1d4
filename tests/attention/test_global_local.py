"""ETC's attention against the labelled softmax written out pair by pair."""

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.attention.global_local import (
    GlobalLocalAttention,
    Labels,
    Structure,
)

WIDTH, HEADS, GLOBAL, LONG = 12, 3, 5, 45
CLOSE = {"rtol": 0, "atol": 1e-12}


def attention(*, radius: int = 9, most: int = 3, **options) -> GlobalLocalAttention:
    module = GlobalLocalAttention(
        WIDTH, HEADS, radius=radius, max_distance=most, **options
    ).double()
    for bias in (p for name, p in module.named_parameters() if "bias" in name):
        torch.nn.init.normal_(bias, std=0.5)
    return module.eval()


def inputs(batch: int = 2, number: int = GLOBAL, length: int = LONG) -> list[Tensor]:
    return [torch.randn(batch, n, WIDTH, dtype=torch.float64) for n in (number, length)]


def structure(**options) -> Structure:
    """The second global token has no part, the last two overlap."""
    spans = torch.tensor([[[0, 1], [0, 0], [1, 20], [20, 42], [25, 42]]]).expand(2, -1, -1)
    return Structure(spans, LONG, **options)


def written_out(module: GlobalLocalAttention, x_global, x_long, given: Structure):
    """Both streams of one row by loops over all pairs."""
    streams = {"g": x_global, "l": x_long}
    results = []
    for side, own in enumerate("gl"):

        def heads(what: str, pair: str, x: Tensor) -> Tensor:
            return module.linear[module.named(what, pair)](x).view(len(x), HEADS, -1)

        q = heads("q", own * 2, streams[own])
        keys = torch.cat([heads("k", f"{own}2{s}", x) for s, x in streams.items()])
        values = torch.cat([heads("v", f"{own}2{s}", x) for s, x in streams.items()])
        rows = []
        for i in range(len(streams[own])):
            logits = torch.full((HEADS, len(keys)), -torch.inf, dtype=q.dtype)
            for j in range(len(keys)):
                label = label_of(module, given, own, i, j)
                if label is not None:
                    vector = keys[j] + module.label_vectors[side, label]
                    logits[:, j] = (q[i] * vector).sum(-1) + module.label_biases[side, label]
            weights = (logits * module.head_dim**-0.5).softmax(-1)
            rows.append(torch.einsum("hj,jhe->he", weights, values).flatten())
        results.append(module.linear[module.named("out", own * 2)](torch.stack(rows)))
    return results


def label_of(module, given: Structure, own: str, i: int, j: int, row: int = 0) -> int | None:
    """The label of a pair of one row, or None if the key is hidden; j counts global tokens, then
    long ones."""
    spans, number, k = given.spans[row].tolist(), given.spans.size(1), module.labels.most
    key = "g" if j < number else "l"
    place = j if key == "g" else j - number
    examples = {"g": given.global_examples, "l": given.long_examples}
    if examples["g"] is not None and examples[own][row, i] != examples[key][row, place]:
        return None
    distance = max(-k, min(k, place - i))
    relative = distance if distance >= 0 else k - distance
    if own == key == "g":
        paragraphs = given.paragraphs
        apart = paragraphs is not None and paragraphs[row, i] != paragraphs[row, place]
        return 2 * k + 3 if apart else relative
    if own == key == "l":
        return relative if abs(place - i) <= module.radius else None
    token, part = (i, place) if own == "g" else (place, i)
    mine = any(begin <= part < end for begin, end in spans[token])
    if own == "g" and module.hard and not mine:
        exempt = given.exempt is not None and given.exempt[row, i]
        return 2 * k + 1 if exempt else None
    return 2 * k + 2 if mine else 2 * k + 1


def test_labels_of_distances() -> None:
    """k = 3, written out: itself, 1 to 3 to the right, 4 to 6 to the left."""
    found = Labels(3).of_distance(torch.arange(-5, 6)).tolist()
    assert found == [6, 6, 6, 5, 4, 0, 1, 2, 3, 3, 3]
    assert (Labels(3).others, Labels(3).mine, Labels(3).other_paragraph) == (7, 8, 9)
    assert Labels(0).of_distance(torch.arange(-2, 3)).tolist() == [0] * 5


@torch.no_grad()
@pytest.mark.parametrize(
    ("radius", "most", "projections", "impl"),
    [
        (9, 3, "separate", "blocks"),
        (9, 3, "separate", "reference"),
        (9, 3, "separate", "triton"),
        (9, 3, "separate", "cpu"),
        (2, 3, "shared-kv", "blocks"),
        (3, 3, "shared", "blocks"),
        (9, 1, "separate", "blocks"),
        (9, 0, "separate", "blocks"),
        (0, 2, "separate", "blocks"),
        (100, 4, "separate", "blocks"),
    ],
)
def test_every_pair_as_it_is_written(radius: int, most: int, projections: str, impl: str) -> None:
    module = attention(radius=radius, most=most, projections=projections, kernel=impl)
    x_global, x_long = inputs()
    found = module(x_global, x_long, structure())
    expected = written_out(module, x_global[0], x_long[0], structure())
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine[0], theirs, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("exempt", [None, [0, 3]])
def test_hard_attention_sees_its_own_part(exempt: list[int] | None) -> None:
    """g2l hard: a global token sees its span alone, but for those that are exempt; paragraphs."""
    flags = None
    if exempt is not None:
        flags = torch.zeros(2, GLOBAL, dtype=torch.bool)
        flags[:, exempt] = True
    paragraphs = torch.tensor([[0, 0, 1, 1, 2]]).expand(2, -1)
    given = structure(exempt=flags, paragraphs=paragraphs)
    module, (x_global, x_long) = attention(hard=True), inputs()
    found = module(x_global, x_long, given)
    for mine, theirs in zip(
        found, written_out(module, x_global[0], x_long[0], given), strict=True
    ):
        torch.testing.assert_close(mine[0], theirs, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("hard", [False, True])
def test_several_spans_of_one_token(hard: bool) -> None:
    """As of a name that is mentioned thrice: apart, side by side, one in another, and none."""
    spans = torch.zeros(1, GLOBAL, 3, 2, dtype=torch.long)
    spans[0, 1] = torch.tensor([[2, 5], [9, 12], [40, 45]])
    spans[0, 2] = torch.tensor([[0, 3], [3, 7], [0, 0]])
    spans[0, 3] = torch.tensor([[10, 30], [12, 20], [28, 33]])
    exempt = torch.tensor([[True, False, False, True, False]])
    given = Structure(spans, LONG, exempt=exempt)
    module, (x_global, x_long) = attention(hard=hard), inputs(1)
    expected = written_out(module, x_global[0], x_long[0], given)
    for mine, theirs in zip(module(x_global, x_long, given), expected, strict=True):
        torch.testing.assert_close(mine[0], theirs, **CLOSE)
    assert given.mine.size(-1) == 2


@pytest.mark.parametrize("hard", [False, True])
def test_packed_is_alone(hard: bool) -> None:
    """Two examples in a row, and padding behind: outputs of each are what they are alone, and so
    are the gradients; a packed neighbour changes nothing."""
    module = attention(hard=hard)
    spans = [torch.tensor([[0, 1], [1, 20]]), torch.tensor([[0, 4], [2, 31], [31, 40]])]
    sizes = [(2, 25), (3, 40)]
    alone = [inputs(1, *size) for size in sizes]
    x = [
        torch.cat([*streams, torch.full((1, 3, WIDTH), 7.0)], dim=1)
        for streams in zip(*alone, strict=True)
    ]
    padding = [torch.arange(n + 3).unsqueeze(0) >= n for n in (sum(s[0] for s in sizes), 65)]
    examples = [
        torch.tensor([0] * a + [1] * b + [1] * 3).unsqueeze(0) for a, b in zip(*sizes, strict=True)
    ]
    packed = Structure(
        torch.cat([spans[0], spans[1] + 25, torch.zeros(3, 2, dtype=torch.long)]).unsqueeze(0),
        68,
        global_padding=padding[0],
        long_padding=padding[1],
        global_examples=examples[0],
        long_examples=examples[1],
    )
    together = module(*x, packed)
    begins = (0, 0)
    for (number, length), own, parts in zip(sizes, alone, spans, strict=True):
        single = module(*own, Structure(parts.unsqueeze(0), length))
        for begin, size, mine, theirs in zip(
            begins, (number, length), single, together, strict=True
        ):
            torch.testing.assert_close(theirs[:, begin : begin + size], mine, **CLOSE)
        begins = (number, length)
    leaves = [t.requires_grad_() for t in x]
    module(*leaves, packed)[1][:, :25].square().sum().backward()
    for leaf, (first, *_) in zip(leaves, zip(*sizes, strict=True), strict=True):
        assert torch.isfinite(leaf.grad).all()
        assert leaf.grad[:, :first].any()
        assert not leaf.grad[:, first:].any()


def test_gradients_agree_with_the_written_out_softmax() -> None:
    module, (x_global, x_long) = attention(), inputs(1)
    leaves = [x_global.requires_grad_(), x_long.requires_grad_(), *module.parameters()]
    grown = inputs(1)
    found = []
    given = structure()
    given.spans = given.spans[:1]
    for out in (
        module(x_global, x_long, given),
        [t.unsqueeze(0) for t in written_out(module, x_global[0], x_long[0], given)],
    ):
        total = sum((a * b).sum() for a, b in zip(out, grown, strict=True))
        found.append(torch.autograd.grad(total, leaves))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_without_labels_and_with_a_wide_radius_it_is_dense() -> None:
    """r >= N, zero labels, and no global token that a long one could see."""
    module = attention(radius=LONG, projections="shared")
    module.label_vectors.zero_()
    module.label_biases.zero_()
    dense = MultiheadAttention(WIDTH, HEADS, kinds="full", causal=False).double().eval()
    for mine, theirs in (
        ("q_g", "q_proj"),
        ("k_g", "k_proj"),
        ("v_g", "v_proj"),
        ("out_g", "out_proj"),
    ):
        getattr(dense, theirs).load_state_dict(module.linear[mine].state_dict())
    x_global, x_long = inputs(1, 1)
    hidden = torch.ones(1, 1, dtype=torch.bool)
    alone = Structure(torch.zeros(1, 1, 2, dtype=torch.long), LONG, global_padding=hidden)
    torch.testing.assert_close(module(x_global, x_long, alone)[1], dense(x_long)[0], **CLOSE)
    both = torch.cat([x_global, x_long], dim=1)
    whole = Structure(torch.tensor([[[0, LONG]]]), LONG)
    out = torch.cat(module(x_global, x_long, whole), dim=1)
    torch.testing.assert_close(out, dense(both)[0], **CLOSE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": -1}, "radius is -1; allowed: 0 or more"),
        ({"max_distance": 15}, "takes 34 labels; allowed: 14 or less"),
        ({"projections": "some"}, "projections is some; allowed: separate, shared-kv, shared"),
        ({"num_heads": 5}, "does not divide among 5 heads"),
    ],
)
def test_refuses(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GlobalLocalAttention(WIDTH, **{"num_heads": HEADS, "radius": 3, **options})


@torch.no_grad()
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_centroids_stand_for_what_is_nearest(hard: bool, packed: bool) -> None:
    """As if each member had a span of its own; the nearest is found by a loop."""
    module, (x_global, x_long) = attention(hard=hard, clusters=True), inputs(1)
    options = {}
    if packed:
        options["long_examples"] = torch.tensor([[0] * 20 + [1] * 25])
        options["global_examples"] = torch.tensor([[0, 0, 1, 1, 1]])
        options["long_padding"] = torch.arange(LONG).unsqueeze(0) >= LONG - 3
    nothing = Structure(torch.zeros(1, GLOBAL, 2, dtype=torch.long), LONG, **options)
    members: list[list[int]] = [[] for _ in range(GLOBAL)]
    q = module.linear["q_l"](x_long)[0]
    k = module.linear["k_l2g"](x_global)[0]
    for place in range(LONG - (3 if packed else 0)):
        allowed = range(GLOBAL) if not packed else range(2) if place < 20 else range(2, GLOBAL)
        members[max(allowed, key=lambda g: float(q[place] @ k[g]))].append(place)
    spans = torch.zeros(1, GLOBAL, max(map(len, members)), 2, dtype=torch.long)
    for number, places in enumerate(members):
        for rank, place in enumerate(places):
            spans[0, number, rank] = torch.tensor([place, place + 1])
    apart = attention(hard=hard)
    apart.load_state_dict(module.state_dict())
    expected = apart(x_global, x_long, Structure(spans, LONG, **options))
    found = module(x_global, x_long, nothing)
    torch.testing.assert_close(found[0], expected[0], **CLOSE)
    real = LONG - (3 if packed else 0)
    torch.testing.assert_close(found[1][:, :real], expected[1][:, :real], **CLOSE)


def test_centroids_learn_from_the_task() -> None:
    """By what long tokens take from all global ones; hard, too."""
    module, (x_global, x_long) = attention(hard=True, clusters=True), inputs(1)
    x_global.requires_grad_()
    nothing = Structure(torch.zeros(1, GLOBAL, 2, dtype=torch.long), LONG)
    module(x_global, x_long, nothing)[1].square().sum().backward()
    assert (x_global.grad.abs().sum(-1) > 0).all()

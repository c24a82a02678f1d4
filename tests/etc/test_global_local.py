"""ETC's attention against the labelled softmax written out pair by pair."""

import math
from argparse import Namespace

import pytest
import torch
from torch import Tensor

from fairseq_clusterformer.etc.global_local import GlobalLocalAttention, Structure, _attended

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


def written_out(module: GlobalLocalAttention, x_global, x_long, given: Structure, linked=()):
    """Both streams of one row by loops over all pairs; pairs of long tokens that are ``linked``
    have the label of one cluster."""
    streams = {"g": x_global, "l": x_long}
    results = []
    for side, own in enumerate("gl"):

        def heads(what: str, pair: str, x: Tensor) -> Tensor:
            return module.linear[module.named(what, pair)](x).unflatten(-1, (HEADS, -1))

        q = heads("q", own * 2, streams[own])
        keys = torch.cat([heads("k", f"{own}2{s}", x) for s, x in streams.items()])
        values = torch.cat([heads("v", f"{own}2{s}", x) for s, x in streams.items()])
        rows = []
        for i in range(len(streams[own])):
            logits = torch.full((HEADS, len(keys)), -torch.inf, dtype=q.dtype)
            for j in range(len(keys)):
                label = label_of(module, given, own, i, j)
                if own == "l" and (i, j - len(x_global)) in linked:
                    assert label is None
                    label = 2 * module.labels.most + 4
                if label is not None:
                    vector = keys[j] + module.label_vectors[side, label]
                    logits[:, j] = (q[i] * vector).sum(-1) + module.label_biases[side, label]
            weights = (logits * module.head_dim**-0.5).softmax(-1)
            rows.append(torch.einsum("hj,jhe->he", weights, values).flatten())
        out = torch.stack(rows) if rows else streams[own]
        results.append(module.linear[module.named("out", own * 2)](out))
    return results


def assert_written_out(module, x: list[Tensor], given: Structure) -> None:
    """Both streams of the first row."""
    expected = written_out(module, x[0][0], x[1][0], given)
    for mine, theirs in zip(module(*x, given), expected, strict=True):
        torch.testing.assert_close(mine[0], theirs, **CLOSE)


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
        borders = given.long_paragraphs
        apart = borders is not None and borders[row, i] != borders[row, place]
        return None if apart or abs(place - i) > module.radius else relative
    token, part = (i, place) if own == "g" else (place, i)
    mine = spans[token][0] <= part < spans[token][1]
    if hasattr(given, "of_cluster"):  # clusters
        mine = part in given.of_cluster[token]
    exempt = own == "g" and given.exempt is not None and given.exempt[row, i]
    hard = module.hard if own == "g" else module.hard_long
    if hard and not mine and not exempt:
        return None
    links = [] if given.links is None else given.links[row].tolist()
    mine |= any(owner == token and begin <= part < end for owner, begin, end in links)
    return 2 * k + 2 if mine else 2 * k + 1


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
    assert_written_out(module, inputs(), structure())


@torch.no_grad()
@pytest.mark.parametrize("exempt", [None, [0, 3]])
@pytest.mark.parametrize("hard", [(True, False), (False, True), (True, True)])
def test_hard_attention_sees_its_own_part(
    hard: tuple[bool, bool], exempt: list[int] | None
) -> None:
    """A global token sees its span alone (g2l), but for those that are exempt, a long one those
    that stand for it (l2g); paragraphs."""
    seen = None if exempt is None else torch.tensor([[i in exempt for i in range(GLOBAL)]] * 2)
    given = structure(
        exempt=seen,
        paragraphs=torch.tensor([[0, 0, 1, 1, 2]]).expand(2, -1),
        long_paragraphs=torch.tensor([[0] * 3 + [1] * 22 + [4] * 20]).expand(2, -1),
    )
    assert_written_out(attention(hard=hard[0], hard_long=hard[1]), inputs(), given)


LINKS = torch.tensor(  # apart, side by side, one in another, one in a span, and no more
    [[[1, 9, 12], [3, 10, 30], [1, 2, 5], [2, 0, 3], [2, 3, 7], [3, 12, 20], [1, 40, 45],
      [4, 30, 33], [3, 28, 33], [0, 0, 0]]]
)  # fmt: skip


@torch.no_grad()
@pytest.mark.parametrize("hard", [(False, False), (True, False), (False, True)])
def test_links_besides_a_span(hard: tuple[bool, bool]) -> None:
    exempt = torch.tensor([[True, False, False, True, False]])
    given = Structure(structure().spans[:1], LONG, links=LINKS, exempt=exempt)
    assert_written_out(attention(hard=hard[0], hard_long=hard[1]), inputs(1), given)


@torch.no_grad()
def test_candidates_at_one_place_cost_what_their_places_do() -> None:
    """Fifty are linked to one token: one range each, and none for the other tokens."""
    spans = torch.zeros(1, 50, 2, dtype=torch.long)
    links = torch.tensor([[[i, 7, 8] for i in range(50)]])
    given = Structure(spans, 4000, links=links)
    assert given.seen_by_long(hard=False)[0].numel() == 4000 + 2 * 50
    assert given.seen_by_long(hard=True)[0].numel() == 4000
    small = Structure(spans, LONG, links=links)
    assert_written_out(attention(), inputs(1, 50), small)


def test_keys_are_shared_by_the_stream_of_the_query() -> None:
    """As the authors' share_kv_projections: g2g with g2l, l2l with l2g."""
    named = attention(projections="shared-kv").named
    assert named("k", "g2g") == named("k", "g2l") != named("k", "l2l") == named("k", "l2g")


@pytest.mark.parametrize(
    "changes",
    [
        {"spans": torch.tensor([[[0, LONG + 1]] * GLOBAL])},
        {"spans": torch.tensor([[[-1, 2]] * GLOBAL])},
        {"links": torch.tensor([[[GLOBAL, 1, 2]]])},
        {"links": torch.tensor([[[0, 1, LONG + 1]]])},
    ],
)
def test_places_outside_are_refused(changes: dict) -> None:
    given = {"spans": structure().spans[:1], "length": LONG, **changes}
    with pytest.raises(ValueError, match=f"allowed: within {LONG} long and {GLOBAL} global"):
        Structure(**given)


@pytest.mark.parametrize("name", ["long_examples", "global_examples", "long_paragraphs"])
def test_numbers_that_fall_are_refused(name: str) -> None:
    """Searches rely on their order; what stands in padding does not matter."""
    ids, spans = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 0, 1]]), torch.zeros(2, 5, 2).long()
    with pytest.raises(ValueError, match=rf"{name} are \[0, 0, 1, 0, 1\]; allowed: numbers that"):
        Structure(spans, 5, **{name: ids})
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    if name != "long_paragraphs":
        Structure(spans, 5, **{name: ids, name.replace("examples", "padding"): padding})


def test_many_links_of_one_token_cost_as_many_ranges() -> None:
    """Not as many of each global token."""
    places = torch.arange(40)
    links = torch.stack([places * 0 + 1, places, places + 1], -1)[::2]
    given = Structure(structure().spans[:1], LONG, links=links.unsqueeze(0))
    assert given.seen(hard=False)[0].numel() == 2 * (2 * GLOBAL + 20)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"clusters": True, "same_cluster": 2}])
def test_an_empty_long_input(options: dict) -> None:
    """Ainslie et al. 2020, section 3.2: all tokens in the global input."""
    nothing = Structure(torch.zeros(2, GLOBAL, 2, dtype=torch.long), 0)
    assert_written_out(attention(**options), inputs(length=0), nothing)


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
    found, real = module(x_global, x_long, nothing), LONG - (3 if packed else 0)
    given = Namespace(**vars(nothing) | {"of_cluster": members})
    expected = written_out(module, x_global[0], x_long[0, :real], given)
    torch.testing.assert_close(found[0][0], expected[0], **CLOSE)
    torch.testing.assert_close(found[1][0, :real], expected[1], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize(
    ("impl", "paragraphs"), [("reference", False), ("blocks", True), ("triton", True)]
)
def test_the_nearest_of_a_cluster_have_a_label(impl: str, paragraphs: bool) -> None:
    """Two on either side beyond the radius, of other paragraphs too; written out pair by pair."""
    module = attention(radius=3, clusters=True, same_cluster=2, kernel=impl)
    x_global, x_long = inputs(1)
    real = LONG - 3
    options = {"long_padding": torch.arange(LONG).unsqueeze(0) >= real}
    if paragraphs:
        options["long_paragraphs"] = torch.tensor([[0] * 7 + [1] * 20 + [2] * 18])
    nothing = Structure(torch.zeros(1, GLOBAL, 2, dtype=torch.long), LONG, **options)
    q = module.linear["q_l"](x_long)[0]
    clusters = (q @ module.linear["k_l2g"](x_global)[0].T).argmax(-1).tolist()
    members = [[i for i in range(real) if clusters[i] == g] for g in range(GLOBAL)]
    given, linked = Namespace(**vars(nothing) | {"of_cluster": members}), set()
    for i in range(real):
        near = {j for j in range(real) if label_of(module, given, "l", i, GLOBAL + j) is not None}
        others = [j for j in members[clusters[i]] if j not in near]
        linked |= {(i, j) for j in [j for j in others if j < i][-2:]}
        linked |= {(i, j) for j in [j for j in others if j > i][:2]}
    assert any((j, i) not in linked for i, j in linked)
    found = module(x_global, x_long, nothing)
    expected = written_out(module, x_global[0], x_long[0, :real], given, linked)
    torch.testing.assert_close(found[0][0], expected[0], **CLOSE)
    torch.testing.assert_close(found[1][0, :real], expected[1], **CLOSE)


def test_centroids_learn_from_the_task() -> None:
    """By what long tokens take from all global ones; hard, too."""
    module, (x_global, x_long) = attention(hard=True, clusters=True), inputs(1)
    x_global.requires_grad_()
    nothing = Structure(torch.zeros(1, GLOBAL, 2, dtype=torch.long), LONG)
    module(x_global, x_long, nothing)[1].square().sum().backward()
    assert (x_global.grad.abs().sum(-1) > 0).all()


def test_sums_of_large_values_stay_finite_in_half_precision() -> None:
    """512 values of 150 have the mean 150, and a sum that float16 does not hold."""
    logits = torch.zeros(1, 1, 1, 1, 512)
    v = torch.full((1, 1, 1, 512, 2), 150.0, dtype=torch.float16)
    out, lse = _attended(logits, v, torch.zeros_like(logits, dtype=torch.bool), 0.0, 1)
    torch.testing.assert_close(out, torch.full_like(out, 150.0), rtol=2e-3, atol=0)
    torch.testing.assert_close(lse, logits.logsumexp(-1).flatten(2, 3))


def labels_seen(module: GlobalLocalAttention, given: Structure) -> list[list[str]]:
    """The label of each pair of one row, read from the attention weights: for each token a digit
    a key, global ones first, and "." for a hidden one. Logits are the labels, values one-hot."""
    number, length = given.spans.size(1), given.length
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    for name, linear in module.linear.items():
        if name[0] in "vo":
            torch.nn.init.eye_(linear.weight)
    label = torch.arange(module.label_biases.size(1), dtype=torch.float64)
    module.label_biases.data[:] = module.head_dim**0.5 * label.view(1, -1, 1)
    x = torch.eye(number + length, module.head_dim, dtype=torch.float64).unsqueeze(0)
    seen = []
    streams = module(x[:, :number], x[:, number:], given)
    for first, weights in zip((0, number), streams, strict=True):
        rows = weights[0, :, : number + length].tolist()
        own = [row[first + i] for i, row in enumerate(rows)]  # whose label is 0
        seen.append(
            [
                "".join("." if w == 0 else str(round(math.log(w / mine))) for w in row)
                for mine, row in zip(own, rows, strict=True)
            ]
        )
    return seen


# A question of four tokens and two paragraphs of a title of two tokens and two sentences of one;
# the global tokens: one for all, four of the question, and for each paragraph one for it, one for
# its title and two for its sentences; the example of the authors' test, with k = 2 and r = 4.
AUTHORS_SPANS = [[0, 0], *([i, i + 1] for i in range(4))]
for _first in (4, 8):
    AUTHORS_SPANS += [[_first, _first + 4], [_first, _first + 2]]
    AUTHORS_SPANS += [[_first + 2, _first + 3], [_first + 3, _first + 4]]
NEAR = ["0122", "3012", "4301", "4430"]  # four neighbours
OF_GLOBAL = ["0" + "7" * 12]
OF_GLOBAL += ["7" * (1 + 4 * i) + row + "7" * (8 - 4 * i) for i in range(3) for row in NEAR]
L2G = """5655555555555 5565555555555 5556555555555 5555655555555 5555566555555 5555566555555
5555565655555 5555565565555 5555555556655 5555555556655 5555555556565 5555555556556""".split()
L2L = ["." * 4 * i + row + "." * (8 - 4 * i) for i in range(3) for row in NEAR]


@torch.no_grad()
@pytest.mark.parametrize("hard_long", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_the_example_of_the_authors(hard: bool, hard_long: bool) -> None:
    """All labels and what is hidden, written out: of hard g2l the first and the third global token
    are exempt."""
    module = GlobalLocalAttention(32, 1, radius=4, max_distance=2, hard=hard, hard_long=hard_long)
    given = Structure(
        torch.tensor([AUTHORS_SPANS]),
        12,
        paragraphs=torch.tensor([[0, *[1] * 4, *[2] * 4, *[3] * 4]]),
        long_paragraphs=torch.tensor([[0] * 4 + [1] * 4 + [2] * 4]),
        exempt=torch.tensor([[i in (0, 2) for i in range(13)]]),
    )
    of_global, of_long = labels_seen(module.double().eval(), given)
    for token, (seen, among) in enumerate(zip(of_global, OF_GLOBAL, strict=True)):
        long = "".join(row[token] for row in L2G)
        assert seen == among + (long.replace("5", ".") if hard and token not in (0, 2) else long)
    for seen, among, nearby in zip(of_long, L2G, L2L, strict=True):
        assert seen == (among.replace("5", ".") if hard_long else among) + nearby


# Three global tokens, of which the last two stand for [0, 2) and [2, 4) of five long tokens, with
# k = 1 (labels 3: not mine, 4: mine): the first stands for nothing, and is linked to [1, 2) and
# [4, 5); the second is linked to [3, 5). As in the authors' code, links open no mask.
@torch.no_grad()
@pytest.mark.parametrize(
    ("hard", "exempt", "g2l", "l2g"),
    [
        (False, [], ["34334", "44344", "33443"], ["343", "443", "334", "344", "443"]),
        (True, [], [".....", "44...", "..44."], ["343", "443", "334", "344", "443"]),
        (True, [0], ["34334", "44...", "..44."], ["343", "443", "334", "344", "443"]),
        (True, [1, 2], [".....", "44344", "33443"], ["343", "443", "334", "344", "443"]),
        ("both", [0], ["34334", "44...", "..44."], [".4.", ".4.", "..4", "..4", "..."]),
    ],
)
def test_links_exempt_and_hard_written_out(hard, exempt: list, g2l: list, l2g: list) -> None:
    options = {"hard": bool(hard), "hard_long": hard == "both"}
    module = GlobalLocalAttention(32, 1, radius=0, max_distance=1, **options)
    given = Structure(
        torch.tensor([[[0, 0], [0, 2], [2, 4]]]),
        5,
        links=torch.tensor([[[0, 1, 2], [1, 3, 5], [0, 4, 5], [0, 0, 0]]]),
        exempt=torch.tensor([[i in exempt for i in range(3)]]) if exempt else None,
    )
    of_global, of_long = labels_seen(module.double().eval(), given)
    assert [row[3:] for row in of_global] == g2l
    assert [row[:3] for row in of_long] == l2g

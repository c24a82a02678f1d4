"""A prompt at once is the prompt step by step: its outputs, and all that follows."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch
from tests.kinds import CAUSAL, WIDTH, build, by_steps, every_causal_kind

BATCH, AFTER = 3, 14
OPTIONS = {
    "shared keys, rotary": {"kv_heads": 2, "rotary": True},
    "convolution": {"short_convolution": 3},
    "relative": {"relative": True},
}


def hidden_of(padding: str, length: int) -> torch.Tensor | None:
    """Of prompts; padding behind a prompt is followed by more tokens all the same."""
    if padding == "none":
        return None
    number = torch.tensor([0, length // 2, max(length - 1, 0)]).unsqueeze(-1)
    place = torch.arange(length)
    if padding == "between":
        return place % 5 > torch.tensor([4, 2, 1]).unsqueeze(-1)
    return place < number if padding == "left" else place >= length - number


def goes_on(module, x, *states, close) -> list[dict]:
    """Each step behind one state is that behind the other; the states behind them all."""
    for token in x.split(1, dim=1):
        (wanted, found), states = zip(
            *(module.step(token, state) for state in states), strict=True
        )
        torch.testing.assert_close(found, wanted, **close)
    return list(states)


@every_causal_kind(
    padding=["none", "left", "right", "between"],
    length=[1, 4, 5, 23],
    portions=[(3, 9, 7), (1, 1, 17), (12, 4, 6)],
)
def test_every_kind(kind, padding, length, portions):
    """At once, and in portions, each behind what the ones before left; one may be a step."""
    module = build(kind, causal=True)
    check(module, (length,), "none" if padding == "between" else padding)
    check(module, portions, padding)


@pytest.mark.parametrize("gap", [2, 4])
@pytest.mark.parametrize("kind", [kind for kind in CAUSAL if "gap" in kind])
def test_padding_does_not_widen_a_gap(kind, gap):
    check(build(kind, causal=True, gap=gap, clusters=2), (6, 7, 9), "between")


def check(module, portions: tuple[int, ...], padding: str, tolerance: float = 1e-12) -> None:
    length, close = sum(portions), {"rtol": tolerance, "atol": tolerance}
    x = torch.randn(BATCH, length + AFTER, WIDTH, dtype=module.q_proj.weight.dtype)
    hidden = hidden_of(padding, length)
    if hidden is None:
        hidden = torch.zeros(BATCH, length, dtype=torch.bool)
    x[:, :length][hidden] = float("nan")
    given = hidden if padding != "none" else None
    wanted, state = by_steps(module, x[:, :length], given)
    found, filled, begin = [], {}, 0
    for size in portions:
        part = slice(begin, begin := begin + size)
        mask = None if given is None else given[:, part]
        out, filled = module.step(x[:, part], filled, mask)
        found.append(out)
    torch.testing.assert_close(torch.cat(found, dim=1)[~hidden], wanted[~hidden], **close)
    state, filled = goes_on(module, x[:, length:], state, filled, close=close)
    if len(portions) > 1:
        return
    assert {t.shape[0] for t in filled.values()} == {BATCH}
    # which slots are full is said only of rows that differ; steps began with hidden sinks
    only_by_steps = {"0.kept.seen"} if "0.kept.sinks" in state else set()
    assert filled.keys() <= state.keys() <= filled.keys() | only_by_steps
    if length + AFTER > 30 and module.routers[-1].cluster_window is not None:  # no more is kept
        names = [n for n in state if n.endswith("kept.kept")]
        assert [filled[n].shape for n in names] == [state[n].shape for n in names]


@pytest.mark.parametrize("of", OPTIONS)
@pytest.mark.parametrize(
    "kind",
    ["window+neural", "gated", "full", "lsh, gap", "taught"]
    + [kind for kind in CAUSAL if kind.startswith("taught, clusters of keys")],
)
@pytest.mark.parametrize("length", [4, 19])
def test_options_of_the_layer(kind, of, length):
    module = build(kind, causal=True, of=OPTIONS[of])
    for padding in ("none", "left"):
        for portions in ((length,), (length, 5, 8)):
            check(module, portions, padding)


def test_half_precision():
    """What chooses clusters is in float32, with convolutions of its own."""
    module = build("gated", causal=True, dtype=torch.bfloat16, of={"short_convolution": 3})
    check(module, (17,), "left", tolerance=0.05)


def test_what_is_refused():
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match="documents in a prompt; allowed: one document"):
        build("window", causal=True).step(x, {}, Batch(None, torch.zeros(2, 4).long()))
    with pytest.raises(ValueError, match="cannot decode step by step"):
        build("window", causal=False).step(x, {})

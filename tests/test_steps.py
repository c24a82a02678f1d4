"""A text read token by token, or in portions, is the text read at once: each kind and option."""

import pytest
import torch

from fairseq_clusterformer.attention import Batch

from .kinds import CARRIED_ON, WIDTH, build, by_steps, every_causal_kind

#: of the layer, of the kind, and of the text
MODES = {
    "plain": {},
    "rotary, shared keys": {"of": {"rotary": True, "kv_heads": 2}},
    "rotary, convolution": {"of": {"rotary": True, "kv_heads": 2, "short_convolution": 3}},
    "relative, convolution": {"of": {"relative": True, "short_convolution": 4}},
    "several tiles": {"window": 70, "length": 140},
    "bfloat16": {"dtype": torch.bfloat16, "window": 16, "clusters": 8, "length": 64},
    "float16": {"dtype": torch.float16, "window": 16, "clusters": 8, "length": 64},
}
#: rounding may move an output by its last bits, and no token to another cluster
CLOSE = {torch.float16: 2e-2, torch.bfloat16: 2e-2, torch.float64: 1e-12}
#: rows of a beam: swapped, doubled, and fewer, as finished sentences leave
ORDER = torch.tensor([2, 0, 0, 3])


def hidden_of(padding: str, length: int) -> torch.Tensor:
    """Padding of five rows, bool [5, N]; one of them has one token, one has none hidden."""
    place = torch.arange(length)
    if padding == "between":
        return place % 5 > torch.tensor([[4], [2], [1], [3], [0]])
    number = torch.tensor([[0], [length // 2], [2], [9], [length - 1]])
    hidden = {"none": number < 0, "left": place < number, "right": place >= length - number}
    return hidden[padding].expand(5, length)


@pytest.mark.parametrize("mode", MODES)
@every_causal_kind(
    padding=["left", "none", "right", "between"],
    portions=[(3, 9, 7), (1, 1, 17), (12, 4, 6), (23,), (4, 1, 14)],
)
@torch.no_grad()
def test_steps_are_the_whole(kind, padding, portions, mode):
    """A beam is reordered on the way; tokens follow behind padding, which no whole pass allows."""
    options = {"dtype": torch.float64, "length": 23, **MODES[mode]}
    dtype, length = options.pop("dtype"), options.pop("length")
    half = torch.finfo(dtype).bits == 16
    if half and "index" in kind:  # or rounding would choose between keys of about one logit
        options["index"] = length
    module = build(kind, causal=True, dtype=torch.float32 if half else dtype, **options).to(dtype)
    mask = hidden_of(padding, length)
    x = torch.randn(*mask.shape, WIDTH).to(dtype)
    x[mask] = float("nan")
    given = None if padding == "none" else mask
    at = (sum(portions[:-1]), ORDER)
    real, close = ~mask[ORDER], {"rtol": 0, "atol": CLOSE[dtype]}
    stepwise, _ = by_steps(module, x, given, order_at=at)
    in_portions, _ = by_steps(module, x, given, order_at=at, portions=portions)
    torch.testing.assert_close(in_portions[real], stepwise[real], **close)
    if padding != "between":
        expected, _ = module(x[ORDER], given if given is None else mask[ORDER])
        torch.testing.assert_close(stepwise[real], expected[real], **close)


@pytest.mark.parametrize("gap", [2, 4])
@every_causal_kind()
@torch.no_grad()
def test_padding_does_not_widen_a_gap(kind, gap):
    if "gap" not in kind:
        pytest.skip("it has none")
    module, mask = build(kind, causal=True, gap=gap, clusters=2), hidden_of("between", 22)
    x = torch.randn(*mask.shape, WIDTH, dtype=torch.float64)
    found = [by_steps(module, x, mask, portions=sizes)[0][~mask] for sizes in ((6, 7), None)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@every_causal_kind(of=[{}, {"rotary": True, "short_convolution": 3, "kv_heads": 2}])
@torch.no_grad()
def test_documents_of_a_row_begin_anew(kind, of):
    """Also in a row that begins with padding."""
    module, lengths = build(kind, causal=True, of=of), [[9, 1, 7], [4, 13], [17]]
    x = torch.randn(3, 21, WIDTH, dtype=torch.float64)
    x[:, :4] = float("nan")
    mask = (torch.arange(21) < 4).expand(3, -1)
    numbers = torch.tensor(
        [[0] * 4 + sum(([i] * n for i, n in enumerate(r)), []) for r in lengths]
    )
    if kind in CARRIED_ON:
        with pytest.raises(ValueError, match="carries what it saw .*; allowed in rows of se"):
            by_steps(module, x, mask, numbers)
        return
    stepwise, _ = by_steps(module, x, mask, numbers)
    for row, sizes in enumerate(lengths):
        alone = [module(text)[0] for text in x[row : row + 1, 4:].split(sizes, dim=1)]
        torch.testing.assert_close(stepwise[row, 4:], torch.cat(alone, 1)[0], rtol=0, atol=1e-12)


def test_what_is_refused():
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match="documents in a prompt; allowed: one document"):
        build("window", causal=True).step(x, {}, Batch(None, torch.zeros(2, 4).long()))
    with pytest.raises(ValueError, match="cannot decode step by step, for it sees later tokens"):
        build("window", causal=False).step(x, {})

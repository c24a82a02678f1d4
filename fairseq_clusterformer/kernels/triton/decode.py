"""One decoding step as one Triton kernel: a token is stored in its rings and attends to rings.

A program is one head of one sentence: it goes over the slots of the rings that it reads in each
layout, and takes the new token from registers where that stands. Heads of a group share counts of
tokens, so these are written to another tensor than they are read from. Where one long ring is all
there is (full attention), several programs share its slots, and a second kernel joins what they
found, always in the same order.

Shape letters: B batch, H heads, E head width, G groups of heads (1 or H), L layouts, R rings of a
layout, P of them that are read, W window.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .forward import LOG2_E
from .launch import rounded, rows_of

TILE_NUMBERS = 4096  # of the keys, and of the values, that a program holds at once
# Slots of a ring that are worth a program of their own, and how many programs there may be for one
# head and in all.
SHARE, MOST_SHARES, ENOUGH = 512, 32, 1024


@triton.jit
def _load_head(x, b, h, column, inside):
    return tl.load(x.ptr + b * x.b + h * x.h + column * x.e, mask=inside, other=0.0)


@triton.jit
def _attend(
    peak, total, values, begin, end, entries, query, key, value, bias, slot,
    own_here, real, ring, ring_begin, reads, writes,
    NUM_RINGS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
    BIASED: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """An online softmax goes on over those slots of a ring, of which one may be the new token's:
    the largest logit, the sum of weights, and the weighted values."""
    column, lane = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_N)
    inside = column < WIDTH
    NUMBERS: tl.constexpr = 2 * WIDTH + BIASED
    for first in range(begin, end, BLOCK_N):
        other = first + lane
        shown = other < end
        fresh = shown & own_here & (other == slot)  # the new token, in registers
        older = shown & (fresh == 0)  # in memory
        entry = entries + other * NUMBERS
        old = older[:, None] & inside[None, :]
        keys = tl.load(entry[:, None] + column[None, :], mask=old, other=0.0)
        keys = tl.where(fresh[:, None], key[None, :], keys)
        logits = tl.sum(keys.to(ACC) * query[None, :], 1)
        if BIASED:
            biases = tl.load(entry + WIDTH, mask=older, other=0.0).to(ACC)
            logits += tl.where(fresh, bias, biases) * LOG2_E
        # Histories of several rings hide the entries of other rings.
        if ring is not None:
            of_slot = tl.load(ring + ring_begin + other, mask=older, other=NUM_RINGS)
            of_slot = tl.where(fresh & real, writes, of_slot)
            shown = shown & (of_slot == reads)
        logits = tl.where(shown, logits, float("-inf"))
        pointers = entry[:, None] + (WIDTH + BIASED) + column[None, :]
        others = tl.load(pointers, mask=old, other=0.0)
        others = tl.where(fresh[:, None], value[None, :], others).to(ACC)

        new_peak = tl.maximum(peak, tl.max(logits, 0))
        # While nothing has been seen both are -inf, and their difference would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights, decay = tl.exp2(logits - shift), tl.exp2(peak - shift)
        total = total * decay + tl.sum(weights, 0)
        others = tl.where(shown[:, None], others, 0.0)  # padding may be NaN
        values = values * decay + tl.sum(weights[:, None] * others, 0)
        peak = new_peak
    return peak, total, values


@triton.jit
def _store_token(
    kept, ring, seen, new_seen, key, value, bias, stored, real, writes, place, entry, ring_slot,
    numbers, counts,
    NUM_RINGS: tl.constexpr, BLOCK_R: tl.constexpr, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """Write the new token into its ring's entry, its ring's number and the rings' counts."""
    column = tl.arange(0, BLOCK_E)
    dtype: tl.constexpr = kept.dtype.element_ty
    home = kept + entry * (2 * WIDTH + BIASED)
    width = tl.where(stored, WIDTH, 0)  # nothing is written where the token is in no ring
    tl.store(home + column, tl.where(real, key, 0.0), mask=column < width)
    home_value = home + WIDTH + BIASED + column
    tl.store(home_value, tl.where(real, value, 0.0), mask=column < width)
    if BIASED:
        tl.store(home + WIDTH, rounded(bias, dtype), mask=stored)
    if ring is not None:
        number = tl.where(real, writes, NUM_RINGS)
        tl.store(ring + ring_slot, number, mask=numbers)
    if seen is not None:
        each = tl.arange(0, BLOCK_R)
        mine = each < tl.where(counts, NUM_RINGS, 0)
        count = tl.load(seen + place * NUM_RINGS + each, mask=mine, other=0)
        count += ((each == writes) & real).to(tl.int64)
        tl.store(new_seen + place * NUM_RINGS + each, count, mask=mine)


@triton.jit(do_not_specialize=["steps", "room"])
def _step(
    q, k, v, out, parts, kept, ring, seen, new_seen, read, written, key_bias, own_bias, padding,
    heads, groups, steps, room,
    LAYOUTS: tl.constexpr, PROBES: tl.constexpr, NUM_RINGS: tl.constexpr, BLOCK_R: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_N: tl.constexpr,
    BIASED: tl.constexpr, OWN_APART: tl.constexpr, SCALE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    row, share = tl.program_id(0).to(tl.int64), tl.program_id(1)
    shares = tl.num_programs(1)
    b, h = row // heads, row % heads
    of_group = heads // groups
    group, head = b * groups + h // of_group, h % of_group
    column = tl.arange(0, BLOCK_E)
    inside = column < WIDTH
    dtype: tl.constexpr = kept.dtype.element_ty
    NUMBERS: tl.constexpr = 2 * WIDTH + BIASED  # of an entry: key, bias, value
    query = _load_head(q, b, h, column, inside).to(ACC) * (SCALE * LOG2_E)
    key, value = _load_head(k, b, h, column, inside), _load_head(v, b, h, column, inside)
    real = h >= 0
    if padding is not None:
        real = tl.load(padding + b) == 0

    peak = tl.full([], float("-inf"), ACC)
    total = tl.zeros([], ACC)
    values = tl.zeros([BLOCK_E], ACC)
    # The online softmax begins with the token itself, in the first program of a head.
    if OWN_APART:
        peak = tl.sum(query * key.to(ACC), 0)
        if own_bias is not None:
            own = tl.load(own_bias.ptr + b * own_bias.b + h * own_bias.h)
            peak += rounded(own, dtype).to(ACC) * LOG2_E
        peak = tl.where(share == 0, peak, float("-inf"))
        total = tl.where(share == 0, 1.0, 0.0).to(ACC)
        values = tl.where(share == 0, value.to(ACC), 0.0)
    for layout in tl.static_range(LAYOUTS):
        place = group * LAYOUTS + layout
        writes, target, rank = place * 0, place, steps
        stored = real
        if written is not None:
            writes = tl.load(written + place)
        if seen is None:
            stored = h >= 0  # padding has a place in a history, and belongs to no ring
        else:
            stored = real & (writes < NUM_RINGS)  # else the key is in no ring
            target = place * NUM_RINGS + tl.minimum(writes, NUM_RINGS - 1)
            rank = tl.load(seen + target).to(tl.int32)
        slot = rank % room  # a full ring overwrites its oldest entry
        bias = tl.zeros([], ACC)
        if key_bias is not None:
            bias = rounded(tl.load(key_bias + place), dtype).to(ACC)

        for probe in tl.static_range(PROBES):
            reads, source, filled = place * 0, place, steps
            if read is not None:
                reads = tl.load(read + place * PROBES + probe)
            if seen is not None:
                source = place * NUM_RINGS + reads
                filled = tl.load(seen + source).to(tl.int32)
            own_here = stored & (source == target)  # the ring that it reads gets the new token
            if OWN_APART:
                own_here = h < 0
            filled = tl.minimum(filled + own_here.to(tl.int32), room)
            source_entries = kept + (source * of_group + head) * room * NUMBERS
            begin, end = filled * 0, filled
            # Programs that share a ring take consecutive slots of it.
            if parts is not None:
                begin = tl.cdiv(filled, shares) * share
                end = tl.minimum(begin + tl.cdiv(filled, shares), filled)
            peak, total, values = _attend(
                peak, total, values, begin, end, source_entries, query, key, value, bias, slot,
                own_here, real, ring, place * room, reads, writes,
                NUM_RINGS, WIDTH, BLOCK_E, BLOCK_N, BIASED, ACC,
            )  # fmt: skip

        tl.debug_barrier()  # what is overwritten now has been read by all threads
        _store_token(
            kept, ring, seen, new_seen, key, value, bias, stored & (share == 0), real, writes,
            place, (target * of_group + head) * room + slot, place * room + slot,
            (head == 0) & (share == 0), head == 0,
            NUM_RINGS, BLOCK_R, WIDTH, BLOCK_E, BIASED,
        )  # fmt: skip

    if parts is None:
        _store_head(out, b, h, column, inside, total, values)
    else:
        part = parts + (row * shares + share) * (BLOCK_E + 2)
        tl.store(part, peak)
        tl.store(part + 1, total)
        tl.store(part + 2 + column, values)


@triton.jit
def _store_head(out, b, h, column, inside, total, values):
    safe = tl.where(total == 0.0, 1.0, total)
    attended = rounded(values / safe, out.ptr.dtype.element_ty)
    tl.store(out.ptr + b * out.b + h * out.h + column * out.e, attended, mask=inside)


@triton.jit(do_not_specialize=["shares"])
def _join(
    parts, out, heads, shares, WIDTH: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_S: tl.constexpr
):
    """One softmax of what the programs of a head saw."""
    row = tl.program_id(0).to(tl.int64)
    column, share = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_S)
    part = parts + (row * shares + share) * (BLOCK_E + 2)
    there = share < shares
    peaks = tl.load(part, mask=there, other=float("-inf"))
    peak = tl.max(peaks, 0)
    weights = tl.exp2(peaks - tl.where(peak == float("-inf"), 0.0, peak))
    total = tl.sum(weights * tl.load(part + 1, mask=there, other=0.0), 0)
    values = tl.load(part[:, None] + 2 + column[None, :], mask=there[:, None], other=0.0)
    values = tl.sum(weights[:, None] * values, 0)
    _store_head(out, row // heads, row % heads, column, column < WIDTH, total, values)


def triton_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    written: Tensor | None,
    read: Tensor | None,
    state: dict[str, Tensor],
    *,
    num_rings: int,
    key_bias: Tensor | None,
    own_apart: bool,
    own_bias: Tensor | None,
    padding_mask: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A step of decoding, once its rings are chosen; see
    :class:`fairseq_clusterformer.attention.ranged.RangedKeys`.

    Args:
        q, k, v: [B, H, 1, E].
        written, read: rings, int64 [B, G, L] and [B, G, L, P], R: written in none; None: the
            only one.
        state: with room for the token; written to in place.
        num_rings: R.
        key_bias: of the token in each layout [B, G, L].
        own_apart: the token's own key is in no ring yet.
        own_bias: of that key, [B, 1]; None: 0.
        padding_mask: bool [B, 1].

    Returns:
        The attended values [B, H, 1, E] and what changes in the state, except for its steps.
    """
    batch, heads, _, width = q.shape
    kept, seen = state["kept"], state.get("seen")
    out = q.new_empty(batch, 1, heads, width).transpose(1, 2)
    block = max(16, triton.next_power_of_2(width))
    if own_bias is not None:
        own_bias = rows_of(own_bias.expand(batch, heads)[..., None, None])
    counted = None if seen is None else torch.empty_like(seen)
    rows, steps, room = batch * heads, state["steps"].size(1), kept.size(4)
    shares, parts = 1, None
    if seen is None and steps < room:  # else a program overwrites what another reads
        shares = max(1, min(steps // SHARE, MOST_SHARES, ENOUGH // rows))
    if shares > 1:
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        parts = q.new_empty(rows, shares, block + 2, dtype=exact)
    with torch.cuda.device_of(q):
        _step[(rows, shares)](
            rows_of(q), rows_of(k), rows_of(v), rows_of(out), parts,
            kept, state.get("ring"), seen, counted, _packed(read), _packed(written),
            _packed(key_bias), own_bias, _packed(padding_mask),
            heads, kept.size(1), steps, room,
            LAYOUTS=kept.size(2) // (1 if seen is None else num_rings),
            PROBES=1 if read is None else read.size(-1),
            NUM_RINGS=num_rings,
            BLOCK_R=triton.next_power_of_2(num_rings),
            WIDTH=width,
            BLOCK_E=block,
            BLOCK_N=TILE_NUMBERS // block,
            BIASED=kept.size(-1) - 2 * width,
            OWN_APART=own_apart,
            SCALE=width**-0.5,
            ACC=tl.float64 if q.dtype == torch.float64 else tl.float32,
        )  # fmt: skip
        if parts is not None:
            _join[(rows,)](
                parts, rows_of(out), heads, shares, WIDTH=width, BLOCK_E=block, BLOCK_S=MOST_SHARES
            )
    return out, {} if seen is None else {"seen": counted}


def _packed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()

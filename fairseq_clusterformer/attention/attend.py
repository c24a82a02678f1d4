"""The one door to the kernels: what queries attend to, and what is kept behind them. Several
tokens are attended by layouts of a text, kept keys in front of them; one more token of each row
from the stores as they stand: to sort a text for it would take longer than all else.

Shape letters: N new tokens, M kept keys, C numbers of an entry.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..kernels import Layout, attend_own, chosen, cpu, join, largest, ranged_attention
from ..precision import at_least_float32
from .kind import Result, Rule, Seen, Text
from .layout import blinded
from .past import Entries, Keys, Lists, Near, Rings, Stores
from .projections import QKV, rotated
from .tokens import Assignment, Tokens, either, for_each


def attend(
    heads: QKV, seen: Seen, rule: Rule, stores: Stores | None
) -> tuple[Tensor, Stores | None]:
    """Values [B, H, N, E] that new tokens attend to, and what is kept behind them. ``stores`` are
    of the tokens before, and are used up; None: nothing was kept, and nothing will be."""
    if seen.sight is None:
        return _one(heads, seen, rule, stores)
    text, sight, past, beyond = seen.text, seen.sight, seen.text.past, rule.beyond(seen.tokens)
    whole, layouts, lists = _over(text, heads), [*sight.ranges, *sight.near], sight.lists
    if (bias := seen.assignment.key_bias) is not None:
        bias = bias.to(heads.k.dtype)  # decoding keeps it with its key, rounded like it
        if past:
            kept = text.kept[..., heads.k.size(-1)]  # of each head of keys
            bias = for_each(kept, bias).expand(len(kept), kept.size(1), -1)
            bias = torch.cat([kept, bias], dim=-1)
        bias = bias if bias.size(1) == 1 else for_each(heads.q, bias)
        layouts[: len(sight.ranges)] = [replace(one, key_bias=bias) for one in sight.ranges]
        lists = lists and lists._replace(key_bias=bias)
    calls = [(whole, layouts, sight.own)]
    if beyond is None:
        layouts += sight.sinks
    elif sight.sinks:
        turned = rotated(heads.q, -beyond, heads.rotary)
        calls.append((whole._replace(q=turned), sight.sinks, None))
    if sight.constant:
        k, v = heads.constant
        calls.append((_over(text, heads._replace(k=k, v=v)), sight.constant, None))
    results, rest, how = [], None, {"dropout": heads.dropout, "impl": seen.tokens.impl}
    if lists is not None:
        v = None if torch.is_grad_enabled() or heads.dropout else whole.v
        given = v, lists, rule.index, seen.tokens.impl, bool(seen.others)
        *found, least, rest = largest(heads.q, whole.k, *given)
        if found[0] is None:
            least = pad(least, (past, 0)) if past else least
            some = [replace(one, least=least) for one in lists.layouts]
            calls[0] = whole, [*some, *calls[0][1]], sight.own
        else:
            results.append(tuple(found))
            alone = len(calls) == 1 and len(sight.near) == (rule.gap > 1)  # without scouts
            if rule.causal and alone and text.sinks.is_plain:
                calls = [(*_by_position(whole, past, rule, sight.own is None), sight.own)]
    joined = len(results) + len(calls) + len(seen.others) > 1
    for qkv, some, own in calls:
        if before := qkv.k.size(2) - qkv.q.size(2):  # kept tokens ask for nothing
            qkv = qkv._replace(q=pad(qkv.q, (0, 0, before, 0)))
            asks_not = torch.arange(qkv.k.size(2), device=qkv.q.device) < before
            some = blinded(some, asks_not.view(1, 1, -1))
        qkv = qkv.repeated()
        if not some:
            values, lse = attend_own(*qkv[:3], own)
        else:  # rounded once, as in a step; CPUs compute in float32 anyway
            wide = (joined or len(some) + (own is not None) > 1) and not whole.q.is_cuda
            values, lse = ranged_attention(*qkv[:3], some, own, wide=wide, **how)
        results.append((values[:, :, before:], lse[..., before:]))
    out, others = _joined(results, heads, seen, stores, rest)
    return out, None if stores is None else _behind(heads, seen, rule, stores, others)


def _over(text: Text, heads: QKV) -> QKV:
    """Keys and values of a whole text, and the new queries."""
    if not text.past:
        return heads
    width = heads.k.size(-1)
    k = torch.cat([text.kept[..., :width], heads.k], dim=2)
    v = torch.cat([text.kept[..., -width:], heads.v], dim=2)
    return heads._replace(k=k, v=v)


def _by_position(whole: QKV, past: int, rule: Rule, itself: bool) -> tuple[QKV, list[Layout]]:
    """The keys that a causal query sees besides an index, cut out of a text without padding: its
    sinks, and all from the first near one on; and their layouts. ``itself``: they show the query's
    own key, too."""
    sinks = min(rule.sinks, whole.k.size(2))
    first = max(past - rule.gap + 1, sinks)
    k, v = (torch.cat([x[:, :, :sinks], x[:, :, first:]], dim=2) for x in whole[1:3])
    slot = torch.arange(k.size(2), device=k.device).view(1, 1, -1)
    lo, hi = (slot - rule.gap + 1).clamp(min=sinks), slot + itself
    near, of_sinks = Layout(lo, hi.clamp(min=sinks)), Layout(slot * 0, hi.clamp(max=sinks))
    return whole._replace(k=k, v=v), [near, of_sinks]


def _joined(
    results: list[Result], heads: QKV, seen: Seen, stores: Stores | None, rest: Tensor | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """Values of results joined with what a kind shows besides keys, and what is kept of that."""
    kept = (stores and stores.others) or [None] * len(seen.others)
    both = zip(seen.others, kept, strict=True)
    found = [other.attend(heads, store, rest) for other, store in both]
    out = join([*results, *(result for result, _ in found)])[0]
    return out.to(heads.q.dtype), tuple(store for _, store in found)


def _entries(heads: QKV, assignment: Assignment) -> Tensor:
    """Keys and values of new tokens, and biases if there are any, side by side [B, J, N, C]."""
    k, bias = heads.k, assignment.key_bias
    if bias is None:
        return torch.cat([k, heads.v], dim=-1)
    bias = for_each(k, bias).to(k.dtype).unsqueeze(-1).expand(*k.shape[:3], 1)
    return torch.cat([k, bias, heads.v], dim=-1)


def _sinks(entries: Tensor, tokens: Tokens, rule: Rule, stores: Stores) -> Tensor | None:
    """Those behind new tokens of these entries."""
    number, kept = rule.sinks, stores.sinks
    if not number:
        return None
    if kept is None:
        kept = entries.new_zeros(*entries.shape[:2], number, entries.size(-1))
    place = tokens.positions.clamp(max=number)
    if tokens.padding_mask is not None:
        place = place.masked_fill(tokens.padding_mask, number)
    at = place[:, None, :, None].expand(*entries.shape)
    # One slot more, which is dropped, takes what is no sink.
    return pad(kept, (0, 0, 0, 1)).scatter(2, at, entries)[:, :, :-1].contiguous()


def _behind(heads: QKV, seen: Seen, rule: Rule, stores: Stores, others: tuple[Any, ...]) -> Stores:
    text, near, entries = seen.text, None, _entries(heads, seen.assignment)
    if rule.index:
        rings = text.rings[:, :, 0, text.past :]
        lists = stores.lists or Lists.empty(entries, rings, rule.clusters)
        lists.store(entries, rings, seen.tokens, rule.sinks)
        return Stores(seen.assigned, lists, others=others)
    sinks = _sinks(entries, seen.tokens, rule, stores)
    if text.past:
        entries = torch.cat([text.kept, entries], dim=2)
    keys = Keys(entries, text.rings, text.batch.padding_mask)
    if rule.gap > 1:
        near, waiting = Near.of(keys, rule.gap - 1)
        keys = keys._replace(hidden=either(keys.hidden, waiting))
    how = {"clusters": rule.clusters, "window": rule.by_cluster, "counted": rule.drops_keys}
    return Stores(seen.assigned, None, Rings.of(keys, **how), near, sinks, others)


def _one(heads: QKV, seen: Seen, rule: Rule, stores: Stores) -> tuple[Tensor, Stores]:
    """Of one token of each row: it is stored in its ring, or in the window from which it will
    enter its ring, and one softmax is taken over all entries that it sees."""
    tokens, assignment, gap = seen.tokens, seen.assignment, rule.gap
    if rule.index:
        return _one_of_lists(heads, seen, rule, stores)
    behind, rounds = tokens.behind(rule.sinks), assignment.rounds
    groups, entries, mask = assignment.groups, _entries(heads, assignment), behind.padding_mask
    if rounds:
        written = torch.stack([found.of_keys for found in rounds], dim=2)
        read = torch.stack([torch.cat(found.queries, dim=-1) for found in rounds], dim=2)
    else:
        shape = len(entries), 1, 1, 1
        written = read = torch.zeros(shape, dtype=torch.long, device=entries.device)
    written, near, rings = written.squeeze(-1), stores.near, stores.rings
    if rings is None:
        nothing = Keys(entries[:, :, :0], written.unsqueeze(-1)[..., :0], None)
        rings = Rings.of(nothing, clusters=rule.clusters, window=None, counted=False)
        near = Near.of(nothing, gap - 1)[0] if gap > 1 else None
    rings.open(rule.by_cluster)
    if rule.drops_keys or gap > 1 or mask is not None or tokens.begins is not None:
        rings.seen = rings.given  # not all are given the same tokens from now on
    stores = replace(stores, assigned=seen.assigned, rings=rings, near=near)
    given = {"entry": entries, "kept": rings.kept, "read": read, "written": written}
    if (in_cpp := _in_cpp(heads, seen, behind, rule, stores, given)) is not None:
        return in_cpp

    def store() -> None:
        new = entries.unflatten(1, (groups, -1)).transpose(2, 3)  # [B, G, 1, J / G, C]
        new, where, skipped = new.expand(-1, -1, written.size(2), -1, -1), written, mask
        if near is not None:
            new, where, skipped = near.push(new, written, behind.before, mask)
        skipped = None if skipped is None else skipped.unsqueeze(-1)
        nowhere = where == rule.clusters if rule.drops_keys else None
        rings.store(new, where, either(nowhere, skipped))

    if tokens.begins is not None:
        rings.seen = rings.seen.masked_fill(tokens.begins.unsqueeze(-1), 0)
    if gap == 0:  # the query sees its own key in its ring
        store()
    biased = assignment.key_bias is not None
    visible = [rings.look(read, assignment.latest)._replace(biased=biased)]
    if gap > 0:
        visible.append(_own(entries, tokens, rule))
    if near is not None:
        visible.append(near.look(behind.before))
    if (sinks := _sinks(entries, tokens, rule, stores)) is not None:
        of_sinks, place = sinks, tokens.positions
        if (beyond := rule.beyond(tokens)) is not None:
            # the query is one for all that it sees: keys come nearer instead
            k, rest = sinks.tensor_split([heads.q.size(-1)], dim=-1)
            of_sinks = torch.cat([rotated(k, beyond, heads.rotary), rest], dim=-1)
        slot = torch.arange(sinks.size(2), device=place.device)
        hidden = slot >= place if gap > 0 else slot > place  # itself, if nothing else shows it
        visible.append(Entries(of_sinks.flatten(0, 1), hidden[:, None, None]))
    out, others = _joined([_softmax(heads.q, visible, seen)], heads, seen, stores, None)
    if gap > 0:
        store()
    return out, replace(stores, sinks=sinks, others=others)


def _one_of_lists(heads: QKV, seen: Seen, rule: Rule, stores: Stores) -> tuple[Tensor, Stores]:
    """The same of an index, in whose lists no sink is."""
    tokens, q, (found,) = seen.tokens, heads.q, seen.assignment.rounds
    entries, written = _entries(heads, seen.assignment), found.of_keys
    read, place = torch.cat(found.queries, dim=-1), tokens.positions.expand(q.size(0), -1)
    lists = stores.lists or Lists.empty(entries, written, rule.clusters)
    lists.open(1)
    stores = Stores(seen.assigned, lists, others=stores.others)
    kept = lists.entries.unflatten(1, (written.size(1), 1, -1))
    given = {"entry": entries, "kept": kept, "read": read.unsqueeze(2), "written": written}
    given |= {"lists": lists.clusters, "place": place, "index": rule.index, "gap": rule.gap}
    given["number_of_sinks"] = rule.sinks
    if (in_cpp := _in_cpp(heads, seen, tokens, rule, stores, given)) is not None:
        return in_cpp
    listed = lists.look(read, place - rule.gap)
    listed = listed._replace(biased=seen.assignment.key_bias is not None)
    # Of all that is listed, so many of largest logits, and those that are equal to them; and the
    # log-sum-exp of the others, list by list.
    logits = _logits(at_least_float32(q) / math.sqrt(q.size(-1)), listed)
    least = logits.topk(min(rule.index, lists.steps)).values[..., -1:]
    unlisted = for_each(q, listed.hidden.squeeze(2))
    clusters, below = lists.clusters[..., : lists.steps], ~unlisted & (logits < least)
    unshown = for_each(q, clusters).unsqueeze(-2) == for_each(q, read).unsqueeze(-1)
    unshown = unshown & below.unsqueeze(-2)
    rest = logits.unsqueeze(-2).masked_fill(~unshown, -torch.inf).logsumexp(-1).unsqueeze(2)
    listed = listed._replace(hidden=(unlisted | below).unsqueeze(2))
    near = lists.near(rule.gap, rule.sinks, place)
    visible = [listed, _own(entries, tokens, rule), near]
    out, others = _joined([_softmax(q, visible, seen)], heads, seen, stores, rest)
    lists.store(entries, written, tokens, rule.sinks)
    return out, replace(stores, others=others)


def _own(entries: Tensor, tokens: Tokens, rule: Rule) -> Entries:
    hidden = tokens.padding_mask
    hidden = None if hidden is None else hidden.view(-1, 1, 1, 1)
    return Entries(entries.flatten(0, 1), hidden, bias=rule.own_bias)


def _in_cpp(
    heads: QKV, seen: Seen, behind: Tokens, rule: Rule, stores: Stores, given: dict[str, Any]
) -> tuple[Tensor, Stores] | None:
    """What :func:`_one` returns, by the step in C++, which is given this; None: it does not know
    all that the token sees."""
    q, sinks, near = heads.q, stores.sinks, stores.near
    if q.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    special = behind.padding_mask, seen.tokens.begins, seen.assignment.latest, rule.beyond(behind)
    no_sinks = rule.sinks and sinks is None and not rule.index
    kept = given["kept"], sinks, None if near is None else near.kept
    mixed = {t.dtype for t in kept if t is not None} != {q.dtype}
    if mixed or no_sinks or any(t is not None for t in special):
        return None
    if chosen(seen.tokens.impl, q) != "cpu" or not cpu.can_run("step", q):
        return None
    others = []
    for other, kept in zip(seen.others, stores.others or [None] * len(seen.others), strict=True):
        if (found := other.in_cpu_step(heads, kept)) is None:
            return None
        given |= found[0]
        others.append(found[1])
    if sinks is not None:
        given["sinks"] = sinks
    if near is not None:
        given |= {"near": near.kept, "near_ring": near.ring, "before": behind.before}
    if stores.rings is not None:
        given["seen"] = stores.rings.given
    (stores.rings or stores.lists).steps += 1  # it stores the token
    given |= {"rings": rule.clusters, "own": rule.gap > 0, "own_bias": rule.own_bias}
    stores.others = tuple(others)
    return cpu.step(q, **given), stores


def _softmax(q: Tensor, visible: Sequence[Entries], seen: Seen) -> tuple[Tensor, Tensor | None]:
    """Values [B, H, 1, E] that queries attend to, by one softmax over all that is visible, and the
    log-sum-exp if they are joined with others."""
    batch, heads, _, width = q.shape
    q = at_least_float32(q) / math.sqrt(width)
    visible = [part._replace(entries=at_least_float32(part.entries)) for part in visible]
    logits = [_logits(q, part) for part in visible]
    sizes, logits = [found.size(-1) for found in logits], torch.cat(logits, dim=-1)
    weights = torch.softmax(logits, dim=-1).split(sizes, dim=-1)
    some, out = any(part.hidden is None for part in visible), 0.0
    for part, weight in zip(visible, weights, strict=True):
        entries = part.entries
        if not some:  # where nothing is seen, all weights are alike
            hidden = part.hidden.expand(-1, -1, heads // part.hidden.size(1), -1)
            weight = weight.masked_fill(hidden.reshape(weight.shape), 0.0)
        rows = weight.reshape(len(entries), batch * heads // len(entries), weight.size(-1))
        out = out + torch.bmm(rows, entries[..., -width:]).view(batch, heads, 1, width)
    return out, logits.logsumexp(-1, keepdim=True) if seen.others else None


def _logits(q: Tensor, part: Entries) -> Tensor:
    """Of queries [B, H, 1, E] and M entries [B, H, M]; the least number where they are hidden."""
    asks = pad(q, (0, 1), value=1.0) if part.biased else q  # the bias is one more number
    # Heads that share keys stand side by side, as queries of one product.
    rows = asks.reshape(len(part.entries), -1, asks.size(-1))
    found = torch.bmm(rows, at_least_float32(part.entries[..., : asks.size(-1)]).mT) + part.bias
    found = found.view(*q.shape[:2], -1)
    if part.hidden is not None:
        by_group = found.unflatten(1, (part.hidden.size(1), -1))
        by_group.masked_fill_(part.hidden, torch.finfo(q.dtype).min)
    return found

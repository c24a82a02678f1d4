"""Turns a dense model into a clustered one: measures its heads, and fits routers to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path

import torch
from fairseq import tasks

from fairseq_clusterformer.attention.kinds.taught.kind import Taught
from fairseq_clusterformer.attention.spec import Heads, parse_attention, written
from fairseq_clusterformer.checkpoints.load import Loaded, reason_of
from fairseq_clusterformer.errors import UserError, bad_option

from .fit import fit_layers
from .heads import Mass, head_mass, kinds_for, order_of_heads
from .model import Place, Plan, attentions, clustered_options, clustered_state, target_of
from .reading import Inputs, store

#: tasks of the models that can be converted
TASKS = ("language_modeling", "translation", "masked_lm", "clusterformer_sentence")
MEASURED = 8192  # tokens of the batches that heads are measured on
#: sinks where decoders need some (StreamingLLM, Xiao et al. 2024, table 2), and the mean share of
#: the attention that the first so many tokens have, beyond the near window, where they do
SINKS, SINKS_ABOVE = 4, 0.2


@dataclass
class Head:
    """A head, before and after. Recall is the share of the dense head's attention that is seen;
    chance is that of as many keys beyond the window, drawn at random."""

    side: str
    layer: int
    head: int  # its number in the dense model
    place: int  # and in the clustered model
    kind: str  # of its attention now
    far: float  # share of the dense head's attention beyond the near window
    best: float  # recall of the window and the W heaviest keys beyond it
    chance: float
    before: float | None  # the routing loss; None where nothing is fitted
    chance_before: float | None  # of the keys seen then, which may be more than after
    after: float


@dataclass(frozen=True, eq=False)
class Converted:
    """A clustered model, and how it came about."""

    loaded: Loaded  # its path is the dense checkpoint
    heads: list[Head]  # of all layers, in the order of the dense model
    specs: dict[str, str]  # of each side
    near: int  # window of the measurements
    losses: list[float]  # routing loss of each update
    dense_updates: int  # of the dense model's training
    tokens: int  # that were read, padding included


def check(loaded: Loaded, plan: Plan) -> None:
    """Refuse what cannot be converted, before any work: UserError for a model without a clustered
    form, or one that is not dense; a spec that does not fit; fewer positions than there are."""
    name, model = "CHECKPOINT", loaded.model
    target = target_of(loaded)
    for (side, number), attention in (attentions(model) if _is_ours(model) else {}).items():
        if {heads.kind for heads in attention.kinds} != {"full"}:
            problem = f"layer {number} of the {side} is {written([attention.kinds])}"
            raise bad_option(name, loaded.path, "a dense model", problem)
    if getattr(getattr(model, "decoder", None), "separate_documents", False):
        problem = "it was trained with --separate-documents"
        raise bad_option(name, loaded.path, "a model whose rows are one text each", problem)
    for side in plan.specs.keys() - target.specs.keys():
        raise bad_option(f"--{side}-attention", plan.specs[side], "none", f"there is no {side}")
    positions = model.max_positions()
    least = max(positions) if isinstance(positions, tuple) else positions
    if plan.max_positions is not None and plan.max_positions < least:
        raise bad_option("--max-positions", plan.max_positions, f"{least} or more")
    clustered = rebuilt(loaded, dict.fromkeys(target.specs, "full") | plan.specs)
    for router in clustered.model.modules():
        given = vars(router.options) if isinstance(router, Taught) else {}
        for option, fitted in (("routes_by", "input"), ("drop_keys", 0.0)):
            if (value := given.get(option, fitted)) != fitted:
                problem = "such a router cannot be fitted"
                raise bad_option(f"--{option.replace('_', '-')}", value, fitted, problem)


def _is_ours(model: torch.nn.Module) -> bool:
    return type(model).__module__.startswith("fairseq_clusterformer.")


def convert(loaded: Loaded, batches: Sequence[Inputs], plan: Plan, folder: Path) -> Converted:
    """Convert a dense model, which :func:`check` has found good. Raises UserError: options of the
    model that have no clustered form, texts that are too short, or a disk without room.

    Args:
        batches: of its inputs; heads are measured on the first ones, which nothing is fitted to
            unless there is one batch alone.
        folder: of what has been read and fitted so far, see :func:`~.reading.kept_beside`.
    """
    sides = target_of(loaded).specs
    dense = rebuilt(loaded, dict.fromkeys(sides, "full"))
    _check_same(loaded, dense, batches[0])
    number = len(_first(batches, MEASURED)[: max(1, len(batches) // 4)])
    first = len(_first(batches[number:] or batches, MEASURED))  # where the routers begin
    batches = batches[: number + max(first, plan.updates)]
    files = store(dense.model, batches, folder)
    measured, fitted = files[:number], files[number:] or files[:number]
    sinks, mass = mass_and_sinks(dense, measured, plan)
    specs = {s: plan.specs.get(s) or _spec(s, mass, dense, plan, sinks) for s in sides}
    kinds = {side: _kinds(dense, side, spec) for side, spec in specs.items()}
    orders = {
        (side, number): order_of_heads(
            kinds[side][number], mass[side, number], attention.num_heads // attention.kv_heads
        )
        for (side, number), attention in attentions(dense.model).items()
    }
    clustered = rebuilt(loaded, specs, orders, plan.max_positions)
    of_fit = orders, measured, fitted, first, sinks, plan
    layers, losses = fit_layers(dense.model, clustered.model, *of_fit)
    tokens = sum(inputs["src_tokens"].numel() for inputs in batches)
    heads = []
    for at, attention in attentions(clustered.model).items():
        size = attention.num_heads // len(attention.kinds)
        numbers = (*mass[at], *layers[at]["before"], *layers[at]["after"])
        for head, values in enumerate(torch.stack(numbers, dim=1).tolist()):
            far, best, began, chance_before, ended, chance = values
            place = orders[at].index(head)
            kind = attention.kinds[place // size].kind
            if kind != "taught":  # not fitted
                began = chance_before = None
            of_head = (far, best, chance, began, chance_before, ended)
            heads.append(Head(*at, head, place, kind, *of_head))
    return Converted(clustered, heads, specs, plan.near, losses, loaded.updates, tokens)


def mass_and_sinks(
    dense: Loaded, measured: Sequence[Inputs | Path], plan: Plan
) -> tuple[int, dict[Place, Mass]]:
    """How many sinks a decoder needs, and where the attention of all heads goes besides them."""

    def mass(sinks: int) -> tuple[dict[Place, Mass], float]:
        """And a decoder's mean far mass."""
        found = head_mass(dense.model, measured, plan.near, plan.far, sinks)
        layers = [of_layer.far for (side, _), of_layer in found.items() if side == "decoder"]
        return found, torch.cat(layers).mean().item() if layers else 0.0

    sinks = plan.sinks
    if "decoder" in plan.specs:  # those that all of its heads are asked to see
        layers = _kinds(dense, "decoder", plan.specs["decoder"])
        found = [heads for layer in layers for heads in layer if heads.kind != "full"]
        sinks = min((heads.options.sinks for heads in found), default=0)
    if sinks is not None:
        return sinks, mass(sinks)[0]
    without, far = mass(0)
    if far >= SINKS_ABOVE:
        found, left = mass(SINKS)
        if far - left >= SINKS_ABOVE:
            return SINKS, found
    return 0, without


def _kinds(dense: Loaded, side: str, spec: str) -> list[tuple[Heads, ...]]:
    """Of the heads of each layer of a side."""
    layers = [layer for (of, _), layer in attentions(dense.model).items() if of == side]
    return parse_attention(spec, num_layers=len(layers), num_heads=layers[0].num_heads)


def rebuilt(
    loaded: Loaded,
    specs: dict[str, str],
    orders: dict[Place, list[int]] | None = None,
    max_positions: int | None = None,
) -> Loaded:
    """The clustered model with a dense one's weights, and with the attention of each side in
    ``specs``. ``orders`` says which head comes to each place of a layer (None: heads stay);
    ``max_positions`` as of :class:`Plan`. Raises UserError: options of the model that have no
    clustered form."""
    try:
        cfg = clustered_options(loaded, specs, max_positions)
        task = tasks.setup_task(cfg.task, from_checkpoint=True)
        task.load_state_dict(loaded.task.state_dict())
        model = task.build_model(cfg.model, from_checkpoint=True)
        padding = task.source_dictionary.pad()
        state = clustered_state(loaded.model.state_dict(), model, orders or {}, padding)
        model.set_num_updates(0)
        model.load_state_dict(state, strict=True, model_cfg=cfg.model)
    except (ValueError, RuntimeError) as error:
        if "; allowed: " in str(error):  # an option, which it names
            raise UserError(str(error)) from error
        problem = f"it has no clustered form ({reason_of(error)})"
        raise bad_option("CHECKPOINT", loaded.path, "another model", problem) from error
    return replace(loaded, model=model.eval(), task=task, cfg=cfg, updates=0)


@torch.no_grad()
def _check_same(loaded: Loaded, dense: Loaded, inputs: Inputs) -> None:
    """Refuse a model with something in it that a clustered model does not have."""
    if _is_ours(loaded.model):
        return
    tokens = inputs.get("prev_output_tokens", inputs["src_tokens"])
    real = tokens.ne(loaded.task.source_dictionary.pad())
    theirs, ours = (each.model(**inputs)[0][real] for each in (loaded, dense))
    difference = (ours - theirs).abs().max().item()
    if not difference <= 1e-3 * (1 + theirs.abs().max().item()):
        problem = f"as a clustered model with full attention it differs by {difference:.3g}"
        raise bad_option("CHECKPOINT", loaded.path, "another model", problem)


def _first(batches: Sequence[Inputs], tokens: int) -> list[Inputs]:
    """The first batches, until there are so many tokens."""
    before = accumulate((inputs["src_tokens"].numel() for inputs in batches), initial=0)
    return [inputs for inputs, total in zip(batches, before, strict=False) if total < tokens]


def _spec(side: str, mass: dict[Place, Mass], dense: Loaded, plan: Plan, sinks: int) -> str:
    """A spec with as many heads of each kind as the layers' heads want."""
    positions = plan.max_positions or dense.model.max_positions()
    if isinstance(positions, tuple):
        positions = positions[side == "decoder"]
    clusters = plan.clusters or max(2, plan.probes or 0, positions // plan.far)
    probes = plan.probes or min(2, clusters, plan.far - 1)
    window = plan.far // probes
    if side == "decoder":  # W counts the query's own key, once
        window = (plan.far - 1) // probes + 1
    gap = plan.near + (side == "encoder")  # an encoder's window does not count the own token
    first = f",sinks={sinks}" if sinks and side == "decoder" else ""
    means = f",summaries={plan.summaries}" if plan.summaries and side == "decoder" else ""
    layers = []
    for place, attention in attentions(dense.model).items():
        if place[0] != side:
            continue
        kinds = kinds_for(mass[place].far, plan.window_below)
        shared = attention.kv_heads < attention.num_heads and attention.kv_heads % len(kinds) == 0
        per = plan.clusters_per or ("kv-head" if shared else "head")
        per = "" if per == "head" else f",clusters_per={per}"
        written = {
            "window": f"window({plan.near}{first})",
            "cluster": f"taught(window={window},clusters={clusters},probes={probes},gap={gap},"
            f"scouts={plan.scouts}{first}{means}{per})",
        }
        layers.append("+".join(written[kind] for kind in kinds))
    runs = [(layer, len(list(run))) for layer, run in groupby(layers)]
    return ",".join(layer if number == 1 else f"{layer}*{number}" for layer, number in runs)

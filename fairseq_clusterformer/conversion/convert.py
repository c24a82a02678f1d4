"""Turns a dense model into a clustered one, by its heads and with routers that are fitted to them;
and the folder that it is written to."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, groupby
from pathlib import Path

import torch
from fairseq import tasks
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

import fairseq_clusterformer
from fairseq_clusterformer import __version__
from fairseq_clusterformer.attention.kinds.taught.kind import Taught
from fairseq_clusterformer.attention.options import Heads, parse_attention, written
from fairseq_clusterformer.checkpoints.bundle import copy_data, is_bundle
from fairseq_clusterformer.checkpoints.load import Loaded, reason_of
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.families import rotary_table
from fairseq_clusterformer.outputs import whole_folder

from .fit import fit_layers
from .measure import Inputs, Mass, head_mass, kinds_for, order_of_heads, store
from .model import TARGETS, Place, Plan, attentions, clustered_options, clustered_state, target_of

#: tasks of the models that can be converted
TASKS = ("language_modeling", "translation", "masked_lm", "clusterformer_sentence")
MEASURED = 4096  # tokens of the batches that heads are measured on
BEGIN = 8192  # and that routers begin from
#: sinks where decoders need some (StreamingLLM, Xiao et al. 2024, table 2), and the mean share of
#: the attention that the first so many tokens have, beyond the near window, where they do
SINKS, SINKS_ABOVE = 4, 0.2
CHECKPOINT, REPORT = "checkpoint.pt", "convert.json"
DATA = "data"  # what the model's text needs, where it comes from no data folder
#: what a model starts from, which is the checkpoint now
_STARTS = ("word_vectors", "pretrained_checkpoint", "pretrained", "freeze_word_vectors")
_SHORTEST = 100  # updates of the training that follows


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
    scaled(loaded, plan)
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


def scaled(loaded: Loaded, plan: Plan) -> Loaded:
    """A dense model whose rotary positions reach the plan's, if it wants that. Raises UserError:
    there are none, they are scaled, or reach so far."""
    if (kind := plan.rotary_scaling) is None:
        return loaded
    from transformers import LlamaConfig

    layers = attentions(loaded.model) if "rotary_scaling" in loaded.cfg.model else {}
    rotary, width = next(((of.rotary, of.head_dim) for of in layers.values()), (None, 0))
    most, positions = plan.max_positions or 0, loaded.model.max_positions()
    if rotary is None or rotary.rates or most <= positions:
        allowed = "rotary positions that are not scaled, and more --max-positions than they have"
        raise bad_option("--rotary-scaling", kind, allowed)
    rope = {"rope_type": kind, "rope_theta": rotary.base, "factor": most / positions}
    rope |= {"original_max_position_embeddings": positions} if kind == "yarn" else {}
    sizes = {"head_dim": width, "max_position_embeddings": most}
    cfg = OmegaConf.create(OmegaConf.to_container(loaded.cfg), flags={"allow_objects": True})
    cfg.model.rotary_scaling = rotary_table(LlamaConfig(**sizes, rope_parameters=rope))
    return replace(loaded, cfg=cfg)


def _is_ours(model: torch.nn.Module) -> bool:
    return type(model).__module__.startswith("fairseq_clusterformer.")


def convert(loaded: Loaded, batches: Sequence[Inputs], plan: Plan, folder: Path) -> Converted:
    """Convert a dense model, which :func:`check` has found good. Heads are measured on the first
    batches, which nothing is fitted to unless there is one alone; the folder is that of
    :func:`~.measure.kept_beside`. Raises UserError: options of the model that have no clustered
    form, texts that are too short, or a disk without room."""
    loaded, sides = scaled(loaded, plan), target_of(loaded).specs
    dense = rebuilt(loaded, dict.fromkeys(sides, "full"))
    _check_same(loaded, dense, batches[0])
    number = len(_first(batches, MEASURED)[: max(1, len(batches) // 4)])
    first = len(_first(batches[number:] or batches, BEGIN))  # where the routers begin
    batches = batches[: number + max(first, plan.updates)]
    files = store(dense.model, batches, folder)
    measured, fitted = files[:number], files[number:] or files[:number]
    sinks, mass = mass_and_sinks(dense, measured, plan)
    specs = {s: plan.specs.get(s) or _spec(s, mass, dense, plan, sinks) for s in sides}
    kinds = {side: _kinds(dense, side, spec) for side, spec in specs.items()}
    orders = {}
    for (side, layer), attention in attentions(dense.model).items():
        shared = attention.num_heads // attention.kv_heads
        orders[side, layer] = order_of_heads(kinds[side][layer], mass[side, layer], shared)
    clustered = rebuilt(loaded, specs, orders, plan.max_positions)
    of_fit = orders, measured, fitted, first, sinks, plan
    layers, losses = fit_layers(dense.model, clustered.model, *of_fit)
    tokens = sum(inputs["src_tokens"].numel() for inputs in batches)
    heads = []
    for at, attention in attentions(clustered.model).items():
        size, (after, chance) = attention.num_heads // len(attention.kinds), layers[at]["after"]
        numbers = torch.stack([*mass[at], chance, *layers[at]["before"], after], dim=1)
        for head, values in enumerate(numbers.tolist()):
            place = orders[at].index(head)
            kind = attention.kinds[place // size].kind
            if kind != "taught":  # not fitted
                values[3:5] = None, None
            heads.append(Head(*at, head, place, kind, *values))
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
    ``specs``; ``orders`` says which head comes to each place of a layer (None: heads stay). Raises
    UserError: options of the model that have no clustered form."""
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
    index = side == "decoder" and not plan.rings
    few = min(32, max(1, clusters // 4)) if index else min(2, clusters, plan.far - 1)
    probes = plan.probes or few
    window = plan.far // probes
    if side == "decoder":  # W counts the query's own key, once
        window = (plan.far - 1) // probes + 1
    seen = f"index={plan.far},routing_convolution=0" if index else f"window={window}"
    gap = plan.near + (side == "encoder")  # an encoder's window does not count the own token
    first = f",sinks={sinks}" if sinks and side == "decoder" else ""
    every = max(64, positions // 128) if plan.summaries is None else plan.summaries
    means = f",summaries={every}" if every and side == "decoder" else ""
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
            "cluster": f"taught({seen},clusters={clusters},probes={probes},gap={gap},"
            f"scouts={plan.scouts}{first}{means}{per})",
        }
        layers.append("+".join(written[kind] for kind in kinds))
    runs = [(layer, len(list(run))) for layer, run in groupby(layers)]
    return ",".join(layer if number == 1 else f"{layer}*{number}" for layer, number in runs)


def write(
    converted: Converted, out: Path, *, force: bool = False, recipe: dict | None = None
) -> None:
    """Write the checkpoint and the report, and of a bundle what its text needs, into a folder that
    is complete or not there at all. ``recipe`` is what
    :func:`~fairseq_clusterformer.outputs.written` tells later. Raises UserError: ``out`` is there
    or cannot be written."""
    loaded, arch = converted.loaded, converted.loaded.cfg.model._name
    report = {"made by": {"fairseq_clusterformer": __version__}, "checkpoint": str(loaded.path)}
    report |= {"arch": arch, "attention": converted.specs, "near": converted.near}
    report |= {"routing losses": converted.losses, "heads": [*map(asdict, converted.heads)]}
    with whole_folder(out, force=force, recipe=recipe) as new:
        if is_bundle(loaded.folder):
            copy_data(loaded.folder, new / DATA)
            with open_dict(loaded.cfg):
                loaded.cfg.task.data = str(out.absolute() / DATA)
        torch.save(_state(loaded), new / CHECKPOINT)
        text = json.dumps(report, indent=1) + "\n"
        (new / REPORT).write_text(text, encoding="utf-8")


def _state(loaded: Loaded) -> dict:
    """A checkpoint from which a training starts anew, as fairseq reads it."""
    iterator = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}}
    return {
        "args": None,
        "cfg": OmegaConf.to_container(loaded.cfg, resolve=True, enum_to_str=True),
        "model": loaded.model.state_dict(),
        "criterion": None,
        "optimizer_history": [history | {"num_updates": 0}],
        "task_state": loaded.task.state_dict(),
        "extra_state": {"train_iterator": iterator, "val_loss": None},
        "last_optimizer_state": None,
    }


def fine_tuning(converted: Converted, out: Path) -> str:
    """The command that goes on with training: a tenth of the dense model's updates, at a tenth of
    its learning rate."""
    cfg, arch = converted.loaded.cfg, converted.loaded.cfg.model._name
    updates = max(_SHORTEST, converted.dense_updates // 10)
    rate = max(OmegaConf.select(cfg, "optimization.lr", default=[5e-4])) / 10
    criterion = TARGETS[arch].criterion
    if arch == "clusterformer_lm" and cfg.model.get("adaptive_softmax_cutoff"):
        criterion = "clusterformer_adaptive_loss"
    words = [
        *("fairseq-train", cfg.task.data),
        *("--user-dir", Path(fairseq_clusterformer.__file__).parent),
        *("--task", cfg.task._name, *_flags(cfg, "task", TASK_DATACLASS_REGISTRY)),
        *("--arch", arch, *_flags(cfg, "model", MODEL_DATACLASS_REGISTRY)),
        *("--finetune-from-model", out / CHECKPOINT, "--criterion", criterion),
        *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", f"{rate:g}"),
        *("--lr-scheduler", "polynomial_decay", "--warmup-updates", updates // 20),
        *("--total-num-update", updates, "--max-update", updates, "--clip-norm", "1.0"),
    ]
    texts, tokens = (OmegaConf.select(cfg, f"dataset.{n}") for n in ("batch_size", "max_tokens"))
    tokens = tokens if texts or tokens else 4096
    if tokens and isinstance(most := converted.loaded.model.max_positions(), int):
        tokens = max(tokens, most)  # one text at least
    smoothing = OmegaConf.select(cfg, "criterion.label_smoothing")
    smoothing = smoothing if "label_smoothed" in criterion else None
    others = {"--batch-size": texts, "--max-tokens": tokens, "--label-smoothing": smoothing}
    for name, value in (others | {"--save-dir": out / "finetuned"}).items():
        words += [name, value] if value is not None else []
    return shlex.join(map(str, words)).replace(" --", " \\\n  --")


def _flags(cfg: DictConfig, section: str, registry: dict[str, type]) -> Iterator[str]:
    """Yield the words of a command line that say where options differ from their defaults."""
    defaults = vars(registry[cfg[section]._name]())
    task = cfg.task.keys() if section == "model" else ()
    for name, default in defaults.items():
        value = cfg[section].get(name)
        if isinstance(default, str) and default.startswith("${"):
            default = OmegaConf.select(cfg, default[2:-1])
        if name in ("_name", "data", *_STARTS, *task) or value is None:
            continue
        if value == default or str(value) == str(default) or value is False:
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(list(value)) if OmegaConf.is_list(value) else str(value)

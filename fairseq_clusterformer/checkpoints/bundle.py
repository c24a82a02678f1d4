"""A bundle: one folder with all that a model needs, without pickle.

``bundle.json``        its format, its files, the options of the training, and what made it
``model.safetensors``  parameters and buffers; a tensor that has several names is in it once. In
                       int8, a matrix NAME has whole numbers, and NAME:scale a factor for each row
``MODEL_CARD.md``      if one was given: what the model is, of what data, and how good
``calibration.json``   of a reader, if one was given: how often it is right
and the dictionaries, the subword model and the recipe of the data folder that it stands for
"""

import json
import os
import re
import shutil
from argparse import Namespace
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from fairseq.dataclass import configs
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fairseq_clusterformer import __version__, errors
from fairseq_clusterformer.data import RECORD
from fairseq_clusterformer.errors import UserError, bad_option, check_no_pipes, read_json, reading
from fairseq_clusterformer.outputs import whole_folder

FORMAT = 1
MARK = "bundle.json"
WEIGHTS = "model.safetensors"
CARD = "MODEL_CARD.md"
CALIBRATION = "calibration.json"  # of a reader
SHIPPED = Path(__file__).parents[1] / "trained"  # bundles that are installed with this package
DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
INT8, SCALE = "int8", ":scale"
ALLOWED = "a checkpoint that fairseq-train wrote, or a bundle"
# What read_bundle needs of bundle.json.
_TYPES = {"cfg": dict, "shared": dict, "namespaces": list, "updates": int}
#: what a model reads from its data folder, whatever its task
_FILES = ("dict*.txt", "input?/dict.txt", "label/dict.txt", "data.json")
_FILES += ("tokenizer.json", "tokenizer.target.json", "sentencepiece.model", "encoder.json")
_FILES += ("vocab.bpe", "bpe.codes", CALIBRATION)
#: and what transformers' tokenizer reads, such as the template of a chat
CHAT_FILES = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_SECTIONS = ("model", "task", "criterion", "dataset", "generation", "bpe", "tokenizer")
#: what a training started from, on another computer
_STARTS = {"pretrained", "pretrained_checkpoint", "lift"}
#: options of where and how a training ran, which models of argparse have among their own
_OF_A_RUN = {
    field.name
    for section in ("Common", "CommonEval", "Checkpoint", "DistributedTraining")
    for field in fields(getattr(configs, f"{section}Config"))
    if field.name != "_name"
}


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model that is ready for inference."""

    model: BaseFairseqModel  # in evaluation mode, on the CPU
    task: FairseqTask  # fairseq's, set up on `folder`
    cfg: DictConfig  # all options of the training
    folder: Path  # of the data, or the bundle itself
    path: Path  # of the checkpoint or the bundle
    updates: int  # that the training had made


def is_bundle(path: Path | str) -> bool:
    """Whether a folder bears the mark of a bundle."""
    return (Path(path) / MARK).is_file()


def shipped() -> list[str]:
    """Names of the models that are installed with this package."""
    return sorted(mark.parent.name for mark in SHIPPED.glob(f"*/{MARK}"))


def located(path: Path | str) -> Path:
    """A path, or where a model lies that is installed with this package and has this name."""
    return SHIPPED / path if not Path(path).exists() and str(path) in shipped() else Path(path)


def no_file(path: Path, option: str) -> UserError:
    """The error for a checkpoint that is no file: what to give in its place."""
    problem = "a folder without bundle.json" if path.is_dir() else errors.no_file(path)
    allowed = ", ".join([f"{ALLOWED}, or an installed model", *shipped()])
    if (path / "config.json").is_file():  # of transformers
        allowed = f"the bundle that `clusterformer export {path} OUT --to fairseq` makes of it"
    return bad_option(option, path, allowed, problem)


def write_bundle(
    loaded: Loaded,
    out: Path | str,
    *,
    dtype: str = "float32",
    card: str | None = None,
    calibration: str | None = None,
    force: bool = False,
) -> Path:
    """Write a model and all that it needs into one new folder; return `out`. Raises UserError: if
    `out` is there otherwise or cannot be written, or the type of numbers is unknown.

    Args:
        out: complete or not there at all; one with the same content is left as it is.
        dtype: of the parameters in the file, one of `DTYPES`; or "int8" of matrices, with a
            factor for each row. Buffers keep their own.
        card: text of the model's card, in Markdown; None: that of `loaded`, if it has one.
        calibration: of a reader, in JSON; None: the one that it has.
        force: replace a bundle that this program wrote there, and that nobody has changed.
    """
    out = Path(out)
    if dtype not in (*DTYPES, INT8):
        raise bad_option("--dtype", dtype, ", ".join([*DTYPES, INT8]))
    with whole_folder(out, inputs=(loaded.path, loaded.folder), force=force) as new:
        shared = save_weights(loaded.model, new / WEIGHTS, dtype)
        copy_data(loaded.folder, new)
        sections, namespaces = plain_options(loaded)
        record = {
            "format": FORMAT,
            "task": sections["task"]["_name"],
            "arch": sections["model"]["_name"],
            "made by": {"fairseq_clusterformer": __version__, "checkpoint": loaded.path.name},
            "updates": loaded.updates,
            "dtype": dtype,
            "shared": shared,
            "namespaces": namespaces,
            "cfg": sections,
        }
        if card is None and (loaded.path / CARD).is_file():
            card = (loaded.path / CARD).read_text(encoding="utf-8")
        texts = {MARK: json.dumps(record, indent=1) + "\n", CARD: card, CALIBRATION: calibration}
        for name, text in texts.items():
            if text is not None:
                (new / name).write_text(text, encoding="utf-8")
        shutil.copymode(new / MARK, new / WEIGHTS)  # safetensors makes it the owner's alone
    return out


def save_weights(model: nn.Module, file: Path, dtype: str) -> dict[str, str]:
    """Write tensors, parameters as `write_bundle` says; return the other names that some have."""
    tensors, shared = distinct(model.state_dict())
    for name, _ in model.named_parameters(remove_duplicate=False):
        if name not in tensors or not tensors[name].is_floating_point():
            continue
        if dtype != INT8:
            tensors[name] = tensors[name].to(DTYPES[dtype])
        elif tensors[name].dim() == 2 and tensors[name].numel():
            scale = tensors[name].float().abs().amax(1) / 127  # of each row
            whole = (tensors[name] / scale.clamp(min=1e-30).unsqueeze(1)).round()
            tensors[name], tensors[name + SCALE] = whole.to(torch.int8), scale
    save_file(tensors, file, metadata={"format": "pt"})
    return shared


def _from_int8(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """All weights in floating point; raises ValueError for factors of another matrix."""
    found = {name: tensor for name, tensor in weights.items() if not name.endswith(SCALE)}
    for name in weights.keys() - found.keys():
        whole, scale = found[name.removesuffix(SCALE)], weights[name]
        if whole.dim() != 2 or scale.shape != whole.shape[:1]:
            raise ValueError(f"{name} is {list(scale.shape)}, its matrix {list(whole.shape)}")
        found[name.removesuffix(SCALE)] = whole * scale.unsqueeze(1)
    return found


def data_files(folder: Path) -> list[Path]:
    """What a model reads from a data folder but its recipe. Raises UserError: a link out of it."""
    files = [file for pattern in (*_FILES, *CHAT_FILES) for file in folder.glob(pattern)]
    for file in files:
        check_inside(file, folder)
    return files


def copy_data(source: Path, folder: Path) -> None:
    """Copy what a model reads from a data folder, and its recipe."""
    names = (str(file.relative_to(source)) for file in data_files(source))
    copy_files({name: name for name in names}, source, folder)
    copy_recipe(source, folder)


def copy_files(names: dict[str, str], source: Path, folder: Path) -> None:
    """Copy those files that a folder has, by new names (first). UserError: as `data_files`."""
    for name, old in names.items():
        if (source / old).is_file():
            check_inside(source / old, source)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / old, folder / name)


def check_inside(file: Path, folder: Path, option: str = "--data") -> None:
    """Raise UserError if a file is a link that leads out of a folder, to what nobody asked for."""
    if not Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder)):
        problem = f"{file.relative_to(folder)} is a link that leads out of it"
        raise bad_option(option, folder, "a folder with all its files", problem)


def copy_recipe(source: Path, folder: Path) -> None:
    """Copy the recipe of a data folder, if it has one."""
    if (source / RECORD).is_file():
        check_inside(source / RECORD, source)
        with reading(source / RECORD, "what a prepare command wrote"):
            recipe = read_json(source / RECORD)["recipe"]
        text = json.dumps({"recipe": recipe}, indent=1) + "\n"
        (folder / RECORD).write_text(text, encoding="utf-8")


def distinct(state: dict[str, object]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors that lie in different places, and the other names that some have. What is no tensor
    serves training alone, such as a memory bank, and is left out."""
    tensors, shared, first = {}, {}, {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            continue
        place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if tensor.numel() and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            tensors[name] = tensor.detach().cpu().contiguous()
    return tensors, shared


def plain_options(loaded: Loaded) -> tuple[dict[str, dict], list[str]]:
    """The options as JSON has them, and which sections are namespaces, as of argparse."""
    cfg = OmegaConf.to_container(loaded.cfg, resolve=True, enum_to_str=True)
    sections = {name: cfg[name] for name in _SECTIONS if cfg.get(name) is not None}
    namespaces = [name for name, of in sections.items() if isinstance(of, Namespace)]
    for name in namespaces:
        options = vars(sections[name]).items()
        sections[name] = {key: value for key, value in options if key not in _OF_A_RUN}
    for name in _STARTS & sections["model"].keys():
        sections["model"][name] = ""
    for side in ("source_lang", "target_lang"):  # fairseq infers them from the data's files
        if side in sections["task"]:
            sections["task"][side] = getattr(loaded.task.cfg, side)
    return _with_data(sections, None), namespaces


def read_bundle(folder: Path, option: str) -> dict:
    """A bundle as fairseq's ``load_checkpoint_to_cpu`` returns a checkpoint. Raises UserError:
    files that are missing, damaged or newer than this version."""
    check_no_pipes(option, folder)
    # A stranger's bundle might lead to files of this computer, or to what it has in its memory.
    for file in filter(Path.is_symlink, folder.rglob("*")):
        check_inside(file, folder, option)
    try:
        record = read_json(folder / MARK)
        if record["format"] != FORMAT:
            found = record["format"]
            raise ValueError(f"a bundle of format {found}, and this version reads {FORMAT}")
        for key, kind in _TYPES.items():
            if not isinstance(record[key], kind):
                raise ValueError(f"{key} in {MARK} is {json.dumps(record[key])[:40]}")
        if found := re.search(r"\$\{.*?[}\"]", json.dumps(record["cfg"])):
            found = found[0][:60]
            raise ValueError(f"its options hold {found}, which stands for something else")
        weights = _from_int8(load_file(folder / WEIGHTS))
        weights |= {name: weights[kept] for name, kept in record["shared"].items()}
        sections = _with_data(record["cfg"], str(folder))
        sections |= {name: Namespace(**sections[name]) for name in record["namespaces"]}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        problem = f"damaged ({type(error).__name__}: {error})"
        allowed = "a bundle that clusterformer bundle wrote"
        raise bad_option(option, folder, allowed, problem) from None
    # as --finetune-from-model reads it too
    made = {"num_updates": record["updates"], "optimizer_name": "", "lr_scheduler_state": {}}
    cfg = OmegaConf.create(sections, flags={"allow_objects": True})
    state = {"cfg": cfg, "model": weights, "optimizer_history": [made]}
    return state | {"args": None, "extra_state": {}}


def _with_data(sections: dict[str, dict], data: str | None) -> dict[str, dict]:
    return {
        name: of | {"data": data} if isinstance(of, dict) and "data" in of else of
        for name, of in sections.items()
    }

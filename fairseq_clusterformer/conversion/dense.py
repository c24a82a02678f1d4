"""Dense models of ``transformers`` as ours with full attention: the same logits, word by word."""

import json
import math
import shutil
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CommonConfig, DatasetConfig, GenerationConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from fairseq_clusterformer.checkpoints.load import Loaded, reason_of
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.subwords import TOKENIZER, Subwords
from fairseq_clusterformer.errors import UserError, bad_option
from fairseq_clusterformer.hf.configuration import ClusterformerConfig, build_model
from fairseq_clusterformer.hf.folder import pretrained
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.pretrained import FAMILIES as ENCODERS
from fairseq_clusterformer.models.pretrained import load_folder, set_sizes_of_folder

from .families import FAMILIES, KNOWN
from .model import CRITERIONS
from .texts import languages, roberta_text
from .watch import free_memory

ALLOWED = f"a folder of {KNOWN} that save_pretrained wrote, tokenizer included"

_DROPOUT = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}


def is_dense(folder: Path) -> bool:
    """Whether a folder holds a model of another type than ours."""
    try:
        record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    known = (None, ClusterformerConfig.model_type)
    return isinstance(record, dict) and record.get("model_type") not in known


def read_dense(folder: Path, data: Path) -> Loaded:
    """Read a dense model as ours, with full attention; the new folder ``data`` gets the files of
    its text. Raises UserError: a model of another type or with another form of a layer; files that
    are missing or damaged."""
    kind = _kind_of(folder)
    data.mkdir(parents=True, exist_ok=True)
    try:
        if kind in ENCODERS:
            return _read_encoder(folder, data)
        family = FAMILIES[kind]
        described = AutoConfig.from_pretrained(folder)
        options = family.options_of(described)
        _check_sizes(folder, described)
        theirs = pretrained(family.auto, folder, dtype=torch.float32)
        numbers = family.text(folder, data, theirs.config)
        config = ClusterformerConfig(
            architecture=family.architecture,
            options=options,
            vocab_size=len(numbers),
            max_position_embeddings=options["max_target_positions"],
        )
        model = build_model(config)
    except UserError:
        raise
    except CheckpointError as error:
        raise UserError(str(error)) from None
    except Exception as error:  # of every kind, for transformers checks little of what it reads
        raise bad_option("CHECKPOINT", folder, ALLOWED, reason_of(error)) from None
    state = family.state_of(theirs.state_dict(), theirs.config, numbers)
    own = model.state_dict()  # without its version, fairseq drops the last layer norm
    state |= {name: tensor for name, tensor in own.items() if name.endswith(".version")}
    try:
        model.load_state_dict(state)
    except CheckpointError as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, str(error)) from None
    of_task = {"tokens_per_sample": options["max_target_positions"]}
    if family.task == "translation":
        of_task = dict(zip(("source_lang", "target_lang"), languages(folder), strict=True))
    names = family.architecture, family.task
    return _loaded(model, *names, vars(config.namespace()), of_task, folder, data)


class Facts(NamedTuple):
    """What the configuration of a dense model says."""

    sides: dict[str, tuple[int, int]]  # layers and heads of the encoder, of the decoder
    positions: int
    is_translator: bool


def facts_of(folder: Path) -> Facts | None:
    """Of a folder of another library's dense model, without its weights; None: it is one of ours.
    Raises UserError: a model of another type or with another form of a layer."""
    if not is_dense(folder):
        return None
    kind = _kind_of(folder)
    try:
        if kind in ENCODERS:
            args = Namespace(pretrained=str(folder))
            set_sizes_of_folder(args, "CHECKPOINT")
            sides = {"encoder": (args.encoder_layers, args.encoder_attention_heads)}
            return Facts(sides, args.window_positions, False)
        options = FAMILIES[kind].options_of(AutoConfig.from_pretrained(folder))
        sides = [side for side in ("encoder", "decoder") if f"{side}_layers" in options]
        numbers = ("layers", "attention_heads")
        found = {s: tuple(options[f"{s}_{n}"] for n in numbers) for s in sides}
        positions = options["max_target_positions"]
        return Facts(found, positions, FAMILIES[kind].task == "translation")
    except UserError:
        raise
    except Exception as error:  # of every kind, for transformers checks little of what it reads
        raise bad_option("CHECKPOINT", folder, ALLOWED, reason_of(error)) from None


def _kind_of(folder: Path) -> str:
    """The type of a dense model; UserError for one that is not known, or is quantised."""
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = record["model_type"]
    if not isinstance(kind, str) or kind not in FAMILIES | ENCODERS:
        raise bad_option("CHECKPOINT", folder, ALLOWED, f"a model of the type {kind}")
    if record.get("quantization_config") is not None:
        raise bad_option("CHECKPOINT", folder, ALLOWED, "its weights are quantised")
    return kind


def _check_sizes(folder: Path, config: PretrainedConfig) -> None:
    """Refuse a model of more layers than tensors, or without room for three copies in float32:
    theirs, ours, and in between."""
    needed = number = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        needed += 3 * 4 * sum(map(math.prod, shapes))
        number += len(shapes)
    for name in ("num_hidden_layers", "encoder_layers", "decoder_layers"):
        if number and (layers := getattr(config, name, 0)) > number:
            raise ValueError(f"its {name} is {layers}, and it has {number} tensors")
    if needed > (free := free_memory()):
        problem = f"it takes {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
        raise bad_option("CHECKPOINT", folder, "a smaller model, or more memory", problem)


def _read_encoder(folder: Path, data: Path) -> Loaded:
    """An encoder of BERT's form. RoBERTa's text is coded by GPT-2's files, as transformers can
    have it back; that of the others by their ``tokenizer.json``."""
    args, config = Namespace(pretrained=str(folder)), AutoConfig.from_pretrained(folder)
    set_sizes_of_folder(args, "CHECKPOINT")
    numbers = None
    if config.model_type == "roberta":
        numbers = torch.tensor(roberta_text(folder, data, config))
    else:
        shutil.copyfile(folder / TOKENIZER, data / TOKENIZER)
        symbol_dictionary(Subwords(data / TOKENIZER).symbols).save(str(data / "dict.txt"))
    words, most = Dictionary.load(str(data / "dict.txt")), args.window_positions
    words.add_symbol("<mask>")  # as fairseq's task does
    task = SimpleNamespace(source_dictionary=words, max_positions=lambda: most)
    model = ClusterformerMaskedLM.build_model(args, task)
    load_folder(model, str(folder), "CHECKPOINT", numbers)
    known = vars(MODEL_DATACLASS_REGISTRY["clusterformer_masked_lm"]())
    options = {name: getattr(args, name) for name in known if name != "_name"}
    options |= {"pretrained": ""} | {
        ours: getattr(config, theirs, getattr(config, ours, 0.1))
        for ours, theirs in _DROPOUT.items()
    }
    names = "clusterformer_masked_lm", "masked_lm"
    return _loaded(model, *names, options, {"tokens_per_sample": most}, folder, data)


def _loaded(
    model, architecture: str, task: str, options, of_task, folder: Path, data: Path
) -> Loaded:
    """A model with the options of a training that would have made it."""
    sections = {
        "common": CommonConfig(),  # which options of others refer to
        "dataset": DatasetConfig(),
        "generation": GenerationConfig(),
        "task": TASK_DATACLASS_REGISTRY[task](),
        "model": MODEL_DATACLASS_REGISTRY[architecture](),
    }
    sections = {name: dict(vars(section)) for name, section in sections.items()}
    sections["task"] |= {"_name": task, "data": None, **of_task}
    sections["model"] |= {"_name": architecture, **options}
    sections["criterion"] = {"_name": CRITERIONS[architecture]}
    given = OmegaConf.create(sections, flags={"allow_objects": True})
    resolved = OmegaConf.to_container(given, resolve=True, enum_to_str=True)
    del resolved["common"], resolved["dataset"]
    return Loaded(
        model=model.eval(),
        task=SimpleNamespace(cfg=SimpleNamespace(**of_task)),
        cfg=OmegaConf.create(resolved, flags={"allow_objects": True}),
        folder=data,
        path=folder,
        updates=0,
    )

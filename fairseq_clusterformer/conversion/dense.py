"""Dense models of ``transformers`` as ours with full attention: the same logits, word by word."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CommonConfig, DatasetConfig, GenerationConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from safetensors import SafetensorError

from fairseq_clusterformer.errors import bad_option
from fairseq_clusterformer.hf.configuration import ClusterformerConfig, build_model
from fairseq_clusterformer.inference.load import Loaded, reason_of
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.encoder_only import fingerprint

from .families import FAMILIES, KNOWN, Family
from .texts import languages

ALLOWED = f"a folder of {KNOWN} that save_pretrained wrote, tokenizer included"


def is_dense(folder: Path) -> bool:
    """Whether a folder holds a model of another type than ours."""
    try:
        record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    known = (None, ClusterformerConfig.model_type)
    return isinstance(record, dict) and record.get("model_type") not in known


def read_dense(folder: Path, data: Path) -> Loaded:
    """Read a dense model as ours, with full attention.

    Args:
        data: a new folder, which gets the files of the model's text.

    Raises:
        UserError: a model of another type or with another form of a layer; files that are missing
            or damaged.
    """
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    family = FAMILIES.get(record["model_type"])
    if family is None:
        problem = f"a model of the type {record['model_type']}"
        raise bad_option("CHECKPOINT", folder, ALLOWED, problem)
    try:
        theirs = family.auto.from_pretrained(folder, dtype=torch.float32).eval()
        options = family.options_of(theirs.config)
        data.mkdir(parents=True, exist_ok=True)
        numbers = family.text(folder, data, theirs.config)
    except (OSError, SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, reason_of(error)) from None
    config = ClusterformerConfig(
        architecture=family.architecture,
        options=options,
        vocab_size=len(numbers),
        max_position_embeddings=options["max_target_positions"],
    )
    model = build_model(config)
    state = family.state_of(theirs.state_dict(), theirs.config, numbers)
    if family.task == "masked_lm":
        dictionary = Dictionary.load(str(data / "dict.txt"))
        dictionary.add_symbol("<mask>")  # as fairseq's task does
        state["vocabulary"] = model.vocabulary = fingerprint(dictionary)
    own = model.state_dict()  # without its version, fairseq drops the last layer norm
    state |= {name: tensor for name, tensor in own.items() if name.endswith(".version")}
    try:
        model.load_state_dict(state)
    except CheckpointError as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, str(error)) from None
    of_task = {"tokens_per_sample": options["max_target_positions"]}
    if family.task == "translation":
        of_task = dict(zip(("source_lang", "target_lang"), languages(folder), strict=True))
    return Loaded(
        model=model.eval(),
        task=SimpleNamespace(cfg=SimpleNamespace(**of_task)),
        cfg=_training(family, vars(config.namespace()), of_task),
        folder=data,
        path=folder,
        updates=0,
    )


def _training(family: Family, options: dict[str, Any], of_task: dict[str, Any]):
    """The options of a training that would have made the model."""
    sections = {
        "common": CommonConfig(),  # which options of others refer to
        "dataset": DatasetConfig(),
        "generation": GenerationConfig(),
        "task": TASK_DATACLASS_REGISTRY[family.task](),
        "model": MODEL_DATACLASS_REGISTRY[family.architecture](),
    }
    sections = {name: dict(vars(section)) for name, section in sections.items()}
    sections["task"] |= {"_name": family.task, "data": None, **of_task}
    sections["model"] |= {"_name": family.architecture, **options}
    sections["criterion"] = {"_name": family.criterion}
    given = OmegaConf.create(sections, flags={"allow_objects": True})
    resolved = OmegaConf.to_container(given, resolve=True, enum_to_str=True)
    del resolved["common"], resolved["dataset"]
    return OmegaConf.create(resolved, flags={"allow_objects": True})

"""Dense models of ``transformers`` as ours with full attention: the same logits, word by word.

``clusterformer export FOLDER OUT --to fairseq`` writes them as bundles, which ``clusterformer
convert`` turns into clustered models.
"""

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

from .dense_pairs import BART, MARIAN, languages
from .dense_parts import Dense
from .dense_single import GPT2, ROBERTA

ALLOWED = (
    "a folder of GPT-2, RoBERTa, Marian or BART that save_pretrained wrote, tokenizer included"
)
KINDS = {"gpt2": GPT2, "roberta": ROBERTA, "marian": MARIAN, "bart": BART}


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
        data: a new folder, which gets ``dict.txt``, ``encoder.json`` and ``vocab.bpe``.

    Raises:
        UserError: a model of another type or with another form of a layer; files that are missing
            or damaged.
    """
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = KINDS.get(record["model_type"])
    if kind is None:
        problem = f"a model of the type {record['model_type']}"
        raise bad_option("CHECKPOINT", folder, ALLOWED, problem)
    try:
        theirs = kind.auto.from_pretrained(folder, dtype=torch.float32).eval()
        options = kind.options(theirs.config)
        data.mkdir(parents=True, exist_ok=True)
        numbers = kind.text(folder, data, theirs.config)
    except (OSError, SafetensorError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, reason_of(error)) from None
    config = ClusterformerConfig(
        architecture=kind.architecture,
        options=options,
        vocab_size=len(numbers),
        max_position_embeddings=options["max_target_positions"],
    )
    model = build_model(config)
    state = kind.state(theirs, numbers)
    if kind.task == "masked_lm":
        dictionary = Dictionary.load(str(data / "dict.txt"))
        dictionary.add_symbol("<mask>")  # as fairseq's task does
        state["vocabulary"] = model.vocabulary = fingerprint(dictionary)
    of_task = {"tokens_per_sample": options["max_target_positions"]}
    if kind.task == "translation":
        of_task = dict(zip(("source_lang", "target_lang"), languages(folder), strict=True))
    own = model.state_dict()  # without its version, fairseq drops the last layer norm
    state |= {name: tensor for name, tensor in own.items() if name.endswith(".version")}
    try:
        model.load_state_dict(state)
    except CheckpointError as error:
        raise bad_option("CHECKPOINT", folder, ALLOWED, str(error)) from None
    return Loaded(
        model=model.eval(),
        task=SimpleNamespace(cfg=SimpleNamespace(**of_task)),
        cfg=_training(kind, vars(config.namespace()), of_task),
        folder=data,
        path=folder,
        updates=0,
    )


def _training(kind: Dense, options: dict[str, Any], of_task: dict[str, Any]):
    """The options of a training that would have made the model."""
    defaults = {
        "common": CommonConfig(),
        "dataset": DatasetConfig(),
        "generation": GenerationConfig(),
        "task": TASK_DATACLASS_REGISTRY[kind.task](),
        "model": MODEL_DATACLASS_REGISTRY[kind.architecture](),
    }
    plain = OmegaConf.create(
        {name: dict(vars(section)) for name, section in defaults.items()},
        flags={"allow_objects": True},
    )
    plain.task.update({"_name": kind.task, "data": None, **of_task})
    plain.model.update({"_name": kind.architecture, **options})
    sections = OmegaConf.to_container(plain, resolve=True, enum_to_str=True)
    sections = {
        "model": sections["model"],
        "task": sections["task"],
        "criterion": {"_name": kind.criterion},
        "generation": sections["generation"],
    }
    return OmegaConf.create(sections, flags={"allow_objects": True})

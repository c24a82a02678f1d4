"""Dense models of ``transformers`` as ours with full attention: the same logits, word by word."""

import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CommonConfig, DatasetConfig, GenerationConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from safetensors import safe_open
from transformers import AutoConfig, PretrainedConfig

from fairseq_clusterformer.checkpoints.load import Loaded, reason_of
from fairseq_clusterformer.errors import UserError, bad_option, read_json
from fairseq_clusterformer.families import FAMILIES, KNOWN, Family
from fairseq_clusterformer.hf.configuration import ClusterformerConfig, build_model
from fairseq_clusterformer.hf.folder import pretrained
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.encoder_only import fingerprint
from fairseq_clusterformer.models.pretrained import load_pretrained

from .model import TARGETS
from .texts import TEXTS, languages

ALLOWED = f"a folder of {KNOWN} that save_pretrained wrote, tokenizer included"

_DROPOUT = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}


def is_dense(folder: Path) -> bool:
    """Whether a folder holds a model of another type than ours."""
    try:
        record = read_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    known = (None, ClusterformerConfig.model_type)
    return isinstance(record, dict) and record.get("model_type") not in known


def read_dense(folder: Path, data: Path) -> Loaded:
    """Read a dense model as ours, with full attention; the new folder ``data`` gets the files of
    its text. Raises UserError: a model of another type or with another form of a layer; files that
    are missing or damaged."""
    record = read_json(folder / "config.json")
    kind = record["model_type"]
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise bad_option("CHECKPOINT", folder, ALLOWED, f"a model of the type {kind}")
    if record.get("quantization_config") is not None:
        raise bad_option("CHECKPOINT", folder, ALLOWED, "its weights are quantised")
    family = FAMILIES[kind]
    data.mkdir(parents=True, exist_ok=True)
    try:
        config = AutoConfig.from_pretrained(folder)
        options = family.options_of(config)
        _check_sizes(folder, config)
        if family.auto:
            theirs = pretrained(getattr(transformers, family.auto), folder, dtype=torch.float32)
            config = theirs.config
        numbers = TEXTS[family.text](folder, data, config)
        # of a decoder's texts, or of an encoder's
        most = options.get("max_target_positions") or options["window_positions"]
        if not family.auto:
            known = vars(MODEL_DATACLASS_REGISTRY[family.architecture]())
            options = {name: value for name, value in options.items() if name in known}
            for ours, theirs in _DROPOUT.items():
                options[ours] = getattr(config, theirs, getattr(config, ours, 0.1))
            options["encoder_attention"] = "full"
        described = ClusterformerConfig(
            architecture=family.architecture,
            options=options,
            vocab_size=len(numbers),
            max_position_embeddings=most,
        )
        model = build_model(described)
        if family.auto:
            # without its version, fairseq drops the last layer norm
            marks = {n: t for n, t in model.state_dict().items() if n.endswith(".version")}
            state = family.state_of(theirs.state_dict(), config, numbers)
            model.load_state_dict(state | marks)
        else:
            load_pretrained(model, str(folder), "CHECKPOINT", torch.tensor(numbers))
            words = Dictionary.load(str(data / "dict.txt"))
            words.add_symbol("<mask>")  # as fairseq's task does
            model.vocabulary.copy_(fingerprint(words))
    except UserError:
        raise
    except CheckpointError as error:
        if str(error).startswith("CHECKPOINT"):
            raise UserError(str(error)) from None
        raise bad_option("CHECKPOINT", folder, ALLOWED, str(error)) from None
    except Exception as error:  # of every kind, for transformers checks little of what it reads
        raise bad_option("CHECKPOINT", folder, ALLOWED, reason_of(error)) from None
    of_task = {"tokens_per_sample": most}
    if family.task == "translation":
        of_task = dict(zip(("source_lang", "target_lang"), languages(folder), strict=True))
    return _loaded(model, family, vars(described.namespace()), of_task, folder, data)


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


def free_memory() -> int:
    """Bytes that the machine has for programs; of systems other than Linux, no limit."""
    if not (file := Path("/proc/meminfo")).exists():
        return sys.maxsize
    return 1024 * int(re.search(r"MemAvailable: *(\d+)", file.read_text())[1])


def _loaded(model, family: Family, options, of_task, folder: Path, data: Path) -> Loaded:
    """A model with the options of a training that would have made it."""
    architecture, task = family.architecture, family.task
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
    sections["criterion"] = {"_name": TARGETS[architecture].criterion}
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

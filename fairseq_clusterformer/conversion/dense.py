"""Dense models of ``transformers`` as ours with full attention: the same logits, word by word; and
their texts, as the files of a fairseq data folder."""

import json
import math
import re
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from fairseq.data import Dictionary
from fairseq.dataclass.configs import CommonConfig, DatasetConfig, GenerationConfig
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig

from fairseq_clusterformer.checkpoints.bundle import CHAT_FILES
from fairseq_clusterformer.checkpoints.load import Loaded
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data import RECORD, TOKENIZER, formats
from fairseq_clusterformer.data.subwords import Subwords
from fairseq_clusterformer.data.text import TARGETS_OWN, TextPipeline
from fairseq_clusterformer.errors import bad_option, read_json
from fairseq_clusterformer.families import FAMILIES, KNOWN, Family
from fairseq_clusterformer.hf.configuration import ClusterformerConfig, build_model
from fairseq_clusterformer.hf.folder import pretrained, shapes_in
from fairseq_clusterformer.models.encoder import fingerprint
from fairseq_clusterformer.models.pretrained import load_pretrained

from .model import TARGETS

ALLOWED = f"a folder of {KNOWN} that save_pretrained wrote, tokenizer included"

_DROPOUT = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def read(folder: Path, data: Path) -> Loaded:
    """Read a dense model as ours, with full attention; the empty folder ``data`` gets the files of
    its text. Raises UserError or ValueError: a model of another type or with another form of a
    layer; and what transformers does."""
    record = read_json(folder / "config.json")
    kind = record["model_type"]
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise bad_option("CHECKPOINT", folder, ALLOWED, f"a model of the type {kind}")
    if record.get("quantization_config") is not None:
        raise bad_option("CHECKPOINT", folder, ALLOWED, "its weights are quantised")
    family = FAMILIES[kind]
    config = AutoConfig.from_pretrained(folder)
    options = family.options_of(config)
    _check_sizes(folder, config)
    # of a decoder's texts, or of an encoder's
    most = options.get("max_target_positions") or options["window_positions"]
    if family.auto:
        theirs = pretrained(getattr(transformers, family.auto), folder, dtype=torch.float32)
        config = theirs.config
    else:
        known = vars(MODEL_DATACLASS_REGISTRY[family.architecture]())
        options = {name: value for name, value in options.items() if name in known}
        for ours, name in _DROPOUT.items():
            options[ours] = getattr(config, name, getattr(config, ours, 0.1))
        options["encoder_attention"] = "full"
    numbers = TEXTS[family.text](folder, data, config)
    if family.text == "tokenizer":
        ends = theirs.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        options["text_begin"] = "" if first_of(folder) is None else "</s>"
        options["text_ends"] = ",".join(str(i) for i, end in enumerate(numbers) if end in ends)
    sizes = {"vocab_size": len(numbers), "max_position_embeddings": most}
    described = ClusterformerConfig(architecture=family.architecture, options=options, **sizes)
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
    of_task = {"tokens_per_sample": most}
    if family.task == "translation":
        of_task = dict(zip(("source_lang", "target_lang"), _languages(folder), strict=True))
    return _loaded(model, family, vars(described.namespace()), of_task, folder, data)


def _check_sizes(folder: Path, config: PretrainedConfig) -> None:
    """Refuse a model of more layers than tensors, or without room for three copies in float32:
    theirs, ours, and in between."""
    shapes = shapes_in(folder)
    needed, number = 3 * 4 * sum(map(math.prod, shapes)), len(shapes)
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
    cfg = OmegaConf.create(resolved, flags={"allow_objects": True})
    of_model = SimpleNamespace(cfg=SimpleNamespace(**of_task))
    return Loaded(model.eval(), of_model, cfg, folder=data, path=folder, updates=0)


# Each function takes the folder of a model, a new data folder and the configuration of the model.
# It returns the number that the model has for each of our symbols, -1 where it has none.


_theirs = partial(AutoTokenizer.from_pretrained, trust_remote_code=False)


def first_of(folder: Path) -> int | None:
    """The token that a folder's tokenizer puts in front of a text; None: it puts none."""
    return next(iter(_theirs(folder)("")["input_ids"]), None)


def tokenizer_text(folder: Path, data: Path, config: Any) -> list[int]:
    """The text of a ``tokenizer.json``. ``</s>`` is the token that the tokenizer puts in front, or
    the model's end of a text."""
    symbols, end = _tokenizer(folder, data, config).symbols, config.eos_token_id
    begin = end[0] if isinstance(end, list) and end else end
    begin = begin if (first := first_of(folder)) is None else first
    if not isinstance(begin, int):
        raise ValueError(f"its eos_token_id is {end}, not a number")
    named = [symbols.index(name) if name in symbols else -1 for name in _SPECIAL]
    special = [-1 if number == begin else number for number in named]
    special[2] = begin
    others = [number for number in range(len(symbols)) if number not in special]
    names = (f"<token-{i}>" if symbols[i] in _SPECIAL else symbols[i] for i in others)
    symbol_dictionary(names).save(str(data / "dict.txt"))
    for name in CHAT_FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, data / name)
    return [*special, *others]


def bert_text(folder: Path, data: Path, config: Any) -> list[int]:
    """The text of a ``tokenizer.json``, symbol by symbol, whose mask is ours."""
    symbols = _tokenizer(folder, data, config).symbols
    words = symbol_dictionary(symbols)
    words.save(str(data / "dict.txt"))
    words.add_symbol("<mask>")  # as fairseq's task does
    if missing := [symbol for symbol in words.symbols if symbol not in symbols]:
        raise ValueError(f"its tokenizer lacks {missing[0]}")
    return [symbols.index(symbol) for symbol in words.symbols]


def bart_text(folder: Path, data: Path, config: Any) -> list[int]:
    """The same, of both languages."""
    numbers = bert_text(folder, data, config)
    _write_recipe(folder, data, bpe="gpt2")
    return numbers


def marian_text(folder: Path, data: Path, config: Any) -> list[int]:
    """A sentencepiece model for each language, and one list of pieces."""
    pieces = read_json(folder / "vocab.json")
    _check_vocabulary(max(pieces.values(), default=0), config)
    special = [config.pad_token_id, config.eos_token_id, pieces["<unk>"]]
    in_order = sorted((number, piece) for piece, number in pieces.items() if number not in special)
    symbol_dictionary(piece for _, piece in in_order).save(str(data / "dict.txt"))
    for name, own in (("source.spm", TOKENIZER), ("target.spm", TARGETS_OWN)):
        formats.pieces(folder / name).save(str(data / own))
    _write_recipe(folder, data, bpe="sentencepiece", normalize_punctuation=True)
    return [-1, *special, *(number for number, _ in in_order)]


def _languages(folder: Path) -> tuple[str, str]:
    """Source and target, as Marian's tokenizer names them; "source" and "target" otherwise."""
    file = folder / "tokenizer_config.json"
    found = read_json(file) if file.is_file() else {}
    first, second = found.get("source_lang"), found.get("target_lang")
    return (first, second) if first and second and first != second else ("source", "target")


def _tokenizer(folder: Path, data: Path, config: Any) -> Subwords:
    """Write ``tokenizer.json``, also of a folder that has GPT-2's files instead, and read it."""
    if (folder / TOKENIZER).is_file() or not (folder / "vocab.json").is_file():
        shutil.copyfile(folder / TOKENIZER, data / TOKENIZER)
    else:
        _theirs(folder).backend_tokenizer.save(str(data / TOKENIZER))
    found = Subwords(data / TOKENIZER)
    _check_vocabulary(len(found.symbols) - 1, config)
    return found


def _check_vocabulary(most: int, config: Any) -> None:
    if most >= config.vocab_size:
        raise ValueError(f"its tokenizer has number {most}, and the model {config.vocab_size}")


def _write_recipe(folder: Path, data: Path, **how: object) -> None:
    """Name the dictionary of each language, and say how texts become subwords."""
    pipeline = TextPipeline(languages=_languages(folder), tokenizer="none", **how)
    recipe = {"recipe": pipeline.recipe()}
    (data / RECORD).write_text(json.dumps(recipe), encoding="utf-8")
    for language in pipeline.languages:
        shutil.copyfile(data / "dict.txt", data / f"dict.{language}.txt")
    (data / "dict.txt").unlink()


#: by what a family says, see `fairseq_clusterformer.families`
TEXTS = {"bert": bert_text, "tokenizer": tokenizer_text, "bart": bart_text, "marian": marian_text}

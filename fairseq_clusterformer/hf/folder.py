"""A trained model as a folder of ``transformers``, and back as a bundle.

``config.json``             fairseq's options
``model.safetensors``       the tensors, by fairseq's names behind ``model.``
``generation_config.json``  how the model writes, as fairseq does
``tokenizer_config.json``, ``dict.txt``, ...   the text's coding
``README.md``               the model's card
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.models.transformer import DEFAULT_MAX_TARGET_POSITIONS
from omegaconf import OmegaConf
from safetensors import safe_open
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from fairseq_clusterformer import __version__
from fairseq_clusterformer.checkpoints import bundle
from fairseq_clusterformer.checkpoints.load import Loaded, as_large_as
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.corpora.classification import RECORD as WORDS
from fairseq_clusterformer.data import TOKENIZER
from fairseq_clusterformer.data.characters import FORM, READ_FORM, form_of
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.subwords import Subwords
from fairseq_clusterformer.errors import bad_option, read_json, reading
from fairseq_clusterformer.outputs import check_utf8, whole_folder
from fairseq_clusterformer.use.perplexity import begin_of, ends_of

from . import encoders
from .configuration import ClusterformerConfig
from .generation import ClusterformerForCausalLM, ClusterformerForConditionalGeneration
from .tokenizer import ClusterformerTokenizer, has_titles, write_tokenizer

logger = logging.get_logger("fairseq_clusterformer")

#: class of each family of architectures
KINDS = {
    "clusterformer_lm": ClusterformerForCausalLM,
    "clusterformer": ClusterformerForConditionalGeneration,
    "clusterformer_masked_lm": encoders.ClusterformerForMaskedLM,
    "clusterformer_classifier": encoders.ClusterformerForSequenceClassification,
    "clusterformer_reader": encoders.ClusterformerForQuestionAnswering,
}
CONFIG, README = "config.json", "README.md"
MARK = "<!-- how to use it -->"
_USAGE = """
## With transformers

```python
{needs}from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```
"""
_NEEDS = "import fairseq_clusterformer.hf  # pip install '.[transformers]' in a clone of it\n"
_OF_TEXT = ClusterformerTokenizer.vocab_files_names
_OF_PAIR = {"cls_token": "<s>", "sep_token": "</s>"}
_ALLOWED = "a language model by byte pairs that keep line ends; a reader or classifier by byte "
_ALLOWED += "pairs or word pieces; sentencepiece or GPT-2's subwords"
WRITTEN = "a folder that clusterformer export or save_pretrained wrote"


def export(
    loaded: Loaded, out: Path | str, *, dtype: str = "float32", force: bool = False
) -> Path:
    """Write a model as a folder that ``from_pretrained`` of the Auto classes reads, as
    :func:`~fairseq_clusterformer.checkpoints.bundle.write_bundle` does; return `out`. Raises
    UserError for a model of another kind, or if `out` cannot be written."""
    out = Path(out)
    if dtype not in bundle.DTYPES:
        raise bad_option("--dtype", dtype, ", ".join(bundle.DTYPES))
    config = config_of(loaded)
    model = bert = encoders.as_bert(loaded)
    if bert is None:
        model = KINDS[config.family](config)
        model.model = loaded.model
    model.config.architectures = [type(model).__name__]
    model.config.dtype = bundle.DTYPES[dtype]
    check_utf8("OUT", out)
    with whole_folder(out, inputs=(loaded.path, loaded.folder), force=force) as new:
        _write_tokenizer(loaded, config, new, bert is not None)
        bundle.copy_recipe(loaded.folder, new)
        model.config.save_pretrained(new)
        if model.can_generate():
            generation(loaded, config).save_pretrained(new)
        bundle.save_weights(model, new / bundle.WEIGHTS, dtype)
        text = _card(loaded, config, _NEEDS if bert is None else "")
        (new / README).write_text(text, encoding="utf-8")
        # safetensors makes it the owner's alone
        shutil.copymode(new / CONFIG, new / bundle.WEIGHTS)
    return out


def config_of(loaded: Loaded) -> ClusterformerConfig:
    """The configuration of a loaded model; UserError where transformers has no place for it."""
    sections, namespaces = bundle.plain_options(loaded)
    options = dict(sections.pop("model"))
    architecture, task = options.pop("_name"), loaded.task
    known = ARCH_MODEL_NAME_REGISTRY.get(architecture) in KINDS
    if not known or getattr(task, "is_siamese", False):
        what = "has siamese pairs" if known else f"transformers has no place for {architecture}"
        allowed = f"a model of {', '.join(KINDS)}; clusterformer bundle takes every model"
        raise bad_option("CHECKPOINT", loaded.path, allowed, what)
    source = task.source_dictionary
    target = task.target_dictionary or source
    config = ClusterformerConfig(
        architecture=architecture,
        options=options,
        task=sections.pop("task"),
        criterion=sections.pop("criterion", {}),
        others={"namespaces": namespaces, "sections": sections},
        updates=loaded.updates,
        vocab_size=len(target),
    )
    if target.symbols != source.symbols:
        config.source_vocab_size = len(source)
    most = loaded.model.max_positions()
    if most is not None:  # a reader reads documents of any length
        config.max_position_embeddings = most if isinstance(most, int) else most[0]
    if config.family == "clusterformer":
        config.languages = [task.cfg.source_lang, task.cfg.target_lang]
        config.decoder_start_token_id = target.eos()
    if config.family == "clusterformer_classifier":
        config.id2label = dict(enumerate(task.classes))
        config.label2id = {label: number for number, label in config.id2label.items()}
        config.form = "joined" if task.is_pair else "text"
        with suppress(OSError, ValueError, LookupError, TypeError):
            config.text_length = read_json(loaded.folder / WORDS)["settings"]["max_length"]
    return config


def _write_tokenizer(loaded: Loaded, config: ClusterformerConfig, out: Path, bert: bool) -> None:
    """``tokenizer.json``, or what Python reads instead; UserError: neither can say the text."""
    folder, dictionary = loaded.folder, loaded.task.source_dictionary
    form, most = KINDS[config.family].form, config.max_position_embeddings
    if form == "translation" or (form == "reader" and has_titles(folder)):
        bundle.copy_files(_names(config), folder, out)
        slow_tokenizer(out, config).save_pretrained(out)
        return
    for name in (TOKENIZER, "tokenizer_config.json", *_OF_TEXT.values()):
        if (folder / name).is_file():
            bundle.check_inside(folder / name, folder)
    how: dict = {"unicode": form_of(folder)}
    about: dict = {"padding_side": "right", "model_input_names": ["input_ids", "attention_mask"]}
    if form == "text":
        coding = TextCoding.from_folder(folder, dictionary)
        begin = [dictionary[i] for i in begin_of(loaded, coding)]
        how, about["padding_side"] = {"unicode": coding.form, "begin": begin}, "left"
    elif form == "reader":
        how["unicode"] = form_of(folder, READ_FORM)
        about |= _OF_PAIR
        about["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        if bert:  # the longest question of a training with a whole window behind it
            most = loaded.task.cfg.max_question_positions + loaded.model.args.window_size
            about["model_max_length"] = min(loaded.model.args.window_positions, most)
    elif form == "sentence":
        how["unicode"] = FORM
        if (folder / WORDS).is_file():
            how["tokenised"] = read_json(folder / WORDS)["tokenised"]
        if config.form == "text" and config.text_length:
            most = min(most, config.text_length + 1)  # with <s>
        about |= _OF_PAIR | {"model_max_length": most}
    else:
        about |= {"mask_token": "<mask>", "model_max_length": most}
    try:
        write_tokenizer(folder, out, dictionary, form, about, **how)
    except ValueError as error:
        raise bad_option("CHECKPOINT", loaded.path, _ALLOWED, str(error)) from None


def generation(loaded: Loaded, config: ClusterformerConfig) -> GenerationConfig:
    """How fairseq's programs write with such a model; one of another library's text ends it."""
    bos, pad, eos = config.bos_token_id, config.pad_token_id, config.eos_token_id
    how: dict = {"bos_token_id": bos, "pad_token_id": pad, "eos_token_id": eos}
    if config.family == "clusterformer":
        most = config.namespace().max_target_positions or DEFAULT_MAX_TARGET_POSITIONS
        how |= dict.fromkeys(("decoder_start_token_id", "forced_eos_token_id"), eos)
        how |= {"num_beams": 5, "early_stopping": True, "suppress_tokens": [pad]}
        return GenerationConfig(**how, min_new_tokens=1, max_new_tokens=min(201, most))
    coding = TextCoding.from_folder(loaded.folder, loaded.task.source_dictionary)
    if coding.ends_texts and (loaded.folder / TOKENIZER).is_file():
        # another library hides no more
        hidden = [pad] if loaded.model.text_ends else [bos, pad]
        how |= {"bos_token_id": eos, "eos_token_id": [*ends_of(loaded, coding)]}
        return GenerationConfig(**how, suppress_tokens=hidden)
    del how["eos_token_id"]  # it is the end of a line, which ends no text
    how["suppress_tokens"] = [0, 1, 2, 3] if coding.unit == "byte" else [0, 1, 3]
    # without a prompt, a text begins by <s> </s>
    forced = coding.unit != "byte" and config.task.get("add_bos_token")
    how["forced_bos_token_id" if forced else "bos_token_id"] = eos
    return GenerationConfig(**how)


def _names(config: ClusterformerConfig) -> dict[str, str]:
    """Names of files of text in an export that Python reads, and in fairseq's data folder."""
    names = {name: name for role, name in _OF_TEXT.items() if role != "source_dictionary"}
    names["subwords.json"] = TOKENIZER
    if config.languages is not None:
        source, target = config.languages
        names |= {"dict.source.txt": f"dict.{source}.txt", "dict.txt": f"dict.{target}.txt"}
    return names


def slow_tokenizer(folder: Path, config: ClusterformerConfig) -> ClusterformerTokenizer:
    """The tokenizer of a model's files, which have the names of an export."""
    found = ((role, folder / name) for role, name in _OF_TEXT.items())
    files = {role: str(file) for role, file in found if file.is_file()}
    return ClusterformerTokenizer(**files, languages=config.languages)


def _card(loaded: Loaded, config: ClusterformerConfig, needs: str) -> str:
    """``README.md``: for the hub, and how to use the model, which ``needs`` a line of Python."""
    if (loaded.path / bundle.CARD).is_file():
        card = (loaded.path / bundle.CARD).read_text(encoding="utf-8")
    else:  # what the checkpoint itself says
        parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
        facts = [f"Architecture: `{config.architecture}`, {parameters:,} parameters"]
        facts += [f"Updates: {loaded.updates:,}", f"Made by: fairseq_clusterformer {__version__}"]
        names = ("attention", "encoder_attention", "decoder_attention")
        facts += [f"`{name}`: {spec}" for name in names if (spec := config.options.get(name))]
        card = "\n".join([f"# {loaded.path.stem}\n", *(f"- {fact}" for fact in facts)])
    kind, card = KINDS[config.family], card.rstrip("\n")
    front = f"library_name: transformers\npipeline_tag: {kind.hub_task}\n"
    front += "tags:\n- clusterformer\n- fairseq"
    if config.languages:
        front += "\nlanguage:\n- " + "\n- ".join(config.languages)
    usage = _USAGE.format(auto=kind.auto, needs=needs)
    return f"---\n{front}\n---\n\n{card}\n\n{MARK}\n{usage}"


def model_type(folder: Path) -> object:
    """What a folder's ``config.json`` says that its model is; None: it says nothing."""
    try:
        return read_json(folder / CONFIG).get("model_type")
    except (OSError, ValueError, AttributeError):
        return None


def read(folder: Path, data: Path) -> Loaded:
    """The model of a folder, by :func:`export` or ``save_pretrained`` of it and its tokenizer, and
    its text in the empty folder `data`. Raises what transformers and fairseq do."""
    _check_record(folder)
    config = ClusterformerConfig.from_pretrained(folder)
    model = pretrained(KINDS[config.family], folder)
    if not config.task.get("_name"):
        raise ValueError("it was not made from a fairseq model")
    if (folder / TOKENIZER).is_file():
        bundle.copy_recipe(folder, data)
        bundle.copy_files({name: name for name in (TOKENIZER, *bundle.CHAT_FILES)}, folder, data)
        symbols, special = Subwords(folder / TOKENIZER).symbols, Dictionary().symbols
        names = [f"<token-{i}>" if s in special else s for i, s in enumerate(symbols)]
        names += [f"<missing-{i}>" for i in range(len(symbols), config.vocab_size)]
        symbol_dictionary(names[len(special) :]).save(str(data / "dict.txt"))
    else:
        own, size = slow_tokenizer(folder, config), config.vocab_size
        sizes = [size, config.source_vocab_size or size]
        found = [len(own.target_symbols), len(own.source_symbols)]
        if sizes != found:
            raise ValueError(f"{sizes} embeddings, and {found} symbols in the dictionaries")
        bundle.copy_files({to: name for name, to in _names(config).items()}, folder, data)
    if config.family == "clusterformer_classifier":
        if config.task["_name"] == "masked_lm":
            problem = "it began as a masked language model, which does not say how texts become"
            raise ValueError(f"{problem} words; allowed: what began as a classifier")
        labels = symbol_dictionary(config.id2label[i] for i in sorted(config.id2label))
        labels.save(str(data / "label" / "dict.txt"))
        if config.task.get("num_classes"):
            config.task["num_classes"] = config.num_labels
        (data / "input0").mkdir()
        (data / "dict.txt").rename(data / "input0" / "dict.txt")
        # whether words are tokenised is not asked where tokenizer.json says the tokens
        words = {"tokenised": False, "settings": {"max_length": config.text_length}}
        (data / WORDS).write_text(json.dumps(words), encoding="utf-8")
    if config.form == "joined":
        shutil.copytree(data / "input0", data / "input1")
    sections = {"task": config.task, "criterion": config.criterion, **config.others["sections"]}
    sections["model"] = {"_name": config.architecture, **config.options}
    return Loaded(
        model=model.model,
        task=SimpleNamespace(cfg=SimpleNamespace(**config.task)),
        cfg=OmegaConf.create(sections, flags={"allow_objects": True}),
        folder=data,
        path=folder,
        updates=config.updates,
    )


def pretrained(kind: type, folder: Path, **how) -> PreTrainedModel:
    """A model of transformers whose file has all its tensors. Raises ValueError: it lacks some,
    which transformers would draw at random, or has others; or its options ask for more."""
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    before = logging.get_verbosity()
    logging.set_verbosity_error()  # a table of what does not fit, before the error
    try:
        with as_large_as(size):  # a number takes a byte or more
            how |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
            model, found = kind.from_pretrained(folder, **how)
    finally:
        logging.set_verbosity(before)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"its weights lack {len(missing)} tensors, such as {missing[0]}")
    if found["mismatched_keys"]:
        name, there, here = min(found["mismatched_keys"])
        raise ValueError(f"its {name} is {[*there]}, and its configuration wants {[*here]}")
    if unknown := sorted(found["unexpected_keys"]):
        logger.warning("%d tensors are not read, such as %s", len(unknown), unknown[0])
    return model


def shapes_in(folder: Path) -> list[list[int]]:
    """Shapes of all tensors in a folder's files of safetensors, which are not read."""
    shapes = []
    for file in folder.glob("*.safetensors"):  # one, or some of a large model
        with safe_open(file, "pt") as tensors:
            shapes += [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    return shapes


def _check_record(folder: Path) -> None:
    """Raise ValueError for a configuration that would make transformers load code or write
    elsewhere, or that names more words than the file has numbers."""
    record = read_json(folder / CONFIG)
    most = max((size for shape in shapes_in(folder) for size in shape), default=1 << 20)
    sizes = {record.get(name) or most for name in ("vocab_size", "source_vocab_size")}
    kernels = {record.get(f"{of}attn_implementation") for of in ("", "_")}
    languages = record.get("languages") or ["", ""]
    right = {
        "vocab_size": all(type(size) is int and 0 < size <= most for size in sizes),
        "languages": [*map(type, languages)] == [str, str] and "/" not in "".join(languages),
        "quantization_config": not record.get("quantization_config"),
        "attn_implementation": kernels <= {None, "eager", "sdpa"},
    }
    if wrong := [name for name, is_right in right.items() if not is_right]:
        raise ValueError(f"its {wrong[0]} is {record.get(wrong[0])!s:.60}")


def card_of(folder: Path) -> str | None:
    """The card without what the export added; None: there is none, or none of ours."""
    if not (folder / README).is_file():
        return None
    with reading(folder / README, "a card in UTF-8"):
        text = (folder / README).read_text(encoding="utf-8")
    if not text.startswith("---\n") or MARK not in text:
        return None
    text = text.split("---\n", 2)[2]
    return text[: text.index(MARK)].strip("\n") + "\n"

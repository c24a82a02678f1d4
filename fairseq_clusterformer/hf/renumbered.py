"""Another library's ``tokenizer.json`` by our numbers of tokens, for transformers, and back.

A model whose text is coded by such a file has its own numbers: those of fairseq's dictionary,
whose first four are special. The file is written anew by these, so transformers needs nothing else
to read a text as we do. Its special tokens and the template of its chats are kept.
"""

import json
import shutil
import tempfile
from pathlib import Path

from fairseq.data import Dictionary
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from fairseq_clusterformer.checkpoints.bundle import CHAT_FILES
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.subwords import TOKENIZER, TokenizerSubwords

from .fast import Form

ALLOWED = "a language model by byte pairs that keep line ends; a reader or classifier by byte "
ALLOWED += "pairs or word pieces; sentencepiece or GPT-2's subwords"
_CONFIG, _MASK = "tokenizer_config.json", "<mask>"


def is_renumbered(folder: Path) -> bool:
    """Whether the text of an exported folder is coded by its ``tokenizer.json`` alone."""
    return (folder / TOKENIZER).is_file() and not (folder / "dict.txt").is_file()


def renumber(
    folder: Path,
    dictionary: Dictionary,
    form: Form,
    *,
    lines: bool = False,
    unicode: str = "none",
    **config: object,
) -> PreTrainedTokenizerFast:
    """The tokenizer of transformers whose numbers are ours, of a data folder with
    ``tokenizer.json`` and, if there are any, ``CHAT_FILES``. Raises ValueError for a file that
    cannot say it; the message says why.

    Args:
        form: what stands around texts.
        lines: line ends must be tokens.
        unicode: the form of Unicode that a text gets first: "NFC", "NFKC", or "none".
        config: more for ``tokenizer_config.json``; special tokens as `dictionary` has them.
    """
    content = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    subwords = TokenizerSubwords(folder / TOKENIZER)
    if not isinstance(content["model"]["vocab"], dict):
        raise ValueError(f"its {TOKENIZER} has a {content['model']['type']}")
    if lines and not subwords.keeps_lines:
        raise ValueError(f"its {TOKENIZER} loses line ends")
    tokens = content["model"]["vocab"] | {t["content"]: t["id"] for t in content["added_tokens"]}
    numbers = _numbers(subwords, dictionary, sorted(tokens.values()))
    if lost := [token for token, number in tokens.items() if number not in numbers]:
        raise ValueError(f"its dictionary lacks {len(lost):,} tokens, such as {lost[0]}")
    made = {token: numbers[number] for token, number in tokens.items()}
    for token in content["added_tokens"]:
        token["id"] = made[token["content"]]
    more = [dictionary.index(_MASK)] if _MASK in dictionary else []
    # which transformers needs to pad and to begin by, and what the task has added
    for number in sorted({*range(dictionary.nspecial), *more} - {*made.values()}):
        symbol = dictionary[number]
        if symbol not in made:
            made[symbol] = number
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            token = {"id": number, "content": symbol, **flags, "special": True}
            content["added_tokens"].append(token)
    content["added_tokens"].sort(key=lambda token: token["id"])
    content["model"]["vocab"] = dict(sorted(made.items(), key=lambda item: item[1]))
    content["post_processor"] = content["truncation"] = content["padding"] = None
    if unicode != "none":
        steps = [{"type": unicode}, *filter(None, [content["normalizer"]])]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    tokenizer = Tokenizer.from_str(json.dumps(content))
    names = {number: token for token, number in made.items()}
    single, pair = form.text, f"{form.text} {form.second}"
    around = [n for n in (dictionary.bos(), dictionary.eos()) if dictionary[n] in pair]
    for number in around:
        single, pair = (each.replace(dictionary[number], names[number]) for each in (single, pair))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=pair,
        special_tokens=[(names[number], number) for number in around],
    )
    for name in config.keys() & {"cls_token", "sep_token", "unk_token"}:
        config[name] = names[dictionary.index(config[name])]
    return _with_chats(tokenizer, folder, names, config)


def _numbers(
    subwords: TokenizerSubwords, dictionary: Dictionary, theirs: list[int]
) -> dict[int, int]:
    """Our number of each of their tokens; where texts begin by one of theirs, it is ``</s>``."""
    end, found = dictionary.eos(), {}
    for number in theirs:
        names = (f"<token-{number}>", subwords.symbols[number])
        if known := [name for name in names if name in dictionary]:
            found[number] = dictionary.index(known[0])
    unnamed = [number for number in theirs if number not in found]
    if end not in found.values():  # as `conversion.texts.tokenizer_text` chose it
        if subwords.first is not None:
            found[subwords.first] = end
        elif len(unnamed) == 1:
            found[unnamed[0]] = end
    return found


def _with_chats(
    tokenizer: Tokenizer, folder: Path, names: dict[int, str], more: dict[str, object]
) -> PreTrainedTokenizerFast:
    """As transformers has it, with the roles of tokens and the template of its chats."""
    with tempfile.TemporaryDirectory() as work:
        for name in CHAT_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, Path(work, name))
        given = Path(work, _CONFIG)
        config = json.loads(given.read_text(encoding="utf-8")) if given.is_file() else {}
        for name in ("tokenizer_class", "added_tokens_decoder", "auto_map"):
            config.pop(name, None)  # other numbers, and code that is not there
        config |= {"pad_token": names[1], "padding_side": "left"} | more
        config.setdefault("eos_token", names[2])
        given.write_text(json.dumps(config), encoding="utf-8")
        tokenizer.save(str(Path(work, TOKENIZER)))
        return PreTrainedTokenizerFast.from_pretrained(work)


def back(folder: Path, data: Path, size: int) -> Dictionary:
    """Write the files of text of such a folder to a data folder, and return its dictionary, of at
    least ``size`` symbols. Raises ValueError for a file that is no tokenizer."""
    for name in (TOKENIZER, *CHAT_FILES):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, data / name)
    symbols, special = TokenizerSubwords(folder / TOKENIZER).symbols, Dictionary().symbols
    own = [f"<token-{i}>" if s in special else s for i, s in enumerate(symbols)][len(special) :]
    own += [f"<missing-{i}>" for i in range(len(symbols), size)]
    dictionary = symbol_dictionary(own)
    dictionary.save(str(data / "dict.txt"))
    return dictionary

"""``tokenizer.json``: transformers alone gives the tokens that our own tokenizer gives."""

import json
import re
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from fairseq.data import Dictionary

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import sentencepiece  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from fairseq_clusterformer.corpora.binarize import train_sentencepiece  # noqa: E402
from fairseq_clusterformer.data.bytes import byte_symbols  # noqa: E402
from fairseq_clusterformer.data.text import TextPipeline  # noqa: E402
from fairseq_clusterformer.hf import ClusterformerConfig, ClusterformerTokenizer  # noqa: E402
from fairseq_clusterformer.hf.folder import KINDS, tokenizer_of  # noqa: E402

# of equal signs in a row, the two split some in other places
PAGE = "".join(topics[name] for name in ("assignment", "strings", "calls", "with"))
PAGE = re.sub(r"([^\w\s])\1+", r"\1", PAGE)
LINE = max(PAGE.split("\n"), key=len).strip()
TEXTS = [
    PAGE,
    "One line.\n\n  Another, led by blanks  \nand a last one \n",
    "Привет, мир! Ἀρχὴ ΣΟΦΟΣ σοφός. 漢字かな交じり文。 مرحبا بالعالم שלום हिन्दी ไทย",
    "naïve e\u0301 ½ x² \N{GRINNING FACE}\N{ZERO WIDTH JOINER}\N{BLACK HEART SUIT}",
    "a\u00a0b\u2003c\x1fd\r\ne\tf",
    "Symbols </s> in<s>a </s>text <pad> <unk>.",
    "<0x41> \u2581 a_b--c 'tis 1,000.50 @-@",
    " ",
    "\n",
    "\n\nx",
]


def write(folder: Path, symbols: list[str]) -> None:
    dictionary = Dictionary()
    for symbol in symbols:
        dictionary.add_symbol(symbol)
    dictionary.save(str(folder / "dict.txt"))


def pieces(folder: Path, how: str) -> None:
    """A sentencepiece model of real text."""
    model, text = folder / "sentencepiece.model", folder / "text"
    text.write_text("\n".join([PAGE, *TEXTS[1:4]]), encoding="utf-8")
    if how == "ours":
        train_sentencepiece([text], 900, model, words=["bounded", "cluster"])
    else:
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=str(folder / "sentencepiece"),
            vocab_size=500,
            model_type=how.removesuffix(" with bytes"),
            byte_fallback="bytes" in how,
            normalization_rule_name="identity" if "bpe" in how else "nmt_nfkc",
            minloglevel=2,
        )
    read = sentencepiece.SentencePieceProcessor(model_file=str(model))
    # in another order than the model's
    write(folder, sorted(read.id_to_piece(i) for i in range(3, len(read))))


def gpt2(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PAGE], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    (folder / "encoder.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{' '.join(pair)}\n" for pair in model["merges"])
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    write(folder, [str(i) for i in reversed(range(len(model["vocab"])))])


def words(folder: Path) -> None:
    write(folder, sorted(set(PAGE.split()))[::2])


def sentence_words(folder: Path, tokenised: bool) -> None:
    known = set(" ".join(TEXTS).lower().split()) | {".", ",", "_", "cluster", "σοφος", "½"}
    write(folder, sorted(known)[::2])
    settings = {"tokenised": tokenised, "settings": {"max_length": None}}
    (folder / "data.json").write_text(json.dumps(settings))


def translation(folder: Path, lowercase: bool) -> None:
    pieces(folder, "ours")
    pipeline = TextPipeline(tokenizer="none", bpe="sentencepiece", lowercase=lowercase)
    record = {"recipe": pipeline.recipe()}
    (folder / "prepared.json").write_text(json.dumps(record))
    (folder / "dict.source.txt").write_bytes((folder / "dict.txt").read_bytes())


CASES = {
    "bytes": ("text", lambda folder: write(folder, byte_symbols())),
    "masked bytes": ("masked", lambda folder: write(folder, byte_symbols())),
    "words": ("text", words),
    "masked words": ("masked", words),
    "unigram": ("text", lambda folder: pieces(folder, "ours")),
    "masked unigram": ("masked", lambda folder: pieces(folder, "ours")),
    "reader": ("reader", lambda folder: pieces(folder, "ours")),
    "normalised": ("text", lambda folder: pieces(folder, "unigram")),
    "bpe": ("text", lambda folder: pieces(folder, "bpe")),
    "bpe with bytes": ("text", lambda folder: pieces(folder, "bpe with bytes")),
    "gpt2": ("text", gpt2),
    "masked gpt2": ("masked", gpt2),
    "reader of gpt2": ("reader", gpt2),
    "sentence": ("sentence", lambda folder: sentence_words(folder, False)),
    "tokenised sentence": ("sentence", lambda folder: sentence_words(folder, True)),
    "translation": ("translation", lambda folder: translation(folder, False)),
    "lowered translation": ("translation", lambda folder: translation(folder, True)),
}


def config(form: str) -> ClusterformerConfig:
    (family,) = (family for family, kind in KINDS.items() if kind.form == form)
    languages = ["de", "en"] if form == "translation" else None
    return ClusterformerConfig(architecture=family, languages=languages)


def made(case: str, folder: Path) -> ClusterformerTokenizer:
    """Ours, saved in a folder behind the data's."""
    (folder / "data").mkdir(parents=True)
    form, prepare = CASES[case]
    prepare(folder / "data")
    ours = tokenizer_of(folder / "data", config(form))
    ours.save_pretrained(folder / "saved")
    ClusterformerConfig().save_pretrained(folder / "saved")
    return ours


@pytest.mark.parametrize("case", CASES)
def test_the_same_tokens(case, tmp_path):
    ours = made(case, tmp_path)
    special = {name: str(token) for name, token in ours.special_tokens_map.items()}
    file = str(tmp_path / "saved" / "tokenizer.json")
    theirs = PreTrainedTokenizerFast(tokenizer_file=file, **special)
    assert len(theirs) == len(ours)
    for text in TEXTS:
        wanted = ours(text)["input_ids"]
        assert theirs(text)["input_ids"] == wanted, text
        assert len(wanted) > len(ours("")["input_ids"]) or not text.strip()
    # an empty text of bytes begins by </s>, which the file cannot say
    assert theirs("")["input_ids"] == ([] if case == "bytes" else ours("")["input_ids"])
    for name in ("input_ids", "token_type_ids"):
        found = [
            each("Who ran?", "The cat\n\nran.", return_token_type_ids=True)[name]
            for each in (ours, theirs)
        ]
        if ours.form != "translation":  # which has no pairs
            assert found[0] == found[1], name
    if ours.mask_token is not None:
        masked = "The <mask> sat<mask>."
        assert theirs(masked)["input_ids"] == ours(masked)["input_ids"]
    for text in (LINE, "a b, c"):
        tokens = ours(text)["input_ids"]
        found = theirs.decode(tokens, skip_special_tokens=True)
        assert found == ours.decode(tokens, skip_special_tokens=True)
        assert len(found) > 20 or text != LINE


def test_auto_tokenizer_without_this_package(tmp_path):
    code = (
        "import json, sys; from transformers import AutoTokenizer; found = {}\n"
        "for folder in sys.argv[2:]:\n"
        "    auto = AutoTokenizer.from_pretrained(folder)\n"
        "    found[folder] = [auto(text)['input_ids'] for text in json.loads(sys.argv[1])]\n"
        "assert 'fairseq_clusterformer' not in sys.modules\n"
        "print(json.dumps(found))"
    )
    wanted, texts = {}, TEXTS[1:]
    for case in ("bytes", "words", "unigram", "bpe with bytes", "gpt2", "sentence"):
        ours = made(case, tmp_path / case)
        wanted[str(tmp_path / case / "saved")] = [ours(text)["input_ids"] for text in texts]
    words = [sys.executable, "-c", code, json.dumps(texts), *wanted]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout) == wanted


def test_no_file_that_would_give_other_tokens(tmp_path):
    """Of Moses' tokeniser; of a dictionary that lacks pieces; and none is left of before."""
    ours = made("translation", tmp_path)
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    record = {"recipe": TextPipeline(tokenizer="moses", bpe="sentencepiece").recipe()}
    (tmp_path / "data" / "prepared.json").write_text(json.dumps(record))
    again = tokenizer_of(tmp_path / "data", config("translation"))
    again.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "tokenizer.json").exists()
    symbols = ours.target_symbols.symbols[4:-3]
    write(tmp_path / "data", symbols)
    few = tokenizer_of(tmp_path / "data", config("text"))
    few.save_pretrained(tmp_path / "few")
    assert not (tmp_path / "few" / "tokenizer.json").exists()

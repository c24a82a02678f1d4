"""``tokenizer.json``: a text's tokens are those of the files that it is made of, and back."""

import json
import re
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import sentencepiece
from fairseq.data import Dictionary
from tokenizers import Tokenizer, models

from fairseq_clusterformer.corpora.binarize import symbol_dictionary, train_sentencepiece
from fairseq_clusterformer.corpora.classification import split_words
from fairseq_clusterformer.data.characters import byte_symbols
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.subwords import Subwords, load, load_prepared
from fairseq_clusterformer.data.tokenizer_json import make
from tests.data.subword_models import write_gpt2, write_sentencepiece

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
    symbol_dictionary(symbols).save(str(folder / "dict.txt"))


def pieces(folder: Path, how: str) -> None:
    """A sentencepiece model of real text."""
    model, text = folder / "sentencepiece.model", "\n".join([PAGE, *TEXTS[1:4]])
    if how == "ours":
        (folder / "text").write_text(text, encoding="utf-8")
        train_sentencepiece([folder / "text"], 900, model, words=["bounded", "cluster"])
    else:
        options = {"vocab_size": 500, "normalization_rule_name": "nmt_nfkc", "model_type": how}
        write_sentencepiece(model, text.split("\n"), **options)
    read = sentencepiece.SentencePieceProcessor(model_file=str(model))
    # in another order than the model's
    write(folder, sorted(read.id_to_piece(i) for i in range(3, len(read))))


def gpt2(folder: Path) -> None:
    symbols = load(write_gpt2(folder, [PAGE], merges=144)).symbols
    write(folder, symbols[::-1])


def words(folder: Path) -> None:
    write(folder, sorted(set(PAGE.split()))[::2])


CASES = {
    "bytes": lambda folder: write(folder, byte_symbols()),
    "words": words,
    "unigram": lambda folder: pieces(folder, "ours"),
    "normalised": lambda folder: pieces(folder, "unigram"),
    "gpt2": gpt2,
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    CASES[request.param](tmp_path)
    return request.param


def dictionary_of(folder: Path) -> Dictionary:
    return Dictionary.load(str(folder / "dict.txt"))


def test_the_tokens_are_those_of_the_older_files(case, tmp_path):
    """Of sentencepiece, of Python's split, of fairseq's GPT-2; whole texts, and line by line."""
    dictionary = dictionary_of(tmp_path)
    older = TextCoding.from_folder(tmp_path, dictionary)
    made = make(tmp_path, dictionary, unicode=older.form)
    wanted = [older.encode(text).tolist() for text in TEXTS]
    begin = [] if case == "bytes" else [dictionary.eos()]
    for text, tokens in zip(TEXTS, wanted, strict=True):
        if "</s>" not in text:  # which transformers reads as the symbol
            assert made.encode(text).ids == begin + tokens, text
            assert len(tokens) or not text.strip()
    assert made.encode("").ids == begin
    assert made.get_vocab_size() == len(dictionary)
    if case == "gpt2":  # whose dictionary has numbers for names
        return
    made.save(str(tmp_path / "tokenizer.json"))
    coding = TextCoding.from_folder(tmp_path, dictionary)
    assert [coding.encode(text).tolist() for text in TEXTS] == wanted
    assert [coding.decode(tokens) for tokens in wanted] == [older.decode(t) for t in wanted]
    again = make(tmp_path, dictionary, unicode=older.form)
    assert json.loads(again.to_str()) == json.loads(made.to_str())


def test_a_text_comes_back(case, tmp_path):
    """With its lines; what follows keeps the blank before it."""
    made = make(tmp_path, dictionary_of(tmp_path))
    known = [word for word in PAGE.split() if made.encode(word).ids[-1] > 3][:6]
    text = f"{' '.join(known[:3])}\n{' '.join(known[3:])}"
    ids = made.encode(text).ids
    assert made.decode(ids) == text
    cuts = [made.decode(ids[:cut]) + made.decode(ids[cut:]) for cut in range(2, len(ids))]
    assert cuts.count(text) >= len(cuts) - 2  # a line's end at the beginning is lost


def test_a_reader_of_paragraphs(tmp_path):
    """Each that holds something begins by ``<s>``; places are those of the characters."""
    pieces(tmp_path, "ours")
    dictionary = dictionary_of(tmp_path)
    older = load(tmp_path / "sentencepiece.model")
    made = make(tmp_path, dictionary, "reader", unicode="NFKC")
    lines = ["The cluster is bounded.", "Another \U00020000\U00020000 one"]
    found = made.encode("Who ran?", "\n".join(["", *lines, "", ""]))
    parts = [older.split(line) for line in ("Who ran?", *lines)]
    parts = [[dictionary.index(piece) for piece in part] for part in parts]
    assert found.ids == [0, *parts[0], 2, 0, *parts[1], 0, *parts[2]]
    assert found.type_ids == [0] * (len(parts[0]) + 2) + [1] * (len(parts[1] + parts[2]) + 2)
    made.save(str(tmp_path / "tokenizer.json"))
    newer = load_prepared(tmp_path)
    assert newer.split(lines[0]) == older.split(lines[0])
    tokens = newer.encode(lines[1])
    for place in (8, 9):
        first, last = tokens.cover(place, place + 1)
        assert lines[1][tokens.starts[first] : tokens.ends[last - 1]].strip() == "\U00020000"


@pytest.mark.parametrize("tokenised", [False, True])
def test_words_of_a_classifier(tokenised, tmp_path):
    known = set(" ".join(TEXTS).lower().split()) | {".", ",", "_", "cluster", "σοφος", "½"}
    write(tmp_path, sorted(known)[::2])
    dictionary = dictionary_of(tmp_path)
    made = make(tmp_path, dictionary, "sentence", unicode="NFC", tokenised=tokenised)
    made.encode_special_tokens = True
    for text in TEXTS:
        words = split_words(text, tokenised=tokenised, max_length=None)[0]
        wanted = [dictionary.indices.get(word, 3) for word in words]
        assert made.encode(text).ids == [0, *wanted, 2], text


def test_what_the_file_cannot_say(tmp_path):
    """A token that the dictionary lacks, and pieces that are no unigrams."""
    pieces(tmp_path, "ours")
    write(tmp_path, dictionary_of(tmp_path).symbols[4:-3])
    with pytest.raises(ValueError, match="its dictionary lacks 3 tokens, such as"):
        make(tmp_path, dictionary_of(tmp_path))
    pieces(tmp_path, "bpe")
    with pytest.raises(ValueError, match="such a model of sentencepiece; allowed: unigrams"):
        make(tmp_path, dictionary_of(tmp_path))


def test_a_number_far_beyond_all_others_takes_no_memory(tmp_path: Path) -> None:
    Tokenizer(models.WordLevel({"a": 0, "b": 10**8}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="one of 2 tokens has number 100,000,000"):
        Subwords(tmp_path / "tokenizer.json")

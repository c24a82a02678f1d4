"""Text to a language model's tokens and back."""

from pydoc_data.topics import topics

import pytest
import torch
from fairseq.data import Dictionary
from tokenizers import Tokenizer

from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.data.characters import byte_symbols
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.subwords import Subwords, load
from fairseq_clusterformer.errors import UserError
from tests.data.tokenizers import made

LINES = ["The cat sat.", "", "  The  café sat!", "\u3042 cat"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A prepared folder's dictionary, and its subword model, for each unit."""
    folders = {unit: tmp_path_factory.mktemp(unit) for unit in ("byte", "piece", "word")}
    text = folders["word"] / "train.txt"
    text.write_text(f"The cat sat. The café sat!\n{topics['comparisons']}\n")
    binarize.symbol_dictionary(byte_symbols()).save(str(folders["byte"] / "dict.txt"))
    counts = binarize.count_words([text])
    binarize.word_dictionary(counts).save(str(folders["word"] / "dict.txt"))
    model = folders["piece"] / "sentencepiece.model"
    binarize.train_sentencepiece([text], 400, model)
    binarize.symbol_dictionary(load(model).symbols).save(str(folders["piece"] / "dict.txt"))
    return folders


@pytest.fixture(params=["byte", "piece", "word"])
def coding(request, folders) -> TextCoding:
    coding = TextCoding.from_folder(folders[request.param])
    assert coding.unit == request.param
    return coding


def test_text_comes_back(coding):
    text = "\n".join(LINES)
    if coding.unit == "word":
        text = "The cat sat.\n\nThe café sat!\ncat"
    assert coding.decode(coding.encode(text)) == text
    assert coding.decode(coding.encode(text + "\n")) == text + "\n"
    assert coding.decode(coding.encode("")) == ""
    assert coding.encode("").dtype == coding.encode("a").dtype == torch.int64


def test_a_continuation_keeps_its_blank(coding):
    text = coding.encode("The cat sat.")
    for cut in range(1, len(text)):
        before, rest = text[:cut], text[cut:]
        shown = [coding.decode(before), coding.decode(rest, after=int(before[-1]))]
        assert "".join(shown) == "The cat sat."


def test_a_character_of_several_tokens_comes_with_the_last(folders):
    for unit, text in (("byte", "é"), ("piece", "\u3042")):
        coding = TextCoding.from_folder(folders[unit])
        tokens = coding.encode(text)
        assert list(coding.stream(tokens)) == [""] * (len(tokens) - 1) + [text]
        assert list(coding.stream(tokens[:-1])) == [""] * (len(tokens) - 1) + ["\ufffd"]


def test_what_is_no_text_is_shown(folders):
    codings = {unit: TextCoding.from_folder(folder) for unit, folder in folders.items()}
    unknown = codings["byte"].dictionary.unk()
    shown = {unit: coding.decode([unknown]) for unit, coding in codings.items()}
    assert shown == {"byte": "\ufffd", "piece": "\ufffd", "word": "<unk>"}
    assert codings["word"].encode("zebra").tolist() == [unknown]


def test_bytes_take_what_is_not_utf8_and_the_others_refuse_it(coding):
    not_utf8 = [b"a\xff", b"a\xff".decode("utf-8", "surrogateescape")]
    for text in not_utf8:
        if coding.unit == "byte":
            assert coding.decode(coding.encode(text)) == "a\ufffd"
        else:
            with pytest.raises(UserError, match="byte 0xFF is not UTF-8; allowed: UTF-8 text"):
                coding.encode(text)


def test_the_dictionary_that_is_given_or_missing(folders, tmp_path):
    """A masked language model adds a mask to bytes, which are bytes all the same."""
    for unit, symbol, text in (("word", "zebra", "The zebra"), ("byte", "<mask>", "a b\n")):
        dictionary = Dictionary.load(str(folders[unit] / "dict.txt"))
        dictionary.add_symbol(symbol)
        coding = TextCoding.from_folder(folders[unit], dictionary)
        assert (coding.unit, coding.decode(coding.encode(text))) == (unit, text)
    with pytest.raises(UserError, match="has no dict.txt; allowed: a folder of prepared text"):
        TextCoding.from_folder(tmp_path)


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram"])
def test_any_tokenizer_is_a_coding(kind, tmp_path):
    """Word pieces and unigrams lose line ends, which become </s>; those of bytes keep all. Added
    tokens are text unless they are special."""
    tokenizer = Tokenizer.from_file(str(made(kind, tmp_path / "tokenizer.json")))
    tokenizer.add_tokens(["<lake>"])
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = Subwords(tmp_path / "tokenizer.json")
    binarize.symbol_dictionary(model.symbols).save(str(tmp_path / "dict.txt"))
    coding = TextCoding.from_folder(tmp_path)
    assert coding.unit == "piece"
    text = "a lake and a fish\n\na lake"
    tokens = coding.encode(text)
    assert coding.decode(tokens) == text
    assert coding.decode(tokens[2:], after=int(tokens[1])).startswith(" and")
    ends = tokens.eq(coding.dictionary.eos()).sum()
    assert ends == (0 if kind == "bytes" else 2)
    (tmp_path / "text").write_text(text + "\n")
    items = list(coding.items(tmp_path / "text"))
    assert len(items) == (1 if kind == "bytes" else 3)
    assert torch.equal(torch.cat(items), coding.encode(text + "\n"))
    assert coding.decode([coding.dictionary.bos()]) == "\ufffd"
    added = coding.dictionary.index("<lake>"), coding.dictionary.index("<|end|>")
    assert added[0] in coding.encode("a <lake>").tolist()
    assert coding.decode(added).strip() == "<lake>"
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer.json: is no tokenizer.json: .*; allowed: "):
        TextCoding.from_folder(tmp_path)

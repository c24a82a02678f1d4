"""The exported tokenizer: the tokens that preparation makes, and the text again."""

import json
from pathlib import Path

import pytest

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from fairseq.data import Dictionary  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from fairseq_clusterformer.data.coding import TextCoding  # noqa: E402
from fairseq_clusterformer.data.subwords import Subwords  # noqa: E402
from fairseq_clusterformer.hf.tokenizer import (  # noqa: E402
    write_tokenizer,
)
from tests.data.tokenizers import made  # noqa: E402
from tests.documents.commands import run  # noqa: E402

LINES = ["The small cat sat on the mat .", "A dog ran away from the cat .", ""]


@pytest.fixture(scope="module", params=["--bytes", "--words", "--sentencepiece"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "text" / f"{split}.txt").write_text("\n".join(LINES * 30) + "\n")
    coded = [request.param] + (["282"] if request.param == "--sentencepiece" else [])
    assert run("prepare", "lm", "text", folder / "text", folder / "data", *coded) == 0
    return folder / "data"


def test_what_preparation_wrote_is_what_transformers_reads(data, tmp_path):
    """One file; a batch is padded on the left; lines come back."""
    coding = TextCoding.from_folder(data)
    how = {"unicode": coding.form, "begin": [] if coding.unit == "byte" else ["</s>"]}
    write_tokenizer(data, tmp_path, coding.dictionary, "text", {"padding_side": "left"}, **how)
    saved = (folder / "tokenizer.json" for folder in (data, tmp_path))
    prepared, exported = (json.loads(file.read_text()) for file in saved)
    assert prepared == exported
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"  # of transformers 4 and 5
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "The cat ran\naway from the dog ."
    tokens = tokenizer(text)["input_ids"]
    begun = [] if coding.unit == "byte" else [2]
    assert tokens == [*begun, *coding.encode(text).tolist()]
    assert len(tokenizer) == len(coding.dictionary)
    batch = tokenizer(["The cat", "The dog ran away ."], padding=True)
    row, mask = batch["input_ids"][0], batch["attention_mask"][0]
    assert row[0] == tokenizer.pad_token_id == 1
    assert mask == [int(token != 1) for token in row]
    for skip in (False, True):
        assert tokenizer.decode(tokens, skip_special_tokens=skip) == text
    found = tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True)
    assert found == ["The cat", "The dog ran away ."]


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram"])
def test_another_library_s_tokenizer_by_our_numbers(kind, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    model = Subwords(made(kind, data / "tokenizer.json"))
    dictionary = Dictionary()
    for symbol in reversed(model.symbols):  # other numbers
        dictionary.add_symbol(symbol)
    chats = {"chat_template": "{{ messages }}", "eos_token": {"content": "x"}, "backend": "y"}
    (data / "tokenizer_config.json").write_text(json.dumps(chats))
    pair = {"cls_token": "<s>", "sep_token": "</s>"}
    write_tokenizer(data, out, dictionary, "reader", pair, unicode="NFKC")
    tokenizer = AutoTokenizer.from_pretrained(out)
    question, text = "a lake?", "[SEP] cafés"
    wanted = [[dictionary.index(symbol) for symbol in model.split(t)] for t in (question, text)]
    found = tokenizer(question, text)
    assert found["input_ids"] == [0, *wanted[0], 2, 0, *wanted[1]]
    assert tokenizer.chat_template == "{{ messages }}"
    assert tokenizer.cls_token_id == 0

"""The tokenizer: the tokens that preparation makes, and the text again."""

import contextlib
import functools
import io
from pathlib import Path

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from transformers import AutoTokenizer, TextStreamer  # noqa: E402

from fairseq_clusterformer.data.coding import TextCoding  # noqa: E402
from fairseq_clusterformer.hf import ClusterformerTokenizer  # noqa: E402
from fairseq_clusterformer.hf.folder import tokenizer_of  # noqa: E402
from tests.documents.commands import run  # noqa: E402
from tests.hf.small import config  # noqa: E402

LINES = ["The small cat sat on the mat .", "A dog ran away from the cat .", ""]
EOS = 2


@pytest.fixture(scope="module", params=["--bytes", "--words", "--sentencepiece"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "text" / f"{split}.txt").write_text("\n".join(LINES * 30) + "\n")
    coded = [request.param] + (["282"] if request.param == "--sentencepiece" else [])
    assert run("prepare", "lm", "text", folder / "text", folder / "data", *coded) == 0
    return folder / "data"


@pytest.fixture
def tokenizer(data: Path, tmp_path: Path) -> ClusterformerTokenizer:
    """Saved, and loaded by its Auto class."""
    made = tokenizer_of(data, config("clusterformer_lm_tiny"))
    made.save_pretrained(tmp_path)
    config("clusterformer_lm_tiny").save_pretrained(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


def test_tokens_are_the_preparations(data, tokenizer):
    coding = TextCoding.from_folder(data)
    text = "The cat ran\naway from the dog ."
    begun = [] if coding.unit == "byte" else [EOS]
    tokens = tokenizer(text)["input_ids"]
    assert tokens == [*begun, *coding.encode(text).tolist()]
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
    assert tokenizer("")["input_ids"] == [EOS]  # what a text begins by
    assert len(tokenizer) == len(coding.dictionary)


def test_a_batch_is_padded_on_the_left(tokenizer):
    batch = tokenizer(["The cat", "The dog ran away ."], padding=True)
    assert len({len(row) for row in batch["input_ids"]}) == 1
    row, mask = batch["input_ids"][0], batch["attention_mask"][0]
    assert row[0] == tokenizer.pad_token_id
    assert mask == [int(token != tokenizer.pad_token_id) for token in row]
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == [
        "The cat",
        "The dog ran away .",
    ]


def test_symbols_stand_in_readable_text(tokenizer):
    """Also where a text is written token by token."""
    blank = " " if tokenizer.coding.unit == "word" else ""
    begins = [] if tokenizer.coding.unit == "byte" else ["</s>"]
    text = "The small cat sat .\nA dog ran"  # a line's end is no symbol
    found = tokenizer.decode([tokenizer.pad_token_id, *tokenizer(text)["input_ids"]])
    assert found == blank.join(["<pad>", *begins, text])
    ids = tokenizer("The small cat sat .")["input_ids"]
    for skip in (False, True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            streamer = TextStreamer(tokenizer, skip_special_tokens=skip)
            for token in ids:
                streamer.put(torch.tensor([token]))
            streamer.end()
        assert printed.getvalue() == tokenizer.decode(ids, skip_special_tokens=skip) + "\n"


def test_what_is_written_follows_its_prompt(tokenizer):
    """As the pipeline joins them; what begins a line has no blank."""
    ids = tokenizer("The small cat\nran away")["input_ids"]
    cut = len(tokenizer("The small")["input_ids"])
    decode = functools.partial(tokenizer.decode, skip_special_tokens=True)
    assert decode(ids[:cut]) + decode(ids[cut:]) == "The small cat\nran away"
    symbols = tokenizer.tokenize("The small cat")
    assert tokenizer.convert_tokens_to_string(symbols) == "The small cat"


def test_another_form_is_one_line(data):
    with pytest.raises(ValueError, match="form is song; allowed: text, masked, sentence"):
        ClusterformerTokenizer(str(data / "dict.txt"), form="song")

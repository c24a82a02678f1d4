"""The exported tokenizer: the tokens that preparation makes, and the text again."""

import json

import pytest

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

from transformers import AutoTokenizer  # noqa: E402

from fairseq_clusterformer.data.coding import TextCoding  # noqa: E402
from fairseq_clusterformer.hf.tokenizer import write_tokenizer  # noqa: E402
from tests.documents.commands import run  # noqa: E402

LINES = ["The small cat sat on the mat .", "A dog ran away from the cat .", ""]


@pytest.mark.parametrize("unit", ["--bytes", "--words", "--sentencepiece=282"])
def test_what_preparation_wrote_is_what_transformers_reads(unit, tmp_path):
    """One file; a batch is padded on the left; lines come back."""
    (tmp_path / "text").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "text" / f"{split}.txt").write_text("\n".join(LINES * 30) + "\n")
    data = tmp_path / "data"
    assert run("prepare", "lm", "text", tmp_path / "text", data, unit) == 0
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

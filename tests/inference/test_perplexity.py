"""``clusterformer perplexity``: what fairseq-eval-lm says, step by step as in one pass."""

import json
import math
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.inference.language_model import LanguageModel
from fairseq_clusterformer.inference.load import load_checkpoint
from fairseq_clusterformer.inference.perplexity import in_one_pass, split_blocks, tokens_of
from tests.cli.in_process import CLUSTERFORMER, eval_lm, train
from tests.inference.commands import error, run, usage_error


def numbers(tmp_path: Path, *words: object) -> dict[str, float]:
    assert run("perplexity", *words, "--out", tmp_path / "out.json", "--cpu") == 0
    return json.loads((tmp_path / "out.json").read_text())


def test_a_split_is_what_eval_lm_says(
    tmp_path: Path, byte_data: Path, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    result = numbers(tmp_path, "--checkpoint", checkpoint, "--gen-subset", "test")
    evaluated = eval_lm(byte_data, checkpoint, "--tokens-per-sample 64 --batch-size 2")
    assert result["stepwise bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["teacher-forced bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["largest difference of a log-probability"] < 1e-4
    assert result["tokens"] == 500
    assert "teacher-forced perplexity" in capsys.readouterr().out


def test_a_text_file_is_scored_as_its_split(
    tmp_path: Path, byte_data: Path, checkpoint: Path, lm_bundle: Path
) -> None:
    text = byte_data.parent / "text" / "test.txt"
    split = numbers(tmp_path, "--checkpoint", checkpoint, "--gen-subset", "test")
    words = ["--checkpoint", lm_bundle, "--text", text, "--teacher-forced"]
    result = numbers(tmp_path, *words)
    assert result["teacher-forced bits"] == pytest.approx(split["teacher-forced bits"], abs=1e-6)
    assert result["teacher-forced bits per byte"] == result["teacher-forced bits"]
    assert "stepwise bits" not in result
    assert numbers(tmp_path, *words, "--max-blocks", 2)["tokens"] == 128


def test_a_breakdown_counts_each_token(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["--checkpoint", checkpoint, "--gen-subset", "test", "--teacher-forced"]
    result = numbers(tmp_path, *words, "--breakdown", "--rare", "1000")
    buckets = result["bits by position"]
    assert sum(bucket["tokens"] for bucket in buckets) == result["tokens"]
    bits = sum(bucket["bits"] * bucket["tokens"] for bucket in buckets) / result["tokens"]
    assert bits == pytest.approx(result["teacher-forced bits"], abs=1e-6)
    assert result["bits on repeats by distance"]
    assert "bits on repeats by distance" in capsys.readouterr().out


def test_the_leaking_rule_is_measured_by_prefixes(
    tmp_path: Path, byte_data: Path, capsys: pytest.CaptureFixture
) -> None:
    options = "--attention neural --cluster-rule leaking-chunk --max-update 12"
    train(byte_data, CLUSTERFORMER, tmp_path, *options.split())
    last = ["--checkpoint", tmp_path / "checkpoint_last.pt"]
    result = numbers(tmp_path, *last, "--gen-subset", "test", "--max-blocks", 3)
    assert result["tokens"] == 3 * 64
    assert result["largest difference of a log-probability"] > 1e-3
    assert "leaking-chunk" in error(capsys, "generate", *last, "a", "--cpu")


def test_a_stream_is_one_pass_over_all_of_it(
    tmp_path: Path, byte_data: Path, checkpoint: Path, dense_checkpoint: Path, capsys
) -> None:
    """Blocks behind blocks see what one block of all would; nothing grows that need not."""
    result = numbers(tmp_path, "--checkpoint", checkpoint, "--gen-subset", "test", "--stream")
    language = LanguageModel(load_checkpoint(checkpoint, data=byte_data), device="cpu")
    source, target = map(torch.cat, zip(*split_blocks(language.loaded, "test"), strict=True))
    with torch.no_grad():
        whole = in_one_pass(language.model, source[None], target[None])
    bits = -whole.double().mean().item() / math.log(2)
    assert result["streamed bits"] == pytest.approx(bits, abs=1e-5)
    assert result["streamed bits"] != pytest.approx(result["teacher-forced bits"], abs=1e-3)
    words = ["--checkpoint", checkpoint, "--gen-subset", "train", "--stream", "--teacher-forced"]
    sizes = {numbers(tmp_path, *words, "--max-blocks", n)["bytes kept"] for n in (8, 16)}
    assert len(sizes) == 1
    line = error(capsys, "perplexity", "--checkpoint", dense_checkpoint, "--stream", "--cpu")
    assert "--stream is TransformerLanguageModel: it keeps every token; allowed: " in line


@pytest.mark.parametrize("text", ["a b\nc", "a b\nc\n", "a", "\n"])
def test_a_text_is_the_prepared_file_with_it(tmp_path: Path, word_data: Path, text: str) -> None:
    coding = TextCoding.from_folder(word_data)
    (tmp_path / "text.txt").write_text(text)
    file = torch.cat(list(coding.items(tmp_path / "text.txt")))
    assert torch.equal(tokens_of(coding, text), file)
    assert torch.equal(tokens_of(coding, text.encode()), file)


def test_mistakes(
    tmp_path: Path,
    byte_data: Path,
    checkpoint: Path,
    lm_bundle: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    model = ["perplexity", "--checkpoint", checkpoint]
    assert "--data is nowhere: no such folder" in error(capsys, *model, "--data", "nowhere")
    assert "it has no split; allowed: a prepared" in error(capsys, *model, "--data", lm_bundle)
    line = error(capsys, *model, "--gen-subset", "other")
    assert f"--gen-subset is other: not in {byte_data}; allowed: test, train, valid" in line
    assert "is nowhere: no such file" in error(capsys, *model, "--text", "nowhere")
    assert "--rare is 3; allowed: with --breakdown" in error(capsys, *model, "--rare", 3)
    line = error(capsys, *model, "--text", tmp_path)
    assert f"--text is {tmp_path}: it is a folder; allowed: a file of text" in line
    (tmp_path / "empty").write_text("")
    line = error(capsys, *model, "--text", tmp_path / "empty", "--gen-subset", "test")
    assert "--gen-subset is test; allowed: none with --text" in line
    assert "it is empty" in error(capsys, *model, "--text", tmp_path / "empty")
    assert "--max-blocks is 0" in usage_error(capsys, *model, "--max-blocks", 0)
    out = tmp_path / "no" / "out.json"
    line = error(capsys, *model, "--out", out)  # before the scoring, which may take hours
    assert f"--out is {out}: no such folder; allowed: a file to write" in line

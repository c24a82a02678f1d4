"""``clusterformer perplexity``: what fairseq-eval-lm says, step by step as in one pass."""

import json
import math
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.use.language_model import LanguageModel
from fairseq_clusterformer.use.perplexity import REPEATS, in_one_pass, split_blocks, text_blocks
from tests.cli.in_process import CLUSTERFORMER, eval_lm, train
from tests.documents.commands import error, run


def numbers(tmp_path: Path, *words: object) -> dict[str, float]:
    assert run("perplexity", *words, "--out", tmp_path / "out.json", "--cpu") == 0
    return json.loads((tmp_path / "out.json").read_text())


def test_a_split_is_what_eval_lm_says(tmp_path, byte_data, checkpoint, capsys):
    result = numbers(tmp_path, "--checkpoint", checkpoint, "--gen-subset", "test")
    evaluated = eval_lm(byte_data, checkpoint, "--tokens-per-sample 64 --batch-size 2")
    assert result["stepwise bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["teacher-forced bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["largest difference of a log-probability"] < 1e-4
    assert result["tokens"] == 500
    assert "teacher-forced perplexity" in capsys.readouterr().out


def test_a_text_file_is_scored_as_its_split(tmp_path, byte_data, checkpoint, lm_bundle):
    text = byte_data.parent / "text" / "test.txt"
    split = numbers(tmp_path, "--checkpoint", checkpoint, "--gen-subset", "test")
    words = ["--checkpoint", lm_bundle, "--text", text, "--teacher-forced"]
    result = numbers(tmp_path, *words)
    assert result["teacher-forced bits"] == pytest.approx(split["teacher-forced bits"], abs=1e-6)
    bits = result["teacher-forced bits"]
    assert result["teacher-forced bits per byte"] == pytest.approx(bits, rel=1e-12)
    assert "stepwise bits" not in result
    assert numbers(tmp_path, *words, "--max-blocks", 2)["tokens"] == 128


def test_a_breakdown_counts_each_token(tmp_path, checkpoint, word_checkpoint, capsys):
    words = ["--checkpoint", checkpoint, "--gen-subset", "test", "--teacher-forced"]
    result = numbers(tmp_path, *words, "--breakdown")
    buckets = result["bits by position"]
    assert sum(bucket["tokens"] for bucket in buckets) == result["tokens"]
    bits = sum(bucket["bits"] * bucket["tokens"] for bucket in buckets) / result["tokens"]
    assert bits == pytest.approx(result["teacher-forced bits"], abs=1e-6)
    assert result["bits on repeats by distance"]
    assert "bits on repeats by distance" in capsys.readouterr().out
    words = ["--checkpoint", word_checkpoint, *words[2:]]
    many, none = (
        sum(row["tokens"] for row in numbers(tmp_path, *words, *more)[REPEATS])
        for more in (("--breakdown", "--rare", 1_000_000), ("--breakdown", "--rare", 1))
    )
    assert many > none
    line = error(capsys, "perplexity", *words, "--rare", 1)
    assert "--rare is 1; allowed: with --breakdown" in line


def test_a_longer_memory_than_in_training(tmp_path, byte_data, checkpoint, capsys):
    """In one pass as step by step, and as fairseq-eval-lm says."""
    options = "--attention xl --xl-segment 8 --xl-memory 4"
    train(byte_data, CLUSTERFORMER, tmp_path, *options.split())
    last, line = tmp_path / "checkpoint_last.pt", "--tokens-per-sample 64 --batch-size 2"
    words = ["--checkpoint", last, "--gen-subset", "test"]
    result = numbers(tmp_path, *words, "--memory", 32)
    overrides = ["--model-overrides", "{'xl_memory':32}"]
    evaluated = eval_lm(byte_data, last, " ".join([line, *overrides]))
    assert result["stepwise bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["largest difference of a log-probability"] < 1e-4
    assert abs(eval_lm(byte_data, last, line)["loss"] - evaluated["loss"]) > 1e-3
    line = error(capsys, "perplexity", "--checkpoint", checkpoint, "--memory", 32, "--cpu")
    assert "--memory is 32; allowed: for a model with heads of kind xl" in line


def test_the_leaking_rule_is_measured_by_prefixes(tmp_path, byte_data, capsys):
    options = "--attention neural --cluster-rule leaking-chunk --max-update 12"
    train(byte_data, CLUSTERFORMER, tmp_path, *options.split())
    last = ["--checkpoint", tmp_path / "checkpoint_last.pt"]
    result = numbers(tmp_path, *last, "--gen-subset", "test", "--max-blocks", 3)
    assert result["tokens"] == 3 * 64
    assert result["largest difference of a log-probability"] > 1e-3
    assert "leaking-chunk" in error(capsys, "generate", *last, "a", "--cpu")


def test_a_stream_is_one_pass_over_all_of_it(
    tmp_path, byte_data, checkpoint, dense_checkpoint, capsys
):
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


def with_options(checkpoint: Path, out: Path, **options: object) -> Path:
    """A checkpoint that was trained with other options of the task."""
    state = torch.load(checkpoint, weights_only=False)
    state["cfg"]["task"].update(options)
    torch.save(state, out)
    return out


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("mode", ["none", "complete", "eos"])
def test_texts_are_cut_as_fairseq_cuts_them(
    tmp_path, word_data, byte_data, word_checkpoint, mode, bos
):
    """A text, a split and fairseq-eval-lm say the same; one pass and steps do."""
    how = {"sample_break_mode": mode, "add_bos_token": bos, "tokens_per_sample": 16}
    model = with_options(word_checkpoint, tmp_path / "model.pt", **how)
    line = f"--sample-break-mode {mode} --tokens-per-sample 16{' --add-bos-token' * bos}"
    wanted = eval_lm(word_data, model, f"{line} --batch-size 1")["loss"]
    text = byte_data.parent / "text" / "test.txt"
    split = numbers(tmp_path, "--checkpoint", model, "--gen-subset", "test")
    assert split["stepwise bits"] == pytest.approx(wanted, abs=1e-5)
    written = numbers(tmp_path, "--checkpoint", model, "--text", text, "--breakdown", "--stream")
    for found in (split, written):
        assert found["teacher-forced bits"] == pytest.approx(wanted, abs=1e-5)
    language = LanguageModel(load_checkpoint(model), device="cpu")
    assert language.perplexity(text.read_text()) == pytest.approx(2**wanted, rel=1e-5)


@pytest.mark.parametrize("bos", [False, True])
def test_a_text_begins_as_in_training(tmp_path, word_checkpoint, checkpoint, bos):
    """Of words by </s>, of bytes by nothing unless it is empty; <s> before it where trained so."""
    for path, begin, of_nothing in ((word_checkpoint, [2], [2]), (checkpoint, [], [2])):
        model = with_options(path, tmp_path / "model.pt", add_bos_token=bos)
        language = LanguageModel(load_checkpoint(model), device="cpu")
        tokens, first = language.coding.encode("a"), [0] * bos
        assert language._given("a", "text", 1).tolist() == first + begin + tokens.tolist()
        assert language._given("", "text", 1).tolist() == first + of_nothing
        assert language.encode("a")[0].size(0) == bos + len(begin) + 1


@pytest.mark.parametrize("begin", [None, "", "b"])
def test_a_text_begins_by_a_symbol_or_nothing(word_checkpoint, begin):
    """Older checkpoints say nothing of it: theirs have </s>. After nothing, no token is scored."""
    loaded = load_checkpoint(word_checkpoint, text_begin=begin, tokens_per_sample=4)
    language, blocks = LanguageModel(loaded, device="cpu"), [*text_blocks(loaded, "a b c")]
    tokens, end = [*language.coding.encode("a b c").tolist(), 2], language.dictionary.index
    first = {None: [2], "": [], "b": [end("b")]}[begin]
    wanted = [*first, *tokens[:3]], tokens[not first :]
    assert [(source.tolist(), target.tolist()) for source, target in blocks] == [wanted]
    assert language._given("a", "text", 1).tolist() == [*first, tokens[0]]
    assert language._given("", "text", 1).tolist() == (first or [2])
    with pytest.raises(UserError, match="--begin is b-; allowed: a symbol of its dict.txt, or"):
        language.begin_by("b-")
    language.model.text_begin = "b-"
    with pytest.raises(UserError, match="--text-begin is b-; allowed: a symbol of the dict.txt"):
        language.encode("a")
    language.begin_by("")
    with pytest.raises(UserError, match="nothing stands before its only token; allowed: a text"):
        text_blocks(loaded, "\n")


def test_lines_that_are_too_long_are_left_out(tmp_path, word_checkpoint, capsys):
    model = with_options(word_checkpoint, tmp_path / "model.pt", sample_break_mode="eos")
    loaded = load_checkpoint(model)
    long = "a " * loaded.model.max_positions()
    assert len(list(text_blocks(loaded, f"a b\n{long}\nc"))) == 2
    assert "the text: 1 of 3 blocks are longer than 64 tokens: left out" in capsys.readouterr().err
    with pytest.raises(UserError, match="longer than 64 tokens; allowed: lines of 64 tokens"):
        text_blocks(loaded, long)


def test_mistakes(tmp_path, byte_data, checkpoint, lm_bundle, capsys):
    model = ["perplexity", "--checkpoint", checkpoint]
    line = error(capsys, *model, "--data", lm_bundle)
    assert f"--gen-subset is valid: Dataset not found: valid ({lm_bundle}/valid); allowed:" in line
    line = error(capsys, *model, "--gen-subset", "other")
    assert "--gen-subset is other: Dataset" in line
    assert "; allowed: test, train, valid" in line
    assert "is nowhere: no such file" in error(capsys, *model, "--text", "nowhere")
    (tmp_path / "empty").write_text("")
    line = error(capsys, *model, "--text", tmp_path / "empty", "--gen-subset", "test")
    assert "--gen-subset is test; allowed: none with --text" in line
    assert "it is empty" in error(capsys, *model, "--text", tmp_path / "empty")
    out = tmp_path / "no" / "out.json"
    line = error(capsys, *model, "--out", out)  # before the scoring, which may take hours
    assert f"--out is {out}: no such folder; allowed: a file to write" in line

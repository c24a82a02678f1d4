"""``scripts/stepwise_perplexity.py`` and ``scripts/compare_language_models.py``."""

import json

import pytest
import yaml

from tests.cli.in_process import CLUSTERFORMER, SIZES, eval_lm, train

STEPWISE = "scripts/stepwise_perplexity.py"
COMPARE = "scripts/compare_language_models.py"


def numbers(run_cli, tmp_path, checkpoint, data, *more) -> dict[str, float]:
    out = tmp_path / "out.json"
    arguments = ["--checkpoint", checkpoint, "--data", data, "--gen-subset", "test", "--out", out]
    run_cli(STEPWISE, *arguments, *more)
    return json.loads(out.read_text())


def test_stepwise_perplexity_is_what_eval_lm_says(run_cli, tmp_path, byte_data, checkpoint):
    result = numbers(run_cli, tmp_path, checkpoint, byte_data)
    evaluated = eval_lm(byte_data, checkpoint, "--tokens-per-sample 64 --batch-size 2")
    assert result["stepwise bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["teacher-forced bits"] == pytest.approx(evaluated["loss"], abs=1e-4)
    assert result["largest difference of a log-probability"] < 1e-4
    assert result["tokens"] == 500


def test_the_leaking_rule_is_measured_by_prefixes(run_cli, tmp_path, byte_data):
    options = "--attention neural --cluster-rule leaking-chunk --max-update 12"
    train(byte_data, CLUSTERFORMER, tmp_path, *options.split())
    last = tmp_path / "checkpoint_last.pt"
    result = numbers(run_cli, tmp_path, last, byte_data, "--max-blocks", 3)
    assert result["tokens"] == 3 * 64
    assert result["largest difference of a log-probability"] > 1e-3


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--checkpoint", "nowhere.pt", "a checkpoint file that exists"),
        ("--data", "nowhere", "a folder with test.idx"),
        ("--max-blocks", "0", "1 or more"),
    ],
)
def test_stepwise_bad_input(run_cli, byte_data, checkpoint, option, value, allowed):
    arguments = {"--checkpoint": checkpoint, "--data": byte_data, "--gen-subset": "test"}
    arguments[option] = value
    words = [word for pair in arguments.items() for word in pair]
    done = run_cli(STEPWISE, *words, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1].startswith(f"{option} is {value}; allowed: {allowed}")
    assert "Traceback" not in done.stdout


def test_stepwise_refuses_what_is_no_checkpoint(run_cli, tmp_path, byte_data):
    garbage = tmp_path / "garbage.pt"
    garbage.write_bytes(b"no checkpoint")
    done = run_cli(STEPWISE, "--checkpoint", garbage, "--data", byte_data, check=False)
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1].startswith(f"--checkpoint is {garbage}")
    assert "allowed: a language model" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout


def grid(tmp_path):
    words = SIZES.split()
    sizes = {}
    for i, word in enumerate(words):
        if word.startswith("--"):
            last = i + 1 == len(words) or words[i + 1].startswith("--")
            sizes[word[2:]] = True if last else words[i + 1]
    shared = {**sizes, "tokens-per-sample": 64, "batch-size": 4, "optimizer": "adam", "lr": 0.005}
    shared |= {"max-update": 3, "log-interval": 1, "cpu": True}
    runs = {
        "dense": {"arch": "transformer_lm", "criterion": "cross_entropy"},
        "neural@2": {
            "arch": "clusterformer_lm",
            "criterion": "clusterformer_cross_entropy",
            "seed": 2,
        },
    }
    test = {"gen-subset": "test", "tokens-per-sample": 64, "batch-size": 4}
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({"shared": shared, "runs": runs, "test": test}))
    return path


@pytest.mark.slow
def test_a_grid_is_resumed_and_tabulated(run_cli, tmp_path, byte_data):
    path, out = grid(tmp_path), tmp_path / "results"
    arguments = [path, "--data", byte_data, "--out", out]
    run_cli(COMPARE, *arguments, "--only", "dense")
    done = run_cli(COMPARE, *arguments)
    assert "dense: done before" in done.stdout
    assert "neural@2: training" in done.stdout
    rows = [row for row in done.stdout.splitlines() if row.startswith("|")]
    assert [row.split("|")[1:3] for row in rows[2:]] == [[" dense ", " 1 "], [" neural ", " 1 "]]
    result = json.loads((out / "neural@2.json").read_text())
    assert result["options"]["seed"] == 2
    assert result["command"].startswith("fairseq-train DATA --user-dir fairseq_clusterformer")
    assert 0 < result["test bits per symbol"] < 20
    assert result["updates"] == 3
    assert not list(out.glob("*.partial"))


def test_grid_bad_input(run_cli, tmp_path, byte_data):
    path = grid(tmp_path)
    for words, last in (
        (["nowhere.yaml", "--out", tmp_path], "GRID is nowhere.yaml; allowed: a YAML file"),
        ([path, "--out", tmp_path, "--only", "x"], "--only is x; allowed: dense, neural@2"),
        (
            [path, "--out", tmp_path, "--data", tmp_path],
            f"--data is {tmp_path}; allowed: a folder",
        ),
    ):
        done = run_cli(COMPARE, *words, check=False)
        assert done.returncode != 0
        assert done.stdout.splitlines()[-1].startswith(last)

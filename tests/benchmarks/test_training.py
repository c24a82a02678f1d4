"""The benchmark of training: both models train, and a wrong one is not timed."""

import json
import math
from argparse import Namespace
from types import SimpleNamespace

import pytest

from scripts.benchmarks import common
from scripts.benchmarks import training as benchmark_training
from scripts.benchmarks.common import CheckFailed

TINY = "--layers 1 --embed-dim 16 --heads 2 --ffn 16 --window 8 --clusters 3 --vocabulary 40"
TINY = f"{TINY} --updates 1 --repeats 2 --device cpu --lengths 24".split()


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Runs in this process, and which models they were of."""
    made: list[str] = []

    def run(measure, **request):
        made.append(request["model"])
        return measure(**request)

    monkeypatch.setattr(common, "in_own_process", run)
    return made


def arguments(*more: str) -> Namespace:
    parser = benchmark_training.make_parser("training", "")
    args = parser.parse_args([*TINY, *more])
    benchmark_training.settle(parser, args)
    return args


@pytest.mark.whole
def test_models_alternate_and_are_timed(capsys, tmp_path, calls):
    path, picture = tmp_path / "rows.json", tmp_path / "rows.png"
    words = [*TINY, "--json", str(path), "--plot", str(picture)]
    assert benchmark_training.main(words) == 0
    assert calls == ["transformer_lm", "window+neural"] * 2
    record, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert [row["model"] for row in record["rows"]] == ["transformer_lm", "window+neural"]
    for row in record["rows"]:
        assert min(row["tokens per second"], row["peak memory MiB"]) > 0
        assert 3 < row["loss"] < 8  # log2 of 40 symbols is 5.3
        assert f"| {row['model']} | 24 |" in printed
    assert record["rows"][0]["times as fast as dense"] == 1
    assert str(tmp_path) not in record["command"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_loss_that_is_not_finite_is_not_timed(monkeypatch, tmp_path):
    benchmark_training.random_data(tmp_path, 200, 40)
    never = SimpleNamespace(**{**vars(math), "isfinite": lambda _: False})
    monkeypatch.setattr(benchmark_training, "math", never)
    with pytest.raises(CheckFailed, match="transformer_lm at N = 24: the loss is "):
        benchmark_training.train("transformer_lm", tmp_path, 24, arguments())


def test_sizes_are_equal(tmp_path):
    benchmark_training.random_data(tmp_path, 200, 40)
    shapes = []
    for model in (benchmark_training.DENSE, "window+neural"):
        cfg = benchmark_training.configuration(model, tmp_path, 24, arguments())
        found = benchmark_training.make_trainer(cfg, "blocks").get_model()
        parameters = found.named_parameters()
        shapes.append({name: p.shape for name, p in parameters if ".routers." not in name})
    assert shapes[0] == shapes[1]

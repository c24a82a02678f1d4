"""fairseq's programs in this process: starting one costs four seconds. Numbers are not rounded."""

import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from pathlib import Path
from typing import Any
from unittest import mock

import fairseq_cli.eval_lm
import fairseq_cli.generate
import fairseq_cli.interactive
import fairseq_cli.train
import fairseq_cli.validate
import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.logging.progress_bar import SimpleProgressBar
from fairseq.trainer import Trainer
from torch import Tensor, nn

from fairseq_clusterformer import compat  # importing the package is what --user-dir does
from tests.conftest import RunCli, once

# Two small layers. The registered architecture: a named one would set the other widths.
SIZES = (
    "--decoder-layers 2 --decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32"
    " --decoder-ffn-embed-dim 32 --decoder-attention-heads 4 --decoder-normalize-before"
    " --share-decoder-input-output-embed --activation-fn gelu --dropout 0.1"
)
TRAINING = (
    "--task language_modeling --tokens-per-sample 64 --batch-size 4 --max-update 6 --seed 1"
    " --optimizer adam --lr 0.005 --clip-norm 1"
)
# By default fairseq leaves out the last batch if it does not hold a multiple of 8 sentences.
ALL = "--required-batch-size-multiple 1"
HERE = f"--cpu --distributed-world-size 1 --num-workers 0 --no-progress-bar {ALL}"
CLUSTERFORMER = (
    f"{TRAINING} --arch clusterformer_lm {SIZES} --attention window+neural --attention-window 8"
    f" --num-clusters 4 --criterion clusterformer_cross_entropy {HERE}"
)
ROBERTA_SIZES = {
    **{"encoder_layers": 4, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 48},
    "encoder_attention_heads": 4,
}
ROBERTA = (
    "--task masked_lm --arch roberta --criterion masked_lm --tokens-per-sample 62"
    " --max-positions 64 "
    + " ".join(f"--{name} {size}" for name, size in ROBERTA_SIZES.items()).replace("_", "-")
    + f" --batch-size 4 --max-update 3 --optimizer adam --lr 0.01 --seed 1 {HERE}"
)
TRANSFORMER = f"{TRAINING} --arch transformer_lm {SIZES} --criterion cross_entropy {HERE}"
# Translation, two small layers on either side.
TRANSLATION = (
    "--task translation --source-lang src --target-lang tgt --max-tokens 400 --max-update 6"
    " --encoder-layers 2 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64"
    " --encoder-attention-heads 4 --decoder-layers 2 --decoder-embed-dim 32"
    " --decoder-ffn-embed-dim 64 --decoder-attention-heads 4 --share-all-embeddings"
    " --dropout 0.1 --label-smoothing 0.1 --optimizer adam --lr 0.01 --clip-norm 1 --seed 1"
)
CLUSTERED_TRANSLATION = (
    f"{TRANSLATION} --arch clusterformer --attention-window 3 --num-clusters 3"
    " --encoder-attention neural --decoder-attention window+neural"
    f" --criterion clusterformer_label_smoothed_cross_entropy {HERE}"
)
DENSE_TRANSLATION = (
    f"{TRANSLATION} --arch transformer --criterion label_smoothed_cross_entropy {HERE}"
)
# Classification, two small layers.
CLASSIFICATION = (
    "--task clusterformer_sentence --arch clusterformer_classifier --encoder-layers 2"
    " --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --encoder-attention-heads 4"
    " --attention-window 4 --criterion clusterformer_sentence_prediction --batch-size 16"
    f" --max-update 6 --optimizer adam --lr 0.003 --clip-norm 1 --seed 1 {HERE}"
)
# Question answering, three small layers of which one goes across windows.
PRETRAINED_CLASSIFIER = (
    "--task clusterformer_sentence --criterion clusterformer_sentence_prediction --num-classes 2"
    " --arch clusterformer_classifier_pretrained --encoder-attention full --max-positions 38"
    " --optimizer adam --lr 1e-2 --max-update 2 --batch-size 4 --cpu --num-workers 0"
    " --disable-validation"
)
QUESTIONS = (
    "--task clusterformer_qa --arch clusterformer_reader --criterion clusterformer_qa"
    " --encoder-layers 3 --encoder-embed-dim 32 --encoder-ffn-embed-dim 64"
    " --encoder-attention-heads 4 --cluster-layers 1 --num-clusters 4 --window-size 16"
    " --window-stride 12 --window-positions 32 --max-question-positions 16 --attention-window 8"
    " --kmeans-interval 2 --batch-size 4 --max-update 6 --optimizer adam --lr 0.003 --clip-norm 1"
    f" --seed 1 {HERE}"
)
# What fairseq demands where a checkpoint comes from another criterion or another data set.
RESET = "--reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters"


@dataclass
class Run:
    """What a training run logged, summed over workers and micro-batches, and its trainer."""

    updates: list[dict[str, float]] = field(default_factory=list)
    valid: list[dict[str, float]] = field(default_factory=list)
    trainer: Trainer | None = None

    @property
    def model(self) -> nn.Module:
        return self.trainer.get_model()

    def mean_loss(self, update: int) -> float:
        """Of one update, in nats a token."""
        return self.updates[update]["loss"] / self.updates[update]["sample_size"]


def train(data: Path, line: str, save_dir: Path, *more: object) -> Run:
    """``fairseq-train DATA LINE --save-dir SAVE_DIR MORE``; the last value of an option wins."""
    words = [data, *line.split(), "--save-dir", save_dir, *more]
    return train_with(_config(options.get_training_parser(), words))


def data_of(request: pytest.FixtureRequest, name: str) -> Path:
    """A fixture's folder, or one in it."""
    fixture, _, inner = name.partition("/")
    return request.getfixturevalue(fixture) / inner


def trained(data: str, line: str, *more: object) -> Callable[..., Path]:
    """A fixture of a session: the last checkpoint of such a training on a fixture's data, once for
    all workers and for all fixtures that train alike."""

    @pytest.fixture(scope="session")
    def checkpoint(request: pytest.FixtureRequest, tmp_path_factory) -> Path:
        given = data_of(request, data)
        name = f"trained-{md5(repr((str(given), line, more)).encode()).hexdigest()[:9]}"
        folder = once(tmp_path_factory, name, lambda folder: train(given, line, folder, *more))
        return folder / "checkpoint_last.pt"

    return checkpoint


def train_with(cfg: Any) -> Run:
    """What ``fairseq-train`` and ``fairseq-hydra-train`` do with their configuration."""
    for function in (checkpoint_utils.save_checkpoint, fairseq_cli.train.should_stop_early):
        vars(function).pop("best", None)  # of an earlier run in this process
    run = Run()
    with quiet(), _recorded(run):
        fairseq_cli.train.main(cfg)
    return run


def eval_lm(data: Path, checkpoint: Path, line: str) -> dict[str, float]:
    """``fairseq-eval-lm``: loss in base 2, and perplexity."""
    words = [data, "--path", checkpoint, "--gen-subset", "test", *f"{line} {HERE}".split()]
    with quiet():
        results = fairseq_cli.eval_lm.main(_config(options.get_eval_lm_parser(), words))
    return {name: float(value) for name, value in results.items()}


def validate(data: Path, checkpoint: Path, line: str, *more: object) -> dict[str, Any]:
    """``fairseq-validate``: what it prints of the last subset."""
    words = [data, "--path", checkpoint, *f"{line} {HERE}".split(), *more]
    words = [str(word) for word in words]
    printed: dict[str, Any] = {}

    def keep(bar: SimpleProgressBar, stats: dict[str, Any], tag=None, step=None):
        printed.clear()
        printed.update(stats)

    metrics.reset()  # of other trainings in this process
    with quiet(), mock.patch.object(SimpleProgressBar, "print", keep):
        given = options.parse_args_and_arch(
            options.get_validation_parser(), words, suppress_defaults=True
        )
        config = _config(options.get_validation_parser(), words)
        fairseq_cli.validate.main(config, override_args=given)
    return printed


def generate(
    data: Path, checkpoint: Path | str, line: str, results: Path, *more: object
) -> list[str]:
    """``fairseq-generate``, from a language model unless LINE says ``--task``: what it prints."""
    words = [data, "--task", "language_modeling", "--path", checkpoint, "--results-path", results]
    words += [*f"{line} {HERE}".split(), *more]
    cfg = _config(options.get_generation_parser(), words)
    with quiet():
        fairseq_cli.generate.main(cfg)
    return (results / f"generate-{cfg.dataset.gen_subset}.txt").read_text().splitlines()


def interactive(data: Path, checkpoint: Path, line: str, prompts: Path, *more: object) -> None:
    """``fairseq-interactive`` over a file of prompts, as :func:`generate`; prints."""
    words = [data, "--task", "language_modeling", "--path", checkpoint, "--input", prompts]
    words += [*f"{line} {HERE}".split(), *more]
    with quiet():
        fairseq_cli.interactive.main(_config(options.get_interactive_generation_parser(), words))


def _config(parser: Any, words: list[object]) -> Any:
    """fairseq's configuration from a command line."""
    with quiet():
        args = options.parse_args_and_arch(parser, input_args=[str(word) for word in words])
        return convert_namespace_to_omegaconf(args)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings that every fairseq command gives."""
    with warnings.catch_warnings():
        compat.silence_known_warnings()
        yield


@contextmanager
def _recorded(run: Run) -> Iterator[None]:
    reduce = Trainer._reduce_and_log_stats

    def record(trainer: Trainer, logs: list[dict], sample_size: float, grad_norm=None):
        names = {name for log in logs for name in log} - {"candidates", "classified"}
        sums = {name: float(sum(log.get(name, 0) for log in logs)) for name in names}
        run.trainer = trainer
        if grad_norm is None:
            run.valid.append(sums)
        else:
            run.updates.append(sums | {"gnorm": float(grad_norm)})
        return reduce(trainer, logs, sample_size, grad_norm)

    with mock.patch.object(Trainer, "_reduce_and_log_stats", record):
        yield


def in_two_processes(run_cli: RunCli, *words: object, torchrun: bool = True) -> str:
    """Run a command once for each of two ranks, which learn of each other by torchrun's variables
    or by fairseq's options; returns what the first one printed."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        host, port = free.getsockname()

    def process(rank: int) -> subprocess.CompletedProcess[str]:
        if torchrun:
            says = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
            return run_cli(*words, env=says | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        options = ("--distributed-init-method", f"tcp://{host}:{port}")
        ranks = ("--distributed-world-size", 2, "--distributed-rank", rank)
        return run_cli(*words, *options, *ranks)

    with ThreadPoolExecutor(2) as pool:
        first, _ = pool.map(process, (0, 1))
    return first.stdout


def load_state(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint as fairseq loads it."""
    return checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint))


def load_model(checkpoint: Path, data: Path, **overrides: object) -> tuple[nn.Module, Any]:
    """The model of a checkpoint as fairseq's programs build it, for inference, and its task."""
    overrides = {"data": str(data), **overrides}
    with quiet():
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], overrides
        )
    return model.eval(), task


def letters(data: Path, *shape: int) -> Tensor:
    """Random tokens of a prepared folder's dictionary."""
    dictionary = Dictionary.load(str(data / "dict.txt"))
    return torch.randint(dictionary.nspecial, len(dictionary), shape)


def assert_equal_states(
    state: dict[str, Tensor], other: dict[str, Tensor], rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Every parameter and every buffer."""
    assert state.keys() == other.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(
            tensor, other[name], rtol=rtol, atol=atol, msg=lambda text, n=name: f"{n}: {text}"
        )

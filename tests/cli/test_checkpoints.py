"""Checkpoints: resumed, warm-started from a dense model, finetuned from."""

import pytest
import torch

from tests.cli.in_process import (
    CLUSTERFORMER,
    RESET,
    assert_equal_states,
    load_state,
    train,
)
from tests.cli.qa_data import WORDS
from tests.cli.sentence_data import WORDS as LETTERS
from tests.cli.tasks import last
from tests.cli.towns import vectors

#: what a dense checkpoint does not have
NEW = {
    *("centroids", "w_c.weight", "log_normalizer"),
    *("pending_log_mass", "pending_tokens", "updates"),
}
WHOLE = pytest.mark.whole
RESUMED = {
    "lm": "--attention lsh+routing,window+gated,window,neural --decoder-layers 4",
    "classifier": "",
    "reader": "--kmeans-interval 2 --max-update 8 --best-checkpoint-metric f1"
    " --maximize-best-checkpoint-metric",
}
KMEANS = "--attention kmeans --kmeans-interval 2 --kmeans-bank-size 300 --checkpoint-activations"
MORE = [
    ("translation", ""),
    ("lm", KMEANS),
    ("lm", "--attention window+kmeans --kmeans-bank-size 300 --batch-size 80"),  # 4 an epoch
    ("bidaf", "--max-update 8"),
    ("qanet", "--attention window+taught,kmeans --stochastic-depth 0.3 --max-update 8"),
    ("etc", "--max-update 4"),
]


@pytest.mark.parametrize(
    ("task", "options"),
    [
        *RESUMED.items(),
        *(pytest.param(*of, marks=pytest.mark.whole) for of in MORE),
    ],
)
def test_resuming_in_mid_epoch_equals_never_stopping(task, options, train_task, tmp_path):
    """Word vectors are in the checkpoint, so their file may be gone."""
    more = ["--save-interval-updates", 3]
    words, width = (LETTERS, 32) if task == "classifier" else (WORDS, 8)
    if path := task in ("classifier", "bidaf", "qanet") and vectors(tmp_path, [*words], width):
        more += ["--word-vectors", path]
    whole = train_task(task, options, tmp_path / "whole", *more)
    options += f" --restore-file {tmp_path / 'whole' / 'checkpoint_1_3.pt'}"
    if path:
        path.unlink()
        with pytest.raises(ValueError, match="no such file; .* to resume, leave the option out"):
            train_task(task, f"{options} --word-vectors {path}", tmp_path / "resumed")
    resumed = train_task(task, options, tmp_path / "resumed", *more[:2])
    assert resumed.updates == whole.updates[3:]
    states = [load_state(last(tmp_path / run)) for run in ("whole", "resumed")]
    assert_equal_states(*(state["model"] for state in states))
    optimizers = [state["last_optimizer_state"]["state"] for state in states]
    for parameter, moments in optimizers[0].items():
        assert_equal_states(moments, optimizers[1][parameter])
    assert states[0]["extra_state"].get("best") == states[1]["extra_state"].get("best")


def test_a_job_may_restore_what_it_has_not_saved_yet(train_task, tmp_path):
    """Such jobs are started anew by the same command until they are done."""
    for updates in (1, 2):
        train_task("lm", f"--restore-file {last(tmp_path)} --max-update {updates}")
    state = torch.load(last(tmp_path), weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 2


class TestWarmStart:
    """From fairseq's own language model."""

    @pytest.mark.parametrize("option", ["--restore-file", "--finetune-from-model"])
    def test_only_what_routes_is_new(self, option, byte_data, dense_checkpoint, tmp_path):
        """After updates of size 0, all is as in the checkpoint."""
        line = f"{CLUSTERFORMER} --lr 0 --max-update 1 {option} {dense_checkpoint}"
        if option == "--restore-file":
            line += f" {RESET}"
        train(byte_data, line, tmp_path)
        dense = load_state(dense_checkpoint)["model"]
        warm = load_state(tmp_path / "checkpoint_last.pt")["model"]
        added = {name: tensor for name, tensor in warm.items() if name not in dense}
        prefixes = {name.partition(".clustering.")[0] for name in added}
        assert prefixes == {f"decoder.layers.{i}.self_attn.routers.1" for i in (0, 1)}
        assert {name.partition(".clustering.")[2] for name in added} == NEW
        assert_equal_states(dense, {name: warm[name] for name in dense})
        # as new as without a checkpoint, not zeros
        centroids = warm["decoder.layers.0.self_attn.routers.1.clustering.centroids"]
        assert centroids.std() > 0.05

"""A user's mistake ends before training, and the last line says what to do about it."""

from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.attention import attention_kinds
from tests.cli.expected import last_line
from tests.cli.in_process import CLUSTERFORMER, RESET, train
from tests.conftest import RunCli

BAD_OPTIONS = {
    "--attention neurall": "--attention is neurall: unknown kind 'neurall'; allowed: ",
    "--attention window,,neural": "'' is not a layer; allowed: KIND, KIND(OPTION=VALUE), KIND+",
    "--attention window*0": "--attention is window*0: 'window*0' repeats 0 times; allowed: 1 up",
    "--attention window+neural+full": "4 heads do not divide among the 3 kinds",
    "--attention window(clusters=3)": "window has no option 'clusters'; allowed: window",
    "--attention neural(clusters=few)": "neural: clusters is few; allowed: a whole number",
    "--attention neural(clusters=0)": "neural: clusters is 0; allowed: 1 or more",
    "--decoder-attention-heads 5": "--decoder-attention-heads is 5; allowed: a number that",
    "--attention-window 0": "--attention-window is 0; allowed: 1 or more",
    "--num-clusters 0": "--num-clusters is 0; allowed: 1 or more",
    "--num-clusters -3": "--num-clusters is -3; allowed: 1 or more",
    "--cluster-rule chunk": "--cluster-rule is chunk; allowed: recent, leaking-chunk",
    "--cluster-rule newest": "--cluster-rule is newest; allowed: recent, leaking-chunk",
    "--cluster-similarity l2": "--cluster-similarity is l2; allowed: dot, scaled-dot, cosine",
    "--cluster-normalizer none": "--cluster-normalizer is none; allowed: average, running",
    "--cluster-temperature 0": "--cluster-temperature is 0.0; allowed: above 0",
    "--cluster-exploration nan": "--cluster-exploration is nan; allowed: 0 or more, below 1",
    "--cluster-temperature nan": "--cluster-temperature is nan; allowed: above 0",
    "--attention window+taught --cluster-rule leaking-chunk": (
        "--cluster-rule is leaking-chunk; allowed: recent, for no kind of --attention has another"
    ),
    "--attention neural --cluster-rule leaking-chunk --attention-kernel blocks": (
        "--attention-kernel is blocks: the cluster rule is leaking-chunk; allowed: auto, reference"
    ),
    "--hash-rounds 0": "--hash-rounds is 0; allowed: 1 or more",
    "--attention lsh --cluster-rule leaking-chunk": "--cluster-rule is leaking-chunk; allowed: r",
    "--stride -2": "--stride is -2; allowed: 0 or more",
    "--strided-pattern even": "--strided-pattern is even; allowed: strided, fixed",
    "--attention-sinks -1": "--attention-sinks is -1; allowed: 0 or more",
    "--attention neural --attention-sinks 2 --cluster-rule leaking-chunk": (
        "--attention-sinks is 2; allowed: 0 but in a causal model with the rule recent"
    ),
    "--norm batch": "--norm is batch; allowed: layer, rms",
    "--activation-fn swiglue": "--activation-fn is swiglue; allowed: relu, gelu",
    "--rotary-scaling 8,4,1,8192 --positions rotary": (
        "--rotary-scaling is 8,4,1,8192; allowed: FACTOR,LOW,HIGH,TOKENS as of Llama 3"
    ),
    "--cluster-gap -1": "--cluster-gap is -1; allowed: 0 or more",
    "--attention neural --cluster-gap 2 --cluster-rule leaking-chunk": (
        "--cluster-gap is 2; allowed: 0 with the rule leaking-chunk"
    ),
    "--attention gated --attention-window 1": (
        "--attention-window is 1; allowed: 2 or more, the query's own included"
    ),
    "--attention gated(1)": "--attention-window is 1; allowed: 2 or more",
    "--positions polar": "--positions is polar; allowed: learned, sinusoidal, rotary",
    "--short-convolution -1": "--short-convolution is -1; allowed: 0 or more",
    "--copying-start": "--copying-start is True: --short-convolution is 0; allowed: with --",
    "--decoder-kv-heads 3": "--decoder-kv-heads is 3; allowed: a number that divides",
    "--attention kmeans --kmeans-bank-size 3": "--kmeans-bank-size is 3; allowed: 4 or more",
    "--clustering-loss-weight -1": "--clustering-loss-weight is -1.0; allowed: 0 or more",
    "--centroid-sorting-loss-weight -0.1": "-weight is -0.1; allowed: 0 or more",
    "--task-loss-weight nan": "--task-loss-weight is nan; allowed: 0 or more",
    "--routing-loss-weight inf": "--routing-loss-weight is inf; allowed: 0 or more",
    "--attention window(4,window=8)": "window: window is given twice; allowed: once",
    "--attention-window " + 30 * "9": f"--attention-window is {30 * '9'}; allowed: 1 or more, up",
    "--cluster-temperature inf": "--cluster-temperature is inf; allowed: above 0",
    "--dropout nan": "--dropout is nan; allowed: 0 or more, up to 1",
    "--attention-dropout -1": "--attention-dropout is -1.0; allowed: 0 or more, up to 1",
    "--decoder-layers 0": "--decoder-layers is 0; allowed: 1 or more",
    "--lr 1e999": "--lr is inf; allowed: 0 or more",
    "--clip-norm inf": "--clip-norm is inf; allowed: 0 or more",
    "--update-freq 0": "--update-freq is 0; allowed: 1 or more",
}


@pytest.mark.usefixtures("no_update")
class TestTraining:
    @pytest.mark.parametrize("options", BAD_OPTIONS)
    def test_option(self, options: str, byte_data: Path, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="allowed") as caught:
            train(byte_data, f"{CLUSTERFORMER} {options}", tmp_path)
        line = last_line(caught.value)
        assert line.startswith("ValueError: --")
        assert BAD_OPTIONS[options] in line

    @pytest.mark.parametrize(
        ("option", "reset"), [("--restore-file", RESET), ("--finetune-from-model", "")]
    )
    def test_checkpoint_of_another_size(
        self, option: str, reset: str, byte_data: Path, dense_checkpoint: Path, tmp_path: Path
    ) -> None:
        line = f"{CLUSTERFORMER} --decoder-ffn-embed-dim 48 {option} {dense_checkpoint} {reset}"
        with pytest.raises(ValueError, match="does not fit") as caught:
            train(byte_data, line, tmp_path)
        line = last_line(caught.value)
        assert f"{option} is {dense_checkpoint}: " in line
        assert (
            "tensors of another shape: 6, such as decoder.layers.0.fc1.weight [32, 32], here "
            "[48, 32]" in line
        )
        assert "allowed: " in line

    def test_save_dir_of_another_size(
        self, byte_data: Path, checkpoint: Path, tmp_path: Path
    ) -> None:
        """The common mistake: other options, and the folder of the run before."""
        line = f"{CLUSTERFORMER} --num-clusters 6"
        with pytest.raises(ValueError, match="does not fit") as caught:
            train(byte_data, line, checkpoint.parent)
        line = last_line(caught.value)
        assert f"--save-dir is {checkpoint.parent}: " in line
        assert "clustering.centroids [4, 32], here [6, 32]" in line

    @pytest.mark.parametrize("problem", ["no such file; allowed: ", ""])
    def test_restore_file(self, problem: str, byte_data: Path, tmp_path: Path) -> None:
        """Without it, fairseq would train from scratch."""
        path = tmp_path / "notes.txt"
        if not problem:
            path.write_text("not a checkpoint")
        with pytest.raises(ValueError, match="allowed: ") as caught:
            train(byte_data, CLUSTERFORMER, tmp_path / "saved", "--restore-file", path)
        assert f"--restore-file is {path}: {problem}" in last_line(caught.value)


def test_a_job_may_restore_what_it_has_not_saved_yet(byte_data: Path, tmp_path: Path) -> None:
    """Such jobs are started anew by the same command until they are done."""
    line = f"{CLUSTERFORMER} --max-update 1 --restore-file {tmp_path}/checkpoint_last.pt"
    for updates in (1, 2):
        train(byte_data, line, tmp_path, "--max-update", updates)
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 2


class TestCommandLine:
    """The promise itself: the last line that is printed, and the exit status."""

    def run(self, run_cli: RunCli, *words: object) -> str:
        run = run_cli(*words, check=False)
        assert run.returncode not in (0, None)
        assert "Start iterating over samples" not in run.stdout
        line = run.stdout.splitlines()[-1]
        assert "allowed: " not in line or "Traceback" not in run.stdout
        return line

    def test_unknown_kind(self, run_cli: RunCli, byte_data: Path, tmp_path: Path) -> None:
        words = [*CLUSTERFORMER.split(), "--attention", "nueral", "--save-dir", tmp_path]
        line = self.run(run_cli, "fairseq-train", byte_data, *words)
        assert line == (
            "ValueError: --attention is nueral: unknown kind 'nueral'; "
            f"allowed: {', '.join(attention_kinds())}"
        )

    def test_what_leaks_in_interactive(
        self, run_cli: RunCli, byte_data: Path, tmp_path: Path
    ) -> None:
        options = "--max-update 1 --attention neural --cluster-rule leaking-chunk"
        train(byte_data, f"{CLUSTERFORMER} {options}", tmp_path)
        words = ["--path", tmp_path / "checkpoint_last.pt", "--task", "language_modeling", "--cpu"]
        (tmp_path / "prompt").write_text("116 104 101\n")
        line = self.run(
            *(run_cli, "fairseq-interactive", byte_data, *words, "--input", tmp_path / "prompt")
        )
        assert "the cluster rule is 'leaking-chunk'" in line
        assert "allowed: " in line

"""A user's mistake ends before training, and the last line says what to do about it."""

import shutil

import pytest
import torch

from tests.cli.expected import last_line
from tests.cli.in_process import RESET, train, validate
from tests.cli.sentence_data import binarize
from tests.cli.tasks import TASKS

#: of each task; tests/attention/test_spec.py has more of --attention and its options
BAD_OPTIONS = {
    "lm": {
        "--cluster-rule newest": "--cluster-rule is newest; allowed: recent, leaking-chunk",
        "--attention window+taught --cluster-rule leaking-chunk": "--cluster-rule is "
        "leaking-chunk; allowed: recent, for no kind of --attention has another",
        "--attention neural --cluster-rule leaking-chunk --attention-kernel blocks": "kernel "
        "is blocks; allowed: auto, reference with the rule leaking-chunk",
        "--attention full --attention-sinks 4": "--attention-sinks is 4; allowed: 0, for no "
        "kind of --attention has another",
        "--attention taught --cache-positions": "--cache-positions is True; allowed: "
        "False, for no kind of --attention has another",
        "--activation-fn swiglue": "--activation-fn is swiglue; allowed: relu, gelu",
        "--rotary-scaling 8,4,1,8192 --positions rotary": "--rotary-scaling is 8,4,1,8192; "
        "allowed: with --positions rotary, FACTOR,LOW,HIGH,TOKENS as of Llama 3",
        "--copying-start": "--copying-start is True; allowed: with --short-convolution 3",
        "--decoder-kv-heads 3": "--decoder-kv-heads is 3; allowed: a number that divides",
        "--clustering-loss-weight -1": "--clustering-loss-weight is -1.0; allowed: 0 or more",
        "--attention-window " + 30 * "9": f"--attention-window is {30 * '9'}; allowed: 1 or more,",
        "--lr 1e999": "--lr is inf; allowed: 0 or more",
    },
    "classifier": {
        "--num-classes 2": "--num-classes is 2; allowed: 3, the labels of ",
        "--pair-form both": "--pair-form is both; allowed: joined, siamese",
        "--max-positions 4": "--max-positions is 4; allowed: 5 or more",
        "--max-positions 9": "of valid are longer; allowed: 14 or more, or --truncate-",
        "--arch clusterformer_masked_lm": "not train it; allowed: clusterformer_classifier and",
    },
    "pairs": {"--relevant-label yes": "--relevant-label is yes; allowed: 0, 1"},
    "reader": {
        "--max-positions 1": "--max-positions is 1; allowed: 2 or more, or 0 for documents",
        "--max-question-positions 17": "--max-question-positions is 17; allowed: up to 16, which "
        "is --window-positions",
        "--span-marginal both": "--span-marginal is both; allowed: joint, apart",
        "--criterion cross_entropy": "--task is clusterformer_qa, and --criterion cross_entropy; "
        "allowed: clusterformer_qa",
    },
    "etc": {
        "--hide-parts 1.5": "--hide-parts is 1.5; allowed: 0 or more, up to 1",
        "--min-sentences 99": "no word in a document of --min-sentences 99 or more; allowed",
        "--valid-subset dev": "dev.idx: not both there; allowed: a split of DATA",
        "--random-token-prob 0.6 --leave-unmasked-prob 0.6": "--random-token-prob is 0.6, and "
        "--leave-unmasked-prob 0.6; allowed: a sum of 1",
        "--clusters 4": "--clusters is 4, and --parts sentences; allowed: --parts none",
        "--max-distance 15": "--num-labels 32; allowed: with 34 labels or more",
        "--criterion masked_lm": "--task is etc_masked_lm, and --criterion masked_lm; allowed: et",
    },
    "etc_reader": {
        "--supporting-threshold 2": "--supporting-threshold is 2.0; allowed: 0 or more, up to 1",
        "--structure x": "--structure is x; allowed: contexts, text, flat",
        "--max-positions 9 --document-stride 9": "--document-stride is 9, and --max-positions 9; "
        "allowed: a stride below the tokens of a window",
        "--document-stride 5 --supporting-facts": "--document-stride is 5; allowed: 0 with --supp",
        "--max-global-positions 2": "valid.structure.idx: question 0 (id qa-1): ",
    },
}


@pytest.mark.usefixtures("no_update")
@pytest.mark.parametrize(
    ("task", "options"), [(task, each) for task, many in BAD_OPTIONS.items() for each in many]
)
def test_option(task, options, train_task):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        train_task(task, options)
    line = last_line(caught.value)
    assert BAD_OPTIONS[task][options] in line
    assert "allowed: " in line


@pytest.mark.usefixtures("no_update")
class TestCheckpoint:
    @pytest.mark.parametrize(
        ("option", "reset"), [("--restore-file", RESET), ("--finetune-from-model", "")]
    )
    def test_of_another_size(self, option, reset, dense_checkpoint, train_task):
        options = f"--decoder-ffn-embed-dim 48 {option} {dense_checkpoint} {reset}"
        with pytest.raises(ValueError, match="does not fit") as caught:
            train_task("lm", options)
        line = last_line(caught.value)
        assert f"{option} is {dense_checkpoint}: " in line
        assert "size mismatch for decoder.layers.0.fc1.weight" in line
        assert "in current model is torch.Size([48, 32])" in line

    @pytest.mark.parametrize("problem", ["no such file; allowed: ", ""])
    def test_restore_file(self, problem, train_task, tmp_path):
        """Without it, fairseq would train from scratch."""
        path = tmp_path / "notes.txt"
        if not problem:
            path.write_text("not a checkpoint")
        with pytest.raises(ValueError, match="allowed: ") as caught:
            train_task("lm", f"--restore-file {path}", tmp_path / "saved")
        assert f"--restore-file is {path}: {problem}" in last_line(caught.value)

    def test_pretrained_of_another_size(self, masked_lm, train_task):
        with pytest.raises(ValueError, match=r"encoder\.centroids: copying ") as caught:
            train_task("classifier", f"--num-clusters 4 --pretrained-checkpoint {masked_lm}")
        message = f"--pretrained-checkpoint is {masked_lm}: it does not fit the model: "
        assert message in last_line(caught.value)

    def test_no_pretrained(self, train_task, tmp_path):
        path = tmp_path / "notes.pt"
        options = f"--pretrained-checkpoint {path}"
        with pytest.raises(ValueError, match="no such file.*; allowed"):
            train_task("classifier", options)
        torch.save({"weights": torch.zeros(3)}, path)
        with pytest.raises(ValueError, match="cannot be read"):
            train_task("classifier", options)
        with pytest.raises(ValueError, match="allowed: one of them"):
            train_task("classifier", f"{options} --word-vectors {path}")

    def test_another_dictionary(self, qa_data, qa_reader, masked_lm, train_task, tmp_path):
        with pytest.raises(ValueError, match="another dictionary"):
            train_task("pairs", f"--pretrained-checkpoint {masked_lm}")
        data = shutil.copytree(qa_data, tmp_path / "data")
        lines = (data / "dict.txt").read_text().splitlines()
        (data / "dict.txt").write_text("\n".join(lines[::-1]) + "\n")
        with pytest.raises(ValueError, match="it was trained with another dictionary"):
            validate(data, qa_reader, "--task clusterformer_qa --batch-size 4")
        with pytest.raises(ValueError, match="another dictionary") as caught:
            train(data, f"{TASKS['reader'][1]} --finetune-from-model {qa_reader}", tmp_path)
        assert f"--finetune-from-model is {qa_reader}: " in last_line(caught.value)


MADE = "allowed: a folder that `clusterformer prep"
MISSING = [
    ("pairs", "input0/dict.txt", "input0: it has no dict.txt; allowed: a folder that"),
    ("pairs", "label/dict.txt", "label: it has no dict.txt; allowed: a folder that"),
    ("pairs", "input1/train.bin", "input1/train.bin, "),
    ("pairs", "label/valid.idx", "label/valid.bin, "),
    ("pairs", "group/valid.txt", "group/valid.txt: no such file; allowed: a question's id a line"),
    *(("reader", name, MADE) for name in ("dict.txt", "valid.document.bin", "train.jsonl")),
]


@pytest.mark.usefixtures("no_update")
class TestData:
    @pytest.mark.parametrize(("task", "name", "message"), MISSING)
    def test_missing_file(self, task, name, message, request, tmp_path):
        data, line = TASKS[task]
        data = shutil.copytree(request.getfixturevalue(data), tmp_path / "data")
        (data / name).unlink()
        with pytest.raises(FileNotFoundError) as caught:
            train(data, line, tmp_path)
        assert message in last_line(caught.value)

    @pytest.mark.parametrize(
        ("name", "more", "message"),
        [
            ("group/train.txt", "Q99", "input0 240, input1 240, label 240, group 241; all"),
            ("input1/dict.txt", "new 1", "input1/dict.txt differs from .*; allowed: one dict"),
        ],
    )
    def test_files_that_do_not_fit(self, name, more, message, pair_data, tmp_path):
        data = shutil.copytree(pair_data, tmp_path / "data")
        with (data / name).open("a") as lines:
            lines.write(f"{more}\n")
        with pytest.raises(ValueError, match=message):
            train(data, TASKS["pairs"][1], tmp_path)

    def test_labels(self, text_data, tmp_path):
        data = shutil.copytree(text_data, tmp_path / "data")
        shutil.rmtree(data / "label")
        lines = (text_data / "label.txt" / "train").read_text().split()
        lines[16], lines[30] = "unheard-of", "x y"
        splits = {"train": lines, "valid": lines[:42], "test": lines[:42]}
        shutil.rmtree(data / "label.txt")
        binarize(data / "label", splits, dictionary=text_data / "label" / "dict.txt")
        with pytest.raises(ValueError, match="line 17 is '<unk>'; allowed: one label of .*: "):
            train(data, TASKS["classifier"][1], tmp_path)


@pytest.mark.usefixtures("no_update")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2 3\n", "line 1: it has 3 numbers; allowed: a word and 32 numbers"),
        (f"a{' 1' * 32}\nb{' 1' * 31} one\n", "line 2: could not convert string"),
        (f"a{' nan' * 32}\n", "line 1: it has a number that is not finite"),
        (f"a{' 0' * 32}\n", "its numbers are all 0; allowed: vectors that differ"),
        (f"nowhere{' 1' * 32}\n", "none of the dictionary's words is in it; allowed"),
        (None, "no such file; allowed: a text file"),
    ],
)
def test_word_vectors(content, message, train_task, tmp_path):
    path = tmp_path / "vectors.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match="allowed") as caught:
        train_task("classifier", f"--word-vectors {path}")
    assert f"--word-vectors is {path}: {message}" in last_line(caught.value)

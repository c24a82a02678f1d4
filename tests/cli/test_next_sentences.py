"""Pre-training on pairs of texts by fairseq's commands, and a classifier that starts from it."""

from pathlib import Path

import pytest
import torch

from fairseq_clusterformer import load
from tests.cli.in_process import CLASSIFICATION, Run, load_model, load_state, train, validate
from tests.cli.sentence_data import binarize
from tests.cli.tasks import MASKED, last

LINE = MASKED.replace("--task masked_lm", "--task clusterformer_masked_lm")
PAIRS = f"{LINE} --next-sentence --attention-window 32 --sample-break-mode none --batch-size 16"


@pytest.fixture(scope="module")
def learned(sentences: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("learned")
    return folder, train(sentences, f"{PAIRS} --max-update 60 --lr 0.01 --dropout 0", folder)


@torch.no_grad()
def test_it_learns_and_counts_what_follows(sentences, learned):
    """What is printed is what the model says of each pair."""
    folder, told = learned
    assert told.updates[0]["pairs"] == 16
    assert told.mean_loss(-1) < told.mean_loss(0) - 0.3
    printed = validate(sentences, last(folder), "--task clusterformer_masked_lm --batch-size 16")
    model, task = load_model(last(folder), sentences)
    task.load_dataset("valid")
    dataset, right, pairs = task.dataset("valid"), 0, 0
    for index in range(len(dataset)):
        sample = dataset.collater([dataset[index]])
        likelier = model(**sample["net_input"])[1]["next_sentence"].argmax(-1)
        right += int((likelier == sample["follows"]).sum())
        pairs += len(likelier)
    assert printed["next_sentence_accuracy"] == pytest.approx(right / pairs, abs=6e-4)


def classifier_from(learned: Path, words: Path, sides: tuple[str, ...], folder: Path) -> tuple:
    """The states of the masked language model and of a classifier that starts from it."""
    lines = {"train": ["red blue"] * 8, "valid": ["cat hen"] * 8, "test": ["a"]}
    for side in sides:
        binarize(folder / "data" / side, lines, dictionary=words)
    labels = {"train": ["x", "y"] * 4, "valid": ["x", "y"] * 4, "test": ["x"]}
    binarize(folder / "data" / "label", labels)
    line = f"{CLASSIFICATION} --max-update 1 --lr 0 --optimizer sgd --max-positions 32"
    line += " --pair-form joined --pooling first --attention-window 32"
    train(folder / "data", line, folder / "out", "--pretrained-checkpoint", last(learned))
    return tuple(load_state(last(path))["model"] for path in (learned, folder / "out"))


def test_a_classifier_of_pairs_starts_from_it(sentences, learned, tmp_path):
    sides = ("input0", "input1")
    given, now = classifier_from(learned[0], sentences / "dict.txt", sides, tmp_path)
    for theirs, ours in (
        ("segments.weight", "segments.weight"),
        ("pooler.weight", "classifier.1.weight"),
        ("pooler.bias", "classifier.1.bias"),
        ("encoder.layers.1.fc1.weight", "encoder.layers.1.fc1.weight"),
    ):
        assert torch.equal(given[theirs], now[ours])


def test_a_classifier_of_texts_has_the_first_segment_in_its_words(sentences, learned, tmp_path):
    given, now = classifier_from(learned[0], sentences / "dict.txt", ("input0",), tmp_path)
    words = given["encoder.embed_tokens.weight"].clone()
    words[0] += given["segments.weight"][0]
    words[2:] += given["segments.weight"][0]  # all but padding
    assert torch.equal(now["encoder.embed_tokens.weight"], words)


def test_states_are_of_the_first_text(sentences, learned):
    """`encode` is the encoder with the first text's segment."""
    folder, _ = learned
    model = load(last(folder), data=sentences)
    tokens = torch.tensor([0, *model.coding.encode("red blue"), 2])
    inner = model.model.eval()
    embedded = inner.encoder.embed_tokens(tokens[None]) + inner.segments.weight[0]
    wanted = inner.encoder(tokens[None], token_embeddings=embedded)["encoder_out"][0][:, 0]
    (found,) = model.encode(["red blue"])
    torch.testing.assert_close(torch.as_tensor(found), wanted.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("--criterion masked_lm", "--criterion is masked_lm; allowed: clusterformer_masked_lm"),
        ("--mask-multiple-length 2", "--mask-multiple-length is 2; allowed: 1, or no --next-"),
        ("--mask-prob 1.5", "--mask-prob is 1.5; allowed: between 0 and 1"),
        ("--random-token-prob 0.95", "is 0.1, and --random-token-prob 0.95; allowed: 0 or more"),
        ("--tokens-per-sample 4", "--tokens-per-sample is 4; allowed: 5 or more with --next-"),
    ],
)
def test_refused_options(more, error, sentences, tmp_path, no_update):
    with pytest.raises(ValueError, match=error):
        train(sentences, f"{PAIRS} {more}", tmp_path)

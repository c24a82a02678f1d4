"""ETC's pre-training by fairseq's commands, on text that `clusterformer prepare lm` has read."""

import math
from pathlib import Path

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_clusterformer
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.errors import UserError
from tests.cli.expected import last_line
from tests.cli.in_process import HERE, load_state, train, validate
from tests.cli.topics import LINE
from tests.corpora.commands import run

PARTS_OF_TEXT = ("One two three.", "Red green.", "Iron gold tin lead.")


@pytest.fixture(scope="session")
def trained(sentences: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("etc")
    return folder, train(sentences, f"{LINE} --max-update 90 --validate-interval 9", folder)


def test_words_are_learned_and_hidden_sentences_told(trained):
    """Sentences of four topics are told from each other better than by chance."""
    _, log = trained
    losses = [log.mean_loss(number) for number in range(len(log.updates))]
    assert sum(losses[-10:]) < sum(losses[:10]) - 10

    def total(name: str) -> float:
        return sum(float(update[name]) for update in log.updates[-40:])

    batches = sum(update["parts"] > 0 for update in log.updates[-40:])  # one right by chance
    assert total("parts_right") > 1.4 * batches
    assert total("parts_loss") / total("parts") < math.log(total("parts") / batches) - 0.1


def test_validates_the_same_each_time(sentences, trained):
    path = trained[0] / "checkpoint_last.pt"
    line = f"--task etc_masked_lm --batch-size 4 {HERE} --valid-subset test"
    found = [validate(sentences, path, line) for _ in range(2)]
    assert found[0] == found[1]
    shown = validate(sentences, path, line, "--hide-parts", 0)
    assert "parts_loss" not in shown
    assert shown["loss"] != found[0]["loss"]


def test_encodes_texts(sentences, trained, tmp_path):
    """From Python, also as a bundle; a sentence has a global token, which others see."""
    path = trained[0] / "checkpoint_last.pt"
    model = fairseq_clusterformer.load(path, device="cpu")
    text = "One two three. Red green.\n\nIron gold tin lead."
    (states,) = model.encode(text)
    assert len(states) == sum(len(model.coding.encode(part)) for part in PARTS_OF_TEXT)
    assert model.encode([text, "One."], pooled=True).shape == (2, 32)
    assert main(["bundle", str(path), str(tmp_path / "bundle")]) == 0
    again = fairseq_clusterformer.load(tmp_path / "bundle", device="cpu")
    torch.testing.assert_close(again.encode(text)[0], states)
    with pytest.raises(UserError, match="a word or more"):
        model.encode(" ")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_another_epoch_has_other_words_to_guess(sentences, workers):
    parser = options.get_training_parser()
    words = [str(sentences), *LINE.replace("--num-workers 0", "").split()]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    task = tasks.setup_task(cfg.task)
    task.load_dataset("valid")
    epochs = task.get_batch_iterator(
        task.dataset("valid"), max_sentences=8, num_workers=workers, seed=1
    )
    found = []
    for _ in range(2):
        batches = {int(b["id"][0]): b["target"] for b in epochs.next_epoch_itr(shuffle=False)}
        found.append(batches)
    assert found[0].keys() == found[1].keys()
    assert any(not torch.equal(found[0][key], found[1][key]) for key in found[0])


def test_a_reader_starts_from_it(sentences, trained, tmp_path):
    """A reader of the same subwords, which has no <mask>."""
    (path := tmp_path / "qa1.txt").write_text("1 One two.\n2 What two?\tone\t1\n")
    model, words = sentences / "tokenizer.json", sentences / "dict.txt"
    options = ["--train", path, "--valid", path, "--tokenizer", model, "--dict", words]
    assert main(list(map(str, ["prepare", "qa", "babi", tmp_path / "qa", *options]))) == 0
    given = trained[0] / "checkpoint_last.pt"
    line = LINE.replace("etc_masked_lm --arch etc_masked_lm", "clusterformer_qa --arch etc_reader")
    line = line.replace("--criterion etc_masked_lm", "--criterion clusterformer_qa")
    line = line.replace(" --tokens-per-sample 64 --max-parts 16 --hide-parts 0.3", "")
    line += f" --max-update 1 --lr 0 --optimizer sgd --lift {given}"
    train(tmp_path / "qa", line, tmp_path / "out")
    name = "encoder.embed_tokens.weight"
    before, now = (
        load_state(p)["model"][name] for p in (given, tmp_path / "out" / "checkpoint_last.pt")
    )
    assert torch.equal(now, before[:-1])


def test_text_without_documents(sentences, tmp_path):
    source = sentences.parent / "text"
    plain = tmp_path / "plain"
    assert run("prepare lm text", source, plain, "--words --document-separator ##") == 0
    with pytest.raises(ValueError, match="no empty line, which ends a document") as caught:
        train(plain, LINE, tmp_path / "out")
    assert "--sentences" in last_line(caught.value)

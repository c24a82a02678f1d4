"""ETC's pre-training by fairseq's commands, on text that `clusterformer prepare lm` has read."""

import math
from pathlib import Path

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import fairseq_clusterformer
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.etc.masked_lm import Lamb
from tests.cli.expected import last_line
from tests.cli.in_process import HERE, load_state, train, validate
from tests.cli.topics import LINE
from tests.corpora.commands import run

PARTS_OF_TEXT = ("One two three.", "Red green.", "Iron gold tin lead.")


@pytest.fixture(scope="module")
def trained(sentences: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("etc")
    log = train(sentences, f"{LINE} --max-update 90 --validate-interval 9", folder)
    return folder / "checkpoint_last.pt", log


def test_words_are_learned_and_hidden_sentences_told(trained):
    """Sentences of four topics are told from each other better than by chance."""
    log = trained[1]
    losses = [log.mean_loss(number) for number in range(len(log.updates))]
    assert sum(losses[-10:]) < sum(losses[:10]) - 10
    last = log.updates[-40:]
    total = {n: sum(float(u[n]) for u in last) for n in ("parts", "parts_right", "parts_loss")}
    batches = sum(update["parts"] > 0 for update in last)  # one right by chance
    assert total["parts_right"] > 1.4 * batches
    assert total["parts_loss"] / total["parts"] < math.log(total["parts"] / batches) - 0.1


def test_validates_the_same_each_time(sentences, trained):
    line = f"--task etc_masked_lm --batch-size 4 {HERE} --valid-subset test"
    found = [validate(sentences, trained[0], line) for _ in range(2)]
    assert found[0] == found[1]
    shown = validate(sentences, trained[0], line, "--hide-parts", 0)
    assert "parts_loss" not in shown
    assert shown["loss"] != found[0]["loss"]


def test_encodes_texts(trained, tmp_path):
    """From Python, also as a bundle; a sentence has a global token, which others see."""
    model = fairseq_clusterformer.load(trained[0], device="cpu")
    text = "One two three. Red green.\n\nIron gold tin lead."
    (states,) = model.encode(text)
    assert len(states) == sum(len(model.coding.encode(part)) for part in PARTS_OF_TEXT)
    assert model.encode([text, "One."], pooled=True).shape == (2, 32)
    assert run("bundle", trained[0], tmp_path / "bundle") == 0
    again = fairseq_clusterformer.load(tmp_path / "bundle", device="cpu")
    torch.testing.assert_close(again.encode(text)[0], states)
    with pytest.raises(UserError, match="a word or more"):
        model.encode(" ")


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_another_epoch_has_other_words_to_guess(sentences, workers):
    words = [str(sentences), *LINE.replace("--num-workers 0", "").split()]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    task = tasks.setup_task(convert_namespace_to_omegaconf(args).task)
    data = task.load_dataset("valid")
    epochs = task.get_batch_iterator(data, max_sentences=8, num_workers=workers, seed=1)
    one, other = (
        {int(b["id"][0]): b["target"] for b in epochs.next_epoch_itr(shuffle=False)}
        for _ in range(2)
    )
    assert one.keys() == other.keys()
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_a_reader_starts_from_it(sentences, trained, tmp_path):
    """A reader of the same subwords, which has no <mask>."""
    (path := tmp_path / "qa1.txt").write_text("1 One two.\n2 What two?\tone\t1\n")
    words = ["--tokenizer", sentences / "tokenizer.json", "--dict", sentences / "dict.txt"]
    words += ["--train", path, "--valid", path]
    assert run("prepare qa babi", tmp_path / "qa", *words) == 0
    line = LINE.replace("etc_masked_lm --arch etc_masked_lm", "clusterformer_qa --arch etc_reader")
    line = line.replace("--criterion etc_masked_lm", "--criterion clusterformer_qa")
    line = line.replace(" --tokens-per-sample 64 --max-parts 16 --hide-parts 0.3", "")
    line += f" --max-update 1 --lr 0 --optimizer sgd --lift {trained[0]}"
    train(tmp_path / "qa", line, tmp_path / "out")
    before, now = (
        load_state(path)["model"]["encoder.embed_tokens.weight"]
        for path in (trained[0], tmp_path / "out" / "checkpoint_last.pt")
    )
    assert torch.equal(now, before[:-1])


def test_text_without_documents(sentences, tmp_path):
    source, plain = sentences.parent / "text", tmp_path / "plain"
    assert run("prepare lm text", source, plain, "--words --document-separator ##") == 0
    with pytest.raises(ValueError, match="no empty line, which ends a document") as caught:
        train(plain, LINE, tmp_path / "out")
    assert "--sentences" in last_line(caught.value)


def test_equations_of_lamb():
    """You et al. 2020, algorithm 2: three updates of two tensors, one of which begins as zeros."""
    rate, (b1, b2), eps, decay = 0.1, (0.8, 0.9), 1e-3, 0.05
    expected = [torch.tensor([1.0, -2.0, 2.0]), torch.zeros(2)]
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in expected]
    optimizer = Lamb(parameters, rate, (b1, b2), eps, decay)
    means, squares = ([torch.zeros_like(x) for x in expected] for _ in range(2))
    for step in range(1, 4):
        for number, x in enumerate(expected):
            parameters[number].grad = g = torch.sin(step + 3 * torch.arange(len(x)) + number)
            means[number] = b1 * means[number] + (1 - b1) * g
            squares[number] = b2 * squares[number] + (1 - b2) * g * g
            root = (squares[number] / (1 - b2**step)).sqrt() + eps
            update = means[number] / (1 - b1**step) / root + decay * x
            trust = x.norm() / update.norm() if x.any() else 1.0
            expected[number] = x - rate * trust * update
        optimizer.step()
        torch.testing.assert_close([p.detach() for p in parameters], expected, rtol=1e-5, atol=0)


def test_a_training_by_lamb(sentences, tmp_path):
    line = LINE.replace("--optimizer adam", "--optimizer clusterformer_lamb")
    line += " --lamb-betas (0.8,0.9) --weight-decay 0.01 --max-update 12 --disable-validation"
    log = train(sentences, line, tmp_path)
    assert log.mean_loss(-1) < log.mean_loss(0)

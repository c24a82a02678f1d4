"""Models from a folder of BERT's form, by commands: trained, bundled, asked, exported."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
import torch

import fairseq_clusterformer
from fairseq_clusterformer.documents.sources import text_source
from fairseq_clusterformer.models.pretrained import load_pretrained
from tests.cli.in_process import PRETRAINED_CLASSIFIER, train
from tests.documents.commands import run
from tests.models.bert import folder_of

LINE = (
    "--task clusterformer_qa --criterion clusterformer_qa --arch clusterformer_reader_tiny"
    " --encoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --window-positions 40"
    " --encoder-attention-heads 2 --window-size 20 --window-stride 20 --cluster-layers 1"
    " --token-types 2 --layer-norm-eps 1e-12 --max-question-positions 12 --optimizer adam"
    " --lr 1e-4 --max-update 2 --batch-size 2 --cpu --num-workers 0 --disable-validation"
)
transformers = pytest.importorskip("transformers")

BERT = "BertForQuestionAnswering"
FORMS = [pytest.param("", "ClusterformerForQuestionAnswering", marks=pytest.mark.whole)]
FORMS += [("--cluster-attention window --shared-softmax", BERT)]


@pytest.mark.parametrize(("options", "kind"), FORMS)
def test_from_folder_to_answer(options, kind, tmp_path, capsys):
    bert = folder_of("bert", tmp_path / "bert")
    asked = [
        {"question": "Where?", "context": f"A lake and a fish {n}.", "answers": ["a fish"]}
        for n in range(8)
    ]
    text, data = tmp_path / "text.jsonl", tmp_path / "data"
    text.write_text("".join(json.dumps(one) + "\n" for one in asked))
    assert run(*"prepare qa text".split(), text, data, "--tokenizer", bert / "tokenizer.json") == 0
    train(data, f"{LINE} {options} --pretrained {bert}", tmp_path / "saved")
    checkpoint, bundle = tmp_path / "saved" / "checkpoint_last.pt", tmp_path / "bundle"
    assert run("bundle", checkpoint, bundle) == 0
    assert str(bert) not in (bundle / "bundle.json").read_text()
    (tmp_path / "document.txt").write_text("A lake and a cafe.")
    said = []
    for model in (checkpoint, bundle):
        capsys.readouterr()
        words = ("--document", tmp_path / "document.txt", "--question", "What?")
        assert run("answer", "--cpu", "--checkpoint", model, *words) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    out, words = tmp_path / "out", ("--to", "transformers")
    assert run("export", checkpoint, out, *words) == 0
    assert_same_logits(checkpoint, out, kind)
    assert run("export", bundle, out, *words, "--force") == 0
    if kind == BERT:
        assert_starts_from(checkpoint, out)
    else:
        assert run("export", out, tmp_path / "back", "--to", "fairseq") == 0
        assert_same_logits(tmp_path / "back", out, kind)


@torch.no_grad()
def assert_same_logits(checkpoint: Path, out: Path, kind: str) -> None:
    """Of ragged rows, by tokens that the reader has as well; of "no answer", where BERT has it."""
    reader = fairseq_clusterformer.load(checkpoint, device="cpu")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(out).eval()
    assert type(model).__name__ == kind
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    pairs = ("What?", "A caf\u00e9 and a \ufb01sh lake."), ("Where is a fish?", "A lake.")
    batch = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt")
    found = model(**batch)
    for row, (question, text) in enumerate(pairs):
        asked = reader.question(question)[None]
        document = reader.sections(text_source(text, "text"))[0].tokens[None]
        tokens = torch.cat([asked, document], 1)[0]
        assert torch.equal(batch["input_ids"][row, : tokens.numel()], tokens)
        expected, _ = reader.model(asked, document)
        for of, name in ((found.start_logits, "start"), (found.end_logits, "end")):
            right = getattr(expected, name)[0, 1:]  # behind <s>
            logits = of[row, asked.numel() + 1 : tokens.numel()]
            torch.testing.assert_close(logits, right, rtol=0, atol=1e-5)
        if kind == BERT:
            none = found.start_logits[row, 0] + found.end_logits[row, 0]
            torch.testing.assert_close(none, expected.type[0, -1], rtol=0, atol=1e-5)


def assert_starts_from(checkpoint: Path, out: Path) -> None:
    """The folder is one that ``--pretrained`` reads, the head of spans included."""
    model = fairseq_clusterformer.load(checkpoint, device="cpu").model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    load_pretrained(model, str(out))
    for name, tensor in model.state_dict().items():
        if name.startswith(("encoder.", "heads.span")):
            assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    ("family", "pair"),
    [("bert", False), ("roberta", True)],
)
def test_a_classifier_is_exported_and_comes_back(family, pair, tmp_path):
    """With its tokens and labels, however long a text is and whatever stands in it; also what was
    fine-tuned there."""
    folder = folder_of(family, tmp_path / family, "SequenceClassification")
    texts = "A lake", "a fish and a lake", "cafe", "a caf\u00e9 and FISH"
    rows = [f"{i % 2}\t{a}" + f"\t{b}" * pair for i, (a, b) in enumerate(product(texts, repeat=2))]
    rows = [row if pair else f"{row}, {row[2:]} {i}" for i, row in enumerate(rows)]
    (tmp_path / "rows.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    prepare = "prepare classification text".split()
    how = ["--tokenizer", folder / "tokenizer.json", "--valid-fraction", "0.2"]
    how += ["--test-fraction", "0.2"] + ([] if pair else ["--max-length", "20"])
    assert run(*prepare, tmp_path / "rows.tsv", tmp_path / "data", *how) == 0
    train(tmp_path / "data", f"{PRETRAINED_CLASSIFIER} --pretrained {folder}", tmp_path / "saved")
    checkpoint, out = tmp_path / "saved" / "checkpoint_last.pt", tmp_path / "out"
    assert run("export", checkpoint, out, "--to", "transformers") == 0
    ours = fairseq_clusterformer.load(checkpoint, device="cpu")
    texts += "cafe\u0301 lake", "[SEP] </s> <mask>", "a fish " * (3 if pair else 30)
    asked = [(b, f"{a} cafe") if pair else f"{a} {b}" for a, b in product(texts, repeat=2)]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    given = map(list, zip(*asked, strict=True)) if pair else [asked]
    batch = tokenizer(*given, padding=True, truncation=not pair, return_tensors="pt")
    read = []
    with torch.no_grad(), mock.patch.object(ours.model, "forward", keeping(ours.model, read)):
        found = model(**batch).logits.softmax(-1)
        wanted = ours.classify(asked, batch_size=len(asked))
    assert torch.equal(batch["input_ids"], read[0])
    for row, one in zip(found.tolist(), wanted, strict=True):
        for number, label in model.config.id2label.items():
            assert row[number] == pytest.approx(one.probabilities[label], abs=1e-6)
    tuned, bundle = tmp_path / "tuned", tmp_path / "back"
    assert run("export", out, bundle, "--to", "fairseq") == 0
    again = fairseq_clusterformer.load(bundle, device="cpu")
    assert again.classify(asked, batch_size=len(asked)) == wanted
    model.config.id2label = {0: "no", 1: "quite so"}
    model.save_pretrained(tuned), tokenizer.save_pretrained(tuned)
    assert run("export", tuned, bundle, "--to", "fairseq", "--force") == 0
    again = fairseq_clusterformer.load(bundle, device="cpu")
    assert again.labels == ["no", "quite so"]
    for one, other in zip(again.classify(asked, batch_size=len(asked)), wanted, strict=True):
        assert [*one.probabilities.values()] == [*other.probabilities.values()]


def keeping(model: torch.nn.Module, read: list[torch.Tensor]) -> Callable:
    """The model's own forward, which also keeps the tokens that it is given."""
    forward = model.forward

    def kept(src_tokens: torch.Tensor, *args, **kwargs):
        read.append(src_tokens)
        return forward(src_tokens, *args, **kwargs)

    return kept

"""A reader from a folder of BERT's form, by commands: prepared, trained, bundled, asked."""

import json

from tests.cli.in_process import train
from tests.inference.commands import run
from tests.models.bert import folder_of

LINE = (
    "--task clusterformer_qa --criterion clusterformer_qa --arch clusterformer_reader_tiny"
    " --encoder-layers 2 --encoder-embed-dim 16 --encoder-ffn-embed-dim 32 --window-positions 40"
    " --encoder-attention-heads 2 --window-size 20 --window-stride 20 --cluster-layers 1"
    " --token-types 2 --layer-norm-eps 1e-12 --max-question-positions 12 --optimizer adam"
    " --lr 1e-4 --max-update 2 --batch-size 2 --cpu --num-workers 0 --disable-validation"
)


def test_from_folder_to_answer(tmp_path, capsys):
    bert = folder_of("bert", tmp_path / "bert")
    asked = [
        {"question": "Where?", "context": f"A lake and a fish {n}.", "answers": ["a fish"]}
        for n in range(8)
    ]
    text, data = tmp_path / "text.jsonl", tmp_path / "data"
    text.write_text("".join(json.dumps(one) + "\n" for one in asked))
    assert run(*"prepare qa text".split(), text, data, "--tokenizer", bert / "tokenizer.json") == 0
    train(data, f"{LINE} --pretrained {bert}", tmp_path / "saved")
    checkpoint, bundle = tmp_path / "saved" / "checkpoint_last.pt", tmp_path / "bundle"
    assert run("bundle", checkpoint, bundle) == 0
    (tmp_path / "document.txt").write_text("A lake and a cafe.")
    said = []
    for model in (checkpoint, bundle):
        capsys.readouterr()
        words = ("--document", tmp_path / "document.txt", "--question", "What?")
        assert run("answer", "--cpu", "--checkpoint", model, *words) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    assert run("export", checkpoint, tmp_path / "out", "--to", "transformers") == 1
    assert (
        "its text is coded by tokenizer.json; allowed: a language model" in capsys.readouterr().err
    )

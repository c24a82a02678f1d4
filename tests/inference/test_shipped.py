"""The trained models that are installed with the package: they do what their cards say."""

import re

import pytest
import torch

import fairseq_clusterformer
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.inference.bundle import CARD, SHIPPED, is_bundle, located
from tests.inference.commands import run

NAMES = fairseq_clusterformer.models()


def test_all_together_are_small() -> None:
    files = [file for file in SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 25e6


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_card(name: str) -> None:
    card = (SHIPPED / name / CARD).read_text()
    for title in ("Data", "Licence", "Scores", "What it cannot do"):
        assert re.search(rf"^## {title}$", card, flags=re.MULTILINE), title


def test_a_path_comes_before_a_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(NAMES[0]) == SHIPPED / NAMES[0]
    (tmp_path / NAMES[0]).mkdir()
    assert not is_bundle(located(NAMES[0]))


def test_an_unknown_name_lists_them(tmp_path) -> None:
    with pytest.raises(UserError, match=f"no such file; allowed: .*{NAMES[0]}"):
        fairseq_clusterformer.load("nothing-of-that-name")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("multi30k-de-en", "Ein Mann fährt mit dem Fahrrad.", {"man", "riding", "bike"}),
        ("multi30k-en-de", "A dog is running on the beach.", {"hund", "strand"}),
    ],
)
def test_translators_translate(name: str, text: str, words: set[str], capsys) -> None:
    assert run("translate", "--checkpoint", name, "--cpu", text) == 0
    said = set(re.findall(r"\w+", capsys.readouterr().out.lower()))
    assert len(words & said) >= 2, said


@pytest.mark.parametrize("name", [name for name in NAMES if "code" in name])
def test_a_language_model_knows_its_language(name: str) -> None:
    """Python is far likelier than its letters in another order."""
    model = fairseq_clusterformer.load(name, device="cpu")
    text = "import os\n\n\ndef main(args):\n    for name in os.listdir(args.path):\n        pass\n"
    torch.manual_seed(0)
    mixed = "".join(text[i] for i in torch.randperm(len(text)))
    assert model.perplexity(text) * 2 < model.perplexity(mixed)
    written = model.generate("import ", max_tokens=40, seed=1, temperature=0.5)
    assert written.startswith("import ")

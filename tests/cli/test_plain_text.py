"""``--bpe clusterformer``: fairseq's own commands and ``from_pretrained`` read and write text."""

from pathlib import Path
from pydoc_data.topics import topics

import pytest

from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.models.clusterformer import ClusterformerModel
from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModel
from tests.cli.in_process import (
    CLUSTERED_TRANSLATION,
    CLUSTERFORMER,
    generate,
    interactive,
    quiet,
    train,
)

BPE = "--bpe clusterformer"
WRITE = f"{BPE} --max-len-a 0 --max-len-b 40 --beam 2 --buffer-size 2 --batch-size 2"
WHOLE = pytest.mark.whole
UNITS = {"bytes": ["--bytes"], "pieces": ["--sentencepiece", "400"], "words": ["--words"]}


def fields(printed: str, kind: str) -> list[str]:
    """What stands in the lines of one kind, without their numbers and scores."""
    lines = [line.split("\t") for line in printed.splitlines() if line.startswith(f"{kind}-")]
    return [line[-1] for line in lines]


@pytest.fixture(
    scope="module", params=["pieces", *(pytest.param(u, marks=WHOLE) for u in ("bytes", "words"))]
)
def language_model(request, tmp_path_factory) -> tuple[str, Path, Path]:
    """The unit, the data and the folder of a language model after one update."""
    folder = tmp_path_factory.mktemp(request.param)
    text = "\n".join(topics[name] for name in sorted(topics)[:30])
    (folder / "text.txt").write_text(f"Two  cafés here.\n{text}")
    words = ["prepare", "lm", "text", str(folder / "text.txt"), str(folder / "data")]
    assert main([*words, *UNITS[request.param]]) == 0
    train(folder / "data", CLUSTERFORMER, folder, "--max-update", 1, "--disable-validation")
    return request.param, folder / "data", folder


def test_prompts_are_plain_text(language_model, tmp_path, capsys):
    unit, data, folder = language_model
    prompts = ["Two  cafés", "The with statement"]
    (tmp_path / "prompts").write_text("\n".join(prompts))
    interactive(data, folder / "checkpoint_last.pt", WRITE, tmp_path / "prompts")
    shown = fields(capsys.readouterr().out, "D")
    if unit == "words":
        prompts[0] = "Two cafés"
    for prompt, text in zip(prompts, shown, strict=True):
        assert text.startswith(prompt)
        assert len(text) > len(prompt)


def test_sample_keeps_blanks_and_line_ends(language_model):
    unit, data, folder = language_model
    with quiet():
        hub = ClusterformerLanguageModel.from_pretrained(
            str(folder), "checkpoint_last.pt", str(data), bpe="clusterformer"
        )
    prompt = "Two  cafés.\nThe " if unit == "bytes" else "The with"
    assert hub.sample(prompt, beam=1, max_len_b=40).startswith(prompt)
    if unit != "words":
        assert hub.decode(hub.encode(prompt)) == prompt


SUBJECTS = {"The cat": "Le chat", "The dog": "Le chien", "A child": "Un enfant"}
VERBS = {"isn't well-fed": "n'est pas repu", "sings": "chante", "eats": "mange", "runs": "court"}
PAIRS = {f"{a} {c}.": f"{b} {d}." for a, b in SUBJECTS.items() for c, d in VERBS.items()}


@pytest.fixture(scope="module", params=["subword-nmt", pytest.param("sentencepiece", marks=WHOLE)])
def translator(request, tmp_path_factory) -> tuple[Path, Path]:
    """The data and the folder of a model from French to English after one update."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS.items()))
    options = ["--source-lang", "en", "--target-lang", "fr", "--vocabulary", request.param]
    options += ["--bpe-operations", "290", "--train", str(folder / "pairs.tsv")]
    assert main(["prepare", "translation", "text", str(folder / "data"), *options]) == 0
    train(
        *(folder / "data", f"{CLUSTERED_TRANSLATION} -s fr -t en", folder),
        *("--max-update", 1, "--disable-validation"),
    )
    return folder / "data", folder


def test_translation_of_raw_text(translator, tmp_path, capsys):
    """Also in the direction that the folder was not made for."""
    data, folder = translator
    (tmp_path / "input").write_text("Un chat  repu.\nLe chien.\n")
    line = f"--task translation -s fr -t en {WRITE}"
    interactive(data, folder / "checkpoint_last.pt", line, tmp_path / "input")
    printed = capsys.readouterr().out
    text = TextPipeline.from_folder(data)
    sources = [text.encode(line, "fr") for line in ("Un chat  repu.", "Le chien.")]
    assert fields(printed, "S") == sources
    assert fields(printed, "D") == [text.decode(h, "en") for h in fields(printed, "H")]

    checkpoint = folder / "checkpoint_last.pt"
    line = f"--task translation -s fr -t en {BPE} --gen-subset valid --beam 1 --scoring sacrebleu"
    printed = "\n".join(generate(data, checkpoint, line, tmp_path))
    assert set(fields(printed, "T")) <= PAIRS.keys()

    with quiet():
        hub = ClusterformerModel.from_pretrained(
            str(folder), "checkpoint_last.pt", str(data), bpe="clusterformer"
        )
    assert (hub.bpe.encode.keywords, hub.bpe.decode.keywords) == ({"lang": "fr"}, {"lang": "en"})
    assert isinstance(hub.translate("Le chien."), str)
    assert (
        hub.bpe.decode(text.encode("The cat isn't well-fed.", "en")) == "The cat isn't well-fed."
    )

"""What a user has who installs the wheel: own text and questions, end to end."""

import json
import shutil
from collections.abc import Callable
from pydoc_data.topics import topics

import pytest

from tests.conftest import RunCli
from tests.packaging import build_wheel

pytestmark = pytest.mark.whole
Run = Callable[..., str]

TRAIN = (
    "--optimizer adam --lr 0.005 --max-update 20 --seed 1 --disable-validation --num-workers 0"
    " --cpu --log-format simple"
)


@pytest.fixture(scope="module")
def run(run_cli: RunCli, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of the wheel in a folder of its own; what the wheel requires is this
    environment's."""
    folder = tmp_path_factory.mktemp("installed")
    (home := folder / "home").mkdir()
    wheel, site = build_wheel(run_cli, folder), folder / "site"
    pip = ("python", "-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel)
    run_cli(*pip)
    shutil.rmtree(folder / "source")

    def program(line: str) -> str:
        program, *words = line.split()
        if program.startswith("fairseq-"):
            module = f"fairseq_cli.{program.removeprefix('fairseq-').replace('-', '_')}"
            words = ["-m", module, *words, "--user-dir", site / "fairseq_clusterformer"]
        elif program == "clusterformer":
            words = [site / "bin" / program, *words]
        words = [str(word).replace("%20", " ") for word in words]
        printed = run_cli("python", *words, cwd=home, env={"PYTHONPATH": str(site)}).stdout
        assert "Traceback" not in printed
        return printed

    program.home = home
    return program


def test_text(run):
    """A folder of text: prepare, train, generate, perplexity, draw; with a bundle as well."""
    (run.home / "texts").mkdir()
    names = sorted(topics)
    for number in range(0, len(names), 4):
        text = "\n\n".join(topics[name] for name in names[number : number + 4])
        (run.home / "texts" / f"{number}.txt").write_text(text)
    run("clusterformer prepare lm text texts data-bin/texts")
    run(
        "fairseq-train data-bin/texts --task language_modeling"
        f" --arch clusterformer_lm_tiny {TRAIN}"
        " --criterion clusterformer_cross_entropy --tokens-per-sample 256 --batch-size 4"
        " --sample-break-mode none --save-dir model"
    )
    checkpoint = "--checkpoint model/checkpoint_last.pt"
    said = run(f"clusterformer generate {checkpoint} The%20with --max-tokens 40 --seed 1")
    assert said.startswith("The with")
    assert len(said) > len("The with") + 10
    assert "perplexity" in run(
        f"clusterformer perplexity {checkpoint} --data data-bin/texts --max-blocks 2"
    )
    run(f"clusterformer draw {checkpoint} --data data-bin/texts --text texts/0.txt --out drawn")
    assert "<html" in (run.home / "drawn" / "clusters.html").read_text()

    run("clusterformer bundle model/checkpoint_last.pt bundle")
    shutil.move(run.home / "data-bin" / "texts", run.home / "moved")
    shutil.move(run.home / "model", run.home / "gone")
    again = run("clusterformer generate --checkpoint bundle The%20with --max-tokens 40 --seed 1")
    assert again == said
    code = "import%20fairseq_clusterformer%20as%20f;print(f.load('bundle').generate('The'))"
    assert run(f"python -c {code}").startswith("The")


def test_questions(run):
    """Own questions as JSON lines: prepare, train, evaluate, answer from a folder."""
    cities = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Delhi", "Quito"]
    with open(run.home / "questions.jsonl", "w") as file:
        for number in range(80):
            city = cities[number % len(cities)]
            context = f"Letter {number}. The meeting of group {number} takes place in {city}."
            question = f"Where does group {number} meet?"
            record = {"id": str(number), "question": question, "context": context}
            file.write(json.dumps({**record, "answers": [city]}) + "\n")
    run("clusterformer prepare qa text questions.jsonl data-bin/questions")
    run(
        "fairseq-train data-bin/questions --task clusterformer_qa"
        f" --arch clusterformer_reader_tiny {TRAIN} --criterion clusterformer_qa"
        " --clip-norm 1.0 --batch-size 8 --save-dir reader"
    )
    checkpoint = "--checkpoint reader/checkpoint_last.pt"
    assert "f1" in run(f"clusterformer evaluate qa {checkpoint} --data data-bin/questions")
    (run.home / "letters").mkdir()
    (run.home / "letters" / "a.txt").write_text("The meeting of group 3 takes place in Oslo.\n")
    said = run(f"clusterformer answer {checkpoint} --document letters --question Where?")
    assert "a.txt" in said

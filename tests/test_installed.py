"""What a user has who installs the wheel."""

import shutil
from collections.abc import Callable
from pydoc_data.topics import topics

import pytest

from tests.conftest import RunCli
from tests.packaging import build_wheel

pytestmark = pytest.mark.whole
Run = Callable[..., str]


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


def test_a_folder_of_text(run):
    """Prepare, train, bundle, generate and draw; and a question to the reader that is shipped."""
    (run.home / "texts").mkdir()
    names = sorted(topics)
    for number in range(0, len(names), 4):
        text = "\n\n".join(topics[name] for name in names[number : number + 4])
        (run.home / "texts" / f"{number}.txt").write_text(text)
    run("clusterformer prepare lm text texts data-bin/texts")
    run(
        "fairseq-train data-bin/texts --task language_modeling --arch clusterformer_lm_tiny"
        " --optimizer adam --lr 0.005 --max-update 20 --seed 1 --disable-validation --cpu"
        " --num-workers 0 --criterion clusterformer_cross_entropy --tokens-per-sample 256"
        " --batch-size 4 --sample-break-mode none --save-dir model"
    )
    run("clusterformer bundle model/checkpoint_last.pt bundle")
    shutil.move(run.home / "data-bin" / "texts", run.home / "moved")
    said = run("clusterformer generate --checkpoint bundle The%20with --max-tokens 40 --seed 1")
    assert said.startswith("The with")
    assert len(said) > len("The with") + 10
    run("clusterformer draw --checkpoint bundle --text texts/0.txt --out drawn")
    assert "<html" in (run.home / "drawn" / "clusters.html").read_text()
    code = "import%20fairseq_clusterformer%20as%20f;print(f.load('bundle').generate('The'))"
    assert run(f"python -c {code}").startswith("The")
    (run.home / "a.txt").write_text("The meeting of group 3 takes place in Oslo.\n")
    assert "Oslo" in run("clusterformer answer --cpu --document a.txt --question Where?")

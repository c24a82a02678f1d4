"""The notebook runs from top to bottom, and shows what it says."""

import json

import pytest

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)
pytest.importorskip("accelerate")

from tests.conftest import REPO_ROOT  # noqa: E402

NOTEBOOK = REPO_ROOT / "examples" / "quickstart.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(capsys: pytest.CaptureFixture) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]  # it is kept without its results
            exec(compile("".join(cell["source"]), f"{NOTEBOOK} {cell['id']}", "exec"), names)
    assert names["translations"][0] == "a dog runs on the beach."
    assert names["losses"][-1] < names["losses"][0] / 2
    assert "clusters of words, words of clusters." in names["text"]
    printed = capsys.readouterr().out
    assert "head 0: ein/" in printed
    assert "ClusterformerCache(79 tokens" in printed

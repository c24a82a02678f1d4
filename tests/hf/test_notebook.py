"""The notebook runs from top to bottom in a kernel of its own, and shows what it says."""

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("accelerate")

from tests.conftest import REPO_ROOT  # noqa: E402


@pytest.mark.whole
def test_the_notebook_runs(tmp_path, monkeypatch):
    """Its first cell imports transformers before this package, as people do."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(REPO_ROOT / "examples" / "quickstart.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)  # it is kept without its results
    where = {"metadata": {"path": str(tmp_path)}}
    how = {"timeout": 300, "shutdown_kernel": "immediate"}
    nbclient.NotebookClient(notebook, resources=where, **how).execute()
    last = [cell.outputs[-1] for cell in cells[1:]]
    shown = [out["text"] if "text" in out else out["data"]["text/plain"] for out in last]
    assert eval(shown[0])[0] == "a dog runs on the beach."
    assert "head 0: ein/" in shown[1]
    losses = eval(shown[2])
    assert 0 < losses[-1] < losses[0] / 2
    assert "clusters of words, words of clusters." in shown[3]
    assert "ClusterformerCache(79 tokens" in shown[3]

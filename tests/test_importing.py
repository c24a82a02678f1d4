"""fairseq is imported quietly, and without what a command does not need."""

import json

import pytest

from tests.conftest import REPO_ROOT

# of two fairseq modules that no command of ours uses, then of the libraries themselves
SCORES = """
import logging, sys
import fairseq_clusterformer
import fairseq
assert not logging.getLogger().handlers
there = [name for name in sys.modules if name.split(".")[0] == "sklearn" or name == "scipy.stats"]
assert not there, there
import numpy as np
from fairseq.criterions.sentence_prediction import acc_and_f1, pearson_and_spearman
from fairseq.tasks.audio_classification import sklearn_metrics
found, right = np.array([1, 0, 1, 1]), np.array([1, 1, 0, 1])
assert abs(acc_and_f1(found, right)["f1"] - 2 / 3) < 1e-6
assert abs(pearson_and_spearman(np.arange(3), np.array([1, 3, 2]))["spearmanr"] - 0.5) < 1e-6
assert sklearn_metrics.accuracy_score(right, found) == 0.5
import scipy.stats, sklearn.metrics
assert scipy.stats.norm.cdf(0) == 0.5 and sklearn.metrics.f1_score([1], [1]) == 1
"""

ANSWER = """
import atexit, gc, json, sys
atexit.register(lambda: print(json.dumps({"frozen": gc.get_freeze_count()})))  # at the very end
from fairseq_clusterformer.cli.main import main
assert not main("answer --cpu --document town.txt --question".split() + ["Who built the bridge?"])
searches = gc.get_stats()[2]["collections"]
print(json.dumps({"modules": sorted(sys.modules), "searches": searches}))
"""


@pytest.mark.whole
def test_scores_come_when_they_are_asked_for(run_cli):
    """And whoever imports their libraries later gets these."""
    run_cli("python", "-c", SCORES, cwd=REPO_ROOT)


def test_an_answer_imports_no_more(run_cli, tmp_path):
    """Nor does Python search all that was imported for garbage, not even at its end."""
    (tmp_path / "town.txt").write_text("Ada Brown built the bridge over the river in 1901.\n")
    env = {"PYTHONPATH": str(REPO_ROOT)}
    lines = run_cli("python", "-c", ANSWER, cwd=tmp_path, env=env).stdout.splitlines()
    assert any("Ada Brown" in line for line in lines)
    state, end = map(json.loads, lines[-2:])
    unneeded = {"sklearn", "scipy.stats", "matplotlib", "transformers", "faiss", "gensim"}
    assert not unneeded & set(state["modules"])
    assert state["searches"] < 3
    assert end["frozen"] > 100_000


@pytest.mark.whole
def test_triton_reports_no_leaks(run_cli):
    """It does where Python's end frees less than it might."""
    pytest.importorskip("triton")
    code = "import triton\nfrom fairseq_clusterformer.cli.main import main\n"
    code += "main(['answer', '--document', 'README.md', '--question', ' '])"
    said = run_cli("python", "-c", code, cwd=REPO_ROOT).stdout
    assert "question is empty" in said
    assert "leaked" not in said

"""Pictures: centroids of images in their places, and documents of any length."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from fairseq_clusterformer.cli import main
from fairseq_clusterformer.clustering.fitted import Clusters
from fairseq_clusterformer.visual.document import MARK, STRIP, draw_document, shade
from fairseq_clusterformer.visual.words import ClusteredText, DrawnLayer, describe


def picture(folder: Path, centroids: torch.Tensor) -> int:
    Clusters(centroids, spherical=False).save(folder / "c.npz")
    return main.run(["draw"], f"--centroids {folder}/c.npz --out {folder}/out".split())


def test_every_centroid_is_in_its_place(tmp_path):
    """Of 13, number k is dark in its pixel k alone."""
    assert picture(tmp_path, torch.eye(13, 16)) == 0
    dark = 1 - matplotlib.image.imread(tmp_path / "out" / "centroids.png")[..., 0]
    assert dark.shape == (160, 800)
    cells = dark.reshape(2, 80, 10, 80).swapaxes(1, 2).reshape(20, 80, 80)
    assert cells[13:].max() == 0
    for k in range(13):
        rows, columns = np.where(cells[k] > 0.5)
        assert len(rows)
        assert (int(rows.mean() / 20), int(columns.mean() / 20)) == divmod(k, 4)
    assert not list(tmp_path.glob("out/*.partial"))
    assert picture(tmp_path, torch.eye(3, 16)) == 0  # a few fill the picture
    assert matplotlib.image.imread(tmp_path / "out" / "centroids.png").shape[:2] == (80, 240)


@pytest.mark.parametrize("in_npz", [True, False])
def test_pickled_objects_are_refused_without_advice_to_unpickle(in_npz, tmp_path, capsys):
    path, pickled = tmp_path / "c.npz", np.array([{"centroids": 1}])
    if in_npz:
        np.savez(path, centroids=pickled)
    else:
        pickled.dump(path)
    assert main.run(["draw"], f"--centroids {path} --out {tmp_path}/out".split()) == 1
    err = capsys.readouterr().err
    assert f"--centroids is {path}: not fitted clusters (it holds something else" in err
    assert "allow_pickle" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("width", "message"),
    [(17, "they have 17 values each; allowed: centroids of square"), (None, "no such file")],
)
def test_mistakes_are_one_line(width, message, tmp_path, capsys):
    if width is None:
        line = f"--centroids {tmp_path}/c.npz --out {tmp_path}/out".split()
        assert main.run(["draw"], line) == 1
    else:
        assert picture(tmp_path, torch.zeros(3, width)) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_every_number_of_tokens_has_a_shade():
    shades = [shade(count, most) for most in range(1, 201) for count in range(1, most + 1)]
    assert 0.2 < min(shades) < max(shades) == 1


@pytest.mark.parametrize("tokens_of_a_mark", [1, 3])
def test_a_document_of_any_length_is_drawn(tokens_of_a_mark):
    passage = [0] * (STRIP // MARK * tokens_of_a_mark)
    tokens = ["a"] * len(passage)
    clusters = describe([tokens], [passage], 1, endings=[tokens])
    layer = DrawnLayer(0, "layer 1", None, passage, clusters)
    text = ClusteredText("", "subword", tokens, len(tokens), "", "", [layer])
    boxes = draw_document(text, layer).axes[0].patches
    assert {box.get_alpha() for box in boxes} == {None, 1.0}

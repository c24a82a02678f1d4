"""What clusters together: counted right on hand-made text, drawn whole, mistakes in one line."""

import copy
import re
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from fairseq import tasks
from selectolax.lexbor import LexborHTMLParser
from torch import nn

from fairseq_clusterformer.attention import MultiheadAttention
from fairseq_clusterformer.attention.inspect import token_clusters
from fairseq_clusterformer.checkpoints.load import Loaded, load_checkpoint
from fairseq_clusterformer.cli.prepare import lm as prepare_lm
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.visual import pages
from fairseq_clusterformer.visual.pages import (
    ClusteredText,
    DrawnLayer,
    Item,
    describe,
    read_clusters,
    typical_items,
    word_endings,
)
from tests.cli.in_process import CLUSTERFORMER, train
from tests.documents.commands import error, run

PASSAGE = 'A <b>naïve</b> "word" & more …\n\n   if x:\n\ty += 1  # two\n'
SPEC = "neural,window+neural"
CODINGS = {"byte": [], "piece": ["--sentencepiece", "400"], "word": ["--words"]}


class _Two(nn.Module):
    def __init__(self, *kinds: str):
        super().__init__()
        self.later, self.sooner = (MultiheadAttention(8, 4, kinds=k, causal=True) for k in kinds)

    def forward(self, x):
        return self.later(self.sooner(x)[0])


@pytest.mark.parametrize(
    ("kind", "groups"), [("neural", 1), ("kmeans", 1), ("routing", 4), ("gated", 4), ("lsh", 4)]
)
def test_token_clusters_are_those_of_each_router_in_the_order_they_ran(kind, groups):
    model, x = _Two("kmeans(4,clusters=3)", f"{kind}(4,clusters=3)").eval(), torch.randn(2, 30, 8)
    clusters = token_clusters(model, x)
    assert list(clusters) == ["sooner.routers.0", "later.routers.0"]
    assert clusters["sooner.routers.0"].shape == (2, groups, 30)
    assert clusters["sooner.routers.0"].unique().tolist() == [0, 1, 2]
    (router,) = model.later.routers
    expected = router.clustering(model.sooner(x)[0])
    assert torch.equal(clusters["later.routers.0"].squeeze(1), expected)
    assert not router._forward_hooks
    assert token_clusters(_Two("full", "window(4)"), x) == {}


def test_typical_items_of_a_hand_made_text():
    items = ["the", "a", "the", "of", "", "x", "the", "of", "x", "x"]
    clusters = [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    # the: 2 of 3 in cluster 0, which holds 4 of 10; a: 1 of 1; of: 1 of 2; x: 3 of 3 in cluster 1.
    # 2 log(10/6) = 1.02; 1 log(10/4) = 0.92; 1 log(10/8) = 0.22; 3 log(10/6) = 1.53
    assert typical_items(items, clusters, 3) == [
        [Item("the", 2, 3), Item("a", 1, 1), Item("of", 1, 2)],
        [Item("x", 3, 3)],
        [],
    ]
    tokens, clusters = list("ababab"), [0, 1, 0, 1, 0, 0]
    first, second, empty = describe(tokens, clusters, 3, word_endings(tokens[:4]) + ["", "ab"])
    assert (first.size, second.size, empty.size) == (4, 2, 0)
    assert first.share == pytest.approx(2 / 3)
    assert first.tokens == [Item("a", 3, 3)]
    assert second.endings == [Item("abab", 1, 1), Item("ab", 1, 2)]
    many = [str(i) for i in range(40)]
    assert len(typical_items(many, [i % 2 for i in range(40)], 2)[0]) == 10


def test_word_endings():
    assert word_endings(list("so the  x\n")) == (
        ["", "so", "so ", "", "th", "the", "the ", "  ", "", "x\n"]
    )
    assert word_endings(list("------"))[3:] == ["----"] * 3
    assert word_endings(["", "é", "", "s"]) == ["", "", "", "és"]
    assert word_endings(list("abcdefghijklmn"))[-1] == "cdefghijklmn"


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A passage, and data folders by the unit of the text."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "text").mkdir()
    text = "\n".join(topics[name] for name in sorted(topics)[:8])
    for split, part in (("train", text[:20_000]), ("valid", text[20_000:22_000]), ("test", "ä\n")):
        (folder / "text" / f"{split}.txt").write_text(part, encoding="utf-8")
    for unit, how in CODINGS.items():
        assert prepare_lm.main(["text", f"{folder}/text", str(folder / unit), *how]) == 0
    (folder / "passage").write_text(PASSAGE, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def checkpoint(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clustered")
    train(texts / "byte", CLUSTERFORMER, folder, "--max-update", 1, "--attention", SPEC)
    return folder / "checkpoint_last.pt"


@pytest.fixture
def loaded(checkpoint: Path, texts: Path) -> Loaded:
    return load_checkpoint(checkpoint, data=texts / "byte")


def untrained(loaded: Loaded, data: Path, **options: object) -> Loaded:
    """Another model, of other data or with other options."""
    cfg = copy.deepcopy(loaded.cfg)
    cfg.task.data = str(data)
    cfg.model.update(options)
    task = tasks.setup_task(cfg.task)
    return replace(loaded, model=task.build_model(cfg.model).eval(), task=task, folder=data)


def test_tokens_join_to_the_text(texts):
    """The bytes of a character show it at the last."""
    coding = TextCoding.from_folder(texts / "byte")
    shown = pages.shown_tokens(coding, coding.encode("aé…\n"))
    assert shown == ["a", "", "é", "", "", "…", "\n"]
    assert pages.shown_tokens(coding, coding.encode(b"\xe2x\xc3")) == ["", "\ufffdx", "\ufffd"]
    coding = TextCoding.from_folder(texts / "word")
    tokens = pages.shown_tokens(coding, coding.encode("the  value of\n\nnobody-wrote-this the\n"))
    assert tokens == ["the", " value", " of", "\n", "\n", "<unk>", " the", "\n"]


def shown_passage(page: str) -> str:
    return LexborHTMLParser(page).css_first(".passage").text()


def assert_stands_alone(page: str, passage: str) -> None:
    """Every character of the passage in order, and nothing from elsewhere."""
    assert shown_passage(page) == passage
    assert LexborHTMLParser(page).css("[src],[href],[srcset],[data]") == []
    assert not re.search(r"https?://|@import|url\(|<!--[A-Z]", page)


def test_command(checkpoint, texts, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    words = ["draw", "--checkpoint", checkpoint, "--data", texts / "byte", "--text"]
    assert run(*words, texts / "passage", "--out", out) == 0
    assert sorted(path.name for path in out.iterdir()) == [".clusterformer", "clusters.html"]
    page = (out / "clusters.html").read_text(encoding="utf-8")
    assert_stands_alone(page, PASSAGE)
    names = re.findall(r"<option [^>]*>([^<]*)<", page)
    assert names == [
        "layer 0 of layers 0 to 1, all heads, neural",
        "layer 1 of layers 0 to 1, heads 2 to 3 of heads 0 to 3, neural",
    ]
    assert f"clusters.html: 2 clusterings of {len(PASSAGE.encode())} bytes" in (
        capsys.readouterr().out
    )
    (tmp_path / "empty").touch()
    line = error(capsys, *words, tmp_path, "--out", out)
    assert "it is a folder; allowed: a file of text" in line
    line = error(capsys, *words, tmp_path / "empty", "--out", out)
    assert "is empty; allowed: a text of one byte or more" in line
    line = error(capsys, *words, texts / "passage", "--out", tmp_path / "empty")
    assert "allowed: a folder to write to" in line


def test_it_opens_with_the_clustering_that_divides_most():
    layers = [
        DrawnLayer("all in one", None, [5] * 6, describe("a", [0], 8, "a")),
        DrawnLayer("halves", None, [4, 4, 4, 7, 7, 7], []),
        DrawnLayer("other halves", None, [4, 7, 4, 7, 7, 4], []),
        DrawnLayer("unequal", None, [4, 4, 4, 4, 4, 7], []),
    ]
    assert [layer.spread for layer in layers] == pytest.approx([1, 2, 2, 1.5691], abs=1e-4)
    page = pages.cluster_page(ClusteredText("", "byte", ["a"] * 6, 6, "", "", layers))
    assert re.findall(r" selected>([^<]*)<", page) == ["other halves"]


def test_clusters_are_those_of_the_model(loaded, texts, tmp_path):
    """A passage longer than the model reads at once is read in parts; multi-byte characters."""
    (tmp_path / "long").write_text(PASSAGE * 3, encoding="utf-8")
    reading = read_clusters(loaded, tmp_path / "long")
    length = len((PASSAGE * 3).encode())
    assert (reading.unit, reading.row) == ("byte", 64)
    assert len(reading.tokens) == length > 2 * reading.row
    assert reading.note == "The model reads the passage in parts of 64 bytes."
    assert reading.counted.endswith("over 2,001 bytes of validation text.")
    tokens = TextCoding.from_folder(texts / "byte").encode(PASSAGE * 3)[64:128]
    own = token_clusters(loaded.model, tokens[None])
    for layer, clusters in zip(reading.layers, own.values(), strict=True):
        assert len(layer.passage) == length
        assert layer.passage[64:128] == clusters[0, 0].tolist()
        assert sum(cluster.size for cluster in layer.clusters) == 2001
        assert layer.window == 8
    (tmp_path / "dict.txt").write_bytes((texts / "byte" / "dict.txt").read_bytes())
    reading = read_clusters(replace(loaded, folder=tmp_path), tmp_path / "long")
    assert f"over {length} bytes of the passage itself" in reading.counted  # as in a bundle


@pytest.mark.parametrize("kind", ["gated", "routing"])
def test_heads_that_cluster_apart_are_shown_apart(kind, loaded, texts):
    other = untrained(loaded, texts / "byte", attention=f"window+{kind}")
    reading = read_clusters(other, texts / "passage")
    heads = [layer.name.partition(", ")[2] for layer in reading.layers]
    assert heads == [f"head {head} of heads 0 to 3, {kind}" for head in (2, 3)] * 2
    assert {layer.window for layer in reading.layers} == {None}
    assert pages.cluster_page(reading)


@pytest.mark.parametrize("unit", ["piece", "word"])
def test_pieces_and_words(unit, loaded, texts):
    reading = read_clusters(untrained(loaded, texts / unit), texts / "passage")
    page = pages.cluster_page(reading)
    assert reading.unit == unit
    if unit == "piece":
        assert_stands_alone(page, PASSAGE)
    else:
        pairs = zip(PASSAGE.split(), shown_passage(page).split(), strict=True)
        assert all(shown in (word, "<unk>") for word, shown in pairs)
        endings = {item.text for c in reading.layers[0].clusters for item in c.endings}
        assert any(re.fullmatch(r"\S+ \S+", text) for text in endings)  # a word and the one before


def test_many_clusters_are_told_apart_and_the_largest_listed(loaded, texts):
    reading = read_clusters(untrained(loaded, texts / "byte", num_clusters=40), texts / "passage")
    page = pages.cluster_page(reading)
    assert page.count("<tr><td") == len(reading.layers) * pages.MOST_ROWS
    assert "16 smaller clusters are not listed" in page
    assert len({pages.colour(i) for i in range(40)}) == 40


def test_a_passage_cannot_end_the_script(loaded, tmp_path):
    passage = "</script><script>alert(1)</script></pre> \u2028 \u6771\u4eac"
    (tmp_path / "passage").write_text(passage, encoding="utf-8")
    page = pages.cluster_page(read_clusters(loaded, tmp_path / "passage"))
    assert_stands_alone(page, passage)
    assert page.count("<script>") == page.count("</script>") == 1

"""What clusters together: counted right on hand-made text, drawn whole, mistakes in one line."""

import re
import shutil
import struct
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
from torch import nn

from fairseq_clusterformer.attention import MultiheadAttention, parse_layer
from fairseq_clusterformer.attention.inspect import oldest_key_in_sight, token_clusters
from fairseq_clusterformer.cli import main
from fairseq_clusterformer.cli.prepare import lm as prepare_lm
from fairseq_clusterformer.data.coding import TextCoding, WordCoding
from fairseq_clusterformer.errors import UserError
from fairseq_clusterformer.inference.load import load_checkpoint
from fairseq_clusterformer.visual import pages
from fairseq_clusterformer.visual.figure import draw_passage, example, wrapped
from fairseq_clusterformer.visual.language_model import (
    encode_file,
    read_clusters,
    shown_tokens,
)
from fairseq_clusterformer.visual.words import (
    ClusteredText,
    DrawnLayer,
    Item,
    css,
    describe,
    typical_items,
    word_endings,
    word_pairs,
)
from tests.cli.in_process import CLUSTERFORMER, TRANSFORMER, train

PASSAGE = 'A <b>naïve</b> "word" & more …\n\n   if x:\n\ty += 1  # two\n'


# Clusters of a model's tokens


class _Two(nn.Module):
    def __init__(self, *kinds: str):
        super().__init__()
        self.later, self.sooner = (MultiheadAttention(8, 4, kinds=k, causal=True) for k in kinds)

    def forward(self, x):
        return self.later(self.sooner(x)[0])


@pytest.mark.parametrize(
    ("kind", "groups"), [("neural", 1), ("kmeans", 1), ("routing", 4), ("gated", 4), ("lsh", 4)]
)
def test_token_clusters_are_those_of_each_router_in_the_order_they_ran(kind: str, groups: int):
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


def test_a_query_sees_keys_of_its_cluster():
    """What routers report is what they route by: here, all that a query sees is of its cluster."""
    for kind in ("neural", "kmeans", "routing"):
        kinds = parse_layer(kind, clusters=3, window=40)
        layer = MultiheadAttention(8, 2, kinds=kinds, causal=True).eval()
        x = torch.randn(1, 40, 8)
        (router,) = layer.routers
        caught = []
        hook = router.register_forward_hook(lambda *given, caught=caught: caught.append(given[-1]))
        layer(x)
        hook.remove()
        (routing,) = caught
        clusters, layout = routing.report.clusters[0], routing.parts[0].layouts[0]
        for group, of_group in enumerate(clusters):
            order, lo, hi = (
                t[0, group % t.size(1)] for t in (layout.query_order, layout.lo, layout.hi)
            )
            for slot, (first, last) in enumerate(zip(lo.tolist(), hi.tolist(), strict=True)):
                seen = of_group[order[first:last]]
                assert (seen == of_group[order[slot]]).all()


def test_hooks_are_removed_when_the_model_fails():
    model = _Two("neural", "neural")
    with pytest.raises(RuntimeError):
        token_clusters(model, torch.randn(2, 3, 4))
    assert not model.sooner.routers[0]._forward_hooks


def test_oldest_key_in_sight():
    clusters = torch.tensor([0, 1, 0, 0, 1, 0, 2])
    assert oldest_key_in_sight(clusters, 2).tolist() == [0, 1, 0, 2, 1, 3, 6]
    assert oldest_key_in_sight(clusters, 1).tolist() == list(range(7))
    assert oldest_key_in_sight(clusters, 9).tolist() == [0, 1, 0, 0, 1, 0, 6]


# The words of a cluster


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
    assert typical_items(items, clusters, 2, most=1) == [[Item("the", 2, 3)], [Item("x", 3, 3)]]


def test_describe_sizes_and_reach():
    rows, clusters = [list("abab"), list("ab")], [[0, 1, 0, 1], [0, 0]]
    first, second, empty = describe(
        rows, clusters, 3, window=2, endings=[word_endings(row) for row in rows]
    )
    assert (first.size, second.size, empty.size) == (4, 2, 0)
    assert first.share == pytest.approx(2 / 3)
    assert (first.reach, second.reach, empty.reach) == (0, 1, None)  # of 0 2 0 1, of 0 2
    assert first.tokens == [Item("a", 3, 3)]
    assert second.endings == [Item("abab", 1, 1), Item("ab", 1, 2)]
    assert describe(rows, clusters, 3, endings=rows)[0].reach is None


def test_word_endings():
    assert word_endings(list("so the  x\n")) == (
        ["", "so", "so ", "", "th", "the", "the ", "  ", "", "x\n"]
    )
    assert word_endings(list("------"))[3:] == ["----"] * 3
    assert word_endings(["", "é", "", "s"]) == ["", "", "", "és"]
    assert word_endings(list("abcdefghijklmn"))[-1] == "cdefghijklmn"
    assert word_pairs(["a", " b", "\n"]) == ["a", "a b", " b\n"]


# Vocabularies


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    text = "\n".join(topics[name] for name in sorted(topics)[:8])
    for split, part in (("train", text[:20_000]), ("valid", text[20_000:22_000]), ("test", "ä\n")):
        (folder / f"{split}.txt").write_text(part, encoding="utf-8")
    (folder / "passage").write_text(PASSAGE, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def byte_data(texts):
    assert prepare_lm.main(["text", str(texts), str(texts.parent / "bytes")]) == 0
    return texts.parent / "bytes"


@pytest.fixture(scope="session")
def piece_data(texts):
    arguments = ["text", str(texts), str(texts.parent / "pieces"), "--sentencepiece", "400"]
    assert prepare_lm.main(arguments) == 0
    return texts.parent / "pieces"


@pytest.fixture(scope="session")
def word_data(texts):
    from fairseq_clusterformer.corpora import binarize

    out = texts.parent / "words"
    out.mkdir()
    dictionary = binarize.word_dictionary(binarize.count_words(texts / "train.txt"))
    files = {split: texts / f"{split}.txt" for split in ("train", "valid", "test")}
    binarize.write_dataset(files, out, dictionary, WordCoding(dictionary).items)
    return out


def test_bytes_of_a_character_show_it_at_the_last(byte_data):
    coding = TextCoding.from_folder(byte_data)
    shown = shown_tokens(coding, coding.encode("aé…\n"))
    assert shown == ["a", "", "é", "", "", "…", "\n"]
    assert shown_tokens(coding, coding.encode(b"\xe2x\xc3")) == ["", "\ufffdx", "\ufffd"]


@pytest.mark.parametrize(("data", "unit"), [("byte_data", "byte"), ("piece_data", "piece")])
def test_tokens_of_bytes_and_pieces_join_to_the_text(data, unit, texts, request):
    of_data = TextCoding.from_folder(request.getfixturevalue(data))
    tokens = shown_tokens(of_data, encode_file(of_data, texts / "passage"))
    assert of_data.unit == unit
    assert "".join(tokens) == PASSAGE


def test_tokens_of_words_join_to_the_words(word_data, tmp_path):
    of_data = TextCoding.from_folder(word_data)
    (tmp_path / "text").write_text("the  value of\n\nnobody-wrote-this the\n")
    tokens = shown_tokens(of_data, encode_file(of_data, tmp_path / "text"))
    assert tokens == ["the", " value", " of", "\n", "\n", "<unk>", " the", "\n"]


# Checkpoints, pictures and pages


def small_model(data, folder, line, *more):
    train(data, line, folder, "--max-update", 3, "--save-interval", 1, *more)
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def checkpoint(byte_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clustered")
    return small_model(byte_data, folder, CLUSTERFORMER, "--attention", "neural,window+neural")


@pytest.fixture(scope="session")
def dense_checkpoint(byte_data, tmp_path_factory):
    return small_model(byte_data, tmp_path_factory.mktemp("dense"), TRANSFORMER)


class _Passage(HTMLParser):
    """The text in the page's passage, and what the page would fetch."""

    def __init__(self, page):
        super().__init__()
        self.inside, self.text, self.links = False, "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.inside |= attrs.get("class") == "passage"
        self.links += [v for k, v in attrs.items() if k in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag):
        self.inside &= tag != "pre"

    def handle_data(self, data):
        self.text += data if self.inside else ""


def assert_stands_alone(page: str, passage: str) -> None:
    """Every character of the passage in order, and nothing from elsewhere."""
    parsed = _Passage(page)
    assert parsed.text == passage
    assert parsed.links == []
    assert not re.search(r"https?://|@import|url\(|<!--[A-Z]", page)


def picture_width(path: Path) -> int:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert data.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">I", data[16:20])[0]


def run(*arguments):
    return main.run(["draw"], [str(argument) for argument in arguments])


def options(checkpoint, data, text, out):
    return ["--checkpoint", checkpoint, "--data", data, "--text", text, "--out", out]


def test_picture_and_page(checkpoint, byte_data, texts, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert run(*options(checkpoint, byte_data, texts / "passage", out)) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        ".clusterformer",
        "clusters.html",
        "clusters.png",
    ]
    assert picture_width(out / "clusters.png") == 1600
    page = (out / "clusters.html").read_text(encoding="utf-8")
    assert_stands_alone(page, PASSAGE)
    reading = read_clusters(load_checkpoint(checkpoint, data=byte_data), texts / "passage")
    names = [layer.name for layer in reading.layers]
    assert names == [
        "layer 0 of layers 0 to 1, all heads, neural",
        "layer 1 of layers 0 to 1, heads 2 to 3 of heads 0 to 3, neural",
    ]
    shown = reading.most_spread().name
    for number, name in enumerate(names):
        chosen = " selected" * (name == shown)
        assert f'<option value="{number}"{chosen}>{name}<' in page
    assert shown in capsys.readouterr().out


def test_the_clustering_that_divides_most_is_drawn():
    layers = [
        DrawnLayer(0, "all in one", None, [5] * 6, []),
        DrawnLayer(0, "thirds", None, [0, 0, 1, 1, 2, 2], []),
        DrawnLayer(1, "unequal thirds", None, [0, 0, 0, 0, 1, 2], []),
        DrawnLayer(1, "halves", None, [4, 4, 4, 7, 7, 7], []),
        DrawnLayer(1, "other halves", None, [4, 7, 4, 7, 7, 4], []),
    ]
    assert [layer.spread for layer in layers] == pytest.approx([1, 3, 2.3811, 2, 2], abs=1e-4)
    text = ClusteredText("", "byte", ["a"] * 6, 6, "", "", layers)
    assert [text.most_spread(n).name for n in (None, 0, 1)] == [
        "thirds",
        "thirds",
        "unequal thirds",
    ]
    text = replace(text, layers=layers[3:])
    assert text.most_spread().name == "other halves"
    with pytest.raises(UserError, match="--layer is 0: this layer does not cluster; allowed: 1"):
        text.most_spread(0)


def test_clusters_are_those_of_the_model(checkpoint, byte_data, texts):
    """A passage longer than the model reads at once is read in parts; multi-byte characters."""
    (texts / "long").write_text(PASSAGE * 3, encoding="utf-8")
    reading = read_clusters(load_checkpoint(checkpoint, data=byte_data), texts / "long")
    length = len((PASSAGE * 3).encode())
    assert (reading.unit, reading.row) == ("byte", 64)
    assert len(reading.tokens) == length > 2 * reading.row
    assert reading.counted.endswith("over 2,001 bytes of validation text.")
    for layer in reading.layers:
        assert len(layer.passage) == length
        assert sum(cluster.size for cluster in layer.clusters) == 2001
        assert layer.window == 8
    assert len({tuple(layer.passage) for layer in reading.layers}) == 2


def test_heads_that_cluster_apart_are_shown_apart(byte_data, texts, tmp_path):
    checkpoint = small_model(byte_data, tmp_path, CLUSTERFORMER, "--attention", "window+gated")
    reading = read_clusters(load_checkpoint(checkpoint, data=byte_data), texts / "passage")
    heads = [layer.name.partition(", ")[2] for layer in reading.layers]
    assert heads == ["head 2 of heads 0 to 3, gated", "head 3 of heads 0 to 3, gated"] * 2
    assert {layer.window for layer in reading.layers} == {None}
    assert pages.cluster_page(reading, reading.layers[0])


def test_keys_that_no_cluster_holds_are_no_cluster(byte_data, texts, tmp_path):
    spec = "window+taught(clusters=3,drop_keys=0.5)"
    checkpoint = small_model(byte_data, tmp_path, CLUSTERFORMER, "--attention", spec)
    reading = read_clusters(load_checkpoint(checkpoint, data=byte_data), texts / "passage")
    assert {len(layer.clusters) for layer in reading.layers} == {3}


@pytest.mark.parametrize("data", ["piece_data", "word_data"])
def test_pieces_and_words(data, texts, tmp_path, request):
    data = request.getfixturevalue(data)
    checkpoint = small_model(data, tmp_path / "model", CLUSTERFORMER)
    assert run(*options(checkpoint, data, texts / "passage", tmp_path / "out")) == 0
    page = (tmp_path / "out" / "clusters.html").read_text(encoding="utf-8")
    if data.name == "pieces":
        assert_stands_alone(page, PASSAGE)
    else:
        words = _Passage(page).text.split()
        pairs = zip(PASSAGE.split(), words, strict=True)
        assert all(shown in (word, "<unk>") for word, shown in pairs)


def test_many_clusters_are_told_apart_and_the_largest_listed(byte_data, texts, tmp_path):
    checkpoint = small_model(byte_data, tmp_path, CLUSTERFORMER, "--num-clusters", 40)
    reading = read_clusters(load_checkpoint(checkpoint, data=byte_data), texts / "passage")
    page = pages.cluster_page(reading, reading.layers[0])
    assert page.count("<article>") == len(reading.layers) * pages.MOST_ROWS
    assert "16 smaller clusters are not listed" in page
    texts_of_picture = [
        text.get_text() for text in draw_passage(reading, reading.layers[0]).axes[0].texts
    ]
    (below,) = [text for text in texts_of_picture if text.endswith("bytes of validation text.")]
    assert below.startswith("28 smaller clusters have the other ")
    assert len({css(i) for i in range(36)}) == 36
    assert run(*options(checkpoint, byte_data, texts / "passage", tmp_path / "out")) == 0


def test_wrapped_lines_of_a_picture():
    lines = wrapped(["a", "", "\u00e9", "\n", "b", "cd"], 2)
    assert lines == [[(0, "a"), (2, "\u00e9")], [(3, "\n")], [(4, "b"), (5, "c")], [(5, "d")]]


def test_example_is_the_last_that_sees_all_it_may():
    tokens, clusters = list("abc d e"), [0, 0, 1, 0, 0, 0, 1]
    assert example(tokens, clusters, 2, 6) == {3, 4}  # position 5 is a blank
    assert example(tokens, clusters, 3, 7) == {1, 3, 4}
    assert example(tokens, clusters, 9, 7) == set()
    assert example(tokens, clusters, None, 7) == set()


@pytest.fixture
def refused(checkpoint, dense_checkpoint, byte_data, piece_data, texts, tmp_path):
    """Command lines with one mistake each, and what the last line must say."""
    (tmp_path / "empty").touch()
    good = {
        "--checkpoint": checkpoint,
        "--data": byte_data,
        "--text": texts / "passage",
        "--out": tmp_path / "out",
    }
    bad = [
        ("--checkpoint", tmp_path / "none.pt", "no such file"),
        ("--checkpoint", dense_checkpoint, "no layer of this TransformerLanguageModel clusters"),
        ("--data", piece_data, "does not fit the data in"),
        ("--text", tmp_path / "none", "no such file; allowed: a file of text"),
        ("--text", tmp_path, "it is a folder; allowed: a file of text"),
        ("--text", tmp_path / "empty", "is empty; allowed: a text of one byte or more"),
        ("--out", texts / "passage", "allowed: a folder to write to"),
        ("--layer", 2, "this layer does not cluster; allowed: 0, 1"),
    ]
    return [({**good, option: value}, option, value, message) for option, value, message in bad]


def test_mistakes_are_one_line(refused, capsys):
    for line, option, value, message in refused:
        assert run(*[word for pair in line.items() for word in pair]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        if option != "--data":
            assert last.startswith(f"clusterformer draw: error: {option} is {value}: "), last
        assert message in last


def test_options_that_do_not_go_together(checkpoint, tmp_path, capsys):
    for line in (["--out", tmp_path], ["--checkpoint", checkpoint, "--out", tmp_path]):
        with pytest.raises(SystemExit):
            run(*line)
        assert "is missing; allowed: --checkpoint and --text, or --centroids" in (
            capsys.readouterr().err
        )
    with pytest.raises(SystemExit):
        run("--centroids", "c.npz", "--layer", 1, "--out", tmp_path)
    assert "allowed: it alone, without --layer" in capsys.readouterr().err


def test_without_validation_text_the_passage_is_counted(checkpoint, byte_data, texts, tmp_path):
    """As in a bundle."""
    shutil.copy(byte_data / "dict.txt", tmp_path)
    assert run(*options(checkpoint, tmp_path, texts / "passage", tmp_path / "out")) == 0
    page = (tmp_path / "out" / "clusters.html").read_text(encoding="utf-8")
    length = len(PASSAGE.encode())
    assert f"counted over {length} bytes of the passage itself" in page


def test_a_passage_cannot_end_the_script(checkpoint, byte_data, tmp_path, capsys, recwarn):
    """And it may have characters that the font of the picture lacks."""
    passage = "</script><script>alert(1)</script></pre> \u2028 \u6771\u4eac"
    (tmp_path / "passage").write_text(passage, encoding="utf-8")
    assert run(*options(checkpoint, byte_data, tmp_path / "passage", tmp_path)) == 0
    page = (tmp_path / "clusters.html").read_text(encoding="utf-8")
    assert_stands_alone(page, passage)
    assert page.count("<script>") == page.count("</script>") == 1
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
    assert "Glyph" not in capsys.readouterr().err

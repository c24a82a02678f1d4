"""Encoders start from folders of BERT's form, and compute what ``transformers`` computes."""

import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from safetensors.torch import load_file, save_file

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.subwords import Subwords
from fairseq_clusterformer.families import ENCODERS
from fairseq_clusterformer.models.checkpoints import CheckpointError
from fairseq_clusterformer.models.clusterformer_classifier import ClusterformerClassifier
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from fairseq_clusterformer.models.pretrained import load_pretrained
from tests.data.tokenizers import made
from tests.models.bert import folder_of

transformers = pytest.importorskip("transformers")


def reader_from(folder: Path, words: Path | None = None):
    """A reader that starts from a folder, and its dictionary: of its tokenizer, or of another."""
    dictionary = symbol_dictionary(Subwords(words or folder / "tokenizer.json").symbols)
    config = json.loads((folder / "config.json").read_text()) if words is None else {}
    typed = config.get("type_vocab_size", 2) == 2 and config.get("model_type") != "distilbert"
    args = Namespace(
        **{"encoder_layers": 2, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32},
        **{"encoder_attention_heads": 2, "window_size": 30, "window_stride": 30},
        **{"window_positions": config.get("max_position_embeddings", 40)},
        **{"layer_norm_eps": config.get("layer_norm_eps", 1e-12), "cluster_layers": ""},
        **{"token_types": 2 if typed else 0, "pretrained": str(folder)},
    )
    if config.get("model_type") == "roberta":
        args.window_positions -= 2
    model = ClusterformerReader.build_model(args, SimpleNamespace(source_dictionary=dictionary))
    model.load_initial_weights()
    return model.eval(), dictionary


@pytest.fixture(params=ENCODERS)
def family(request) -> str:
    return request.param


def test_states_are_transformers(family, tmp_path):
    folder = folder_of(family, tmp_path / family)
    model, dictionary = reader_from(folder)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    question, document = torch.tensor([[0, 7, 9, 2]]), torch.tensor([[0, 8, 9, 11, 8, 4]])
    symbols = Subwords(folder / "tokenizer.json").symbols
    rows = torch.cat([question, document], dim=1)
    ids = torch.tensor([[symbols.index(dictionary[i]) for i in rows[0]]])
    more = {}
    if family in ("bert", "electra"):
        more = {"token_type_ids": (torch.arange(10) >= 4).long()[None]}
    with torch.no_grad():
        expected = theirs(input_ids=ids, output_hidden_states=True, **more)
        logits, extra = model(question, document, torch.ones_like(document, dtype=torch.bool))
    reading = extra["reading"]
    found = torch.cat([reading.question[:, 0], reading.document], dim=1)
    assert torch.allclose(found, expected.hidden_states[-1], atol=1e-5)
    assert torch.allclose(logits.start[0, 1:], expected.start_logits[0, 5:], atol=1e-5)
    assert torch.allclose(logits.end[0, 1:], expected.end_logits[0, 5:], atol=1e-5)


def encoder_from(folder: Path, kind: type, positions: int = 30, is_pair: bool = False, **how):
    """A model of the folder's sizes, and the folder's numbers of its words."""
    symbols = Subwords(folder / "tokenizer.json").symbols
    dictionary = symbol_dictionary(symbols)
    task = SimpleNamespace(source_dictionary=dictionary, max_positions=lambda: positions)
    task.is_pair, task.is_siamese, task.classes = is_pair, False, ["a", "b"]
    args = Namespace(pretrained=str(folder), **how)
    of = "classifier" if kind is ClusterformerClassifier else "masked_lm"
    ARCH_CONFIG_REGISTRY[f"clusterformer_{of}_pretrained"](args)
    model = kind.build_model(args, task)
    model.load_initial_weights()
    return model.eval(), torch.tensor([symbols.index(symbol) for symbol in dictionary.symbols])


@torch.no_grad()
@pytest.mark.parametrize("form", ["text", "joined"])
def test_a_classifiers_states_are_transformers(family, form, tmp_path):
    """A pair's second text is of the second type, as far as there are types; padding is hidden."""
    folder = folder_of(family, tmp_path / family)
    model, numbers = encoder_from(folder, ClusterformerClassifier, is_pair=form == "joined")
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = torch.tensor([[0, 7, 9, 2, 8, 11, 2], [0, 8, 8, 2, 6, 2, 1]])
    more = {"attention_mask": tokens.ne(1).long()}
    if form == "joined" and family in ("bert", "electra"):
        more["token_type_ids"] = model.second(tokens)
    if family == "roberta":
        more["position_ids"] = torch.arange(2, 9).expand(2, -1)
    expected = theirs(input_ids=numbers[tokens], **more).last_hidden_state
    pooled, out = model._encode(tokens)
    states, real = out["encoder_out"][0].transpose(0, 1), tokens.ne(1)
    torch.testing.assert_close(states[real], expected[real], rtol=0, atol=1e-5)
    torch.testing.assert_close(pooled[1], expected[1, :6].mean(0), rtol=0, atol=1e-5)


@torch.no_grad()
def test_masked_words_are_transformers(family, tmp_path):
    folder = folder_of(family, tmp_path / family, head="MaskedLM")
    model, numbers = encoder_from(folder, ClusterformerMaskedLM)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = torch.tensor([[0, 7, 9, 2, 8, 11, 2]])
    expected = theirs(input_ids=numbers[tokens], output_hidden_states=True)
    states, _ = model.encoded(tokens)
    torch.testing.assert_close(states, expected.hidden_states[-1], rtol=0, atol=1e-5)
    if family != "electra":  # which has another head
        logits, _ = model(tokens)
        torch.testing.assert_close(logits, expected.logits[..., numbers], rtol=1e-5, atol=1e-4)


def test_a_head_of_its_own_words_starts_anew(tmp_path):
    folder = folder_of("bert", tmp_path / "bert", "MaskedLM", tie_word_embeddings=False)
    model, _ = encoder_from(folder, ClusterformerMaskedLM)
    assert not model.lm_head.bias.any()


def test_clusters_begin_anew(tmp_path):
    how = {"encoder_attention": "neural", "num_clusters": 4, "own_centroids": False}
    model, _ = encoder_from(folder_of("bert", tmp_path / "bert"), ClusterformerMaskedLM, **how)
    assert model.encoder.centroids.shape == (4, 16)


def test_positions_beyond_the_folders_begin_anew(tmp_path):
    folder = folder_of("bert", tmp_path / "bert")
    model, _ = encoder_from(folder, ClusterformerMaskedLM, positions=100)
    places = model.encoder.embed_positions.weight[2:]
    assert len(places) == 100
    assert torch.equal(places[40:80], places[:40])
    assert torch.equal(places[80:], places[:20])


def test_sizes_need_a_folder(tmp_path):
    """None is a mistake at once; a wrong one is said where its weights are loaded."""
    sizes = ARCH_CONFIG_REGISTRY["clusterformer_reader_pretrained"]
    with pytest.raises(CheckpointError, match="--pretrained is missing; allowed: a folder"):
        sizes(Namespace())
    folder = folder_of("bert", tmp_path / "bert")
    args = Namespace(pretrained=str(folder), encoder_ffn_embed_dim=8)
    sizes(args)
    assert (args.encoder_layers, args.encoder_ffn_embed_dim, args.cluster_layers) == (2, 8, "1,1")
    model, _ = encoder_from(folder, ClusterformerMaskedLM)
    with pytest.raises(CheckpointError, match="nowhere: no such file or folder; allowed: a fol"):
        load_pretrained(model, str(tmp_path / "nowhere"))


def test_old_names_of_norms(tmp_path):
    """BERT's first files call them gamma and beta, and are no safetensors."""
    folder = folder_of("bert", tmp_path / "bert")
    before, _ = reader_from(folder)
    file = folder / "model.safetensors"
    state = load_file(file)
    file.unlink()
    for new, old in (("Norm.weight", "Norm.gamma"), ("Norm.bias", "Norm.beta")):
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    torch.save(state, folder / "pytorch_model.bin")
    after, _ = reader_from(folder)
    for one, other in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(one, other) or one.shape[0] in (1, 5)  # heads that start anew


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "t5"}, "model_type is t5; allowed: bert, roberta, electra, distilbert"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key"),
        ({"num_hidden_layers": 3}, "--encoder-layers 3"),
        ({"hidden_act": "mish"}, "its activation is mish"),
        ({"hidden_size": None}, "its hidden_size is None; allowed: a whole number"),
        ({"type_vocab_size": 3}, "its type_vocab_size is 3; allowed: 1 or 2"),
    ],
)
def test_what_does_not_fit_is_one_line(changes, message, tmp_path):
    folder = folder_of("bert", tmp_path / "bert", **changes)
    with pytest.raises(CheckpointError, match="--pretrained is .*") as caught:
        reader_from(folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", [False, True])
def test_a_layer_that_is_missing_or_no_number(missing, tmp_path):
    folder = folder_of("bert", tmp_path / "bert")
    state = load_file(folder / "model.safetensors")
    tensor = state.pop("bert.encoder.layer.1.output.LayerNorm.weight")
    if not missing:
        state["bert.encoder.layer.1.output.LayerNorm.weight"] = tensor * torch.nan
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="--pretrained is .*layers.1.final_layer_norm.weigh"):
        reader_from(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{"])
def test_damaged_files(name, content, tmp_path):
    folder = folder_of("bert", tmp_path / "bert")
    model_words = made("wordpiece", tmp_path / "words.json")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=str(folder)) as caught:
        reader_from(folder, words=model_words)
    assert "\n" not in str(caught.value)

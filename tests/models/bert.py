"""Small random models of BERT's form."""

import json
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.data.subwords import Subwords
from tests.data.tokenizers import made

transformers = pytest.importorskip("transformers")


def folder_of(family: str, path: Path, head: str = "QuestionAnswering", **changes) -> Path:
    """A small random model of a family, with a head and its tokenizer."""
    path.mkdir()
    made("bytes" if family == "roberta" else "wordpiece", path / "tokenizer.json")
    words = len(Subwords(path / "tokenizer.json").symbols)
    common = {"vocab_size": words, "max_position_embeddings": 40}
    if family == "distilbert":
        sizes = {"n_layers": 2, "dim": 16, "hidden_dim": 32, "n_heads": 2}
    else:
        sizes = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
        sizes |= {"num_attention_heads": 2}
    if family == "electra":
        sizes["embedding_size"] = 16
    if family == "roberta":
        sizes |= {"type_vocab_size": 1, "pad_token_id": 1}
    config = transformers.AutoConfig.for_model(family, **common, **sizes)
    torch.manual_seed(0)
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config).eval()
    for parameter in model.parameters():  # norms of 1 and biases of 0 would hide mistakes
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    if changes:
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return path

"""Dense models of transformers, small and as if trained, with their tokenizers."""

import json
from pathlib import Path

import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

ENGLISH = [
    "The cat sat on the mat.",
    "A dog, it was told, ran é away from the small cat.",
    "The ball is red.",
]
GERMAN = ["Die kleine Katze saß auf der Matte.", "Ein Hund lief weg.", "Der Ball ist rot."]
TEXT = "\n".join([*ENGLISH, ""]) * 40
OF_PAIRS = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 48,
}


def save(folder: Path, model: PreTrainedModel) -> None:
    """Save a model whose parameters are not 0 or 1, but for what Marian computes. The bias of its
    logits ends texts now and then."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            norm = "weight" in name and ("norm" in name.lower() or "ln_" in name)
            torch.nn.init.normal_(parameter, 1.0 if norm else 0.0, 0.4)
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, model.config.eos_token_id] += 2.5
    model.save_pretrained(folder)


def save_byte_pairs(folder: Path, size: int, special: list[str]) -> None:
    """A byte-level BPE of so many pieces; with <unk>, <mask> comes last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - ("<unk>" in special),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if "<unk>" in special:
        tokenizer.add_special_tokens(["<mask>"])
    assert tokenizer.get_vocab_size() == size
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


def gpt2(folder: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=285, n_positions=64, n_embd=16, n_layer=2, n_head=4, eos_token_id=0
    )
    config.bos_token_id = 0
    save(folder, transformers.GPT2LMHeadModel(config))
    save_byte_pairs(folder, 285, ["<|endoftext|>"])


def roberta(folder: Path) -> None:
    config = transformers.RobertaConfig(
        vocab_size=290,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=66,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    save(folder, transformers.RobertaForMaskedLM(config))
    save_byte_pairs(folder, 290, ["<s>", "<pad>", "</s>", "<unk>"])


def bart(folder: Path) -> None:
    config = transformers.BartConfig(vocab_size=290, **OF_PAIRS)
    save(folder, transformers.BartForConditionalGeneration(config))
    save_byte_pairs(folder, 290, ["<s>", "<pad>", "</s>", "<unk>"])


def marian(folder: Path) -> None:
    folder.mkdir()
    vocabulary = {"</s>": 0, "<unk>": 1}
    for name, lines in (("source", ENGLISH), ("target", GERMAN)):
        (folder / "text").write_text("\n".join(lines * 9), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(folder / name),
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        read = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for i in range(3, len(read)):
            vocabulary.setdefault(read.id_to_piece(i), len(vocabulary))
    pad = vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    settings = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = transformers.MarianConfig(
        vocab_size=pad + 1,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        activation_function="swish",
        scale_embedding=True,
        **OF_PAIRS,
    )
    save(folder, transformers.MarianMTModel(config))


MAKERS = {make.__name__: make for make in (gpt2, roberta, marian, bart)}

"""Dense models of transformers, small and untrained, with their tokenizers."""

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


SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 48,
}


def save_byte_pairs(folder: Path, model: PreTrainedModel, special: list[str]) -> None:
    """Save a model with a byte-level BPE of as many pieces; with <unk>, <mask> comes last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=model.config.vocab_size - ("<unk>" in special),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    if "<unk>" in special:
        tokenizer.add_special_tokens(["<mask>"])
    assert tokenizer.get_vocab_size() == model.config.vocab_size
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    model.save_pretrained(folder)


def save(folder: Path, model: transformers.PreTrainedModel, special: list[str]) -> None:
    """A model, and a byte-level BPE of a few pieces."""
    for name, parameter in model.named_parameters():  # as trained ones, none is 0 or 1
        torch.nn.init.normal_(parameter, 1.0 if "ln" in name and "weight" in name else 0.0, 0.3)
    save_byte_pairs(folder, model, special)


def gpt2(folder: Path) -> None:
    config = transformers.GPT2Config(
        vocab_size=285, n_positions=64, n_embd=16, n_layer=2, n_head=4, eos_token_id=0
    )
    config.bos_token_id = 0
    save(folder, transformers.GPT2LMHeadModel(config), ["<|endoftext|>"])


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
    model = transformers.RobertaForMaskedLM(config)
    save(folder, model, ["<s>", "<pad>", "</s>", "<unk>"])


def randomly(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """As if trained: no parameter is 0 or 1, but what Marian computes; and a bias of the logits
    that ends texts now and then."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            norm = "norm" in name and "weight" in name
            torch.nn.init.normal_(parameter, 1.0 if norm else 0.0, 0.4)
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, model.config.eos_token_id] += 2.5
    return model.eval()


def marian(folder: Path) -> None:
    folder.mkdir()
    vocabulary = {"</s>": 0, "<unk>": 1}
    for name, lines in (("source", ENGLISH), ("target", GERMAN)):
        text = folder / "text"
        text.write_text("\n".join(lines * 9), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(text),
            model_prefix=str(folder / name),
            vocab_size=40,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        read = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        for i in range(3, len(read)):
            vocabulary.setdefault(read.id_to_piece(i), len(vocabulary))
    vocabulary["<pad>"] = len(vocabulary)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    settings = {"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = transformers.MarianConfig(
        vocab_size=len(vocabulary),
        pad_token_id=vocabulary["<pad>"],
        decoder_start_token_id=vocabulary["<pad>"],
        activation_function="swish",
        scale_embedding=True,
        **SIZES,
    )
    randomly(transformers.MarianMTModel(config)).save_pretrained(folder)


def bart(folder: Path) -> None:
    config = transformers.BartConfig(vocab_size=290, **SIZES)
    model = randomly(transformers.BartForConditionalGeneration(config))
    save_byte_pairs(folder, model, ["<s>", "<pad>", "</s>", "<unk>"])


MAKERS = {make.__name__: make for make in (gpt2, roberta, marian, bart)}

"""Using trained models."""

#: of each task, the class that uses its models; the plug-in adds those of the wings
CLASSES = {
    "language_modeling": "fairseq_clusterformer.inference.language_model:LanguageModel",
    "translation": "fairseq_clusterformer.inference.translate:Translator",
    "clusterformer_qa": "fairseq_clusterformer.inference.read:Reader",
    "clusterformer_sentence": "fairseq_clusterformer.inference.classify:Classifier",
    "masked_lm": "fairseq_clusterformer.inference.encoders:MaskedLanguageModel",
    "clusterformer_masked_lm": "fairseq_clusterformer.inference.encoders:MaskedLanguageModel",
}

"""What a trained model is used for: load, generate, translate, answer."""

"""The mathematics: tensors in, tensors out; no config, module, device or logger."""

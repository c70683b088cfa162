"""A trained policy for programs without Rookery: an ONNX file or a torch.export file."""

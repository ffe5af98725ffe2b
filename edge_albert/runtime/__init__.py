"""Inference on the device: NumPy, SentencePiece and one engine; never PyTorch, ONNX or transformers."""

"""Generation by a vLLM server, by the interface that vLLM 0.33 documents.

The server reads weights from a checkpoint in Hugging Face's format, adapters merged in, so vLLM knows every name.
"""

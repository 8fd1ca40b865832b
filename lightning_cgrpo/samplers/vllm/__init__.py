"""Generation by a vLLM server; the interface that vLLM 0.33 documents.

The server gets the weights as a checkpoint in a folder, in Hugging Face's own format, adapters merged in: so each has
the name that vLLM knows, whatever the model family.
"""

"""Generation by vLLM, in a server or in a process beside this one; the interface that vLLM 0.33 documents.

Both engines get the weights as a checkpoint in a folder, in Hugging Face's own format, adapters merged in: so each has
the name that vLLM knows, whatever the model family.
"""

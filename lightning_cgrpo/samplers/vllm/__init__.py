"""Generation by a vLLM server, as documented for vLLM 0.33."""

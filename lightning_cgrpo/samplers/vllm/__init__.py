"""Generation by a vLLM server, by the interface that vLLM 0.33 documents."""

"""GSM8K's comparison on generated word problems: `python -m benchmarks.gsm8k.run`."""

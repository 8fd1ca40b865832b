"""Ten minutes on a GPU, see `benchmarks.gpu.__main__`."""

"""Word problems with numbers up to 999, and a calculator to call."""

from lightning_cgrpo.tasks.calculator.functions import calculator, correct

__all__ = ["calculator", "correct"]

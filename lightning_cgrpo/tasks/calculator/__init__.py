"""Word problems with numbers from 10 to 99, and a calculator to call."""

from lightning_cgrpo.tasks.calculator.functions import calculator, correct

__all__ = ["calculator", "correct"]

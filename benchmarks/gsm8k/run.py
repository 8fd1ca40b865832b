"""GSM8K's comparison, on the generated word problems of configs/gsm8k.yaml.

python -m benchmarks.gsm8k.run           # goes on where it was stopped
python -m benchmarks.gsm8k.run --list    # what is finished

Every core trains one run at a time.
"""

from __future__ import annotations

from benchmarks.gsm8k.experiments import SETS
from benchmarks.runner.experiment import Experiment
from benchmarks.runner.run import main

GSM8K = Experiment(name="gsm8k", help=__doc__, sets=SETS, standard=("paper",))

if __name__ == "__main__":
    main(GSM8K)

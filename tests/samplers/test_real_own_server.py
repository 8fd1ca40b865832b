"""A real vLLM server that a run starts: it trains, and ends with the run, ``pytest -m vllm``, see docs/vllm.md."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from transformers import GenerationConfig

from benchmarks import kill_loop
from benchmarks.run_differences import differences
from tests.samplers.test_own_server import lives, logged, until
from tests.samplers.test_real_vllm import OPTIONS, PATIENCE, VLLM, make_served_model

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(VLLM is None, reason="no vLLM: put `vllm` on the path, or its file into LIGHTNING_CGRPO_VLLM"),
]

UPDATES = 5
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory; its many stop tokens make answers of different lengths, which an update can learn from."""
    directory = make_served_model(tmp_path_factory.mktemp("models") / "untied", untied=True)
    GenerationConfig(eos_token_id=[0, *range(20, 120)]).save_pretrained(directory)
    return directory


class Fit:
    """``python -m lightning_cgrpo fit`` in a session of its own, as in a terminal, and all that its server has.

    Attributes:
        processes: keeper, server, its engine and workers.
        ports: on which they listen.
        files: the server's folder, and blocks of shared memory.
    """

    def __init__(self, folder, model):
        folder.mkdir(exist_ok=True)
        arguments = [*kill_loop.arguments("language", "auto"), f"--trainer.max_steps={UPDATES}", "--ckpt_path=auto"]
        arguments += [f"--model.policy.model={model}", "--model.optimizer.lr=1e-2"]  # of a model with random weights
        arguments += ["--trainer.limit_val_batches=0", "--callbacks.initial_rates=null"]
        arguments += ["--model.sampler.engine=VLLMServer", f"--model.sampler.engine.command={VLLM} serve {OPTIONS}"]
        arguments += [f"--model.sampler.engine.timeout={PATIENCE}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(int(PATIENCE))}
        self.folder = folder
        command = [sys.executable, "-m", "lightning_cgrpo", *arguments]
        with (folder / "output.txt").open("ab") as output:
            files = {"stdout": output, "stderr": subprocess.STDOUT}
            self.run = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **files)

    def until_update(self, number):
        self.until(lambda: f"update {number}" in kill_loop.marks(self.folder))

    def until_engine(self):
        """Until the server's engine begins to start."""
        self.until(lambda: any(map(shared_memory, self.serving())))

    def until(self, reached):
        until(lambda: self.run.poll() is not None or reached(), PATIENCE)
        assert self.run.poll() is None, self.told()
        self.processes = self.serving()
        keeper, self.server, *engine = self.processes
        self.ports = {port for process in self.processes for port in listened(process)}
        blocks = {block for process in self.processes for block in shared_memory(process)}
        self.files = {keeper.cmdline()[4], *blocks}
        assert engine and blocks, "the engine is a process of its own, and shares memory with its workers"

    def serving(self):
        """The keeper, the server, and the processes below it."""
        keepers = [child for child in psutil.Process(self.run.pid).children() if keeps(child)]
        return [process for keeper in keepers for process in (keeper, *keeper.children(recursive=True))]

    def ended(self):
        """The run's status, once nothing is left of its server."""
        status = self.run.wait(PATIENCE)
        until(lambda: not any(lives(process.pid) for process in self.processes), 60)
        until(lambda: not any(Path(file).exists() for file in self.files), 60)
        assert not self.ports & {port for process in psutil.process_iter() for port in listened(process)}
        return status

    def told(self):
        return (self.folder / "output.txt").read_text()[-5000:]


def keeps(process):
    """True of a keeper; false of a process that has ended just now."""
    with suppress(psutil.Error):
        return "keeper.py" in " ".join(process.cmdline())
    return False


def listened(process):
    """Ports; none of a process that has ended just now."""
    with suppress(psutil.Error):
        return {socket.laddr.port for socket in process.net_connections() if socket.status == psutil.CONN_LISTEN}
    return set()


def shared_memory(process):
    """Blocks that it maps; none of a process that has ended just now."""
    with suppress(psutil.Error, OSError):
        return {place.path for place in process.memory_maps() if place.path.startswith("/dev/shm/psm_")}
    return set()


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The folder of a run that ends by itself."""
    fit = Fit(tmp_path_factory.mktemp("whole"), model)
    fit.until_update(1)
    assert fit.ended() == 0, fit.told()
    return fit.folder


def test_it_trains(whole):
    """Each update has answers of the weights that the update before it made."""
    gaps, norms = logged(whole, "sampling/log_prob_gap"), logged(whole, "policy/grad_norm")
    print(f"sampling/log_prob_gap: {gaps}; gradients: {norms}")  # docs/vllm.md has the gaps
    assert len(gaps) == UPDATES and max(gaps) < 1e-4
    assert len(norms) == UPDATES and min(norms) > 0.01


def test_nothing_stays_of_a_server_whose_run_is_killed_while_it_starts(model, tmp_path):
    starting = Fit(tmp_path / "run", model)
    starting.until_engine()
    starting.run.kill()
    assert starting.ended() == -signal.SIGKILL


def test_nothing_stays_however_a_run_ends_and_its_resumes_equal_a_whole_run(model, whole, tmp_path):
    """SIGKILL of the run, SIGKILL of the server, Ctrl-C, and an end by itself; each resume starts a server anew."""
    killed = Fit(tmp_path / "run", model)
    killed.until_update(1)
    killed.run.kill()
    assert killed.ended() == -signal.SIGKILL

    served = Fit(tmp_path / "run", model)
    served.until_update(2)
    served.server.kill()
    assert served.ended() == 2 and "to go on, but it ended with status 137" in served.told()

    interrupted = Fit(tmp_path / "run", model)
    interrupted.until_update(3)
    os.killpg(interrupted.run.pid, signal.SIGINT)  # as a terminal's Ctrl-C
    assert interrupted.ended() == 130, interrupted.told()

    last = Fit(tmp_path / "run", model)
    last.until_engine()  # its one update begins before the server starts
    assert last.ended() == 0, last.told()
    assert list(differences(tmp_path / "run", whole)) == []

"""Generation by vLLM on this process's own GPU, in turns with training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_cgrpo.distributed import world
from lightning_cgrpo.errors import UserError, installing
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy
from lightning_cgrpo.rollout import NO_INPUTS
from lightning_cgrpo.samplers.engine import Completions, RolloutEngine, Sampling
from lightning_cgrpo.samplers.vllm.answers import LOGPROBS_MODE, Answer, check_text, completions, parameters, seeds
from lightning_cgrpo.samplers.vllm.weights import PROBE_TOKENS, check_agreement, checkpoint, version

WHERE = "vLLM"


class VLLMColocated(RolloutEngine):
    """Starts vLLM with the policy's weights when it is first asked, and gives it new ones whenever they have changed.

    Each answer has a seed of its own: it depends on the draws, and on the others by rounding only. Between rollouts
    vLLM sleeps: its weights wait in the CPU's memory, and the GPU's is training's. New weights go through a folder
    (``reload_weights``), and are compared by the log-probabilities of a short answer. Log-probabilities are those of
    what was sampled from, after the temperature and the filters (`top_p` and the like), which the policy's own do not
    know of.

    For one process of training; several ones share a `VLLMServer`.

    Args:
        gpu_memory_utilization: the share of the GPU's memory that vLLM may take while it generates.
        sleep: give that memory back between rollouts.
        shared: the folder for the weights, by default this machine's for temporary files. One in memory (/dev/shm) is
            the fastest.
        options: further arguments of ``vllm.LLM``, such as dtype or max_model_len.
    """

    def __init__(
        self,
        gpu_memory_utilization: float = 0.3,
        sleep: bool = True,
        shared: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0 < gpu_memory_utilization <= 1:
            raise ValueError(f"Expected gpu_memory_utilization to be in (0, 1], but got {gpu_memory_utilization}.")
        self.gpu_memory_utilization = gpu_memory_utilization
        self.sleep = sleep
        self.shared = shared
        self.options = dict(options or {})
        self._llm: Any = None  # vllm.LLM, without its import
        self._version = ""

    @torch.no_grad()
    def generate(
        self,
        policy: CausalLMPolicy,
        prompts: list[list[int]],
        group_size: int,
        sampling: Sampling,
        draws: Tensor,
        inputs: Mapping[str, Tensor] = NO_INPUTS,
    ) -> Completions:
        """Answer every prompt, see `RolloutEngine`.

        Raises:
            UserError: vLLM is not installed, or there is more than one process, or prompts are more than text.
            FloatingPointError: weights or the log-probabilities of the short answer are not finite.
        """
        check_text(inputs)
        self._wake(policy)
        asked = [prompt for prompt in prompts for _ in range(group_size)]
        answers = self._answers(asked, [parameters(policy, sampling, seed) for seed in seeds(draws)])
        if self.sleep:
            self._llm.sleep(level=1)
        return completions(policy, answers, (len(prompts), group_size), sampling, WHERE)

    def _wake(self, policy: CausalLMPolicy) -> None:
        """Have vLLM ready, with the policy's weights."""
        wanted = version(policy)
        torch.cuda.empty_cache()  # what training keeps for itself; nothing happens without a GPU
        if self._llm is None:
            self._llm = self._start(policy)
        elif wanted == self._version:
            if self.sleep:
                self._llm.wake_up()
            return
        else:
            self._push(policy)
        prompt = [policy.stop_tokens[0]]
        probe = parameters(policy, Sampling(PROBE_TOKENS), seed=0) | {"stop_token_ids": []}
        check_agreement(policy, prompt, self._answers([prompt], [probe])[0], WHERE)
        self._version = wanted

    def _start(self, policy: CausalLMPolicy) -> Any:
        if world()[1] > 1:
            raise UserError(
                f"Expected one process with VLLMColocated, but got {world()[1]}, try VLLMServer, which they can share."
            )
        try:
            from vllm import LLM
        except ImportError as error:
            raise UserError(
                f"Expected vllm to be installed for VLLMColocated, but it is not ({error}), try "
                f"{installing('vllm')}, or VLLMServer with a vLLM that is installed elsewhere."
            ) from None
        with checkpoint(policy, self.shared) as directory:
            arguments = {
                "model": directory,
                "skip_tokenizer_init": True,
                "logprobs_mode": LOGPROBS_MODE,
                "gpu_memory_utilization": self.gpu_memory_utilization,
                "enable_sleep_mode": self.sleep,
            }
            return LLM(**(arguments | self.options))

    def _push(self, policy: CausalLMPolicy) -> None:
        if self.sleep:  # room for keys and values comes later, when the copies for the push are gone
            self._llm.wake_up(tags=["weights"])
        with checkpoint(policy, self.shared) as directory:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": directory})
        if self.sleep:
            self._llm.wake_up(tags=["kv_cache"])
        # Keys and values of shared prompts are those of the old weights.
        self._llm.reset_prefix_cache()

    def _answers(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Answer]:
        from vllm import SamplingParams

        results = self._llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            sampling_params=[SamplingParams(**request, detokenize=False) for request in requests],
            use_tqdm=False,
        )
        return [_answer(result.outputs[0]) for result in results]


def _answer(output: Any) -> Answer:
    tokens = list(output.token_ids)
    log_probs = [float(step[token].logprob) for step, token in zip(output.logprobs, tokens, strict=True)]
    return Answer(tokens, log_probs, str(output.finish_reason))

"""Conversations through a vLLM server: tokens in, tokens out, a request for each turn."""

import torch

from lightning_cgrpo.core.rollout import read
from lightning_cgrpo.samplers.vllm.server import VLLMServer
from tests.samplers.talks import Scripted, add, made, rolled


def test_tools_are_called_and_their_results_are_context(tmp_path, serve):
    policy = made(short_turns=True)
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    check_conversations(policy, VLLMServer(serve(tmp_path).address))


def check_conversations(policy, engine):
    sampler, rollouts = rolled(policy, Scripted(100, [add], max_turns=4, engine=engine))
    called = sampler.measured(rollouts)["called_add"].value
    given = read(rollouts.mask) & ~rollouts.mask
    assert torch.equal(given.any(-1), called > 0) and given.any()
    talks = [talk for row in rollouts.info["messages"] for talk in row]
    for talk, tokens in zip(talks, given.flatten(0, 1).sum(-1), strict=True):
        results = [message for message in talk if message["role"] == "tool"]
        assert bool(results) == bool(tokens) and all(message["content"] == "5" for message in results)
    with torch.no_grad():
        exact = policy(policy.examples(rollouts)).log_probs.view(rollouts.mask.shape)
    reported = rollouts.sampling_log_probs[rollouts.mask].to(exact)
    torch.testing.assert_close(reported, exact[rollouts.mask], rtol=0, atol=1e-4)

"""The loss against numbers computed by hand and against loops over the steps."""

import math

import pytest
import torch
from torch import Tensor

from lightning_cgrpo.grpo import losses
from lightning_cgrpo.grpo.losses import LossOptions, LossTerms, aggregation_weights
from lightning_cgrpo.grpo.surrogates import CISPO, SAPO, Clipped

AGGREGATIONS = ["token_mean", "sequence_mean", "sequence_sum", "constant"]


def grpo_loss(*tensors: Tensor, **arguments) -> LossTerms:
    """The loss, with its tensors and options in any order."""
    known = LossOptions.__dataclass_fields__
    options = {name: value for name, value in arguments.items() if name in known}
    others = {name: value for name, value in arguments.items() if name not in known}
    return losses.grpo_loss(*tensors, LossOptions(**options), **others)


def one(ratio: float, advantage: float, **arguments) -> tuple[float, float, LossTerms]:
    """Loss of a single step of that ratio, its gradient with respect to the log-probability, and all terms."""
    log_prob = torch.tensor([math.log(ratio) - 1.5], dtype=torch.float64, requires_grad=True)
    terms = grpo_loss(
        log_prob, torch.tensor([-1.5], dtype=torch.float64), torch.tensor([advantage]), torch.ones(1), **arguments
    )
    terms.loss.backward()
    return terms.loss.item(), log_prob.grad.item(), terms


def draw(*shape: int, seed: int = 0, requires_grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(requires_grad)


class TestClippedSurrogate:
    @pytest.mark.parametrize(
        ("ratio", "advantage", "loss", "gradient", "clipped"),
        [
            # Within the bounds, -r A; its derivative with respect to log pi is -r A too.
            (1.0, 2.0, -2.0, -2.0, 0),
            (1.1, 2.0, -2.2, -2.2, 0),
            (0.9, -2.0, 1.8, 1.8, 0),
            # A good answer has become likely enough: no more gradient.
            (1.5, 2.0, -2.4, 0.0, 1),
            # A good answer became unlikely: the full gradient, min takes r A.
            (0.5, 2.0, -1.0, -1.0, 0),
            # A bad answer has become unlikely enough.
            (0.5, -2.0, 1.6, 0.0, 1),
            # A bad answer became likely: the full gradient.
            (1.5, -2.0, 3.0, 3.0, 0),
            # Nothing to learn.
            (1.5, 0.0, 0.0, 0.0, 0),
            (0.5, 0.0, 0.0, 0.0, 0),
        ],
    )
    def test_by_hand(self, ratio: float, advantage: float, loss: float, gradient: float, clipped: int) -> None:
        got = one(ratio, advantage)
        assert got[:2] == (pytest.approx(loss, abs=1e-12), pytest.approx(gradient, abs=1e-12))
        assert got[2].clip_fraction == clipped


class TestSequenceRatio:
    MASK = torch.arange(4) < torch.tensor([[4], [1], [3], [0]])

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        log_probs, old = draw(4, 4, requires_grad=True), draw(4, 4, seed=1)
        advantages = draw(4, 1, seed=2).expand(4, 4)
        return log_probs, old, advantages, self.MASK * draw(4, 4, seed=3).abs()

    @pytest.mark.parametrize("surrogate", [Clipped(0.1, 0.2, 1.5), CISPO(1.1), SAPO()])
    def test_is_the_geometric_mean_over_an_answer(self, surrogate) -> None:
        log_probs, old, advantages, weights = self.inputs()
        terms = grpo_loss(log_probs, old, advantages, weights, surrogate=surrogate, sequence_ratio=True)
        terms.loss.backward()
        again = log_probs.detach().clone().requires_grad_()
        expected = torch.zeros(())
        for row, length in enumerate((4, 1, 3, 0)):
            if length:
                mean = (again[row, :length] - old[row, :length]).mean()
                value, _ = surrogate(mean, advantages[row, 0])
                expected = expected - weights[row].sum() * value
        expected.backward()
        assert terms.loss.item() == pytest.approx(expected.item())
        torch.testing.assert_close(log_probs.grad, again.grad)


class TestKL:
    @pytest.mark.parametrize("by_weight", [False, True])
    def test_the_exact_kl_is_in_the_loss_by_its_name(self, by_weight: bool) -> None:
        x, exact, weights = draw(4, 6), draw(4, 6, seed=1, requires_grad=True), draw(4, 6, seed=2).abs()
        reference = draw(4, 6, seed=3)
        estimate = (reference - x).exp() - (reference - x) - 1
        penalties = {"kl": torch.tensor(0.2)}
        terms = losses.grpo_loss(
            *(x, x, torch.zeros(4, 6), weights, LossOptions(kl_weight=0.3, exact_kl=by_weight)),
            reference_log_probs=reference, exact_kl=exact, penalties=penalties,
        )  # fmt: skip
        terms.loss.backward()
        of_exact, of_estimate = (0.5, 0.0) if by_weight else (0.2, 0.3)
        torch.testing.assert_close(exact.grad, of_exact * weights)
        assert terms.loss.item() == pytest.approx((weights * (of_exact * exact + of_estimate * estimate)).sum().item())
        assert terms.kl.item() == pytest.approx((weights * (exact if by_weight else estimate)).sum().item())

    @pytest.mark.parametrize("moved", [False, True])
    def test_which_divergence_it_descends(self, moved: bool) -> None:
        """By the sum over all actions. Corrected: KL(policy || reference), wherever the samples come from. Otherwise,
        before the first step: KL(reference || policy).
        """
        logits, reference = draw(7, requires_grad=True), draw(7, seed=1).log_softmax(-1)
        old = (logits.detach() + moved * draw(7, seed=2)).log_softmax(-1)

        def gradient(correct: bool) -> Tensor:
            logits.grad = None
            terms = grpo_loss(
                logits.log_softmax(-1),
                old,
                torch.zeros(7),
                old.exp(),
                reference_log_probs=reference,
                kl_weight=1.0,
                correct_kl=correct,
            )
            terms.loss.backward()
            policy = logits.detach().log_softmax(-1)
            if correct:
                assert terms.kl.item() == pytest.approx((policy.exp() * (policy - reference)).sum().item())
            return logits.grad

        again = logits.detach().clone().requires_grad_()
        policy = again.log_softmax(-1)
        (backward,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), again, retain_graph=True)
        (forward,) = torch.autograd.grad((reference.exp() * (reference - policy)).sum(), again)
        torch.testing.assert_close(gradient(True), backward)
        assert torch.allclose(gradient(False), forward) != moved
        assert not torch.allclose(gradient(False), backward, rtol=0.1)


class TestAggregation:
    LENGTHS = ((3, 5, 1), (2, 0, 5))

    @property
    def mask(self) -> Tensor:
        return torch.arange(5) < torch.tensor(self.LENGTHS)[..., None]

    @pytest.mark.parametrize("max_length", [None, 4, 16])
    @pytest.mark.parametrize("aggregation", AGGREGATIONS)
    def test_against_loops(self, aggregation: str, max_length: int | None) -> None:
        loss = draw(2, 3, 5)
        answers, tokens = 6, 16
        expected = 0.0
        for b in range(2):
            for g in range(3):
                length = self.LENGTHS[b][g]
                total = sum(loss[b, g, t].item() for t in range(length))
                expected += {
                    "token_mean": total / tokens,
                    "sequence_mean": total / max(length, 1) / answers,
                    "sequence_sum": total / answers,
                    "constant": total / (answers * (max_length or 5)),
                }[aggregation]
        weights = aggregation_weights(self.mask, aggregation, max_length)
        assert weights.shape == self.mask.shape and weights[~self.mask].eq(0).all()
        assert (weights.double() * loss).sum().item() == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("aggregation", AGGREGATIONS)
    def test_processes_share_one_loss(self, aggregation: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each process's weights, averaged over processes as their gradients are, are those of a single process."""
        whole = aggregation_weights(self.mask, aggregation)
        lengths = torch.tensor(self.LENGTHS).double()
        totals = torch.stack([torch.tensor(6.0).double(), lengths.sum()])
        monkeypatch.setattr("lightning_cgrpo.grpo.losses.all_sum", lambda tensor: totals)
        monkeypatch.setattr("lightning_cgrpo.grpo.losses.world", lambda: (0, 2))
        parts = [aggregation_weights(self.mask[rank : rank + 1], aggregation) for rank in range(2)]
        assert torch.allclose(torch.cat(parts) / 2, whole, rtol=1e-6)


OPTIONS = {
    "default": {},
    "two-sided": {"surrogate": Clipped(limit=2.0)},
    "CISPO": {"surrogate": CISPO()},
    "SAPO": {"surrogate": SAPO()},
    "sequence": {"sequence_ratio": True, "correct_kl": True},
    "sampling": {"sampling_ratios": "s"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_garbage_in_the_padding_changes_nothing(garbage: float, options: dict) -> None:
    mask = torch.arange(6) < torch.tensor([[6, 2, 4], [1, 6, 3]])[..., None]
    weights = aggregation_weights(mask, "sequence_mean").double()
    tensors = {name: draw(2, 3, 6, seed=seed) for seed, name in enumerate(("new", "old", "a", "ref", "h", "s"))}

    def run(padding: float | None) -> tuple[list[float], list[Tensor]]:
        filled = {n: x if padding is None else torch.where(mask, x, padding) for n, x in tensors.items()}
        new, entropy = filled["new"].clone().requires_grad_(), filled["h"].clone().requires_grad_()
        given = {name: filled[value] if isinstance(value, str) else value for name, value in options.items()}
        terms = grpo_loss(
            new,
            filled["old"],
            filled["a"],
            weights,
            **given,
            reference_log_probs=filled["ref"],
            kl_weight=0.1,
            entropy=entropy,
            entropy_weight=0.01,
        )
        terms.loss.backward()
        values = [terms.loss, terms.kl, terms.entropy, terms.clip_fraction]
        return [value.item() for value in values], [new.grad, entropy.grad]

    clean_values, clean_gradients = run(None)
    values, gradients = run(garbage)
    assert values == clean_values
    for dirty, clean in zip(gradients, clean_gradients, strict=True):
        assert torch.equal(dirty, clean) and dirty[~mask].eq(0).all() and dirty[mask].ne(0).any()

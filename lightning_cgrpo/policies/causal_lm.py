"""Causal language models of Hugging Face transformers as policies."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn
from torch import Tensor, nn

from lightning_cgrpo.core.errors import UserError, expect
from lightning_cgrpo.core.rollout import NO_INPUTS, Examples, Rollouts
from lightning_cgrpo.policies.adapters import LoRA, with_adapters
from lightning_cgrpo.policies.comparison import check_causal, choose
from lightning_cgrpo.policies.computations.computation import Computation
from lightning_cgrpo.policies.computations.packed import packed_states
from lightning_cgrpo.policies.computations.padded import PaddedRows
from lightning_cgrpo.policies.continuation import Continuation, PromptBatch
from lightning_cgrpo.policies.model_files import origin
from lightning_cgrpo.policies.padded_prompts import PaddedPrompts
from lightning_cgrpo.policies.policy import PolicyOutput, Reference
from lightning_cgrpo.policies.pretrained import SET_BY_POLICY, check_unquantized, load_pretrained, stop_tokens
from lightning_cgrpo.policies.recomputing import recomputable_layers, recompute_activations
from lightning_cgrpo.policies.rendering import end_of_turn
from lightning_cgrpo.policies.shared_prefix.attention import NAME as PACKED
from lightning_cgrpo.policies.shared_prefix.attention import Attend, no_mask
from lightning_cgrpo.policies.shared_prefix.support import length_limit
from lightning_cgrpo.policies.text_policy import TextPolicy
from lightning_cgrpo.policies.written_models import write

if TYPE_CHECKING:
    from transformers import DynamicCache


class CausalLMPolicy(TextPolicy):
    """Chooses the next token, given a prompt and the answer's earlier tokens.

    The training unit is the whole answer. The model stays in eval mode during training, because dropout would move
    ratios away from 1.

    Args:
        model: a directory, or a name on the Hugging Face hub (safetensors only, no code).
        temperature: of log-probabilities, entropies and samples.
        dtype: of the weights; None for the saved dtype. Training needs float32 weights, because rounding to bfloat16
            swallows AdamW's small steps. "bfloat16" suits the frozen weights of `lora`, and evaluation.
        lora: train low-rank adapters only; needs the extra `lora`.
        gradient_checkpointing: recompute activations: less memory, a third more time.
        max_prompt_tokens: longer prompts are an error; by default no limit.
        share_prompts: compute each group's prompt once if the model allows it.
        chat_template_kwargs: variables of the chat template, such as ``enable_thinking: false``.
        model_init_kwargs: further arguments of transformers' ``from_pretrained``, such as ``revision``, which the
            tokenizer gets too.
    """

    def __init__(
        self,
        model: str,
        temperature: float = 1.0,
        dtype: str | None = "float32",
        lora: LoRA | None = None,
        gradient_checkpointing: bool = False,
        max_prompt_tokens: int | None = None,
        share_prompts: bool = True,
        chat_template_kwargs: dict[str, Any] | None = None,
        model_init_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, max_prompt_tokens, chat_template_kwargs)
        self.model_init_kwargs = dict(model_init_kwargs or {})
        taken = sorted(SET_BY_POLICY & self.model_init_kwargs.keys())
        if taken:
            raise UserError(
                f"Expected model_init_kwargs without {taken[0]}, which the policy sets, but got it, try the policy's "
                "own arguments, or CausalLMPolicy.from_model."
            )
        expect(temperature > 0, "temperature", "greater than 0", temperature)
        is_dtype = dtype is None or isinstance(getattr(torch, dtype, None), torch.dtype)
        expect(is_dtype, "dtype", "a dtype of torch, such as float32 or bfloat16", dtype)
        self.temperature = temperature
        self.dtype = dtype
        self.lora = lora
        self.gradient_checkpointing = gradient_checkpointing
        self.share_prompts = share_prompts
        # Set by `load`.
        self.stop_tokens: tuple[int, ...] = ()
        self.turn_end: int | None = None  # with which the chat template ends a turn
        self.computation: Computation = PaddedRows()
        self._arguments: frozenset[str] = frozenset()  # of the network's forward

    @classmethod
    def from_model(cls, model: nn.Module, tokenizer: Any, **options: Any) -> CausalLMPolicy:
        policy = cls(type(model).__name__, dtype=None, **options)
        policy.model = model
        policy.tokenizer = tokenizer
        policy.load()
        return policy

    def load(self) -> None:
        if self.stop_tokens:
            return
        self._read_once()
        check_unquantized(self.model, self.name)
        stops = stop_tokens(self.model, self.tokenizer)
        self.vocabulary_size = len(self.model.get_input_embeddings().weight)
        ends = self._with_end_of_turn(stops)
        padding = self.tokenizer.pad_token_id
        if padding is None or padding >= self.vocabulary_size:
            padding = stops[0]
        self.pad_token = padding
        self._arguments = frozenset(inspect.signature(self.network.forward).parameters)
        if self.gradient_checkpointing:
            recompute_activations(self.model)
        if self.lora is not None:
            self.model = with_adapters(self.model, self.lora)
        self.train(self.training)
        warning = choose(self, self.share_prompts)
        if warning is not None:
            rank_zero_warn(warning)
        self.stop_tokens = ends  # last, so that a failed load is repeated

    def _with_end_of_turn(self, stops: tuple[int, ...]) -> tuple[int, ...]:
        """The stop tokens, with the chat template's end of a turn, which the files of a base model may not name."""
        end = end_of_turn(self.tokenizer, self.chat_template_kwargs, stops)
        if end is None or not 0 <= end < self.vocabulary_size:
            return stops
        self.turn_end = end
        if end in stops:
            return stops
        ends = tuple(sorted((*stops, end)))
        self.model.generation_config.eos_token_id = list(ends)  # exported answers end as trained ones
        rank_zero_info(
            f"Answers also end at {self.tokenizer.convert_ids_to_tokens(end)}, with which the chat template of "
            f"'{self.name}' ends a turn, although its files name no such end token."
        )
        return ends

    def _read_once(self) -> None:
        if self.model is None:
            self.model, self.tokenizer = self.pretrained()
            if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
                self.origin = origin(self.name, self.model_init_kwargs.get("revision"))
                rank_zero_info(f"Starting weights: {self.origin}.")

    def pretrained(self) -> tuple[Any, Any]:
        """The model and tokenizer of this name, see `load_pretrained`."""
        return load_pretrained(self.name, self.dtype, "AutoModelForCausalLM", check_causal, **self.model_init_kwargs)

    def train(self, mode: bool = True) -> CausalLMPolicy:
        super().train(mode)
        if self.model is not None:
            self.model.eval()
        return self

    @property
    def network(self) -> Any:
        """The transformers model with its adapters, without peft's wrapper."""
        if hasattr(self.model, "get_base_model"):
            return self.model.get_base_model()
        return self.model

    @property
    def base(self) -> dict[str, Tensor]:
        if not hasattr(self.model, "get_base_model"):
            return {}
        weights = self.named_parameters(remove_duplicate=False)
        return {name: weight for name, weight in weights if not weight.requires_grad and ".lora_" not in name}

    @property
    def context_length(self) -> int | None:
        """Positions for prompt and answer; None if the configuration gives no limit.

        A `length_limit` is the limit too, because the probabilities of a text's earlier tokens would change once the
        text grows past it.
        """
        config = self.model.config
        positions = getattr(config.get_text_config(), "max_position_embeddings", None)
        limits = [limit for limit in (positions, length_limit(config)) if limit is not None]
        return min(limits, default=None)

    def room(self, answer: int) -> float:
        """Most tokens of a prompt before an answer of `answer` tokens, by `max_prompt_tokens` and the context."""
        context = self.context_length or math.inf
        return min(self.max_prompt_tokens or math.inf, context - answer)

    # --- tokens to probabilities

    def layers(self) -> list[nn.Module]:
        return recomputable_layers(self.model)

    def placeholder(self) -> Examples:
        token = torch.tensor([[self.stop_tokens[0]]], device=self.device)
        mask = torch.ones_like(token, dtype=torch.bool)
        return Examples({}, token, mask, torch.zeros_like(token[0]), {"prompt_ids": token, "prompt_mask": mask})

    def examples(self, rollouts: Rollouts) -> Examples:
        """N = B G answers in the order (b, g); `shared` holds the prompts' inputs."""
        prompts, group_size, _ = rollouts.actions.shape
        group = torch.arange(prompts, device=rollouts.actions.device).repeat_interleave(group_size)
        return Examples({}, rollouts.actions.flatten(0, 1), rollouts.mask.flatten(0, 1), group, rollouts.inputs)

    @property
    def shares_prompts(self) -> bool:
        return self.computation.shares_prompts

    @property
    def pads(self) -> bool:
        """A pass has rows of several lengths."""
        return self.computation.pads

    @property
    def caches(self) -> bool:
        """Generation keeps keys, values and states."""
        return self.computation.caches

    def forward(self, examples: Examples, reference: PolicyOutput | None = None) -> PolicyOutput:
        """Log-probabilities, entropies and KL ``[N, T]``, at least float32; 0 in columns without a token."""
        return self.computation.log_probs(self, examples, reference)

    def continuation(self, prompts: PromptBatch) -> Continuation:
        """Next-token logits of growing answers to each prompt."""
        return self.computation.continuation(self, prompts)

    def packed_states(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """Last hidden states ``[S, D]`` before the policy's S tokens, and the tokens' places ``[S]`` in ``[N T]``."""
        return packed_states(self, examples)

    def padded_logits(self, examples: Examples) -> tuple[Tensor, Tensor]:
        """Logits ``[N, steps, V]`` and tokens ``[N, steps]`` of the answers, up to the longest."""
        computation = self.computation if isinstance(self.computation, PaddedRows) else PaddedRows()
        rows = computation.rows(self, examples, states=False)
        return rows.outputs, rows.tokens

    # --- passes of the network, which computations are made of

    def new_cache(self) -> DynamicCache | None:
        """Transformers' cache; None if generation has none."""
        from transformers import DynamicCache

        if not self.caches:
            return None
        if self._cache_argument is None:
            raise TypeError("its forward takes no cache")
        return DynamicCache(config=self.model.config)

    @property
    def _cache_argument(self) -> str | None:
        # Transformers 5.24 calls every model's cache `cache`.
        for name in ("cache", "past_key_values", "cache_params"):
            if name in self._arguments:
                return name
        return None

    def row_positions(self, ids: Tensor, mask: Tensor, prompts: PaddedPrompts | None) -> Tensor:
        """Positions ``[N, S]`` (``[A, N, S]`` with images, of A axes) of the tokens of padded rows ``[N, S]``."""
        return (mask.long().cumsum(-1) - 1).clamp(min=0)

    def logits(
        self,
        ids: Tensor,
        mask: Tensor,
        keep: int,
        cache: DynamicCache | None = None,
        positions: Tensor | None = None,
        prompts: PaddedPrompts | None = None,
        states: bool = False,
    ) -> Tensor:
        """Logits ``[N, keep, V]`` after the last `keep` tokens of `ids` ``[N, S]``, before the temperature.

        The mask ``[N, C + S]`` includes the C tokens in the cache.

        Args:
            positions: of `ids`, as of `row_positions`; by default counted by the mask.
            states: return the last hidden states ``[N, keep, D]`` instead.
        """
        if positions is None:
            positions = CausalLMPolicy.row_positions(self, ids, mask, prompts)[:, -ids.shape[1] :]
        arguments: dict[str, Any] = {"input_ids": ids, "use_cache": cache is not None}
        if self._cache_argument is not None:
            arguments[self._cache_argument] = cache
        if self.pads:  # otherwise transformers counts positions
            arguments |= {"attention_mask": mask.long(), "position_ids": positions}
        if not states:
            arguments["logits_to_keep"] = keep
        arguments = {name: value for name, value in arguments.items() if name in self._arguments}
        network = self.network.base_model if states else self.model
        output = network(**arguments)
        rows: Tensor = output.last_hidden_state if states else output.logits
        return rows[:, -keep:]

    def illustrated(self, ids: Tensor, draw: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """Made-up prompts ``[B, S]`` with further inputs drawn for the comparison at loading; {} for text alone."""
        return ids, {}

    def prompt_positions(self, ids: Tensor, lengths: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        """Positions ``[A, S]`` (A axes) of the tokens ``[S]`` of n prompts; None for 0, 1, 2, … in each prompt."""
        return None

    def hidden(
        self, ids: Tensor, positions: Tensor, attend: Attend, inputs: Mapping[str, Tensor] = NO_INPUTS
    ) -> Tensor:
        """Last hidden states ``[S, D]`` of a packed row of tokens ``ids [S]`` (`Layout`), at positions ``[A, S]``."""
        output = self.network.base_model(
            input_ids=ids[None],
            attention_mask=no_mask(ids.device),
            position_ids=positions,
            use_cache=False,
            **{PACKED: attend},
        )
        return output.last_hidden_state.squeeze(0)

    @property
    def output_weight(self) -> Tensor:
        """Maps hidden states to logits, ``[V, D]``."""
        return self.network.get_output_embeddings().weight

    # --- copies

    def reference(self) -> Reference:
        if self.lora is None:
            return super().reference()
        return _BaseModel(self)

    def save_pretrained(
        self, directory: str | Path, merge: bool = False, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        """Write model and tokenizer for transformers; of adapted models the adapters alone, in peft's format.

        Args:
            merge: write all weights with the adapters added.
            weights: of a sharded policy, see `sharding.full_weights`.
        """
        self._check_loaded()
        if weights is not None:
            weights = {name.removeprefix("model."): weight for name, weight in weights.items()}
        write(self.model, self.tokenizer, directory, merge, weights)


class _BaseModel:
    """A policy with its adapters off, as reference; no `nn.Module`, because the parameters belong to the policy."""

    def __init__(self, policy: CausalLMPolicy) -> None:
        self._policy = policy

    @torch.no_grad()
    def __call__(self, examples: Examples) -> PolicyOutput:
        with self._policy.model.disable_adapter():
            return self._policy(examples)

"""ms-swift's schedulers of several turns: the base classes of plug-ins, and two that users refer to by name.

A scheduler receives requests, which have `messages`, `data_dict` (the columns of the row) and `uuid`, and choices,
which have `message.content`, `token_ids`, `finish_reason` and `logprobs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any


@dataclass
class RolloutInferRequest:
    """A conversation in progress."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    data_dict: dict[str, Any] = field(default_factory=dict)
    uuid: str = ""
    tools: Any = None
    images: list[str] = field(default_factory=list)


class RolloutScheduler:
    """The interface of a scheduler."""

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, *_: Any, **more: Any) -> None:
        self.infer_engine, self.max_turns, self.tokenizer = infer_engine, max_turns, more.get("tokenizer")

    async def on_trajectory_start(self, requests: list[Any]) -> None:
        """Called before the first answer; it may change `messages`."""

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        """Called after an answer, which is the last message; it may return `done` and `rollout_infos`."""
        return {}


class MultiTurnScheduler(RolloutScheduler):
    """A scheduler that decides whether a conversation has ended, and how it continues."""

    def check_finished(self, infer_request: Any, response_choice: Any, current_turn: int) -> bool:
        """Whether this answer is the last one."""
        was_last = self.max_turns is not None and current_turn >= self.max_turns
        return was_last or response_choice.finish_reason == "length"

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        """The next input of the model: a dict with `infer_request`, which contains the new messages."""
        raise NotImplementedError("step is not written")

    @staticmethod
    def _extract_logprobs_from_choice(response_choice: Any) -> list[float]:
        return [token["logprob"] for token in response_choice.logprobs["content"]]


class MathTipsScheduler(MultiTurnScheduler):
    """Continues a wrong answer once, at the point before its result, with an expression of doubt."""

    tips_prompt = "But wait... It seems I made a mistake,"

    def check_finished(self, infer_request: Any, response_choice: Any, current_turn: int) -> bool:
        from npukit.rl.rewards.functions import accuracy

        answer = infer_request.messages[-1]["content"]
        if self.tips_prompt in answer or accuracy([answer], [infer_request.data_dict["solution"]])[0] == 1:
            return True
        return super().check_finished(infer_request, response_choice, current_turn)

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        assert self.tokenizer
        text, ids = response_choice.message.content, list(response_choice.token_ids)
        end = min((text.index(mark) for mark in ("<answer>", "</think>") if mark in text), default=len(text))
        kept = next((n for n in range(len(ids) + 1) if len(self.tokenizer.decode(ids[:n])) >= end), len(ids))
        tips = self.tokenizer.encode(self.tips_prompt, add_special_tokens=False)
        infer_request.messages[-1]["content"] = text[:end] + self.tips_prompt
        mask = [1] * kept + [0] * len(tips)
        ids = ids[:kept] + tips
        return {"infer_request": infer_request, "response_token_ids": ids, "response_loss_mask": mask}


class Env:
    """A world in which a model acts."""

    def __init__(self, env_config: Any) -> None:
        self.env_config = env_config

    async def reset(self, config: Any) -> tuple[str, dict[str, Any], str]:
        """Its first observation, information and system message."""
        raise NotImplementedError("reset is not written")

    async def step(self, action: list[dict[str, Any]]) -> tuple[str, float, bool, dict[str, Any]]:
        """The next observation, the reward, whether it is the end, and information."""
        raise NotImplementedError("step is not written")

    async def close(self) -> None:
        """Called when it is no longer needed."""


class GYMScheduler(MultiTurnScheduler):
    """Conversations with environments. The sum of an environment's rewards is the answer's reward."""

    def __init__(self, infer_engine: Any = None, max_turns: int | None = None, **more: Any) -> None:
        super().__init__(infer_engine, max_turns, **more)
        self.gym_env_name = more.get("gym_env")
        self._envs: dict[str, Any] = {}
        self._total_rewards: dict[str, float] = {}
        self._step_rewards: dict[str, list[float]] = {}
        self._pending_obs: dict[str, str | None] = {}

    async def on_trajectory_start(self, requests: list[Any]) -> None:
        await asyncio.gather(*(self._reset(request) for request in requests))

    async def _reset(self, request: Any) -> None:
        env = self._create_env(request.data_dict.get("env_config") or {})
        observation, _, system = await env.reset(request)
        asked = {"role": "user", "content": observation}
        request.messages = [{"role": "system", "content": system}, asked] if system else [asked]
        self._envs[request.uuid], self._total_rewards[request.uuid] = env, 0.0

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        uuid = infer_request.uuid
        observation, reward, done, _ = await self._envs[uuid].step(deepcopy(infer_request.messages))
        return await self._record_step(uuid, observation, reward, done)

    async def _record_step(self, uuid: str, observation: Any, reward: float, done: bool) -> dict[str, Any]:
        """Record the result of an environment's step."""
        self._total_rewards[uuid] += float(reward)
        self._step_rewards.setdefault(uuid, []).append(float(reward))
        self._pending_obs[uuid] = None if done else observation
        infos = {"total_reward": self._total_rewards[uuid], "step_rewards": list(self._step_rewards[uuid])}
        if done:
            await self._close_and_remove(uuid)
        return {"done": done, "rollout_infos": {**infos, "gym_done": done}}

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        infer_request.messages.append({"role": "user", "content": self._pending_obs.pop(infer_request.uuid)})
        return {"infer_request": infer_request}

    async def _close_and_remove(self, uuid: str) -> None:
        with contextlib.suppress(Exception):
            closing = self._envs.pop(uuid).close()
            await closing if inspect.isawaitable(closing) else None
        for kept in (self._total_rewards, self._step_rewards, self._pending_obs):
            kept.pop(uuid, None)

    def _create_env(self, env_config: dict[str, Any]) -> Any:
        name = env_config.get("name", self.gym_env_name)
        if name not in ENVS:
            raise ValueError(f"there is no environment {name}: there are {', '.join(ENVS) or 'none'}")
        return ENVS[name](env_config)


ENVS: dict[str, Any] = {}

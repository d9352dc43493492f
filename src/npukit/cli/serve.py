"""npukit serve"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import CardOption, DeviceOption, JsonOption
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted
from npukit.report.terminal import say

if TYPE_CHECKING:
    from npukit.llm.config.use import Use

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and exit.")]
ONLY_VLLM = ("python", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "extra")


def serve(
    context: typer.Context,
    use: Use,
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    dry_run: DryRun = False,
    json: JsonOption = False,
) -> None:
    """Serve a language model with OpenAI's API and a chat page.

    Clients choose an adapter by its name, as if it were a model. The sampling options are defaults for requests that do
    not set them. With --engine vllm the same options start vLLM (on NPUs, vllm-ascend) from another environment, and
    unknown options are passed on to it.

    Examples:
        npukit serve run --served-model-name my-model
        npukit serve Qwen/Qwen2-0.5B-Instruct --host 0.0.0.0 --api-key KEY --max-model-len 8192
        npukit serve run --engine vllm --python /opt/vllm/bin/python --dry-run
    """
    if json and not dry_run:
        raise NpukitError("A server has no result: --json goes with --dry-run.")
    use = use.ready_to_serve()
    if use.engine.engine == "vllm":
        _start_vllm(use, device, tuple(context.args), dry_run, json)
        return
    defaults = type(use.engine)()
    others = [
        f"--{name.replace('_', '-')}" for name in ONLY_VLLM if getattr(use.engine, name) != getattr(defaults, name)
    ]
    if words := [*context.args, *others]:
        raise NpukitError(f"{words[0]} is for vLLM only: add --engine vllm, or leave it out.")
    if dry_run:
        from npukit.report.json import to_json

        hidden = use.serve.model_copy(update={"api_key": ("…",) * len(use.serve.api_key)})
        shown = use.model_copy(update={"serve": hidden})
        show(shown, lambda: to_json(shown), json)
        return
    from npukit.inference.server.start import check_packages
    from npukit.inference.start import start
    from npukit.launch.devices import choose

    check_packages()
    start("serve", use, choose(device, 1, card))


def _start_vllm(use: Use, device: Wanted, words: tuple[str, ...], dry_run: bool, json: bool) -> None:
    from npukit.inference.server.vllm import check_environment, vllm_command
    from npukit.launch.devices import choose
    from npukit.launch.run import become

    if use.engine.python is None:
        raise NpukitError("--engine vllm needs --python: the Python of the environment that vLLM is installed in.")
    chosen = choose(device, suppose=dry_run)
    command = vllm_command(use, use.engine.python, chosen.kind == "npu", os.environ, words)
    if dry_run:
        show({"argv": command.argv, "variables": command.variables}, str(command), json)
        return
    version = check_environment(use.engine.python)
    say(f"starting vLLM {version}: {command}")
    become(list(command.argv), {**os.environ, **command.variables})

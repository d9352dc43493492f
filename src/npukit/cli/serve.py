"""npukit serve"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from npukit.cli.options import CardOption, DeviceOption
from npukit.cli.using import (
    DtypeOption,
    LongestOption,
    LookupOption,
    MinPOption,
    ModelArgument,
    PicklesOption,
    RemoteCodeOption,
    RepetitionOption,
    RowsOption,
    SystemOption,
    TemperatureOption,
    TemplateOption,
    ThinkingOption,
    TopKOption,
    TopPOption,
    sampling,
)
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

if TYPE_CHECKING:
    from npukit.inference.server.options import ServeOptions
    from npukit.inference.server.vllm import Parallel

Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="[NAME=]PATH",
        show_default=False,
        help="LoRA adapter that clients choose by NAME; without a name it is merged into the model. Repeatable.",
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name", "--name", help="Name of the model for clients. Repeatable.", show_default="its folder's"
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--api-key", envvar="NPUKIT_API_KEY", help="Key clients must send. Repeatable.", show_default=False),
]
NoKey = Annotated[bool, typer.Option("--no-key", help="Serve without a key on an address that others can reach.")]
Cors = Annotated[
    list[str] | None,
    typer.Option(metavar="ORIGIN", help="Let web pages of this origin use the API. Repeatable.", show_default=False),
]
TlsKey = Annotated[Path | None, typer.Option("--ssl-keyfile", exists=True, help="Key for HTTPS.", show_default=False)]
TlsCertificate = Annotated[
    Path | None, typer.Option("--ssl-certfile", exists=True, help="Certificate for HTTPS.", show_default=False)
]
ChangeAdapters = Annotated[
    bool, typer.Option("--allow-adapter-changes", help="Let clients load and remove adapters while it runs.")
]
MaxBody = Annotated[float, typer.Option("--max-body", min=0.001, help="Largest request, in MiB.")]
MaxWaiting = Annotated[
    int, typer.Option("--max-waiting", min=1, help="Answers that may run or wait; further requests get status 429.")
]
MaxLogprobs = Annotated[int, typer.Option("--max-logprobs", min=0, help="Most logprobs a request may ask for.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Time limit of an answer in seconds; it is cut off there.")]
Drain = Annotated[float, typer.Option(min=0, help="Seconds that running answers may take after SIGTERM.")]
Memory = Annotated[
    float, typer.Option("--memory", "--gpu-memory-utilization", min=0.05, max=1.0, help="Share of the memory to use.")
]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="Do not capture decoding as graphs.")]
EngineName = Annotated[Literal["npukit", "vllm"], typer.Option("--engine", help="Engine that generates the tokens.")]
Python = Annotated[Path | None, typer.Option(help="vllm: Python of its environment.", show_default=False)]
Tensor = Annotated[
    int, typer.Option("--tensor-parallel-size", min=1, help="vllm: tensor parallelism over this many cards.")
]
Pipeline = Annotated[
    int, typer.Option("--pipeline-parallel-size", min=1, help="vllm: pipeline parallelism over this many cards.")
]
Data = Annotated[int, typer.Option("--data-parallel-size", min=1, help="vllm: data parallelism over this many copies.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be started, and exit.")]


def serve(
    context: typer.Context,
    model: ModelArgument,
    adapter: Adapters = None,
    name: Names = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: Keys = None,
    no_key: NoKey = False,
    cors: Cors = None,
    ssl_keyfile: TlsKey = None,
    ssl_certfile: TlsCertificate = None,
    allow_adapter_changes: ChangeAdapters = False,
    max_body: MaxBody = 16,
    max_waiting: MaxWaiting = 512,
    max_logprobs: MaxLogprobs = 20,
    timeout: Timeout = 600,
    drain: Drain = 30,
    device: DeviceOption = Wanted.auto,
    card: CardOption = DEFAULT_CARD,
    max_model_len: LongestOption = None,
    max_num_seqs: RowsOption = 256,
    prompt_lookup: LookupOption = 0,
    memory: Memory = 0.9,
    dtype: DtypeOption = "auto",
    enforce_eager: Eager = False,
    chat_template: TemplateOption = None,
    system: SystemOption = None,
    enable_thinking: ThinkingOption = None,
    trust_remote_code: RemoteCodeOption = False,
    allow_pickles: PicklesOption = False,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionOption = None,
    engine: EngineName = "npukit",
    python: Python = None,
    tensor_parallel_size: Tensor = 1,
    pipeline_parallel_size: Pipeline = 1,
    data_parallel_size: Data = 1,
    dry_run: DryRun = False,
) -> None:
    """Serve a language model with OpenAI's API and a chat page.

    Clients choose an adapter by its name, as if it were a model. The sampling options are defaults for requests that do
    not set them. With --engine vllm the same options start vLLM (on NPUs, vllm-ascend) from another environment, and
    unknown options are passed on to it.
    """
    from npukit.inference.server.options import ServeOptions, ServerOptions
    from npukit.inference.server.vllm import Parallel

    server = ServerOptions(
        host=host,
        port=port,
        names=tuple(name or [Path(model).name or model]),
        api_keys=tuple(api_key or ()),
        no_key=no_key,
        cors=tuple(cors or ()),
        tls_key=ssl_keyfile,
        tls_certificate=ssl_certfile,
        change_adapters=allow_adapter_changes,
        max_body=int(max_body * 2**20),
        max_waiting=max_waiting,
        max_logprobs=max_logprobs,
        timeout=timeout,
        drain=drain,
    )
    server.check()
    adapters, merged = _adapters(adapter or [], server.names)
    options = ServeOptions(
        model=model,
        adapters=adapters,
        merged=merged,
        dtype=dtype,
        template=chat_template,
        system=system,
        enable_thinking=enable_thinking,
        trust_remote_code=trust_remote_code,
        allow_pickles=allow_pickles,
        longest=max_model_len,
        rows=max_num_seqs,
        lookup=prompt_lookup,
        memory=memory,
        eager=enforce_eager,
        sampling=sampling(temperature, top_p, top_k, min_p, repetition_penalty),
        server=server,
    )
    parallel = Parallel(tensor_parallel_size, pipeline_parallel_size, data_parallel_size)
    if engine == "vllm":
        _start_vllm(options, python, parallel, device, tuple(context.args), dry_run)
    elif context.args or python or parallel != Parallel():
        word = context.args[0] if context.args else "Parallelism over several cards, as --python,"
        raise NpukitError(f"{word} is for vLLM only: add --engine vllm, or leave it out.")
    elif dry_run:
        shown = replace(options, server=replace(server, api_keys=("…",) * len(server.api_keys)))
        print(json.dumps(asdict(shown), indent=2, default=str, ensure_ascii=False))
    else:
        _start(options, device, card)


def _adapters(given: list[str], names: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Those that clients choose, and those that are merged into the model."""
    chosen: dict[str, str] = {}
    merged = []
    for each in given:
        name, equals, path = each.partition("=")
        if not equals:
            merged.append(each)
        elif not name or not path:
            raise NpukitError(f"--adapter {each}: write NAME=PATH.")
        elif name in chosen or name in names:
            raise NpukitError(f"--adapter {each}: there is a model {name!r} already; give it another name.")
        else:
            chosen[name] = path
    return chosen, tuple(merged)


def _start(options: ServeOptions, device: Wanted, card: str) -> None:
    from npukit.inference.server.process import environment
    from npukit.inference.server.start import check_packages
    from npukit.launch.devices import choose
    from npukit.launch.run import run

    check_packages()
    chosen = choose(device, 1, card)
    run(["-m", "npukit.inference.server.process"], {**chosen.environment(), **environment(options)})


def _start_vllm(
    options: ServeOptions,
    python: Path | None,
    parallel: Parallel,
    device: Wanted,
    words: tuple[str, ...],
    dry_run: bool,
) -> None:
    from npukit.inference.server.vllm import check_environment, vllm_command
    from npukit.launch.devices import choose
    from npukit.launch.run import become

    if python is None:
        raise NpukitError("--engine vllm needs --python: the Python of the environment that vLLM is installed in.")
    chosen = choose(device, suppose=dry_run)
    command = vllm_command(options, python, parallel, chosen.kind == "npu", os.environ, words)
    if dry_run:
        print(command)
        return
    version = check_environment(python)
    print(f"npukit: starting vLLM {version}: {command}", file=sys.stderr, flush=True)
    become(list(command.argv), {**os.environ, **command.variables})

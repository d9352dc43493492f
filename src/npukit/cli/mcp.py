"""npukit mcp"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npukit import __version__
from npukit.errors import NpukitError

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.types import CallToolResult

    from npukit.cli.tools import Tools


def mcp(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...", help="Folders whose files the tools may read.", show_default="the current folder"
        ),
    ] = None,
    allow_write: Annotated[
        bool, typer.Option("--allow-write", help="Let tools such as migrate change files in these folders.")
    ] = False,
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="Let tools such as verify run the code of projects.")
    ] = False,
) -> None:
    """Offer npukit's commands to agents as MCP tools.

    An agent starts it and communicates over standard input and output. Each tool is an npukit command: it takes the
    same options and returns its --json output. Tools are read-only unless you allow more.

    Examples:
        npukit mcp ~/project  # the server command for the agent's settings
        npukit mcp ~/project --allow-write --allow-run
    """
    from npukit.packages import require

    require("mcp", extra="mcp")
    import anyio
    from mcp.server.stdio import stdio_server

    from npukit.cli.tools import Tools

    opened = tuple(folder.expanduser().resolve() for folder in folders or [Path.cwd()])
    if missing := [folder for folder in opened if not folder.is_dir()]:
        raise NpukitError(f"There is no folder {missing[0]}.")
    server = server_of(Tools(opened, allow_write, allow_run))

    async def serve() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


def server_of(tools: Tools) -> Server[Any]:
    """A server that offers these tools."""
    from mcp.server import Server
    from mcp.types import CallToolRequestParams, ListToolsResult, Tool, ToolAnnotations

    from npukit.cli import npukit

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        read_only = ToolAnnotations(read_only_hint=not (tools.allow_write or tools.allow_run))
        return ListToolsResult(
            tools=[
                Tool(
                    name=name,
                    description=tools.description(name),
                    input_schema=tools.schema(name),
                    annotations=read_only,
                )
                for name in tools.commands
            ]
        )

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        return await _called(tools, params.name, params.arguments or {})

    return Server(
        "npukit",
        version=__version__,
        instructions=npukit.__doc__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _called(tools: Tools, name: str, arguments: dict[str, Any]) -> CallToolResult:
    """Run a tool; its --json output is the result, even if it failed."""
    import os

    import anyio
    from mcp.types import CallToolResult, TextContent

    from npukit.launch.run import script_arguments, tied
    from npukit.report.json import to_json
    from npukit.report.result import data_of, envelope, error_data

    try:
        words = tools.command(name, arguments)
    except NpukitError as error:
        answer = envelope(f"npukit {name}", None, error.exit_code, data_of(error))
    else:
        command = [sys.executable, *script_arguments(["-m", "npukit.__main__", *words], auto=False)]
        done = await anyio.run_process(
            command,
            stdin=subprocess.DEVNULL,
            stderr=None,
            check=False,
            cwd=tools.folders[0],
            env={**tied(os.environ), "NPUKIT_LANG": "en"},
        )
        crashed = error_data("internal", f"It ended with exit code {done.returncode}.")
        answer = json.loads(done.stdout or to_json(envelope(f"npukit {name}", None, done.returncode, crashed)))
    content: list[Any] = [TextContent(type="text", text=to_json(answer))]
    return CallToolResult(content=content, structured_content=answer, is_error="error" in answer)

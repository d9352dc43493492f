"""The MCP server: an agent gets the verbs as tools, with the leave and the folders that the user gave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from npukit.cli.tools import EXPOSED, Tools
from npukit.errors import NpukitError

SCRIPT = "import torch\nmodel = torch.nn.Linear(2, 2).cuda()\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (tmp_path / "secret.py").write_text(SCRIPT)
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    return folder


def test_an_agent_reads_a_project_and_changes_nothing(project: Path, npukit: Any) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "npukit", "mcp", str(project)])

    async def session() -> tuple[Any, list[Any]]:
        async with Client(server) as client:
            calls = [("migrate", {"path": "train.py"}), ("docs", {"search": "hccl"}), ("docs", {"page": "none"})]
            return await client.list_tools(), [await client.call_tool(*call) for call in calls]

    listed, (migrated, analyzed, wrong) = anyio.run(session)
    assert [tool.name for tool in listed.tools] == [name for name in EXPOSED if name != "verify"]
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed.tools)
    assert "+model = torch.nn.Linear(2, 2).to(" in migrated.content[0].text
    assert migrated.structured_content["command"] == "npukit migrate" and not migrated.is_error
    assert (project / "train.py").read_text() == SCRIPT
    assert analyzed.structured_content["result"]["pages"] and not analyzed.is_error
    assert wrong.is_error and wrong.structured_content["error"]["code"] == "invalid_input"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("analyze", {"paths": ["../secret.py"]}),
        ("analyze", {"paths": ["/etc"]}),
        ("analyze", {"paths": ["link.py"]}),
        ("analyze", {"paths": ["."], "baseline": "/nowhere/baseline.json"}),
        ("explain", {"what": ["/etc/hostname"]}),
        ("plan", {"words": ["train.yaml", "data.train=[/etc/hostname]"]}),
        ("plan", {"words": ["train.py"]}),
        ("plan", {"words": "train.py"}),
        ("plan", {"words": ["train.yaml"], "walk": True}),
        ("migrate", {"path": "train.py", "in_place": True}),
        ("migrate", {"path": "train.py", "output": "copy"}),
        ("migrate", {"path": "train.py", "test": "rm -rf ."}),
        ("verify", {"before": ".", "after": ".", "command": ["python", "train.py"]}),
        ("run", {"command": ["train.py"]}),
    ],
)
def test_what_was_not_allowed_is_refused(
    name: str, given: dict[str, Any], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(NpukitError):
        Tools((project.resolve(),)).command(name, given)


def test_values_are_never_taken_for_options(project: Path) -> None:
    tools = Tools((project.resolve(),))
    assert tools.command("analyze", {"paths": ["--report"]}) == ["analyze", "--json", "--", "--report"]
    assert tools.command("docs", {"search": "--help"}) == ["docs", "--json", "--search=--help", "--"]


def test_leave_opens_what_writes_and_what_runs(project: Path) -> None:
    tools = Tools((project.resolve(),), allow_write=True, allow_run=True)
    assert tools.command("migrate", {"path": "train.py", "in_place": True}) == [
        *("migrate", "--json", "--in-place", "--", "train.py")
    ]
    given = {"before": ".", "after": ".", "command": ["python", "train.py"], "device": "cpu"}
    assert tools.command("verify", given) == [
        *("verify", "--json", "--device=cpu", "--", ".", ".", "python", "train.py")
    ]
    with pytest.raises(NpukitError):
        tools.command("migrate", {"path": "train.py", "output": "../copy"})


def test_a_message_with_a_path_in_it_is_explained(project: Path) -> None:
    message = "File /etc/hostname, line 3: RuntimeError path=/etc/hostname 507018"
    assert Tools((project.resolve(),)).command("explain", {"what": [message]})[-1] == message


def test_folders_must_be_there(npukit: Any, tmp_path: Path) -> None:
    assert npukit("mcp", tmp_path / "none").returncode == 2

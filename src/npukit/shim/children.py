"""The processes that multiprocessing spawns from this one."""

from __future__ import annotations


def run_first_in_spawned(statement: str) -> None:
    """Make the processes that multiprocessing spawns from this one run a statement first."""
    from multiprocessing import spawn

    get_command_line = spawn.get_command_line

    def with_statement(**keywords: object) -> list[str]:
        line = list(get_command_line(**keywords))
        code = line.index("-c") + 1
        line[code] = f"{statement}; {line[code]}"
        return line

    spawn.get_command_line = with_statement

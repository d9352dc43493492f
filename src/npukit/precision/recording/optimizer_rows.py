"""Rows of optimizers: the gradients they receive, their settings, and the parameters they produce."""

from __future__ import annotations

import json
from typing import Any

from npukit.precision.recording.modules import ModuleTracker
from npukit.precision.recording.rows import StepRows
from npukit.precision.recording.stacks import user_stack
from npukit.precision.recording.tensors import Text, quoted


class OptimizerRows:
    """Observes the steps of optimizers."""

    def __init__(self, rows: StepRows, tracker: ModuleTracker) -> None:
        self._rows, self._tracker = rows, tracker

    def began(self) -> None:
        """Record the gradients of all parameters."""
        rows = self._rows
        given = [parameter for parameter in self._tracker.parameters() if parameter[3].grad is not None]
        rows.tensors.hold([entry[3].grad for entry in given])
        gradients: dict[str, Text] = {}
        for path, module, name, parameter in given:
            rows.path, row = path, f"Module.{path}.{type(module).__name__}.parameters_grad.0"
            text = gradients.setdefault(row, [])
            text.append(f"{', ' if text else '{'}{quoted(name)}: ")
            rows.tensors.describe([parameter.grad], f"{row}.{name}", text)
        rows.tensors.release()
        for row, text in gradients.items():
            if row not in rows:
                rows.add(row, [*text, "}"], (), row.replace(".parameters_grad.", ".backward."))

    def ended(self, optimizer: Any) -> None:
        """Record the parameters after the step."""
        rows = self._rows
        rows.tensors.forget()
        name = f"Optimizer.{type(optimizer).__name__}.{rows.calls['optimizer']}.forward"
        rows.calls["optimizer"] += 1
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        known = self._tracker.parameters()
        mine = [(path, name, parameter) for path, _, name, parameter in known if id(parameter) in own]
        names = {id(parameter): f"{path}.{name}" for path, name, parameter in mine}
        rows.tensors.hold([parameter for _, _, parameter in mine])
        rows.path = ""
        row: Text = ['{"input_args": [], "input_kwargs": ']
        rows.tensors.describe(_settings(optimizer.param_groups[0]), name, row)
        row.append(', "output": ')
        rows.tensors.describe([parameter for _, _, parameter in mine], f"{name}.output", row)
        row.append(f', "names": {json.dumps([f"{path}.{name}" for path, name, _ in mine])}, "groups": [')
        for number, group in enumerate(optimizer.param_groups if len(optimizer.param_groups) > 1 else ()):
            members = [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            row.append(f'{", " if number else ""}{{"names": {json.dumps(members)}, "settings": ')
            rows.tensors.describe(_settings(group), name, row)
            row.append("}")
        row.append('], "phase": "optimizer"}')
        rows.add(name, row, user_stack(), None)


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """The learning rate, weight decay and other settings of a parameter group."""
    return {name: value for name, value in group.items() if isinstance(value, bool | int | float | str | tuple)}

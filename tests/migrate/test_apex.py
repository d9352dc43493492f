"""apex.amp becomes torch.amp as a whole, or stays as a whole."""

from __future__ import annotations

import ast
from pathlib import Path

from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate_document
from npukit.migrate.selection import Selection
from npukit.source import read

TRAIN = """import torch
from apex import amp

def train(model, optimizer, data, args):
    model, optimizer = amp.initialize(model, optimizer, opt_level=args.opt_level)
    for x in data:
        loss = model(x).mean()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
    return {"amp": amp.state_dict()}
"""


def migrated(text: str, style: Style) -> str:
    change, _ = migrate_document(read(Path("a.py"), text.encode()), Selection().rules(), Goal(style))
    return change.after if change else text


def test_training_loop() -> None:
    after = migrated(TRAIN, Style.portable)
    assert (
        after
        == """import torch

DEVICE_TYPE = "npu" if hasattr(torch, "npu") else "cuda"

SCALER = torch.amp.GradScaler(DEVICE_TYPE)

def train(model, optimizer, data, args):
    model.forward = torch.amp.autocast(DEVICE_TYPE, dtype=torch.float16, enabled=args.opt_level != "O0")(model.forward)
    for x in data:
        loss = model(x).mean()
        SCALER.scale(loss).backward()
        SCALER.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
        SCALER.step(optimizer)
        SCALER.update()
    return {"amp": SCALER.state_dict()}
"""
    )
    assert migrated(after, Style.portable) == after


def test_npu_style() -> None:
    after = migrated(TRAIN, Style.npu)
    ast.parse(after)
    assert 'SCALER = torch.amp.GradScaler("npu")' in after and "import torch_npu\n" in after
    assert "apex" not in after
    assert migrated(after, Style.npu) == after


def test_what_cannot_follow_stays_whole() -> None:
    for line in ("amp.register_half_function(torch, 'bmm')", "f(amp)", "x = amp.scale_loss"):
        text = TRAIN + line + "\n"
        after = migrated(text, Style.portable)
        assert after == text, line
    optional = TRAIN.replace("        with amp", "        if args.fp16:\n          with amp").replace(
        "            scaled_loss.backward()",
        "            scaled_loss.backward()\n        else:\n            loss.backward()",
    )
    assert migrated(optional, Style.portable) == optional
    other_clip = TRAIN.replace("amp.master_params(optimizer)", "model.parameters()")
    assert migrated(other_clip, Style.portable) == other_clip
    elsewhere = TRAIN + "def other(optimizer):\n    optimizer.step()\n"
    assert migrated(elsewhere, Style.portable) == elsewhere
    no_step = TRAIN.replace("optimizer.step()", "step(optimizer)")
    assert migrated(no_step, Style.portable) == no_step

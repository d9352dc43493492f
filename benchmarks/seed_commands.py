"""The chat, infer, merge and deploy commands of LLaMA-Factory's and ms-swift's Ascend guides, on a simulated NPU.

    make demo && python -m benchmarks.seed_commands [--only WORD]

Each command is the guides', with `npukit` for `llamafactory-cli` or `swift`, the model of `make demo` for theirs, and
`--device sim`. What talks to a person is asked the demo's question; a server is asked it over HTTP, and then stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

QUESTION, ANSWER = "How much memory does a 910B3 have?", "64 GB"
DEMO = Path("demo-output/finetune")
COMMANDS = (
    "chat --model_name_or_path {model} --adapter_name_or_path {adapter} --template qwen --finetuning_type lora",
    "infer --model {model}",
    "infer --adapters {adapter} --load_data_args true",
    "export --adapters {adapter} --merge_lora true",
    "infer --model {adapter}-merged --load_data_args true",
    "deploy --model {model}",
    "deploy --adapters {adapter} --load_data_args true",
    "deploy --model {adapter}-merged --load_data_args true",
)


def ran(command: list[str]) -> tuple[int, str]:
    ended = subprocess.run(command, input=f"{QUESTION}\nexit\n", capture_output=True, text=True, timeout=300)
    return ended.returncode, (ended.stdout.strip() or ended.stderr.strip())


def served(command: list[str]) -> tuple[int, str]:
    """The answer of a server, and what it ends with when it is told to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        address, answer = f"http://127.0.0.1:{port}", ""
        for _ in range(300):
            time.sleep(1)
            try:
                with urllib.request.urlopen(f"{address}/v1/models", timeout=5) as models:
                    name = json.load(models)["data"][-1]["id"]
                break
            except OSError:
                if server.poll() is not None:
                    return server.returncode, server.stdout.read().decode() if server.stdout else ""
        body = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32, "temperature": 0}
        asked = urllib.request.Request(
            f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=120) as said:
            answer = json.load(said)["choices"][0]["message"]["content"]
        server.send_signal(signal.SIGTERM)
        return server.wait(60), answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    if not (DEMO / "run").is_dir():
        sys.exit("run `make demo` first")
    good = 0
    wanted = [each for each in COMMANDS if only in each]
    with tempfile.TemporaryDirectory() as folder:
        adapter = shutil.copytree(DEMO / "run", Path(folder, "checkpoint-85"))
        for text in wanted:
            command = ["npukit", *text.format(model=DEMO / "model", adapter=adapter).split()]
            command += [] if text.startswith("export") else ["--device", "sim"]
            code, said = (served if text.startswith("deploy") else ran)([sys.executable, "-m", *command])
            asked = "{adapter}" in text and text.startswith(("chat", "deploy"))  # the model alone has random weights
            right = code == 0 and (not asked or ANSWER in said)
            good += right
            last = said.splitlines()[-1] if said else ""
            print(f"{'good' if right else 'BAD '} {code} npukit {text.format(model='MODEL', adapter='ADAPTER')}")
            print(f"       {last[:140]}", flush=True)
    print(f"{good} of {len(wanted)} commands")


if __name__ == "__main__":
    main()

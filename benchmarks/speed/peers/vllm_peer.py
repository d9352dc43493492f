"""vLLM's engine and server beside npukit's, in processes of their own, for `serve` and `serve_http`.

vLLM pins torch and much else. Where it cannot be installed, its packages may lie in a folder (`--vllm FOLDER`), which
only its own processes have on their path. `pip` or `.` names no folder: vLLM is installed.

    python -m benchmarks.speed.peers.vllm_peer WORK.json      # what `serve --vllm` starts
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import ROOT

READY_WITHIN_S = 240
ALIKE = {"max_model_len": 2048, "gpu_memory_utilization": 0.85}  # what npukit's engine is given


def environment(site: str) -> dict[str, str]:
    """The variables of a process that imports vLLM from this folder; FlashInfer would be compiled at the first use."""
    own = [] if site == "pip" else [site]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*own, str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }


def engine_rates(site: str, config: dict[str, Any], runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Output tokens a second of vLLM's engine for each run: `clients`, `temperature`, `work`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        work = Path(folder) / "work.json"
        work.write_text(json.dumps({"model": folder, "runs": runs}))
        command = [sys.executable, "-m", "benchmarks.speed.peers.vllm_peer", str(work)]
        done = subprocess.run(command, env=environment(site), capture_output=True, text=True, cwd=folder)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"vllm"')]
    if done.returncode:
        print(f"  vLLM ended with {done.returncode}:\n{done.stderr[-3000:]}", flush=True)
    return lines


def run_engine(path: str) -> None:
    """Read the work, answer it with vLLM's engine, and print one line of JSON for each run."""
    asked = json.loads(Path(path).read_text())
    import vllm
    from vllm import LLM

    start = time.perf_counter()
    most = max(run["clients"] for run in asked["runs"])
    llm = LLM(
        asked["model"], load_format="dummy", skip_tokenizer_init=True, max_num_seqs=most, dtype="bfloat16", **ALIKE
    )
    print(f"  vLLM {vllm.__version__} started in {time.perf_counter() - start:.0f} s", file=sys.stderr)
    for run in asked["runs"]:
        start = time.perf_counter()
        tokens = _closed_loop(llm.llm_engine, run)
        rate = tokens / (time.perf_counter() - start)
        figures = {"clients": run["clients"], "temperature": run["temperature"], "tokens_per_second": round(rate)}
        print(json.dumps({"vllm": vllm.__version__, **figures}), flush=True)


def _closed_loop(engine: Any, run: dict[str, Any]) -> int:
    """So many clients, each of which sends its next request when it has its answer; the tokens of all answers."""
    from vllm import SamplingParams

    left, running, tokens = list(enumerate(run["work"])), 0, 0
    while left or engine.has_unfinished_requests():
        while left and running < run["clients"]:
            number, (prompt, length) = left.pop()
            params = SamplingParams(
                temperature=run["temperature"], max_tokens=length, ignore_eos=True, detokenize=False
            )
            engine.add_request(f"{id(run)}-{number}", {"prompt_token_ids": prompt}, params)
            running += 1
        for output in engine.step():
            if output.finished:
                running -= 1
                tokens += len(output.outputs[0].token_ids)
    return tokens


@contextlib.contextmanager
def served_by_vllm(site: str, model: Path, clients: int) -> Iterator[str]:
    """vLLM's own server of the model under the name `m`; its address, once it answers."""
    port, name = 8112, ["--model", str(model), "--served-model-name", "m"]
    options = ["--max-num-seqs", str(clients), "--disable-uvicorn-access-log", "--port", str(port)]
    for option, value in ALIKE.items():
        options += [f"--{option.replace('_', '-')}", str(value)]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *name, *options]
    log = Path(tempfile.gettempdir()) / "vllm-server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment(site), stdout=output, stderr=output)
    try:
        start, url = time.perf_counter(), f"http://127.0.0.1:{port}"
        while not _answers(url):
            if process.poll() is not None or time.perf_counter() - start > READY_WITHIN_S:
                raise SystemExit(f"vLLM's server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        print(f"  vLLM's server answers after {time.perf_counter() - start:.0f} s", flush=True)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=2):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    run_engine(sys.argv[1])

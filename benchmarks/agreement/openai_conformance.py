"""Ask software that nobody here wrote whether `npukit serve` speaks OpenAI's API.

    python -m benchmarks openai_conformance schema OPENAPI.json     every answer and event against OpenAI's own schemas
    python -m benchmarks openai_conformance vllm CHECKOUT           vLLM's tests of its server, unmodified, on ours
    python -m benchmarks openai_conformance fuzz [--cases 40]       Schemathesis: no request makes the server fail
    python -m benchmarks openai_conformance lm-eval                 lm-eval through the API and on the weights

OPENAPI.json is that of github.com/openai/openai-openapi, CHECKOUT a checkout (or bare clone) of vLLM.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from benchmarks import ROOT
from benchmarks.tiny_server import make_adapter, make_model, served

TOOL = {
    "name": "weather",
    "description": "of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


# OpenAI's schemas ----------------------------------------------------------------------------------------------------
def check_schema(openapi: Path) -> None:
    """Validate answers of every kind."""
    import httpx2
    import jsonschema

    spec = _with_nulls(json.loads(openapi.read_text()))
    # OpenAI's own server sends null there too: in chunks before the last, and for the first token of an echoed prompt.
    choice = spec["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    choice["finish_reason"] = {"anyOf": [choice["finish_reason"], {"type": "null"}]}
    for name in ("token_logprobs", "top_logprobs"):
        logprobs = choice["logprobs"]["anyOf"][0]["properties"]
        logprobs[name]["items"] = {"anyOf": [logprobs[name]["items"], {"type": "null"}]}
    validators: dict[str, Any] = {}
    results: Counter[tuple[str, str]] = Counter()

    def check(name: str, answer: Any) -> None:
        if name not in validators:
            schema = {"$ref": f"#/components/schemas/{name}", "components": spec["components"]}
            validators[name] = jsonschema.Draft202012Validator(schema)
        errors = list(validators[name].iter_errors(answer))
        results[name, "valid" if not errors else "invalid"] += 1
        for error in errors[:2]:
            print(f"  {name}: {'/'.join(map(str, error.absolute_path))}: {error.message[:200]}")

    with (
        tempfile.TemporaryDirectory() as folder,
        served(make_model(Path(folder) / "m"), ["--served-model-name", "tiny"]) as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
    ):
        for path, schema, chunk, body in requests():
            answer = client.post(path, json=body)
            check(schema if answer.status_code == 200 else "ErrorResponse", answer.json())
            if chunk and answer.status_code == 200:
                for event in events(client.post(path, json={**body, "stream": True}).text):
                    check(chunk, event)
        check("ListModelsResponse", client.get("/v1/models").json())
        check("Model", client.get("/v1/models/tiny").json())
        for status in (client.get("/v1/models/none"), client.post("/v1/chat/completions", content=b"{")):
            check("ErrorResponse", status.json())
    for (name, result), number in sorted(results.items()):
        print(f"{name:48} {result:8} {number}")
    if any(result == "invalid" for _, result in results):
        raise SystemExit(1)


def _with_nulls(schema: Any) -> Any:
    """The file says `nullable` as OpenAPI 3.0 did; JSON Schema wants another type."""
    if isinstance(schema, list):
        return [_with_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _with_nulls(value) for key, value in schema.items()}
    return {"anyOf": [made, {"type": "null"}]} if made.pop("nullable", None) is True else made


def requests() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Path, schema of the answer, schema of an event, and body."""
    messages = [{"role": "user", "content": "Is it warm?"}]
    chat: dict[str, Any] = {"model": "tiny", "messages": messages, "max_tokens": 60}
    shape = {"name": "warm", "schema": {"type": "object", "properties": {"warm": {"type": "boolean"}}}}
    chats: list[dict[str, Any]] = [
        {},
        {"n": 3, "temperature": 0.7, "seed": 1},
        {"logprobs": True, "top_logprobs": 5},
        {"stop": [" ", "a"]},
        {"response_format": {"type": "json_schema", "json_schema": shape}},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": TOOL}]},
        {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
        {"temperature": 99},
        {"model": "none"},
    ]
    for more in chats:
        yield "/v1/chat/completions", "CreateChatCompletionResponse", "CreateChatCompletionStreamResponse", chat | more
    completion: dict[str, Any] = {"model": "tiny", "prompt": "Is it", "max_tokens": 8}
    for more in ({}, {"n": 2}, {"logprobs": 3}, {"prompt": [[1, 2], [3]]}, {"max_tokens": -1}):
        yield "/v1/completions", "CreateCompletionResponse", "CreateCompletionResponse", completion | more
    scored = completion | {"echo": True, "logprobs": 1}
    yield "/v1/completions", "CreateCompletionResponse", "", scored
    response: dict[str, Any] = {"model": "tiny", "input": "Is it warm?", "max_output_tokens": 60}
    flat = {"type": "function", "strict": True, **TOOL}
    json_text = {"format": {"type": "json_schema", "strict": True, **shape}}
    demanded = {"tools": [flat], "tool_choice": "required"}
    for more in ({}, {"instructions": "Be brief."}, {"text": json_text}, demanded, {"input": []}):
        yield "/v1/responses", "Response", "ResponseStreamEvent", response | more


def events(text: str) -> Iterator[Any]:
    """The data of a stream."""
    for line in text.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


# vLLM's tests --------------------------------------------------------------------------------------------------------
VLLM_TESTS = (
    "tests/entrypoints/openai/chat_completion/test_chat.py",
    "tests/entrypoints/openai/completion/test_completion.py",
    "tests/entrypoints/openai/chat_completion/test_chat_logit_bias_validation.py",
    "tests/entrypoints/openai/chat_completion/test_chat_echo.py",
)
OWN_CLASSES = "_request_"  # tests of vLLM's classes: they start no server
UTILS = '''
import contextlib, os
import openai
from benchmarks.tiny_server import served
from pathlib import Path

class RemoteOpenAIServer:
    """vLLM's fixture of this name, with npukit behind it."""

    def __init__(self, model, args, **_):
        options = ["--served-model-name", model]
        for at, word in enumerate(args):
            if word in ("--max-model-len", "--max-num-seqs", "--max-logprobs"):
                options += [word, args[at + 1]]
            if word == "--lora-modules":
                options += ["--adapter", args[at + 1]]
        self._served = served(Path(os.environ["TINY_MODEL"]), options)

    def __enter__(self):
        self._url = self._served.__enter__().url
        return self

    def __exit__(self, *error):
        self._served.__exit__(*error)

    def url_for(self, *parts):
        return "/".join([self._url, *parts])

    def get_async_client(self, **options):
        return openai.AsyncOpenAI(base_url=self._url + "/v1", api_key="none", max_retries=0, **options)

    def get_client(self, **options):
        return openai.OpenAI(base_url=self._url + "/v1", api_key="none", max_retries=0, **options)
'''
STUBS = """
import os, sys, types
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

class Stub(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)

class Finder:
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "vllm" else None
    def create_module(self, spec):
        return Stub(spec.name)
    def exec_module(self, module):
        if module.__name__ == "vllm.config":
            class ModelConfig:
                def __init__(self, **_): ...
                def get_vocab_size(self):
                    from transformers import AutoConfig
                    return AutoConfig.from_pretrained(os.environ["TINY_MODEL"]).vocab_size
            module.ModelConfig = ModelConfig
        if module.__name__ == "vllm.tokenizers":
            from transformers import AutoTokenizer
            module.get_tokenizer = lambda **_: AutoTokenizer.from_pretrained(os.environ["TINY_MODEL"])
        if module.__name__ == "vllm.transformers_utils.repo_utils":
            module.hf_api = lambda: types.SimpleNamespace(snapshot_download=lambda **_: os.environ["TINY_ADAPTER"])

sys.meta_path.insert(0, Finder())
"""


def run_vllm(checkout: Path) -> None:
    """Run the tests in a folder of their own, where `vllm` is a stub and its server fixture starts ours."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model", longest=4096)  # it seldom ends an answer by itself
        adapter = make_adapter(model, folder / "adapter", 1)
        for path in (*VLLM_TESTS, "tests/entrypoints/conftest.py"):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(_source(checkout, path))
            for parent in place.relative_to(folder).parents:
                if parent.name:
                    (folder / parent / "__init__.py").touch()
        (folder / "tests" / "utils.py").write_text(UTILS)
        (folder / "conftest.py").write_text(STUBS)
        paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TINY_MODEL": str(model)}
        command = [sys.executable, "-m", "pytest", *VLLM_TESTS, "-q", "-rA", "--tb=line", "-p", "no:cacheprovider"]
        command += ["-k", f"not {OWN_CLASSES}", "-o", "asyncio_default_fixture_loop_scope=function"]
        subprocess.run(command, cwd=folder, env={**environment, "TINY_ADAPTER": str(adapter)}, check=False)


def _source(checkout: Path, path: str) -> str:
    if (checkout / path).is_file():
        return (checkout / path).read_text()
    return subprocess.run(
        ["git", "-C", str(checkout), "show", f"HEAD:{path}"], capture_output=True, text=True, check=True
    ).stdout


def _must_be_there(package: str) -> None:
    """What another process imports is missed before the server starts."""
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


# Schemathesis --------------------------------------------------------------------------------------------------------
def run_fuzz(cases: Annotated[int, "for each route"] = 40) -> None:
    """Requests made from our own description of the API, valid and not; an answer must never be a 5xx."""
    _must_be_there("schemathesis")
    with tempfile.TemporaryDirectory() as folder:
        options = ["--served-model-name", "tiny", "--max-model-len", "256", "--timeout", "5", "--allow-adapter-changes"]
        with served(make_model(Path(folder) / "m"), options) as server:
            start = "from schemathesis.cli import schemathesis; schemathesis()"
            command = [sys.executable, "-c", start, "run", f"{server.url}/openapi.json"]
            command += ["--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing", "--mode", "all"]
            command += ["--max-examples", str(cases)]
            command += ["--continue-on-failure", "--max-failures", "20", "--request-timeout", "30"]
            raise SystemExit(subprocess.run(command, check=False).returncode)


# lm-eval -------------------------------------------------------------------------------------------------------------
TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""
BOTH = "tiny_choice,tiny_generation"
GENERATION = """
task: tiny_generation
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""


def run_lm_eval() -> None:
    """The same tasks through the API and by transformers on the same weights: every score must be the same."""
    _must_be_there("lm_eval")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model")
        _write_tasks(folder)
        with served(model, ["--served-model-name", "tiny"]) as server:
            url = f"{server.url}/v1"
            common = f"model=tiny,tokenizer={model},tokenizer_backend=huggingface,num_concurrent=4"
            api = _lm_eval(
                folder, "local-completions", f"{common},base_url={url}/completions", "tiny_choice,tiny_generation"
            )
            chat_arguments = f"model=tiny,base_url={url}/chat/completions,num_concurrent=4"
            chat = _lm_eval(
                folder, "local-chat-completions", chat_arguments, "tiny_generation", "--apply_chat_template"
            )
        scores = _lm_eval(folder, "hf", f"pretrained={model},dtype=float32", "tiny_choice,tiny_generation")
        here_chat = _lm_eval(
            folder, "hf", f"pretrained={model},dtype=float32", "tiny_generation", "--apply_chat_template"
        )
    worst = max(abs(a - b) for a, b in zip(_scores(api), _scores(scores), strict=True))
    same = [_texts(a) == _texts(b) for a, b in ((api, scores), (chat, here_chat))]
    print(f"{len(_scores(scores))} log-likelihoods: largest difference {worst:.2e}")
    print(f"{len(_texts(scores))} completions equal: {same[0]}; {len(_texts(here_chat))} chat answers equal: {same[1]}")
    if worst > 1e-3 or not all(same):
        raise SystemExit(1)


def _write_tasks(folder: Path) -> None:
    words = ["sky", "capital", "France", "blue", "please", "assistant", "Paris", "why", "helpful", "explain"]
    rows = [
        {
            "question": f"What is the {words[n % 10]} of {words[n % 7]}?",
            "choices": [f" {words[n % 9]}", " the sky is blue"],
            "answer": n % 2,
        }
        for n in range(20)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choice", TASK), ("generation", GENERATION)):
        (folder / f"{name}.yaml").write_text(text.replace("ROWS", str(folder / "rows.jsonl")))


def _lm_eval(folder: Path, model: str, arguments: str, tasks: str, *more: str) -> list[Any]:
    """The samples of a run, in order."""
    out = folder / f"out-{model}-{len(more)}"
    command = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", tasks, *more]
    command += ["--include_path", str(folder), "--output_path", str(out), "--log_samples", "--batch_size", "1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    environment["HF_HOME"] = str(folder / "hf")
    subprocess.run([*command, "--device", "cpu"], env=environment, check=True, stdout=subprocess.DEVNULL)
    tasks_of_run = (file.read_text().splitlines() for file in sorted(out.rglob("samples_*.jsonl")))
    return [row for lines in tasks_of_run for row in sorted(map(json.loads, lines), key=lambda row: int(row["doc_id"]))]


def _scores(samples: list[Any]) -> list[float]:
    logprobs = [answer[0][0] for row in samples for answer in row["resps"] if isinstance(answer[0], list)]
    return [float(value) for value in logprobs]


def _texts(samples: list[Any]) -> list[str]:
    return [answer[0] for row in samples for answer in row["resps"] if isinstance(answer[0], str)]


COMMANDS = {"schema": check_schema, "vllm": run_vllm, "fuzz": run_fuzz, "lm-eval": run_lm_eval}

"""What is sent to somebody has no secrets, no names of people and hosts, and no whole paths."""

from __future__ import annotations

import pytest

from npukit.report.redact import REMOVED, redacted

ENVIRON = {
    "HOME": "/srv/people/ann",
    "USER": "annabel",
    "HOSTNAME": "gpu-node-17.example",
    "WANDB_API_KEY": "0123abcdef0123",
    "TOKENIZERS_PARALLELISM": "false",
}


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN=SECRET python train.py",
        "--api-key SECRET --model x",
        "--api-key 'SECRET and more'",
        '{"password": "SECRET"}',
        "token: SECRET",
        "Authorization: Bearer SECRET",
        "git clone https://ann:SECRET@example.com/a",
        "export OPENAI_KEY=SECRET",
        "-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_a_secret_is_assigned_to(text: str) -> None:
    assert "SECRET" not in redacted(text, ENVIRON)


@pytest.mark.parametrize(
    "secret",
    [
        "hf_abcdefghij0123456789",
        "sk-proj-abcdef0123456789",
        "ghp_abcdef0123456789",
        "AKIAABCDEFGH01234567",
        "0123abcdef0123",
    ],
)
def test_secrets_are_known_by_their_form_or_from_the_environment(secret: str) -> None:
    assert redacted(f"login with {secret} failed", ENVIRON) == f"login with {REMOVED} failed"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/people/ann/project/train.py:3", "…/project/train.py:3"),
        ('File "/home/bob/code/model.py", line 3', 'File "…/code/model.py", line 3'),
        ("/data/annabel", "…/data/<user>"),
        ("/root", "~"),
        ("gpu-node-17 at 10.1.2.3 and 8.8.8.8:29500", "<host> at <address> and <address>:29500"),
    ],
)
def test_paths_people_and_hosts(text: str, expected: str) -> None:
    assert redacted(text, ENVIRON) == expected


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens=5, tokenizer: qwen, TOKENIZERS_PARALLELISM=false",
        "/usr/local/Ascend/cann-8.5.0/set_env.sh and /dev/davinci0",
        "cublas 12.4.5.8 on 127.0.0.1, npu:0 and/or cpu",
        "ms_deformable_attention_2 hf_hub_download author: Bob",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert redacted(text, ENVIRON) == text


def test_data_of_any_depth() -> None:
    data = {"environment": {"HF_TOKEN": "x9", "NUMBER": 3}, "log": ["a", {"path": "/home/bob/a/b/c"}], "none": None}
    expected = {"environment": {"HF_TOKEN": REMOVED, "NUMBER": 3}, "log": ["a", {"path": "…/b/c"}], "none": None}
    assert redacted(data, ENVIRON) == expected

"""Secrets in an environment, in URLs, on command lines and in configuration are not told."""

from __future__ import annotations

import pytest

from exporters import redact

SECRET = "hunter2-s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        f"resp://user:{SECRET}@valkey-0:6379",
        f"resp://:{SECRET}@v",
        f'{{"pcp_shard_store": true, "remote_password": "{SECRET}"}}',
        f"{{'api_key': '{SECRET}', 'x': 1}}",
        f"password: {SECRET}\nchunk_size: 256",
        f"LMCACHE_RESP_PASSWORD={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"access-key={SECRET},other=1",
        f'"client_secret" : "{SECRET}"',
        f'hf_token = "{SECRET}"',
    ],
)
def test_text(text):
    shown = redact.text(text)
    assert SECRET not in shown
    assert redact.REMOVED in shown


@pytest.mark.parametrize(
    "text",
    [
        '{"pcp_shard_store": true, "resp_num_threads": 32}',
        "resp://valkey-{rank}:6379",
        "max_num_batched_tokens=8192",
        "--tokenizer /models/m --max-tokens 3",
        "key_schema: 2",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact.text(text) == text


def test_environment():
    shown = redact.environment(
        {
            "LMCACHE_REMOTE_URL": f"resp://u:{SECRET}@v:1",
            "LMCACHE_RESP_PASSWORD": SECRET,
            "LMCACHE_RESP_USERNAME": SECRET,
            "VLLM_API_KEY": SECRET,
            "STALLSCOPE_VALKEY_PASSWORD": SECRET,
            "HF_TOKEN": SECRET,
            "HOME": SECRET,
            "PYTHONHASHSEED": "0",
        }
    )
    assert SECRET not in str(shown)
    assert shown["PYTHONHASHSEED"] == "0"
    assert "HOME" not in shown and "HF_TOKEN" not in shown


def test_command_line():
    words = ["vllm", "serve", "m", "--api-key", SECRET, f"--hf-token={SECRET}", "--port", "8000"]
    assert redact.command_line(words) == [
        *("vllm", "serve", "m", "--api-key", redact.REMOVED),
        *(f"--hf-token={redact.REMOVED}", "--port", "8000"),
    ]

"""Pictures in requests, by the official client and by others that mean no good."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_media import HOSTILE, USABLE
from tests.inference.server.conftest import Server, Start
from tests.inference.server.test_page import opened, until
from tests.seeing import pictures, seeing_models, seeing_tokenizer

from npukit.inference.server import media
from npukit.llm.images.files import BadImage
from npukit.llm.medium import MediaItem

__all__ = ["pictures", "seeing_models", "seeing_tokenizer"]  # fixtures


@pytest.fixture(scope="module")
def seeing(fork: Start, seeing_models: Callable[[str], Path]) -> Server:
    return fork(seeing_models("qwen2_5_vl"), "--max-images", "3", "--max-video-seconds", "60")


@pytest.fixture(scope="module")
def client(seeing: Server) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{seeing.url}/v1", api_key="unused", max_retries=0, timeout=300)


def uri(file: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def shown(address: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": address}}


def test_the_official_client_shows_pictures(client: Any, seeing_models: Callable[[str], Path], pictures: Path) -> None:
    """Two in one conversation: the answer is the library's, at once, as a stream and through Responses."""
    from npukit.inference import LLM, SamplingParams

    parts = [*(shown(uri(pictures / name)) for name in ("a.png", "c.png")), {"type": "text", "text": "Who?"}]
    greedy = {"model": "qwen2_5_vl", "temperature": 0}
    asked: Any = [{"role": "user", "content": parts}]
    whole = client.chat.completions.create(messages=asked, max_tokens=12, **greedy)
    stream = client.chat.completions.create(messages=asked, max_tokens=12, stream=True, **greedy)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    items: Any = [
        {"type": "input_image", "image_url": part["image_url"]["url"], "detail": "auto"}
        if "image_url" in part
        else {"type": "input_text", "text": part["text"]}
        for part in parts
    ]
    response = client.responses.create(input=[{"role": "user", "content": items}], max_output_tokens=12, **greedy)
    llm = LLM(str(seeing_models("qwen2_5_vl")))
    own: Any = [{"type": "image", "image": str(pictures / name)} for name in ("a.png", "c.png")]
    wanted = llm.chat(
        [{"role": "user", "content": [*own, {"type": "text", "text": "Who?"}]}],
        SamplingParams(temperature=0, max_tokens=12),
    )
    assert whole.choices[0].message.content == streamed == response.output_text == wanted.text
    assert whole.usage.prompt_tokens == len(wanted.prompt_token_ids)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ([shown("https://example.com/cat.png")], "--allowed-media-domains"),
        ([shown("file:///etc/passwd")], "neither a data URI"),
        ([shown("/etc/passwd")], "neither a data URI"),
        ([{"type": "image_url"}], "no url"),
        ([{"type": "image_url", "image_url": {"url": 7}}], "no url"),
        ([shown("data:image/png;base64,?!")], "base64"),
        ([shown("data:image/png;base64,AAAA")] * 4, "--max-images"),
        ([{"type": "text", "text": "<|image_pad|>"}, "a.png"], "<|image_pad|>"),
        ([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}], "audio"),
    ],
)
def test_what_cannot_be_shown_gets_a_sentence(content: Any, code: str, client: Any, pictures: Path) -> None:
    import openai

    parts = [shown(uri(pictures / part)) if isinstance(part, str) else part for part in content]
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="qwen2_5_vl", messages=[{"role": "user", "content": parts}])
    assert code in error.value.body["message"] and "\n" not in error.value.body["message"]


def test_hostile_pictures_end_their_own_request_alone(client: Any) -> None:
    """Every one gets a sentence, those that are only unusual an answer."""
    import openai

    for name, (content, expected) in (HOSTILE | USABLE).items():
        address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        asked: Any = [{"role": "user", "content": [shown(address)]}]
        try:
            client.chat.completions.create(model="qwen2_5_vl", messages=asked, max_tokens=1)
        except openai.BadRequestError as error:
            assert isinstance(expected, str) and expected in error.body["message"], name
        else:
            assert not isinstance(expected, str), name


def test_videos_are_frames_or_files(client: Any, pictures: Path, tmp_path: Path) -> None:
    """Frames as JPEG need no decoder; both answer, and what is too long or no video gets a sentence."""
    import io

    import openai
    from PIL import Image
    from tests.llm.images.test_video import make_file

    frames = []
    for name in ("a", "a", "a"):
        content = io.BytesIO()
        Image.open(pictures / f"{name}.png").save(content, "JPEG")
        frames.append(base64.b64encode(content.getvalue()).decode())

    def ask(url: str) -> Any:
        parts: Any = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "What?"}]
        return client.chat.completions.create(
            model="qwen2_5_vl", messages=[{"role": "user", "content": parts}], max_tokens=4, temperature=0
        )

    assert ask(f"data:video/jpeg;base64,{','.join(frames)}").usage.prompt_tokens > 10
    file = base64.b64encode(make_file(tmp_path / "clip.mp4").read_bytes()).decode()
    assert ask(f"data:video/mp4;base64,{file}").usage.completion_tokens == 4
    long = base64.b64encode(make_file(tmp_path / "long.mp4", frames=70, fps=1, size=(32, 32)).read_bytes()).decode()
    refused = {f"data:video/mp4;base64,{long}": "seconds", "data:video/mp4;base64,AAAA": "not a video"}
    for url, code in {**refused, "https://example.com/cat.mp4": "--allowed-media-domains"}.items():
        with pytest.raises(openai.BadRequestError) as error:
            ask(url)
        assert code in error.value.body["message"] and "\n" not in error.value.body["message"]


SHOW = """const [event, colour] = arguments, canvas = document.createElement("canvas"), held = new DataTransfer();
canvas.width = 3000;
canvas.getContext("2d").fillStyle = colour;
canvas.getContext("2d").fillRect(0, 0, 3000, 90);
canvas.toBlob((blob) => {
  held.items.add(new File([blob], "picture.png", { type: "image/png" }));
  const made = event === "paste" ? new ClipboardEvent(event, { clipboardData: held, bubbles: true, cancelable: true })
    : new DragEvent(event, { dataTransfer: held, bubbles: true, cancelable: true });
  document.getElementById("composer").dispatchEvent(made);
});"""


def test_the_page_takes_pictures_by_button_paste_and_drop(seeing: Server, pictures: Path) -> None:
    with opened(seeing.url) as browser:
        until(browser, "return !document.getElementById('attach').hidden")
        count = "return document.querySelectorAll('#pictures img').length"
        browser.find_element("id", "files").send_keys(str(pictures / "a.png"))
        until(browser, f"{count} === 1")
        browser.execute_script(SHOW, "paste", "red")
        until(browser, f"{count} === 2")
        browser.execute_script(SHOW, "drop", "blue")
        until(browser, f"{count} === 3")
        widths = "return [...document.querySelectorAll('#pictures img')].map((each) => each.naturalWidth)"
        assert browser.execute_script(widths) == [90, 1280, 1280]  # large ones are scaled down
        browser.execute_script("document.getElementById('max_tokens').value = 4")
        browser.execute_script("document.getElementById('max_tokens').oninput()")
        browser.find_element("id", "prompt").send_keys("Who?\n")
        until(browser, "return document.querySelector('.assistant .figures, .assistant .error')")
        assert not browser.find_elements("css selector", ".assistant .error")
        assert len(browser.find_elements("css selector", ".message.user .shown img")) == 3
        assert browser.execute_script(count) == 0


class Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        status = {"/cat.png": 200, "/large.png": 200, "/moved.png": 302}.get(path, 404)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://127.0.0.1/cat.png")
        self.end_headers()
        if status == 200:
            self.wfile.write(b"a cat" * (1 if path == "/cat.png" else 1000))

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """A web server that answers for every address; which addresses a name has is up to the test."""
    server = HTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names: dict[str, list[str]] = {"example.com": ["93.184.215.14"]}

    def connect(_: Any, timeout: float) -> socket.socket:
        opened = socket.socket()
        opened.connect(server.server_address)
        return opened

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    yield names
    server.shutdown()
    server.server_close()


def test_addresses_of_named_domains_are_read(site: dict[str, list[str]]) -> None:
    media_ = media.Media(1, 4000, ["Example.com"])
    assert media_.read(MediaItem("image", "http://example.com/cat.png?size=1"))[0] == b"a cat"
    for path, code in {"/large.png": "MiB", "/moved.png": "302", "/none.png": "404"}.items():
        with pytest.raises(BadImage, match=code):
            media_.read(MediaItem("image", f"http://example.com{path}"))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "0.0.0.0",
        "100.64.0.1",
        "224.0.0.1",
        "::1",
        "::ffff:10.0.0.1",
        "fd00::1",
        "fe80::1%eth0",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "::7f00:1",
    ],
)
def test_addresses_of_this_network_are_not_read(address: str, site: dict[str, list[str]]) -> None:
    site["example.com"] += [address]  # beside one that is public
    with pytest.raises(BadImage, match="not public"):
        media.Media(1, 4000, ["example.com"]).read(MediaItem("image", "http://example.com/cat.png"))


@pytest.mark.parametrize(
    "address",
    [
        "http://example.com:22/",
        "http://me@example.com/",
        "http://example.com.evil.org/",
        "http://evil.org/example.com",
        "http://[::1]/",
        "http://[broken/",
        "ftp://example.com/",
        "gopher://example.com/",
        "http://",
        "//example.com/",
    ],
)
def test_other_addresses_are_not_read(address: str, site: dict[str, list[str]]) -> None:
    with pytest.raises(BadImage):
        media.Media(1, 4000, ["example.com"]).read(MediaItem("image", address))

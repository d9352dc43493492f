from __future__ import annotations

from pathlib import Path

from npukit.launch.failure import Failure, explained, first, read_failure, report, write_error_file

HEARD_NOTHING = "RuntimeError: ... ERR00100 PTA call acl api failed\nEI0002: The wait for a notification timed out"


def test_the_first_is_a_cause_and_not_what_followed() -> None:
    followed = Failure(0, 0, 10.0, 1, HEARD_NOTHING)
    killed = Failure(3, 1, 11.0, -9, "")
    ended = Failure(2, 1, 9.0, -15, "")
    assert first([followed, killed, ended]) == killed
    assert first([Failure(1, 0, 12.0, 1, "ValueError: x"), Failure(2, 0, 11.5, 1, "KeyError: y")]).rank == 2
    assert first([followed]) == followed


def test_a_rank_that_left_is_the_cause_only_of_what_may_follow_from_it() -> None:
    left = Failure(1, 0, 12.0, 0, "")
    closed = Failure(0, 0, 10.0, 1, "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:1")
    assert first([closed, left]) == left and first([Failure(0, 0, 10.0, 1, HEARD_NOTHING), left]) == left
    own = Failure(2, 0, 11.0, 1, "KeyError: 'loss'")
    assert first([closed, left, own]) == own


def test_a_rank_hands_its_traceback_over(tmp_path: Path) -> None:
    file = str(tmp_path / "rank1.error")
    write_error_file(file, "ValueError: x", "Traceback (most recent call last):\nValueError: x\n", "traceback")
    failure = read_failure(1, 0, 1, file, "")
    assert failure.kind == "traceback" and "Traceback" in failure.text
    assert Failure.from_json(failure.to_json()) == failure


def test_a_rank_that_is_stopped_while_its_own_error_ends_it_failed_by_that_error() -> None:
    failed = Failure(1, 0, 10.0, -15, "Traceback …\nRuntimeError: NPU out of memory", kind="traceback")
    assert first([failed, Failure(0, 0, 9.0, -6, HEARD_NOTHING)]) == failed
    assert not failed.was_stopped
    assert "SIGTERM" not in report(failed, nodes=1)


def test_without_a_traceback_the_log_tells(tmp_path: Path) -> None:
    (tmp_path / "rank1.log").write_text("started\nterminate called\n")
    failure = read_failure(1, 0, -6, str(tmp_path / "nothing"), str(tmp_path / "rank1.log"))
    assert failure.kind == "log"
    text = report(failure, nodes=1)
    assert "rank 1 failed first, killed by SIGABRT" in text
    assert "terminate called" in text


def test_a_known_error_is_explained() -> None:
    text = report(Failure(5, 2, 0.0, 1, "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"), nodes=3)
    assert "rank 5 on node 2 failed first, with exit code 1" in text
    assert "out-of-memory" in text and "What to do" in text


def test_an_unknown_error_is_not_explained() -> None:
    assert explained("ValueError: no such colour") == ""
    assert explained("KeyError: 'colour'") == "", "a program's own error needs no reading of its class"

"""The token of a run: for its owner's eyes, the same after a resume, and never taken carelessly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rookery.carriers import tokens
from rookery.carriers.tokens import given_token, make_token, read_token, same_token, token_of_run
from rookery.core.errors import UserError

TOKEN = "a-token-of-some-length"


def test_a_run_keeps_the_token_it_was_given_or_made(tmp_path: Path) -> None:
    made = token_of_run(tmp_path)
    assert len(made) > 40
    assert token_of_run(tmp_path) == made, "a resumed head has the same"
    assert token_of_run(tmp_path, TOKEN) == TOKEN
    assert token_of_run(tmp_path) == TOKEN
    assert make_token() != make_token()


def test_the_file_is_its_owners_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    replace = os.replace

    def seen(temp: Path, path: Path) -> None:
        modes.append(os.stat(temp).st_mode & 0o777)
        replace(temp, path)

    monkeypatch.setattr(os, "replace", seen)
    before = os.umask(0)
    try:
        token_of_run(tmp_path)
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert (tmp_path / tokens.FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_comes_before_the_variable(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    environ = {"ROOKERY_TOKEN": "another-token-of-some-length"}
    assert given_token(path, environ) == TOKEN
    assert given_token(None, environ) == environ["ROOKERY_TOKEN"]
    assert given_token(None, {"ROOKERY_TOKEN": " "}) is None
    assert given_token(None, {}) is None


def test_a_file_that_others_can_read_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    assert read_token(path) == TOKEN
    (record,) = caplog.records
    assert f"chmod 600 {path}" in record.message
    assert TOKEN not in record.message
    path.chmod(0o600)
    read_token(path)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("text", ["", "short", "x" * 5000, "a token with some blanks", "ä" * 20])
def test_what_is_no_token_is_refused_without_being_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(UserError, match=r"token") as caught:
        read_token(path)
    assert not text or text not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="check --token-file"):
        given_token(tmp_path / "none", {})


def test_tokens_are_compared_whole() -> None:
    assert same_token(TOKEN, TOKEN)
    for other in ("", TOKEN[:-1], TOKEN + "x", "ü" * 20):
        assert not same_token(other, TOKEN)

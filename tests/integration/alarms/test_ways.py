"""Alarm messages over a real SMTP server, HTTP server and program, and the errors of channels that do not work."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable
from email import message_from_string, policy
from pathlib import Path
from socket import socket
from threading import Event as Flag

import pytest

from tests.support.brokers.certificates import Authority
from tests.support.listeners import HttpListener, MailListener, drip, measure_s, run_hanging_server, say_nothing
from tests.support.waiting import eventually
from venus.alarms.alarm_state import Alarm, AlarmEvent, Message, Notification
from venus.alarms.recipients import AlarmChannel, MailChannel, build_recipients
from venus.config import AlarmsSettings
from venus.errors import ConfigError

pytestmark = pytest.mark.integration

TEXT = "target eu: shop.bücher is RESYNC; `venus resync shop.bücher --target eu` reads it again"
ALARM = Alarm(business="main", rule="table_halted", subject="s", hop="target", text=TEXT, since_s=1e9)
MESSAGE = Message("b1", [Notification(event=AlarmEvent.RAISED, alarm=ALARM, at_s=1e9)])
Behaviour = Callable[[socket, Flag], None]
#: What has a limit of one second takes less than this on any machine; without it the servers hang for longer.
SOON_S = 60.0


def make_channel(**options: object) -> AlarmChannel:
    (found,) = build_recipients(AlarmsSettings.model_validate({"to": {"oncall": options}}))
    return found.channel


def send_error(sent: AlarmChannel) -> str:
    with pytest.raises(OSError, match=r".") as caught:
        sent.send(MESSAGE)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_webhook_gets_everything_that_a_program_or_a_chat_needs() -> None:
    with HttpListener() as listener:
        make_channel(webhook=f"{listener.url}/hook?room=night").send(MESSAGE)

    (document,) = listener.taken
    assert document["path"] == "/hook?room=night"
    assert document["broker"] == "b1"
    assert TEXT in document["text"]
    assert document["alarms"] == [
        {
            "event": "raised",
            "rule": "table_halted",
            "business": "main",
            "hop": "target",
            "text": TEXT,
            "until": None,
            "since": "2001-09-09T01:46:40Z",
            "commands": ["venus resync shop.bücher --target eu"],
        }
    ]


def test_a_mail_says_what_to_type() -> None:
    with MailListener() as listener:
        make_channel(
            mail=["dba@example.com", "night@example.com"],
            mail_from="venus@example.com",
            smtp=listener.address,
            smtp_security="none",
        ).send(MESSAGE)

    ((to, content),) = listener.taken
    mail = message_from_string(content, policy=policy.default)
    assert to == ["dba@example.com", "night@example.com"]
    assert mail["Subject"] == f"VENUS b1: ALARM business main: {TEXT}"
    assert mail["From"] == "venus@example.com"
    body = mail.get_content()
    assert TEXT in body
    assert "  $ venus resync shop.bücher --target eu" in body


def test_a_command_gets_the_document_and_no_secret_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENUS_SOURCE__URL", "postgresql://u:planted@h/d")
    program = (
        "import os,sys; open(sys.argv[1],'wb').write(sys.stdin.buffer.read() + os.environ['VENUS_ALARM'].encode())"
    )
    program += "; assert 'VENUS_SOURCE__URL' not in os.environ"
    sent = make_channel(command=f"{sys.executable} -c \"{program}\" '{tmp_path}/a file'")

    sent.send(MESSAGE)

    content = (tmp_path / "a file").read_bytes()
    assert json.loads(content[: content.rindex(b"}") + 1]) == json.loads(MESSAGE.to_json())
    assert content.endswith(MESSAGE.subject.encode())


@pytest.mark.parametrize("behave", [say_nothing, drip])
def test_a_webhook_that_hangs_is_given_up_in_time(behave: Behaviour) -> None:
    with run_hanging_server(behave) as address:
        sent = make_channel(webhook=f"http://{address}/", timeout_s=1)
        assert measure_s(lambda: send_error(sent)) < SOON_S
        assert send_error(sent) == f"http://{address}: no answer within 1 s"


@pytest.mark.parametrize("security", ["none", "starttls", "tls"])
def test_a_mail_server_that_hangs_is_given_up_in_time(security: str) -> None:
    with run_hanging_server(say_nothing) as address:
        sent = make_channel(mail=["a@b.c"], mail_from="v@b.c", smtp=address, smtp_security=security, timeout_s=1)
        assert measure_s(lambda: send_error(sent)) < SOON_S
        assert send_error(sent).startswith(f"{address}: ")


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    sent, pid = (
        make_channel(command=f"sh -c 'sleep 600 & echo $! > {tmp_path}/pid; wait'", timeout_s=1),
        tmp_path / "pid",
    )

    def has_started() -> bool:
        """Return whether the program started before its time limit ended it."""
        assert measure_s(lambda: send_error(sent)) < SOON_S
        return pid.exists() and bool(pid.read_text().strip())

    eventually(has_started)
    eventually(lambda: has_ended(int(pid.read_text())), "the end of the child")


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_send_error_is_reported_in_one_line() -> None:
    with HttpListener() as listener:
        listener.status = 302
        assert send_error(make_channel(webhook=listener.url)).endswith(
            "answers 302, which moves elsewhere: name that URL"
        )
        listener.status = 503
        assert send_error(make_channel(webhook=f"{listener.url}/secret")) == f"{listener.url} answers 503"
    assert send_error(make_channel(webhook=f"{listener.url}/secret")) == f"{listener.url}: Connection refused"
    assert send_error(make_channel(command="/nowhere/page me")) == "/nowhere/page is not an executable program"
    assert send_error(make_channel(command="sh -c 'exit 3'")) == "sh ended with exit code 3"
    with MailListener() as mails:
        plain = make_channel(mail=["a@b.c"], mail_from="v@b.c", smtp=mails.address)
        assert "STARTTLS" in send_error(plain)


def test_a_webhook_with_an_untrusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "broker.crt", tmp_path / "broker.key")
    with HttpListener(context) as listener:
        said = send_error(make_channel(webhook=f"{listener.url}/secret"))
        assert "its certificate is not accepted: " in said
        assert "SSL_CERT_FILE" in said
        assert "secret" not in said
        monkeypatch.setenv("SSL_CERT_FILE", authority.ca)
        make_channel(webhook=listener.url).send(MESSAGE)
    authority.issue("late", hosts=("127.0.0.1",), age_days=9, days=5)
    authority.issue("other", hosts=("elsewhere",))
    for name, reason in (("late", "certificate has expired"), ("other", "IP address mismatch")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        with HttpListener(context) as listener:
            assert reason in send_error(make_channel(webhook=listener.url))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"webhook": "ftp://host/"}, "alarms.to.oncall: webhook is not a URL"),
        ({"webhook": "https://host:x/"}, "alarms.to.oncall: webhook is not a URL"),
        ({"webhook": "https://me:it@host/"}, "alarms.to.oncall: webhook has a user in its URL"),
        ({"webhook_file": "/nowhere"}, "alarms.to.oncall.webhook_file /nowhere: no such file"),
        ({"command": "'"}, "alarms.to.oncall: command cannot be read"),
        ({"mail": ["a"], "mail_from": "v@b.c", "smtp": "h:25"}, "'a' is not an e-mail address"),
        ({"mail": ["a@b.c\nBcc: x@y.z"], "mail_from": "v@b.c", "smtp": "h:25"}, "is not an e-mail address"),
        (
            {"mail": ["a@b.c"], "mail_from": "v@b.c", "smtp": "h:25", "smtp_user": "u", "smtp_security": "none"},
            "smtp_user is set, and smtp_security is none",
        ),
    ],
)
def test_an_invalid_recipient_is_refused_before_the_start(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_channel(**options)
    assert says in str(caught.value)


def test_a_webhook_file_that_other_users_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text("https://host/planted\n")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"webhook_file .* can be read by others \(mode 0644\)") as caught:
        make_channel(webhook_file=str(file))
    assert caught.value.hint == f"chmod 600 {file}"
    file.chmod(0o600)
    assert make_channel(webhook_file=str(file)).destination == "https://host"


def test_a_mail_server_gets_the_password_only_over_tls() -> None:
    with pytest.raises(ConfigError):
        MailChannel(to=["a@b.c"], sender="v@b.c", server="h:25", security="none", user="u", password="p", timeout_s=1)

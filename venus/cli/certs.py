"""`venus certs`: a private authority, certificates and tokens for a first set-up (docs/how-to/tls.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from venus.cli.invocation import CommandSet, ConfigOption, Invocation, JsonOption
from venus.cli.output import build_table
from venus.errors import ConfigError

app = CommandSet(help="Certificates and tokens: init, issue, show, token.")
DEFAULT_FOLDER = Path("certs")
FolderOption = Annotated[
    Path, typer.Option("--directory", "-d", metavar="FOLDER", help="The authority's folder; default ./certs.")
]
RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="producer(BUSINESS), consumer(GROUP, BUSINESS), reader(BUSINESS), broker, operator or viewer; repeatable.",
    ),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="HOST", help="A name or address by which clients reach a broker; may be repeated."),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Its common name; also the name of the files.")]


@app.command()
def init(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to create it in; default ./certs.")] = (
        DEFAULT_FOLDER
    ),
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create a private authority: ca.crt for every process, and ca.key, which no process gets."""
    from venus.security.authority import CA_KEY, create_authority

    run = Invocation.from_options(ctx, config, as_json)
    made = create_authority(folder, datetime.now(UTC))
    line = f"{made}: give it to every process as [security] ca; keep {folder / CA_KEY} where no broker runs"
    run.out.answer({"ca": made, "key": folder / CA_KEY}, line)
    return 0


@app.command()
def issue(
    ctx: typer.Context,
    name: NameArgument,
    role: RoleOption = None,
    host: HostOption = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it is valid.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Replace existing files.")] = False,
    folder: FolderOption = DEFAULT_FOLDER,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Issue a certificate and its key: --host for a broker, --role for a client.

    --renew without --role and --host keeps the roles and hosts of the existing certificate.
    """
    from venus.security.authority import describe_certificate, issue_certificate

    run = Invocation.from_options(ctx, config, as_json)
    roles, hosts = role or [], host or []
    if renew and not roles and not hosts:
        roles, hosts = describe_certificate(folder / f"{name}.crt")
    if not roles and not hosts:
        raise ConfigError("a certificate needs a role or a host", hint="add --role or --host")
    made, key = issue_certificate(folder, name, datetime.now(UTC), roles=roles, hosts=hosts, days=days, replace=renew)
    run.out.answer(
        {"certificate": made, "key": key, "roles": roles, "hosts": hosts},
        f"{made} and {key} (0600): roles {', '.join(roles) or 'none'}; hosts {', '.join(hosts) or 'none'}",
    )
    return 0


@app.command()
def show(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Certificates (PEM).")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show the names, roles and expiry of certificates. Exit code 1 if a certificate is not valid now."""
    from venus.security import pem
    from venus.security.identity import roles_in

    run = Invocation.from_options(ctx, config, as_json)
    now = datetime.now(UTC)
    found: list[dict[str, Any]] = []
    for file in files:
        one = pem.certificates(file, "certificate")[0]
        found.append(
            {
                "file": str(file),
                "name": pem.subject_texts(one)[0],
                "roles": sorted(map(str, roles_in(one))),
                "hosts": pem.hosts(one),
                "until": pem.day(one.not_valid_after_utc),
                "valid": one.not_valid_before_utc <= now < one.not_valid_after_utc,
            }
        )
    rows: list[tuple[object, ...]] = [
        (f["file"], f["name"], "; ".join(f["roles"]), ", ".join(f["hosts"]), f["until"], "yes" if f["valid"] else "NO")
        for f in found
    ]
    run.out.answer({"certificates": found}, build_table("file", "name", "roles", "hosts", "until", "valid", rows=rows))
    return 0 if all(f["valid"] for f in found) else 1


@app.command()
def token(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the client; one word.")],
    role: RoleOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Create a token for a client without a certificate. The token is shown once; the broker's file has only a hash."""
    from venus.security.identity import make_token

    run = Invocation.from_options(ctx, config, as_json)
    if not role:
        raise ConfigError("a token needs a role", hint="add --role")
    secret, line = make_token(name, "; ".join(role))
    run.out.answer(
        {"token": secret, "line": line},
        f"token: {secret}",
        f"line for the broker's security.token_file: {line}",
    )
    return 0

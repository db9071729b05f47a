"""The command line of the agent: ``serve`` runs it, ``connect`` bridges to it for ssh, ``stop`` goes past it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click
import platformdirs

EXIT_REFUSED = 2


def default_config() -> Path:
    """Where ``agent.toml`` is looked for without ``--config``."""
    system = Path("/etc/ringtop/agent.toml")
    return system if system.exists() else Path(platformdirs.user_config_dir("ringtop")) / "agent.toml"


@click.group()
@click.version_option(package_name="ringtop", prog_name="ringtop-agent")
def main() -> None:
    """The agent of one host: journal, engines, promises."""


@main.command()
@click.option("--config", type=click.Path(path_type=Path), default=None, help="agent.toml of this host")
@click.option(
    "--loopback-port", type=click.IntRange(1, 65535), default=None, help="also listen on 127.0.0.1 at this TCP port"
)
def serve(config: Path | None, loopback_port: int | None) -> None:
    """Run the agent of this host until TERM; engines outlive it."""
    from backend.agent.config import ConfigError, read_config
    from backend.agent.daemon import AgentRefused, run_agent

    try:
        code = run_agent(read_config(config or default_config()), loopback_port)
    except (ConfigError, AgentRefused) as error:
        click.echo(f"ringtop-agent: {error}", err=True)
        code = EXIT_REFUSED
    sys.exit(code)


@main.command()
@click.option("--config", type=click.Path(path_type=Path), default=None, help="agent.toml of this host")
@click.option("--socket", "path", default=None, help="the agent's socket, instead of the configured one")
def connect(config: Path | None, path: str | None) -> None:
    """Bridge standard input and output to this host's agent."""
    from backend.agent.config import ConfigError, read_config
    from backend.agent.connect import bridge

    if path is None:
        try:
            path = read_config(config or default_config()).socket
        except ConfigError as error:
            click.echo(f"ringtop-agent: {error}", err=True)
            sys.exit(EXIT_REFUSED)
    sys.exit(bridge(path))


@main.command()
@click.argument("node", required=False)
@click.option("--break-glass", is_flag=True, help="stop engines past the agent, when its journal cannot be written")
@click.option("--all", "every", is_flag=True, help="every engine of this host's agent")
@click.option("--yes", is_flag=True, help="do not ask")
@click.option("--config", type=click.Path(path_type=Path), default=None, help="agent.toml of this host")
def stop(node: str | None, config: Path | None, *, break_glass: bool, every: bool, yes: bool) -> None:
    """Stop the engine of NODE, such as tiny-1/0, at once and without the agent."""
    from backend.agent.config import ConfigError, read_config
    from backend.agent.emergency import emergency_stop

    if not break_glass:
        _refuse(
            "a stop goes through the agent: ringtop unload REPLICA. When its journal cannot be written, "
            "--break-glass stops engines on this host past it."
        )
    if bool(node) == every:
        _refuse("name one NODE, such as tiny-1/0, or say --all.")
    try:
        state = Path(read_config(config or default_config()).state)
    except ConfigError as error:
        _refuse(str(error))
    sys.exit(emergency_stop(state, node, asks=not yes))


def _refuse(words: str) -> NoReturn:
    click.echo(f"ringtop-agent: {words}", err=True)
    sys.exit(EXIT_REFUSED)

"""The parts that all commands share: options, examples, and the exit codes of errors.

exit code   meaning
0           done
1           the answer is no: nothing to claim, no such job or queue, the check found something, the queue refused the job
2           the command line, a value or a setting is wrong; nothing was written
3           the lease is lost: the job is no longer this receipt's
4           the store cannot be opened, its owner does not listen, or a server refuses you
5           the store is damaged or cannot serve
70          a bug in Tenure
130         interrupted (Ctrl-C)
141         the reader of the output stopped reading
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeVar

import click

from tenure import errors
from tenure.cli.completion import QUEUE
from tenure.cli.output import Output, clean
from tenure.cli.session import Session
from tenure.settings import URL_FORMS

F = TypeVar("F", bound=Callable[..., Any])

NO, USAGE, LOST, CLOSED, DAMAGED, BUG, INTERRUPTED, UNREAD = 1, 2, 3, 4, 5, 70, 130, 141

#: The first matching class decides.
EXIT_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (errors.LeaseLost, LOST),
    (errors.InvalidArgument, USAGE),
    (errors.SettingsError, USAGE),
    (errors.TooLarge, USAGE),
    (errors.OpenError, CLOSED),
    (errors.Unauthenticated, CLOSED),
    (errors.Forbidden, CLOSED),
    (errors.StoreError, DAMAGED),
    (errors.Conflict, DAMAGED),
    (errors.CommitUnknown, DAMAGED),
    (errors.TenureError, NO),  # KeyConflict, QueueFull, NotFound, WaitTimeout, JournalTrimmed
    (OSError, DAMAGED),
    (Exception, BUG),
)

EXIT_CODE_HELP = (
    ("0", "done"),
    (
        "1",
        "the answer is no: nothing to claim, no such job or queue, the check found something, the queue refused the job",
    ),
    ("2", "the command line, a value or a setting is wrong; nothing was written"),
    ("3", "the lease is lost: the job is no longer this receipt's"),
    ("4", "the store cannot be opened, its owner does not listen, or a server refuses you"),
    ("5", "the store is damaged or cannot serve"),
    ("70", "a bug in Tenure"),
    ("130", "interrupted (Ctrl-C)"),
    ("141", "the reader of the output stopped reading"),
)

#: Advice for errors whose own message does not say what to do.
ADVICE: tuple[tuple[type[BaseException], str], ...] = (
    (errors.AlreadySettled, "Nothing to do: the first call took effect."),
    (errors.LeaseLost, "Do not settle it again; claim again."),
    (errors.KeyConflict, "Use another --key, or the same payload."),
    (errors.QueueFull, "Try again later, or raise the limit: tenure configure {queue} --max-waiting N."),
    (errors.QueueNotEmpty, "Settle the held jobs; --force removes the others."),
    (errors.QuotaExceeded, "Try again once some of it is done, or raise the limit: tenure quota {tenant}."),
    (errors.WaitTimeout, "Wait again, or show the job: tenure get."),
    (errors.Corrupt, "Run 'tenure check', then 'tenure check --repair', or go back to a snapshot."),
    (errors.Unavailable, "Fix the cause (a full disk?), then run the command again."),
)


class Command(click.Command):
    """A command with examples. Its help lists the common options last, and arguments in the usage line only."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        for param in self.params:
            if param.name in ("queue", "queues") and param.type is click.STRING:
                param.type = QUEUE

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                (common if isinstance(param, CommonOption) or param.name == "help" else own).append(record)
        for title, records in (("Options", own), ("Common options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for index, (says, line) in enumerate(self.examples):
                    if index:
                        formatter.write_paragraph()
                    formatter.write(f"{'':{formatter.current_indent}}# {says}\n")
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class CommonOption(click.Option):
    """An option of every command, accepted before and after the command's name."""


class Group(click.Group):
    """A group that suggests a command for a mistyped one only if the two are nearly the same word."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        near = get_close_matches(name, self.list_commands(ctx), 1, 0.75)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise click.UsageError(f"No such command '{name}'.{hint}", ctx)


class Family(Group):
    """A command with subcommands, each a `Command`."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for index, command in enumerate(self.commands.values()):
                says, line = command.examples[0] if isinstance(command, Command) else ("", "")
                if index:
                    formatter.write_paragraph()
                formatter.write(f"{'':{formatter.current_indent}}# {says}\n")
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Root(Group):
    """The group of all commands: lists them by theme, and turns exceptions into exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.themes: dict[str, list[str]] = {}

    def add_theme(self, title: str, commands: Sequence[click.Command]) -> None:
        for command in commands:
            self.add_command(command)
        self.themes[title] = [command.name or "" for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.themes.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(formatter.width)) for name in names])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl(EXIT_CODE_HELP)
        with formatter.section("A first look"):
            for line in (
                "tenure enqueue emails 'hello' --priority 5",
                "tenure claim emails --lease 60",
                "tenure ack emails RECEIPT",
                "tenure queues",
            ):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        args = sys.argv[1:] if args is None else list(args)
        extra["standalone_mode"] = False
        try:
            code = super().main(args, *rest, **extra)
        except click.ClickException as exc:
            _report_usage(exc, "--json" in args)
            code = USAGE
        except click.Abort:
            code = INTERRUPTED
        except OSError as exc:  # of the help, which is printed before a command begins
            code = _report(_output_error(exc), Session())
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        session = ctx.ensure_object(Session)
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
            raise
        except KeyboardInterrupt:
            _end_line()
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_stdout()
            raise click.exceptions.Exit(UNREAD) from None
        except Exception as exc:  # noqa: BLE001 - every error becomes a sentence; --debug shows the traceback
            raise click.exceptions.Exit(_report(_output_error(exc), session)) from None


def _output_error(error: Exception) -> Exception:
    """Return the error, with the name of standard output if that is what cannot be written: then discard the rest."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        _discard_stdout()
        return OSError(exc.errno, exc.strerror, "standard output") if isinstance(error, OSError) else error
    return error


def _report(exc: Exception, session: Session) -> int:
    code = next(code for kind, code in EXIT_CODES if isinstance(exc, kind))
    if session.debug:
        traceback.print_exception(exc)
    if isinstance(exc, errors.TenureError):
        name, message = exc.code, str(exc)
    elif isinstance(exc, OSError):
        name, message = "os", f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc)
    else:
        name, message = "bug", f"{type(exc).__name__}: {exc} (a bug in Tenure: --debug shows where)"
    advice = next((text for kind, text in ADVICE if isinstance(exc, kind)), "").format(
        queue=getattr(exc, "queue", ""), tenant=getattr(exc, "tenant", "")
    )
    notes = [advice, *getattr(exc, "__notes__", ())]
    session.out.problem(name, " ".join(part for part in (_sentence(message), *notes) if part))
    return code


#: Raised for a group without a command, with the help as its message. Before 8.2, click printed the help itself.
_NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


def _report_usage(exc: click.ClickException, as_json: bool) -> None:
    if isinstance(exc, _NO_COMMAND):
        if not as_json:
            click.echo(exc.format_message(), err=True)
            return
        exc = click.UsageError("Missing command.", getattr(exc, "ctx", None))
    message = _sentence(exc.format_message())
    context = getattr(exc, "ctx", None)
    if context is not None:
        message += f" See '{context.command_path} --help'."
    Output(as_json).problem("usage", clean(message))


def _sentence(message: str) -> str:
    return message if message.endswith((".", "?", "!")) else message + "."


def _end_line() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\n")  # after the ^C


def _discard_stdout() -> None:
    """Discard buffered output: its reader is gone, and the interpreter would fail to write it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            setattr(ctx.ensure_object(Session), name, value)

    return callback


def common_options(function: F) -> F:
    """Add the options that every command takes, before or after its name."""
    for declarations, name, help_text, extra in reversed(
        (
            (("--store", "-s"), "url", f"The store, as a URL: {', '.join(URL_FORMS.values())}.", {"metavar": "URL"}),
            (("--config", "-c"), "config", "Read settings from this TOML file.", {"metavar": "FILE"}),
            (("--tenant", "-t"), "given_tenant", "The queue's tenant ('default' if not given).", {"metavar": "NAME"}),
            (("--json",), "json", "One JSON object a line, for programs.", {"is_flag": True}),
            (("--debug",), "debug", "Log everything, and show an error's traceback.", {"is_flag": True}),
        )
    ):
        option = click.option(
            *declarations, cls=CommonOption, help=help_text, callback=_set(name), expose_value=False, **extra
        )
        function = option(function)
    return function


def command(name: str, *, examples: Sequence[tuple[str, str]], **kwargs: Any) -> Callable[[F], Command]:
    """Declare a command with its examples (purpose, command line) and the common options."""

    def decorate(function: F) -> Command:
        return click.command(name, cls=Command, examples=examples, **kwargs)(common_options(click.pass_obj(function)))

    return decorate


def no(session: Session, message: str) -> NoReturn:
    """Print the message and end with exit code 1: the answer is no."""
    if not session.json:
        session.out.say(message)
    raise click.exceptions.Exit(NO)

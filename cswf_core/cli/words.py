"""Words that a shell completes: recipes, keys and values of recipes, plugins, and folders of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from cswf_core.cli.completion_table import Table, read_table
from cswf_core.errors import printable


class Word(CompletionItem):
    """A word that a shell may complete, and its help; the shell reads a line of each, and shows them."""

    def __init__(self, value: str, help: str | None = None) -> None:
        super().__init__(printable(value), help=None if help is None else printable(help))


Words = list[CompletionItem]


def declared(ctx: click.Context, module: str) -> click.Command | None:
    """Return a command with its parameters only, as the table has them; None if it has none of that module."""
    described = _table(ctx)["commands"].get(module)
    if described is None:
        return None
    params = [_declared(param) for param in described["params"]]
    return click.Command(
        module.rpartition(".")[2], params=params, help=described["help"], add_help_option=False
    )


def _declared(described: Mapping[str, Any]) -> click.Parameter:
    """Return a parameter that can be completed."""
    takes = described["completes"]
    completer = None if takes == ["file"] else partial(_complete, takes)
    kind = click.Path() if takes == ["file"] else click.STRING
    if "opts" not in described:
        return click.Argument(
            [described["name"]], nargs=described["nargs"], required=False, type=kind, shell_complete=completer
        )
    names = "/".join(part[-1] for part in (described["opts"], described["others"]) if part)
    more = {} if described["flag"] else {"type": kind, "nargs": described["nargs"], "shell_complete": completer}
    flags = {"is_flag": described["flag"], "multiple": described["multiple"], "help": described["help"]}
    return click.Option([*described["opts"][:-1], names, described["name"]], **flags, **more)


def _complete(takes: list[str], ctx: click.Context, param: click.Parameter, incomplete: str) -> Words:
    """Return the words that a parameter may go on with."""
    table, earlier = _table(ctx), tuple(ctx.params.get(str(param.name)) or ())
    words: Words = []
    for kind in takes:
        if kind.startswith("="):
            words.append(Word(kind[1:]))
        elif kind == "recipe":
            words += [] if param.nargs == -1 and earlier else _recipes(table, incomplete)
        elif kind == "override":
            return words + _overrides(table["keys"], earlier, incomplete)
        elif kind == "run":
            words += map(Word, _runs(incomplete))
        elif kind == "file":
            words += map(Word, _paths(incomplete, ("",)))
        else:
            words += [Word(name, help=text) for name, text in table["kinds"].get(kind, {}).items()]
    return list({word.value: word for word in words if word.value.startswith(incomplete)}.values())


def plugin_names(ctx: click.Context, incomplete: str) -> Words:
    """Return the plugins whose names begin so, of all kinds."""
    kinds = _table(ctx)["kinds"].values()
    texts = {name: text for kind in kinds for name, text in kind.items() if name.startswith(incomplete)}
    return [Word(name, help=text or None) for name, text in texts.items()]


def _table(ctx: click.Context) -> Table:
    """Return the table, with the plugins of `--plugins-dir` if that has been written by now."""
    root = ctx.find_root().command
    assert isinstance(root, click.Group)
    folders = ctx.params.get("plugins_dir") or ()
    return read_table(root, [Path(folder).expanduser().absolute() for folder in folders])


def _recipes(table: Table, incomplete: str) -> Words:
    """Return the built-in recipes, and recipes that are files, in the folder that is being written."""
    names: Words = [Word(name, help=text or None) for name, text in table["recipes"].items()]
    paths = _paths(incomplete, (".yaml", ".yml"))
    return names + [Word(path) for path in paths if incomplete or not path.endswith("/")]


def _overrides(keys: Mapping[str, Any], earlier: tuple[str, ...], incomplete: str) -> Words:
    """Return keys of recipes, with the `=` or the dot that follows; or values, behind a key and its `=`.

    Bash takes `=` for a word of its own: then the key is among the words before, and only the value is wanted.
    """
    if "=" in incomplete:
        key, _, value = incomplete.partition("=")
        return _values(keys, key, value, f"{key}=")
    if earlier[-1:] == ("=",):
        return _values(keys, earlier[-2] if len(earlier) > 1 else "", incomplete, "")
    if not incomplete and earlier and earlier[-1] in keys and earlier[-2:-1] != ("=",):
        return _values(keys, earlier[-1], "", "")
    depth = incomplete.count(".")
    words: dict[str, str] = {}
    for key, entry in keys.items():
        if key.startswith(incomplete):
            parts = key.split(".")
            if len(parts) == depth + 1:
                words[f"{key}="] = entry["help"]
            else:
                words.setdefault(".".join(parts[: depth + 1]) + ".", "")
    return [Word(word, help=text or None) for word, text in words.items()]


def _values(keys: Mapping[str, Any], key: str, value: str, prefix: str) -> Words:
    """Return the values that a key may have."""
    known = keys.get(key, {"values": {}})["values"]
    return [Word(f"{prefix}{v}", help=text or None) for v, text in known.items() if v.startswith(value)]


def _runs(incomplete: str) -> Iterator[str]:
    """Yield folders of runs and of models, and other folders with the slash that leads further."""
    for path in _paths(incomplete, ()):
        folder = Path(path).expanduser()
        is_run = any((folder / name).is_file() for name in ("run.json", "model.json", "model/model.json"))
        yield path.rstrip("/") if is_run else path


def _paths(incomplete: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Yield folders, with a slash, and files with one of the endings, in the folder that is being written."""
    start, slash, name = incomplete.rpartition("/")
    try:
        inside = sorted(Path(f"{start}{slash}" or ".").expanduser().iterdir())
    except OSError:
        return
    for path in inside:
        hidden = path.name.startswith(".") and not name.startswith(".")
        if path.name.startswith(name) and not hidden and (path.is_dir() or path.name.endswith(endings)):
            yield f"{start}{slash}{path.name}{'/' if path.is_dir() else ''}"

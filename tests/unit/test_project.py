"""What the project says of itself is so: commands, links, paths, settings, versions, configuration files."""

import dataclasses
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import gateway
from adapter import AdapterConfig
from gateway import config
from gateway.cli.main import cli
from gateway.metrics import document
from gateway.wire.codes import Health, Lifecycle, State

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

#: What a public project does not speak of: one machine's paths, package registries' hosts, plans kept elsewhere.
FORBIDDEN = [
    r"/work/|/opt/(wheels|pypi)",
    r"\b(pypi\.org|pythonhosted\.org|registry\.npmjs|proxy\.golang)",
    r"(?<!docs/)(?<!\]\()\b(laws|design|measured|style|faults)\.md\b",
    r"\b[Rr]oom [A-F]\b|\blaws? [A-F]\.?\d|\b[Dd]esign §",
    r"(?i)\b(claude|anthropic|chatgpt|copilot|subagent|co-authored-by)\b",
    r"# (TODO|FIXME|XXX)\b",
]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _shell_lines(page: Path) -> Iterator[str]:
    for block in re.findall(r"^```console\n(.*?)^```", _text(page), re.DOTALL | re.MULTILINE):
        yield from (line.split(" #")[0].strip() for line in block.splitlines())


def _tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: which files belong to the project is not known")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30)
    return [path for name in listing.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def _parse(words: list[str]) -> click.Context:
    """The command line as click reads it, without running the command."""
    root = click.Context(cli)
    command = cli.get_command(root, words[0])
    assert command, f"there is no kvgate {words[0]}"
    return command.make_context(words[0], list(words[1:]), parent=root)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_on_pages_exist(page: Path) -> None:
    for line in _shell_lines(page):
        words = line.split()
        if words[:1] == ["make"] or words[1:2] == ["make"]:
            target = words[words.index("make") + 1]
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), line
        elif words and words[0].removeprefix(".venv/bin/") == "kvgate":
            _parse(words[1:])
        elif words[:1] == [".venv/bin/python"]:
            assert (ROOT / words[1]).is_file(), line
        else:
            assert words == [] or words[0] in {"curl", "export"}, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_named_in_prose_exist(page: Path) -> None:
    for target in re.findall(r"`(?:\w+=\S+ )?make ([a-z-]+)`", _text(page)):
        assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_on_pages_exist(page: Path) -> None:
    text = _text(page)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    paths = re.findall(r"`((?:gateway|adapter|dashboards|docs|examples|scripts|tests)/[\w./-]*)`", text)

    missing = [link for link in links if link and not (page.parent / link).exists()]
    missing += [path for path in paths if not (ROOT / path).exists()]

    assert missing == []


#: A test as the pages name it.
NAMED_TEST = r"`(tests/[\w/]+\.py)::(\w+)`"


@pytest.mark.parametrize("page", ["claims.md", "faults.md"])
def test_every_test_named_by_a_claim_or_a_fault_exists(page: str) -> None:
    named = re.findall(NAMED_TEST, _text(ROOT / "docs" / page))
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists()
        or not re.search(rf"^(?:def {name}\(|{name} = )", _text(ROOT / path), re.MULTILINE)
    ]

    assert len(named) > 50
    assert missing == []


def test_every_fault_has_a_test() -> None:
    rows = re.findall(r"^\|(?! as it was seen | ?---).*", _text(ROOT / "docs" / "faults.md"), re.MULTILINE)

    assert len(rows) > 100
    assert [row for row in rows if row.count(" | ") != 2 or not re.search(NAMED_TEST, row.split(" | ")[2])] == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", _text(folder / "README.md")))

    assert linked == {page.name for page in folder.glob("*.md")} - {"README.md"}


def test_the_readme_shows_the_example_that_is_tested() -> None:
    example = _text(ROOT / "examples" / "engine.py")
    shown = re.search(r"^```python\n(.*?)^```", _text(ROOT / "README.md"), re.DOTALL | re.MULTILINE)

    assert shown
    assert example.endswith(shown[1])
    assert "import" not in shown[1]


def test_the_metrics_page_is_up_to_date() -> None:
    assert _text(ROOT / "docs" / "metrics.md") == document.render()


def _rows(heading: str) -> list[list[str]]:
    """The cells of every table row of one section of the operations page, but for the heads."""
    section = _text(ROOT / "docs" / "operations.md").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in re.findall(r"^\| ?`.*", section, re.MULTILINE)
    ]


def _told_defaults(heading: str) -> dict[str, str]:
    return {name: default for cell, default, *_ in _rows(heading) for name in re.findall(r"`(\w+)`", cell)}


def _shown(default: object) -> str:
    """A default as the page writes it."""
    if default in (None, ""):
        return "none"
    if isinstance(default, int) and default >= 1 << 30:
        return f"{default >> 30}GiB"
    return f"{default:g}" if isinstance(default, int | float) else str(default)


def test_the_operations_page_has_every_setting_of_the_gateway() -> None:
    #: What a setting that is left open becomes.
    chosen = {
        "run_dir": "a new one",
        "admin_dir": "`<run_dir>.admin`",
        "slab_size": "chosen from `pool_size`",
        "min_chunk_bytes": "chosen from `pool_size`",
    }
    defaults = config.as_mapping(config.GatewayConfig())

    assert _told_defaults("Settings") == {name: chosen.get(name) or _shown(value) for name, value in defaults.items()}


def test_the_operations_page_has_every_setting_of_an_adapter() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(AdapterConfig)}

    assert _told_defaults("Settings of an adapter") == {name: _shown(value) for name, value in defaults.items()}


def test_the_operations_page_has_every_state() -> None:
    told = [re.findall(r"`(\w+)`", cell)[0] for cell, *_ in _rows("States")]
    states, healths, views = ([str(one) for one in kind] for kind in (Lifecycle, Health, State))

    assert [name for name in told if name in {*states, *healths, *views}] == [*states, *healths, *views]


def test_every_command_is_on_the_operations_page() -> None:
    told = set(re.findall(r"^\| `kvgate (\w+)`", _text(ROOT / "docs" / "operations.md"), re.MULTILINE))

    assert told == set(cli.list_commands(click.Context(cli)))


def test_versions_agree() -> None:
    assert PROJECT["version"] == gateway.__version__
    assert f"## {gateway.__version__}" in _text(ROOT / "CHANGELOG.md")


def test_everything_is_pinned_once() -> None:
    def normal(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins = [line.split("==") for line in _text(ROOT / "constraints.txt").splitlines()]
    needed = [*PROJECT["dependencies"], *(d for extra in PROJECT["optional-dependencies"].values() for d in extra)]

    names = [normal(name) for name, _ in pins]
    assert len(set(names)) == len(names)
    assert {normal(re.match(r"[\w.-]+", need)[0]) for need in needed} <= set(names)  # type: ignore[index]
    assert not any("+" in version for _, version in pins)


def test_scripts_can_be_run() -> None:
    for name in (".ci/run", "scripts/install-servers", "scripts/setup-vllm"):
        assert os.access(ROOT / name, os.X_OK), name
        subprocess.run(["bash", "-n", ROOT / name], check=True, timeout=30)


def test_nothing_private_is_told() -> None:
    rules = [re.compile(rule) for rule in FORBIDDEN]
    found = []
    for path in _tracked():
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if any(rule.search(line) for rule in rules):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")

    assert found == []


@pytest.mark.parametrize(
    "line", ["see /work/" + "main", "as in laws" + ".md A2", "# TO" + "DO later", "by Cla" + "ude"]
)
def test_a_private_word_would_be_found(line: str) -> None:
    assert any(re.search(rule, line) for rule in FORBIDDEN)

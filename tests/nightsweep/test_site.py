"""The pages: every link leads to a page and a heading that are there, every command is one that there is, and the
site's navigation has every page."""

import importlib.util
import re
import shlex

import pytest
import yaml

from nightsweep.analysis.tools import cli
from nightsweep.jobs.host.facts import ROOT

FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
COMMAND = re.compile(r"^(?: {4})?(nightsweep|snakemake|make|python -m) +(\S.*?)(?:  +#.*)?$", re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def pages():
    listed = [*ROOT.glob("*.md")]
    for folder in ("config", "data/*", "docs", "profiles/*", "workflow/plugins/*"):
        listed += ROOT.glob(f"{folder}/*.md")
    return sorted(listed)


def anchors(page):
    """What a link may name after #, as GitHub and MkDocs make it of a heading."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    count = 0
    for page in pages():
        for link in LINK.findall(FENCED.sub("", page.read_text())):
            name, _, anchor = link.partition("#")
            if name.startswith("https:"):
                continue
            target = page if not name else (page.parent / name).resolve()
            assert target.is_file(), f"{page}: {link}"
            assert not anchor or anchor in anchors(target), f"{page}: {link}"
            count += 1
    assert count > 50


def commands():
    for page in pages():
        for program, rest in COMMAND.findall(page.read_text().replace("\\\n", " ")):
            # A usage names what may be left out in brackets.
            yield page.relative_to(ROOT), program, shlex.split(re.sub(r"\[.*?\]", "", rest).replace("$NS", str(ROOT)))


def test_every_command_is_understood_as_it_is_written(monkeypatch):
    """Not what it does: other tests run them."""
    from snakemake.cli import get_argument_parser  # takes long, and each worker imports this file

    monkeypatch.chdir(ROOT)
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.M))
    parsers = {"nightsweep": cli.parser(), "snakemake": get_argument_parser()}
    found = list(commands())
    for page, program, words in found:
        try:
            if program == "make":
                assert {word for word in words if "=" not in word} <= targets
            elif program == "python -m":
                assert importlib.util.find_spec(words[0])
            else:
                parsers[program].parse_args(words)
        except (SystemExit, AssertionError):
            pytest.fail(f"{page}: {program} {shlex.join(words)}")
    assert len(found) > 50


def named(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else named(value)


def test_the_navigation_has_every_page_once():
    listed = list(named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(listed) == sorted(page.relative_to(ROOT).as_posix() for page in pages())

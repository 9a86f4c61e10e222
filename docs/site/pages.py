"""MkDocs' hook: the site has the pages where the repository has them, so that a link is the same in both."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

FILES = ("*.md", "config/*.md", "data/*/*.md", "docs/*.md", "docs/pictures/*", "docs/site/*.*s", "profiles/*/*.md",
         "workflow/plugins/*/*.md")  # fmt: skip
NAMED = re.compile(r"(?<!\[)`((?:[\w.-]+/)*[\w.-]+\.md)`(?!\])")
"""A page that a text names without a link."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, and the repository's pages instead of those of docs/ alone."""
    root = Path(config.config_file_path).parent
    kept = [file for file in files if file.src_dir != config.docs_dir]
    found = sorted(path.relative_to(root).as_posix() for pattern in FILES for path in root.glob(pattern))
    return Files([*kept, *(File(name, str(root), config.site_dir, config.use_directory_urls) for name in found)])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links to the pages that it names."""
    here = posixpath.dirname(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        name = found[1]
        target = next((n for n in (name, posixpath.join(here, name)) if files.get_file_from_path(n)), None)
        return f"[`{name}`]({posixpath.relpath(target, here)})" if target else found[0]

    return NAMED.sub(link, markdown)

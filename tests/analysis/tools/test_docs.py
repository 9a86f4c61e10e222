"""Pages that are written from the code are as the code has them now."""

import pytest

from nightsweep.analysis.tools import docs
from nightsweep.jobs.host.facts import ROOT


@pytest.mark.parametrize("name", docs.PAGES)
def test_the_page_is_fresh(name):
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run python -m nightsweep.analysis.tools.docs"

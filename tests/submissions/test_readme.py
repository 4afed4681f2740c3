from __future__ import annotations

import pytest

from tests.submissions import readme_page


@pytest.mark.slow
def test_the_readme_shows_the_first_entry() -> None:
    readme = readme_page.PAGE.read_text("utf-8")
    assert readme_page.page(readme) == readme, "python -m tests.submissions.readme_page"

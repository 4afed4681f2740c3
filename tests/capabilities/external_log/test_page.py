"""docs/capabilities/external_log.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs import tutorial_page

PAGE = (Path(__file__).parents[3] / "docs/capabilities/external_log.md").read_text("utf-8")


@pytest.mark.exhaustive
def test_the_pretended_meter_of_the_page_is_read(tmp_path: Path) -> None:
    (block,) = (text for text in tutorial_page.typed(PAGE) if "mixmark meters" in text)
    for name, text in tutorial_page.files(PAGE).items():
        (tmp_path / name).write_text(text, "utf-8")
    environment = tutorial_page.shell(tmp_path)
    done = subprocess.run(
        ["bash", "-c", f"{block}kill $!"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert re.search(r"^external .* wall .* \d+ ms .* W ", done.stdout, re.MULTILINE), done.stdout + done.stderr

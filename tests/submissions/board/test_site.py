from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from mixmark.harness.contracts.errors import UsageError
from mixmark.harness.contracts.figures import Estimate
from mixmark.harness.contracts.numbers import significant
from mixmark.harness.contracts.schema import Device, Hosts
from mixmark.harness.judge.findings import words
from mixmark.submissions.board import row
from mixmark.submissions.board.rank import boards
from mixmark.submissions.board.site import build, pages
from mixmark.submissions.conclude import machine_of
from mixmark.submissions.entry import Entry, Reproduction
from mixmark.submissions.verdict import classes
from tests.golden.sample import system
from tests.reporters.parsed import Page
from tests.submissions.board.made import SITE, crowd, hostile
from tests.submissions.entries import made
from tests.submissions.test_hosts import ONYX, named


def written(entries: list[Entry]) -> dict[str, str]:
    return dict(pages(SITE, boards(entries), sorted(entries, key=lambda entry: entry.path)))


CROWDS = {
    "none": [],
    "one": crowd(1),
    "many": crowd(60),
    "unknown mix": [made(3).model_copy(update={"mix": "unknown-9"}), made(4)],
    "hostile": [hostile(number) for number in range(8)],
}


@pytest.mark.parametrize("entries", CROWDS.values(), ids=CROWDS)
def test_every_link_inside_leads_somewhere_and_nothing_comes_from_outside(entries: list[Entry]) -> None:
    files = written(entries)
    for name, content in files.items():
        if not name.endswith(".html"):
            continue
        page = Page(content)
        ids = page.values("id")
        assert len(ids) == len(set(ids)), name
        names = [attribute for _, attribute, _ in page.attributes]
        assert not [found for found in names if found.startswith("on") or found == "style"], name
        for tag, attribute, target in page.attributes:
            if attribute not in ("href", "src"):
                continue
            if target.startswith(("https://", "http://")):
                assert tag == "a" and "noreferrer" in content, "a declared source, which a reader may follow"
            elif not target.startswith("data:"):
                where, _, anchor = target.partition("#")
                there = (Path("/") / Path(name).parent / unquote(where)).resolve() if where else Path("/") / name
                assert str(there)[1:] in files, f"{name}: {target}"
                if anchor:
                    assert anchor in (Page(files[str(there)[1:]]).values("id") if where else ids)
        assert "default-src 'none'" in "".join(page.values("content"))
        assert "unsafe" not in "".join(page.values("content"))
    for sheet in ("style.css", "board.js"):
        assert "http" not in files[sheet].replace("http://www.w3.org/2000/svg", "")


def test_texts_of_an_entry_stay_text() -> None:
    calm, wild = written(crowd(8)), written(CROWDS["hostile"])
    tags = {tag for name, content in calm.items() if name.endswith(".html") for tag in Page(content).tags}
    for name, content in wild.items():
        if name.endswith(".html"):
            page = Page(content)
            assert set(page.tags) <= tags, name
            assert not any(target.startswith(("javascript:", "vbscript:")) for target in page.values("href", "src"))
    home = next(content for name, content in wild.items() if name.startswith("entries/") and name.endswith(".html"))
    assert "<script>document.title='owned'</script>" in " ".join(Page(home).words), "and it is shown"


def test_the_table_is_there_without_a_script_and_has_every_figure_of_the_json() -> None:
    entries = crowd(60)
    files = written(entries)
    data = json.loads(files["leaderboard.json"])
    by_path = {entry["entry"]: entry for entry in data["entries"]}
    assert data["boards"], "else this test could not fail"
    for board in data["boards"]:
        content = files[board["page"]]
        rows = re.findall(r'<tr role="row" data-organisation=.*?</tr>', content, re.DOTALL)
        listed = [*board["ranked"], *board["not_ranked"]]
        assert len(rows) == len(listed)
        for text, place in zip(rows, listed, strict=True):
            row, entry = Page(text), by_path[place["entry"]]
            assert f"../entries/{place['entry']}/index.html" in row.values("href")
            assert entry["system"] in row.text and entry["measured"] in row.text
            assert entry["mixmark"] not in row.text, "versions are on the page of the entry"
            assert "16 cores, 32 threads, 64.0 GiB" in row.text, "what one buys"
            assert all(significant(alone["units_per_s"]) in row.text for alone in entry["alone"].values())
            if entry["price"]:
                each = float(entry["price"]["amount"]) / entry["mixes_per_hour"]["estimate"]
                assert each == pytest.approx(entry["price_per_mix_per_hour"])
                assert "rank" not in place or f"{significant(each)} EUR per mix/h" in row.text
            assert ("stale" in row.text) == bool(entry["stale"])
            if "rank" in place:
                assert row.text.startswith(f"{place['rank']} =" if place["tied"] else f"{place['rank']} ")
    first = data["boards"][0]
    assert Page(files["index.html"]).text == Page(files[first["page"]]).text.replace("../", "")


def test_each_board_leads_to_all_boards() -> None:
    files = written(crowd(60))
    names = {name for name in files if name.startswith("boards/")}
    for name in names:
        assert re.findall(r'<a href="([^"]+)" aria-current="true"', files[name]) == [f"../{name}"]
        assert {f"../{other}" for other in names} <= set(Page(files[name]).values("href"))


def test_an_old_entry_is_marked_on_every_page_that_shows_it() -> None:
    entry = made(1).model_copy(update={"ended_utc": "2026-11-01T00:00:00+00:00", "suites": {"llm": "0", "dlrm": "1"}})
    files = written([entry])
    assert "llm was version 0 and is now version 1" in files["index.html"]
    assert "llm was version 0 and is now version 1" in files[f"entries/{entry.path}/index.html"]
    fresh = SITE.__class__(**{**vars(SITE), "versions": {}})
    assert ">stale<" in files["index.html"]
    assert ">stale<" not in dict(pages(fresh, boards([entry]), [entry]))["index.html"]


def test_the_page_of_an_entry_says_all_of_it() -> None:
    entries = (entry for entry in crowd(50) if entry.declaration.price and entry.mixes_per_kwh and entry.ranked)
    entry = next(entries)
    declared = entry.declaration
    files = written([entry])
    page = Page(files[f"entries/{entry.path}/index.html"])
    assert re.search(r"This system does one \w+ mix \(\d+ LLM tokens, .*\) in .* and takes .* for it\.", page.text)
    for word in (
        *(declared.organisation, declared.system, declared.origin, f"{declared.price} on 2026-01-02"),
        *("Rank 1 of 1", "mixmark run --preset official", f"mixmark check {entry.path}", entry.results[0]),
        *(entry.machine.whole.kernel, "torch 2.9.0", words(entry.findings[0]), "Declared, not measured"),
    ):
        assert word in page.text, word
    linked = dict(pages(SITE, boards([entry]), [entry], lambda each: {"report-1.html": "<!doctype html>"}))
    assert linked[f"entries/{entry.permanent}/report-1.html"] == "<!doctype html>"
    assert '/report-1.html"' in linked[f"entries/{entry.path}/index.html"]


def test_a_replaced_entry_keeps_its_address_and_is_on_no_board() -> None:
    newest = next(entry for entry in crowd(50) if entry.ranked and entry.mixes_per_kwh)
    update = {"replaced": True, "ended_utc": "2025-06-01T00:00:00+00:00", "results": ("a" * 64,)}
    former = newest.model_copy(update=update)
    files = written([newest, former])
    before = written([former.model_copy(update={"replaced": False})])
    address, old = f"entries/{newest.path}/index.html", f"entries/{former.permanent}/index.html"
    assert old in before and f"entries/{newest.permanent}/index.html" in files
    assert files[address] == files[f"entries/{newest.permanent}/index.html"]
    shown = Page(files[old])
    assert "the system was entered again, so this entry is on no board." in shown.text
    for page, this in ((files[address], newest), (files[old], former)):
        history = Page(page).text.split("History")[2].partition("Reproduce it")[0]
        assert history.index(newest.ended_utc[:10]) < history.index("2025-06-01")
        assert history.count("this entry") == 1
        assert f"../{this.permanent.rpartition('/')[2]}/index.html" in page
    assert f"mixmark check {former.permanent}" in shown.text and "The entry that counts now" in shown.text
    assert "The entry that counts now" not in written([former])[old], "it was withdrawn, and nothing took its place"
    assert "History" not in before[f"entries/{former.path}/index.html"]
    board = json.loads(files["leaderboard.json"])
    assert ([each["measured"] for each in board["replaced"]], len(board["entries"])) == (["2025-06-01"], 1)
    assert all(len(each["ranked"]) == 1 for each in board["boards"])


def test_a_disturbed_entry_says_so_first_and_each_class_stands_once() -> None:
    entry = next(entry for entry in crowd(50) if entry.grade == "ranked")
    calm = Page(written([entry])[f"entries/{entry.path}/index.html"]).text
    reasons = {"grade": ("its verdict is disturbed",), "verdict": ("other machines took 7 %",)}
    update = {"verdict": "disturbed", "grade": "indicative", "ranked": False, "reasons": reasons}
    files = written([entry.model_copy(update=update)])
    words = Page(files[f"entries/{entry.path}/index.html"]).text
    assert "disturbed" not in calm and "do not rely on these figures: other machines took 7 %." in words
    assert words.count("other machines took 7 %") == 1 and "other machines" not in Page(files["index.html"]).text
    assert words.index("do not rely") < words.index("This system does one")
    rows = [line[0] for line in classes(entry)]
    assert len(rows) == len(set(rows)) and "ranked" not in rows
    assert ("grade", "ranked", "not official: 3 of 5 runs") in classes(entry)
    shared = entry.without_rank("it holds a run of another entry")
    assert ("grade", "disputed", "it holds a run of another entry") in classes(shared)
    files = written([shared])
    for page in ("index.html", f"entries/{entry.path}/index.html"):
        assert "disputed" in files[page] and not re.search("(, |· |[0-9] )ranked(,| ·)", Page(files[page]).text)


def test_suites_have_the_order_of_the_mix_on_every_page() -> None:
    entry = made(1).model_copy(update={"mix": "edge-1", "suites": {"resnet50": "3", "dlrm": "2", "llm": "1"}})
    entry = entry.model_copy(update={"solos": tuple(reversed(entry.solos))})
    page = Page(written([entry])[f"entries/{entry.path}/index.html"])
    shown = page.text.split("Each suite alone")[2]
    order = ["llm, version 1", "diffusion, version 1", "dlrm, version 1", "resnet50, version 1"]
    assert sorted(order, key=shown.index) == order
    assert "llm version 1, dlrm version 2, resnet50 version 3" in page.text


def test_an_entry_without_efficiency_says_why_in_its_first_sentence() -> None:
    entry = next(entry for entry in crowd(50) if entry.mixes_per_kwh is None)
    assert "Its efficiency is not measured: no meter was read." in written([entry])[f"entries/{entry.path}/index.html"]


def test_a_site_replaces_an_older_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "new" / "site"
    build(SITE, crowd(5), out)
    left = out / "entries" / made(0).path / "index.html"
    assert left.is_file()
    build(SITE, [made(1)], out)
    assert not left.exists() and (out / "index.html").is_file()
    assert [path.name for path in out.parent.iterdir()] == ["site"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(UsageError, match="no leaderboard"):
        build(SITE, [], tmp_path / "photos")
    assert (tmp_path / "photos" / "cat.jpg").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="no leaderboard"):
        build(SITE, [], tmp_path / "file")
    with pytest.raises(UsageError, match="cannot write"):
        build(SITE, [], tmp_path / "file" / "site")


def test_the_same_entries_make_the_same_site_in_any_order() -> None:
    entries = crowd(40)
    assert written(entries) == written(entries[::-1])
    later = SITE.__class__(**{**vars(SITE), "today": datetime.date(2030, 1, 1)})
    data = json.loads(dict(pages(later, boards(entries), entries))["leaderboard.json"])
    assert all(entry["stale"] for entry in data["entries"])


def test_a_reader_is_told_how_to_enter_on_every_board_and_on_an_empty_one() -> None:
    for entries in (crowd(60), []):
        words = Page(written(entries)["index.html"]).text
        for command in ("mixmark run --preset ranked", "mixmark submit", "mixmark check"):
            assert command in words


def test_a_board_without_a_ranked_entry_shows_the_nearest_first_and_what_it_lacks() -> None:
    def lacking(number: int, *reasons: str) -> Entry:
        changes = {"mix": "edge-1", "weight_class": 16, "division": "closed", "ranked": False, "mixes_per_kwh": None}
        entry = made(number)
        return entry.model_copy(update={**changes, "reasons": {"ranked": reasons}})

    far, near = lacking(1, "1 of 3 runs", "a window of 9 s of 60 s"), lacking(2, "2 of 3 runs")
    for first, second in ((far, near), (near, far)):
        faster = first.model_copy(update={"mixes_per_hour": Estimate(100.0)})
        words = Page(written([faster, second])["index.html"]).text
        assert "No system is ranked on this board yet" in words
        assert words.index("No rank: 2 of 3 runs") < words.index("No rank: 1 of 3 runs; a window of 9 s of 60 s")


def test_a_run_in_two_entries_stands_last_and_where_it_was_entered_first_comes_before_its_copy() -> None:
    slow = alike(2, 1.0).model_copy(update={"grade": "indicative", "reasons": {"grade": ("1 of 3 runs", "no probe")}})
    original = alike(3, 200.0).without_rank("shared").model_copy(update={"ended_utc": "2026-01-01T00:00:00+00:00"})
    declared = original.declaration.model_copy(update={"organisation": "Aaa"})  # the first by name
    copy = original.model_copy(update={"declaration": declared, "ended_utc": "2026-01-02T00:00:00+00:00"})
    for ranked in (True, False):
        fast = alike(1, 100.0).model_copy(update={"ranked": ranked})
        calm = [fast, slow.model_copy(update={"ranked": False})]
        [board] = boards([copy, original, *calm])
        assert [place.entry for place in (*board.ranked, *board.unranked)] == [*calm, original, copy]


def alike(number: int, speed: float) -> Entry:
    """An entry of the one board without MX."""
    same = {"mix": "edge-1", "weight_class": 16, "division": "closed", "boundary": None, "mixes_per_kwh": None}
    update = {**same, "ranked": True, "reasons": {}, "mixes_per_hour": Estimate(speed, speed * 0.9, speed * 1.1)}
    return made(number).model_copy(update=update)


def test_a_reproduction_counts_if_the_entry_of_the_other_party_confirms_it() -> None:
    def party(name: str, *reproduced_by: str) -> Entry:
        runs = tuple(
            Reproduction(by=other, url="https://example.org/run", date=datetime.date(2026, 2, 3))
            for other in reproduced_by
        )
        entry = alike(1, 10.0)
        declared = entry.declaration.model_copy(update={"organisation": name, "reproduced_by": runs})
        return entry.model_copy(update={"declaration": declared})

    own, other = party("Acme", "Borealis"), party("Borealis", "Acme")
    machine = other.machine.model_copy(update={"whole": ONYX})
    for candidate, confirmed in (
        (other, True),
        (party("Borealis"), False),
        (party("Cobalt", "Acme"), False),
        (other.model_copy(update={"mixes_per_hour": Estimate(20.0, 19.0, 21.0)}), False),
        (other.model_copy(update={"machine": machine}), False),
        (other.without_rank("it holds a run of Acme"), False),
        (other.model_copy(update={"ranked": False}), False),
        (other.model_copy(update={"replaced": True}), False),
        (other.model_copy(update={"division": "open"}), False),
        (other.model_copy(update={"ended_utc": "2025-01-02T03:04:05+00:00"}), False),
        (other.model_copy(update={"mixes_per_hour": Estimate(10.0, 9.1, 10.9)}), True),
        (other.model_copy(update={"mixes_per_hour": Estimate(10.0, 1.0, 1e9)}), False),
        (other.model_copy(update={"mixes_per_hour": Estimate(10.0)}), False),
    ):
        files = written([own, candidate])
        [run] = next(
            each["reproduced_by"]
            for each in json.loads(files["leaderboard.json"])["entries"]
            if each["organisation"] == "Acme"
        )
        assert (run["confirmed_by"] == other.path) == confirmed
        page = Page(files[f"entries/{own.path}/index.html"]).text
        assert ("Reproduced by Borealis, 2026-02-03; its entry confirms it" in page) == confirmed
        assert ("Reproduced, as declared Borealis, 2026-02-03; no entry confirms it" in page) != confirmed
    own_word = party("Acme", "Acme")
    assert [each for _, each in row.reproductions(own_word, [own_word], SITE)] == [None]


def test_every_page_says_whom_to_ask_and_who_may_use_the_data() -> None:
    told = {"contact": "board@example.org", "licence": "CC BY 4.0"}
    site = SITE.__class__(**{**vars(SITE), **told})
    entries = crowd(6)
    files = dict(pages(site, boards(entries), entries))
    shown = {name: Page(content) for name, content in files.items() if name.endswith(".html")}
    assert shown and all("mailto:board@example.org" in page.values("href") for page in shown.values())
    assert all("Licence of the data: CC BY 4.0." in page.text for page in shown.values())
    data = json.loads(files["leaderboard.json"])
    assert {name: data[name] for name in told} == told


def test_a_board_says_who_makes_it_and_its_newest_entries_are_a_feed() -> None:
    entries = crowd(60)
    site = SITE.__class__(**{**vars(SITE), "url": "https://example.org/board/", "about": "A lab.\n\nWe measure."})
    files = dict(pages(site, boards(entries), entries))
    assert "A lab. We measure." in Page(files["about.html"]).text
    feed = ElementTree.fromstring(files["feed.xml"])
    atom = "{http://www.w3.org/2005/Atom}"
    dates = [str(each.findtext(f"{atom}updated")) for each in feed.iter(f"{atom}entry")]
    assert len(dates) == 50 and dates == sorted(dates, reverse=True) and feed.findtext(f"{atom}updated") == dates[0]
    addresses = [str(each.findtext(f"{atom}id")).removeprefix(site.url) for each in feed.iter(f"{atom}entry")]
    assert addresses and {*addresses} <= {*files}
    bare = written(entries)
    assert not {"about.html", "feed.xml"} & {*bare} and "feed.xml" not in bare["index.html"]
    wild = dict(pages(site, boards(CROWDS["hostile"]), CROWDS["hostile"]))["feed.xml"]
    assert "<script" not in wild and len([*ElementTree.fromstring(wild).iter(f"{atom}entry")]) == 8


def test_a_suite_of_the_editor_is_none_of_the_board() -> None:
    site = SITE.__class__(**{**vars(SITE), "versions": {"llm": "2", "mine": "1"}})
    entries = crowd(1)
    assert json.loads(dict(pages(site, boards(entries), entries))["leaderboard.json"])["suites"] == {"llm": "2"}


def test_an_entry_says_how_often_its_windows_were_begun_and_resumed() -> None:
    entry = made(1).model_copy(update={"started": 7, "begun": 31, "resumed": 2})
    files = written([entry])
    words = "7 begun, 31 windows begun in all, resumed 2 times"
    assert words in Page(files[f"entries/{entry.path}/index.html"]).text
    [shown] = json.loads(files["leaderboard.json"])["entries"]
    assert (shown["started"], shown["begun"], shown["resumed"]) == (7, 31, 2)


def test_a_link_to_a_page_has_a_title_and_a_description() -> None:
    site = SITE.__class__(**{**vars(SITE), "url": "https://example.org/board/"})
    entries = crowd(40)
    for name, text in pages(site, boards(entries), entries):
        if name.endswith(".html"):
            told = dict(re.findall(r'<meta (?:property|name)="(og:[a-z_]+|description)" content="([^"]*)">', text))
            assert told["og:title"] and told["og:description"] == told["description"]
            assert told["og:url"] == f"{site.url}{name}"


def test_the_board_lists_equal_processors_of_hosts_once() -> None:
    groups = (Hosts(names=("host1", "host3"), system=system()), Hosts(names=("host2",), system=ONYX))
    machine = machine_of(named("host1", "host2", "host3").model_copy(update={"hosts": groups}))
    slices = tuple(
        Device(id=f"{host}/cpu:0.{at}", kind="cpu", memory_pool=f"{host}/host", slice_of=f"{host}/cpu:0", cores=(at,))
        for host in ("host1", "host2")
        for at in range(2)
    )
    entry = Entry.model_construct(machine=machine.model_copy(update={"devices": slices}))
    assert row.devices(entry) == ["Acme Quartz 9000", "Acme Onyx"]
    assert row.device_name(entry, "host2/cpu:0.1") == "Acme Onyx"

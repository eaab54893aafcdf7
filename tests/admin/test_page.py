"""The operator's page in a real browser: live, by keyboard, with the token, with the core silent or gone."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from gateway.wire import messages
from gateway.wire.codes import DrainOutcome, ErrorCode, Lifecycle, OutcomeKind
from gateway.wire.messages import Done, Drained, Remaining, Resume, SnapshotRequest
from tests.support import core_double
from tests.support.admin_process import AdminProcess
from tests.support.browser import running_browser
from tests.support.busy import Busy
from tests.support.core_double import CoreDouble, snapshot
from tests.support.poll import until

#: The machine may have much to do.
expect.set_options(timeout=20_000)

TOKEN = {"KVGATE_ADMIN_TOKEN": "secret"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from running_browser()


class Watched:
    """One page of one origin; whatever it did wrong is told at the end."""

    def __init__(self, browser: Browser, url: str, **context: object) -> None:
        self.url = url
        self._context = browser.new_context(**context)
        self.page: Page = self._context.new_page()
        self.faults: list[str] = []
        self.requested: list[str] = []
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(url + "/")

    def close(self) -> None:
        self._context.close()
        elsewhere = [url for url in self.requested if not url.startswith(self.url + "/")]
        assert elsewhere == [], "the page asked somebody else"
        assert not any("secret" in url for url in self.requested), "the token stood in an address"


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Watched]]:
    opened: list[Watched] = []

    def opens(url: str, **context: object) -> Watched:
        opened.append(Watched(browser, url, **context))
        return opened[-1]

    yield opens
    for watched in opened:
        watched.close()


@pytest.fixture
def watched(open_page: Callable[..., Watched], api: httpx.Client, core: CoreDouble) -> Iterator[Watched]:
    """The page of a healthy gateway; nothing may have gone wrong in its console."""
    healthy(core)
    watched = open_page(str(api.base_url).rstrip("/"))
    expect(watched.page.locator("#link-text")).to_contain_text("Live")
    yield watched
    assert watched.faults == []


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


def healthy(core: CoreDouble, **changes: object) -> None:
    core.answers[SnapshotRequest] = lambda _: snapshot(
        engines=(core_double.engine(last_heartbeat_at=time.time()),), **changes
    )


def sent(core: CoreDouble, kind: type[messages.Request], number: int = 1) -> list:
    """What the page asked the core for: a dialog closes before its request has arrived."""
    until(lambda: len(core.asked(kind)) >= number, what=f"{kind.__name__} arrives")
    return core.asked(kind)


def line(page: Page) -> Locator:
    return page.locator("#verdict-line")


# -- it shows what is --------------------------------------------------------------------------------------------------


def test_it_shows_verdict_engines_transfers_and_checks(page: Page, core: CoreDouble) -> None:
    expect(line(page)).to_have_text("All is well: serving 1 engine, 3 operations pending.")
    row = page.locator("#engines tbody tr")
    expect(row).to_have_count(1)
    assert [cell.strip() for cell in row.locator("td.number").all_inner_texts()][:3] == ["2", "1", "3"]
    assert page.locator("#checks li").count() == 4
    story = (core_double.transfer(1, "r-1"), core_double.transfer(2, "r-2", outcome=OutcomeKind.FAILED))
    healthy(core, transfers=story)
    expect(page.locator("#transfers tbody tr")).to_have_count(2)
    page.get_by_label("Show only this request or engine").fill("r-2")
    expect(page.locator("#transfers tbody tr")).to_have_count(1)
    expect(page.locator("#transfers tbody")).to_contain_text("failed")


def test_an_empty_gateway_says_that_nothing_has_come(page: Page, core: CoreDouble) -> None:
    core.says(SnapshotRequest, snapshot(engines=()))
    expect(line(page)).to_have_text("All is well, and no engine is here.")
    expect(page.locator("#engines-none")).to_be_visible()


def test_what_an_engine_calls_itself_is_text(page: Page, core: CoreDouble) -> None:
    evil = "<img src=x onerror=alert(1)>"
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    core.says(
        SnapshotRequest,
        snapshot(
            engines=(core_double.engine(evil, model="<script>alert(2)</script>", last_heartbeat_at=time.time()),),
            transfers=(core_double.transfer(1, '"><svg onload=alert(3)>'),),
            drain=core_double.drain(
                state=Lifecycle.READY, finished_at=7.0, outcome=DrainOutcome.CANCELLED, reason=evil
            ),
        ),
    )
    expect(page.locator("#engines tbody")).to_contain_text(evil)
    expect(page.locator("#drain-text")).to_contain_text(evil)
    expect(page.locator("#transfers tbody")).to_contain_text('"><svg onload')
    assert page.locator("main :is(img, script, svg svg)").count() == 0


def test_worst_engines_come_first_and_one_that_left_is_gone(page: Page, core: CoreDouble) -> None:
    now = time.time()
    core.answers[SnapshotRequest] = lambda _: snapshot(
        engines=(
            core_double.engine("calm", last_heartbeat_at=time.time()),
            core_double.engine("left", parties=(), pending_stores=0, pending_retrieves=0, retained_events=0),
            core_double.engine("mute", last_heartbeat_at=now - 30),
        )
    )
    expect(page.locator("#engines tbody tr")).to_have_count(3)
    page.mouse.move(2, 2)
    names = page.locator("#engines tbody th span")
    expect(names).to_have_text(["mute", "calm", "left"])
    expect(page.locator("#engines tbody tr").nth(0)).to_contain_text("silent for")
    expect(page.locator("#engines tbody tr").nth(2)).to_contain_text("gone")
    expect(line(page)).to_contain_text("engine mute: silent for")
    core.answers[SnapshotRequest] = lambda _: snapshot(
        engines=(core_double.engine("calm", last_heartbeat_at=time.time()),)
    )
    expect(names).to_have_text(["calm"])


def test_charts_draw_what_the_totals_grew_by(open_page: Callable[..., Watched], tmp_path: Path) -> None:
    busy = Busy(8)
    with CoreDouble(tmp_path) as core:
        core.answers[SnapshotRequest] = lambda asked: busy.with_transfers(asked.max_transfers)
        with AdminProcess(core.run_dir) as admin:
            watched = open_page(admin.url)
            saved = watched.page.locator("#saved-chart")
            expect(saved).to_have_attribute("aria-label", re.compile(r"tokens a second: now \d\.\dk, highest \d\.\dk"))
            expect(watched.page.locator("#hits")).to_have_text(re.compile(r"[3-9]\d %"))
            expect(saved.locator(".line")).to_have_attribute("d", re.compile("^M.* L"))
            assert watched.faults == []


# -- changes -----------------------------------------------------------------------------------------------------------


def test_a_drain_by_keyboard_with_confirmation_and_live_progress(page: Page, core: CoreDouble) -> None:
    core.says(messages.Drain, Drained(number=0, boot=b"", already=False, drain=core_double.drain()))
    page.get_by_role("button", name="Drain…", exact=True).focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog).to_contain_text("Drain the gateway?")
    assert core.asked(messages.Drain) == [], "nothing happens before it is confirmed"
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Drain…", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("45")
    page.keyboard.press("Tab")
    page.keyboard.type("kernel update")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    (asked,) = sent(core, messages.Drain)
    assert (asked.deadline_seconds, asked.reason, asked.requested_by) == (45.0, "kernel update", "page")

    def draining(done: int, left: int) -> None:
        drain = core_double.drain(
            done=done, remaining=Remaining(operations=left, leases=0), deadline_at=time.time() + 30
        )
        core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINING, ready=False, drain=drain))

    progress = page.get_by_role("progressbar")
    for done, left in ((1, 3), (3, 1)):
        draining(done, left)
        expect(progress).to_have_js_property("value", done)
        expect(progress).to_have_js_property("max", 4)
        expect(page.locator("#drain-text")).to_contain_text(f"{left} operation")
    expect(page.get_by_role("status")).to_contain_text("draining")
    over = core_double.drain(state=Lifecycle.DRAINED, finished_at=7.0, outcome=DrainOutcome.COMPLETED, done=4)
    core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINED, ready=False, drain=over))
    expect(page.locator("#drain-title")).to_have_text("Drained")
    expect(line(page)).to_contain_text("Not serving: drained")


def test_resume(page: Page, core: CoreDouble) -> None:
    over = core_double.drain(state=Lifecycle.DRAINED, finished_at=7.0, outcome=DrainOutcome.COMPLETED)
    core.says(SnapshotRequest, snapshot(state=Lifecycle.DRAINED, ready=False, drain=over))
    core.says(Resume, Done(number=0, boot=b""))
    expect(page.get_by_role("button", name="Drain…", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Resume…", exact=True).click()
    page.get_by_role("dialog").get_by_label("Reason").fill("done")
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert sent(core, Resume)[0].reason == "done"
    expect(line(page)).to_be_focused()


def test_a_refusal_stays_in_the_dialog(watched: Watched, core: CoreDouble) -> None:
    page = watched.page
    core.refuses(messages.Drain, ErrorCode.CONFLICT, "the gateway is stopping")
    page.get_by_role("button", name="Drain…", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("the gateway is stopping")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert len(watched.faults) == 1, "the browser notes the 409 itself"
    watched.faults.clear()


def test_one_engine_is_drained(page: Page, core: CoreDouble) -> None:
    core.says(messages.Drain, Drained(number=0, boot=b"", already=False))
    page.get_by_role("button", name="Drain engine e1").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert sent(core, messages.Drain)[0].engine == "e1"


def test_a_switch_is_set_and_taken_away(page: Page, core: CoreDouble) -> None:
    core.says(messages.Switch, Done(number=0, boot=b""))
    section = page.locator("#switches")
    expect(section).to_contain_text("None is set")
    page.get_by_role("button", name="Switch off…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("For", exact=True).select_option("model")
    dialog.get_by_label("Name of the model").fill("org/m")
    dialog.get_by_label("What it does then").select_option("no_load")
    dialog.get_by_label("Reason").fill("wrong answers")
    dialog.get_by_role("button", name="Switch off").click()
    expect(dialog).to_be_hidden()
    (asked,) = sent(core, messages.Switch)
    assert (asked.scope, asked.name, asked.mode, asked.reason) == ("model", "org/m", "no_load", "wrong answers")
    healthy(
        core,
        switches=(messages.SwitchInfo(scope=asked.scope, name="org/m", mode=asked.mode, since_at=time.time()),),
    )
    expect(section.locator("li")).to_contain_text("model org/m")
    expect(section.locator("li")).to_contain_text("stores, loads nothing")
    expect(line(page)).to_contain_text("As asked: model org/m")
    section.get_by_role("button", name="Take away the switch of model org/m").click()
    dialog.get_by_role("button", name="Take away").click()
    expect(dialog).to_be_hidden()
    assert sent(core, messages.Switch, 2)[1].mode is None


def test_the_token_is_asked_for_once_and_kept_out_of_addresses(
    open_page: Callable[..., Watched], tmp_path: Path
) -> None:
    with CoreDouble(tmp_path) as core, AdminProcess(core.run_dir, settings=TOKEN) as admin:
        healthy(core)
        core.says(messages.Drain, Drained(number=0, boot=b"", already=False, drain=core_double.drain()))
        page = open_page(admin.url).page
        expect(page.locator("#link-text")).to_contain_text("Live")
        page.get_by_role("button", name="Drain…", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        asks = page.get_by_role("dialog", name="Admin token")
        asks.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(asks.get_by_role("alert")).to_contain_text("not the admin token")
        assert core.asked(messages.Drain) == []
        asks.get_by_label("Token").fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("dialog[open]")).to_have_count(0)
        assert len(sent(core, messages.Drain)) == 1, "it goes on by itself once the token is there"
        assert page.evaluate("sessionStorage.getItem('kvgate.token')") == "secret"
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        page.get_by_role("button", name="Forget the token").click()
        assert page.evaluate("sessionStorage.length") == 0


def test_where_reads_need_the_token_it_is_asked_for_at_once(open_page: Callable[..., Watched], tmp_path: Path) -> None:
    settings = {**TOKEN, "KVGATE_ADMIN": "0.0.0.0:0"}
    with CoreDouble(tmp_path) as core, AdminProcess(core.run_dir, settings=settings) as admin:
        healthy(core)
        page = open_page(admin.url).page
        asks = page.get_by_role("dialog", name="Admin token")
        expect(asks).to_be_visible()
        page.keyboard.press("Escape")
        expect(asks).to_be_hidden()
        page.get_by_role("button", name="Give the token").click()
        asks.get_by_label("Token").fill("secret")
        page.keyboard.press("Enter")
        expect(page.locator("#link-text")).to_contain_text("Live")
        expect(page.get_by_role("button", name="Give the token")).to_be_hidden()


# -- the gateway is silent, or gone ------------------------------------------------------------------------------------


def test_a_silent_core_is_told_at_once_and_the_last_values_are_marked_old(page: Page, core: CoreDouble) -> None:
    core.hears_admin = False
    began = time.monotonic()
    expect(page.locator("#old")).to_contain_text("does not answer")
    assert time.monotonic() - began < 8
    expect(page.locator("#old")).to_contain_text("all values are")
    expect(page.locator("body")).to_have_class("old")
    expect(page.locator("#engines tbody tr")).to_have_count(1)
    expect(page.get_by_role("button", name="Drain…", exact=True)).to_be_disabled()
    expect(page.get_by_role("status")).to_contain_text("What is shown is old")
    core.hears_admin = True
    expect(page.locator("#old")).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("The gateway answers again.")


def test_a_gateway_that_is_gone_is_told_and_found_again(open_page: Callable[..., Watched], tmp_path: Path) -> None:
    with CoreDouble(tmp_path) as core:
        healthy(core)
        admin = AdminProcess(core.run_dir)
        with admin:
            url = admin.url
            page = open_page(url).page
            expect(page.locator("#link-text")).to_contain_text("Live")
        expect(page.locator("#old")).to_contain_text("all values are")
        expect(page.locator("#link-text")).to_have_text("Not live")
        with AdminProcess(core.run_dir, settings={"KVGATE_ADMIN": url.removeprefix("http://")}):
            expect(page.locator("#link-text")).to_contain_text("Live")
            expect(page.locator("#old")).to_be_hidden()


# -- for everybody -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(open_page: Callable[..., Watched], api: httpx.Client, core: CoreDouble, scheme: str) -> None:
    """Every colour of text has the contrast that WCAG AA asks for, 4.5 to 1, on what lies behind it."""
    failing = (
        core_double.check("loop", ok=False, reason="it hangs"),
        core_double.check("admin", ok=False, critical=False),
    )
    healthy(core, checks=failing, ready=False, drain=core_double.drain())
    watched = open_page(str(api.base_url).rstrip("/"), color_scheme=scheme)
    expect(watched.page.locator("#findings li")).to_have_count(2)
    poor = watched.page.evaluate(CONTRASTS)
    assert poor == []


def test_everything_has_a_name_and_a_place(page: Page) -> None:
    for role in ("banner", "main", "contentinfo"):
        expect(page.get_by_role(role)).to_have_count(1)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, table, svg[role], progress, section, dialog")]
            .filter((e) => !(e.ariaLabel || e.getAttribute("aria-labelledby") || e.labels?.length))
            .filter((e) => !e.textContent.trim())
            .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    outlines = page.evaluate(
        """() => [...document.querySelectorAll("header button:enabled, #filter, .scroll, footer a")]
            .filter((e) => e.checkVisibility()).map((e) => {
            e.focus({ focusVisible: true });
            return getComputedStyle(e).outlineStyle;
        })"""
    )
    assert set(outlines) == {"solid"}


def test_a_narrow_page_does_not_scroll_sideways(open_page: Callable[..., Watched], tmp_path: Path) -> None:
    busy = Busy(64)
    with CoreDouble(tmp_path) as core:
        core.answers[SnapshotRequest] = lambda asked: busy.with_transfers(asked.max_transfers)
        with AdminProcess(core.run_dir) as admin:
            page = open_page(admin.url, viewport={"width": 360, "height": 740}).page
            expect(page.locator("#engines tbody tr")).to_have_count(64)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_page_may_not_be_framed_and_runs_no_foreign_code(api: httpx.Client) -> None:
    answer = api.get("/")
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == policy["style-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.text
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"<script>|\son\w+=|style=", text)
    for name in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "nothing.js"):
        assert api.get(f"/page/{name}").status_code == 404
    again = api.get("/", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_no_script_makes_markup_of_text() -> None:
    static = Path(__file__).resolve().parents[2] / "gateway" / "admin" / "page" / "static"
    scripts = [path.read_text() for path in static.glob("*.js")]
    assert len(scripts) > 5
    for text in scripts:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)


CONTRASTS = """() => {
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const [r, g, b, a = 1] = numbers(getComputedStyle(e).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!hasText || !element.checkVisibility() || element.disabled || element.tagName === "OPTION") continue;
    const [one, other] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""

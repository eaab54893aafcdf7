"""The page of a real daemon: its drain waits for real work, its engine leaves, its core is killed and comes back."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import running_browser
from tests.support.daemon import Daemon
from tests.support.party import RawParty

expect.set_options(timeout=30_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from running_browser()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_a_drain_waits_for_work_and_a_killed_core_is_found_again(page: Page) -> None:
    with Daemon() as daemon:
        daemon.start()
        address = daemon.admin_url.removeprefix("http://")
        with RawParty(daemon.run_dir).register() as party:
            page.goto(daemon.admin_url)
            expect(page.locator("#engines tbody tr")).to_contain_text("engine-a")
            number = party.next_operation()
            (grant,) = party.reserve((1,), number)

            page.get_by_role("button", name="Drain…", exact=True).press("Enter")
            page.keyboard.press("Tab")
            page.keyboard.type("rollout")
            page.keyboard.press("Enter")
            expect(page.locator("#verdict-line")).to_contain_text("Not serving: draining")
            expect(page.locator("#drain-text")).to_contain_text("1 operation and 0 leases left")
            expect(page.get_by_role("progressbar")).to_be_visible()
            party.write(grant, 1)
            party.commit(number, grant.generation)
            expect(page.locator("#drain-title")).to_have_text("Drained")
            expect(page.locator("#drain-text")).to_contain_text("completed in")
            expect(page.locator("#drain-text")).to_contain_text("rollout")

            page.get_by_role("button", name="Resume…", exact=True).press("Enter")
            page.get_by_role("dialog").get_by_role("button", name="Resume").press("Enter")
            expect(page.locator("#verdict-line")).to_contain_text("All is well")

        expect(page.locator("#engines tbody tr")).to_contain_text("gone")
        (begun, resumed) = [line for line in daemon.log_lines("audit") if line["action"] in ("drain", "resume")]
        assert (begun["who"], begun["reason"], resumed["who"]) == ("page", "rollout", "page")

        daemon.kill()
        expect(page.locator("#link-text")).to_have_text("Not live")
        expect(page.locator("#old")).to_contain_text("all values are")
        with Daemon({"KVGATE_ADMIN": address}, base=daemon.base) as again:
            again.start()
            expect(page.locator("#link-text")).to_contain_text("Live")
            expect(page.locator("#verdict-line")).to_contain_text("All is well")

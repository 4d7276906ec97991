"""Names with scripts in them on the page of a sweep, opened in a browser: none may be executed."""

import json
import random
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from attacks.tries import Outcome

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MARK = "document.documentElement.dataset.attacked=1"
ATTACKED = 'data-attacked="1"'
PAYLOADS = (
    f"<script>{MARK}</script>",
    f'"><img src=x onerror="{MARK}">',
    f"'><svg onload='{MARK}'>",
    f"</script><script>{MARK}</script>",
    f"</style></title><script>{MARK}</script>",
    f'" autofocus onfocus="{MARK}" x="',
    f"--><script>{MARK}</script><!--",
    f"`${{{MARK}}}`",
    f"{{{{ '<script>{MARK}</script>' }}}}",
    f'");{MARK};("',
    f"');{MARK};('",
    f"<iframe srcdoc='<script>parent.{MARK}</script>'>",
    f"javascript:{MARK}",
    f"\\u003cscript\\u003e{MARK}\\u003c/script\\u003e",
    f"&lt;script&gt;{MARK}&lt;/script&gt;",
    f"<details open ontoggle={MARK}>",
)
PLACES = ("domain", "variant", "algorithm", "dataset", "reason", "network", "software")


def attack(number: int, seed: int, place: Path) -> Outcome:
    """One page of hand-made runs with a payload in one place."""
    luck = random.Random(f"{seed}/pages/{number}")
    payload, where = luck.choice(PAYLOADS), PLACES[number % len(PLACES)]
    began = time.monotonic()
    folder = place / f"page{number}"
    write_runs(folder, where, payload)
    outcome, line = "same", ""
    try:
        from domainwise.reports.page.write import write_page

        page = write_page(folder)[0]
        if executes(page):
            outcome = "executed"
    except Exception as error:
        from domainwise.core.errors import UserError

        outcome, line = ("refused" if isinstance(error, UserError) else "traceback"), f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began, 2)
    return Outcome("pages", number, where, payload, "domainwise report", outcome, line[:300], seconds)


def write_runs(folder: Path, where: str, payload: str) -> None:
    """Two methods, each domain left out once, one run that failed."""
    from domainwise.protocol.records import Record, Status
    from domainwise.protocol.run_folder import RunFolder
    from domainwise.sweeps.plan_run import plan_run

    for algorithm in ("ERM", "DAT"):
        for unseen in ("scene1", "scene2"):
            run = plan_run("BackgroundDigits", algorithm, [unseen], steps=21, evaluate_every=10)
            if where in ("variant", "algorithm", "dataset", "network"):
                hostile: dict[str, Any] = {where: payload}
                run = replace(run, **hostile)
            if where == "domain":
                run = replace(run, test_domains=(payload,))
            kept = RunFolder(folder, run)
            kept.create()
            parts = [(domain, "out") for domain in run.train_domains]
            parts += [(domain, split) for domain in run.test_domains for split in ("in", "out")]
            kept.append(
                Record(run.id, step, domain, split, 0.5 + step / 100, 1.0, float(step))
                for step in (0, 10, 20)
                for domain, split in parts
            )
            failed = where == "reason" and unseen == "scene2"
            kept.append([Status(run.id, 20, "failed" if failed else "done", payload if failed else "")])
    if where == "software":
        for file in folder.glob("*/records.jsonl"):
            text = file.read_text()
            file.write_text(text.replace('"reason": ""', f'"reason": {json.dumps(payload)}'))


def executes(page: Path) -> bool:
    """Whether a script of the payload was executed when the browser showed the page."""
    if BROWSER is None:
        raise SystemExit("no chromium on this machine: give --pages 0")
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom")
    profile = f"--user-data-dir={page.parent / '.browser'}"
    command = [BROWSER, *flags, profile, page.resolve().as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, errors="replace").stdout
    return ATTACKED in shown[: shown.find(">", shown.find("<html")) + 1]


def check_browser(place: Path) -> None:
    """The browser does execute such scripts where a page lets it."""
    place.mkdir(exist_ok=True)
    control = place / "control.html"
    control.write_text(f"<!doctype html><title>x</title><p>{PAYLOADS[0]}")
    if not executes(control):
        raise SystemExit("the browser executes no scripts at all: the attack on the page would prove nothing")

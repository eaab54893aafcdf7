"""What one check found, and how findings are told.

Owns: verdicts, the one next step of each that is not well, and their two forms. Must not know: what is checked. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # it works, and could do better
    FAILED = "failed"
    SKIPPED = "skipped"  # it could not be looked at, because of another check's finding


@dataclass(frozen=True)
class Finding:
    """One check. ``next_step`` is what to do about it; empty where there is nothing to do."""

    name: str
    verdict: Verdict
    detail: str
    next_step: str = ""


def ok(name: str, detail: str) -> Finding:
    """All is well."""
    return Finding(name, Verdict.OK, detail)


def warning(name: str, detail: str, next_step: str) -> Finding:
    """It works, and could do better."""
    return Finding(name, Verdict.WARNING, detail, next_step)


def failed(name: str, detail: str, next_step: str) -> Finding:
    """It does not work."""
    return Finding(name, Verdict.FAILED, detail, next_step)


def skipped(name: str, detail: str) -> Finding:
    """It was not looked at."""
    return Finding(name, Verdict.SKIPPED, detail)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether any check failed."""
    return any(finding.verdict is Verdict.FAILED for finding in findings)


def as_document(findings: Sequence[Finding]) -> dict[str, object]:
    """The findings for JSON."""
    return {"ok": not has_failed(findings), "checks": [asdict(finding) for finding in findings]}


def as_text(findings: Sequence[Finding]) -> str:
    """The findings for people: a line each, and a line below it where there is something to do."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<8} {finding.name:<{width}}  {finding.detail}")
        if finding.next_step:
            lines.append(f"{'':<8} {'':<{width}}  next: {finding.next_step}")
    return "\n".join(lines)

"""A small picture for a README: the fastest sound draft of a kept result table. Called by `reports.publish`.

It is drawn here, so that it shows without a network and cannot say what the table does not.
"""

from xml.sax.saxutils import escape

from reports.answer import is_faster
from reports.collect import BASE
from reports.names import scale_label, variant_label
from reports.rows import Results
from reports.wording import written

LETTER_PX, PADDING_PX, HEIGHT_PX = 6.6, 8, 20
INK, LABEL, GOOD, BAD, QUIET = "#ffffff", "#37424d", "#0b6b45", "#b42318", "#56636f"


def badge_text(results: Results) -> tuple[str, str]:
    """Left and right half: the run, and its fastest draft without faults at one request at a time.

    Faster means that the whole interval of the speed-up lies above 1.
    """
    first = results.rows[0]
    left = first.reproduction if first.scale == "full" else f"{first.reproduction}, {scale_label(first.scale)}"
    measured = [row for row in results.rows if row.metric == "speedup_c1" and row.value is not None]
    rows = [row for row in measured if row.variant != BASE and not row.note]  # a note says: not comparable
    faults = {row.variant: results.value(row.variant, "output_match_faults") for row in rows}
    sound = [row for row in rows if faults[row.variant] == 0]
    faster = list(filter(is_faster, sound))
    if faster:
        best = max(faster, key=lambda row: row.value)
        return left, f"{variant_label(best.variant)} {written(best.metric, best.value)}, 0 faults"
    if rows and not sound:
        return left, "every draft changes the output"
    return left, "no draft is surely faster" if rows else "speed not run"


def badge(results: Results) -> str:
    """The SVG."""
    left, right = badge_text(results)
    tone = GOOD if right.endswith("0 faults") else BAD if "changes" in right else QUIET
    widths = [round(LETTER_PX * len(text) + 2 * PADDING_PX) for text in (left, right)]
    total, said = sum(widths), escape(f"{left}: {right}")
    halves = zip((left, right), (0, widths[0]), widths, strict=True)
    texts = "".join(
        f'<text x="{start + PADDING_PX}" y="14" textLength="{width - 2 * PADDING_PX}">{escape(text)}</text>'
        for text, start, width in halves
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{HEIGHT_PX}" role="img" aria-label="{said}">'
        f"<title>{said}</title>"
        f'<rect width="{total}" height="{HEIGHT_PX}" rx="3" fill="{LABEL}"/>'
        f'<path d="M{widths[0]} 0H{total - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3H{widths[0]}z" fill="{tone}"/>'
        f'<g fill="{INK}" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )

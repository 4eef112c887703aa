"""The order of questions as one picture. python -m tfworkshop.mysteries.picture draws it anew."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tfworkshop.files import save
from tfworkshop.stages import ROOT

PICTURE = ROOT / "docs" / "images" / "questions.png"

# Question, tool; then what it may say and the cause that this means.
QUESTIONS = (
    ("Is the number true?", "the log's time stamps", (("lines come slower", "clock"),)),
    (
        "Slow on one rank too?",
        "2 ranks: HOROVOD_TIMELINE",
        (("the same rank comes last", "straggler"), ("the exchange is long", "exchange")),
    ),
    ("What does a step wait for?", "./workshop report", (("input-bound", "input"),)),
    (
        "Is the step one graph, traced once?",
        "./workshop report",
        (("train_step: traced again", "retracing"), ("no graph's convolutions", "eager")),
    ),
    (
        "Host-bound: which line?",
        "kernprof",
        (
            ("a line that writes", "writing"),
            ("another line of the loop", "python"),
            ("get_dataset, each step", "reading"),
        ),
    ),
    (
        "Compute-bound: with or without XLA?",
        "--xla on, --xla off",
        (("slower with it", "xla"),),
    ),
    (
        "What would a GPU see?",
        "./workshop xray",
        (("copies to the host", "copies"),),
    ),
)
PAPER, INK, SOFT, LINE, BOX, CAUSE = (
    "#f7f7f4",
    "#1b1f24",
    "#59636e",
    "#8b949e",
    "#dbe7f3",
    "#f6dcc8",
)


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    high = len(QUESTIONS)
    figure, axes = plt.subplots(figsize=(8.6, 0.92 * high + 0.3), facecolor=PAPER)
    axes.set(xlim=(0, 10), ylim=(-high + 0.35, 0.6))
    axes.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    frame = {"boxstyle": "round,pad=0.45", "linewidth": 0}
    arrow = {"arrowstyle": "-|>", "color": LINE, "linewidth": 1.2}
    for i, (question, tool, answers) in enumerate(QUESTIONS):
        axes.text(0.35, -i + 0.13, f"{i + 1}  {question}", color=INK, fontsize=11, weight="bold")
        axes.text(0.65, -i - 0.22, tool, color=SOFT, fontsize=9.5)
        if i:
            axes.annotate("", (0.45, -i + 0.36), (0.45, -i + 0.7), arrowprops=arrow)
            axes.text(0.6, -i + 0.47, "else", color=SOFT, fontsize=8.5)
        for j, (says, cause) in enumerate(answers):
            y = -i + 0.02 + (0.165 * (len(answers) - 1) - 0.33 * j)
            axes.annotate("", (7.95, y), (4.55, y), arrowprops=arrow)
            label = {**frame, "boxstyle": "round,pad=0.15", "facecolor": PAPER}
            middle = {"ha": "center", "va": "center"}
            axes.text(6.2, y, says, color=INK, fontsize=9.5, bbox=label, **middle)
            axes.text(
                8.75,
                y,
                cause,
                color=INK,
                fontsize=10.5,
                bbox={**frame, "boxstyle": "round,pad=0.2", "facecolor": CAUSE},
                **middle,
            )
    made_of = {"Description": fingerprint()}
    save(path, lambda part: figure.savefig(part, dpi=110, format="png", metadata=made_of))
    plt.close(figure)


def fingerprint() -> str:
    """Tells of a picture whether this file drew it."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


if __name__ == "__main__":
    draw(PICTURE)
    print(f"wrote {PICTURE.relative_to(ROOT)}")

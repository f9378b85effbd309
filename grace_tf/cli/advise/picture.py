"""Draws the time of a step over the rate of the link, a line for each method."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from grace_tf.advice.link import Link, rate_text

RATES = [10 ** (7 + step / 10) for step in range(41)]  # 10 Mbit/s to 100 Gbit/s


def needed() -> None:
    """Raises ValueError where there is nothing to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib, or leave --plot out.")


def draw(
    path: str,
    title: str,
    curves: Mapping[str, Sequence[float]],
    bound: float,
    link: Link | None,
) -> None:
    """Writes the picture; the ending of the file's name determines the format.

    Args:
      curves: seconds of a step at each of RATES, by method.
      bound: seconds of a step without any exchange.
      link: where a vertical line stands.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (spec, seconds) in enumerate(curves.items()):
        style = "-" if number < 10 else "--"  # there are ten colours
        axes.plot(RATES, seconds, style, label=spec, linewidth=1.2)
    axes.axhline(bound, color="black", linestyle=":", label="no communication")
    if link:
        axes.axvline(link.bits_per_second, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="rate of the link", ylabel="seconds a step")
    axes.set_xticks(RATES[::10], [rate_text(rate) for rate in RATES[::10]])
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=150)

"""`Situation`: the workers and what lies between them.

Options of the command line come in, or a process group whose link is measured; a `Situation` goes
out, from which the model gets its `Network`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping

from grace_tf.advice.link import Link, parse_link
from grace_tf.advice.network import Cost, Network, over_link
from grace_tf.cli.advise import probe
from grace_tf.transports.group import Group


@dataclasses.dataclass(frozen=True)
class Situation:
    """Workers, and the costs of an exchange between them.

    Attributes:
      workers: the number of processes.
      per_host: of them on each host.
      link: as given; None where `host` was measured over the real one.
      host: what an exchange takes between processes of this machine, or of the group; by kind.
    """

    workers: int
    per_host: int
    link: Link | None
    host: Mapping[str, Cost]

    @property
    def size(self) -> int:
        """The workers that compress: processes, or hosts of several."""
        return self.workers // self.per_host

    @property
    def network(self) -> Network:
        if self.link is None:
            return Network(self.size, self.host)
        return self.over(self.link)

    def over(self, link: Link) -> Network:
        """The network with another link, where `host` was measured inside this machine."""
        across = {kind: over_link(link, cost) for kind, cost in self.host.items()}
        return Network(self.size, across, self.per_host, self.host)

    def __str__(self) -> str:
        """For people: "8 workers at 1 Gbit/s"."""
        hosts = f" on {self.size} hosts" * (self.per_host > 1)
        return f"{self.workers} workers{hosts} {f'at {self.link}' if self.link else 'on this link'}"


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What the command line says about workers and link, checked; `link` None: measure it."""

    workers: int
    per_host: int
    link: Link | None

    def measured(self, group: Group | None) -> Situation:
        """The situation, with what exchanges take here, or between the group's processes."""
        if group is None:
            host = probe.loopback(self.per_host)
        else:
            host = probe.costs(group, probe.sharing(group))
        return Situation(self.workers, self.per_host, self.link, host)


def wanted(options: argparse.Namespace, started: int) -> Wanted:
    """Checks --workers, --per-host and --link beside the number of processes that were started.

    Raises ValueError for what is missing, contradicts or makes no sense.
    """
    workers, per_host = options.workers, options.per_host
    if started > 1:
        if workers not in (None, started) or options.link or per_host != 1 or options.plot:
            raise ValueError(
                f"{started} workers were started, so workers and link are these and are measured: "
                "leave out --workers, --link, --per-host and --plot, or start advise alone."
            )
        return Wanted(started, 1, None)
    for name, value in (("--link", options.link), ("--workers", workers)):
        if value is None:
            raise ValueError(f"{name} is needed; under `grace_tf run` it is known.")
    if workers < 2:
        raise ValueError(f"--workers is at least 2, not {workers}.")
    if per_host < 1 or workers % per_host:
        raise ValueError(f"--per-host divides the workers; {per_host} does not divide {workers}.")
    if workers == per_host:
        raise ValueError("With all workers on one host no link lies between them.")
    return Wanted(workers, per_host, parse_link(options.link))

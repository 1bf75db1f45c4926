"""What `profile` measured: the costliest ops of each device, what it cannot run, devices side by side, and links."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from remat_cli.base.units import format_bytes
from remat_cli.core.values.budget import describe_bytes
from remat_cli.core.values.profile import LinkCost, Profile, Provenance
from remat_cli.report.pictures.shown import Shown
from remat_cli.report.solution import EXIT_DONE
from remat_cli.report.style import Style, columns, duration, plural, shorten

MOST_OPS = 10
EXAMPLE_BYTES = 2**20


class ProfileReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """One model's costs on each device asked for, and what copies between their memories cost."""

    exit_code: ClassVar[int] = EXIT_DONE
    model: str
    profiles: tuple[Profile, ...]
    links: tuple[LinkCost, ...] = ()
    output: str | None = None

    def lines(self, style: Style) -> list[str]:
        """The costliest ops per device, what it cannot run, where the figures come from; then devices side by side."""
        lines = [style.paint(self.model, "strong")]
        for profile in self.profiles:
            came = profile.provenance
            threads = came.intra_op_threads or "default"
            whole = f"; the whole model in one session {duration(profile.run_ns)}" if profile.run_ns is not None else ""
            lines += [
                "",
                f"{profile.device}: {plural(len(profile.ops), 'op')}, {duration(_total_ns(profile))} in all{whole}",
                f"  {came.cpu}, {came.runtime} {came.runtime_version}, {came.provider}, intra-op threads: {threads}",
                f"  fixed {describe_bytes(profile.fixed_bytes)}: weights {format_bytes(profile.weight_bytes)}, "
                f"inputs {format_bytes(profile.input_bytes)}",
                _how_line(profile, came),
            ]
            total = _total_ns(profile)
            rows = [["op", "time", "share", "workspace"]]
            for cost in sorted(profile.ops, key=lambda cost: -cost.time_ns)[:MOST_OPS]:
                name = shorten(cost.name, max(20, style.width - 50))
                share = f"{100 * cost.time_ns / total:.1f} %" if total else ""
                workspace = "unknown" if profile.is_opaque and profile.provenance.measured else None
                rows.append([name, duration(cost.time_ns), share, workspace or format_bytes(cost.workspace_bytes)])
            lines += columns(rows, "<>>>")
            if profile.unsupported:
                lines.append(style.paint(f"  cannot run {plural(len(profile.unsupported), 'op')}:", "warn"))
            for reason, count in Counter(op.reason for op in profile.unsupported).items():
                first = next(op.name for op in profile.unsupported if op.reason == reason)
                more = f" and {count - 1} more" if count > 1 else ""
                lines.append(f"    {shorten(first, 40)}{more}: {reason}")
        if len(self.profiles) > 1:
            lines += ["", *_side_by_side_lines(self.profiles)]
        if self.links:
            lines += ["", *_link_lines(self.links)]
        return lines + (["", f"profile {self.output}"] if self.output else [])


class CacheReport(msgspec.Struct, frozen=True):
    """How many cached measurements were removed, and from where."""

    exit_code: ClassVar[int] = EXIT_DONE
    cache_dir: str
    removed: int

    def lines(self, style: Style) -> list[str]:
        """How much was forgotten."""
        return [f"removed {plural(self.removed, 'cached measurement')} from {self.cache_dir}"]


def _how_line(profile: Profile, came: Provenance) -> str:
    """How the times were found."""
    if not came.measured:
        return "  ESTIMATED from the device's description; nothing was measured"
    noise = sorted(cost.noise_percent for cost in profile.ops)
    median = f"; median noise {noise[len(noise) // 2]:.1f} %" if noise else ""
    how = "each op in a session of its own, workspace not observable, " if profile.is_opaque else ""
    call = f"; a session on it costs {duration(profile.call_ns)} more" if profile.call_ns else ""
    return f"  {how}least of {plural(came.runs, 'run')} after {plural(came.warmups, 'warm-up')}{median}{call}"


def _side_by_side_lines(profiles: Sequence[Profile]) -> list[str]:
    """For each device how many ops it can run, how many it runs fastest, and what the fastest choice would take."""
    times = [{cost.name: cost.time_ns for cost in profile.ops} for profile in profiles]
    names = dict.fromkeys(name for found in times for name in found)
    best = {name: min(found[name] for found in times if name in found) for name in names}
    rows = [["device", "memory", "runs", "fastest for", "sum of ops"]]
    for profile, found in zip(profiles, times, strict=True):
        wins = sum(time == best[name] for name, time in found.items())
        rows.append([profile.device, profile.memory, f"{len(found)} ops", f"{wins}", duration(sum(found.values()))])
    rows.append(["each op where it is fastest, copies and calls left out", "", "", "", duration(sum(best.values()))])
    return columns(rows, "<<>>>", indent="")


def _link_lines(links: Sequence[LinkCost]) -> list[str]:
    """Latency, bandwidth and an example per link."""
    rows = [["copy", "latency", "bandwidth", f"{format_bytes(EXAMPLE_BYTES)} take", ""]]
    for link in links:
        origin = f"noise {link.noise_percent:.1f} %" if link.measured else "ESTIMATED"
        rate = f"{link.bytes_per_second / 1e9:.2f} GB/s"
        example = duration(link.time_ns(EXAMPLE_BYTES))
        rows.append([f"{link.source} -> {link.target}", duration(link.latency_ns), rate, example, origin])
    return columns(rows, "<>>><", indent="")


def _total_ns(profile: Profile) -> int:
    return sum(cost.time_ns for cost in profile.ops)

"""Asks the runtime on which execution provider it put each op of a session."""

from typing import Any

from remat_cli.runtime.sessions._ort import import_ort

ASKED = ("session.record_ep_graph_assignment_info", "1")
"""What a session must be told before it is opened, so that it can say so."""


def can_report() -> bool:
    """Whether the runtime can say where ops are; old ones cannot."""
    return hasattr(import_ort().InferenceSession, "get_provider_graph_assignment_info")


def ask_for_assignment(options: Any) -> None:
    """Let a session that is opened with these options say where its ops are."""
    options.add_session_config_entry(*ASKED)


def assigned(session: Any) -> dict[str, str]:
    """The provider of each op by name, ops inside subgraphs included."""
    parts = session.get_provider_graph_assignment_info()
    return {op.name: str(part.ep_name) for part in parts for op in part.get_nodes()}

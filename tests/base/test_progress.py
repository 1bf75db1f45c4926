"""Listeners of a run: what they hear, and what those of a part pass on."""

from __future__ import annotations

import pytest

from remat_cli.base.progress import SOLVING, Incumbent, Progress, aside, giving_way, listening, part, silent


def told(wrap=lambda whole: whole):
    """The lines that a listener sees of one event of each kind."""
    lines: list[str] = []
    progress = wrap(listening(lambda event: lines.append(str(event))))
    progress.stage(SOLVING)
    progress.advance(1, 4)
    progress.detail("half of it")
    progress.incumbent(4.0, 1.0)
    progress.note("careful")
    return lines


def test_an_event_as_text_is_the_line_a_person_reads(capsys):
    assert told() == ["solving", "1/4", "half of it", "incumbent +4.00%  bound +1.00%  gap 3.00%", "note: careful"]
    listening(print).stage(SOLVING)
    assert capsys.readouterr().out == "solving\n"


@pytest.mark.parametrize(
    ("incumbent", "line"),
    [
        (Incumbent(None, None), "incumbent none"),
        (Incumbent(None, 1.0), "incumbent none  bound +1.00%"),
        (Incumbent(2.756, None), "incumbent +2.76%"),
        (Incumbent(1.0, 1.5), "incumbent +1.00%  bound +1.50%  gap 0.00%"),
    ],
)
def test_an_incumbent_leaves_out_what_is_not_known(incumbent, line):
    assert str(incumbent) == line


def test_nobody_is_told_and_never_stops():
    assert silent().should_stop() is False
    assert listening(None).stage(SOLVING) is None


def test_aside_passes_on_stages_and_notes_only():
    assert told(aside) == ["solving", "note: careful"]


def test_a_part_counts_as_its_share():
    assert told(lambda whole: part(whole, 1, 2, 8))[1] == "10/16"


@pytest.mark.parametrize("wrap", [aside, lambda whole: part(whole, 0, 1, 1)])
def test_parts_stop_with_the_whole(wrap):
    assert wrap(Progress(lambda event: None, lambda: True)).should_stop() is True


def test_ctrl_c_in_a_part_of_a_search_that_was_told_to_end_ends_the_part():
    went_on = False
    with giving_way(Progress(lambda event: None, lambda: True)):
        raise KeyboardInterrupt
    went_on = True
    assert went_on


def test_ctrl_c_that_nobody_hears_of_and_errors_go_on():
    with pytest.raises(KeyboardInterrupt), giving_way(silent()):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="wrong"), giving_way(Progress(lambda event: None, lambda: True)):
        raise ValueError("wrong")

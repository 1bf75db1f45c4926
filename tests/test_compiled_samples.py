"""What the store of compiled samples holds is made once, by whichever worker asks first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.compiled_samples import SampleStore


@pytest.fixture
def store(tmp_path):
    return SampleStore(tmp_path / "samples", tmp_path / "cache")


def test_what_is_asked_for_again_is_not_made_again(store):
    made = []

    def make(place):
        made.append(place)
        (place / "file").write_text("made")
        return place / "file"

    with ThreadPoolExecutor(4) as workers:
        found = list(workers.map(lambda _: store._made(("unet", "80%"), make), range(8)))
    assert found == [made[0] / "file"] * 8
    assert len(made) == 1
    assert found[0].read_text() == "made"
    assert found[0].stat().st_mode & 0o222 == 0
    assert store._made(("unet", "70%"), make) != found[0]


def test_what_failed_is_made_anew(store):
    def fail(place):
        (place / "half").write_text("")
        raise ValueError("no plan")

    with pytest.raises(ValueError, match="no plan"):
        store._made("key", fail)
    assert store._made("key", lambda place: [path.name for path in place.iterdir()]) == []

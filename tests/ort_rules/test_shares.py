"""Into which shares threads cut ops of single elements, beside the runtime: by which of them it computes alone."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from remat_cli.ort_rules.shares import PACKET, is_all_packets, share_length
from remat_cli.splitting.rules.pointwise import SHARED_CYCLES

LENGTHS = (1000, 2000, 4096, 6600, 7004, 8192, 10240, 13001, 19584, 30000, 40960, 70001, 100000)
ALONE = ("Acos", "Asin", "Atan", "Cos", "Sin")


def session_of(op_type: str, threads: int) -> ort.InferenceSession:
    """A session of one op on numbers in a row; LRN over single channels is such an op too."""
    shape = [1, 1, 1, "n"] if op_type == "LRN" else ["n"]
    how = {"size": 1, "alpha": 1e-2, "bias": 1.0} if op_type == "LRN" else {}
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op_type, ["x"], ["y"], **how)], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options)


def made(session: ort.InferenceSession, x: np.ndarray) -> np.ndarray:
    (port,) = session.get_inputs()
    return session.run(None, {"x": x.reshape([1] * (len(port.shape) - 1) + [-1])})[0].ravel().view(np.int32)


@pytest.mark.parametrize("op_type", [*sorted(SHARED_CYCLES), *ALONE])
def test_elements_that_are_in_no_packet_are_where_shares_end(op_type):
    drawn = np.random.default_rng(0).standard_normal(9000).astype(np.float32)
    x = {"Log": np.abs(drawn) + 0.1, "Asin": np.tanh(drawn), "Acos": np.tanh(drawn)}.get(op_type, drawn)
    one = session_of(op_type, 1)
    packed = made(one, x)
    alone = np.concatenate([made(one, x[at : at + 3]) for at in range(0, len(x), 3)])
    telling = packed != alone  # whose bits say how they were computed
    assert telling.sum() > 100
    x, packed = np.resize(x[telling], max(LENGTHS)), np.resize(packed[telling], max(LENGTHS))
    for threads in (1, 2, 3, 8):
        session = session_of(op_type, threads)
        for length in LENGTHS:
            seen = made(session, x[:length]) != packed[:length]
            cycles = SHARED_CYCLES.get(op_type)
            assert np.array_equal(seen, outside(length, cycles, threads)), (threads, length)
            assert is_all_packets(length, cycles, threads) is not seen.any()


def outside(length: int, cycles: float | None, threads: int) -> np.ndarray:
    """Which elements are in no whole packet of their share."""
    share = length if cycles is None else share_length(length, cycles, threads)
    found = np.ones(length, bool)
    for start in range(0, length, share):
        first, stop = -(-start // PACKET) * PACKET, min(start + share, length)
        found[first : first + (stop - first) // PACKET * PACKET] = False
    return found


@pytest.mark.parametrize(
    ("elements", "cycles", "threads", "is_all"),
    [
        (4096, None, 8, True),  # one thread does all of it
        (4097, None, 8, False),
        (1000, 30.0, 8, True),  # soon done, so that it runs whole
        (1002, 30.0, 8, False),
        (40960, 30.0, 1, True),
        (40960, 30.0, 8, True),  # in shares of 1,280
        (9000, 30.0, 8, False),  # in shares of 1,274, which are no whole packets
    ],
)
def test_an_op_is_all_packets_where_its_length_and_its_shares_are(elements, cycles, threads, is_all):
    assert is_all_packets(elements, cycles, threads) == is_all


def test_shares_are_as_long_as_is_worth_a_thread_and_fit_the_threads():
    assert share_length(10**6, 30.0, 1) == 10**6
    assert share_length(1, 10**6, 8) == 1
    assert share_length(2, 10**6, 2) == 1
    assert share_length(10**6, 30.0, 4) == 10**6 // 16  # four for each thread
    assert share_length(9000, 30.0, 8) == 1274  # 40,000 cycles, of 30 and 1.375 for each element

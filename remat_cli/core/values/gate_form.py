"""How gates are written: by what they wait for a value that lies on a device."""

from typing import Literal

GateForm = Literal["size", "shape"]
"""What a gate asks of the value that it waits for.

`size` asks for its size and passes another value through Unsqueeze with no axes. It is for providers whose Size reads
no data, the CPU's above all. `shape` asks for its shape and passes the other value through Reshape: it is for providers
without a Size of their own, where the runtime would copy the whole value to the host to count it there, and with an
Unsqueeze that refuses to add nothing. A shape that is known beforehand is no reason to wait, as the runtime computes it
when it loads the model; of such a value none of its elements are taken and counted, so that nothing is copied.
"""

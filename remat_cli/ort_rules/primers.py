"""Small products in a file that holds packed copies: they make a session pack small weights before it packs large ones.

A session packs each weight when it loads a file, also where the packed copy is in the file, and drops what it made.
glibc cuts a remainder off behind each such copy and keeps up to seven of a size for small requests. A copy behind which
a remainder is kept does not go back to the free end of the heap when it is dropped, and the next one is put behind it:
of weights of 16 MiB up to seven copies stayed, more or fewer by the address at which the first one lay. So products
without rows, which compute nothing and whose tensors take no memory, use these places up.

The size of the remainder follows from the address of the block, modulo 64, and stays the same from one copy to the
next: 64, 80 or 112 bytes, or none. A copy that finds room in a hole of the heap has another address than one at its
end, so that copies alone fill the places of one size and maybe not of the one that counts. Small weights and their
copies lie at another address modulo 64 each time, so that they leave remainders of all sizes.
"""

PREFIX = "remat/primer/"
"""Of the names of these products and of their weight."""
COLUMNS = 1024
"""Of the weight, which has one row; kernels pack sixteen."""
COPY_BYTES = COLUMNS * 16 * 4
"""Of each copy: as large as a block must be for the heap to be tidied when it is dropped."""
PRODUCTS = 24
"""That read it: seven of each of the three sizes that a remainder can have, and three more."""
HELD_BYTES = 2**19
"""What their copies leave, about; 1.5 MiB if each stays."""
SMALL_BYTES = 144
"""Of each small weight: it moves on by a quarter of 64 with its copy. Of one below 128 bytes inside a branch, releases
of the runtime from 1.31 on keep the original."""
SMALL_PRODUCTS = 72
"""That read one: in a quarter each nothing, or one of the three sizes is left; twice seven, and what the session takes
of them meanwhile."""
SMALL_COPIES_BYTES = 192
"""Of the copy of a small weight that a session keeps: one for all, since their values are the same."""
STUCK_COPIES = 2
"""The most that stayed for all that, in 4 of 120 processes: what budgets leave room for."""

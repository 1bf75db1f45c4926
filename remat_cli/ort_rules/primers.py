"""Small products in a file that holds packed copies: they make a session pack small weights before it packs large ones.

A session packs each weight when it loads a file, also where the packed copy is in the file, and drops what it made.
glibc cuts a remainder off behind each such copy and keeps up to seven of a size for small requests. A copy behind which
a remainder is kept does not go back to the free end of the heap when it is dropped, and the next one is put behind it:
of weights of 16 MiB up to seven copies stayed, more or fewer by the address at which the first one lay. So products
without rows, which compute nothing and whose tensors take no memory, use these places up.

The size of the remainder follows from the address of the block, modulo 64, and stays the same from one copy to the
next: 64, 80 or 112 bytes, or none. A copy that finds room in a hole of the heap has another address than one at its
end, so that copies alone fill the places of one size and maybe not of the one that counts. Small weights fill them at
any address: a session drops each once it is packed, and a block of that size goes to the very places.
"""

PREFIX = "remat/primer/"
"""Of the names of these products and of their weight."""
COLUMNS = 1024
"""Of the weight, which has one row; kernels pack sixteen."""
COPY_BYTES = COLUMNS * 16 * 4
"""Of each copy: as large as a block must be for the heap to be tidied when it is dropped."""
PRODUCTS = 24
"""That read it: seven of each of the three sizes that a remainder can have, and three more."""
SMALL_BYTES = (48, 64, 96)
"""Of the small weights: as blocks they have the sizes of the three remainders."""
SMALL_PRODUCTS = 24
"""Of each size: seven places, and what the session takes of them meanwhile."""
SMALL_COPIES_BYTES = 2 * 64 + 128
"""Of the copies of small weights that a session keeps: one of each size, since their values are the same."""

"""Small products in a file that holds packed copies: they make a session pack small weights before it packs large ones.

A session packs each weight when it loads a file, also where the packed copy is in the file, and drops what it made.
glibc cuts a remainder off behind each such copy and keeps up to seven of a size for small requests. A copy behind which
a remainder is kept does not go back to the free end of the heap when it is dropped, and the next one is put behind it:
of weights of 16 MiB up to seven copies stayed, more or fewer by the address at which the first one lay. Products that
read one small weight use these places up, so that every later copy goes back to the end, and the next one takes its
place. They have no rows, so that they compute nothing and their tensors take no memory.
"""

PREFIX = "remat/primer/"
"""Of the names of these products and of their weight."""
COLUMNS = 1024
"""Of the weight, which has one row; kernels pack sixteen."""
COPY_BYTES = COLUMNS * 16 * 4
"""Of each copy: as large as a block must be for the heap to be tidied when it is dropped."""
PRODUCTS = 24
"""Seven of each of the three sizes that a remainder can have, and three more."""
HELD_BYTES = 2**19
"""What their copies leave, about; 1.5 MiB if each stays."""

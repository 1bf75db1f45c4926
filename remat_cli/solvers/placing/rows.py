"""Names of the rows that placement kernels work on, and of entries of their rows DIMS and NUM.

A kernel reads `net[rows.SIZE, x]` and `w[rows.LAST, i]`: numba takes an attribute of a module as a constant.
"""

# Rows of a net. Behind them, where DIMS says, stand the tables of copies and of the fastest devices.
(
    DIMS,  # the numbers named below
    IN_PTR,  # per op: where its INS begin
    INS,
    OUT_PTR,  # per op: where its OUTS begin
    OUTS,
    PAIR_PTR,  # per op: where its in-place pairs begin
    PAIR_FROM,
    PAIR_TO,
    WEIGHT_PTR,  # per op: where its WEIGHTS begin
    WEIGHTS,
    REPEATABLE,  # per op: 0 or 1
    SIZE,  # per tensor: bytes
    PRODUCER,  # per tensor
    BASE,  # per tensor: what it views, or -1
    KEPT,  # per tensor: 0 or 1
    WEIGHT_BYTES,  # per weight
    MEMORY_OF,  # per device
    CALL,  # per device: what handing over to it takes
    ROOM,  # per memory: bytes beside the fixed part
    TIMES,  # per op, two rows further for each device; -1 where it cannot run
    WORKSPACES,  # likewise
) = range(21)

# Entries of row DIMS.
(
    OPS,
    DEVICES,
    MEMORIES,
    TENSORS,
    OVERLAP,  # 1: copies run beside computes
    PINNED,  # 1: first computations keep their order
    COPIES,  # code of the first copy
    COPY_TIMES,  # first of the rows of copy times, by source and target device; -1 where impossible
    VIA,  # first of the rows of the fastest copies, by source and target memory, two each: code and time
    FASTEST,  # first of the rows of fastest devices, by memory; -1 where none can run the op
) = range(10)

# Rows of a work. Instances are numbered as they are made.
(
    NUM,  # the numbers named below
    ANYWHERE,  # per tensor: its newest instance in any memory
    COUNT,  # per op: computes so far
    TENSOR,  # per instance ...
    MEMORY,
    BIRTH,
    LAST,  # its last use
    MOMENT,  # per step: when a compute begins, when a copy ends
    PRIOR,  # the instance of the same tensor in the same memory before it
    STORAGE,
    UPCOMING,  # scratch: its next use after the step looked at
    PREVIOUS,  # scratch: its last use before that
    BYTES,  # per storage ...
    BORN,
    NEWBORN,  # the last instance made in it
    ENDS,
    WHERE,  # its memory
    READS_PTR,  # per step: where its READS begin
    READS,
    MAKES_PTR,  # per step: the first instance it makes
    MARK,  # scratch per op or tensor: stamps
    STACK,  # scratch: ops or codes under way
    BEFORE_ITEM,  # scratch: steps to be put in: before which step
    CODE_ITEM,
    HOT_AT,  # scratch: steps of one memory that are over budget
    HOT_BY,
    SCORE,  # candidates for relief: logarithm of the score
    PICK,  # ... and in five rows instance, next use, previous use, kind, other memory
) = range(28)
(
    LENGTHS,  # of the trial rows
    TRIAL,  # five rows of codes: schedules under way
) = range(32, 34)
# From here on five rows for each memory.
(
    NEWEST,  # per tensor: its newest instance there, -1 if none
    READY,  # per tensor: when it is there
    MEM,  # per step: bytes
    HELD,  # per weight: stamp of the evaluation that counted it
    LINK,  # per target memory: when the link is free
) = range(38, 43)

# Entries of row NUM.
(
    TIME,
    OVER,  # bytes above budget, summed over steps and memories
    INSTANCES,
    STORAGES,
    STAMP,
    RANDOM,  # state of the random numbers
    EVALUATIONS,  # schedules followed so far
    PICKS,  # candidates for relief
    ITEMS,  # steps to be put in
    HOT_MEMORY,
    HOT_STEP,
    HOTS,  # entries of HOT_AT
    LAST_FIRST,  # op computed for the first time last
    CLOCK,
    BEFORE,  # device of the compute before
    READ_COUNT,
    DONE,  # ops computed at least once
) = range(17)

SCALE = 2.0**40  # keeps logarithms apart when they are stored as integers

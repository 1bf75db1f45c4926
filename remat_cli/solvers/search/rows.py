"""Names of the rows that search kernels work on, and of entries of their row NUM.

A kernel reads `net[rows.SIZE, x]` and `s[rows.POS, step]`: numba takes an attribute of a module as a constant.
"""

# Rows of a net. Tensors are renumbered so that those of op v are OUT_PTR[v] .. OUT_PTR[v+1]-1.
(
    IN_PTR,  # per op: where its INPUTS begin
    INPUTS,
    OUT_PTR,  # per op: its first output
    PRODUCER,  # per tensor
    SIZE,  # per tensor: bytes
    RANK,  # per tensor: its number among the outputs of its op
    READ_PTR,  # per tensor: where its READERS begin
    READERS,
    TIME,  # per op
    WORKSPACE,  # per op: bytes
    OWN,  # per op: bytes of its outputs and workspace
    REPEATABLE,  # per op: 0 or 1
    PAIR_PTR,  # per op: where its PAIRS begin
    PAIRS,  # inputs, any one of which the op's only output overwrites when the op reads it last
    OPS,  # one entry: number of ops, the end op included
) = range(15)

# Rows of a state. Steps have numbers that stay while their slots change.
(
    SEQ,  # per slot: the step there, -1 if it is empty
    OP,  # per step
    POS,  # per step: its slot
    NXT,  # per step: next step of the same op, -1 if none
    HEAD,  # per op: its first step
    MEM,  # per slot: bytes, what its block has PENDING left out; far below zero if it is empty
    MOST,  # per block: most bytes of any slot
    PENDING,  # per block: bytes to be added to every slot
    SPARE,  # stack of unused step numbers
    MARK,  # scratch per op or step: stamps
    USE,  # scratch per tensor: where in a bundle it is read last
    FATE,  # scratch per tensor: stamps
    BUNDLE,  # scratch: ops or steps of the move being looked at
    CREDIT,  # per step: bytes it saves now by working in place, already taken off MEM
    CUTS,  # scratch: slots from which on the move being looked at changes memory, in rising order ...
    RISES,  # ... and by how many bytes more
    REPEATS,  # list of the ops that have more than one step
    PLACE,  # per op: where in that list, -1 if it is not
    BLOCKER,  # per step: a step that kept it from being removed when that was last tried, -1 if unknown
    BLOCK,  # ... and the bytes that the removal would have added there
    LOG,  # what has been done to the schedule since the log began: the kind of change,
    LOG_WHAT,  # the step, or its op once it is removed,
    LOG_AT,  # and the step before which it was put, or stood before
    NUM,  # the single numbers below
    LAST,  # rows from here on, per step: the last step that reads output k, the step itself when unread
) = range(25)

# Entries of row NUM.
(
    LENGTH,  # steps of the schedule, the end op included
    COST,  # total time of all steps
    BUDGET,  # bytes that activations and workspace may take
    STAMP,  # counter that makes marks of earlier moves void
    WORK,  # candidate moves looked at so far
    FREE,  # entries on the stack SPARE
    CHANGES,  # entries of CUTS
    SLOTS,  # slots in use, the last one holds the end op
    SHIFT,  # a block has 2**SHIFT slots
    PINNED,  # 1: first computations stay in their order
    RANDOM,  # state of the random numbers
    BEST,  # score of the best bundle found by the scan under way, its op, step to stand before, and how it was gathered
    BEST_OP,
    BEST_AT,
    BEST_LIMIT,
    BEST_LEAST,
    REPEATED,  # entries of the list REPEATS
    LOGGED,  # entries of the log
    OVER,  # excess of the schedule the search stands at
    LIVES,  # tensors looked at by the last scan for lives across a slot
    BLOCK_AT,  # slot where the move looked at last does not fit, and the bytes it adds there
    BLOCK_BY,
    WHOLE,  # excess when the scan under way began
    WIDTH,  # ops that a bundle may have
    ORDERING,  # 1: search orders only, no step is added or removed
    ROUNDS,  # rounds of search begun since the schedule was built
    REPAIRING,  # 1: the last round stopped in its repair, which goes on with what follows
    NOISE,  # of the repair, times SCALE
    SHARE,  # of a tensor's bytes below which its ancestors do not join a bundle, times SCALE
    MOST_COST,  # time at which the repair gives up
    FAILURES,  # tries in a row that did not lower the excess
    COST_BEFORE,  # time when the round began
) = range(32)

SCALE = 2.0**40  # keeps fractions and logarithms apart when they are stored as integers
EMPTY = -(2**60)  # bytes of an empty slot: nothing that is added ever brings it above a budget

"""The native runtime as LLVM IR text: a thread pool, the plan runner and copies.

`runtime_ir(triple)` is one module. What differs between systems (how to sleep until a word changes, the clock,
the pause instruction) comes from small fragments; the rest is the same everywhere.

The pool's protocol. One job at a time owns the pool (`busy`); a caller that finds it taken runs its loop alone,
which is also what makes nested calls run inline. All coordination goes through one word:

    state = epoch << 12 | members << 2 | waiting << 1 | open

The caller writes the job, then stores a new epoch with `open` set. A worker joins by adding one member with a
compare-and-swap on an open state: having joined, it may read the job, because the caller does not return before
`members` is zero again. A caller that has run out of iterations clears `open` and waits only for workers that did
join, so a sleeping worker never delays a short job. Iterations are handed out in blocks of decreasing size
(guided self-scheduling: half a fair share of what remains, at least one grain), so that threads that join late or
run slowly still end together.

On Linux a wake-up also says where not to run: a guest kernel takes a halted virtual processor for a busy one, and
then puts the woken worker behind its waker on the same core until the next tick. So workers are kept off the
processor that their caller was last seen on (`weft_steer`); beyond that the system places them.

Waiting spins for `spin_ns`, then sleeps on the word (futex or its like). `sleepers` is raised before the last look
at `state`, and the caller reads it after publishing, so no wake-up is lost.
"""
# Tests: tests/backends/cpu/test_runtime.py

from __future__ import annotations

import time

from weft.lazy_dataclass import dataclass

from . import half
from .half import CONVERSIONS
from .native_direct import DIRECT

MAX_THREADS = 1023
"""`members` has ten bits."""

MAX_PROCESSORS = 1024
"""Bits of a processor mask, as glibc has them."""

EXPORTS = (
    "weft_parallel",
    "weft_worker",
    "weft_resize",
    "weft_reset",
    "weft_run",
    "weft_run_plan",
    "weft_run_timed",
    "weft_copy",
    "weft_copy_variable",
    *half.EXPORTS,
)

_DECLARATIONS = """
declare i32 @llvm.smin.i32(i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""

_POOL = """
@threads = internal global i32 1, align 128
@spin_ns = internal global i64 0, align 8
@busy = internal global i32 0, align 128
@state = internal global i32 0, align 128
@sleepers = internal global i32 0, align 128
@finished = internal global i32 0, align 128
@forked = internal global i32 0, align 4
; By thread, the blocks of the open job that are its own and not yet taken: the first, and from bit 32 on the end.
@ranges = internal global [1024 x i64] zeroinitializer, align 128
@job_body = internal global ptr null, align 128
@job_context = internal global ptr null, align 8
@job_count = internal global i64 0, align 8
@job_grain = internal global i64 0, align 8
@job_shares = internal global i64 0, align 8

; void weft_parallel(body, context, count, grain):
; body(context, begin, end) over disjoint ranges that cover [0, count); each begin is a multiple of grain. Each thread
; begins with a share that is the same in all jobs, the caller with the first: what it wrote in one is in its caches in
; the next.
define void @weft_parallel(ptr %body, ptr %context, i64 %count, i64 %wanted_grain) nounwind {
entry:
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %choose, label %exit
choose:
  %least_grain = call i64 @llvm.smax.i64(i64 %wanted_grain, i64 1)
  ; numbers of blocks have 32 bits
  %many = lshr i64 %count, 30
  %times = udiv i64 %many, %least_grain
  %times_at_least = add i64 %times, 1
  %grain = mul i64 %least_grain, %times_at_least
  %threads = load atomic i32, ptr @threads monotonic, align 4
  %single_block = icmp sle i64 %count, %grain
  %single_thread = icmp sle i32 %threads, 1
  %alone = or i1 %single_block, %single_thread
  br i1 %alone, label %inline, label %claim
claim:
  %claimed = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %claimed, 1
  br i1 %mine, label %publish, label %inline
inline:
  call void %body(ptr %context, i64 0, i64 %count)
  br label %exit
publish:
  %count_less_one = add i64 %count, -1
  %last_block = sdiv i64 %count_less_one, %grain
  %blocks = add i64 %last_block, 1
  store ptr %body, ptr @job_body, align 8
  store ptr %context, ptr @job_context, align 8
  store i64 %count, ptr @job_count, align 8
  store i64 %grain, ptr @job_grain, align 8
  ; as many as there were threads before it was claimed: what else looks at them may see another number
  %shares = sext i32 %threads to i64
  store i64 %shares, ptr @job_shares, align 8
  br label %deal
deal:
  %share = phi i64 [ 0, %publish ], [ %share_next, %deal ]
  %share_first = phi i64 [ 0, %publish ], [ %share_end, %deal ]
  %share_next = add i64 %share, 1
  %share_scaled = mul i64 %blocks, %share_next
  %share_end = udiv i64 %share_scaled, %shares
  %share_high = shl i64 %share_end, 32
  %share_range = or i64 %share_high, %share_first
  %share_at = getelementptr i64, ptr @ranges, i64 %share
  store atomic i64 %share_range, ptr %share_at monotonic, align 8
  %dealt = icmp eq i64 %share_next, %shares
  br i1 %dealt, label %open, label %deal
open:
  %old_state = load atomic i32, ptr @state monotonic, align 4
  %old_epoch = and i32 %old_state, -4096
  %new_epoch = add i32 %old_epoch, 4096
  %open_state = or i32 %new_epoch, 1
  store atomic i32 %open_state, ptr @state seq_cst, align 4
  ; Wake only the helpers that this job can use beyond those that are still spinning.
  %asleep = load atomic i32, ptr @sleepers seq_cst, align 4
  %helpers = add i32 %threads, -1
  %helpers_64 = sext i32 %helpers to i64
  %useful_64 = call i64 @llvm.smin.i64(i64 %helpers_64, i64 %last_block)
  %useful = trunc i64 %useful_64 to i32
  %awake = sub i32 %helpers, %asleep
  %lacking = sub i32 %useful, %awake
  %to_wake = call i32 @llvm.smin.i32(i32 %lacking, i32 %asleep)
  %must_wake = icmp sgt i32 %to_wake, 0
  br i1 %must_wake, label %wake, label %work
wake:
  call void @weft_steer(i32 %threads)
  call void @weft_wake(ptr @state, i32 %to_wake)
  br label %work
work:
  call void @weft_work(i32 0)
  %closed = atomicrmw and ptr @state, i32 -2 seq_cst
  %members = and i32 %closed, 4092
  %lonely = icmp eq i32 %members, 0
  br i1 %lonely, label %release, label %await
await:
  %await_start = call i64 @weft_clock()
  %spin_for = load i64, ptr @spin_ns, align 8
  %await_until = add i64 %await_start, %spin_for
  br label %spin
spin:
  %spins = phi i32 [ 0, %await ], [ %spins_next, %spin_on ], [ %spins_next, %spin_clock ]
  %spin_state = load atomic i32, ptr @state acquire, align 4
  %spin_members = and i32 %spin_state, 4092
  %spin_done = icmp eq i32 %spin_members, 0
  br i1 %spin_done, label %release, label %spin_on
spin_on:
  call void @weft_pause()
  %spins_next = add i32 %spins, 1
  %spin_phase = and i32 %spins_next, 15
  %look_at_clock = icmp eq i32 %spin_phase, 0
  br i1 %look_at_clock, label %spin_clock, label %spin
spin_clock:
  %spin_now = call i64 @weft_clock()
  %spin_over = icmp sge i64 %spin_now, %await_until
  br i1 %spin_over, label %doze, label %spin
doze:
  store atomic i32 0, ptr @finished seq_cst, align 4
  %doze_state = atomicrmw or ptr @state, i32 2 seq_cst
  %doze_members = and i32 %doze_state, 4092
  %doze_done = icmp eq i32 %doze_members, 0
  br i1 %doze_done, label %undoze, label %sleep
sleep:
  call void @weft_wait(ptr @finished, i32 0)
  br label %doze
undoze:
  %undozed = atomicrmw and ptr @state, i32 -3 seq_cst
  br label %release
release:
  store atomic i32 0, ptr @busy release, align 4
  br label %exit
exit:
  ret void
}

; Take blocks of the open job until none is left: half of what is left of the thread's own from the front each time,
; then half of what is left of the others' from the back.
define internal void @weft_work(i32 %index) nounwind {
entry:
  %body = load ptr, ptr @job_body, align 8
  %context = load ptr, ptr @job_context, align 8
  %count = load i64, ptr @job_count, align 8
  %grain = load i64, ptr @job_grain, align 8
  %shares = load i64, ptr @job_shares, align 8
  %number = zext i32 %index to i64
  %self = urem i64 %number, %shares
  br label %visit
visit:
  %distance = phi i64 [ 0, %entry ], [ %distance_next, %next ]
  %own = icmp eq i64 %distance, 0
  %unwrapped = add i64 %self, %distance
  %beyond = icmp uge i64 %unwrapped, %shares
  %wrapped = sub i64 %unwrapped, %shares
  %of = select i1 %beyond, i64 %wrapped, i64 %unwrapped
  %at = getelementptr i64, ptr @ranges, i64 %of
  %found = load atomic i64, ptr %at monotonic, align 8
  br label %take
take:
  %range = phi i64 [ %found, %visit ], [ %seen, %try ], [ %again, %run ]
  %from = and i64 %range, 4294967295
  %to = lshr i64 %range, 32
  %left = sub i64 %to, %from
  %any = icmp sgt i64 %left, 0
  br i1 %any, label %try, label %next
try:
  %half = lshr i64 %left, 1
  %size = call i64 @llvm.smax.i64(i64 %half, i64 1)
  %after = add i64 %from, %size
  %before = sub i64 %to, %size
  %rest_from = select i1 %own, i64 %after, i64 %from
  %rest_to = select i1 %own, i64 %to, i64 %before
  %rest_high = shl i64 %rest_to, 32
  %rest = or i64 %rest_high, %rest_from
  %taken = cmpxchg ptr %at, i64 %range, i64 %rest monotonic monotonic
  %seen = extractvalue { i64, i1 } %taken, 0
  %got = extractvalue { i64, i1 } %taken, 1
  br i1 %got, label %run, label %take
run:
  %first = select i1 %own, i64 %from, i64 %before
  %last = select i1 %own, i64 %after, i64 %to
  %begin = mul i64 %first, %grain
  %full_end = mul i64 %last, %grain
  %end = call i64 @llvm.smin.i64(i64 %full_end, i64 %count)
  call void %body(ptr %context, i64 %begin, i64 %end)
  %again = load atomic i64, ptr %at monotonic, align 8
  br label %take
next:
  %distance_next = add i64 %distance, 1
  %over = icmp uge i64 %distance_next, %shares
  br i1 %over, label %exit, label %visit
exit:
  ret void
}

; void weft_worker(index): serve jobs until fewer than index + 1 threads are wanted.
define void @weft_worker(i32 %index) nounwind {
entry:
  call void @weft_enrol(i32 %index)
  %start = call i64 @weft_clock()
  %start_spin = load i64, ptr @spin_ns, align 8
  %start_until = add i64 %start, %start_spin
  br label %look
look:
  ; %done: epoch of the job last served (1 is no epoch); %until: when to stop spinning.
  %done = phi i32 [ 1, %entry ], [ %done, %idle ], [ %done, %clock ], [ %done, %join ], [ %epoch, %rest ],
                  [ %done, %wakened ]
  %until = phi i64 [ %start_until, %entry ], [ %until, %idle ], [ %until, %clock ], [ %until, %join ],
                   [ %rest_until, %rest ], [ %wakened_until, %wakened ]
  %spins = phi i32 [ 0, %entry ], [ %spins_next, %idle ], [ %spins_next, %clock ], [ %spins, %join ],
                   [ 0, %rest ], [ 0, %wakened ]
  %threads = load atomic i32, ptr @threads monotonic, align 4
  %wanted = icmp slt i32 %index, %threads
  br i1 %wanted, label %peek, label %exit
peek:
  %state = load atomic i32, ptr @state acquire, align 4
  %epoch = and i32 %state, -4096
  %open_bit = and i32 %state, 1
  %open = icmp ne i32 %open_bit, 0
  %unseen = icmp ne i32 %epoch, %done
  %joinable = and i1 %open, %unseen
  br i1 %joinable, label %join, label %idle
join:
  %joined_state = add i32 %state, 4
  %joined = cmpxchg ptr @state, i32 %state, i32 %joined_state acquire monotonic
  %member = extractvalue { i32, i1 } %joined, 1
  br i1 %member, label %serve, label %look
serve:
  call void @weft_work(i32 %index)
  %left = atomicrmw sub ptr @state, i32 4 seq_cst
  ; Last member out, and the caller sleeps: members was 1 and waiting is set.
  %left_bits = and i32 %left, 4094
  %must_tell = icmp eq i32 %left_bits, 6
  br i1 %must_tell, label %tell, label %rest
tell:
  store atomic i32 1, ptr @finished seq_cst, align 4
  call void @weft_wake(ptr @finished, i32 1)
  br label %rest
rest:
  %rest_now = call i64 @weft_clock()
  %rest_spin = load i64, ptr @spin_ns, align 8
  %rest_until = add i64 %rest_now, %rest_spin
  br label %look
idle:
  call void @weft_pause()
  %spins_next = add i32 %spins, 1
  %phase = and i32 %spins_next, 15
  %look_at_clock = icmp eq i32 %phase, 0
  br i1 %look_at_clock, label %clock, label %look
clock:
  %now = call i64 @weft_clock()
  %tired = icmp sge i64 %now, %until
  br i1 %tired, label %park, label %look
park:
  %parked_count = atomicrmw add ptr @sleepers, i32 1 seq_cst
  %last_state = load atomic i32, ptr @state seq_cst, align 4
  %last_threads = load atomic i32, ptr @threads seq_cst, align 4
  %last_epoch = and i32 %last_state, -4096
  %last_open_bit = and i32 %last_state, 1
  %last_open = icmp ne i32 %last_open_bit, 0
  %last_unseen = icmp ne i32 %last_epoch, %done
  %has_job = and i1 %last_open, %last_unseen
  %unwanted = icmp sge i32 %index, %last_threads
  %stay = or i1 %has_job, %unwanted
  br i1 %stay, label %wakened, label %wait
wait:
  call void @weft_wait(ptr @state, i32 %last_state)
  br label %wakened
wakened:
  ; Jobs tend to come in trains: having missed the first one, spin for the next.
  %unparked_count = atomicrmw sub ptr @sleepers, i32 1 seq_cst
  %wakened_now = call i64 @weft_clock()
  %wakened_spin = load i64, ptr @spin_ns, align 8
  %wakened_until = add i64 %wakened_now, %wakened_spin
  br label %look
exit:
  call void @weft_leave(i32 %index)
  ret void
}

; i32 weft_resize(threads, spin_ns, mask): 1 when done, 0 while a job runs (try again). Workers with an index that is
; no longer wanted return from weft_worker. mask: the processors to steer within, 1024 bits, or null for no steering.
define i32 @weft_resize(i32 %threads, i64 %spin, ptr %mask) nounwind {
entry:
  %claimed = cmpxchg ptr @busy, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %claimed, 1
  br i1 %mine, label %change, label %refuse
change:
  store i64 %spin, ptr @spin_ns, align 8
  store i32 0, ptr @forked, align 4
  call void @weft_steer_within(ptr %mask)
  store atomic i32 %threads, ptr @threads seq_cst, align 4
  ; A new epoch, though not open, so that a worker on its way to sleep sees the word change.
  %bumped = atomicrmw add ptr @state, i32 4096 seq_cst
  store atomic i32 0, ptr @busy release, align 4
  call void @weft_wake(ptr @state, i32 2147483647)
  ret i32 1
refuse:
  ret i32 0
}

; void weft_reset(forked): a pool without workers. In a forked child, where no other thread exists, but some should:
; 1, until weft_resize.
define void @weft_reset(i32 %forked) nounwind {
  store i32 %forked, ptr @forked, align 4
  store atomic i32 1, ptr @threads monotonic, align 4
  store atomic i32 0, ptr @state monotonic, align 4
  store atomic i32 0, ptr @sleepers monotonic, align 4
  store atomic i32 0, ptr @finished monotonic, align 4
  call void @weft_wait_init()
  call void @weft_steer_reset()
  store atomic i32 0, ptr @busy seq_cst, align 4
  ret void
}
"""

_RUNNER = """
%Instruction = type { ptr, ptr }
%Plan = type { ptr, ptr, i64, ptr, i64 }
%Copy = type { ptr, ptr }

; void weft_run(table, instructions, count, variables): kernel(table, slots, variables) for each in turn.
define void @weft_run(ptr %table, ptr %instructions, i64 %count, ptr %variables) nounwind {
entry:
  %past = getelementptr inbounds %Instruction, ptr %instructions, i64 %count
  %empty = icmp sle i64 %count, 0
  br i1 %empty, label %exit, label %step
step:
  %at = phi ptr [ %instructions, %entry ], [ %following, %step ]
  %kernel = load ptr, ptr %at, align 8
  %slots_at = getelementptr inbounds %Instruction, ptr %at, i64 0, i32 1
  %slots = load ptr, ptr %slots_at, align 8
  call void %kernel(ptr %table, ptr %slots, ptr %variables)
  %following = getelementptr inbounds %Instruction, ptr %at, i64 1
  %done = icmp eq ptr %following, %past
  br i1 %done, label %exit, label %step
exit:
  ret void
}

; void weft_run_plan(plan): the same with its arguments in one record, which is one argument to convert. The runs are
; counted there: who is interrupted on the way back from here can tell that there was one.
define void @weft_run_plan(ptr %plan) nounwind {
  %table = load ptr, ptr %plan, align 8
  %instructions_at = getelementptr inbounds %Plan, ptr %plan, i64 0, i32 1
  %instructions = load ptr, ptr %instructions_at, align 8
  %count_at = getelementptr inbounds %Plan, ptr %plan, i64 0, i32 2
  %count = load i64, ptr %count_at, align 8
  %variables_at = getelementptr inbounds %Plan, ptr %plan, i64 0, i32 3
  %variables = load ptr, ptr %variables_at, align 8
  call void @weft_run(ptr %table, ptr %instructions, i64 %count, ptr %variables)
  %runs_at = getelementptr inbounds %Plan, ptr %plan, i64 0, i32 4
  %runs = load i64, ptr %runs_at, align 8
  %more = add i64 %runs, 1
  store i64 %more, ptr %runs_at, align 8
  ret void
}

; void weft_run_timed(table, instructions, count, variables, nanoseconds): also how long each instruction took.
define void @weft_run_timed(ptr %table, ptr %instructions, i64 %count, ptr %variables, ptr %nanoseconds) nounwind {
entry:
  %empty = icmp sle i64 %count, 0
  br i1 %empty, label %exit, label %start
start:
  %begin = call i64 @weft_clock()
  br label %step
step:
  %i = phi i64 [ 0, %start ], [ %i_next, %step ]
  %before = phi i64 [ %begin, %start ], [ %after, %step ]
  %at = getelementptr inbounds %Instruction, ptr %instructions, i64 %i
  %i_next = add i64 %i, 1
  call void @weft_run(ptr %table, ptr %at, i64 1, ptr %variables)
  %after = call i64 @weft_clock()
  %took = sub i64 %after, %before
  %took_at = getelementptr inbounds i64, ptr %nanoseconds, i64 %i
  store i64 %took, ptr %took_at, align 8
  %done = icmp eq i64 %i_next, %count
  br i1 %done, label %exit, label %step
exit:
  ret void
}

; A kernel. slots: target, source, low and high half of the byte count.
define void @weft_copy(ptr %table, ptr %slots, ptr %variables) nounwind {
  %bytes_at = getelementptr inbounds i32, ptr %slots, i64 2
  %bytes = load i64, ptr %bytes_at, align 4
  tail call void @weft_copy_bytes(ptr %table, ptr %slots, i64 %bytes)
  ret void
}

; A kernel. slots: target, source, the variable that is the byte count.
define void @weft_copy_variable(ptr %table, ptr %slots, ptr %variables) nounwind {
  %number_at = getelementptr inbounds i32, ptr %slots, i64 2
  %number = load i32, ptr %number_at, align 4
  %number_64 = sext i32 %number to i64
  %bytes_at = getelementptr inbounds i64, ptr %variables, i64 %number_64
  %bytes = load i64, ptr %bytes_at, align 8
  tail call void @weft_copy_bytes(ptr %table, ptr %slots, i64 %bytes)
  ret void
}

define internal void @weft_copy_bytes(ptr %table, ptr %slots, i64 %bytes) nounwind {
  %target_slot = load i32, ptr %slots, align 4
  %target_slot_64 = sext i32 %target_slot to i64
  %target_at = getelementptr inbounds ptr, ptr %table, i64 %target_slot_64
  %target = load ptr, ptr %target_at, align 8
  %source_slot_at = getelementptr inbounds i32, ptr %slots, i64 1
  %source_slot = load i32, ptr %source_slot_at, align 4
  %source_slot_64 = sext i32 %source_slot to i64
  %source_at = getelementptr inbounds ptr, ptr %table, i64 %source_slot_64
  %source = load ptr, ptr %source_at, align 8
  %copy = alloca %Copy, align 8
  store ptr %target, ptr %copy, align 8
  %copy_source_at = getelementptr inbounds %Copy, ptr %copy, i64 0, i32 1
  store ptr %source, ptr %copy_source_at, align 8
  call void @weft_parallel(ptr @weft_copy_part, ptr %copy, i64 %bytes, i64 COPY_GRAIN)
  ret void
}

define internal void @weft_copy_part(ptr %copy, i64 %begin, i64 %end) nounwind {
  %target = load ptr, ptr %copy, align 8
  %source_at = getelementptr inbounds %Copy, ptr %copy, i64 0, i32 1
  %source = load ptr, ptr %source_at, align 8
  %to = getelementptr inbounds i8, ptr %target, i64 %begin
  %from = getelementptr inbounds i8, ptr %source, i64 %begin
  %bytes = sub i64 %end, %begin
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret void
}
"""

_COPY_GRAIN = 1 << 20

# weft_wait(word, expected) returns at once unless *word == expected, else after a wake on word, or spuriously.
# weft_wake(word, count) wakes at least that many waiters of word, where there are so many.
_FUTEX = """
declare i64 @syscall(i64, ...) nounwind

define internal void @weft_wait(ptr %word, i32 %expected) nounwind {
  %result = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 128, i32 %expected, ptr null, ptr null, i32 0)
  ret void
}

define internal void @weft_wake(ptr %word, i32 %count) nounwind {
  %result = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i32 129, i32 %count, ptr null, ptr null, i32 0)
  ret void
}

define internal void @weft_wait_init() nounwind {
  ret void
}
"""

# One mutex and one condition for all words. 128 bytes hold either on every POSIX system we know (macOS: 64, 48).
_PTHREAD = """
@mutex = internal global [128 x i8] zeroinitializer, align 16
@condition = internal global [128 x i8] zeroinitializer, align 16

declare i32 @pthread_mutex_init(ptr, ptr) nounwind
declare i32 @pthread_mutex_lock(ptr) nounwind
declare i32 @pthread_mutex_unlock(ptr) nounwind
declare i32 @pthread_cond_init(ptr, ptr) nounwind
declare i32 @pthread_cond_wait(ptr, ptr) nounwind
declare i32 @pthread_cond_broadcast(ptr) nounwind

define internal void @weft_wait(ptr %word, i32 %expected) nounwind {
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %expected
  br i1 %same, label %wait, label %exit
wait:
  %waited = call i32 @pthread_cond_wait(ptr @condition, ptr @mutex)
  br label %exit
exit:
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}

define internal void @weft_wake(ptr %word, i32 %count) nounwind {
  %locked = call i32 @pthread_mutex_lock(ptr @mutex)
  %sent = call i32 @pthread_cond_broadcast(ptr @condition)
  %unlocked = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}

define internal void @weft_wait_init() nounwind {
  %mutex_ready = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %condition_ready = call i32 @pthread_cond_init(ptr @condition, ptr null)
  ret void
}
"""

_WINDOWS_WAIT = """
declare i32 @WaitOnAddress(ptr, ptr, i64, i32) nounwind
declare void @WakeByAddressAll(ptr) nounwind

define internal void @weft_wait(ptr %word, i32 %expected) nounwind {
  %unchanged = alloca i32, align 4
  store i32 %expected, ptr %unchanged, align 4
  %result = call i32 @WaitOnAddress(ptr %word, ptr %unchanged, i64 4, i32 -1)
  ret void
}

define internal void @weft_wake(ptr %word, i32 %count) nounwind {
  call void @WakeByAddressAll(ptr %word)
  ret void
}

define internal void @weft_wait_init() nounwind {
  ret void
}
"""

# weft_enrol and weft_leave tell where a worker can be reached; weft_steer, called by whoever owns the pool, keeps the
# workers off the caller's processor. It costs a look at the processor's number unless the caller has moved.
_STEER = """
@worker_threads = internal global [1024 x i32] zeroinitializer, align 128
@allowed = internal global [16 x i64] zeroinitializer, align 128
@steering = internal global i32 0, align 4
@avoided = internal global i32 -1, align 4

declare i32 @sched_getcpu() nounwind

define internal void @weft_enrol(i32 %index) nounwind {
  %thread_64 = call i64 (i64, ...) @syscall(i64 GETTID)
  %thread = trunc i64 %thread_64 to i32
  %at = getelementptr inbounds [1024 x i32], ptr @worker_threads, i64 0, i32 %index
  store atomic i32 %thread, ptr %at seq_cst, align 4
  store atomic i32 -1, ptr @avoided seq_cst, align 4
  ret void
}

define internal void @weft_leave(i32 %index) nounwind {
  %at = getelementptr inbounds [1024 x i32], ptr @worker_threads, i64 0, i32 %index
  store atomic i32 0, ptr %at seq_cst, align 4
  ret void
}

define internal void @weft_steer_reset() nounwind {
  call void @llvm.memset.p0.i64(ptr @worker_threads, i8 0, i64 4096, i1 false)
  store i32 0, ptr @steering, align 4
  ret void
}

define internal void @weft_steer_within(ptr %mask) nounwind {
  store atomic i32 -1, ptr @avoided seq_cst, align 4
  %none = icmp eq ptr %mask, null
  br i1 %none, label %off, label %on
off:
  store i32 0, ptr @steering, align 4
  ret void
on:
  call void @llvm.memcpy.p0.p0.i64(ptr @allowed, ptr %mask, i64 128, i1 false)
  store i32 1, ptr @steering, align 4
  ret void
}

define internal void @weft_steer(i32 %threads) nounwind {
entry:
  %mask = alloca [16 x i64], align 8
  %steering = load i32, ptr @steering, align 4
  %on = icmp ne i32 %steering, 0
  br i1 %on, label %locate, label %exit
locate:
  %here = call i32 @sched_getcpu()
  %avoided = load atomic i32, ptr @avoided seq_cst, align 4
  %settled = icmp eq i32 %here, %avoided
  %known = icmp ult i32 %here, 1024
  %unknown = xor i1 %known, true
  %leave = or i1 %settled, %unknown
  br i1 %leave, label %exit, label %move
move:
  store atomic i32 %here, ptr @avoided seq_cst, align 4
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr @allowed, i64 128, i1 false)
  %word = lshr i32 %here, 6
  %word_at = getelementptr inbounds [16 x i64], ptr %mask, i64 0, i32 %word
  %bit = and i32 %here, 63
  %bit_64 = zext i32 %bit to i64
  %one = shl i64 1, %bit_64
  %others = xor i64 %one, -1
  %old = load i64, ptr %word_at, align 8
  %new = and i64 %old, %others
  store i64 %new, ptr %word_at, align 8
  br label %each
each:
  %i = phi i32 [ 1, %move ], [ %next, %after ]
  %at = getelementptr inbounds [1024 x i32], ptr @worker_threads, i64 0, i32 %i
  %thread = load atomic i32, ptr %at seq_cst, align 4
  %exists = icmp ne i32 %thread, 0
  br i1 %exists, label %set, label %after
set:
  %result = call i64 (i64, ...) @syscall(i64 SETAFFINITY, i32 %thread, i64 128, ptr %mask)
  br label %after
after:
  %next = add i32 %i, 1
  %more = icmp slt i32 %next, %threads
  br i1 %more, label %each, label %exit
exit:
  ret void
}
"""

_NO_STEER = """
define internal void @weft_steer_reset() nounwind {
  ret void
}

define internal void @weft_enrol(i32 %index) nounwind {
  ret void
}

define internal void @weft_leave(i32 %index) nounwind {
  ret void
}

define internal void @weft_steer_within(ptr %mask) nounwind {
  ret void
}

define internal void @weft_steer(i32 %threads) nounwind {
  ret void
}
"""

# i64 weft_clock(): nanoseconds of a steady clock.
_POSIX_CLOCK = """
declare i32 @clock_gettime(i32, ptr) nounwind

define internal i64 @weft_clock() nounwind {
  %time = alloca { i64, i64 }, align 8
  %result = call i32 @clock_gettime(i32 MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %rest_at = getelementptr inbounds { i64, i64 }, ptr %time, i64 0, i32 1
  %rest = load i64, ptr %rest_at, align 8
  %whole = mul i64 %seconds, 1000000000
  %nanoseconds = add i64 %whole, %rest
  ret i64 %nanoseconds
}
"""

# The performance counter has run at 10 MHz since Windows 10: a hundred nanoseconds a tick.
_WINDOWS_CLOCK = """
declare i32 @QueryPerformanceCounter(ptr) nounwind

define internal i64 @weft_clock() nounwind {
  %ticks_at = alloca i64, align 8
  %result = call i32 @QueryPerformanceCounter(ptr %ticks_at)
  %ticks = load i64, ptr %ticks_at, align 8
  %nanoseconds = mul i64 %ticks, 100
  ret i64 %nanoseconds
}
"""

_PAUSE = """
PAUSE_DECLARATION
define internal void @weft_pause() nounwind alwaysinline {
  PAUSE
  ret void
}
"""

_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


@dataclass(frozen=True, slots=True)
class _SystemCalls:
    """Linux's numbers for one architecture."""

    futex: int
    gettid: int
    setaffinity: int


_LINUX = {
    "x86_64": _SystemCalls(futex=202, gettid=186, setaffinity=203),
    "aarch64": _SystemCalls(futex=98, gettid=178, setaffinity=122),
    "riscv64": _SystemCalls(futex=98, gettid=178, setaffinity=122),
}


def runtime_ir(triple: str, *, futex: bool = True, python: bool = False) -> str:
    """The runtime's module for a target triple. `futex=False` takes the portable waiting also on Linux. `python`: with
    `weft_direct`, which needs CPython's functions."""
    architecture = triple.split("-")[0].replace("arm64", "aarch64").replace("amd64", "x86_64")
    calls = _LINUX.get(architecture) if futex and "linux" in triple else None
    steer = _NO_STEER
    if "windows" in triple:
        wait, clock = _WINDOWS_WAIT, _WINDOWS_CLOCK
    else:
        wait, clock = _PTHREAD, _POSIX_CLOCK.replace("MONOTONIC", str(time.CLOCK_MONOTONIC))
    if calls is not None:
        wait = _FUTEX.replace("FUTEX", str(calls.futex))
        steer = _STEER.replace("GETTID", str(calls.gettid)).replace("SETAFFINITY", str(calls.setaffinity))
    declaration, pause = _PAUSES.get(architecture, ("", ""))
    pausing = _PAUSE.replace("PAUSE_DECLARATION", declaration).replace("PAUSE", pause)
    runner = _RUNNER.replace("COPY_GRAIN", str(_COPY_GRAIN)) + (DIRECT if python else "")
    return f'target triple = "{triple}"\n{_DECLARATIONS}{wait}{steer}{clock}{pausing}{_POOL}{runner}{CONVERSIONS}'

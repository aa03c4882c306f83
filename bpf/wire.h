/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract between kernel and Python: everything that crosses the line, and nothing else.
 * Python never repeats these layouts by hand: the compiler child reads them from BCC and writes them
 * into the compiled object. Times are CLOCK_MONOTONIC nanoseconds. Compiles as plain C too.
 *
 * Here is what the maps have; wire_records.h has what the ring buffers carry, wire_counters.h what is counted, wire_calls.h
 * what counts and times calls, wire_languages.h where languages with stacks of their own keep their frames.
 */
#ifndef PARPROF_WIRE_H
#define PARPROF_WIRE_H

#define MAX_FRAMES 512		/* user frames of one stack; a power of two */
#define MAX_PYTHON_FRAMES 256	/* Python frames of one stack, marks included */
#define STACK_WORDS 1024	/* room for MAX_FRAMES and two words for each Python frame; a power of two */
#define MAX_KERNEL_FRAMES 127	/* the kernel's own limit for bpf_get_stack; one below a power of two */
#define COMPARED_FRAMES 128	/* outermost frames that are compared with those of the thread's previous sample; a power of two */
#define FRAMES_PER_CALL 16	/* unwound by one program before it tail-calls itself; 33 calls is the limit */
#define CHUNK_SHIFT 17		/* the unwinder's store comes in chunks of 2^17 words: 1 MiB */
#define MAX_CHUNKS 1024
#define PAGE_SHIFT 9		/* one entry of a block of a table stands for 512 bytes of code */
#define REGION_SHIFT 14		/* one block for 16 KiB of code */
#define MAPPING_WORDS 5		/* start, end, bias, the table's index (word << 32 | regions), first region */
#define MAX_NESTING 64		/* (work | wait) frames remembered for one thread */
#define MAX_RUNTIME_RANGES 6	/* executable mappings of parallel runtimes in one process */
#define MAX_WAIT_RANGES 16	/* code of the runtimes in which threads wait */
#define MAX_SPIN_RANGES 16	/* loops of any code in which threads wait */
#define MAX_LIBC_RANGES 2	/* libc, and before glibc 2.34 libpthread */
#define MAX_UNPROBED_RANGES 2	/* executable mappings of runtimes without probes beside those that have some */
#define MAX_USER_RANGES 4	/* executable mappings of files that call them */
#define MAX_CODE_SPANS 2	/* the executable, the libraries */
#define COMM_LENGTH 16

enum thread_state_kind {
	STATE_WORKING = 0,
	STATE_SPINNING = 1,
	STATE_BLOCKED = 2,	/* no sample: a wait that is over; see NO_EVENT */
	STATE_STALLED = 3,	/* nor is this: time in which nobody worked, since this thread went to sleep */
};

#define NO_EVENT 0xff	/* of a row that no perf event made: it has the times that were measured, in nanoseconds */

/* The key under which samples are counted; two samples are one row when all of this is equal. The fields of
 * parprof.model.SampleKey have these names; Python finds them by the compiled object's layout. */
struct sample_key {
	u64 user;		/* hash of the user stack's frames; 0 = no user stack */
	u64 kernel;		/* hash of the kernel stack's frames; 0 = the sample hit user mode */
	u32 image;		/* process image: one exec of one process */
	u32 tid;
	u16 n_working;		/* threads of the image's scope in user work, this one included; not clamped to cores */
	u8 state;		/* enum thread_state_kind */
	u8 event;		/* index of the perf event */
	u8 unsure;		/* 1: n_working or the state is partly guessed (attach in the middle, unprobed edge) */
	u8 phase;		/* drain parity: Python reads the phase that the kernel does not write */
	u16 waiters;		/* threads that wait for a lock which this one holds */
	u32 epoch;		/* of the load map: which files were where */
	u16 fine;		/* size of a team whose barriers come too often for n_working to be read in time; or 0 */
	u8 awaits;		/* of a wait: enum awaited */
	u8 glimpse;		/* of a wait or a stall: the number of the glimpse that it was seen in; 0 = of none */
	u64 context;		/* the call path that created the piece of work; 0 = the stack is whole; CONTEXT_UNKNOWN */
	u32 away;		/* cores that the scope's runnable threads wanted, and others had */
	u16 fresh;		/* so many innermost frames were not there at the thread's previous sample: see activations.bpf.c */
	u16 slice;		/* of the time: see slice_ns in struct settings */
};

/* What a wait is for, where more is known than the functions of the kernel in which the thread sleeps. */
enum awaited {
	AWAITS_UNKNOWN = 0,
	AWAITS_GIL = 1,		/* the lock of a Python interpreter: see gil.bpf.c */
	AWAITS_TIME = 2,	/* nothing else: it looks at no file. See polls.bpf.c */
	AWAITS_ANSWER = 3,	/* on a connection that it has made */
	AWAITS_PIPE = 4,	/* what another process writes, or reads: it looks at nothing but pipes */
	AWAITS_THAW = 7,	/* that its control group goes on, or the machine. Those between are not known here */
	AWAITS_CHILD = 8,	/* the end of a process: it looks at that, or at the signal that tells of it */
	AWAITS_FILE = 9,	/* what it has asked of files, asynchronously */
};

/* How far it is known what a thread does where no frame of it tells. */
enum unknown_kind {
	NOT_UNKNOWN = 0,
	GUESSED = 1,		/* attached in the middle: from its leaf */
	GUESSED_ASLEEP = 2,	/* so, but it has not run since */
	NO_RUNTIME = 3,		/* none was mapped when it was met */
	UNPROBED = 4,		/* its runtime has no probes: leaves tell for as long as it lives */
};

#define CONTEXT_UNKNOWN 2ULL	/* the ids of contexts are odd */

struct sample_value {
	u64 count;		/* samples */
	u64 total;		/* sum of their periods, in the event's unit */
};

/* What a process pays for being profiled, by kind of event. All kinds draw on one budget; the dearest is cut off when
 * that is used up: see budget.bpf.c. */
enum cost_kind {
	COST_PROBE = 0,		/* work edges */
	COST_LOCK = 1,		/* edges that tell who holds a lock */
	COST_CREATE = 2,	/* creation of threads */
	COST_WALK = 3,		/* walks of creators' stacks */
	COST_SWITCH = 4,	/* context switches and wake-ups */
	COST_SAMPLE = 5,
	COST_TIMER = 6,		/* the interrupts of samples: that is the rate that was asked for, and no part of the budget */
	COST_WAIT = 7,		/* where threads wait */
	COST_CALL = 8,		/* calls that are counted exactly */
	COST_TRANSFER = 9,	/* bytes of system calls, counted and sampled: see amounts.bpf.c */
	COST_ALLOCATION = 10,	/* bytes that are allocated */
	COST_KINDS = 11,
};

/* Kernel-owned state of one process; key: tgid. The numbers of threads stand twice: see `generation`. */
struct process {
	u32 image;
	s32 members;		/* live threads that take part in parallel regions */
	s32 members_max;
	u32 dead;		/* 1: not counted: it has yet to exec, or it ended and Python has yet to remove it */
	s32 n_working[2];	/* threads with `counted` set */
	s32 n_unknown[2];	/* threads whose state is guessed from their leaf */
	s32 n_blocked_outside[2];	/* threads with `blocked_outside` set */
	s32 n_blocked_inside[2];	/* threads with `blocked_inside` set */
	u32 generation;		/* grows when threads are to be counted anew; its parity tells which numbers hold */
	u32 ticks;		/* 1: context switches are not followed: n_working is what runs on the CPUs at a sample */
	s64 left_ns;		/* of the budget */
	u64 spent_ns[COST_KINDS];	/* what was paid so far */
	u64 probes_owe_ns;	/* what probes took, less what came in meanwhile; some at first */
	u64 full_ns[COST_KINDS];	/* what had been paid when the budget was whole last */
	u64 ready_ns;		/* time that working threads waited for a CPU */
	u64 last_ready_ns;	/* that of the image before the last exec, */
	u32 last_image;		/* which had this number */
	u32 foreign_lately;	/* where switches are not followed: CPUs that others had at its last samples, and its threads */
	u32 queued_lately;	/* that waited for a CPU: see LATELY_SHIFT */
	u64 waits_since_ns;	/* its waits are of interest from then on, and where they are; so are its calls; 0 = they are not */
	u32 cut;		/* 1 << enum cost_kind: kinds that do nothing any more */
	u32 thin;		/* one sample in 2^thin is taken, and stands for as many */
	u32 thinned;		/* counts samples, to tell which: see one_of_each */
	u32 sample_ns;		/* price of a sample lately */
	u64 lack_told_ns;	/* when RECORD_STALE_MAP or RECORD_ABSENT_ROWS was sent last */
	u32 epoch;		/* counts the changes of the load map that ld.so reported */
	u32 threads_created;
	u64 program;		/* its executable: see program_of */
	u64 runtime_root;	/* the runtime's state, as a probe saw it: see ROOT_LEARNED */
	u64 loiterers;		/* its threads that loiter, LOITERERS_BITS; above, how often some were let go: see loiterers.bpf.c */
	u64 probe_hits;
	u32 from_leaves;	/* as in the flags of its config, since the last sample */
	u32 fine;		/* 1: the team's barriers come in quick succession */
	u64 main_record;	/* where the runtime keeps what it knows of the main thread, as its samples showed */
	u64 team;		/* the main thread's team, whose barriers are counted */
	u64 barriers_ns;	/* when that count was looked at last */
	u32 barriers;
	u32 scope;
	u32 our_stop;		/* 1: we have sent it SIGSTOP, of which it has yet to take notice */
	u32 traced;		/* 1: send a record of all that its threads do: see trace.bpf.c */
	u32 creations_walked;	/* places that create work and were walked without time for it */
	u32 glimpsed;		/* 1: its switches are followed for a moment */
	u32 last_tid;		/* its last thread, whose memory the kernel takes apart; 0 = others live, or nobody knows */
};

#define SCOPE_LEVELS 128	/* the last is for as many and more */

/* What n_working is summed up over: a process, or all of a job, a tree of processes; key: number of the scope. Times are
 * exact where threads are counted by edges and by the scheduler. */
struct scope {
	u64 word;		/* n_working, 16 bits; above, when that changed, in units of 16 ns. 0 = nobody has worked yet */
	u64 beyond_ns;		/* the integral of n_working over what is in the last level, less that level */
	u64 level_ns[SCOPE_LEVELS];	/* how long n_working was so high, up to that change */
	u64 stopped_ns;		/* so long nobody worked and a signal, a debugger or we had stopped somebody */
	u64 stall_user;		/* stacks with which the thread sleeps whose step made n_working 0; 0 = it does not, or nobody knows */
	u64 stall_kernel;
	u64 stall_context;
	u32 stall_tid;
	u32 stall_image;
	u32 stall_epoch;
	u32 stopped_tid;	/* the thread that was stopped last, until it goes on */
	u32 ticks;		/* 1: of some process switches are not followed: see struct process */
	u32 cores;		/* that its processes may use, as Python saw it; 0 = nobody knows */
	u32 stall_sleeps;	/* 1: that thread has gone to sleep; 0: it spins */
	u32 stall_awaits;	/* what that thread waits for: enum awaited */
	s64 places;		/* its threads that have a CPU, whatever they do, and, times 2^32, those that wait for one */
	u64 idle_away_ns;	/* cores that others had while some of it worked, times that time; and while none did */
	u64 stall_away_ns;
	u64 unfollowed;		/* samples of the clock while switches were not followed, those that were left out, too */
	u64 asked;		/* how many that had been when it asked for a glimpse last */
	s64 glimpse_left_ns;	/* what its processes may still pay together for the glimpse that lasts */
	u64 begun_ns;		/* when its first thread was seen, if its time is counted from there on */
};

/* What lies further out on the stack than the words that a place is known by: see places.bpf.c. */
struct behind {
	u32 offset;		/* of the next return address, from the begin of the stack; 0 = there is none */
	u32 tells;		/* 1: there are several call paths that are told apart by that, or there may be */
};

/* A place where threads sleep, by a hash of what its innermost frames show. */
struct wait_site {
	u64 user;		/* its stacks as they were walked last */
	u64 kernel;
	u64 hits;
	u64 walked_ns;		/* when that was */
	struct behind behind;
	u64 awaits;		/* what it was then, by a call of which that is told as seldom as walks: see told_seldom() */
};

#define SAMPLE_NO_INTERRUPT 0x100	/* of a sample's cookie, beside the event's index: the kernel counts that event as it makes it */

#define FOLLOW_CHILDREN 1	/* profile forked children too */
#define STOP_AT_EXEC 2		/* SIGSTOP at exec, until Python placed the probes */
#define HAS_RUNTIME 4		/* a parallel runtime is mapped: threads are classified by work edges */
#define STOP_AT_LOAD 8		/* the same when ld.so has mapped the libraries; set by exec, cleared by Python */
#define FROM_LEAVES 16		/* threads are classified by what they run at samples and switches, not by edges */
#define FROM_MEMORY 32		/* as FROM_LEAVES, but n_working is read from the runtime's memory */
#define CHECK_MEMORY 64		/* n_working comes from edges; where it is a guess, from memory; both are compared */
#define CACTUS 128		/* a caller's frame may lie on another stack than its callee's */
#define BLAME_LOCKS 256		/* notice who holds the locks that others wait for */
#define LETS_GO 512		/* no thread goes on behind a barrier, or begins a region, but after an edge of another's */
#define LOADS_ONCE 1024		/* the loader tells of a program's first libraries when they are mapped; else before that, too */
#define CREATORS_UNPROBED 2048	/* a parallel runtime is mapped, but no probe tells of the creation of threads */

enum memory_kind {
	MEMORY_NONE = 0,
	MEMORY_TEAM = 1,	/* the barrier of a libgomp team */
	MEMORY_WORKERS = 2,	/* an array of workers */
};

enum memory_root {
	ROOT_POINTER = 1,	/* the pointer variable at `root` */
	ROOT_THREAD_LOCAL = 2,	/* the pointer `root` bytes from fsbase */
	ROOT_LEARNED = 3,	/* what a probe saw last in an argument */
};

#define MAX_WORKERS 64	/* of a pool with more n_working is not read from memory: LOST_MEMORY */
#define MAX_HOPS 3

/* How n_working is read from a runtime's memory; see parprof/plans.py. Offsets in bytes. */
struct memory_plan {
	u64 root;
	u64 tls;		/* MEMORY_TEAM: from fsbase to the thread's record */
	u64 equals;
	u64 mask;		/* of the bytes that the value has */
	u32 kind;		/* enum memory_kind */
	u16 team;
	u16 task;
	u16 total;
	u16 awaited;
	u16 awaited_final;
	u16 root_kind;		/* enum memory_root */
	u16 hop_count;
	u16 hops[MAX_HOPS];
	u16 count;
	u16 array;
	u16 stride;
	u16 pointers;
	u16 worker_hop_count;
	u16 worker_hops[MAX_HOPS];
	u16 value;
	u16 outer_team;		/* MEMORY_TEAM: where a team points to the one around it */
	u16 not_zero;		/* compare with 0 instead of `equals` */
	u16 generation_step;	/* MEMORY_TEAM: by so much the generation, behind the total, grows with each barrier */
};

/* Where Cilk-5 keeps the ancestors of a stolen frame; see parprof/plans.py. */
struct closure_chain {
	u16 there;
	u16 ws_self;
	u16 ws_stack;
	u16 ws_context;
	u16 context_ro;
	u16 ro_deques;
	u16 deque_size;
	u16 deque_bottom;
	u16 parent;
	u16 frame;
	u16 signature;
	u16 inlet;
};

/* Python-owned facts about one process; key: tgid. */
struct process_config {
	u64 range_start[MAX_RUNTIME_RANGES];	/* executable mappings of its parallel runtimes */
	u64 range_end[MAX_RUNTIME_RANGES];
	u64 user_start[MAX_USER_RANGES];	/* of the files that call the runtimes: the program's own code */
	u64 user_end[MAX_USER_RANGES];
	u64 wait_start[MAX_WAIT_RANGES];	/* the code of the runtimes that waits; none = all of it may */
	u64 wait_end[MAX_WAIT_RANGES];
	u64 code_start[MAX_CODE_SPANS];	/* spans of addresses in which all of its code is, and little else */
	u64 code_end[MAX_CODE_SPANS];
	u64 spin_start[MAX_SPIN_RANGES];	/* code in which a thread waits for others, whatever else is known of it */
	u64 spin_end[MAX_SPIN_RANGES];
	u64 libc_start[MAX_LIBC_RANGES];	/* the C library, and its threads where they are a library of their own */
	u64 libc_end[MAX_LIBC_RANGES];
	u64 unprobed_start[MAX_UNPROBED_RANGES];	/* runtimes of which no probe tells, beside others that are probed */
	u64 unprobed_end[MAX_UNPROBED_RANGES];
	struct memory_plan memory;
	struct closure_chain closures;
	u32 flags;
	u32 reserved;
};

/* Under what the creator's call path is found again when the work begins. */
struct work_key {
	u64 function;
	u64 instance;
	u32 image;
	u32 reserved;
};

struct lock_key {
	u64 address;
	u32 tgid;
	u32 reserved;
};

/* Kernel-owned state of one thread; key: tid. See thread_state.h for its rules. */
struct thread {
	u64 sp[MAX_NESTING];	/* stack pointer at the entry of each frame that still lives, outermost first */
	u64 context[MAX_NESTING];	/* of frame i, where context_bits says so */
	u64 work_bits;		/* bit i: frame i is user work, else runtime wait */
	u64 region_bits;	/* bit i: frame i starts a region and runs its body in this thread too */
	u64 context_bits;	/* bit i: frame i is work that was created in context[i] */
	u64 barrier_bits;	/* bit i: frame i waits for the whole team */
	u64 loiters;		/* 1 + how often the process had let threads go when it began to loiter; 0 = it does not */
	u64 region_function;	/* the body of the region that this thread started last */
	u64 base_context;	/* where this thread was created */
	u64 created_context;	/* of the pthread_create under way in this thread */
	u64 waits_on;		/* the lock that it sleeps for; 0 = none */
	u64 lock_wait;		/* the runtime's lock that it waits for; 0 = none */
	u64 held_lock;		/* the runtime's lock that it holds; 0 = none */
	u64 last_lock;		/* a pthread mutex that it may hold and others wait for */
	u64 worker;		/* the runtime's state of this thread, as a probe saw it; 0 = none did */
	u64 start_routine;	/* third argument of the pthread_create under way in this thread; 0 = none */
	u64 ready_since_ns;	/* it works, but has had no CPU since then; 0 = it has one, or does not work */
	u64 ready_delay_ns;	/* how long it had waited for a CPU in its life when it began to, as the kernel's own account has it */
	u64 wait_since_ns;	/* it sleeps since then; 0 = it does not, or nobody saw it fall asleep */
	u64 wait_user;		/* its stacks there; 0 = that was not looked at, or it is awake */
	u64 wait_kernel;
	u64 wait_context;
	u64 call_sum;		/* what a program at a call of this thread adds up in: it can be preempted by another's */
	u64 wait_walked_ns;	/* when its stack was walked last as it went to sleep */
	u64 slept_ns;		/* when it went to sleep last */
	u64 calls;		/* that its last sample was in: see as_before in unwind.bpf.c */
	u64 delay_ns;		/* how long it has waited for a CPU in its life, as of its last sample where switches are not
				 * followed; 0 = they are, 1 = it is new */
	u32 tgid;
	u32 image;
	u32 depth;		/* live entries of sp */
	u8 base_work;		/* the state when depth is 0 */
	u8 blocked;		/* sleeps in the kernel */
	u8 counted;		/* included in n_working: the only way in and out of that number */
	u8 unknown;		/* how far base_work is to be believed: enum unknown_kind */
	u8 member;		/* has taken part in a parallel region */
	u8 busy;		/* a probe is changing this entry: the sampler must not */
	u8 is_main;
	u8 caught_working;	/* found in the program's own code while its frames say wait; until its next edge */
	u8 blocked_outside;	/* sleeps, but not in the runtime: for MEMORY_TEAM, which takes it for working */
	u8 blocked_inside;	/* sleeps in the runtime, or was woken there and has not run since */
	u8 from_leaves;		/* its state was last judged by leaves, not by edges */
	u8 wait_glimpse;	/* the glimpse in which it fell asleep; 0 = in none */
	u64 shown_ns;		/* when a sample of the clock hit it last, */
	u64 gap_begun_ns;	/* and which two were last more than GAP_NS apart */
	u64 gap_ended_ns;
	u32 walk_slot;		/* of the walk that a probe does in this thread */
	u32 tid;
	u32 scope;		/* of its process */
	u32 wait_epoch;
	u8 running;		/* included in its scope's places, as `counted` is in n_working */
	u8 queued;
	u8 stopped;		/* it sleeps because of a signal or a debugger */
	u8 spins;		/* it waits without sleeping: SPINS, GAVE_UP */
	u8 told;		/* what the last thread_record said that it does */
	u8 awaits;		/* what it sleeps for: enum awaited */
	u16 generation;		/* of its process, when it was counted last */
};

/* What a probe site means: the low byte of its cookie. */
enum edge_kind {
	EDGE_ENTER_WORK = 1,	/* the frame is user work: an outlined function or task body */
	EDGE_ENTER_WAIT = 2,	/* the frame waits for other threads: barrier, lock, taskwait */
	EDGE_ENTER_REGION = 3,	/* as EDGE_ENTER_WAIT, and the caller starts a parallel region */
	EDGE_LEARN = 4,		/* only note the outlined function in the argument */
	EDGE_CREATE_THREAD = 5,	/* pthread_create */
	EDGE_LOAD_MAP = 6,	/* ld.so changed the set of mapped libraries */
	EDGE_BEGIN = 7,		/* the thread works until its next EDGE_END */
	EDGE_END = 8,		/* the thread waits until its next EDGE_BEGIN */
	EDGE_CREATE_TASK = 9,	/* work is created that runs later, perhaps elsewhere */
	EDGE_STEAL = 10,	/* only counted */
	EDGE_LOCK = 11,		/* as EDGE_ENTER_WAIT; from its return on the thread holds the lock in the instance argument */
	EDGE_UNLOCK = 12,
	EDGE_KINDS = 13,
};

#define COOKIE_KIND_MASK 0xff
#define COOKIE_RETURN (1ULL << 8)	/* this attachment fires at the function's return only */
#define COOKIE_SESSION (1ULL << 9)	/* one attachment fires at entry and at return */
#define COOKIE_LEARN (1ULL << 10)	/* the function argument is to be probed if it is not yet */
#define COOKIE_DEAR (1ULL << 11)	/* the kernel has to execute the probed instruction out of line */
#define COOKIE_FUNCTION_SHIFT 12	/* 3 bits: argument that names the work; 0 = none, or the probed function */
#define COOKIE_ENTRY (1ULL << 15)	/* with COOKIE_SESSION: the return is of no interest, no return probe is to be set */
#define COOKIE_INSTANCE_SHIFT 16	/* 3 bits: argument that tells two pieces of the same work apart */
#define COOKIE_BARRIER (1ULL << 19)	/* EDGE_ENTER_WAIT: for the whole team */
#define COOKIE_ROOT_SHIFT 20	/* 3 bits: argument that is the runtime's state */
#define COOKIE_INSIDE_SHIFT 24	/* 6 bits: the instance has a pointer to the function at this word of its own; 0 = no */
#define COOKIE_DELTA_SHIFT 32	/* 16 bits: from the function's start to the probe */

/* Where in the unwinder's store the mappings of a process are; key: tgid. */
struct mapping_list {
	u64 words;		/* word << 32 | count */
	u64 generation;		/* no two lists ever share one: what was cached of another does not count */
};

struct settings {
	u32 phase;		/* which phase samples are counted under now: 0 or 1 */
	u32 trace;		/* 1: also send a trace_record for each sample */
	u32 system_wide;	/* 1: ask Python about each process that a sample hits */
	u32 ticks;		/* as in struct process, for all */
	u64 refill_ns;		/* of each process's budget, at each of its samples */
	u64 burst_ns;		/* what a budget holds at most, and at first */
	u32 entry_ns;		/* what the trap of a probe costs, beside its program */
	u32 dear_ns;		/* the same with COOKIE_DEAR */
	u32 return_ns;		/* that of a return probe */
	u32 interrupt_ns;	/* the interrupt of a sample */
	u32 cpus;		/* the last that is online, and 1 */
	u32 possible_cpus;	/* how many there may ever be */
	u64 hooks_ns;		/* HOOK_RUNS context switches of a CPU take so long at least, or they are followed no more */
	u32 activations;	/* not 0: tell which frames of a sample are new, with system_wide only where waits are of interest: see
				 * activations.bpf.c; another number whenever last_stacks were forgotten */
	u32 glimpse;		/* number of the glimpse that lasts, below 256; with `ticks`: that is about to begin. 0 = none */
	u64 slices_begin_ns;	/* what is counted is told apart by when it came: in slices of the time since then */
	u64 slice_ns;		/* each takes so long; 0: nobody wants that */
	u64 glimpse_since_ns;	/* what is seen in the glimpse counts from then on */
};

#define HOOK_RUNS 1024
#define GAP_NS 40000000ULL	/* a thread without a sample for so long may have slept */

/* What is asked of on_command, which Python runs once for each process concerned. */
enum command {
	COMMAND_RECOUNT = 1,	/* begin a generation; switches are followed again, or for a moment: until so much is paid for it */
	COMMAND_PROBE = 2,	/* probes count again */
	COMMAND_SETTLE = 3,	/* some time after COMMAND_RECOUNT: what programs still changed in the old numbers */
	COMMAND_LEAVE = 4,	/* the process is watched no more: its threads are nobody's */
	COMMAND_ALLOW = 5,	/* of a scope, not of a process: it may use so many cores from now on */
	COMMAND_FREEZE = 6,	/* nothing of the process counts any more: what is known of it stays as it is */
	COMMAND_WAITS = 7,	/* its waits are of interest from a time on, or (0) no more; stalls are cut in two now */
	COMMAND_TRACE = 8,	/* its threads are traced from now on, or (0) no more */
	COMMAND_PLACE = 9,	/* where a thread of it sleeps that did so before anyone could see it */
};

/* What was decided about a process that is not watched; key: tgid. */
enum verdict {
	VERDICT_ASKED = 1,
	VERDICT_DENIED = 2,
};

#endif

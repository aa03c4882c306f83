// Loops that wait for another thread (wait_*), and loops that work though they look at memory again (work_*):
// compiled in several ways by test_spins.py.
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

volatile int flag;
atomic_long counter;
volatile char stop;
struct job { struct job *next; volatile long working[2][16]; long key; } jobs[64];
struct lock { atomic_int taken; };

void wait_flag(void) { while (!flag) ; }
void wait_until(int value) { while (flag < value) ; }
void wait_atomic(long target) { while (atomic_load_explicit(&counter, memory_order_acquire) != target) ; }
void wait_indexed(int from, int buffer) { while (jobs[from].working[buffer][0] == 0) ; }
void wait_pause(void) { for (long i = 0; i < 1L << 40 && !flag; i++) __builtin_ia32_pause(); }
void wait_nops(void) { while (!flag) __asm__ volatile("nop;nop;nop;nop;nop;nop;nop;nop"); }
long wait_timed(long limit)
{
	unsigned long begun = __builtin_ia32_rdtsc();

	while (!flag)
		if ((long)(__builtin_ia32_rdtsc() - begun) > limit)
			return 0;
	return 1;
}
void wait_test_and_set(struct lock *l)
{
	while (atomic_exchange(&l->taken, 1))
		while (atomic_load_explicit(&l->taken, memory_order_relaxed))
			__builtin_ia32_pause();
}
/* Stores at each turn, but always the same: what it finds there is that again until another thread has stored. */
void wait_exchange(struct lock *l) { while (atomic_exchange(&l->taken, 1)) ; }
void wait_exchange_pause(struct lock *l) { while (atomic_exchange(&l->taken, 1)) __builtin_ia32_pause(); }
void wait_compare_exchange(struct lock *l)
{
	int free;

	do
		free = 0;
	while (!atomic_compare_exchange_weak(&l->taken, &free, 1));
}
void wait_bit(void)
{
	__asm__ volatile("1:\tlock btsl $3, (%0)\n\tjc 1b" ::"r"(&flag) : "memory", "cc");
}
/* Others that store do not wait for it, and it gets on if they do not: no lock. */
long work_add_multiple(long by)
{
	long old = atomic_load_explicit(&counter, memory_order_relaxed);

	while (!atomic_compare_exchange_weak(&counter, &old, old * 2 + by)) ;
	return old;
}
void work_push(struct job *job)
{
	static _Atomic(struct job *) head;
	struct job *next = atomic_load(&head);

	do
		job->next = next;
	while (!atomic_compare_exchange_weak(&head, &next, job));
}
/* Hands on what it got from the one before. */
int work_exchange(struct lock *l, int item)
{
	do
		item = atomic_exchange(&l->taken, item);
	while (item > 1);
	return item;
}
int wait_to_take(struct lock *l, long looks)
{
	for (long i = 0; i < looks; i++)
		if (!atomic_load_explicit(&l->taken, memory_order_relaxed) && !atomic_exchange(&l->taken, 1))
			return 1;
	return 0;
}
void wait_mask(long bits) { while (!(counter & bits)) ; }
void wait_fenced(struct job *j)	/* unrolled, as gcc -O3 does, with a barrier at each turn */
{
#define TURN if (j->working[0][0] > j->working[1][0]) break; atomic_thread_fence(memory_order_seq_cst);
	for (;;) {
		TURN TURN TURN TURN TURN TURN TURN TURN
	}
}

/* Looks a number of times, as redis does before it goes to sleep; without a frame pointer, rbp is a register like any
 * other. The second has a frame: what rbp finds was put aside there. */
__asm__(".text\n.globl wait_by_rbp\n.type wait_by_rbp, @function\nwait_by_rbp:\n"
	"\tpush %rbp\n\tmov %rdi, %rbp\n\tmov $1000000, %eax\n\tjmp 2f\n"
	"1:\tsub $1, %eax\n\tje 3f\n"
	"2:\tmov (%rbp), %rdx\n\ttest %rdx, %rdx\n\tje 1b\n"
	"3:\tpop %rbp\n\tret\n.size wait_by_rbp, . - wait_by_rbp\n"
	".globl work_by_frame\n.type work_by_frame, @function\nwork_by_frame:\n"
	"\tpush %rbp\n\tmov %rsp, %rbp\n\tmov $1000000, %eax\n\tjmp 2f\n"
	"1:\tsub $1, %eax\n\tje 3f\n"
	"2:\tmov -8(%rbp), %rdx\n\ttest %rdx, %rdx\n\tje 1b\n"
	"3:\tpop %rbp\n\tret\n.size work_by_frame, . - work_by_frame\n");

/* A pool's thread: takes an item if there is one, and pauses at each turn. */
__attribute__((noinline, visibility("hidden"))) void wait_once(void)
{
	if (stop)
		__builtin_ia32_pause();
	else
		__asm__ volatile("tpause %%ecx" : : "c"(0), "a"(0), "d"(0));
}
__attribute__((noinline, visibility("hidden"))) struct job *take_item(void)
{
	struct job *item = jobs[0].next;

	if (item)
		jobs[0].next = item->next;
	return item;
}
struct job *wait_for_item(void)
{
	struct job *item;

	while (!(item = take_item()))
		wait_once();
	return item;
}
struct job *wait_for_an_item(long turns)
{
	for (long i = 0; i < turns; i++) {
		struct job *item = take_item();

		if (item)
			return item;
		if (stop)
			break;
		wait_once();
	}
	return 0;
}
/* What gives up its CPU at each turn has nothing to do with it (OpenBLAS's threads and those who wait for them). */
long wait_giving_up(unsigned long limit)
{
	unsigned long begun = __builtin_ia32_rdtsc();

	while (limit && !flag) {
		sched_yield();
		if (__builtin_ia32_rdtsc() - begun > limit)
			return 0;
	}
	return 1;
}
void wait_giving_up_by_pointer(void)
{
	while (!take_item())	/* as with -fno-plt */
		__asm__ volatile("call *sched_yield@GOTPCREL(%%rip)" ::: "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi",
				 "r8", "r9", "r10", "r11");
}
static __attribute__((noinline)) void yield_now(void) { sched_yield(); }
void wait_giving_up_by_a_function(void) { while (!flag) yield_now(); }
/* what is done between two such calls is a loop of its own, and work */
long give_up_after_each(const long *a, long n, long turns)
{
	long s = 0;

	for (long turn = 0; turn < turns; turn++) {
		for (long i = 0; i < n; i++)
			s += a[i] ^ s >> 3;
		sched_yield();
	}
	return s;
}
long work_with_calls(long turns)	/* none of which gives up the CPU */
{
	long s = 0;

	while (turns-- && !flag)
		s += sched_get_priority_max((int)s);
	return s;
}
void wait_to_swap(int bits)
{
	int old = 0;

	while (!atomic_compare_exchange_weak((atomic_int *)&flag, &old, old | bits))
		__builtin_ia32_pause();
}
/* Has two turns at most: the second one finds what the first one has set (x264). */
__asm__(".globl work_twice\n.type work_twice, @function\nwork_twice:\n\tmov $1, %ecx\n"
	"1:\ttest %ecx, %ecx\n\tje 2f\n\tmov (%rdi), %eax\n\txor %ecx, %ecx\n\ttest %eax, %eax\n\tjle 1b\n"
	"\tadd $1, %eax\n2:\tret\n.size work_twice, . - work_twice\n");
/* Waits for the processor, as libstdc++'s random_device does. */
__asm__(".globl work_random\n.type work_random, @function\nwork_random:\n\tmov $100, %esi\n"
	"1:\tpause\n\trdseed %edx\n\tmov %edx, (%rcx)\n\tjb 2f\n\tsub $1, %esi\n\tjne 1b\n2:\tret\n"
	".size work_random, . - work_random\n");
/* What stress-ng does to caches. */
void work_that_pauses(volatile long *a, long n)
{
#define PUT(at) a[at] = i; __builtin_ia32_pause();
	for (long i = 0; i < n; i++) {
		PUT(0) PUT(1) PUT(2) PUT(3) PUT(4) PUT(5) PUT(6) PUT(7)
	}
}
/* What lies behind a call that does not return is no part of the loop before it (TBB's queuing_rw_mutex). */
__asm__(".globl wait_or_abort, slow_path\n.type wait_or_abort, @function\n.type slow_path, @function\nwait_or_abort:\n\ttest %rsi, %rsi\n\tje 3f\n"
	"1:\tadd (%rdi), %rax\n\tadd $8, %rdi\n\tjs 2f\n\tcmp %rsi, %rdi\n\tjne 1b\n\tret\n"
	"2:\tcall abort@PLT\n"
	"slow_path:\n3:\tpause\n\txor %eax, %eax\n\tlock cmpxchg %rcx, (%rdx)\n\tje 1b\n\tjmp 3b\n"
	".size wait_or_abort, . - wait_or_abort\n");
/* A sequence lock: whoever reads has one turn, unless somebody writes meanwhile (qemu's clock). */
struct clock { volatile unsigned turn; volatile long time; } the_clock;
long work_read_clock(void)
{
	unsigned turn;
	long time;

	do {
		turn = the_clock.turn & ~1u;
		time = the_clock.time;
	} while (the_clock.turn != turn);
	return time;
}
/* Counts, and has something to do at some of its turns, as long as it is told so from outside (qemu's trace points). */
void tell(long);
long work_if_told(long n)
{
	for (long i = 0; i < n; i++)
		if (flag)
			tell(i);
	return n;
}
long work_in_rows(const long *a, const struct job *j, long n)
{
	long s = 0, t = 1;

	for (long i = 0; i < 3; i++)
		if (j->key)
			for (long k = 0; k < n; k++) {
				tell(s);
				for (long m = 0; m < k; m++) {
					s += a[m] * t + a[i] ^ a[m + k] ^ a[m * k];
					t ^= s / (a[k] + m + i + n);
				}
			}
	return s;
}
/* what is done between two pauses is a loop of its own */
long work_and_pause(const long *a, long n)
{
	long s = 0;

	for (long i = 0; i < n; i++)
		s += a[i] ^ s >> 3;
	__builtin_ia32_pause();
	return s;
}
long work_all(long turns)
{
	long s = 0;

	for (long i = 0; i < turns; i++) {
		struct job *item = take_item();

		s += item ? item->key : 1;
	}
	return s;
}

long work_fenced(const volatile long *a)
{
	long i = 0;

	while (a[i]) {
		atomic_thread_fence(memory_order_seq_cst);
		i++;
	}
	return i;
}
long work_sum(const long *a, long n) { long s = 0; for (long i = 0; i < n; i++) s += a[i]; return s; }
long work_search(const long *a, long key) { long i = 0; while (a[i] != key) i++; return i; }
long work_until_stopped(const long *a) { long s = 0; for (long i = 0; !stop; i++) s += a[i & 1023]; return s; }
uint64_t work_hash_until_stopped(uint64_t x) { while (!stop) x = (x ^ x >> 29) * 6364136223846793005u; return x; }
struct job *work_list(struct job *j, long key) { while (j && j->key != key) j = j->next; return j; }
long work_flagged(const struct job *j, const long *a, long n)
{
	long s = 0;

	for (long i = 0; i < n; i++)
		if (j->working[0][0])
			s += a[i];
	return s;
}
void work_fill(long *a, long n) { for (long i = 0; i < n && !stop; i++) a[i] = i; }
int work_collatz(uint64_t x) { int n = 0; while (x != 1) { x = x & 1 ? 3 * x + 1 : x >> 1; n++; } return n; }
void work_add(long n) { for (long i = 0; i < n; i++) atomic_fetch_add(&counter, 1); }
void work_swap(long bits) { long old = counter; while (!atomic_compare_exchange_weak(&counter, &old, old | bits)) ; }
long work_length(const char *s) { long n = 0; while (s[n]) n++; return n; }
double work_floats(double x) { while (!stop) x = x * 1.0001 + 0.1; return x; }
long work_divide(long n) { long i = 2; while (!stop && n % i) i++; return i; }

/* Rounds: who waits for several threads looks at the place of each, and then again at all of them (redis). */
struct place { _Atomic unsigned long left; char apart[56]; } places[16];
volatile int threads = 4;
void rounds_wait_sum(void)
{
	for (;;) {
		unsigned long left = 0;

		for (int i = 1; i < threads; i++)
			left += atomic_load(&places[i].left);
		if (!left)
			break;
	}
}
/* the same as gcc 12 makes it of redis' code: %esi has how many places there are, and what is found in between */
__asm__(".text\n.globl rounds_wait_in_turn\n.type rounds_wait_in_turn, @function\nrounds_wait_in_turn:\n"
	"\tmov (%rdi), %esi\n"
	"1:\tcmp $1, %esi\n\tjle 3f\n\tlea 64(%r8), %rdx\n\tmov $1, %eax\n\txor %ecx, %ecx\n"
	"2:\tadd $1, %eax\n\tadd $64, %rdx\n\tmov -64(%rdx), %rsi\n\tadd %rsi, %rcx\n\tmov (%rdi), %esi\n"
	"\tcmp %eax, %esi\n\tjg 2b\n\ttest %rcx, %rcx\n\tjne 1b\n"
	"3:\tret\n.size rounds_wait_in_turn, . - rounds_wait_in_turn\n");
void rounds_wait_all(long n)
{
	int are_done;

	do {
		are_done = 1;
		for (long i = 0; i < n; i++)
			if (atomic_load_explicit(&places[i].left, memory_order_relaxed))
				are_done = 0;
	} while (!are_done);
}
/* These work in rounds, though they store nothing: they search, read again what was written meanwhile, or have a state that
 * goes on from round to round. */
const struct place *rounds_until_found(unsigned long key)
{
	for (;;)
		for (long i = 0; i < 16; i++)
			if (places[i].left == key)
				return &places[i];
}
long rounds_sum_of_turn(long n)
{
	unsigned turn;
	long sum;

	do {
		turn = the_clock.turn;
		sum = 0;
		for (long i = 0; i < n; i++)
			sum += places[i].left;
	} while (the_clock.turn != turn);
	return sum;
}
long rounds_count(long n)
{
	long s = 0, round = 0;

	do
		for (long i = 0; i < n; i++)
			s += places[i].left;
	while (round++ < flag);
	return s;
}

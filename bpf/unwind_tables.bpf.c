/* SPDX-License-Identifier: Apache-2.0
 *
 * The user-stack unwinder, first part: its state, and what the tables made from .eh_frame say of an address.
 *
 * The store is one large array of 64-bit words in chunks, written by Python through mmap:
 *   tables    an index, blocks (parprof/unwind/pages.py):
 *     index   for each 2^REGION_SHIFT bytes of a file's code: TABLE_HERE | its block's word, from the index's first; 0 = the
 *             block is not here: of large files those are placed that a process uses, and Python is told when one is missed
 *     blocks  32 bits for each 2^PAGE_SHIFT bytes of code, first row's word, from the block's first << ROW_COUNT_BITS |
 *             number of rows; a word, the row that holds at the begin of the block's code; rows
 *     rows    pc | rule << 32, sorted by pc (an ELF virtual address); see parprof/unwind/rows.py
 *   mappings  MAPPING_WORDS words for each executable mapping of a process, sorted by start
 *
 * Searches are written without branches on what they find, so that the verifier sees one path.
 */

enum row_type {
	ROW_NONE = 0,
	ROW_RSP = 1,
	ROW_RBP = 2,
	ROW_PLT = 3,
	ROW_SIGNAL = 4,
	ROW_END = 5,
	ROW_RBP_DEREF = 6,
	ROW_R10 = 7,
};

#define ROW_FRAME_POINTER 8	/* ours alone: the file has no table */
#define ROW_RSP_DEREF 9	/* CFA = *(rsp + off) + beyond, with the bias added to off */
#define ROW_REGISTER 10	/* CFA = a register of the leaf + off: index in pt_regs, ROW_BY_RBP, off */
#define ROW_CLONE 11	/* behind clone's system call: CFA = rsp + 8, and no caller in the child, where rax is 0 */
#define ROW_INTERPRETED 12	/* code of HotSpot's interpreter */
#define ROW_RETURN 13	/* CFA = rsp + off, and the return address in a register of the leaf: packed as ROW_REGISTER */
#define ROW_LARGE 14	/* CFA = rsp + off, of a frame of megabytes: rbp is 4 bits, off the 24 below */
#define ROW_ABSENT 15	/* ours alone: of code whose rows are not here. (All bits set: there is no mapping.) */
#define ROW_BEYOND_SHIFT 13	/* of the two that read it: words beyond what is in memory; the offset is below */
#define ROW_KEPT_OFFSETS (1 << ROW_BEYOND_SHIFT)
#define ROW_BEYOND_LIMIT 32
#define RSP_DEREF_BIAS (1 << 15)
#define LEAF_RAX 10	/* in struct pt_regs, in words */
#define ROW_BY_RBP (1 << 13)	/* the caller's rbp was saved below rbp, not below the CFA */
#define GOING 0xff	/* no end yet */
#define SEEKING 0xfe	/* nor is there: the mapping of `sought` is to be found first */
#define CACHED_RULES 1024
#define WINDOW_WORDS 64	/* of stack memory read at once: a read costs about as much as copying 512 bytes */
#define MAPPING_STEPS 17
#define ROW_STEPS 10
#define LACK_INTERVAL_NS 10000000ULL

/* The rule for an address in one version of one process's load map. */
struct cached_rule {
	u64 target;
	u32 generation;
	u32 rule;
};

#define WHOLE_WALKS (1 << WALK_SAMPLE | 1 << WALK_WAIT | 1 << WALK_AMOUNT)	/* what is below a piece of work is wanted, too */

enum walk_purpose {
	WALK_SAMPLE = 0,
	WALK_CREATION = 1,	/* of work: filed under created_as */
	WALK_THREAD = 2,	/* creation of a thread, told by a probe */
	WALK_WAIT = 4,		/* of a thread that goes to sleep */
	WALK_FORK = 6,		/* creation of a thread, told by the tracepoint: for the child `key.tid` */
	WALK_AMOUNT = 5,	/* of a thread that has read, written or allocated so much */
	WALK_CLOSURES = 3,	/* nothing to walk: the record is complete; it is the context of the thread's innermost frame */
};

struct walk {
	u64 ip, sp, bp, r10;
	u64 mapping_start, mapping_end, bias, regions, first_region;	/* the mapping found last */
	u64 list;	/* word << 32 | count of the process's mappings */
	u64 generation;	/* of that list: no two lists ever share one */
	u64 return_instance, return_slot, return_address;	/* innermost pending return probe */
	u64 slot, stepped;	/* a copy of the instruction that a uprobe replaced, which the thread executes now; 0 = none; the original */
	u64 period;
	u64 amount[AMOUNT_KINDS];	/* of a WALK_AMOUNT: the bytes that its samples stand for */
	u64 cut_sp;	/* where the frame of the work that another context created begins; ~0 = there is none */
	u64 forgotten;
	u32 captured, hashed;	/* frames of the record that capture put there; so many of them are in its hash */
	u64 window_start;	/* user address of window[0]; 1 = no window: the end of the stack was near */
	u64 window[WINDOW_WORDS];
	struct {	/* see places.bpf.c */
		u64 start;	/* of the stack: what was looked at is from there to sp */
		u32 looks;	/* behind places that are several */
		u32 waits, may_walk;	/* what go_behind is to know of the place `known` */
		u64 known, sp, reach, hash;
		u64 words, mixed;	/* words of the window that belong to it; so many of them are in the hash */
		struct behind behind;
		u64 code_start[MAX_CODE_SPANS], code_end[MAX_CODE_SPANS];
		u64 user_start[MAX_USER_RANGES], user_end[MAX_USER_RANGES];	/* of a creation */
	} place;
	struct {	/* see compare_frames */
		u64 before, compared, shared, differs;
		u32 next;
	} alike;
	struct sample_key key;
	struct work_key created_as, also_created_as;	/* a creation: what its call path is filed under */
	u64 creation;	/* what it is known by: see creation_of; 0 = it is not to be known */
	u64 known_stack;	/* of a creation that is known: there is nothing to walk */
	u64 begun_ns;
	u32 thin;	/* the sample stands for 2^thin */
	struct judgement judged;
	s32 others;	/* threads in work found on the other CPUs; -1 = switches are followed */
	u32 purpose;	/* enum walk_purpose */
	u32 cactus;
	u32 cut;
	u32 tgid;
	u32 depth;
	u32 end;
	u32 exact;	/* ip is not a return address */
	u32 user_mode;
	u32 python_started;
	u64 sought;	/* the address whose mapping was looked for last where the kernel has it */
	u32 may_seek;
	u32 by_seek;	/* the mapping found last is the kernel's word, not Python's: what it says is not to be remembered */
	u32 again;	/* the innermost frame was recorded already */
	u64 absent;	/* an address whose rows are not here; 0 = all were */
	u64 python_frame;	/* the next one to look at */
	u64 python_raw[16];	/* or a frame of HotSpot's interpreter */
	u32 functions_seen;	/* Python frames whose functions were sent, or need not be */
	u32 is_waits;	/* one of wait_walks, which a sample may interrupt */
	u64 code_words[4];	/* of a code object, from the pointer to its file name on; machine code of HotSpot's */
	u64 hash_before;	/* of the record, without its last frame */
	u64 cfa[COMPARED_FRAMES];	/* where the frames lie, by their place in the record; of more, the outermost */
	u32 compares;	/* the stack is to be compared with that of the thread's previous sample */
	u64 calls, calls_before;	/* all that is compared, as one hash; that of the thread's previous sample */
	struct stack_record record;
	struct cached_rule cache[CACHED_RULES];	/* stacks share most of their frames with those before */
};
/* A place where work is created, by a hash of its innermost frames: its stack is walked once, and now and then again. */
struct creation {
	u64 stack;
	u64 hits;
	u64 walked_ns;
	struct behind behind;
};
BPF_TABLE("lru_hash", u64, struct creation, creations, 8192);
BPF_TABLE("percpu_array", u32, struct walk, walks, 1);
BPF_TABLE("prog", u32, u32, unwinders, 5);	/* on_unwind, on_python, on_seek, on_activations, on_python_code */
/* Probes can be preempted, by other probes too: each walk claims a slot of its own, of two for each CPU. Python makes the
 * maps as large as this machine needs them: parprof/kernel/sizes.py. */
#define WALK_SLOTS 128
BPF_TABLE("array", u32, struct walk, edge_walks, WALK_SLOTS);
BPF_TABLE("hash", u32, u64, walk_claims, WALK_SLOTS);	/* when each slot was claimed */
BPF_TABLE("prog", u32, u32, edge_unwinders, 2);	/* on_edge_unwind, on_edge_python */

static __always_inline u64 *word(u64 index)
{
	u32 chunk = index >> CHUNK_SHIFT, at = index & ((1 << CHUNK_SHIFT) - 1);
	void *inner = store.lookup(&chunk);

	return inner ? bpf_map_lookup_elem(inner, &at) : 0;
}

static __always_inline u64 forget(struct walk *w, u64 value)
{
	return forget_in(&w->forgotten, value);
}

/* How many bytes of the stack belong to the piece of work that is walked; more than there are where all do. Without a
 * branch, as what follows: the verifier would follow the code behind for each way. */
static __always_inline u64 reach_of(struct walk *w, u64 sp)
{
	u64 bounded = opaque(w->cut_sp + 1);	/* 0: it is not */

	bounded = opaque((bounded | -bounded) >> 63);
	return forget(w, sp + ((w->cut_sp - 2 * sp) & -bounded));
}

/* A number of words, and at most `most`. */
static __always_inline u64 words_within(struct walk *w, u64 bytes, u64 most)
{
	u64 words = bytes >> 3;

	return forget(w, words ^ ((words ^ most) & -below(most, words)));
}

static __always_inline u64 load(struct walk *w, u64 index)
{
	u64 *found = word(index);

	return forget(w, found ? *found : 0);
}

/* Finds the mapping of an address; 0 if there is none. */
static __always_inline int find_mapping(struct walk *w, u64 address)
{
	u64 first = w->list >> 32, base = 0, n = (u32)w->list, at;

	if (address - w->mapping_start < w->mapping_end - w->mapping_start)
		return 1;
	w->by_seek = 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < MAPPING_STEPS; i++) {
		u64 half = n >> 1, after;

		if (!n)
			break;
		/* 1 if this mapping begins at or below the address */
		after = 1 - below(address, load(w, first + (base + half) * MAPPING_WORDS));
		base += after * (half + 1);
		n = after * (n - half - 1) + (1 - after) * half;
	}
	base = forget(w, base);
	if (!base)
		return 0;
	at = first + (base - 1) * MAPPING_WORDS;
	w->mapping_start = load(w, at);
	w->mapping_end = load(w, at + 1);
	w->bias = load(w, at + 2);
	w->regions = load(w, at + 3);
	w->first_region = load(w, at + 4);
	return address - w->mapping_start < w->mapping_end - w->mapping_start;
}

#define TABLE_HERE (1ULL << 63)
#define ROW_COUNT_BITS 10
#define REGION_PAGES (1 << (REGION_SHIFT - PAGE_SHIFT))

/* The rule for an ELF virtual address; 0 (ROW_NONE) when the table has none. */
static __always_inline u32 find_rule(struct walk *w, u64 vaddr)
{
	u64 region = (vaddr >> REGION_SHIFT) - w->first_region, page = vaddr >> PAGE_SHIFT & (REGION_PAGES - 1), block, entry, base, n;

	if (region >= (u32)w->regions)
		return 0;
	block = load(w, (w->regions >> 32) + region);
	if (!(block & TABLE_HERE))
		return (u32)ROW_ABSENT << 28;
	block = (u32)(block + (w->regions >> 32));
	entry = (u32)(load(w, block + (page >> 1)) >> 32 * (page & 1));
	base = block + (entry >> ROW_COUNT_BITS);
	n = entry & ((1 << ROW_COUNT_BITS) - 1);
#pragma clang loop unroll(disable)
	for (int i = 0; i < ROW_STEPS; i++) {
		u64 half = n >> 1, after;

		if (!n)
			break;
		after = 1 - below(vaddr, (u32)load(w, base + half));
		base += after * (half + 1);
		n = after * (n - half - 1) + (1 - after) * half;
	}
	base = forget(w, base);
	return load(w, base - 1) >> 32;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's own view of what a process has mapped where, for a walk that came to an address which Python has not told
 * of (yet): a process that has just called exec, a library that was just loaded, code that is mapped and unmapped all the
 * time. This is the truth at the very moment of the sample, and costs nothing when code is mapped. Files whose unwind
 * tables are in the store are known by inode; in all else frame pointers lead on. Python is told of the mapping, so that
 * it can name the addresses even if it never finds it mapped.
 *
 * A process's mappings are in a maple tree (Linux 6.1 and later). It is read without locks: nodes and mappings are freed
 * after a grace period only, and this program runs in what delays that. What is wrong all the same, because the tree was
 * being changed, ends the walk.
 */

struct file_key {
	u64 inode;
	u32 device;
	u32 reserved;
};

/* The unwind table of a file in the store. */
struct file_table {
	u64 delta;	/* from an offset in the file to the ELF address there */
	u64 regions;	/* as in the words of a mapping */
	u64 first_region;
};
BPF_TABLE("hash", struct file_key, struct file_table, file_tables, 16384);

#define MAPLE_LEVELS 8
#define MAPLE_PIVOTS 15	/* room for those of the widest node */
#define MAPLE_ARANGE 3
#define MAPLE_LEAVES 2	/* node types below it are leaves */
#define VM_EXECUTE 4

struct maple_pivots {
	u64 pivot[MAPLE_PIVOTS + 1];
	u64 entry, address;
};
BPF_TABLE("percpu_array", u32, struct maple_pivots, maple_scratch, 1);
BPF_TABLE("percpu_array", u32, struct mapped_file_record, mapping_scratch, 1);	/* too large for the stack */

#ifdef MAPLE_ROOT

/* The child of the node `entry` in whose range `address` lies. Pivots are the last addresses of their children; behind the
 * last one used is a zero, or the end of the node. A function by itself, as `walk_frame`. */
u64 maple_child(u64 given)
{
	struct maple_pivots *s = (struct maple_pivots *)given;
	u64 node, wide, child = 0, at, pivots, slots, address;

	if (!s)
		return 0;
	node = s->entry & ~255ULL;
	wide = (s->entry >> 3 & 15) == MAPLE_ARANGE;
	address = s->address;
	pivots = node + (wide ? ARANGE_PIVOT : RANGE_PIVOT);
	slots = node + (wide ? ARANGE_SLOT : RANGE_SLOT);
	at = (slots - pivots) >> 3;
	if (bpf_probe_read_kernel(s->pivot, 8 * MAPLE_PIVOTS, (void *)pivots))
		return 0;
#pragma clang loop unroll(disable)
	for (u64 i = 0; i < MAPLE_PIVOTS; i++) {
		u64 pivot = *(volatile u64 *)&s->pivot[i];
		/* the child is this one, or one before it */
		u64 here = (below(pivot, address) ^ 1) | pivot >> 63 | (((pivot | -pivot) >> 63) ^ 1);

		here &= below(i, at);
		at = here * i + (1 - here) * at;
	}
	bpf_probe_read_kernel(&child, 8, (void *)(slots + 8 * at));
	return child;
}
static u64 (*call_maple_child)(struct maple_pivots *s) = (void *)SHARED_maple_child;

/* The current task's mapping at an address; 0 if there is none. */
static __always_inline u64 find_vma(u64 address)
{
	u64 mm = 0, entry = 0, type;
	u32 zero = 0;
	struct maple_pivots *s = maple_scratch.lookup(&zero);

	if (!s)
		return 0;
	bpf_probe_read_kernel(&mm, 8, (void *)bpf_get_current_task() + TASK_MM);
	bpf_probe_read_kernel(&entry, 8, (void *)mm + MAPLE_ROOT);
	if (!mm || !(entry & 2))
		return 0;
	s->address = address;
#pragma clang loop unroll(disable)
	for (int level = 0; level < MAPLE_LEVELS; level++) {
		type = entry >> 3 & 15;
		s->entry = entry;
		entry = call_maple_child(s);
		if (!entry || type < MAPLE_LEAVES)
			return entry;
	}
	return 0;
}

/* Where a file is: a library that is unloaded again at once is gone before anybody else could ask. Names are followed up
 * to the root of the file system, whose directory above is itself. */
static __always_inline void read_path(struct mapped_file_record *r, u64 file)
{
#ifdef FILE_DENTRY
	u64 dentry = 0, name;

	bpf_probe_read_kernel(&dentry, 8, (void *)file + FILE_DENTRY);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PATH_PARTS; i++) {
		name = 0;
		bpf_probe_read_kernel(&name, 8, (void *)dentry + DENTRY_NAME);
		bpf_probe_read_kernel_str(r->path[i], PATH_NAME_BYTES, (void *)name);
		bpf_probe_read_kernel(&dentry, 8, (void *)dentry + DENTRY_PARENT);
	}
#else
	r->path[0][0] = 0;
#endif
}

static __always_inline void tell_mapping(struct walk *w, u64 start, u64 end, u64 offset, struct file_key *key, u64 file)
{
	u32 zero = 0;
	struct mapped_file_record *whole = mapping_scratch.lookup(&zero);
	struct mapping_record *r;
	u64 hash = mix(mix(mix(start, w->key.image), mix(key->inode, end)), mix(offset, RECORD_MAPPED)) | 1;
	u32 one = 1;

	if (!whole || sent_stacks.lookup(&hash))
		return;
	r = &whole->mapping;
	r->type = RECORD_MAPPED;
	r->image = w->key.image;
	r->start = start;
	r->end = end;
	r->offset = offset;
	r->inode = key->inode;
	r->device = key->device;
	r->epoch = w->key.epoch;
	if (file)
		read_path(whole, file);
	if (stacks.ringbuf_output(whole, file ? sizeof(*whole) : sizeof(*r), BPF_RB_NO_WAKEUP))
		count(LOST_STACK_RING);
	else
		sent_stacks.update(&hash, &one);
}

/* Makes the mapping at an address the one that the walk found last; 0 if there is no code. */
static __always_inline int seek_mapping(struct walk *w, u64 address)
{
	u64 vma = find_vma(address), start = 0, end = 0, pages = 0, flags = 0, file = 0;
	struct file_key key = {};
	struct file_table *table;

	if (!vma)
		return 0;
	bpf_probe_read_kernel(&start, 8, (void *)vma + VMA_START);
	bpf_probe_read_kernel(&end, 8, (void *)vma + VMA_END);
	bpf_probe_read_kernel(&pages, 8, (void *)vma + VMA_OFFSET);
	bpf_probe_read_kernel(&flags, 8, (void *)vma + VMA_FLAGS);
	bpf_probe_read_kernel(&file, 8, (void *)vma + VMA_FILE);
	if (!(flags & VM_EXECUTE) || address - start >= end - start)
		return 0;
	if (file)
		inode_of(file, &key.inode, &key.device);
	else
		pages = 0;
	table = file ? file_tables.lookup(&key) : 0;
	w->mapping_start = start;
	w->mapping_end = end;
	w->by_seek = 1;
	w->regions = 0;	/* no table */
	if (table) {
		w->bias = start - (pages << 12) - table->delta;
		w->regions = table->regions;
		w->first_region = table->first_region;
	} else if (file) {
		tell_stale(w);	/* it may have one that is not here yet */
	}
	tell_mapping(w, start, end, pages << 12, &key, file);
	return 1;
}
#else
u64 maple_child(u64 given)
{
	return 0;
}

static __always_inline int seek_mapping(struct walk *w, u64 address)
{
	return 0;
}
#endif

/* Tail-called by on_unwind, to which it goes back. */
int on_seek(struct bpf_perf_event_data *ctx)
{
	u32 zero = 0;
	struct walk *w = walks.lookup(&zero);

	if (!w)
		return 0;
	if (!seek_mapping(w, w->sought))
		tell_stale(w);
	unwinders.call(ctx, 0);
	w->end = END_TOO_DEEP;	/* the kernel's limit on tail calls */
	return finish_user_stack(w);
}

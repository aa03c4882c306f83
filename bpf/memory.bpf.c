/* SPDX-License-Identifier: Apache-2.0
 *
 * n_working read from a runtime's own memory at a sample: no probe, no symbols at run time, right from the first
 * sample on. The plan comes from Python (parprof/plans.py). All reads are bounded and may fail.
 */
#define UNREADABLE -1
#define TEAMS_OF_ONE 3	/* so many in one another are looked through */
#define FINE_PHASE_NS 200000ULL	/* some 20 times the delay */
#define LEAST_LOOK_NS 1000000ULL

static __always_inline u64 current_fsbase(void)
{
	u64 fsbase = 0;

	bpf_probe_read_kernel(&fsbase, 8, (void *)bpf_get_current_task() + TASK_FSBASE);
	return fsbase;
}

/* 0 is what an unreadable word reads as. */
static __always_inline int read_user(u64 *value, u64 address)
{
	return !bpf_probe_read_user(value, sizeof(*value), (void *)address);
}

/* The task that the thread runs, where teams have barriers; 0 if there is none or it cannot be read. */
static __always_inline u64 current_task(struct memory_plan *plan)
{
	u64 task = 0;

	if (plan->kind != MEMORY_TEAM)
		return 0;
	read_user(&task, current_fsbase() + plan->tls + plan->task);
	return task;
}

/* Threads of the thread's team that have yet to reach its barrier, less those that have not begun their part: they
 * sleep in the runtime still, or wait for a core since they were woken there. */
static __always_inline s32 team_working(struct memory_plan *plan, struct process *p)
{
	u64 team = 0, outer = 0;
	u32 awaited = 0, final = 0, total = 0, begun, asleep = p->n_blocked_inside[parity(p)];

	if (!read_user(&team, current_fsbase() + plan->tls + plan->team))
		return UNREADABLE;
	if (!team)
		return 1;
	/* A region inside a region, without nesting, is a team of one thread: the team around it is what counts. */
#pragma unroll
	for (int i = 0; i < TEAMS_OF_ONE; i++) {
		if (bpf_probe_read_user(&total, 4, (void *)team + plan->total))
			return UNREADABLE;
		if (total == 1 && read_user(&outer, team + plan->outer_team) && outer)
			team = outer;
	}
	if (bpf_probe_read_user(&total, 4, (void *)team + plan->total) ||
	    bpf_probe_read_user(&awaited, 4, (void *)team + plan->awaited) ||
	    bpf_probe_read_user(&final, 4, (void *)team + plan->awaited_final))
		return UNREADABLE;
	if (!total || awaited > total || final > total)
		return UNREADABLE;
	if (final < awaited)
		awaited = final;
	begun = asleep < total ? total - asleep : total;	/* more than the team has: other teams' */
	return begun < awaited ? begun : awaited;
}

/* Between a sample's interrupt and the reading of n_working some 10 us pass, in which other threads reach the barrier:
 * where phases are not much longer than that, it is read too low. Python then goes by how many samples of the team
 * work and how many spin, for what a thread does itself is known from the instant of the interrupt.
 * The team's size if that is so, inside of regions. Outside of them n_working is 1, which cannot be late. A thread that works knows
 * whether it is in a region; one that spins may also wait for the next: the main thread tells. */
static __always_inline u32 phases_are_fine(struct memory_plan *plan, struct process *p, struct thread *t, int works)
{
	u64 record = current_fsbase() + plan->tls, team = 0, now;
	u32 counted[2] = {}, barriers, passed;	/* the team's total and generation */

	if (t && t->is_main)
		p->main_record = record;
	if (!works)
		record = p->main_record;
	if (!record || !read_user(&team, record + plan->team) || !team ||
	    bpf_probe_read_user(counted, sizeof(counted), (void *)team + plan->total))
		return 0;
	now = bpf_ktime_get_ns();
	barriers = counted[1];
	if (team != p->team || (s32)(barriers - p->barriers) < 0) {	/* or made anew at the same place */
		p->team = team;
		p->fine = 0;
	} else if (now - p->barriers_ns < LEAST_LOOK_NS) {
		return p->fine && !p->n_blocked_inside[parity(p)] ? counted[0] : 0;
	} else {
		passed = (barriers - p->barriers) / plan->generation_step;
		p->fine = passed * FINE_PHASE_NS > now - p->barriers_ns;
	}
	p->barriers = barriers;
	p->barriers_ns = now;
	return p->fine && !p->n_blocked_inside[parity(p)] ? counted[0] : 0;	/* who sleeps has done so for long */
}

static __always_inline u64 root_of(struct memory_plan *plan, struct process *p)
{
	u64 root = 0;

	if (plan->root_kind == ROOT_LEARNED)
		return p->runtime_root;
	read_user(&root, plan->root + (plan->root_kind == ROOT_THREAD_LOCAL ? current_fsbase() : 0));
	return root;
}

/* What is behind a chain of pointers; a bad one gives 0. Without branches, as all that is called in the loop over
 * the workers: else the verifier follows each combination of them. */
static __always_inline u64 follow(u64 at, const u16 *hops, u64 count)
{
	u64 next;

#pragma unroll
	for (u64 i = 0; i < MAX_HOPS; i++) {
		read_user(&next, at + hops[i]);
		at = below(i, count) * next + below(count, i + 1) * at;
	}
	return at;
}

/* 1 if the worker at `entry` works, 0 if not. */
static __always_inline u64 worker_works(struct memory_plan *plan, u64 entry)
{
	u64 value = 0, differs;

	entry = follow(entry, plan->worker_hops, plan->worker_hop_count);
	read_user(&value, entry + plan->value);
	value &= plan->mask;
	differs = opaque(value ^ plan->equals);
	differs = opaque((differs | -differs) >> 63);
	return (plan->not_zero ^ differs ^ 1) & opaque((-opaque(entry) | entry) >> 63);
}

#define WORKERS_PER_CALL 4	/* the verifier follows each, and looks at the function once */

/* How many of the next WORKERS_PER_CALL workers work, from number `next` of `most` in the list at `at` on. A function by
 * itself, as `walk_frame`. */
u64 count_workers(u64 given)
{
	struct look *look = (struct look *)given;
	struct process_config *config;
	struct memory_plan *plan;
	u64 entry, loaded, pointers, working = 0;
	u32 tgid;

	if (!look)
		return 0;
	tgid = look->tgid;
	config = configs.lookup(&tgid);
	if (!config)
		return 0;
	plan = &config->memory;
	pointers = plan->pointers;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < WORKERS_PER_CALL; i++) {
		if (look->next >= look->most)
			break;
		entry = look->at + (u64)look->next++ * plan->stride;
		read_user(&loaded, entry);
		working += opaque(worker_works(plan, pointers * loaded + (1 - pointers) * entry));
	}
	return working;
}
static u64 (*call_count_workers)(struct look *look) = (void *)SHARED_count_workers;

static __always_inline s32 workers_working(struct memory_plan *plan, struct process *p, struct look *look)
{
	u64 at = follow(root_of(plan, p), plan->hops, plan->hop_count), working = 0;
	u32 count = 0;

	if (!at)	/* the runtime has not started, or it and all memory are gone: the program is serial */
		return plan->root_kind == ROOT_LEARNED && !is_exiting((void *)bpf_get_current_task()) ? UNREADABLE : 1;
	if (bpf_probe_read_user(&count, 4, (void *)at + plan->count) || !read_user(&at, at + plan->array) ||
	    count > MAX_WORKERS)
		return UNREADABLE;
	if (!count || !at)
		return 1;
	look->at = at;
	look->next = 0;
	look->most = count;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < MAX_WORKERS / WORKERS_PER_CALL; i++) {
		working += call_count_workers(look);
		if (look->next >= look->most)
			break;
	}
	return working;
}

/* n_working as the runtime's memory has it, for a thread of a process that works; UNREADABLE if it has not. */
u64 ask_memory(u64 given)
{
	struct look *look = (struct look *)given;
	struct process_config *config;
	struct memory_plan *plan;
	struct process *p;
	s32 n, outside;
	u32 tgid;

	if (!look)
		return UNREADABLE;
	tgid = look->tgid;
	p = processes.lookup(&tgid);
	config = configs.lookup(&tgid);
	if (!p || !config)
		return UNREADABLE;
	outside = p->n_blocked_outside[parity(p)];
	plan = &config->memory;
	if (plan->kind == MEMORY_WORKERS)
		return workers_working(plan, p, look);
	if (plan->kind != MEMORY_TEAM)
		return UNREADABLE;
	n = team_working(plan, p);
	if (n > 0 && outside > 0)	/* they wait for something else than the barrier, which still counts them */
		n -= outside;
	return n == UNREADABLE ? UNREADABLE : n < 1 ? 1 : n;
}

static u64 (*call_ask_memory)(struct look *look) = (void *)SHARED_ask_memory;

static __always_inline s32 memory_working(u32 tgid)
{
	struct look look = {};

	look.tgid = tgid;
	return call_ask_memory(&look);
}

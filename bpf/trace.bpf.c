/* SPDX-License-Identifier: Apache-2.0
 *
 * An execution trace (malony-1987 sec. 5): what each thread of a process does, from when on, as one record for each change;
 * the call paths of its samples and waits. Only for processes whose `traced` is set; all others look at that and go on.
 */

/* `edge`: the cookie of the probe that was hit, or 0; `function`: what begins there, 0 = something ends. */
static __always_inline void send_thread(struct thread *t, u64 now, u32 waker, u64 edge, u64 function)
{
	struct thread_record *r = trace.ringbuf_reserve(sizeof(*r));

	if (!r) {
		count(LOST_TRACE_RING);
		return;
	}
	r->type = RECORD_THREAD;
	r->tid = t->tid;
	r->time_ns = now;
	r->function = function;
	r->image = t->image;
	r->waker = waker;
	r->does = t->told;
	r->edge = edge & COOKIE_KIND_MASK;
	r->depth = t->depth;
	r->reserved = r->also_reserved = 0;
	trace.ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

static __always_inline u8 what_it_does(struct thread *t)
{
	return DOES_KNOWN | t->counted | t->running << 1 | (t->queued | !!t->loiters) << 2;
}

/* What the thread does has changed, perhaps. */
static __always_inline void trace_thread(struct process *p, struct thread *t, u64 now)
{
	u8 does;

	if (!p->traced)
		return;
	does = what_it_does(t);
	if (t->told == does)
		return;
	t->told = does;
	send_thread(t, now, 0, 0, 0);
}

/* The same at its wake-up, in the thread that wakes it or in what interrupted that one. */
static __always_inline void trace_wakeup(struct process *p, struct thread *t, u64 now)
{
	if (!p->traced)
		return;
	t->told = what_it_does(t);
	send_thread(t, now, current_ids(), 0, 0);
}

static __always_inline void trace_end(struct process *p, struct thread *t)
{
	if (!p->traced)
		return;
	t->told = DOES_NOTHING;
	send_thread(t, bpf_ktime_get_ns(), 0, 0, 0);
}

/* A sample (`since_ns` is 0), or a wait that is over. */
static __always_inline void trace_path(struct process *p, u64 now, u64 since_ns, struct sample_key *key)
{
	struct path_record *r;

	if (!p->traced)
		return;
	r = trace.ringbuf_reserve(sizeof(*r));
	if (!r) {
		count(LOST_TRACE_RING);
		return;
	}
	r->type = RECORD_PATH;
	r->reserved = 0;
	r->time_ns = now;
	r->since_ns = since_ns;
	r->key = *key;
	trace.ringbuf_submit(r, BPF_RB_NO_WAKEUP);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * CPython's global lock (GIL): which threads wait for it, and which one has it. A thread that wants it waits for a condition
 * variable that is a part of it, by a futex; so does one that has just let go, until another has taken it. Who has it stands
 * in it. Up to 3.11 there is one, from 3.12 on each interpreter in a process may have its own.
 */
#define GIL_HELD 1	/* in what own_gil returns */

/* The GIL of the interpreter that the current thread runs in, with GIL_HELD if this thread has it; 0: not known. */
u64 own_gil(u64 given)
{
	struct interpreter *py = (struct interpreter *)given;
	u64 state, gil, interpreter = 0, holder = 0;
	u32 locked = 0;

	if (!py)
		return 0;
	gil = py->gil;
	state = thread_state(py);
	if (!state)
		return gil;
	if (!gil && (!read_user(&interpreter, state + py->thread_interpreter) || !interpreter ||
		     !read_user(&gil, interpreter + py->interpreter_gil)))
		return 0;
	if (!gil || !read_user(&holder, gil + py->gil_holder) || holder != state)
		return gil;
	if (bpf_probe_read_user(&locked, sizeof(locked), (void *)(gil + py->gil_locked)))
		return gil;
	return gil | (locked == 1 ? GIL_HELD : 0);
}

static u64 (*call_own_gil)(struct interpreter *py) = (void *)SHARED_own_gil;

/* The GIL of the current thread, if an address is in it; else 0. */
static __always_inline u64 gil_around(struct interpreter *py, u64 address)
{
	u64 gil = py->gil ? py->gil : call_own_gil(py) & ~(u64)GIL_HELD;

	return gil && address - gil < py->gil_size ? gil : 0;
}

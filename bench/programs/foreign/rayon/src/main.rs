// SPDX-License-Identifier: Apache-2.0
// Phases of known truth on rayon: two threads work, then the first one. The work is C's, which logs it (truth_calls.c).
use rayon::prelude::*;

const ROUNDS: usize = 50;
const UNIT_NS: u64 = 20_000_000;

#[link(name = "truth_calls")]
extern "C" {
    fn truth_begin();
    fn truth_serial(cpu_ns: u64);
    fn truth_shared(cpu_ns: u64);
    fn truth_end();
}

fn main() {
    rayon::ThreadPoolBuilder::new().num_threads(2).build_global().unwrap();
    unsafe { truth_begin() };
    for _ in 0..ROUNDS {
        (0..2).into_par_iter().with_max_len(1).for_each(|_| unsafe { truth_shared(UNIT_NS) });
        unsafe { truth_serial(UNIT_NS) };
    }
    unsafe { truth_end() };
}

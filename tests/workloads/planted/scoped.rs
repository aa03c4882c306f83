// SPDX-License-Identifier: Apache-2.0
// scoped.rs - problems of Rust programs. The first argument says which one.
use std::hint::black_box;
use std::sync::{mpsc, Arc, Mutex};
use std::thread;

fn burn(mut x: u64, rounds: u64) -> u64 {
    for _ in 0..rounds {
        x = black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    }
    x
}

#[inline(never)]
fn share(i: u64) -> u64 {
    burn(i, 100_000_000)
}

#[inline(never)]
fn serial_merge(rows: &[u64]) -> u64 {
    rows.iter().map(|row| burn(*row, 3_000_000)).fold(0, |a, b| a ^ b)
}

#[inline(never)]
fn add_up(total: &Mutex<u64>, i: u64) {
    let mut total = total.lock().unwrap();
    *total ^= burn(i, 1_500_000);
}

#[inline(never)]
fn tokenize(line: u64) -> u64 {
    burn(line, 1_200_000)
}

#[inline(never)]
fn index(token: u64) -> u64 {
    burn(token, 600_000)
}

/// The first thread makes what two workers wait for: at a channel, one at a time.
fn feed() {
    let (sender, receiver) = mpsc::sync_channel(8);
    let receiver = Arc::new(Mutex::new(receiver));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || loop {
                let token = receiver.lock().unwrap().recv();
                match token {
                    Ok(token) => black_box(index(token)),
                    Err(_) => break,
                };
            })
        })
        .collect();
    for line in 0..300 {
        sender.send(tokenize(line)).unwrap();
    }
    drop(sender);
    for worker in workers {
        worker.join().unwrap();
    }
}

fn both<F: Fn(u64) + Sync>(run: F) {
    thread::scope(|scope| {
        for i in 0..2 {
            let run = &run;
            scope.spawn(move || run(i));
        }
    });
}

fn run(problem: &str) {
    if problem == "channel" {
        return feed();
    }
    both(|i| {
        black_box(share(i));
    });
    match problem {
        "serial" => {
            let rows: Vec<u64> = (0..50).collect();
            black_box(serial_merge(&rows));
        }
        "mutex" => {
            let total = Mutex::new(0);
            both(|i| {
                for k in 0..60 {
                    add_up(&total, i * k);
                }
            });
            black_box(total.into_inner().unwrap());
        }
        _ => {}
    }
    both(|i| {
        black_box(share(i));
    });
}

fn main() {
    for problem in std::env::args().skip(1) {
        run(&problem);
    }
}

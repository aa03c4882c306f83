"""The kernel side: BPF programs, perf events, uprobes. Only `engine.Kernel` is meant for the layers above."""

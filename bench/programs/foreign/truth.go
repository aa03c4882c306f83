// SPDX-License-Identifier: Apache-2.0
// Phases of known truth in Go: two routines work, then one. Their log is that of truth.h; a routine stays on its thread while
// it is in a logged function.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

const (
	rounds, unitNs    = 50, 20000000
	monotonic, thread = 1, 3 // clocks
)

type interval struct {
	function, tid        int
	enter, exit, workFor int64
}

var (
	names = []string{"main.serial", "main.shared"}
	mutex sync.Mutex
	log   []interval
	sink  uint64
)

func clockNs(clock uintptr) int64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}

//go:noinline
func burn(cpuNs int64) {
	x := uint64(cpuNs)
	for end := clockNs(thread) + cpuNs; clockNs(thread) < end; {
		for i := 0; i < 20000; i++ {
			x = (x ^ x>>29) * 6364136223846793005
		}
	}
	mutex.Lock()
	sink += x
	mutex.Unlock()
}

func logged(function int, cpuNs int64) {
	runtime.LockOSThread()
	begun, enter := clockNs(thread), clockNs(monotonic)
	burn(cpuNs)
	exit, workFor := clockNs(monotonic), clockNs(thread)-begun
	mutex.Lock()
	log = append(log, interval{function, syscall.Gettid(), enter, exit, workFor})
	mutex.Unlock()
	runtime.UnlockOSThread()
}

//go:noinline
func serial(cpuNs int64) { logged(0, cpuNs) }

//go:noinline
func shared(cpuNs int64) { logged(1, cpuNs) }

func main() {
	runtime.GOMAXPROCS(2)
	for round := 0; round < rounds; round++ {
		var both sync.WaitGroup
		for i := 0; i < 2; i++ {
			both.Add(1)
			go func() {
				defer both.Done()
				shared(unitNs)
			}()
		}
		both.Wait()
		serial(unitNs)
	}
	file, err := os.Create(os.Getenv("PARPROF_TRUTH"))
	if err != nil {
		return
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	defer out.Flush()
	fmt.Fprintf(out, "parprof-truth 1\npid %d\ndropped 0\n", os.Getpid())
	for number, name := range names {
		fmt.Fprintf(out, "function %d %s\n", number, name)
	}
	for _, one := range log {
		fmt.Fprintf(out, "interval %d %d %d %d %d\n", one.function, one.tid, one.enter, one.exit, one.workFor)
	}
	fmt.Fprintf(out, "end %d\n", len(log))
}

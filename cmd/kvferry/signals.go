package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// cleanUpTime is how long after the first signal a second one does not end the process: what was started is taken down by then.
// `timeout -s INT` and a shell's kill of a job deliver two within milliseconds.
const cleanUpTime = 5 * time.Second

// signalSlots hold what arrives while the loop of interrupts is busy: it only counts.
const signalSlots = 4

// notifyContext returns a context that the first SIGINT or SIGTERM cancels, so that commands can tidy up. A second signal ends
// the process once cleanUpTime is over, a third at once, as if there were no handler. stop is owed.
func notifyContext(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	arrived := make(chan os.Signal, signalSlots)
	signal.Notify(arrived, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var loop sync.WaitGroup // one goroutine, until stop
	loop.Go(func() { interrupts(arrived, done, cancel, dieOf) })
	return ctx, sync.OnceFunc(func() {
		signal.Stop(arrived)
		close(done)
		loop.Wait()
		cancel()
	})
}

// interrupts calls cancel at the first signal, and die at the third or at one that comes cleanUpTime after the first. It returns
// when done is closed or die returns.
func interrupts(arrived <-chan os.Signal, done <-chan struct{}, cancel func(), die func(os.Signal)) {
	var first time.Time
	for n := 1; ; n++ {
		select {
		case <-done:
			return
		case s := <-arrived:
			switch {
			case n == 1:
				first = time.Now()
				cancel()
			case n > 2 || time.Since(first) >= cleanUpTime:
				die(s)
				return
			}
		}
	}
}

// dieOf ends the process by the signal itself, so that a shell sees what ended it.
func dieOf(s os.Signal) {
	signal.Reset(s)
	if p, err := os.FindProcess(os.Getpid()); err == nil && p.Signal(s) == nil {
		return
	}
	os.Exit(int(exitCancelled)) // where a process can't signal itself
}

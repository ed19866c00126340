package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// procs starts processes and ends them all. Children are in process groups of their own, so that a terminal's Ctrl-C
// reaches this program alone, which then ends them in order; and the kernel ends them if this program is killed. That
// signal comes when the thread that started them dies, so one locked thread starts them all and lives until close.
type procs struct {
	start chan func()
	quit  chan struct{}
	wg    sync.WaitGroup
	mu    struct {
		sync.Mutex
		running []*process
		closed  bool
	}
}

// process is one child.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has been waited for
	err  error         // of Wait, after done
}

func newProcs() *procs {
	p := &procs{start: make(chan func()), quit: make(chan struct{})}
	p.wg.Go(func() { // owner: p; ends at close
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			select {
			case f := <-p.start:
				f()
			case <-p.quit:
				return
			}
		}
	})
	return p
}

// run starts a program with its output in the file log.
func (p *procs) run(name, log, bin string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	cmd := exec.CommandContext(context.Background(), bin, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	pr := &process{name: name, cmd: cmd, log: log, done: make(chan struct{})}
	started := make(chan error)
	select {
	case p.start <- func() { started <- cmd.Start() }:
	case <-p.quit:
		return nil, errors.New("the fleet is closed")
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.mu.Lock()
	p.mu.running = append(p.mu.running, pr)
	p.mu.Unlock()
	p.wg.Go(func() { // owner: p; ends with the child
		pr.err = cmd.Wait()
		close(pr.done)
	})
	return pr, nil
}

// failed describes a child that ended early, with the end of its log.
func (pr *process) failed() error {
	tail, _ := os.ReadFile(pr.log)
	if len(tail) > 2000 {
		tail = tail[len(tail)-2000:]
	}
	return fmt.Errorf("%s ended early (%v); the end of its output:\n%s", pr.name, pr.err, tail)
}

// stopTimeout is how long a child may take to end when asked to.
const stopTimeout = 5 * time.Second

// stop asks the child to end and waits; a child that does not is killed, which is an error.
func (pr *process) stop() error {
	select {
	case <-pr.done:
		return nil
	default:
	}
	_ = pr.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-pr.done:
		return nil
	case <-timer.C:
	}
	_ = pr.cmd.Process.Kill()
	<-pr.done
	return fmt.Errorf("%s did not stop within %v and was killed", pr.name, stopTimeout)
}

// close stops all, the youngest first.
func (p *procs) close() error {
	p.mu.Lock()
	if p.mu.closed {
		p.mu.Unlock()
		return nil
	}
	p.mu.closed = true
	running := p.mu.running
	p.mu.Unlock()
	var errs []error
	for i := len(running) - 1; i >= 0; i-- {
		errs = append(errs, running[i].stop())
	}
	close(p.quit)
	p.wg.Wait()
	return errors.Join(errs...)
}

// Package procs runs the processes of a bench or an end-to-end test and ends them all.
//
// # Usage
//
//	g := procs.Open()
//	defer g.Close()
//	p, err := g.Run(procs.Command{Name: "kvferryd", Log: "kvferryd.log", Bin: "bin/kvferryd"})
//	err = p.Await(ctx, ready)
//
// # Concurrency
//
// All methods are safe for concurrent use.
//
// # Limitations
//
// Linux.
package procs

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

// A Group starts processes and ends them. Children are in process groups of their own, so that a terminal's Ctrl-C
// reaches this program alone, which then ends them in order; and the kernel ends them if this program is killed. That
// signal comes when the thread that started them dies, so one locked thread starts them all and lives until Close.
type Group struct {
	start chan func()
	quit  chan struct{}
	wg    sync.WaitGroup
	mu    struct {
		sync.Mutex
		running []*Process
		closed  bool
	}
}

// A Command is a program to run.
type Command struct {
	// Name is for people, in errors.
	Name string
	// Log is the file that the output is appended to.
	Log string
	// Bin and Args are the program and its arguments.
	Bin  string
	Args []string
	// Env is added to this program's environment.
	Env []string
	// Orphan is the signal that the kernel sends when this program is killed. Default SIGTERM.
	Orphan syscall.Signal
}

// A Process is one child.
type Process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has been waited for
	err  error         // of Wait, after done
}

// ErrClosed means that the group is closed.
var ErrClosed = errors.New("the processes' group is closed")

// Open makes an empty group. Close is owed.
func Open() *Group {
	g := &Group{start: make(chan func()), quit: make(chan struct{})}
	g.wg.Go(func() { // owner: g; ends at Close
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			select {
			case f := <-g.start:
				f()
			case <-g.quit:
				return
			}
		}
	})
	return g
}

// Run starts a program. Errors: ErrClosed, those of the system.
func (g *Group) Run(c Command) (*Process, error) {
	out, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", c.Name, err)
	}
	defer func() { _ = out.Close() }() // the child has its own descriptor
	orphan := c.Orphan
	if orphan == 0 {
		orphan = syscall.SIGTERM
	}
	cmd := exec.CommandContext(context.Background(), c.Bin, c.Args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphan}
	if len(c.Env) > 0 {
		cmd.Env = append(os.Environ(), c.Env...)
	}
	p := &Process{name: c.Name, cmd: cmd, log: c.Log, done: make(chan struct{})}
	started := make(chan error)
	select {
	case g.start <- func() { started <- cmd.Start() }:
	case <-g.quit:
		return nil, ErrClosed
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	g.mu.Lock()
	g.mu.running = append(g.mu.running, p)
	g.mu.Unlock()
	g.wg.Go(func() { // owner: g; ends with the child
		p.err = cmd.Wait()
		close(p.done)
	})
	return p, nil
}

// Close stops all, the youngest first, and waits. Idempotent. Its error tells of those that had to be killed.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.mu.closed {
		g.mu.Unlock()
		return nil
	}
	g.mu.closed = true
	running := g.mu.running
	g.mu.Unlock()
	var errs []error
	for i := len(running) - 1; i >= 0; i-- {
		errs = append(errs, running[i].Stop())
	}
	close(g.quit)
	g.wg.Wait()
	return errors.Join(errs...)
}

// Name is what the command was called.
func (p *Process) Name() string { return p.name }

// PID is the process's number, its own as long as Done is open.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done closes when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how it ended, nil for exit status 0. Called after Done has closed.
func (p *Process) Err() error { return p.err }

// Signal sends a signal; a process that has ended takes none, and nothing is said of it.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Kill ends it with SIGKILL and waits.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Failed describes a child that ended early, with the end of its log.
func (p *Process) Failed() error {
	tail, _ := os.ReadFile(p.log)
	if len(tail) > 2000 {
		tail = tail[len(tail)-2000:]
	}
	return fmt.Errorf("%s ended early (%v); the end of its output:\n%s", p.name, p.err, tail)
}

// stopTimeout is how long a child may take to end when asked to.
const stopTimeout = 5 * time.Second

// Stop asks the child to end, a frozen one too, and waits; a child that does not is killed, which is an error.
func (p *Process) Stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.Signal(syscall.SIGTERM)
	p.Signal(syscall.SIGCONT)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	p.Kill()
	return fmt.Errorf("%s did not stop within %v and was killed", p.name, stopTimeout)
}

// Await polls until ready answers without an error, the child ends, or ctx does.
func (p *Process) Await(ctx context.Context, ready func(context.Context) error) error {
	var last error
	for {
		attempt, done := context.WithTimeout(ctx, time.Second)
		last = ready(attempt)
		done()
		if last == nil {
			return nil
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-p.done:
			timer.Stop()
			return p.Failed()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for %s: %w (last: %w)", p.name, context.Cause(ctx), last)
		case <-timer.C:
		}
	}
}

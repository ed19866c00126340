package procs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func run(t *testing.T, g *Group, script string, env ...string) *Process {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("there is no sh")
	}
	p, err := g.Run(Command{Name: "child", Log: filepath.Join(t.TempDir(), "log"), Bin: sh, Args: []string{"-c", script}, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func open(t *testing.T) *Group {
	g := Open()
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// A child has the environment, its output is in the log, and its end is told with the log's.
func TestEndsEarly(t *testing.T) {
	p := run(t, open(t), `echo "word $KVFERRY_WORD"; exit 3`, "KVFERRY_WORD=seven")
	err := p.Await(t.Context(), func(context.Context) error { return errors.New("not ready") })
	if err == nil || !strings.Contains(err.Error(), "word seven") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v, want its status and its output", err)
	}
}

// A frozen child ends when it is asked to, and one that is killed is gone when Kill returns.
func TestFrozenChildStops(t *testing.T) {
	g := open(t)
	p, q := run(t, g, "exec sleep 1000"), run(t, g, "exec sleep 1000")
	p.Signal(syscall.SIGSTOP)
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	q.Kill()
	if err := syscall.Kill(q.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("a killed child answers signals: %v", err)
	}
}

// Close ends all children, and nothing starts after it.
func TestClose(t *testing.T) {
	g := Open()
	p := run(t, g, "exec sleep 1000")
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("the child is running")
	}
	if _, err := g.Run(Command{Log: os.DevNull, Bin: "/bin/true"}); !errors.Is(err, ErrClosed) {
		t.Errorf("started after Close: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

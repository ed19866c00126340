package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"kvferry": func() { os.Exit(mainCode()) }})
}

// TestScript runs the command line as a process, where no daemon is needed.
func TestScript(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a hundred processes, which takes long under the race detector; the rest of the package's tests run in one")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("KVFERRY_ADDR", "unix://"+e.WorkDir+"/none.sock")
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
	})
}

// exits N CMD ARGS: runs the command and wants exactly that exit code. Its output can be matched as after exec.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND [ARGS]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		got = strconv.Itoa(e.ExitCode())
	} else if err != nil {
		ts.Fatalf("run %v: %v", args[1:], err)
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s (%v)", got, args[0], err)
	}
}

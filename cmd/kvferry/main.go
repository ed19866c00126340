// Command kvferry is the operator's side of kvferryd: it prices and starts migrations, shows sessions and links, makes
// certificates, and has a demonstration that runs on one machine.
//
// # Usage
//
//	kvferry help
//
// # Limitations
//
// One daemon is addressed at a time. Nothing is stored between calls.
package main

import (
	"context"
	"os"

	"golang.org/x/term"
)

// version is set by the linker.
var version = "0.1.0-dev"

func main() { os.Exit(mainCode()) }

// mainCode is main with its deferred calls run.
func mainCode() int {
	ctx, stop := notifyContext(context.Background())
	defer stop()
	a := &app{stdout: os.Stdout, stderr: os.Stderr, terminal: term.IsTerminal(int(os.Stderr.Fd()))}
	return int(a.run(ctx, os.Args[1:]))
}

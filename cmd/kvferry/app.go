package main

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// defaultAddr is where kvferryd listens for local clients unless told otherwise.
const defaultAddr = "unix:///run/kvferry/kvferry.sock"

// app is one run of the command line.
type app struct {
	stdout, stderr io.Writer
	// terminal says that stderr is one, so that a progress bar makes sense.
	terminal bool

	// Global flags.
	addr          string
	ca, cert, key string
	output        outputFlag
	timeout       time.Duration

	// running is set once a command's own code runs: what fails before is a matter of usage.
	running bool
}

// run parses args, runs the command and returns the exit code. Everything that fails is printed here and nowhere else.
func (a *app) run(ctx context.Context, args []string) exitCode {
	root := a.newRoot()
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !a.running {
		err = asUsage(cmd, err)
		if wantsJSON(args) {
			a.output = outputJSON
		}
	}
	f := faultOf(err)
	a.printFault(f)
	return f.Code
}

// newRoot returns the root command with all others.
func (a *app) newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "kvferry",
		Short: "Move a language-model session's KV cache between regions, or find out whether to",
		Long: `kvferry talks to kvferryd, the daemon that moves sessions between regions.

Every command that changes or shows a region's state is sent to one daemon, at --addr: the socket on this host, or
host:port with certificates. A migration is asked for at its destination.

` + exitHelp(),
		Example: `  kvferry demo                                              # two regions on this machine, a moved session, and the proof
  kvferry plan --model llama-3.1-70b --prefix 8000 --rtt 70ms --goodput 5Gbps
                                                            # fetch or recompute? needs no daemon
  kvferry sessions                                          # what the daemon on this host holds
  kvferry migrate --session chat-17                         # bring a session to the daemon at --addr
  kvferry links --addr eu.example:7440 --ca ca.crt --cert me.crt --key me.key
  kvferry certs init --dir certs                            # a development authority`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	pf := root.PersistentFlags()
	pf.StringVar(&a.addr, "addr", envOr("KVFERRY_ADDR", defaultAddr), "the daemon: unix:///PATH, or host:port with --ca, --cert and --key (environment KVFERRY_ADDR)")
	pf.StringVar(&a.ca, "ca", "", "PEM file of the authority that signed the daemon's certificate")
	pf.StringVar(&a.cert, "cert", "", "PEM file of our certificate")
	pf.StringVar(&a.key, "key", "", "PEM file of our key")
	pf.VarP(&a.output, "output", "o", "table or json")
	pf.Var(newDuration(&a.timeout, 30*time.Second, 0), "timeout", "how long a call may take, migrations excepted; 0 for no limit")
	root.MarkFlagsRequiredTogether("ca", "cert", "key")
	complete(root, "output", "table", "json")
	root.AddCommand(a.commands()...)
	a.mark(root)
	return root
}

// mark makes every command note that its own code runs.
func (a *app) mark(cmd *cobra.Command) {
	if inner := cmd.RunE; inner != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			a.running = true
			return inner(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		a.mark(c)
	}
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// noCommand refuses what a group or the root does not know.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := cmd.SuggestionsFor(args[0])
	if len(names) == 0 {
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
	}
	return usagef(args[0], "a command of '"+cmd.CommandPath()+"': "+strings.Join(names, ", "), "command %q is not known", args[0])
}

// noArgs refuses arguments of a command that has flags only.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usagef(args[0], "flags only; see '"+cmd.CommandPath()+" --help'", "argument %q is not expected", args[0])
}

// wantsJSON looks for -o json in arguments that could not be parsed.
func wantsJSON(args []string) bool {
	return slices.ContainsFunc(args, func(s string) bool { return s == "-ojson" || s == "-o=json" || s == "--output=json" }) ||
		slices.ContainsFunc(slices.Collect(pairs(args)), func(p [2]string) bool {
			return (p[0] == "-o" || p[0] == "--output") && p[1] == "json"
		})
}

// pairs yields each argument with the one that follows.
func pairs(args []string) func(yield func([2]string) bool) {
	return func(yield func([2]string) bool) {
		for i := 1; i < len(args); i++ {
			if !yield([2]string{args[i-1], args[i]}) {
				return
			}
		}
	}
}

// call bounds a call to the daemon.
func (a *app) call(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// complete gives a flag's values to the shell.
func complete(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("BUG: " + err.Error()) // only an unknown or repeated flag name
	}
}

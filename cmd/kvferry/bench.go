package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvferry/kvferry/bench/results"
)

// benchFlags are what all benchmarks have in common. A benchmark calls begin before it measures and end with its result.
type benchFlags struct {
	a           *app
	save, diff  string
	allowUnlike bool
	old         *results.File // of --diff
}

func (a *app) newBench() *cobra.Command {
	b := &benchFlags{a: a}
	cmd := group("bench", "Measure: what a link gives, where fetch beats recompute on it, what waiting costs", a.benchCommands(b)...)
	cmd.Long = `bench measures on this machine, on this link. Each result says on what it was measured and what set the number; --save keeps
it, --diff compares with one that was kept, by the noise of both, and refuses to compare what was not measured alike.

Progress goes to stderr. Ctrl-C ends a benchmark early: it prints what it has and exits with 6.`
	pf := cmd.PersistentFlags()
	pf.StringVar(&b.save, "save", "", "write the result to this file, JSON")
	pf.StringVar(&b.diff, "diff", "", "compare with the result in this file, made with --save or -o json")
	pf.BoolVar(&b.allowUnlike, "allow-unlike", false, "compare even with other parameters or another machine, and say what differs")
	return cmd
}

// benchCommands lists the benchmarks. One file a benchmark.
func (a *app) benchCommands(b *benchFlags) []*cobra.Command {
	return []*cobra.Command{
		a.newBenchGoodput(b),
		a.newBenchCompare(b),
		a.newBenchCompareEnd(),
		a.newBenchCrossover(b),
		a.newBenchWan(b),
		a.newBenchQueue(b),
		a.newBenchHybrid(b),
		a.newBenchCodec(b),
		a.newBenchKVDump(b),
		a.newBenchReport(b),
	}
}

// begin checks what would be a pity to find out after the measurement of a result of that kind.
func (b *benchFlags) begin(kind string) (err error) {
	if b.diff != "" {
		if b.old, err = results.Load(b.diff); err != nil {
			return usagef(b.diff, "a result that --save or -o json wrote", "--diff: %v", err)
		}
		if b.old.Kind != kind {
			return usagef(b.diff, "a result of kvferry bench "+kind, "--diff %s: it is a result of kvferry bench %s", b.diff, b.old.Kind)
		}
	} else if b.allowUnlike {
		return usagef("", "--diff OLD.json beside --allow-unlike", "--allow-unlike has nothing to allow")
	}
	if b.save != "" {
		return checkPlace("save", b.save)
	}
	return nil
}

// checkPlace refuses a file that a flag names and that cannot be written.
func checkPlace(flag, path string) error {
	if fi, err := os.Stat(path); err == nil {
		if fi.IsDir() {
			return usagef(path, "a file's name", "--%s %s is a folder", flag, path)
		}
		return nil
	}
	if fi, err := os.Stat(filepath.Dir(path)); err != nil || !fi.IsDir() {
		return usagef(path, "a file in a folder that exists", "--%s %s: its folder is not there", flag, path)
	}
	return nil
}

// progress tells on stderr how far a benchmark is. With -o json there are only errors on a stderr that is no terminal. Close is
// owed.
func (b *benchFlags) progress() *results.Progress {
	if b.a.output == outputJSON && !b.a.terminal {
		return nil
	}
	return results.OpenProgress(b.a.stderr)
}

// end prints, saves and compares a result, in this order: whatever fails, nothing measured is lost. ctx is that of the
// measurement: when it ended early, so does the command.
func (b *benchFlags) end(ctx context.Context, f *results.File, tables ...*results.Table) error {
	err := b.print(f, tables)
	if b.save != "" {
		err = errors.Join(err, f.Save(b.save))
	}
	if err == nil {
		err = b.compare(f)
	}
	if err == nil && ctx.Err() != nil {
		err = interrupted("the result holds what was measured until then")
	}
	return err
}

func interrupted(what string) *fault {
	return &fault{Code: exitCancelled, Reason: "CANCELLED", Message: "interrupted: " + what, Fix: "run it again for a whole result"}
}

func (b *benchFlags) print(f *results.File, tables []*results.Table) error {
	if b.a.output == outputJSON {
		return f.WriteFlat(b.a.stdout)
	}
	for i, t := range tables {
		if i > 0 {
			_, _ = io.WriteString(b.a.stdout, "\n")
		}
		if err := t.Write(b.a.stdout); err != nil {
			return err
		}
	}
	for _, w := range f.Warnings {
		if _, err := fmt.Fprintf(b.a.stdout, "warning: %s\n", w); err != nil {
			return err
		}
	}
	return nil
}

// compare prints what became of the metrics since --diff's result; with -o json to stderr, since stdout is the result.
func (b *benchFlags) compare(f *results.File) error {
	if b.old == nil {
		return nil
	}
	var cfg results.DiffConfig
	if b.allowUnlike {
		cfg.Allow = []string{results.AllowParams, results.AllowMachine, results.AllowUnits}
	}
	c, err := cfg.Diff(b.old, f)
	if unlike, ok := errors.AsType[*results.UnlikeError](err); ok {
		out := &fault{Code: exitRefused, Reason: "UNLIKE", Message: unlike.Error(), Fix: "compare with a result of the same parameters and machine"}
		if len(unlike.Allow) > 0 {
			out.Fix += ", or allow it with --allow-unlike"
		}
		return out
	}
	if err != nil {
		return err
	}
	w := b.a.stdout
	if b.a.output == outputJSON {
		w = b.a.stderr
	}
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	return c.Table(w)
}

// meaningless refuses flags that have no meaning in the form that was asked for, as "with --wan".
func meaningless(cmd *cobra.Command, form string, names ...string) error {
	for _, n := range names {
		if cmd.Flags().Changed(n) {
			return usagef("", "no --"+n+" "+form, "--%s has no meaning %s", n, form)
		}
	}
	return nil
}

// benchCommand is the command line that a result records: the flags that were given.
func benchCommand(cmd *cobra.Command) []string {
	out := strings.Fields(cmd.CommandPath())
	cmd.Flags().Visit(func(f *pflag.Flag) {
		out = append(out, "--"+f.Name+"="+results.RedactURL(strings.Trim(f.Value.String(), "[]")))
	})
	return out
}

// byteUnits, longest name first because they all end in "b".
var byteUnits = []struct {
	name  string
	scale float64
}{
	{"kib", 1 << 10},
	{"mib", 1 << 20},
	{"gib", 1 << 30},
	{"tib", 1 << 40},
	{"kb", 1e3},
	{"mb", 1e6},
	{"gb", 1e9},
	{"tb", 1e12},
	{"b", 1},
}

// bytesFlag is a number of bytes as flags are given.
func bytesFlag(b int64) string {
	return strings.ReplaceAll(strings.ReplaceAll(bytesText(b), ".0", ""), " ", "")
}

// newBytes is a flag of a number of bytes in [lo, hi].
func newBytes(v *int64, value, lo, hi int64) *parsed[int64] {
	*v = value
	return &parsed[int64]{
		v: v, name: "bytes",
		text: func(b int64) string {
			if b == 0 {
				return ""
			}
			return bytesFlag(b)
		},
		parse: func(s string) (int64, error) {
			example := value
			if example < lo || example > hi {
				example = hi
			}
			number, scale := strings.ToLower(strings.TrimSpace(s)), 1.0
			for _, u := range byteUnits {
				if n, ok := strings.CutSuffix(number, u.name); ok {
					number, scale = strings.TrimSpace(n), u.scale
					break
				}
			}
			x, err := strconv.ParseFloat(number, 64)
			if b := x * scale; err == nil && b >= float64(lo) && b <= float64(hi) {
				return int64(b), nil
			}
			return 0, fmt.Errorf("want %s to %s, as %s", bytesText(lo), bytesText(hi), bytesFlag(example))
		},
	}
}

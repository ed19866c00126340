package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/report"
	"github.com/kvferry/kvferry/bench/results"
)

// What a report measures when no flag says otherwise.
const (
	reportLink = "rtt=70ms,rate=1Gbps"
	reportPace = 3000.0 // microseconds a token
)

// reportFlags are the flags of bench report.
type reportFlags struct {
	out, keep, link string
	model           string
	usPerToken      float64
	quick           bool
}

func (a *app) newBenchReport(b *benchFlags) *cobra.Command {
	var r reportFlags
	cmd := &cobra.Command{
		Use:   "report [FILE...]",
		Short: "Write one HTML file: plots, tables, commands, and what to conclude for this link",
		Long: `report writes one self-contained HTML file. With FILEs, results that --save or -o json wrote, it shows those. Without, it
runs goodput, crossover and queue first: about three minutes, with --quick one. Each section shows the command that measures it
again. goodput and crossover, and what is concluded, are about --wan's link; queue has one of its own, which it names.

The file has no scripts and loads nothing, so that it can be mailed and kept. Its sentences are made from the numbers;
where the machine and not the link set a number, it says so.`,
		Example: `  kvferry bench report --out report.html
  kvferry bench report --quick --wan rtt=30ms,rate=500Mbps --keep results/ --out report.html
  kvferry bench report goodput.json crossover.json queue.json --out report.html`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.benchReport(cmd, b, &r, args) },
	}
	fl := cmd.Flags()
	fl.StringVar(&r.out, "out", "report.html", "the file to write")
	fl.BoolVar(&r.quick, "quick", false, "shorter measurements, wider intervals")
	fl.StringVar(&r.keep, "keep", "", "keep the results that are measured in this folder, as goodput.json, crossover.json and queue.json")
	fl.StringVar(&r.link, "wan", reportLink, "the model link of goodput and crossover")
	names := modelNames()
	fl.Var(newChoice(&r.model, "llama-3.1-8b", names...), "model", "model of the crossover: "+strings.Join(names, ", "))
	fl.Var(newNumber(&r.usPerToken, reportPace, 0.1, 1e7), "prefill-us-per-token", "how fast the destination's GPU prefills, microseconds a token")
	complete(cmd, "model", names...)
	complete(cmd, "wan", reportLink)
	return cmd
}

func (a *app) benchReport(cmd *cobra.Command, b *benchFlags, r *reportFlags, files []string) error {
	if err := r.check(cmd, b, files); err != nil {
		return err
	}
	ctx := cmd.Context()
	var inputs []report.Input
	var err error
	if len(files) > 0 {
		inputs, err = loadResults(files)
	} else {
		inputs, err = a.measureReport(cmd, b, r)
	}
	if len(inputs) == 0 {
		if err == nil && ctx.Err() != nil {
			err = interrupted("before anything was measured")
		}
		return err
	}
	// What was measured is written, then what went wrong is said.
	rep, berr := report.Build(inputs)
	if berr != nil {
		return errors.Join(err, usagef("", "results of kvferry bench", "%v", berr))
	}
	if werr := writeReport(r.out, rep); werr != nil {
		return errors.Join(err, werr)
	}
	view := struct {
		Out         string   `json:"out"`
		Results     []string `json:"results"`
		Conclusions []string `json:"conclusions"`
	}{r.out, []string{}, rep.Conclusions()}
	for _, in := range inputs {
		view.Results = append(view.Results, in.File.Kind)
	}
	perr := a.print(view, func(w io.Writer) {
		for _, c := range view.Conclusions {
			_, _ = fmt.Fprintln(w, c)
		}
		_, _ = fmt.Fprintf(w, "\nwrote %s\n", r.out)
	})
	if err = errors.Join(err, perr); err == nil && ctx.Err() != nil {
		err = interrupted("the report holds what was measured until then")
	}
	return err
}

// check refuses what cannot be before minutes are spent on it.
func (r *reportFlags) check(cmd *cobra.Command, b *benchFlags, files []string) error {
	for _, n := range []string{"save", "diff", "allow-unlike"} {
		if cmd.Flags().Changed(n) {
			return usagef("", "--keep DIR to keep the results, and --diff with each benchmark", "--%s has no meaning for a report", n)
		}
	}
	if len(files) > 0 {
		for _, n := range []string{"quick", "keep", "wan", "model", "prefill-us-per-token"} {
			if cmd.Flags().Changed(n) {
				return usagef("", "FILEs to show, or --"+n+" for what is to be measured", "--%s has no meaning with FILEs, from which nothing is measured", n)
			}
		}
	}
	if len(files) > report.MaxInputs {
		return usagef("", fmt.Sprintf("at most %d FILEs", report.MaxInputs), "%d results are too many for one report", len(files))
	}
	if r.keep != "" {
		if fi, err := os.Stat(r.keep); err != nil || !fi.IsDir() {
			return usagef(r.keep, "a folder that exists", "--keep: the folder %s is not there", r.keep)
		}
	}
	return checkPlace("out", r.out)
}

func loadResults(files []string) ([]report.Input, error) {
	var out []report.Input
	for _, path := range files {
		f, err := results.Load(path)
		if err != nil {
			return nil, usagef(path, "results that --save or -o json wrote", "%v", err)
		}
		out = append(out, report.Input{Name: path, File: f})
	}
	return out, nil
}

// step is one benchmark of a report: its own command line, and what that command measures.
type step struct {
	name    string
	command []string
	run     func(context.Context, *results.Progress) (*results.File, error)
}

// steps are a report's benchmarks. Each is made by parsing the command line that the report shows for it, so that this is
// what was measured. Errors are those of values that a benchmark refuses.
func (a *app) steps(r *reportFlags) ([]step, error) {
	var out []step
	for _, s := range []struct {
		name string
		args []string
		make func(*cobra.Command) (check func() error, run func(context.Context, *results.Progress) (file, error))
	}{
		{"goodput", r.goodputArgs(), func(cmd *cobra.Command) (func() error, func(context.Context, *results.Progress) (file, error)) {
			g := new(goodputFlags)
			g.register(cmd)
			return func() error { return g.check(cmd) }, func(ctx context.Context, bar *results.Progress) (file, error) {
				res, err := a.goodput(ctx, g, bar)
				if res == nil {
					return nil, err
				}
				return res, err
			}
		}},
		{"crossover", r.crossoverArgs(), func(cmd *cobra.Command) (func() error, func(context.Context, *results.Progress) (file, error)) {
			c := new(crossoverFlags)
			c.register(cmd)
			return func() error { return c.check(cmd) }, func(ctx context.Context, bar *results.Progress) (file, error) {
				res, err := runCrossover(ctx, c.cfg, bar)
				if res == nil {
					return nil, err
				}
				return res, err
			}
		}},
		{"queue", r.queueArgs(), func(cmd *cobra.Command) (func() error, func(context.Context, *results.Progress) (file, error)) {
			q := new(queueFlags)
			q.register(cmd)
			return func() error { return q.check(cmd) }, func(ctx context.Context, bar *results.Progress) (file, error) {
				q.cfg.Progress = bar
				res, err := queue.Run(ctx, q.cfg)
				if res == nil || len(res.Points) == 0 {
					return nil, err
				}
				return res, err
			}
		}},
	} {
		cmd := &cobra.Command{Use: s.name}
		check, run := s.make(cmd)
		if err := cmd.ParseFlags(s.args); err != nil {
			return nil, fmt.Errorf("BUG: %s of a report: %w", s.name, err)
		}
		if err := check(); err != nil {
			return nil, err
		}
		command := append([]string{"kvferry", "bench", s.name}, s.args...)
		out = append(out, step{s.name, command, func(ctx context.Context, bar *results.Progress) (*results.File, error) {
			res, err := run(ctx, bar)
			if res == nil {
				return nil, err
			}
			f, ferr := res.File(command)
			return f, errors.Join(err, ferr)
		}})
	}
	return out, nil
}

// file is what every benchmark's result can become.
type file interface {
	File(command []string) (*results.File, error)
}

// goodputArgs compare the daemon's number of connections with fewer.
func (r *reportFlags) goodputArgs() []string {
	args := []string{"--wan=" + r.link}
	if r.quick {
		return append(args, "--bytes=64MiB", "--repeats=2")
	}
	return append(args, "--bytes=128MiB", "--stripes=1,8")
}

func (r *reportFlags) crossoverArgs() []string {
	args := []string{"--wan=" + r.link, "--model=" + r.model, "--prefill-us-per-token=" + strconv.FormatFloat(r.usPerToken, 'g', -1, 64)}
	if r.quick {
		args = append(args, "--quick")
	}
	return args
}

// queueArgs measure on the queue's own link: on most links of interest small transfers cannot keep one server busy.
func (r *reportFlags) queueArgs() []string {
	if r.quick {
		return []string{"--quick"}
	}
	return []string{"--duration=45s"}
}

// measureReport runs the benchmarks in turn and returns what was measured, with the error of the first that failed.
func (a *app) measureReport(cmd *cobra.Command, b *benchFlags, r *reportFlags) (out []report.Input, err error) {
	if r.link == "" {
		r.link = reportLink
	}
	steps, err := a.steps(r)
	if err != nil {
		return nil, err
	}
	ctx := cmd.Context()
	bar := b.progress()
	defer func() { err = errors.Join(err, bar.Close()) }()
	for _, s := range steps {
		if ctx.Err() != nil {
			return out, nil
		}
		bar.Say("%s", s.name)
		f, err := s.run(ctx, bar)
		if f != nil {
			f.Versions["kvferry"] = version
			out = append(out, report.Input{Name: s.name, File: f})
			if r.keep != "" {
				err = errors.Join(err, f.Save(filepath.Join(r.keep, s.name+".json")))
			}
		}
		if err != nil && ctx.Err() != nil {
			return out, nil // nothing of it was measured before the interruption, or it is here
		}
		if err != nil {
			return out, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return out, nil
}

// writeReport writes the page whole or not at all.
func writeReport(path string, rep *report.Report) error {
	var page bytes.Buffer
	err := rep.WriteHTML(&page)
	if err == nil {
		err = results.WriteFile(path, page.Bytes())
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/report"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// What a report measures when no flag says otherwise.
const (
	reportLink  = "rtt=70ms,rate=1Gbps"
	reportPace  = 3000.0 // microseconds a token
	reportBytes = 128 << 20
	quickBytes  = 64 << 20
)

// reportFlags are the flags of bench report.
type reportFlags struct {
	out, keep, link string
	quick           bool
	cross           crossoverFlags
}

func (a *app) newBenchReport(b *benchFlags) *cobra.Command {
	var r reportFlags
	cmd := &cobra.Command{
		Use:   "report [FILE...]",
		Short: "Write one HTML file: plots, tables, commands, and what to conclude for this link",
		Long: `report writes one self-contained HTML file. With FILEs, results that --save or -o json wrote, it shows those. Without, it
runs goodput, crossover and queue first: about two minutes, with --quick half of one.

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
	fl.Var(newChoice(&r.cross.cfg.Model, "llama-3.1-8b", names...), "model", "model of the crossover: "+strings.Join(names, ", "))
	fl.Var(newNumber(&r.cross.usPerToken, reportPace, 0.1, 1e7), "prefill-us-per-token", "how fast the destination's GPU prefills, microseconds a token")
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
	for flag, path := range map[string]string{"out": filepath.Dir(r.out), "keep": r.keep} {
		if path == "" {
			continue
		}
		if fi, err := os.Stat(path); err != nil || !fi.IsDir() {
			return usagef(path, "a folder that exists", "--%s: the folder %s is not there", flag, path)
		}
	}
	if fi, err := os.Stat(r.out); err == nil && fi.IsDir() {
		return usagef(r.out, "a file's name", "--out %s is a folder", r.out)
	}
	return nil
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

// measureReport runs the benchmarks in turn and returns what was measured, with the error of the first that failed.
func (a *app) measureReport(cmd *cobra.Command, b *benchFlags, r *reportFlags) (out []report.Input, err error) {
	model, err := wan.Parse(r.link)
	if err != nil {
		return nil, usagef(r.link, "key=value pairs such as "+reportLink, "--wan: %v", err)
	}
	r.cross.cfg.WAN, r.cross.cfg.Quick, r.cross.cfg.PrefillSecondsPerToken = model, r.quick, r.cross.usPerToken/1e6
	if err := r.cross.cfg.Validate(); err != nil {
		if in, ok := errors.AsType[*crossover.InputError](err); ok {
			return nil, usagef(in.Value, in.Allowed, "%v", err)
		}
		return nil, err
	}
	ctx, command := cmd.Context(), benchCommand(cmd)
	bar := b.progress()
	defer func() { err = errors.Join(err, bar.Close()) }()
	for _, step := range []struct {
		name string
		run  func(context.Context) (*results.File, error)
	}{
		{"goodput", func(ctx context.Context) (*results.File, error) {
			return goodputFile(ctx, model, r.quick, bar, command)
		}},
		{"crossover", func(ctx context.Context) (*results.File, error) {
			res, err := runCrossover(ctx, r.cross.cfg, bar)
			if err != nil {
				return nil, err
			}
			return res.File(command)
		}},
		{"queue", func(ctx context.Context) (*results.File, error) {
			res, err := queue.Run(ctx, queue.Config{Quick: r.quick, Progress: bar})
			if err != nil || len(res.Points) == 0 {
				return nil, err
			}
			return res.File(command)
		}},
	} {
		if ctx.Err() != nil {
			return out, nil
		}
		bar.Say("%s", step.name)
		f, err := step.run(ctx)
		if err != nil && ctx.Err() != nil {
			return out, nil // nothing of it was measured before the interruption
		}
		if err != nil {
			return out, fmt.Errorf("%s: %w", step.name, err)
		}
		if f == nil {
			continue
		}
		f.Versions["kvferry"] = version
		out = append(out, report.Input{Name: step.name, File: f})
		if r.keep != "" {
			if err := f.Save(filepath.Join(r.keep, step.name+".json")); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// goodputFile compares the daemon's number of connections with fewer.
func goodputFile(ctx context.Context, model wan.Model, quick bool, bar *results.Progress, command []string) (*results.File, error) {
	cfg := goodput.Config{WAN: model, Bytes: reportBytes, Stripes: []int{1, 8}, Progress: showGoodput(bar)}
	if quick {
		cfg.Bytes, cfg.Stripes, cfg.Repeats = quickBytes, []int{8}, 2
	}
	res, err := goodput.Run(ctx, cfg)
	if res == nil {
		return nil, err
	}
	f, ferr := res.File(command)
	return f, errors.Join(err, ferr)
}

// writeReport writes the page beside its place first, so that a file that is there is replaced by a whole one only.
func writeReport(path string, rep *report.Report) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".report-*.html")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	err = rep.WriteHTML(f)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return os.Rename(f.Name(), path)
}

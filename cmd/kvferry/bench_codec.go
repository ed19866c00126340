package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/codecbench"
	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/results"
)

// codecFlags are the flags of bench codec.
type codecFlags struct {
	cfg           codecbench.Config
	file, dtype   string
	count, rounds int64
}

// codecDTypes are what --dtype takes.
var codecDTypes = map[string][]kvfile.DType{
	"bf16": {kvfile.BF16}, "fp16": {kvfile.FP16}, "fp8": {kvfile.FP8E4M3}, "all": {kvfile.BF16, kvfile.FP16, kvfile.FP8E4M3},
}

func (a *app) newBenchCodec(b *benchFlags) *cobra.Command {
	var c codecFlags
	cmd := &cobra.Command{
		Use:   "codec",
		Short: "Measure how much shorter the codecs make KV values, and how fast",
		Long: `codec codes pages of KV values with each codec that a transfer would take for them, in turn, beside zstd and s2 on the same pages as they
are and, where a value has two bytes, on planes of bytes. Every page has to come back bit for bit.

Without --pages the values are generated, with the entropy of real KV cache; FP16 and FP8 (E4M3, a scale a layer) are roundings of the same
values. With --pages FILE they are recorded ones, and the file says what they are: kvferry bench kv-dump makes it.

Rates are GB/s of one core, a GB being 1e9 bytes of pages before coding, CPU s/GB that of both ends; medians of all rounds. bound is the
ratio that order-0 entropy allows of the same pages, the exponents and the rest apart, each half of a page by itself. A page that
does not become shorter goes as it is, as in a transfer, and counts so. A codec pays on a link that carries less than the slower of
its two rates, times the cores that are spare.`,
		Example: `  kvferry bench codec
  kvferry bench codec --dtype all --save codec.json
  kvferry bench kv-dump pages.kv && kvferry bench codec --pages pages.kv
  kvferry bench codec -o json | jq '.codecs[] | select(.name=="huff") | .ratio/.bound_ratio'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef(args[0], "--pages "+args[0], "argument %q is not expected", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchCodec(cmd, b, &c) },
	}
	fl := cmd.Flags()
	fl.StringVar(&c.file, "pages", "", "measure the pages of this file, made with kvferry bench kv-dump")
	fl.Var(newChoice(&c.dtype, "bf16", "bf16", "fp16", "fp8", "all"), "dtype", "values to generate: bf16, fp16, fp8 or all of them")
	fl.Var(newCount(&c.count, 0, 1, kvfile.MaxPages), "count", "pages (default: 64 of 128 KiB that are generated; of a file what fits in 256 MiB, spread evenly)")
	fl.Var(newCount(&c.rounds, 7, 1, 1000), "rounds", "rounds of all codecs; fewer than 4 a side can show no difference")
	fl.Uint64Var(&c.cfg.Seed, "seed", 0, "of generated values")
	complete(cmd, "dtype", "bf16", "fp16", "fp8", "all")
	return cmd
}

func (a *app) benchCodec(cmd *cobra.Command, b *benchFlags, c *codecFlags) (err error) {
	c.cfg.Pages, c.cfg.Rounds, c.cfg.DTypes = int(c.count), int(c.rounds), codecDTypes[c.dtype]
	if c.file != "" {
		if err := meaningless(cmd, "with --pages, whose file says what its values are", "dtype", "seed"); err != nil {
			return err
		}
	}
	if err := b.begin(results.KindCodec); err != nil {
		return err
	}
	if c.file != "" {
		f, err := os.Open(c.file)
		if err != nil {
			return fmt.Errorf("--pages: %w", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		c.cfg.DTypes = nil
		if c.cfg.File, err = kvfile.NewReader(bufio.NewReaderSize(f, 1<<20)); err != nil {
			return c.fault(err)
		}
	}
	ctx := cmd.Context()
	bar := b.progress()
	c.cfg.Progress = bar
	res, err := codecbench.Run(ctx, c.cfg)
	if err = errors.Join(err, bar.Close()); err != nil {
		return c.fault(err)
	}
	if res == nil {
		return interrupted("before anything was measured")
	}
	f, err := res.File(benchCommand(cmd))
	if err != nil {
		return err
	}
	f.Versions["kvferry"] = version
	return b.end(ctx, f, res.Table(), res.DataTable())
}

// fault is that of an error of packages codecbench and kvfile.
func (c *codecFlags) fault(err error) error {
	if in, ok := errors.AsType[*codecbench.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	if c.file == "" {
		return err
	}
	if errors.Is(err, kvfile.ErrFormat) || errors.Is(err, kvfile.ErrHeader) {
		return usagef(c.file, "a file that kvferry bench kv-dump made", "--pages %s: %v", c.file, err)
	}
	if !errors.Is(err, kvfile.ErrChecksum) && !errors.Is(err, kvfile.ErrTrailing) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("--pages: %w", err)
	}
	return &fault{Code: exitFailed, Reason: "DAMAGED", Message: fmt.Sprintf("--pages %s: %v", c.file, err), Fix: "record it again with kvferry bench kv-dump"}
}
